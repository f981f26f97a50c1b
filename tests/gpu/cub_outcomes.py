# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a program of CUB's tests and writes what becomes of each into the file of suite_outcomes.py.
Most are built with Catch2; others are one test by themselves.

    cub_outcomes.py PROGRAM

Exit status: 0 all passed, 1 some did not, 128 and the signal that ended it, else the program's."""
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.dont_write_bytecode = True
import suite_list
import suite_outcomes

LEFT_OUT = ["~*large*", "~*overflow*"]  # billions of items, for minutes
NUMBERS = {"CCCL_SEED_COUNT_OVERRIDE": "1"}  # one run of each test, with the random numbers of one seed
SEED = ["--rng-seed", "1"]  # which is that of Catch2, so that all runs have the same numbers
STATUSES = {42: 1, 4: 0}  # Catch2's: some failed, all were skipped
SIGNAL = "FatalErrorCondition"  # what it says of one, before it lets it happen


def specification(name):
    """What chooses the test of this name and no other, as a line of Catch2's file."""
    return '"%s"' % re.sub(r'([\\,"\[\]*])', r"\\\1", name)


def outcome_of(case):
    """(outcome, what was said) of an element TestCase that has ended; None when a signal ends it."""
    if case.find(".//" + SIGNAL) is not None:
        return None
    result = case.find("OverallResult")
    if result.get("success") != "true":
        return "failed", " ".join(" ".join(case.itertext()).split())[-2000:]
    return "skipped" if int(result.get("skips", "0")) else "passed", ""


def run_alone(file, program):
    name = os.path.basename(program)
    if not file.choose([name], str):
        return 0
    file.write(begin=name)
    result = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode < 0:
        return result.returncode
    status = min(1, result.returncode)
    said = result.stdout.decode(errors="replace")[-2000:] if status else ""
    file.write(end=name, outcome="failed" if status else "passed", said=said)
    return status


def run_catch2(file, program):
    environment = dict(os.environ, **NUMBERS)
    listing = subprocess.run([program, "--list-tests", "--reporter", "xml"] + LEFT_OUT, stdout=subprocess.PIPE,
                             env=environment, check=True).stdout
    listed = [name.text.strip() for name in xml.etree.ElementTree.fromstring(listing).iter("Name")]

    def name_of(test):
        return os.path.basename(program) + "::" + test

    tests = file.choose(listed, name_of)
    if not tests:
        return 0
    events = xml.etree.ElementTree.XMLPullParser(("start", "end"))
    read, write = os.pipe()  # of its own, since tests print what they like
    with tempfile.NamedTemporaryFile("w", prefix="rmmshim-tests-", encoding="utf-8") as chosen:
        chosen.write("\n".join(map(specification, tests)) + "\n")
        chosen.flush()
        with subprocess.Popen([program, "--input-file", chosen.name, "--reporter", "xml::out=/dev/fd/%d" % write] + SEED,
                              env=environment, pass_fds=[write]) as process:
            os.close(write)
            for part in iter(lambda: os.read(read, 65536), b""):
                events.feed(part)
                for event, element in events.read_events():
                    if element.tag != "TestCase":
                        continue
                    name = name_of(element.get("name"))
                    if event == "start":
                        file.write(begin=name)
                    elif outcome_of(element):
                        outcome, said = outcome_of(element)
                        file.write(end=name, outcome=outcome, said=said)
    return STATUSES.get(process.returncode, process.returncode)


def main():
    program = sys.argv[1]
    status = (run_catch2 if suite_list.has_catch2(program) else run_alone)(suite_outcomes.File(), program)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
