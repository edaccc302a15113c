"""vector-check itself: what it must not let pass, and cases made from the declared semantics.

usage: test_vector_check.py VECTOR_CHECK
"""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import golden_cases

PROGRAM = None
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sglang")
SEED = int(os.environ.get("KVFERRY_TEST_SEED", "1"))
CASES_PER_GENERATOR = 1500


def run(files):
    """(exit status, lines) on a folder of name -> list of cases or raw text."""
    with tempfile.TemporaryDirectory() as folder:
        for name, cases in files.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(cases if isinstance(cases, str) else json.dumps(cases))
        done = subprocess.run([PROGRAM, folder], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()


def golden(name):
    with open(os.path.join(GOLDEN, name)) as file:
        return json.load(file)


class Use(unittest.TestCase):
    def check_wrong_use(self, arguments, word):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn(word, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_wrong_use_is_told_from_a_failed_check(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check_wrong_use([], "no folder")
            self.check_wrong_use([folder], "no *.json")
            self.check_wrong_use([folder, folder], "more than one")
            self.check_wrong_use([os.path.join(folder, "absent")], "absent")
            self.check_wrong_use(["--fast"], "--fast")

    def test_the_last_line_counts_and_decides(self):
        cases = golden("state_component_index.json")
        self.assertEqual(run({"state_component_index.json": cases, "README.md": "text"}), (0, [f"{len(cases)} passed, 0 failed"]))

    def test_a_file_that_is_unknown_empty_or_no_list_is_a_failure(self):
        for name, content in (("metadata_layout.json", []), ("state_component_index.json", []), ("state_component_index.json", "{"),
                              ("state_component_index.json", "{\"name\": 1}")):
            status, lines = run({name: content, "page_index_helpers.json": golden("page_index_helpers.json")})
            self.assertEqual(status, 1)
            self.assertTrue(lines[0].startswith(name + ": "), lines)
            self.assertEqual(lines[-1], f"{len(golden('page_index_helpers.json'))} passed, 1 failed")


class Judging(unittest.TestCase):
    def check_fails(self, file, case, word="", count=1):
        status, lines = run({file: [case]})
        self.assertEqual((status, lines[-1]), (1, f"0 passed, {count} failed"), case)
        self.assertEqual(len(lines), 2)
        self.assertTrue(lines[0].startswith(f"{file}: {case.get('name', '(no name)')}: expected "), lines[0])
        self.assertIn(word, lines[0])

    def changed(self, file, name, **changes):
        case = copy.deepcopy(next(each for each in golden(file) if each["name"] == name))
        case.update(changes)
        return case

    def test_any_other_output_fails(self):
        for file in golden_cases.GENERATORS:
            for case in golden(file):
                if "hazard" in case or "output" not in case:
                    continue
                wrong = copy.deepcopy(case)
                wrong["output"] = {**case["output"], "surplus": 1} if isinstance(case["output"], dict) else [case["output"]]
                self.check_fails(file, wrong)
                break

    def test_numbers_are_exact_over_all_64_bits(self):
        top = (1 << 64) - 1
        case = {"name": "top", "input": {"function": "kv_to_page_num", "num_tokens": top, "page_size": 1}, "output": top}
        self.assertEqual(run({"page_index_helpers.json": [case]})[0], 0)
        for wrong in (top - 1, -1, float(top), str(top)):
            self.check_fails("page_index_helpers.json", {**case, "output": wrong})
        odd = (1 << 53) + 1
        arguments = {"function": "swa_ring_rows", "req_pool_idx": odd, "seq_len": 1, "window": 1, "ring_stride": 1}
        ring = {"name": "ring", "input": arguments, "output": [odd]}
        self.assertEqual(run({"page_index_helpers.json": [ring]})[0], 0)
        self.check_fails("page_index_helpers.json", {**ring, "output": [1 << 53]})

    def test_errors_are_compared_by_their_numbers(self):
        file, name = "mla_slice_ptrs_for_pp.json", "err-swa-too-long"
        error = self.changed(file, name)["error"]
        self.assertEqual(run({file: [self.changed(file, name)]})[0], 0)
        other = self.changed(file, name, error={"type": "ValueError", "message": error["message"].replace("87", "88")})
        self.check_fails(file, other, "with the number 88")
        self.assertEqual(run({file: [self.changed(file, name, error={"type": "AssertionError", "message": "88"})]})[0], 0)
        served = self.changed(file, "unit-kv-0-1", error=error)
        del served["output"]
        self.check_fails(file, served, "an error like")

    def test_a_hazard_is_refused_or_corrected(self):
        file = "mha_kv_ptrs_with_pp.json"
        hazard = self.changed(file, "decode-draft-M8-D8-pp1")
        self.assertEqual(run({file: [hazard]})[0], 0)
        self.check_fails(file, {**hazard, "correct": {"dst_v": hazard["output"]["dst_v"]}})
        self.check_fails(file, {**hazard, "correct": {"no_such_key": 1}})
        self.check_fails(file, {**hazard, "correct": {}}, "says nothing")
        without = dict(hazard)
        del without["correct"]
        self.check_fails(file, without, "hazard")

    def test_a_case_out_of_the_schema_fails(self):
        file = "page_index_helpers.json"
        good = {"name": "n", "input": {"function": "kv_to_page_num", "num_tokens": 5, "page_size": 4}, "output": 2}
        self.assertEqual(run({file: [good]})[0], 0)
        for change in ({"input": {}}, {"input": 7}, {"input": {**good["input"], "function": "other"}}, {"input": {**good["input"], "page_size": "4"}},
                       {"input": {**good["input"], "page_size": 4.5}}):
            self.check_fails(file, {**good, **change})
            self.check_fails(file, {**good, **change, "hazard": "a broken case must not pass as a refusal"})
        neither = dict(good)
        del neither["output"]
        self.check_fails(file, neither)
        self.check_fails(file, {"input": good["input"], "output": 3})


class Declared(unittest.TestCase):
    """Every case that the declarations allow is served, every other one refused."""


def add_generated(file, generator):
    def test(self):
        source = random.Random(f"{SEED} {generator.__name__}")
        cases = [generator(source, f"{generator.__name__}-{number}") for number in range(CASES_PER_GENERATOR)]
        refused = sum("hazard" in case for case in cases)
        self.assertTrue(CASES_PER_GENERATOR * 0.1 < refused < CASES_PER_GENERATOR * 0.95, refused)  # both kinds are really there
        status, lines = run({file: cases})
        self.assertEqual((status, lines[-1]), (0, f"{len(cases)} passed, 0 failed"), f"seed {SEED}\n" + "\n".join(lines[:3]))
    setattr(Declared, "test_" + generator.__name__, test)


for name, generators in golden_cases.GENERATORS.items():
    for each in generators:
        add_generated(name, each)

if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    print(f"seed {SEED} (KVFERRY_TEST_SEED)")
    unittest.main()
