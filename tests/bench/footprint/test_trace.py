# SPDX-License-Identifier: Apache-2.0
"""Recorded traces: what is logged comes back as the trace that was played, and playing one counts right."""
import glob
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "integration"))
import support

HERE = os.path.dirname(os.path.abspath(__file__))
REPLAY = support.program("trace_replay")
CONVERT = [sys.executable, os.path.join(HERE, "trace_from_log.py")]
TRACES = sorted(glob.glob(os.path.join(HERE, "..", "traces", "*.trace")))
MIB = 1 << 20
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"

# Blocks of all kinds; freed in and out of order, one never.
LINES = ["a3145728", "a1", "a700000", "f1", "a1", "f0", "f3", "a5000000", "f2", "a512"]


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file if not line.startswith("#")]


class Trace(support.Test):
    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def play(self, lines, settings=None, arguments=(), **more):
        path = self.write("trace", "".join(line + "\n" for line in lines))
        return support.run([REPLAY, *arguments, path], settings, preload=None if settings else [], **more)

    def convert(self, log):
        return support.run(CONVERT + [log, self.path("converted"), "--note", "a note"], preload=[], driver=False)

    def assert_comes_back(self, lines, settings, arguments=()):
        played = self.play(lines, dict(settings, RMM_LOG=self.path("log")), arguments)
        self.assertEqual(played.status, 0, played)
        converted = self.convert(self.path("log"))
        self.assertEqual(converted.status, 0, converted)
        self.assertEqual(lines_of(self.path("converted")), lines)

    def test_a_logged_trace_comes_back(self):
        self.assert_comes_back(LINES, {"RMM_RESOURCE": "cuda"})
        with open(self.path("converted"), encoding="utf-8") as file:
            self.assertEqual(file.readline(), "# a note\n")
            self.assertEqual(file.readline(), "# 6 allocations, at most 5700000 bytes live\n")

    def test_streams_come_back(self):
        lines = ["a1000", "a2000 1", "a3000 2", "f1 1", "f0 2", "a4000 1", "f3", "f0 1"]
        self.assert_comes_back(lines, {"RMM_POOL_SIZE": "8MiB", "RMM_HOOKS": "all"}, ["--async"])

    def test_the_driver_is_counted_in_its_own_blocks(self):
        played = self.play(["a%d" % (3 * MIB), "a1", "f1", "a%d" % MIB, "a%d" % (2 * MIB)])
        # 4 MiB and 2 MiB; then 2 MiB for the three: 1 byte and 1 MiB share one.
        self.assertEqual(played.stdout, "events 5 live %d reserved %d ratio %.4f\n" %
                         (3 * MIB + 1, 6 * MIB, 6 * MIB / (3 * MIB + 1)), played)

    def test_ours_is_counted_at_the_driver(self):
        played = self.play(["a%d" % MIB], {"RMM_POOL_SIZE": "64MiB"})
        reserved = int(played.stdout.split()[5])
        self.assertTrue(64 * MIB <= reserved <= 66 * MIB, played)

    def test_out_of_memory_says_where(self):
        played = self.play(["a%d" % MIB, "f0", "a%d" % (2000 * MIB)], more={"HOSTCUDA_MEMORY": "1GiB"})
        self.assertEqual((played.status, played.stdout),
                         (2, "events 3 live %d: out of memory at event 2\n" % (2000 * MIB)), played)

    def test_a_bad_line_is_named(self):
        for bad in ("a0", "f0 ", "f1", "a12x", "b3", "a", "a-1", "a1 64", "f0\nf0", "a99999999999999999999"):
            played = self.play(["# a comment", "a100"] + bad.split("\n"))
            self.assertEqual(played.status, 1, (bad, str(played)))
            self.assertIn(":%d: not a line of a trace" % (3 + bad.count("\n")), played.stderr, bad)

    def test_what_a_log_has_no_allocation_of_is_left_out(self):
        log = self.write("log", HEADER + "1,t,free,0x10,8,0\n1,t,allocate,0x20,64,0\n1,t,allocate failure,0x0,99,0\n"
                         "2,t,free,0x20,64,0x5\n1,t,allocate,0x20,32,0\n")
        converted = self.convert(log)
        self.assertEqual(converted.status, 0, converted)
        self.assertIn("2 rows left out", converted.stdout)
        self.assertEqual(lines_of(self.path("converted")), ["a64", "f0 1", "a32"])

    def test_a_bad_log_is_refused(self):
        for text, said in (("", "does not begin"), ("Time\n", "does not begin"), (HEADER + "1,t,allocate,0x1\n", "line 2 has 4"),
                           (HEADER + "1,t,grow,0x1,5,0\n", "line 2: no action"), (HEADER + "1,t,free,0x1,x,0\n", "line 2: no size"),
                           (HEADER + 2 * "1,t,allocate,0x1,5,0\n", "line 3: 0x1 is allocated already")):
            converted = self.convert(self.write("log", text))
            self.assertEqual(converted.status, 1, text)
            self.assertIn(said, converted.stderr)

    def test_committed_traces_are_small_and_say_how_they_were_made(self):
        self.assertGreaterEqual(len(TRACES), 6)
        self.assertLess(sum(map(os.path.getsize, TRACES)), MIB)
        for path in TRACES:
            self.assertLess(os.path.getsize(path), 208 << 10, path)
            with open(path, encoding="utf-8") as file:
                self.assertTrue(file.readline().startswith("# ") and file.readline().startswith("# made "), path)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:], verbosity=2)
