"""transfer-check as its user meets it: what it prints, where, and with which exit status.

usage: tool_command.py GROUP BUILD_FOLDER SOURCE_FOLDER

GROUP is errors, explain, loopback, ucx or faults. One line per case; the last line is `N passed, N failed`. Every run of the command is bounded;
nothing here depends on how long a thing takes.
depends on how long a thing takes.
"""
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

GUARD_SECONDS = 240
CASES = []


class Failed(Exception):
    pass


def wrong_unless(condition, message):
    if not condition:
        raise Failed(message)


def case(*groups):
    def keep(function):
        CASES.append((groups, function))
        return function

    return keep


class Done:
    def __init__(self, arguments, status, out, err):
        self.arguments, self.status, self.out, self.err = arguments, status, out, err

    def __str__(self):
        return f"{' '.join(map(str, self.arguments))}\n  exit status {self.status}\n  stdout: {self.out[-2000:]}\n  stderr: {self.err[-2000:]}"

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError as problem:
            raise Failed(f"stdout is not one JSON document: {problem}: {self}") from problem


class Command:
    def __init__(self, build, source, folder):
        self.program, self.folder = build / "tools/transfer-check", folder
        self.odd_plugins, self.models = build / "tests/abi", source / "tests/data/models"
        self.llama, self.v3, self.v4 = (self.models / f"{name}.json" for name in ("Llama-3.1-8B", "DeepSeek-V3", "DeepSeek-V4-Flash"))
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("KVFERRY_", "UCX_"))}
        self.tiny = self.file("tiny.json", json.dumps({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 7, "num_attention_heads": 8, "num_key_value_heads": 4,
            "hidden_size": 512, "head_dim": 64, "torch_dtype": "bfloat16"}))

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, *arguments, **settings):
        return subprocess.Popen([self.program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                env={**self.environment, **settings})

    def finish(self, process, arguments):
        try:
            out, err = process.communicate(timeout=GUARD_SECONDS)
        except subprocess.TimeoutExpired as problem:
            process.kill()
            out, err = process.communicate()
            raise Failed(f"no end after {GUARD_SECONDS} s: {Done(arguments, None, out, err)}") from problem
        return Done(arguments, process.returncode, out, err)

    def run(self, *arguments, **settings):
        return self.finish(self.start(*arguments, **settings), arguments)

    def refused(self, status, words, *arguments, **settings):
        """One line on stderr and nothing on stdout; the same as JSON on stdout and nothing on stderr."""
        done = self.run(*arguments, **settings)
        wrong_unless(done.status == status, f"expected exit status {status}: {done}")
        wrong_unless(done.out == "", f"stdout is not empty: {done}")
        wrong_unless(done.err.count("\n") == 1 and done.err.startswith("transfer-check"), f"not one line: {done}")
        for word in words:
            wrong_unless(word in done.err, f"'{word}' is not in the message: {done}")
        as_json = self.run(*arguments, "--json", **settings)
        document = as_json.json()
        wrong_unless(as_json.status == status and as_json.err == "", f"with --json: {as_json}")
        wrong_unless(document["schema"] == "kvferry-transfer-check/1" and document["verdict"] == ("fail" if status == 1 else "error"),
                     f"verdict: {as_json}")
        error = document["error"]
        wrong_unless({"code", "class", "text", "remedy", "exit_status"} <= error.keys() and error["exit_status"] == status,
                     f"error member: {as_json}")
        return document

    def passes(self, *arguments, **settings):
        done = self.run(*arguments, "--json", **settings)
        wrong_unless(done.status == 0 and done.err == "", f"expected to pass: {done}")
        document = done.json()
        wrong_unless(document["verdict"] == "pass", f"verdict: {done}")
        return document

    def pool(self, name, of="decode,tp=0,pp=0", change=None, arguments=()):
        """A pool file of the seven-layer model, changed as the case wants it."""
        path = self.folder / f"{name}.json"
        document = self.passes("explain", f"--model-config={self.tiny}", "--page-size=16", "--tokens=160", f"--write-pool={path}",
                               f"--write-pool-of={of}", *arguments)
        wrong_unless(document["bytes"] > 0, "explain gave no bytes")
        pool = json.loads(path.read_text())
        if change:
            change(pool)
        path.write_text(json.dumps(pool))
        return path


# ---- errors


@case("errors")
def the_command_line_is_strict(c):
    llama = f"--model-config={c.llama}"
    for words, arguments in [
        (["no subcommand", "devices, explain, self, bench"], []),
        (["movee: unknown subcommand"], ["movee"]),
        (["explian: unknown subcommand", "did you mean explain?"], ["explian"]),
        (["--tokens=5: an option before the subcommand"], ["--tokens=5", "explain"]),
        (["--token: unknown option of explain", "did you mean --tokens?"], ["explain", llama, "--token=5"]),
        (["--fast: unknown option of self", "--help"], ["self", llama, "--fast"]),
        (["--tokens: given twice"], ["explain", llama, "--tokens=5", "--tokens=6"]),
        (["--tokens: has no value", "--tokens=N"], ["explain", llama, "--tokens", "5"]),
        (["--tokens: has no value"], ["explain", llama, "--tokens="]),
        (["--corrupt: takes no value, has 'yes'"], ["self", llama, "--corrupt=yes"]),
        (["5: not an option", "--key=value"], ["explain", llama, "5"]),
        (["-t: not an option"], ["explain", llama, "-t"]),
        (["--lane: unknown option of explain"], ["explain", llama, "--lane=shm"]),
        (["serve: unknown subcommand"], ["serve"]),
    ]:
        done = c.run(*arguments)
        wrong_unless(done.status == 2 and done.out == "" and done.err.count("\n") == 1, f"expected one line and exit status 2: {done}")
        for word in words:
            wrong_unless(word in done.err, f"'{word}' is not in the message: {done}")


@case("errors")
def values_are_refused_with_option_value_and_remedy(c):
    llama = f"--model-config={c.llama}"
    for words, option in [
        (["--tokens=abc: not a whole number", "from 1"], "--tokens=abc"),
        (["--tokens=0: out of range"], "--tokens=0"),
        (["--tokens=-1: not a whole number"], "--tokens=-1"),
        (["--tokens=1e3"], "--tokens=1e3"),
        (["--run-length=0: out of range"], "--run-length=0"),
        (["--seed=x"], "--seed=x"),
        (["--page-size=0: out of range"], "--page-size=0"),
        (["--layers=33", "the model has 32 layers"], "--layers=33"),
        (["--layers=0"], "--layers=0"),
        (["--dtype=bf17", "bf17"], "--dtype=bf17"),
        (["--prefill=tp=1,pp=33", "pp", "33", "32"], "--prefill=tp=1,pp=33"),
        (["--decode=pp=0", "pp '0'"], "--decode=pp=0"),
        (["--prefill=dp=2", "tp=N and pp=N"], "--prefill=dp=2"),
        (["--prefill=pp=16+15", "add up to 31 layers, 32 are in use"], "--prefill=pp=16+15"),
        (["--prefill=tp=3", "tp", "3"], "--prefill=tp=3"),
        (["--pool-pages=3", "the request has 16 pages"], "--pool-pages=3"),
        (["--kv-layout=round", "round"], "--kv-layout=round"),
    ]:
        c.refused(2, words, "explain", llama, option)
    for words, option in [
        (["--backend=tcp: unknown word", "ucx, verbs, loopback"], "--backend=tcp"),
        (["--lane=fast: unknown word"], "--lane=fast"),
        (["--memory=gpu: unknown word"], "--memory=gpu"),
        (["--timeout=0: not a time"], "--timeout=0"),
        (["--timeout=soon"], "--timeout=soon"),
        (["--fault=burn: unknown word"], "--fault=burn"),
    ]:
        c.refused(2, words, "self", llama, *([] if "backend" in option else ["--backend=loopback"]), option)
    for words, option in [
        (["--piece-bytes=1,: an item of the list is empty"], "--piece-bytes=1,"),
        (["--piece-bytes=3: out of range"], "--piece-bytes=3"),
        (["--lane=warp: unknown word"], "--lane=warp"),
        (["--rounds=0"], "--rounds=0"),
        (["--pool-bytes=1KB"], "--pool-bytes=1KB"),
    ]:
        c.refused(2, words, "bench", "--backend=loopback", option)


@case("errors")
def a_layout_is_given_once_and_whole(c):
    pool = c.pool("whole")
    llama = f"--model-config={c.llama}"
    c.refused(2, ["--model-config", "no layout is given", "--pool=FILE"], "explain")
    c.refused(2, ["--source-pool", "stands alone", "--target-pool"], "explain", f"--source-pool={pool}")
    c.refused(2, ["--target-pool", "stands alone"], "explain", f"--target-pool={pool}")
    c.refused(2, ["--source-pool", "cannot stand beside --pool"], "explain", f"--pool={pool}", f"--source-pool={pool}")
    c.refused(2, ["--model-config", "cannot stand beside --pool"], "explain", f"--pool={pool}", llama)
    c.refused(2, ["--prefill", "cannot stand beside --pool", "one rank"], "explain", f"--pool={pool}", "--prefill=pp=2")
    c.refused(2, ["--source-pages", "stands alone"], "explain", llama, "--source-pages=x")
    c.refused(2, ["--write-pool-of", "no file to write"], "explain", llama, "--write-pool-of=decode")
    c.refused(2, ["--write-pool-of=decode,tp=1,pp=0", "no such rank", "decode tp0 pp0"], "explain", llama, "--write-pool=x",
              "--write-pool-of=decode,tp=1,pp=0")


@case("errors")
def files_that_cannot_be_read_are_named(c):
    c.refused(2, ["--model-config=none.json", "No such file"], "explain", "--model-config=none.json")
    c.refused(2, [f"--model-config={c.folder}", "Is a directory"], "explain", f"--model-config={c.folder}")
    c.refused(2, ["--model-config=", "broken.json"], "explain", f"--model-config={c.file('broken.json', '{')}")
    c.refused(2, ["num_hidden_layers"], "explain", f"--model-config={c.file('fields.json', '{}')}")
    c.refused(2, ["--pool=", "broken.json", "docs/pool-file.md"], "explain", f"--pool={c.folder / 'broken.json'}")
    c.refused(2, ["--write-pool=", "no/such/folder"], "explain", f"--model-config={c.llama}", f"--write-pool={c.folder}/no/such/folder/pool.json")


@case("errors")
def page_files_are_refused_with_file_line_and_value(c):
    llama = [f"--model-config={c.llama}", "--layers=2"]
    good, short = c.file("good.txt", "0\n2\n1\n"), c.file("short.txt", "5\n3\n")
    c.refused(2, ["unequal lengths: source 3, target 2", "short.txt"], "explain", *llama, f"--source-pages={good}", f"--target-pages={short}")
    c.refused(2, ["word.txt", "line 2: 'x'"], "explain", *llama, f"--source-pages={c.file('word.txt', '1' + chr(10) + 'x')}",
              f"--target-pages={good}")
    c.refused(2, ["minus.json", "item 2: -1"], "explain", *llama, f"--source-pages={c.file('minus.json', '[0, -1, 2]')}", f"--target-pages={good}")
    c.refused(2, ["far.txt", "line 3: page 4000000000 is outside the decode pool", "1024 pages"], "explain", *llama, f"--source-pages={good}",
              f"--target-pages={c.file('far.txt', '1' + chr(10) + '2' + chr(10) + '4000000000')}")
    c.refused(2, ["line 3: page 9", "line 1 already"], "explain", *llama, f"--source-pages={good}",
              f"--target-pages={c.file('twice.txt', '9' + chr(10) + '8' + chr(10) + '9')}")
    c.refused(2, ["--tokens=100", "2 pages of 64 tokens", "has 3"], "explain", *llama, "--tokens=100", f"--source-pages={good}",
              f"--target-pages={good}")
    pool = c.pool("paged")
    c.refused(2, ["edge.txt", "is outside the", "which has"], "self", "--backend=loopback", f"--pool={pool}", f"--source-pages={good}",
              f"--target-pages={c.file('edge.txt', '[0, 1, 14]')}")


@case("errors")
def a_request_that_the_pool_cannot_hold_is_refused(c):
    c.refused(2, ["needs", "indices of pages", "the prefill pool has"], "explain", f"--pool={c.pool('small')}", "--tokens=100000")


@case("errors")
def kinds_that_are_not_laid_out_yet_are_refused_by_name(c):
    for model, word in [("gpt-oss-120b", "sliding"), ("DeepSeek-V3.2", "DSA"), ("Kimi-K3", "linear"), ("Qwen3-Next-80B-A3B", "linear"),
                        ("Nemotron-H-56B-Base-8K", "amba"),
                        ("Jamba-v0.1", "amba"), ("MiniMax-M3-NVFP4", "sparse"), ("MiMo-V2-Flash", "sliding"), ("GLM-5.2", "DSA")]:
        for command in (["explain"], ["self", "--backend=loopback"]):
            document = c.refused(2, [model, word, "docs/status.md"], *command, f"--model-config={c.models / model}.json")
            wrong_unless(document["error"]["code"] == "unsupported", f"{model}: {document}")


@case("errors")
def two_pools_that_disagree_are_refused_with_both_values(c):
    source = c.pool("source", of="prefill,tp=0,pp=0")

    def entries(change):
        def apply(pool):
            for entry in pool["entries"]:
                change(entry)

        return apply

    def pages_of_32(pool):
        pool["page_size"] = 32
        for entry in pool["entries"]:
            entry["page_size"] = 32
            entry["item_length_bytes"] *= 2
            entry["pitch_bytes"] *= 2
            entry["base_address"] *= 2

    def longer(entry):
        entry["heads"]["bytes_per_head_token"] += 4
        entry["item_length_bytes"] += 4 * 4 * 16
        entry["pitch_bytes"] = entry["item_length_bytes"]
        entry["base_address"] *= 2

    for name, change, words in [
        ("page size", pages_of_32, ["16", "32"]),
        ("dtype", entries(lambda entry: entry.update(dtype="fp16")), ["bf16", "fp16"]),
        ("item length", entries(longer), ["128", "132"]),
    ]:
        target = c.pool("target", change=change)
        document = c.refused(2, words, "self", "--backend=loopback", f"--source-pool={source}", f"--target-pool={target}")
        wrong_unless(document["error"]["code"] in ("mismatch", "unsupported"), f"{name}: {document}")


@case("errors")
def ratio_lists_that_differ_are_refused(c):
    files = {}
    for side in ("prefill", "decode"):
        files[side] = c.folder / f"v4-{side}.json"
        c.passes("explain", f"--model-config={c.v4}", "--dtype=fp8", "--layers=8", "--tokens=300", f"--write-pool={files[side]}",
                 f"--write-pool-of={side}")
    pool = json.loads(files["decode"].read_text())
    ratios = pool["compression_ratios"]
    wrong_unless(ratios[:4] == [0, 0, 4, 128], f"ratios {ratios}")
    ratios[0] = 128
    files["decode"].write_text(json.dumps(pool))
    c.refused(2, ["ratio"], "self", "--backend=loopback", f"--source-pool={files['prefill']}", f"--target-pool={files['decode']}")


@case("errors")
def a_target_list_one_entry_short_is_refused_with_the_lengths_that_were_expected(c):
    ratios = json.loads(c.v4.read_text())["compress_ratios"][:43]
    lists = {"convention": "compressed_mla", "state_type": "kv", "compression_ratios": ratios, "stage": [0, 22], "source": 30, "target": 61}
    path = c.file("short.json", json.dumps(lists))
    c.refused(2, ["62", "61", "21", "20"], "explain", f"--sglang-lists={path}")
    lists["target"] = 62
    path.write_text(json.dumps(lists))
    document = c.passes("explain", f"--sglang-lists={path}")
    wrong_unless(len(document["pairs"]) == 30, f"{len(document['pairs'])} pairs")
    # The same fault in pool files: one entry of the target is gone.
    whole = c.folder / "v4.json"
    c.passes("explain", f"--model-config={c.v4}", "--dtype=fp8", "--layers=8", "--tokens=300", f"--write-pool={whole}")
    pool = json.loads(whole.read_text())
    gone = pool["entries"].pop(2)
    short = c.file("v4-short.json", json.dumps(pool))
    c.refused(2, [gone["role"]], "self", "--backend=loopback", f"--source-pool={whole}", f"--target-pool={short}")


@case("errors")
def flat_lists_are_read_strictly(c):
    good = {"convention": "mla", "source_layout": {"first_layer": 20, "target_layers": 20, "draft_layers": 0},
            "target_layout": {"first_layer": 0, "target_layers": 78, "draft_layers": 0}, "source": 20, "target": [hex(n) for n in range(1, 79)]}
    path = c.file("lists.json", json.dumps(good))
    document = c.passes("explain", f"--sglang-lists={path}")
    wrong_unless(document["pairs"][0] == {"source": 0, "target": 20} and len(document["pairs"]) == 20, f"{document['pairs'][:2]}")
    mha = {"convention": "mha", "start_layer": 3, "target_layout": {"first_layer": 0, "target_layers": 7, "draft_layers": 1}, "source": 8,
           "target": 16}
    path.write_text(json.dumps(mha))
    pairs = [(pair["source"], pair["target"]) for pair in c.passes("explain", f"--sglang-lists={path}")["pairs"]]
    wrong_unless(pairs == [(i, 3 + i) for i in range(4)] + [(4 + i, 10 + i) for i in range(4)], f"{pairs}")
    for change, words in [({"convention": "gqa"}, ["unknown convention \"gqa\"", "mha, mla, compressed_mla"]),
                          ({"extra": 1}, ["unknown key \"extra\""]),
                          ({"source": -1}, ["\"source\""]), ({"target_layout": 3}, ["\"target_layout\" is not an object"]), ({"source": 21},
                                                                                                                             ["21", "20"])]:
        path.write_text(json.dumps({**good, **change}))
        c.refused(2, words, "explain", f"--sglang-lists={path}")
    c.refused(2, ["--tokens", "cannot stand beside --sglang-lists"], "explain", f"--sglang-lists={path}", "--tokens=5")


@case("errors")
def a_stage_beyond_the_model_is_refused(c):
    c.refused(2, ["--prefill=pp=4+4", "8 layers", "7 are in use"], "self", "--backend=loopback", f"--model-config={c.tiny}", "--prefill=pp=4+4")
    target = c.pool("seven")

    def one_more_layer(pool):
        pool["layers_total"] = 8
        pool["stage"] = [5, 8] if isinstance(pool["stage"], list) else {"first": 5, "end": 8}
        for entry in pool["entries"]:
            entry["layer"] += 1

    source = c.pool("beyond", of="prefill,tp=0,pp=1", change=one_more_layer, arguments=["--prefill=pp=4+3"])
    c.refused(2, ["8", "7"], "self", "--backend=loopback", f"--source-pool={source}", f"--target-pool={target}")


@case("errors")
def tensor_parallel_sizes_that_need_conversion_are_refused(c):
    c.refused(2, ["tp", "prefill tp0 pp0 to decode tp0 pp0"], "explain", f"--model-config={c.llama}", "--prefill=tp=1", "--decode=tp=2")
    c.refused(2, ["--decode", "do not divide"], "explain", f"--model-config={c.v3}", "--prefill=tp=2", "--decode=tp=3")


@case("errors")
def a_plugin_that_is_missing_too_new_or_broken_is_named(c):
    empty = c.folder / "no-plugins"
    empty.mkdir()
    run = [f"--model-config={c.tiny}", "--tokens=64"]
    c.refused(3, ["--backend=ucx", "libkvferry_ucx.so", str(empty), "KVFERRY_PLUGIN_PATH"], "self", *run, KVFERRY_PLUGIN_PATH=str(empty))
    c.refused(3, ["--backend=verbs", "libkvferry_verbs.so"], "self", *run, "--backend=verbs")
    c.refused(3, ["no plugin", str(empty)], "devices", KVFERRY_PLUGIN_PATH=str(empty))
    c.refused(3, ["--backend=loopback"], "bench", "--backend=loopback", KVFERRY_PLUGIN_PATH=str(empty))
    for variant, words in [("newer_major", ["ABI", "2."]), ("no_symbol", ["kvferry_backend_entry"]), ("unresolved", ["undefined symbol"])]:
        folder = c.folder / variant
        folder.mkdir()
        shutil.copy(c.odd_plugins / f"libkvferry_{variant}.so", folder / "libkvferry_ucx.so")
        c.refused(3, ["--backend=ucx", *words], "self", *run, KVFERRY_PLUGIN_PATH=str(folder))


@case("errors")
def a_port_in_use_is_an_error_of_the_host(c):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        c.refused(3, [f"--listen=127.0.0.1:{port}", str(port), "in use"], "self", f"--model-config={c.tiny}", "--tokens=64", "--backend=loopback",
                  f"--listen=127.0.0.1:{port}")
    c.refused(2, ["--listen=here"], "self", f"--model-config={c.tiny}", "--backend=loopback", "--listen=here")


@case("errors")
def a_job_that_does_not_fit_into_memory_is_refused_before_it_starts(c):
    c.refused(3, ["the job needs", "of memory, this host has", "fewer --tokens"], "self", "--backend=loopback",
              f"--model-config={c.models / 'Llama-3.1-405B.json'}",
              "--tokens=2000000")


@case("errors")
def help_and_version_go_to_stdout(c):
    top = c.run("--help")
    wrong_unless(top.status == 0 and all(word in top.out for word in ("devices", "explain", "self", "bench")) and "__worker" not in top.out, str(top))
    for subcommand in ("devices", "explain", "self", "bench"):
        done = c.run(subcommand, "--help")
        wrong_unless(done.status == 0 and done.err == "" and "Exit status:" in done.out and "--json" in done.out, str(done))
        wrong_unless(max(map(len, done.out.splitlines())) <= 150, f"a line is too long: {done}")
    done = c.run("--version")
    wrong_unless(done.status == 0 and re.fullmatch(r"transfer-check \d+\.\d+\.\d+ \(backend ABI \d+\.\d+\)\n", done.out), str(done))


@case("errors")
def output_that_cannot_be_written_is_not_success(c):
    with open("/dev/full", "w") as full:
        process = subprocess.run([c.program, "explain", f"--model-config={c.llama}"], stdout=full, stderr=subprocess.PIPE, text=True,
                                 env=c.environment, timeout=GUARD_SECONDS)
    wrong_unless(process.returncode == 1 and "No space left" in process.stderr, f"exit status {process.returncode}: {process.stderr}")


# ---- explain


def expected_entries(lists, page, dtype):
    entries = []
    for part in lists:
        sizes = part.get(f"item_bytes_{dtype}", part.get("item_bytes"))
        item = sizes[page] if isinstance(sizes, dict) else sizes
        kind = {"dsv4_request_state": "c128_state"}.get(part.get("type", "kv"), part.get("type", "kv"))
        entries += [(kind, part["role"], layer, item) for layer in part["layers"]]
    return entries


@case("explain")
def every_model_of_the_kinds_laid_out_has_the_entries_and_bytes_of_the_truth_table(c):
    truth = json.loads((c.models / "truth.json").read_text())["models"]
    seen = 0
    for name, model in truth.items():
        sglang = model["sglang"]
        compressed = "variants" in sglang
        if not compressed and (sglang["state"] or model["layers_with_kv"] != model["layers_total"]):
            continue
        seen += 1
        for dtype in ("bf16", "fp8"):
            for page in ["256"] if compressed else ["1", "64"]:
                lists = sglang
                if compressed:
                    lists = sglang["variants"][0 if dtype == "fp8" else 1]
                document = c.passes("explain", f"--model-config={c.models / name}.json", f"--dtype={dtype}", f"--page-size={page}")
                found = [(e["component"], e["role"], e["layer"], e["item_length"]) for e in document["entries"]]
                wanted = expected_entries(lists["kv_data"] + lists["state"], page, dtype)
                wrong_unless(sorted(found) == sorted(wanted), f"{name} {dtype} page {page}: {sorted(set(found) ^ set(wanted))[:4]}")
                wrong_unless(document["kv_bytes_per_token"] == model[f"kv_bytes_per_token_total_{dtype}"],
                             f"{name} {dtype}: {document['kv_bytes_per_token']} bytes per token")
                wrong_unless("state_bytes_per_request" not in document, f"{name} has no state per request")
    wrong_unless(seen >= 18, f"only {seen} models")


@case("explain")
def figures_are_those_of_the_layout(c):
    document = c.passes("explain", f"--model-config={c.llama}", "--page-size=16", "--tokens=1600", "--prefill=tp=2,pp=2", "--decode=tp=2,pp=1")
    wrong_unless(document["bytes"] == 131072 * 1600, f"{document['bytes']} bytes")
    wrong_unless(document["writes_before_merge"] == document["writes"] == 2 * 64 * 100,
                 f"{document['writes_before_merge']} and {document['writes']} writes")
    pairs = {(pair["source"], pair["target"]): pair for pair in document["pairs"]}
    wrong_unless(set(pairs) == {(f"prefill tp{t} pp{p}", f"decode tp{t} pp0") for t in (0, 1) for p in (0, 1)}, f"{list(pairs)}")
    wrong_unless(all(pair["entries"] == 32 and pair["bytes"] * 4 == document["bytes"] for pair in pairs.values()), f"{pairs}")
    merged = c.passes("explain", f"--model-config={c.llama}", "--page-size=16", "--tokens=1600", "--run-length=10")
    wrong_unless((merged["writes_before_merge"], merged["writes"]) == (6400, 640), f"{merged['writes_before_merge']} and {merged['writes']} writes")
    uneven = c.passes("explain", f"--model-config={c.tiny}", "--prefill=pp=2")
    wrong_unless([rank["stage"] for rank in uneven["prefill"]] == [[0, 3], [3, 7]], f"{uneven['prefill']}")


@case("explain")
def a_stage_without_a_space_sends_what_it_has(c):
    document = c.passes("explain", f"--model-config={c.v4}", "--dtype=fp8", "--layers=4", "--tokens=1000", "--prefill=pp=2+2")
    entries = [pair["entries"] for pair in document["pairs"]]
    wrong_unless(entries == [2, 8], f"entries {entries}")  # two windows; two windows, c4 with indexer and both states, c128 with its state


@case("explain")
def latent_rows_go_to_every_decode_rank(c):
    document = c.passes("explain", f"--model-config={c.v3}", "--layers=3", "--prefill=tp=1", "--decode=tp=2")
    wrong_unless([(p["source"], p["target"]) for p in document["pairs"]] == [("prefill tp0 pp0", f"decode tp{t} pp0") for t in (0, 1)],
                 f"{document['pairs']}")
    document = c.passes("explain", f"--model-config={c.v3}", "--layers=3", "--prefill=tp=4", "--decode=tp=2")
    wrong_unless([(p["source"], p["target"]) for p in document["pairs"]] == [("prefill tp0 pp0", "decode tp0 pp0"),
                                                                             ("prefill tp2 pp0", "decode tp1 pp0")],
                 f"{document['pairs']}")


@case("explain")
def draft_layers_belong_to_the_last_stage(c):
    document = c.passes("explain", f"--model-config={c.v3}", "--layers=4", "--draft-layers=1", "--prefill=pp=2")
    wrong_unless([pair["entries"] for pair in document["pairs"]] == [2, 3], f"{document['pairs']}")
    wrong_unless([e["component"] for e in document["entries"]] == ["kv"] * 4 + ["draft.kv"], f"{document['entries']}")


@case("explain")
def a_pool_file_comes_back_as_the_same_layout(c):
    path = c.folder / "written.json"
    arguments = ["--page-size=16", "--tokens=160", "--seed=3"]
    first = c.passes("explain", f"--model-config={c.tiny}", *arguments, f"--write-pool={path}")
    again = c.passes("explain", f"--pool={path}", "--tokens=160")
    wrong_unless(first["entries"] == again["entries"] and first["bytes"] == again["bytes"], "entries or bytes differ")
    wrong_unless(sorted(os.listdir(c.folder)).count("written.json.part") == 0, "half a file was left")


@case("explain")
def the_table_for_people_has_the_figures(c):
    done = c.run("explain", f"--model-config={c.llama}", "--page-size=16", "--tokens=1600", "--prefill=pp=2")
    wrong_unless(done.status == 0 and done.err == "", str(done))
    for word in ("Llama-3.1-8B: GQA, 32 layers, 16 tokens per page", "100 pages", "prefill tp0 pp1", "6400", "131072 bytes per token"):
        wrong_unless(word in done.out, f"'{word}' is not in the table: {done}")


@case("explain")
def limits_of_a_backend_change_the_writes(c):
    document = c.passes("explain", f"--model-config={c.tiny}", "--backend=loopback", "--tokens=640")
    wrong_unless(document["limits"]["of"] == "backend loopback" and document["limits"]["pieces_per_write_max"] > 1, f"{document['limits']}")


# ---- self


FIXED_KEYS = {"schema", "verdict", "bytes", "bytes_wrong", "writes_before_merge", "writes", "plan_seconds", "seconds", "gigabytes_per_second",
              "lane", "backend", "first_wrong"}


def layouts(c):
    """Small cuts of real layouts: arguments, and what it takes to see that the cut is what it should be."""
    return [
        ("GQA over two stages", [f"--model-config={c.llama}", "--layers=4", "--page-size=16", "--tokens=500", "--prefill=pp=2"]),
        ("GQA in runs", [f"--model-config={c.llama}", "--layers=2", "--page-size=16", "--tokens=1000", "--run-length=8", "--seed=5"]),
        ("stages 4+3 of a 7-layer model", [f"--model-config={c.tiny}", "--page-size=16", "--tokens=700", "--prefill=pp=4+3"]),
        ("heads over tensor ranks", [f"--model-config={c.tiny}", "--page-size=8", "--tokens=100", "--prefill=tp=2,pp=2", "--decode=tp=2"]),
        ("one token per page", [f"--model-config={c.tiny}", "--page-size=1", "--tokens=333"]),
        ("MLA over four uneven stages", [f"--model-config={c.v3}", "--layers=7", "--tokens=1000", "--prefill=pp=4"]),
        ("MLA with a draft layer", [f"--model-config={c.v3}", "--layers=3", "--draft-layers=1", "--tokens=300", "--prefill=pp=2"]),
        ("MLA to two decode ranks", [f"--model-config={c.v3}", "--layers=2", "--tokens=300", "--decode=tp=2"]),
        ("stages on both sides", [f"--model-config={c.tiny}", "--page-size=16", "--tokens=100", "--prefill=pp=2", "--decode=pp=2"]),
        ("compressed MLA, paged fp8", [f"--model-config={c.v4}", "--dtype=fp8", "--layers=8", "--tokens=1000", "--prefill=pp=2"]),
        ("compressed MLA, unified bf16", [f"--model-config={c.v4}", "--dtype=bf16", "--layers=8", "--tokens=1000", "--prefill=pp=2"]),
        ("compressed MLA, online state", [f"--model-config={c.v4}", "--dtype=fp8", "--kv-layout=online", "--layers=5", "--tokens=1000"]),
        ("nothing but whole windows", [f"--model-config={c.v4}", "--dtype=fp8", "--layers=8", "--tokens=1024"]),
    ]


def moves_all(c, *more):
    for name, arguments in layouts(c):
        explained = c.passes("explain", *arguments)
        document = c.passes("self", *arguments, *more)
        wrong_unless(FIXED_KEYS <= document.keys(), f"{name}: {FIXED_KEYS - document.keys()} missing")
        wrong_unless(document["bytes_wrong"] == 0 and document["first_wrong"] is None, f"{name}: {document}")
        for key in ("bytes", "writes_before_merge"):
            wrong_unless(document[key] == explained[key] > 0, f"{name}: {key} {document[key]}, explained {explained[key]}")
        wrong_unless(0 < document["writes"] <= document["writes_before_merge"] and document["seconds"] > 0 and document["gigabytes_per_second"] > 0,
                     f"{name}: {document}")
        wrong_unless(document["bytes_compared"] > document["bytes"], f"{name}: untouched bytes were not compared")


def is_caught(c, *more):
    for seed in (1, 2, 7):
        for _, arguments in (layouts(c)[2], layouts(c)[9]):
            arguments = [word for word in arguments if not word.startswith("--seed")] + [f"--seed={seed}", "--corrupt", *more]
            done = c.run("self", *arguments, "--json")
            document = done.json()
            wrong_unless(done.status == 1 and document["verdict"] == "fail" and document["bytes_wrong"] == 1, f"seed {seed}: {done}")
            wrong = document["first_wrong"]
            wrong_unless({"component", "layer", "page", "offset", "expected", "found", "text"} <= wrong.keys(), f"{wrong}")
            wrong_unless(wrong["expected"] ^ wrong["found"] == 0x5A and "decode tp0 pp0" in wrong["text"], f"{wrong}")
    done = c.run("self", *layouts(c)[2][1], "--corrupt", *more)
    wrong_unless(done.status == 1 and done.err.count("\n") == 1 and "1 of " in done.err and "expected 0x" in done.err and "FAIL" in done.out,
                 str(done))


def page_files_move(c, *more):
    source, target = c.file("s.txt", "11\n3\n4\n0\n"), c.file("t.json", "[2, 900, 7, 1]")
    document = c.passes("self", f"--model-config={c.tiny}", "--layers=2", "--page-size=8", f"--source-pages={source}", f"--target-pages={target}",
                        *more)
    wrong_unless(document["writes_before_merge"] == 4 * 4, f"{document['writes_before_merge']} writes")


def pool_files_move(c, *more):
    source, target = c.pool("from", of="prefill,tp=0,pp=1", arguments=["--prefill=pp=4+3"]), c.pool("to")
    document = c.passes("self", f"--source-pool={source}", f"--target-pool={target}", "--tokens=150", *more)
    wrong_unless(document["writes_before_merge"] == 6 * 10, f"{document['writes_before_merge']} writes")


@case("loopback")
def real_layouts_move_within_one_process(c):
    moves_all(c, "--backend=loopback")
    done = c.run("self", *layouts(c)[2][1], "--backend=loopback")
    wrong_unless(done.status == 0 and "in this one process" in done.out and done.out.endswith("PASS\n") and done.err == "", str(done))
    document = c.passes("self", *layouts(c)[2][1], "--backend=loopback")
    wrong_unless(document["in_one_process"] is True and document["backend"] == "loopback", f"{document}")


@case("loopback")
def a_byte_that_was_flipped_on_the_way_fails_the_check(c):
    is_caught(c, "--backend=loopback")


@case("loopback")
def page_files_and_pool_files_are_used(c):
    page_files_move(c, "--backend=loopback")
    pool_files_move(c, "--backend=loopback")
    c.passes("self", f"--pool={c.pool('both')}", "--tokens=150", "--backend=loopback", "--memory=allocated")


@case("loopback")
def devices_names_what_is_there_and_what_is_not(c):
    document = c.passes("devices", "--backend=loopback")
    plugin = document["plugins"][0]
    wrong_unless(plugin["name"] == "loopback" and any(device["usable"] for device in plugin["devices"]) and plugin["limits"]["done_means"],
                 f"{document}")
    folder = c.folder / "mixed"
    folder.mkdir()
    shutil.copy(pathlib.Path(plugin["path"]), folder / "libkvferry_loopback.so")
    shutil.copy(c.odd_plugins / "libkvferry_newer_major.so", folder / "libkvferry_newer_major.so")
    document = c.passes("devices", KVFERRY_PLUGIN_PATH=str(folder))
    by_name = {plugin["name"]: plugin for plugin in document["plugins"]}
    wrong_unless("error" not in by_name["loopback"] and "ABI" in by_name["newer_major"]["error"]["text"], f"{document}")
    done = c.run("devices", KVFERRY_PLUGIN_PATH=str(folder))
    wrong_unless(done.status == 0 and "loopback" in done.out and "newer_major" in done.out and "locked memory" in done.out, str(done))


@case("loopback")
def bench_has_a_line_per_size_and_reference(c):
    document = c.passes("bench", "--backend=loopback", "--piece-bytes=1024,64KiB", "--pool-bytes=8MiB", "--rounds=3")
    lines = [(line["piece_bytes"], line["reference"]) for line in document["results"]]
    wrong_unless(lines == [(1024, "memcpy"), (65536, "memcpy")], f"{lines}")
    for line in document["results"]:
        figures = [line["gigabytes_per_second"], line["reference_gigabytes_per_second"], line["ratio"]]
        wrong_unless(min(figures) > 0 and line["lane"] == "loopback", f"{line}")


@case("loopback")
def a_fault_needs_processes(c):
    c.refused(2, ["--fault=kill-decode", "one process"], "self", f"--model-config={c.tiny}", "--backend=loopback", "--fault=kill-decode")


@case("ucx")
def real_layouts_move_between_processes(c):
    moves_all(c)
    for lane, memory, used in (("shm", "user", "shm"), ("tcp", "user", "tcp"), ("shm", "allocated", "mapped"), ("tcp", "allocated", "tcp")):
        document = c.passes("self", *layouts(c)[2][1], f"--lane={lane}", f"--memory={memory}")
        wrong_unless(document["lane"] == used and document["in_one_process"] is False, f"{lane} {memory}: lane {document['lane']}")


@case("ucx")
def a_byte_that_was_flipped_on_the_way_between_processes_fails_the_check(c):
    is_caught(c)


@case("ucx")
def page_files_and_pool_files_are_used_between_processes(c):
    page_files_move(c)
    pool_files_move(c, "--memory=allocated")


@case("ucx")
def a_lane_that_this_host_does_not_have_is_refused(c):
    c.refused(3, ["--lane=rc", "no usable device"], "self", f"--model-config={c.tiny}", "--lane=rc")
    c.refused(3, ["--lane=rc"], "bench", "--lane=rc")


@case("ucx")
def bench_measures_every_lane_against_its_references(c):
    document = c.passes("bench", "--lane=shm,mapped,tcp", "--piece-bytes=4KiB", "--pool-bytes=16MiB", "--rounds=3")
    lines = {(line["lane"], line["reference"]): line for line in document["results"]}
    wanted = {("shm", "memcpy"), ("shm", "raw put"), ("mapped", "memcpy"), ("mapped", "raw put"), ("tcp", "memcpy"), ("tcp", "raw put"),
              ("tcp", "tcp socket")}
    wrong_unless(set(lines) == wanted, f"{set(lines) ^ wanted}")
    wrong_unless(all(line["ratio"] and line["ratio"] > 0 for line in lines.values()), f"{lines}")


# ---- faults


def workers(process):
    """Worker processes of a running command, by the kernel's word."""
    found = []
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            found.append(int(child))
    return found


def big(c):
    return [f"--model-config={c.llama}", "--layers=8", "--page-size=16", "--tokens=10000"]


@case("faults")
def a_killed_or_frozen_rank_is_learned_by_every_other(c):
    for fault in ("kill-decode", "kill-prefill", "freeze-decode", "freeze-prefill"):
        done = c.run("self", *big(c), f"--fault={fault}", "--json")
        wrong_unless(done.status == 1 and done.err == "", f"{fault}: {done}")
        document = done.json()
        wrong_unless(document["verdict"] == "fail" and document["error"]["code"] == "peer_lost", f"{fault}: {done}")
        wrong_unless("every other rank learned it" in document["error"]["text"], f"{fault}: {done}")
        learned = {item["rank"]: item for item in document["learned"]}
        other = "prefill tp0 pp0" if fault.endswith("decode") else "decode tp0 pp0"
        wrong_unless(learned[other]["error"] is not None and learned[other]["quiesced"] in (True, "cannot promise"), f"{fault}: {learned}")
        if fault.startswith("freeze"):
            frozen = "decode tp0 pp0" if fault.endswith("decode") else "prefill tp0 pp0"
            wrong_unless(learned[frozen]["error"] is not None and learned[frozen]["quiesced"] is True, f"{fault}: {learned}")
        if fault != "kill-decode":
            wrong_unless(document["fault"]["landed_after_quiesced"] is False, f"{fault}: {document['fault']}")
        wrong_unless(0 < document["fault"]["at_bytes"] < 10000 * 32768, f"{fault}: {document['fault']}")


@case("faults")
def a_job_too_small_for_a_fault_is_refused(c):
    c.refused(2, ["--fault=kill-decode", "has", "to send", "--tokens="], "self", f"--model-config={c.tiny}", "--tokens=64", "--fault=kill-decode")


@case("faults")
def a_worker_that_somebody_kills_is_named_with_its_signal(c):
    arguments = ["self", *big(c), "--json"]
    process = c.start(*arguments)
    while process.poll() is None and len(workers(process)) < 2:
        pass
    victims = workers(process)
    wrong_unless(len(victims) == 2, f"workers {victims}")
    os.kill(victims[0], signal.SIGKILL)
    done = c.finish(process, arguments)
    text = done.json()["error"]["text"]
    wrong_unless(done.status == 1 and "killed by signal 9" in text and "tp0 pp0" in text, str(done))


@case("faults")
def no_worker_outlives_the_command(c):
    process = c.start("self", *big(c))
    while process.poll() is None and len(workers(process)) < 2:
        pass
    children = workers(process)
    wrong_unless(len(children) == 2, f"workers {children}")
    waits = [os.pidfd_open(child) for child in children]
    process.kill()
    process.communicate(timeout=GUARD_SECONDS)
    for child, descriptor in zip(children, waits):
        ended, _, _ = select.select([descriptor], [], [], GUARD_SECONDS)
        os.close(descriptor)
        wrong_unless(ended, f"worker {child} still runs")


def main(group, build, source):
    passed = failed = 0
    for groups, function in CASES:
        if group not in groups:
            continue
        sentence = function.__name__.replace("_", " ")
        with tempfile.TemporaryDirectory(prefix="tool-command-") as folder:
            try:
                function(Command(pathlib.Path(build), pathlib.Path(source), pathlib.Path(folder)))
            except (Failed, KeyError, OSError, AssertionError) as problem:
                failed += 1
                print(f"FAILED {sentence}: {problem!r}" if not isinstance(problem, Failed) else f"FAILED {sentence}: {problem}")
            else:
                passed += 1
                print(f"ok     {sentence}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
