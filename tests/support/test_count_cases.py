"""The counting of tools/test: what a program did not say must never count as passed."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import count_cases

CATCH_FAILED = "test cases: 7 | 4 passed | 3 failed\nassertions: 90 | 87 passed | 3 failed\n"


def entry(stdout, result="OK", returncode=0):
    return {"name": "unit", "stdout": stdout, "result": result, "returncode": returncode}


class CountCases(unittest.TestCase):
    def check(self, test, expected):
        self.assertEqual(count_cases.count(test)[:3], expected, test)

    def test_every_kind_of_outcome_is_counted(self):
        self.check(entry("All tests passed (12 assertions in 1 test case)\n"), (1, 0, 0))
        self.check(entry("seed 7\nAll tests passed (1200 assertions in 45 test cases)\n\n"), (45, 0, 0))
        self.check(entry(CATCH_FAILED, "FAIL", 3), (4, 3, 0))
        self.check(entry("test cases: 5 | 5 failed\n", "FAIL", 5), (0, 5, 0))
        self.check(entry("test cases: 5 | 3 passed | 1 failed | 1 failed as expected\n", "FAIL", 1), (4, 1, 0))
        self.check(entry("page_index_helpers: ok\n300 passed, 0 failed\n"), (300, 0, 0))
        self.check(entry("20 passed, 0 failed, 3 skipped\n"), (20, 0, 3))
        self.check(entry("298 passed, 2 failed\n", "FAIL", 1), (298, 2, 0))
        self.check(entry("quiet program\n"), (1, 0, 0))
        self.check(entry(None), (1, 0, 0))

    def test_the_last_summary_counts(self):
        self.check(entry("1 passed, 1 failed\nAll tests passed (3 assertions in 3 test cases)\n"), (3, 0, 0))
        self.check(entry("All tests passed (3 assertions in 3 test cases)\n4 passed, 0 failed\n"), (4, 0, 0))

    def test_a_crash_or_a_time_out_is_one_failure_whatever_was_printed(self):
        self.check(entry("", "FAIL", -11), (0, 1, 0))
        self.check(entry("All tests passed (3 assertions in 3 test cases)\n", "FAIL", 23), (3, 1, 0))
        self.check(entry("starting\n", "TIMEOUT", -15), (0, 1, 0))
        self.check(entry("3 passed, 0 failed\n", "ERROR", 99), (3, 1, 0))
        self.check(entry("", "INTERRUPT", -2), (0, 1, 0))

    def test_failures_count_even_with_a_good_exit_status(self):
        self.check(entry("3 passed, 2 failed\n"), (3, 2, 0))
        self.check(entry(CATCH_FAILED), (4, 3, 0))

    def test_a_program_without_cases_fails(self):
        self.check(entry("No tests ran\n"), (0, 1, 0))
        self.check(entry("0 passed, 0 failed\n"), (0, 1, 0))

    def test_a_skip_gives_its_reason(self):
        self.assertEqual(count_cases.count(entry("looking for a device\nno RDMA device\n", "SKIP", 77)), (0, 0, 1, "skipped: no RDMA device"))

    def totals(self, lines):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as log:
            log.write("".join(json.dumps(each) + "\n" for each in lines))
            log.flush()
            return count_cases.count_log(log.name)[0]

    def test_a_log_sums_its_programs_and_an_empty_or_absent_log_fails(self):
        good = entry("All tests passed (3 assertions in 3 test cases)\n")
        self.assertEqual(self.totals([good, good, entry(CATCH_FAILED, "FAIL", 3)]), [10, 3, 0])
        self.assertEqual(self.totals([]), [0, 1, 0])
        self.assertEqual(count_cases.count_log("/no/such/log.json")[0], [0, 1, 0])

    def test_the_totals_are_the_last_line_alone(self):
        self.assertEqual(count_cases.line([12, 0, 0]), "12 passed, 0 failed")
        self.assertEqual(count_cases.line([12, 1, 2]), "12 passed, 1 failed, 2 skipped")


if __name__ == "__main__":
    unittest.main()
