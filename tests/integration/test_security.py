# SPDX-License-Identifier: Apache-2.0
"""What SECURITY.md says of other users, of hostile programs, and of rights that are raised or dropped.  TOOL is the
command."""
import os
import shutil
import stat
import subprocess
import sys
import unittest

import json_schema
import support
from support import run

TOOL = os.environ["TOOL"]
SCENES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_scenes.py")
NOBODY = 65534
PRECIOUS = "precious\n"
only_root = unittest.skipUnless(os.geteuid() == 0, "only root becomes another user")


class Security(support.Test):
    def file(self, name, text=PRECIOUS, mode=0o600):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def folder_for_all(self, name, mode=0o1777):
        os.chmod(self.folder, 0o711)
        os.mkdir(self.path(name))
        os.chmod(self.path(name), mode)
        return self.path(name)

    def assert_untouched(self, path):
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), PRECIOUS)


class BelowRun(Security):
    @only_root
    def test_another_user_s_process_does_not_say_where_run_writes(self):
        """`run` writes the reports of processes that are gone, with its own rights."""
        mine, folder = os.path.join(self.folder_for_all("open"), "mine"), self.folder_for_all("closed", 0o700)
        victim = self.file("closed/victim")
        for path in victim, self.path("closed/new"):
            with self.subTest(path):
                result = run([TOOL, "run", "--quiet", "--pool-size", "16MiB", "--statistics", "json:" + mine, sys.executable,
                              SCENES, "report_at", path], preload=[])
                self.assertEqual(result.stdout, "held\n", result)
                self.assertEqual(os.listdir(folder), ["victim"], result)
                self.assert_untouched(victim)
                self.assertIn("belongs to another user", result.stderr)


    def test_who_has_not_the_token_gets_nothing(self):
        """Any process may connect to the socket of a `run`; what a job's process holds is told to the job alone."""
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", sys.executable, SCENES, "without_the_token"], preload=[])
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "no answer\nno answer\nlimit\n", ""), result)

    def test_messages_with_more_descriptors_leave_none(self):
        """Any process could fill `run` up with them, with and without the token."""
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", sys.executable, SCENES, "more_descriptors"], preload=[])
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "0 are left\n", ""), result)

    def test_silent_connections(self):
        """More than `run` may have descriptors.  A process that it could not hold in time is not counted, which is said."""
        result = run(["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", TOOL, "run", "--json", self.path("end"), sys.executable,
                      SCENES, "many_silent", support.program("memory_steps"), "device", "1"],
                     {"RMM_POOL_SIZE": "16MiB"}, preload=[])
        self.assertEqual((result.status, result.stdout), (0, "50 connected\n"), result)
        end = json_schema.read(self.path("end"), "run.json")
        held = [process["program"] for process in end["processes"]]
        self.assertEqual((held, end["incomplete"]), (["memory_steps"], False) if held else ([], True), result)


class Rights(Security):
    def steps(self, program, log):
        """A run of the program, which is linked with the library, and whether that has made a log."""
        result = run([program, "device", "1"], {"RMM_POOL_SIZE": "16MiB", "RMM_LOG": log}, preload=[])
        return result, os.path.exists(log)

    @only_root
    def test_a_program_with_raised_rights_takes_no_settings(self):
        """A variable would have it write a file where its user may, and who started it may not."""
        folder = self.folder_for_all("open")
        program, log = shutil.copy(support.program("raised_steps"), self.path("steps")), os.path.join(folder, "log")
        result, made = self.steps(program, log)
        self.assertEqual((result.status, made), (0, True), result)
        os.unlink(log)
        for owner, bit in ((NOBODY, 0), stat.S_ISUID), ((0, NOBODY), stat.S_ISGID):
            os.chown(program, *owner)
            os.chmod(program, 0o755 | bit)
            if subprocess.run([program], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False).returncode != 0:
                self.skipTest("another user may not read the build")
            with self.subTest(owner):
                result, made = self.steps(program, log)
                self.assertEqual((result.status, result.stdout, result.stderr, made), (0, "", "", False), result)


class Outputs(Security):
    """Files that commands write."""

    def setUp(self):
        super().setUp()
        self.recording = self.path("a.rec")
        result = run([support.program("planted_bugs"), "freed_twice"], {"RMM_POOL_SIZE": "16MiB", "RMM_RECORD": self.recording})
        self.assertEqual(result.status, 0, result)

    def commands(self, path):
        return [[TOOL, "report", self.recording, "-o", path], [TOOL, "report", self.recording, "--svg", path],
                [TOOL, "export", "--format", "csv", self.recording, "-o", path]]

    @only_root
    def test_a_link_of_another_user_is_not_followed(self):
        """In /tmp anybody may have put it there."""
        folder, victim = self.folder_for_all("open"), self.file("victim")
        for at, owner, target in (("link", NOBODY, victim), ("new", NOBODY, self.path("made")), ("own", 0, os.path.join(folder, "link"))):
            os.symlink(target, os.path.join(folder, at))
            os.lchown(os.path.join(folder, at), owner, owner)
            for command in self.commands(os.path.join(folder, at)):
                with self.subTest(command):
                    result = run(command, preload=[])
                    self.assertEqual((result.status, result.stdout), (1, ""), result)
                    self.assertIn("Permission denied", result.stderr)
                    self.assert_untouched(victim)
                    self.assertFalse(os.path.exists(self.path("made")))

    @only_root
    def test_a_fifo_of_another_user_is_not_written_to(self):
        fifo = os.path.join(self.folder_for_all("open"), "fifo")
        os.mkfifo(fifo)
        os.chown(fifo, NOBODY, NOBODY)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        for command in self.commands(fifo):
            with self.subTest(command):
                result = run(command, preload=[])
                self.assertEqual((result.status, result.stdout), (1, ""), result)
                self.assertEqual(os.read(reader, 1), b"")

    def test_one_s_own_are(self):
        victim = self.file("a")
        os.symlink("a", self.path("link"))
        os.symlink(self.path("link"), self.path("to-link"))
        for command in self.commands(self.path("to-link")):
            with self.subTest(command):
                self.assertEqual(run(command, preload=[]).status, 0)
                self.assertTrue(os.path.islink(self.path("link")))
                with open(victim, encoding="utf-8") as file:
                    self.assertNotEqual(file.read(), PRECIOUS)


if __name__ == "__main__":
    support.main()
