# SPDX-License-Identifier: Apache-2.0
"""`rmmshim pause` and `rmmshim resume`.  The device in host memory keeps the states of checkpoints alone; that memory
moves and comes back is shown on hardware (gpu/test_pause.py).  TOOL is the command."""
import os
import subprocess

import support
from support import run

TOOL = os.environ["TOOL"]
RUNNING, LOCKED, PAUSED, FAILED = "0", "1", "2", "3"


class Pause(support.Test):
    def setUp(self):
        super().setUp()
        process = subprocess.Popen(["sleep", "infinity"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.pid = process.pid

    def state(self, state=None):
        """Of the process, after setting it."""
        if state is not None:
            with open(self.path(str(self.pid)), "w", encoding="ascii") as file:
                file.write(state)
        with open(self.path(str(self.pid)), encoding="ascii") as file:
            return file.read()

    def tool(self, *words, **more):
        return run([TOOL] + [str(word) for word in words], preload=[], more=dict(more, HOSTCUDA_CHECKPOINTS=self.folder))

    def test_there_and_back(self):
        self.state(RUNNING)
        for command, code, text, state in (
                ("pause", 0, "is paused: its GPU memory", PAUSED), ("pause", 0, "is paused already", PAUSED),
                ("resume", 0, "runs on", RUNNING), ("resume", 0, "is not paused", RUNNING)):
            result = self.tool(command, self.pid)
            self.assertEqual((result.status, result.stderr, self.state()), (code, "", state), result)
            self.assertIn("process %d %s" % (self.pid, text), result.stdout)

    def test_what_another_command_left_locked(self):
        for command, state in (("pause", PAUSED), ("resume", RUNNING)):
            self.state(LOCKED)
            self.assertEqual(self.tool(command, self.pid).status, 0)
            self.assertEqual(self.state(), state)

    def test_a_failure_leaves_the_process_as_it_was(self):
        for function, before, command, code, text in (
                ("cuCheckpointProcessLock:code=600", RUNNING, "pause", 3, "did not end within 10 s; nothing was changed"),
                ("cuCheckpointProcessLock:code=801", RUNNING, "pause", 1, "cannot be paused: CUDA_ERROR_NOT_SUPPORTED"),
                ("cuCheckpointProcessCheckpoint:code=2", RUNNING, "pause", 1, "cannot be paused: CUDA_ERROR_OUT_OF_MEMORY"),
                ("cuCheckpointProcessRestore:code=2", PAUSED, "resume", 1,
                 "stays paused, as its GPU memory cannot come back: CUDA_ERROR_OUT_OF_MEMORY")):
            self.state(before)
            result = self.tool(command, self.pid, HOSTCUDA_FAULT=function)
            self.assertEqual((result.status, result.stdout, self.state()), (code, "", before), result)
            self.assertEqual(result.stderr.count("\n"), 1)
            self.assertIn(text, result.stderr)

    def test_a_process_that_stays_blocked_is_said_to(self):
        self.state(PAUSED)
        result = self.tool("resume", self.pid, HOSTCUDA_FAULT="cuCheckpointProcessUnlock:code=999")
        self.assertEqual((result.status, self.state()), (1, LOCKED), result)
        self.assertIn("its calls of CUDA stay blocked: CUDA_ERROR_UNKNOWN", result.stderr)

    def test_bad_input(self):
        self.state(FAILED)
        ended = subprocess.Popen(["true"])
        ended.wait()
        for words, code, text in (
                ([], 2, "no process"), (["x"], 2, "x: not a process number"), (["-1"], 2, "-1: not a process number"),
                ([self.pid, "now"], 2, "'now' is one word too many"),
                ([ended.pid], 1, "process %d does not exist" % ended.pid),
                ([os.getpid()], 1, "no GPU memory of it to pause (CUDA_ERROR_NOT_INITIALIZED)"),
                ([self.pid], 1, "neither pause nor resume")):
            for command in ("pause", "resume"):
                result = self.tool(command, *words)
                self.assertEqual((result.status, result.stdout), (code, ""), result)
                self.assertIn(text, result.stderr)

    def test_a_driver_that_cannot(self):
        for more in ({"HOSTCUDA_DRIVER_VERSION": "12070"}, {"HOSTCUDA_WITHHOLD": "cuCheckpointProcessUnlock"}):
            self.state(RUNNING)
            result = self.tool("pause", self.pid, **more)
            self.assertEqual((result.status, self.state()), (1, RUNNING), result)
            self.assertIn("this driver cannot pause a process", result.stderr)


if __name__ == "__main__":
    support.main()
