"""What a shipped plugin file may show and need.

usage: check_plugin_file.py [--needs=PREFIX,...] FILE...

Each file must export exactly one symbol, the entry function, and none that the dynamic linker makes unique in the process (those of two plugins would
be merged); must never be unloaded (flag NODELETE); and may need the C and C++ runtime libraries only, beside those whose names start with a given
prefix.
"""
import re
import subprocess
import sys

ENTRY = "kvferry_backend_entry"
RUNTIME = ("libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")
SANITIZERS = ("libasan.so", "libubsan.so", "libtsan.so")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def problems(path, allowed):
    found = []
    symbols = [line.split() for line in run("nm", "-D", "--defined-only", path).splitlines()]
    if [fields[-1].split("@")[0] for fields in symbols] != [ENTRY]:
        found.append(f"exports {[fields[-1] for fields in symbols]}, expected {ENTRY} alone")
    found += [f"{fields[-1]} is unique in the process" for fields in symbols if fields[-2] == "u"]
    dynamic = run("readelf", "-dW", path)
    for needed in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic):
        if not needed.startswith(RUNTIME + SANITIZERS + allowed):
            found.append(f"needs {needed}")
    if "NODELETE" not in dynamic:
        found.append("can be unloaded: the flag NODELETE is not set")
    return [f"{path}: {problem}" for problem in found]


def main(arguments):
    allowed = ()
    if arguments and arguments[0].startswith("--needs="):
        allowed = tuple(arguments.pop(0)[len("--needs=") :].split(","))
    found = [problem for path in arguments for problem in problems(path, allowed)]
    for problem in found:
        print(problem)
    print(f"{len(arguments)} plugin files looked at, {len(found)} problems")
    return 1 if found or not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
