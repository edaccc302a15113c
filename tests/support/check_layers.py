"""Who may include what: the arrows of docs/architecture.md, checked.

usage: check_layers.py SOURCE_FOLDER
"""
import pathlib
import re
import sys

# A layer may use itself and what is named here.
USES = {
    "base": set(),
    "pool": {"base"},
    "slice": {"pool", "base"},
    "plan": {"slice", "pool", "base", "elements"},
    "plugin": {"base", "abi", "elements"},
    "session": {"pool", "base", "abi", "elements"},
    "engine": {"session", "plugin", "plan", "slice", "pool", "base", "abi", "elements"},
    "shell": {"engine", "session", "plugin", "plan", "slice", "pool", "base", "abi", "elements"},
    "abi": {"elements"},
    "elements": set(),
}
HEADERS = {
    "result.h": "base",
    "pool.h": "pool",
    "pool_file.h": "pool",
    "model_config.h": "pool",
    "page_index.h": "slice",
    "slice.h": "slice",
    "sglang_lists.h": "slice",
    "plan.h": "plan",
    "write_element.h": "elements",
    "backend_abi.h": "abi",
    "backend.h": "plugin",
    "session.h": "session",
    "engine.h": "engine",
    "tcp_links.h": "shell",
    "node.h": "shell",
}
# Files that belong to another layer than their folder's name says.
FILES = {"src/session/tcp_links.cpp": "shell", "src/engine/node.cpp": "shell"}
# Libraries that only some folders may include.
FOREIGN = {
    "infiniband/": {"plugins/verbs"},
    "ucp/": {"plugins/ucx", "tools/transfer-check/raw_put.cpp"},
    "uct/": {"plugins/ucx"},
    "ucs/": {"plugins/ucx"},
    "nlohmann/": {"src/pool", "src/session", "src/engine/node.cpp", "tools", "bench", "tests"},
    "boost/asio": {"src/session/tcp_links.cpp", "src/engine/node.cpp", "tests", "plugins"},
    "CLI/": {"tools", "bench", "tests"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def layer_of(path):
    parts = path.split("/")
    if parts[0] == "include":
        return HEADERS.get(parts[-1])
    if parts[0] == "src":
        return FILES.get(path, parts[1])
    return "abi" if parts[0] == "plugins" else None


def problems_of(path, text):
    found = []
    layer = layer_of(path)
    if path.startswith("include/") and layer is None:
        found.append(f"{path}: belongs to no layer; name it in check_layers.py")
    for included in INCLUDE.findall(text):
        for prefix, folders in FOREIGN.items():
            if included.startswith(prefix) and not any(path == folder or path.startswith(folder + "/") for folder in folders):
                found.append(f"{path}: includes {included}, which only {', '.join(sorted(folders))} may")
        if not included.startswith("kvferry/") or layer is None:
            continue
        other = HEADERS.get(included[len("kvferry/") :])
        # A plugin is written against the C header; the error type of the base layer may help it inside.
        allowed = {"abi", "elements", "base"} if path.startswith("plugins/") else USES[layer] | {layer}
        if other not in allowed:
            found.append(f"{path}: layer {layer} may not include {included} (layer {other})")
    return found


def main(folder):
    root = pathlib.Path(folder)
    files = [path for top in ("include", "src", "plugins", "tools", "bench", "examples") for path in (root / top).rglob("*") if path.suffix in (".h", ".cpp", ".c")]
    problems = [problem for path in sorted(files) for problem in problems_of(path.relative_to(root).as_posix(), path.read_text())]
    for problem in problems:
        print(problem)
    print(f"{len(files)} files looked at, {len(problems)} includes against the layers")
    return 1 if problems or len(files) < 20 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
