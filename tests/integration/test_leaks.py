# SPDX-License-Identifier: Apache-2.0
"""Who holds memory, and who has not given it back: of processes that run, and of those that ended without a report.
TOOL is the command."""
import os
import re
import sys

import support
from support import run

TOOL = os.environ["TOOL"]
POOL = {"RMM_POOL_SIZE": "64MiB"}
TRACKED = dict(POOL, RMM_TRACKING="1")

# Allocates what its first argument says, and then does what the second one says.
PROGRAM = """\
import ctypes, os, signal, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")

def allocate(size):
    block = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    return block

context = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
blocks = [allocate(int(size)) for size in sys.argv[1].split(",") if size]
exec(sys.argv[2])
"""
DOES_NOT_RUN_HANDLERS = "without its exit handlers"


class Leaks(support.Test):
    def setUp(self):
        super().setUp()
        self.program = self.path("program.py")
        with open(self.program, "w", encoding="utf-8") as file:
            file.write(PROGRAM)

    def command(self, sizes, then):
        return [sys.executable, self.program, ",".join(map(str, sizes)), then]

    def under_run(self, then, settings=None, words=("--quiet",)):
        result = run([TOOL, "run", *words] + self.command([1 << 20, 1000], then), settings or TRACKED, preload=[])
        return result, [line for line in result.stderr.splitlines() if "leak" in line]


class AtTheEnd(Leaks):
    def test_a_report_that_could_not_be_written(self):
        """It is said, with the reason."""
        for then, why in (("os.kill(os.getpid(), signal.SIGKILL)", r"it was ended by signal 9 \(Killed\)"),
                          ("os.kill(os.getpid(), signal.SIGTERM)", r"it was ended by signal 15 \(Terminated\)"),
                          ("os._exit(0)", "it ended by _exit or exec, " + DOES_NOT_RUN_HANDLERS),
                          ("os.execv('/bin/true', ['true'])", "it ended by _exit or exec, " + DOES_NOT_RUN_HANDLERS)):
            for settings in (TRACKED, dict(POOL, RMM_TRACKING="json:" + self.path("%p.json"))):
                with self.subTest(then):
                    _, lines = self.under_run(then, settings)
                    self.assertEqual(len(lines), 1, lines)
                    self.assertRegex(lines[0], r"^rmmshim: no leak report of python\S* \[\d+\]: %s; 1.00 MiB in 2 blocks "
                                               r"were not freed$" % why)

    def test_of_a_process_that_the_program_started(self):
        then = "subprocess.run([sys.executable, sys.argv[0], '5000', 'os.kill(os.getpid(), signal.SIGKILL)'])"
        result, lines = self.under_run("blocks.clear(); " + then)
        self.assertRegex(lines[-1], r"^rmmshim: no leak report of python\S* \[\d+\]: it ended by a signal, _exit or exec, "
                                    r"%s; 4.88 KiB in 1 block was not freed$" % DOES_NOT_RUN_HANDLERS, result)

    def test_nothing_is_missing(self):
        for then, settings in (("pass", TRACKED), ("sys.exit(3)", TRACKED), ("os._exit(0)", POOL)):
            result, lines = self.under_run(then, settings)
            self.assertEqual([line for line in lines if "no leak report" in line], [], result)

    def test_the_interpreter_is_left_out(self):
        """Of the text: Python's own lines say more."""
        _, lines = self.under_run("pass")
        self.assertEqual(len(lines), 1, lines)
        result = run(self.command([1000], "pass"), TRACKED)
        sites = [line.strip() for line in result.stderr.splitlines() if line.startswith("    ")]
        self.assertRegex(sites[0], r"/program.py:6 in allocate$", result)
        self.assertGreater(len(sites), 3, result)
        for site in sites[1:]:
            self.assertNotRegex(site, r"PyEval|\(python3|\blibpython|libc\.so|_start", result)


if __name__ == "__main__":
    support.main()
