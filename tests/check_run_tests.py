# SPDX-License-Identifier: Apache-2.0
"""scripts/run-tests: which tests get a second chance, what it comes to, and the runs beside busy loops."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
RUN_TESTS = os.path.join(os.path.dirname(FOLDER), "scripts/run-tests")

# name, what its first run prints and ends with, what all later runs end with
LUCK = [
    ("good", "exit 0", "exit 0"),
    ("left_out", "exit 77", "exit 77"),
    ("unlucky", "echo 600 here, 0 on hardware; exit 1", "exit 0"),
    ("broken", "echo 3 here, 4 wanted; exit 1", "exit 1"),
]
NO_CHANCE = [
    ("sanitizer", "echo '==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1'; exit 1"),
    ("undefined", "echo 'src/a.c:3:4: runtime error: signed integer overflow'; exit 1"),
    ("thread", "echo 'WARNING: ThreadSanitizer: data race (pid=1)'; exit 66"),
    ("signalled", "kill -SEGV $$"),
    ("child_signalled", "echo 'status -11'; exit 1"),
    ("race", "echo 'hostcuda: race: reuse before earlier work is ordered'; exit 1"),
    ("random", "echo 'random_program: seed 7, a.c:3: word 5 is 3'; exit 1"),
    ("served", "echo 'status 1, without the library 0'; exit 1"),
    ("data", "echo 'difference at offset 3 0x01 0x02'; exit 1"),
    ("hang", "echo 'status None'; exit 1"),
    ("limit", "exec sleep 60"),
]


class Test(unittest.TestCase):
    longMessage = True

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.summary = os.path.join(self.folder, "summary")

    def project(self, rows):
        """A build directory with those tests."""
        with open(os.path.join(self.folder, "meson.build"), "w", encoding="utf-8") as file:
            print("project('luck')", file=file)
            for name, first, later in rows:
                script = os.path.join(self.folder, name)
                with open(script, "w", encoding="utf-8") as program:
                    print("#!/bin/sh\nif [ -e '%s.ran' ]; then %s; fi\n: >'%s.ran'\n%s" % (script, later, script, first),
                          file=program)
                os.chmod(script, 0o755)
                print("test('%s', find_program('%s'), suite: 'integration', timeout: %d)" %
                      (name, script, 1 if name == "limit" else 100), file=file)
        build = os.path.join(self.folder, "build")
        subprocess.run(["meson", "setup", build, self.folder], check=True, stdout=subprocess.DEVNULL)
        return build

    def run_tests(self, *words):
        return subprocess.run([sys.executable, RUN_TESTS, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, check=False, cwd=self.folder)

    def stage(self, rows):
        """What a stage with those tests and the summary say."""
        result = self.run_tests(self.project(rows), "--stage", "gcc", "--summary", self.summary)
        printed = self.run_tests("--print", self.summary)
        return result, printed, [line for line in printed.stdout.splitlines() if line.startswith("unsteady")]

    def test_one_that_fails_by_chance_passes_and_is_named(self):
        result, printed, unsteady = self.stage(LUCK)
        self.assertEqual((result.returncode, printed.returncode), (1, 1), result.stdout)
        self.assertEqual(unsteady, ["unsteady: unlucky (gcc)"])
        self.assertRegex(printed.stdout, r"(?m)^gcc +2 +1 +1  broken$")
        self.assertEqual(printed.stdout.splitlines()[-1], "2 passed, 1 failed, 1 skipped")

    def printed(self, unsteady):
        """The last line and the status for a stage of ten good tests, some of them at the second try."""
        with open(self.summary, "w", encoding="utf-8") as file:
            print("stage\tgcc\t10\t0\t0\t", file=file)
            for i in range(unsteady):
                print("unsteady\tgcc\ttest_%d" % i, file=file)
        result = self.run_tests("--print", self.summary)
        return result.stdout.splitlines()[-1], result.returncode

    def test_more_than_three_by_chance_fail(self):
        self.assertEqual(self.printed(3), ("10 passed, 0 failed, 0 skipped", 0))
        self.assertEqual(self.printed(4), ("6 passed, 4 failed, 0 skipped", 1))

    def test_what_is_no_matter_of_luck_has_no_second_chance(self):
        result, printed, unsteady = self.stage([(name, first, "exit 0") for name, first in NO_CHANCE])
        self.assertEqual((result.returncode, printed.returncode, unsteady), (1, 1, []), result.stdout)
        self.assertEqual(printed.stdout.splitlines()[-1], "0 passed, %d failed, 0 skipped" % len(NO_CHANCE), result.stdout)

    def test_no_test_is_a_failure(self):
        build = self.project([LUCK[0]])
        self.assertEqual(self.run_tests(build, "--stage", "gcc", "--summary", self.summary, "--", "--suite", "none").returncode, 1)
        self.assertEqual(self.run_tests("--print", self.summary).stdout.splitlines()[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_busy_run_names_what_failed_even_once(self):
        runs = os.path.join(self.folder, "runs")
        result = self.run_tests(self.project(LUCK[:3]), "--busy", "gcc:1/2", "--commit", "c0", "--runs", runs)
        with open(runs, encoding="utf-8") as file:
            row = file.read().rstrip("\n").split("\t")
        self.assertEqual((result.returncode, row[:2], row[-1]), (1, ["gcc:1/2", "c0"], "unlucky failed 1 of 3 times"),
                         result.stdout)
        self.assertIn("2 tests, 6 runs, of these 0 skipped", result.stdout)


if __name__ == "__main__":
    if not shutil.which("meson"):
        print("no meson")
        sys.exit(77)
    unittest.main(verbosity=2)
