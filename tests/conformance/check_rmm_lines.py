#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks rmm_lines.txt: what RMM's own tests ask of its resources, 83 lines, each with the tests here
that ask the same, or the reason why it cannot apply.

A row is `NUMBER WHAT | FILE: NAME, NAME; FILE: NAME` or `NUMBER WHAT | none: reason`; FILE is below
tests/, and NAME must occur in it as a whole word.  Exit status 1 when a row is missing or names a test
that is not there."""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
LINES = 83


def check_tests(text):
    """What is wrong with the right side of a row."""
    for part in text.split(";"):
        file, colon, names = part.strip().partition(":")
        if not colon or not names.strip():
            return "not FILE: NAME"
        if file == "none":
            continue
        path = os.path.join(TESTS, file)
        if not os.path.exists(path):
            return "no file tests/%s" % file
        with open(path, encoding="utf-8") as source:
            content = source.read()
        for name in names.split(","):
            if not re.search(r"(?<!\w)%s(?!\w)" % re.escape(name.strip()), content):
                return "no %s in tests/%s" % (name.strip(), file)
    return None


def main():
    seen, wrong = set(), []
    with open(os.path.join(HERE, "rmm_lines.txt"), encoding="utf-8") as table:
        for line in table:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            left, bar, right = line.partition("|")
            number = left.split()[0]
            if not number.isdigit() or not bar:
                wrong.append("not a row: " + line)
                continue
            if int(number) in seen:
                wrong.append("line %s is there twice" % number)
            seen.add(int(number))
            problem = check_tests(right)
            if problem:
                wrong.append("line %s: %s" % (number, problem))
    wrong += ["line %d is missing" % number for number in range(1, LINES + 1) if number not in seen]
    print("\n".join(wrong) if wrong else "%d lines" % len(seen))
    return 1 if wrong or seen != set(range(1, LINES + 1)) else 0


if __name__ == "__main__":
    sys.exit(main())
