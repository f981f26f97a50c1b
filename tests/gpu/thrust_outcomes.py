# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a program that was built with Thrust's test framework, and writes what becomes of each
into the file of suite_outcomes.py.

    thrust_outcomes.py PROGRAM

Exit status: the program's; 128 and the signal that ended it."""
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import suite_outcomes

# `--verbose`: the test's name, what it prints, and its outcome in place of the first.
BEGIN = rb"Running (?P<begun>[^\r\n]+?)\.\.\."
END = rb"\r\[(?P<outcome>PASS|FAILURE|KNOWN FAILURE|ERROR)\] +(?:[-+.e\d]+ ms +)?(?P<ended>[^\r\n]+)\n"
# The device has an error that no call of the test returned; no other test is run.
LATE = rb"\[ERROR\] CUDA error detected after running (?P<late>[^\r\n]+?): (?P<error>[^\r\n]*)\n"
EVENT = re.compile(b"|".join((BEGIN, END, LATE)))
# Behind all tests: what was wrong with each.
SAID = re.compile(rb"=\n(FAILURE|KNOWN FAILURE|ERROR): ([^\r\n]+)\n(.*?)(?=\n={60,}\n)", re.DOTALL)
OUTCOMES = {b"PASS": "passed", b"FAILURE": "failed", b"KNOWN FAILURE": "xfailed", b"ERROR": "error"}


def write_event(file, name, event):
    if event["begun"]:
        file.write(begin=name)
    elif event["ended"]:
        file.write(end=name, outcome=OUTCOMES[event["outcome"]], said="")
    else:
        file.write(end=name, outcome="error", said=event["error"].decode(errors="replace"))


def main():
    file, program = suite_outcomes.File(), sys.argv[1]
    listed = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()

    def name_of(test):
        return os.path.basename(program) + "::" + test

    tests = file.choose(listed, name_of)
    if not tests:
        return 0
    with subprocess.Popen([program, "--verbose", "--device=0"] + tests, stdout=subprocess.PIPE) as process:
        output, read = b"", 0
        for part in iter(lambda: os.read(process.stdout.fileno(), 65536), b""):
            output += part
            for event in EVENT.finditer(output, read):
                test = (event["begun"] or event["ended"] or event["late"]).decode(errors="replace")
                if test in listed:  # else a test printed something alike
                    write_event(file, name_of(test), event)
                read = event.end()
    for outcome, test, said in SAID.findall(output):
        file.write(end=name_of(test.decode()), outcome=OUTCOMES[outcome], said=said.decode(errors="replace")[-2000:])
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


if __name__ == "__main__":
    sys.exit(main())
