"""Counts test cases over Meson's test logs and says how it went.

usage: count_cases.py BUILD:TESTLOG.json [BUILD:TESTLOG.json ...]

One line per build, one per thing that failed or was skipped, and the totals as the last line, alone: `N passed, N failed[, N skipped]`.
Exit status 0: something passed and nothing failed.

A program's own last summary is its count: Catch2's, or a line `N passed, N failed[, N skipped]`. A program without one is a single case. What a
program could not tell counts as failed: a crash, a time-out, a summary without any case, a build or a log that is not there.
"""
import json
import re
import sys

CATCH_ALL = re.compile(r"^All tests passed \(.* in (\d+) test cases?\)$", re.M)
CATCH_SOME = re.compile(r"^test cases:.*$", re.M)
CATCH_NONE = re.compile(r"^No tests ran\.?$", re.M)
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def own_count(output):
    """(passed, failed, skipped) of the last summary in a program's output, or None."""
    best, position = None, -1
    for pattern in (CATCH_ALL, CATCH_SOME, CATCH_NONE, PLAIN):
        for found in pattern.finditer(output):
            if found.start() <= position:
                continue
            position, line = found.start(), found.group(0)
            if pattern is CATCH_ALL:
                best = int(found.group(1)), 0, 0
            elif pattern is CATCH_SOME:
                best = number(r"(\d+) passed", line) + number(r"(\d+) failed as expected", line), number(r"(\d+) failed(?! as)", line), 0
            elif pattern is CATCH_NONE:
                best = 0, 1, 0
            else:
                best = int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)
    return best


def count(entry):
    """(passed, failed, skipped, remark) of one test of a Meson log."""
    output, result = entry.get("stdout") or "", entry["result"]
    if result == "SKIP":
        reason = [line for line in output.splitlines() if line.strip()][-1:] or ["no reason given"]
        return 0, 0, 1, f"skipped: {reason[0].strip()}"
    good = result == "OK" or result == "EXPECTEDFAIL"
    passed, failed, skipped = own_count(output) or ((1, 0, 0) if good else (0, 1, 0))
    if passed + failed + skipped == 0:
        return 0, 1, 0, "ran no test case"
    if not good and failed == 0:
        failed = 1
    return passed, failed, skipped, f"failed: {result.lower()}, exit status {entry.get('returncode')}" if failed else None


def count_log(path):
    """Totals and remarks of one build."""
    try:
        with open(path) as log:
            entries = [json.loads(line) for line in log if line.strip()]
    except (OSError, ValueError) as error:
        return [0, 1, 0], [f"failed: {path if isinstance(error, OSError) else error}: no test log"]
    totals, remarks = [0, 0, 0], []
    for entry in entries:
        *counts, remark = count(entry)
        totals = [a + b for a, b in zip(totals, counts)]
        if remark:
            remarks.append(f"{entry['name']}: {remark}")
    if not entries:
        return [0, 1, 0], ["failed: no test ran"]
    return totals, remarks


def line(totals):
    passed, failed, skipped = totals
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def main(arguments):
    sums = [0, 0, 0]
    for argument in arguments:
        build, _, path = argument.partition(":")
        totals, remarks = count_log(path)
        print(f"{build}: {line(totals)}")
        for remark in remarks:
            print(f"  {remark}")
        sums = [a + b for a, b in zip(sums, totals)]
    print(line(sums))
    return 0 if sums[0] and not sums[1] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
