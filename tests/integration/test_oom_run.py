# SPDX-License-Identifier: Apache-2.0
"""What was refused under `rmmshim run` where RMM_ON_OOM is not set: one line at once, and the report of the latest
request when the program fails.  TOOL is the command."""
import os

import support
from support import run

TOOL = os.environ["TOOL"]
SETTINGS = {"RMM_RESOURCE": "pool(cuda)", "RMM_LIMIT": "64MiB"}


class Refused(support.Test):
    def under(self, command, status, **settings):
        result = run([TOOL, "run", "--quiet", *command], dict(SETTINGS, **settings), preload=[],
                     more={"HOSTCUDA_MEMORY": "128MiB"})
        self.assertEqual(result.status, status, str(result))
        return result

    def probe(self, end, status, **settings):
        """A program that asks for too much, recovers, asks for too much again, and ends so."""
        steps = support.program("memory_steps") + " device 30 device 200 device 10 device 100"
        return self.under(["sh", "-c", steps + "; " + end], status, **settings)

    def test_one_line_at_once(self):
        result = self.probe("exit 0", 0)
        line, = result.stderr.splitlines()
        self.assertRegex(line, r"^rmmshim\[\d+\]: out of memory on GPU 0: 200 MiB refused by the 64\.0 MiB limit "
                         r"\(RMM_LIMIT\): 30\.0 MiB used; the GPU has ")

    def test_the_latest_report_when_the_program_fails(self):
        for end, status in (("exit 3", 3), ("kill -KILL $$", -9)):
            with self.subTest(end):
                lines = support.without_neighbours(self.probe(end, status).stderr).splitlines()
                self.assertIn(": 200 MiB refused", lines[0])
                self.assertRegex(lines[1], r"^rmmshim\[\d+\]: out of memory on GPU 0: 100 MiB refused by the .*: 40\.0 MiB used")
                self.assertEqual(lines[2:], ["  40.0 MiB in 2 blocks, allocated by memory_steps",
                                             "    30.0 MiB in 1 block of 30.0 MiB", "    10.0 MiB in 1 block of 10.0 MiB"])

    def test_call_sites_where_they_are_tracked(self):
        result = self.probe("exit 3", 3, RMM_TRACKING="text:" + self.path("leaks"))
        self.assertIn("  asked at\n    allocate+", result.stderr)
        self.assertIn("  40.0 MiB in 2 blocks, allocated at\n    allocate+", result.stderr)

    def test_eight_processes_are_printed(self):
        steps = support.program("memory_steps") + " device 200"
        result = self.under(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do %s; done; exit 3" % steps], 3)
        lines = support.without_neighbours(result.stderr).splitlines()
        self.assertEqual(len(lines), 10 + 8 + 1)
        self.assertEqual(lines[-1], "rmmshim: 2 more processes ran out of memory")

    def test_none(self):
        self.assertEqual(self.probe("exit 3", 3, RMM_ON_OOM="none").stderr, "")

    def test_what_was_written_at_once_is_not_repeated(self):
        for end, status in (("exit 0", 0), ("exit 3", 3)):
            result = self.probe(end, status, RMM_ON_OOM="text")
            self.assertEqual(result.stderr.count("out of memory"), 1, str(result))
            self.assertIn(": 200 MiB refused", result.stderr)

    def test_a_single_refusal_is_told_once(self):
        """At the end of a program that fails, who held the memory; what its first line said stands above."""
        result = self.under([support.program("memory_steps"), "device", "30", "device", "200"], 0)
        said = result.stderr
        result = self.under(["sh", "-c", support.program("memory_steps") + " device 30 device 200; exit 3"], 3)
        self.assertEqual((said.count("refused by"), result.stderr.count("refused by")), (1, 1), result)
        self.assertRegex(result.stderr, r"\nrmmshim\[\d+\]: who held memory of GPU 0 when 200 MiB were refused:\n"
                         r"  30\.0 MiB in 1 block of 30\.0 MiB, allocated by memory_steps\n\Z")

    def test_a_single_refusal_of_pinned_memory(self):
        result = self.under(["sh", "-c", support.program("memory_steps") + " device 30 pinned 5 pinned 20; exit 3"], 3,
                            RMM_PINNED_RESOURCE="limiting(pool(pinned), limit=10MiB)")
        self.assertRegex(result.stderr, r"\nrmmshim\[\d+\]: who held pinned memory when 20\.0 MiB were refused:\n"
                         r"  5\.00 MiB in 1 block of 5\.00 MiB, allocated by memory_steps\n\Z")


if __name__ == "__main__":
    support.main()
