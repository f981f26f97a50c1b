#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/support.py: a program that does not end in its time is ended, and where it was is told, whatever
gdb does."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "integration"))
os.environ.setdefault("RMMSHIM_LIBRARY", "")  # nothing is preloaded here
os.environ.setdefault("HOSTCUDA_DIRECTORY", "")
import support

PROGRAM = ["sh", "-c", "sleep 1000 & wait"]


class FirstOnPath:
    """A script that is found as `gdb`, before any other."""

    def __init__(self, script):
        self.script = script

    def __enter__(self):
        self.folder, self.before = tempfile.TemporaryDirectory(), os.environ["PATH"]
        gdb = os.path.join(self.folder.name, "gdb")
        with open(gdb, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + self.script)
        os.chmod(gdb, 0o755)
        os.environ["PATH"] = self.folder.name + ":" + self.before

    def __exit__(self, *_):
        os.environ["PATH"] = self.before
        self.folder.cleanup()


class Stacks(unittest.TestCase):
    def test_each_process_is_told_with_its_stack(self):
        process = subprocess.Popen(PROGRAM, start_new_session=True)
        try:
            deadline = time.monotonic() + support.ENOUGH_SECONDS
            while not any(support.read_or_empty("/proc/%d/cmdline" % pid).startswith("sleep") for pid in support.group(process.pid)):
                self.assertLess(time.monotonic(), deadline, "the program has no child")
            with FirstOnPath("echo 'Thread 1'\necho '#0  somewhere'\necho noise\n"):
                text = support.stacks(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.assertEqual(text.count("  #0  somewhere"), 2, text)
        self.assertNotIn("noise", text)
        self.assertIn("sleep 1000", text)
        self.assertRegex(text, r"state [A-Z]")

    def test_a_gdb_that_hangs_does_not_keep_the_program(self):
        support.GDB_SECONDS, before = 1, support.GDB_SECONDS
        try:
            with FirstOnPath("exec sleep 1000\n"):
                result = support.run(PROGRAM, preload=[], timeout=1)
        finally:
            support.GDB_SECONDS = before
        self.assertIsNone(result.status)
        self.assertIn("gdb took more than 1 s", result.stderr)


if __name__ == "__main__":
    unittest.main()
