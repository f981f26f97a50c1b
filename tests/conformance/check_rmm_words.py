#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks rmm_words.txt: that our words are settings that `rmmshim run` accepts, or functions of the
public header, and that the tests it names are there.  TOOL is the built command."""
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from check_rmm_lines import check_tests

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = os.path.join(HERE, "..", "..", "include", "rmmshim", "rmmshim.h")


def check_settings(words):
    """What `rmmshim run` says against VARIABLE=VALUE words, or None."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RMM_")}
    # An expression has blanks of its own: a setting ends where the next begins.
    for setting in re.split(r" (?=RMM_)", words):
        name, _, value = setting.partition("=")
        environment[name] = value
    result = subprocess.run([os.environ["TOOL"], "run", "--quiet", "true"], env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    return None if result.returncode == 0 and not result.stderr else "%s: status %d, %s" % (
        words, result.returncode, result.stderr.decode(errors="replace").strip())


def public_functions():
    with open(HEADER, encoding="utf-8") as header:
        return set(re.findall(r"\b(rmmshim_\w+)\(", header.read()))


def main():
    rows, wrong, functions = 0, [], public_functions()
    with open(os.path.join(HERE, "rmm_words.txt"), encoding="utf-8") as table:
        for line in table:
            if not line.strip() or line.startswith("#"):
                continue
            rows += 1
            _, ours, tests = line.rstrip("\n").split(" | ")
            for words in re.findall(r"`([^`]+)`", ours):
                if words.startswith("RMM_"):
                    wrong.append(check_settings(words))
                elif words.startswith("rmmshim_") and words not in functions:
                    wrong.append("%s: not in the public header" % words)
            problem = check_tests(tests)
            wrong.append(problem and "%s: %s" % (ours, problem))
    wrong = [line for line in wrong if line]
    print("\n".join(wrong) if wrong else "%d rows" % rows)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
