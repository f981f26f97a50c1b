#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks hazards.txt: each hazard has a test here or a line in the manual.

A row is `ID WHAT | FILE: NAME, NAME; manual: WORDS`: FILE is below tests/ and NAME occurs in it as a whole
word; WORDS occur in README.md or src/tool/man, wherever its lines break.  Exit status 1 when a row names what is not
there, or when a letter's numbers have a gap."""
import glob
import os
import re
import sys

sys.dont_write_bytecode = True
from check_rmm_lines import HERE, TESTS, check_tests  # noqa: E402

LETTERS = "abcdefgj"


def one_line(text):
    return re.sub(r"\s+", " ", text)


def check(text, manual):
    """What is wrong with the right side of a row."""
    for part in text.split(";"):
        kind, _, words = part.strip().partition(": ")
        if kind == "manual":
            if not words or one_line(words) not in manual:
                return "the manual does not say: %s" % words
            continue
        problem = check_tests(part)
        if problem:
            return problem
    return None


def read_manual():
    """README.md and the text of all pages."""
    top, texts = os.path.join(TESTS, ".."), []
    for path in [os.path.join(top, "README.md")] + sorted(glob.glob(os.path.join(top, "src", "tool", "man", "*.md"))):
        with open(path, encoding="utf-8") as file:
            texts.append(one_line(file.read()))
    return " ".join(texts)


def misnumbered(letters, seen):
    """Letters whose rows are not numbered from 1 without a gap, of (letter, number) of each row."""
    for letter in letters:
        numbers = [number for found, number in seen if found == letter]
        if not numbers or numbers != list(range(1, len(numbers) + 1)):
            yield "%s: the rows are not numbered from 1 without a gap" % letter


def main():
    manual = read_manual()
    seen, wrong = [], []
    with open(os.path.join(HERE, "hazards.txt"), encoding="utf-8") as table:
        for line in table:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            left, bar, right = line.partition("|")
            match = re.match(r"([%s])(\d+) \S" % LETTERS, left)
            if not match or not bar:
                wrong.append("not a row: " + line)
                continue
            seen.append((match.group(1), int(match.group(2))))
            problem = check(right, manual)
            if problem:
                wrong.append("%s%d: %s" % (seen[-1] + (problem,)))
    wrong += misnumbered(LETTERS, seen)
    print("\n".join(wrong) if wrong else "%d hazards" % len(seen))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
