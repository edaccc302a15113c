"""The installed tree works wherever it is moved to, and carries nothing that it should not.

usage: install_layout.py BUILD_FOLDER SOURCE_FOLDER WORK_FOLDER COMPILER [ARGUMENT...]

Installs the build into WORK_FOLDER, moves the tree to another path, and uses it from a foreign working directory without LD_LIBRARY_PATH or any
KVFERRY_ setting. One line per check; the last line is `N passed, N failed`.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

NEEDED = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
NEEDED_BY_NAME = {
    "libkvferry.so": set(),
    "transfer-check": {"libkvferry.so.0"},
    "loopback": set(),
    "ucx": {"libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0"},
    "kvferry-raw-put": {"libkvferry.so.0", "libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0"},
}
# typeinfo, vtables, guards and thunks of our own names, and what the C side exports.
OUR_SYMBOL = re.compile(r"^(?:(?:typeinfo|typeinfo name|vtable|guard variable|VTT|(?:non-)?virtual thunk) (?:for|to) )?kvferry(::|_)|^KVFERRY_\d+$")
SMALL_RUN = "--page-size=16 --tokens=64 --layers=2 --dtype=bf16 --prefill=tp=1,pp=2 --decode=tp=1,pp=1 --backend=loopback"


class Failed(Exception):
    pass


def run(command, cwd="/", expect=0, **extra):
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", **extra}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != expect:
        raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def wrong_unless(condition, message):
    if not condition:
        raise Failed(message)


class Installation:
    def __init__(self, build, source, work, compiler):
        self.build, self.source, self.work, self.compiler = pathlib.Path(build), pathlib.Path(source), pathlib.Path(work), compiler
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        meson = shutil.which("meson")
        run([meson, "install", "-C", self.build, "--no-rebuild", "--quiet", "--destdir", self.work / "staged"])
        options = {option["name"]: option["value"] for option in json.loads(run([meson, "introspect", "--buildoptions", self.build]))}
        staged = self.work / "staged" / options["prefix"].lstrip("/")
        self.root = self.work / "moved" / "elsewhere"
        self.root.parent.mkdir()
        staged.rename(self.root)
        self.libraries = self.root / options["libdir"]
        self.plugins = self.libraries / "kvferry"
        self.command = self.root / options["bindir"] / "transfer-check"
        self.helpers = self.root / options["libexecdir"] / "kvferry"
        self.headers = self.root / options["includedir"]
        self.licence = self.root / options["datadir"] / "doc" / "kvferry" / "LICENSE"

    def binaries(self):
        helpers = sorted(self.helpers.iterdir()) if self.helpers.exists() else []
        return [self.command, *helpers, (self.libraries / "libkvferry.so").resolve(), *sorted(self.plugins.iterdir())]

    def pkg_config(self, *arguments):
        return run(["pkg-config", *arguments, "kvferry"], PKG_CONFIG_PATH=str(self.libraries / "pkgconfig")).split()

    # ---- checks, in the order they run

    def check_files_are_where_they_belong(self):
        for path in (self.command, self.libraries / "libkvferry.so", self.libraries / "libkvferry.so.0", self.licence):
            wrong_unless(path.exists(), f"{path} is missing")
        names = {path.name for path in self.plugins.iterdir()}
        wrong_unless(any("loopback" in name for name in names), f"no loopback plugin among {sorted(names)}")
        wrong_unless(len(list(self.headers.glob("kvferry/*.h"))) == len(list((self.source / "include/kvferry").glob("*.h"))), "a public header is missing")

    def check_soname_has_the_major_version(self):
        text = run(["readelf", "-d", (self.libraries / "libkvferry.so").resolve()])
        wrong_unless("Library soname: [libkvferry.so.0]" in text, text)

    def check_needed_libraries_are_the_allowed_ones(self):
        for path in self.binaries():
            allowed = set(NEEDED)
            for name, more in NEEDED_BY_NAME.items():
                if name in path.name:
                    allowed |= more
            needed = set(re.findall(r"\(NEEDED\)\s+Shared library: \[(.*?)\]", run(["readelf", "-d", path])))
            wrong_unless(needed <= allowed, f"{path.name} needs {sorted(needed - allowed)}")

    def check_run_paths_are_relative(self):
        for path in self.binaries():
            for folder in re.findall(r"\((?:RPATH|RUNPATH)\)\s+Library \w+: \[(.*?)\]", run(["readelf", "-d", path])):
                wrong_unless(all(part.startswith("$ORIGIN") for part in folder.split(":")), f"{path.name} has the run path {folder}")

    def check_no_build_path_is_inside(self):
        for path in self.binaries():
            stripped = self.work / "stripped"
            run(["strip", "-o", stripped, path])
            content = stripped.read_bytes()
            for folder in (self.build, self.source):
                wrong_unless(str(folder).encode() not in content, f"{path.name} contains the path {folder}")

    def check_only_our_symbols_are_exported(self):
        names = run(["nm", "-D", "-C", "--defined-only", "--format=posix", (self.libraries / "libkvferry.so").resolve()])
        symbols = [re.sub(r" [A-Za-z] [0-9a-f]*(?: [0-9a-f]*)?$", "", line).strip() for line in names.splitlines()]
        symbols = [re.sub(r"@@?KVFERRY_\d+$", "", symbol) for symbol in symbols]
        foreign = [symbol for symbol in symbols if not OUR_SYMBOL.match(symbol)]
        wrong_unless(len(symbols) > 10 and not foreign, f"libkvferry exports {len(symbols)} symbols, among them {foreign[:5]}")
        for plugin in self.plugins.iterdir():
            exported = {line.split()[0].split("@")[0] for line in run(["nm", "-D", "--defined-only", "--format=posix", plugin]).splitlines()}
            wrong_unless(exported == {"kvferry_backend_entry"}, f"{plugin.name} exports {sorted(exported)}")

    def check_every_header_compiles_alone(self):
        flags = self.pkg_config("--cflags")
        for header in sorted(self.headers.glob("kvferry/*.h")):
            program = self.work / "alone.cpp"
            program.write_text(f"#include <kvferry/{header.name}>\n")
            run([*self.compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *flags, program])

    def check_pkg_config_follows_the_tree(self):
        flags = self.pkg_config("--cflags")
        wrong_unless(len(flags) == 1 and flags[0].startswith("-I") and pathlib.Path(flags[0][2:]).samefile(self.headers), f"cflags {flags}")
        plugins = pathlib.Path(self.pkg_config("--variable=plugindir")[0])
        wrong_unless(plugins.samefile(self.plugins), f"plugindir {plugins}")

    def check_a_program_built_with_pkg_config_moves_a_request(self):
        program = self.work / "user"
        flags = self.pkg_config("--cflags", "--libs")
        run([*self.compiler, "-std=c++20", self.source / "examples/move_one_request.cpp", "-o", program, *flags, f"-Wl,-rpath,{self.libraries}"])
        wrong_unless(run([program]).strip().endswith("equal"), "the example did not say that its bytes are equal")

    def check_the_command_runs_from_a_foreign_folder(self):
        wrong_unless(re.search(r"\d+\.\d+\.\d+", run([self.command, "--version"])), "--version prints no version")
        run([self.command, "devices", "--backend=loopback"])

    def check_the_command_moves_a_request(self):
        config = self.source / "examples/models/Llama-3.1-8B.json"
        text = run([self.command, "self", f"--model-config={config}", "--json", *SMALL_RUN.split()])
        wrong_unless('"pass"' in text, text)


def main(build, source, work, *compiler):
    installation = Installation(build, source, work, list(compiler))
    passed = failed = 0
    for name in [name for name in vars(Installation) if name.startswith("check_")]:
        sentence = name[len("check_") :].replace("_", " ")
        try:
            getattr(installation, name)()
        except Failed as problem:
            failed += 1
            print(f"FAILED {sentence}: {problem}")
        else:
            passed += 1
            print(f"ok     {sentence}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
