# SPDX-License-Identifier: Apache-2.0
"""The rows of tests/conformance/planted_bugs.txt, and what a run of one should have said and has not.  For tests here and
on a GPU."""
import os
import re
import shlex

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance", "planted_bugs.txt")


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


class Row:
    def __init__(self, line):
        self.mistake, settings, said, self.scene, self.place = line.split(" | ")
        first, *self.commands = map(shlex.split, quoted(settings))
        self.settings = dict(word.split("=", 1) for word in first)
        self.words = quoted(said)

    def missed(self, stdout, stderr):
        """What should have been printed and was not; stdout has what the command printed too."""
        text = stdout + stderr
        missed = [words for words in self.words if words not in text]
        if self.place.startswith("- "):
            return missed + [words for words in [self.place[2:]] if words not in stdout]
        if self.place != "block":
            return missed + [words for words in [self.place] if not re.search(r"^ .*\b%s\b" % words, text, re.MULTILINE)]
        block = re.search(r"^block 0x\w+ of \d+ bytes$", stdout, re.MULTILINE)
        lines = [line for line in stderr.splitlines() if self.words[0] in line]
        site = "the block was allocated at %s (planted_bugs+0x" % self.scene
        return missed + [words for words in (block[0] if block else "block", site)
                         if len(lines) != 1 or words not in lines[0]]


def rows():
    with open(TABLE, encoding="utf-8") as file:
        return [Row(line.rstrip("\n")) for line in file if line.strip() and not line.startswith("#")]
