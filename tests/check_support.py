#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/integration/support.py: a program that does not end in its time is ended, and where it was is told, whatever
gdb does."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "integration"))
os.environ.setdefault("RMMSHIM_LIBRARY", "")  # nothing is preloaded here
os.environ.setdefault("HOSTCUDA_DIRECTORY", "")
import support

PROGRAM = ["sh", "-c", "sleep 1000 & wait"]


class Stacks(unittest.TestCase):
    def run_with_gdb(self, script):
        """The result of a program that never ends, with this gdb found first."""
        with tempfile.TemporaryDirectory() as folder:
            gdb = os.path.join(folder, "gdb")
            with open(gdb, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + script)
            os.chmod(gdb, 0o755)
            path = os.environ["PATH"]
            os.environ["PATH"] = folder + ":" + path
            try:
                return support.run(PROGRAM, preload=[], timeout=1)
            finally:
                os.environ["PATH"] = path

    def test_each_process_is_told_with_its_stack(self):
        result = self.run_with_gdb("echo 'Thread 1'\necho '#0  somewhere'\necho noise\n")
        self.assertIsNone(result.status)
        self.assertEqual(result.stderr.count("  #0  somewhere"), 2, result.stderr)
        self.assertNotIn("noise", result.stderr)
        self.assertIn("sleep 1000", result.stderr)
        self.assertIn("state S", result.stderr)

    def test_a_gdb_that_hangs_does_not_keep_the_program(self):
        support.GDB_SECONDS, before = 1, support.GDB_SECONDS
        try:
            result = self.run_with_gdb("exec sleep 1000\n")
        finally:
            support.GDB_SECONDS = before
        self.assertIsNone(result.status)
        self.assertIn("gdb took more than 1 s", result.stderr)


if __name__ == "__main__":
    unittest.main()
