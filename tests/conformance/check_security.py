#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks SECURITY.md: each threat of its table has a sentence, and each test that it names is there.

A row is `| THREAT | SENTENCE | TESTS |`; TESTS is `FILE: NAME, NAME; FILE: NAME`, where FILE is below tests/ and NAME is
the name of a test or scene there, or `none: REASON`.  Exit status 1 when a row is wrong, or a threat of the list below
has none."""
import os
import re
import sys

sys.dont_write_bytecode = True
from check_rmm_lines import TESTS, check_tests  # noqa: E402

# What was promised to be answered.
THREATS = ("Another local user", "hostile program", "hostile recording", "hostile page", "by the socket", "IPC handle", "setuid",
           "World-writable folders", "symbolic links")


def rows(text):
    table = text.partition("## Threats")[2]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def definition(text):
    """A name that stands in a file as a word alone may be a comment's: tests are defined."""
    for part in text.split(";"):
        file, _, names = part.strip().partition(":")
        if file == "none":
            continue
        with open(os.path.join(TESTS, file), encoding="utf-8") as source:
            content = source.read()
        for name in map(str.strip, names.split(",")):
            if not re.search(r"(?:\bdef |\bTEST(?:_\w+)?\((?:[^()]*, )?|^int )%s\b" % re.escape(name), content, re.MULTILINE):
                return "%s is no test in tests/%s" % (name, file)
    return None


def main():
    with open(os.path.join(TESTS, "..", "SECURITY.md"), encoding="utf-8") as file:
        found = rows(file.read())
    wrong = []
    for row in found:
        problem = "not three cells" if len(row) != 3 or not all(row) else check_tests(row[2]) or definition(row[2])
        if problem:
            wrong.append("SECURITY.md: %s: %s" % (row[0][:60], problem))
    wrong += ["SECURITY.md: nothing about: " + threat for threat in THREATS if not any(threat in row[0] for row in found)]
    print("\n".join(wrong) if wrong else "%d threats" % len(found))
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
