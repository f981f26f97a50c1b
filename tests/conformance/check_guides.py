#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks guides.txt: what RMM's, CuPy's and rapids-singlecell's guides and a thread on RMM's pool state,
each with our words and the tests that show it, or the reason why there are none.

A row is `ID WHAT | OURS | FILE: NAME, NAME; manual: WORDS; none: REASON`: the settings in OURS are what
`rmmshim run` accepts, its functions stand in the public header; FILE is below tests/ and NAME occurs in
it as a whole word; WORDS occur in README.md or src/tool/man, wherever its lines break.  TOOL is the built command."""
import os
import re
import sys

sys.dont_write_bytecode = True
from check_hazards import check, misnumbered, read_manual  # noqa: E402, read_manual
from check_rmm_lines import HERE, TESTS  # noqa: E402
from check_rmm_words import check_settings, public_functions  # noqa: E402

LETTERS = "rcst"


def check_words(ours, functions):
    """What is wrong with the middle of a row: of its words in backquotes, those that claim to be ours."""
    for words in re.findall(r"`([^`]+)`", ours):
        if words.startswith("RMM_"):
            problem = check_settings(words)
            if problem:
                return problem
        elif words.startswith("rmmshim_") and words not in functions:
            return "%s: not in the public header" % words
    return None


def read_rows():
    with open(os.path.join(HERE, "guides.txt"), encoding="utf-8") as table:
        return [line.strip() for line in table if line.strip() and not line.startswith("#")]


def main():
    manual = read_manual()
    functions, seen, wrong = public_functions(), [], []
    for row in read_rows():
        parts = row.split(" | ")
        match = re.match(r"([%s])(\d+) \S" % LETTERS, parts[0])
        if not match or len(parts) != 3:
            wrong.append("not a row: " + row)
            continue
        seen.append((match.group(1), int(match.group(2))))
        problem = check_words(parts[1], functions) or check(parts[2], manual)
        if problem:
            wrong.append("%s%d: %s" % (seen[-1] + (problem,)))
    wrong += misnumbered(LETTERS, seen)
    print("\n".join(wrong) if wrong else "%d statements" % len(seen))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
