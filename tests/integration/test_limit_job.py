# SPDX-License-Identifier: Apache-2.0
"""RMM_LIMIT_JOB: a limit over all processes of a job.  TOOL is the command."""
import mmap
import os
import random
import struct
import subprocess
import threading
import unittest

import support
from support import run
from test_steer import STEPS, TOOL, Steered

MIB = 1 << 20
# The layout of shared/job_limit.h.
DEVICES, MEMBERS = 32, 4096
MEMBERS_AT = (36 + DEVICES * 20 + 7) // 8 * 8
MEMBER_BYTES = 8 * (2 + 2 * DEVICES)


class Job:
    """The file of a job, as a monitor sees it."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def sums(self):
        """Taken of the first device, and the places in use."""
        used = struct.unpack_from("I", self.memory, 32)[0]
        taken = owners = 0
        for member in range(used):
            at = MEMBERS_AT + member * MEMBER_BYTES
            owners += struct.unpack_from("Q", self.memory, at)[0] != 0
            taken += struct.unpack_from("Q", self.memory, at + 16 + 8 * DEVICES)[0]
        return taken, owners


class LimitJob(support.Test):
    def settings(self, limit="256MiB", **more):
        return dict({"RMM_LIMIT_JOB": limit, "RMM_JOB": self.path("job")}, **more)

    def test_two_processes_share_it(self):
        first, second = Steered(self, self.settings()), Steered(self, self.settings())
        self.assertEqual(first.step("device", 160), [])
        self.assertEqual(second.step("device", 64), [])
        self.assertEqual(second.step("device", 64), ["device 64: 2"])
        self.assertEqual(first.step("info"), ["info 32 256"])
        self.assertEqual(second.step("info"), ["info 32 256"])
        first.step("free")
        self.assertEqual(second.step("device", 128), [])
        self.assertEqual(Job(self.path("job")).sums(), (192 * MIB, 2))

    def test_what_a_process_had_comes_back_when_it_is_gone(self):
        """The request waits for it, as for any memory that is about to be free."""
        first, second = Steered(self, self.settings()), Steered(self, self.settings())
        first.step("device", 200)
        self.assertEqual(second.step("device", 32), [])
        first.process.kill()
        first.process.wait()
        self.assertEqual(second.step("device", 200), [])
        self.assertEqual(Job(self.path("job")).sums(), (232 * MIB, 1))

    def test_a_limit_of_its_own_holds_too(self):
        process = Steered(self, self.settings(RMM_LIMIT="64MiB"))
        self.assertEqual(process.step("device", 96), ["device 96: 2"])
        self.assertEqual(process.step("info"), ["info 64 64"])

    def test_a_share_of_the_device(self):
        process = Steered(self, self.settings("25%", HOSTCUDA_MEMORY="1GiB"))
        self.assertEqual(process.step("info"), ["info 256 256"])

    def test_every_way_to_memory(self):
        for settings in ({"RMM_POOL_SIZE": "16MiB"}, {"RMM_ARENA_SIZE": "200MiB"}, {"RMM_ASYNC": "1"},
                         {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "16MiB"}, {"RMM_RESOURCE": "virtual"}):
            with self.subTest(settings):
                process = Steered(self, dict(self.settings(), RMM_JOB=self.path("job" + str(len(str(settings)))),
                                             **settings))
                self.assertEqual(process.step("device", 128), [])
                self.assertEqual(process.step("device", 192), ["device 192: 2"])
                process.step("free")
                self.assertEqual(process.step("device", 128), [])
        process = Steered(self, self.settings())
        self.assertEqual(process.step("ordered", 128), [])
        self.assertEqual(process.step("managed", 192), ["managed 192: 2"])

    def test_run_holds_the_job(self):
        # Each process allocates, and has the next one run while it holds that.
        chain = [STEPS, "device", "100", "info"]
        result = run([TOOL, "run", "--quiet", "--limit-job", "256MiB", "sh", "-c",
                      '"$0" device 100 info & wait $!; "$0" device 100 info', STEPS], preload=[])
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertEqual(result.stdout.splitlines()[0], "info 156 256")
        self.assertEqual(run([TOOL, "run", "--limit-job", "64MiB"] + chain, preload=[]).stdout.splitlines(),
                         ["device 100: 2", "info 64 64"])

    def test_a_run_below_stays_in_the_job(self):
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", TOOL, "run", "--quiet", STEPS, "device", "100"],
                     preload=[])
        self.assertEqual((result.status, result.stdout), (0, "device 100: 2\n"), result)
        self.assertRegex(result.stderr, r"^rmmshim\[\d+\]: out of memory on device 0: asked 100 MiB; limit 64\.0 MiB, "
                         r"of the job's 64\.0 MiB, where others have 0 B, [^\n]*\n$")

    def test_what_makes_no_job(self):
        stale = "1:3:17"
        foreign = self.path("foreign")
        with open(foreign, "wb") as file:
            file.write(b"something else")
        os.chmod(foreign, 0o600)
        shared = self.path("shared")
        with open(shared, "wb"):
            os.chmod(shared, 0o666)
        for settings, said in (
                ({}, "no job: `rmmshim run --limit-job` makes one, or RMM_JOB names its file"),
                ({"RMMSHIM_LIMIT_JOB": stale}, "the `rmmshim run` that holds the job is gone, or in another PID "
                                               "namespace"),
                ({"RMM_JOB": foreign}, "the job's file is of another version of rmmshim"),
                ({"RMM_JOB": shared}, "others may write to the job's file, so it limits nothing"),
                ({"RMM_JOB": self.folder}, "Is a directory"),
                ({"RMM_JOB": self.path("no/such")}, "No such file or directory")):
            with self.subTest(settings):
                result = run([STEPS, "device", "1"], dict(settings, RMM_LIMIT_JOB="1GiB"))
                self.assertEqual(result.status, 78, result)
                self.assertEqual(result.said, ["RMM_LIMIT_JOB=1GiB: " + said], result)
        with self.subTest("deny"):
            result = run([STEPS, "device", "1"], {"RMM_LIMIT_JOB": "1GiB", "RMM_ON_ERROR": "deny"})
            self.assertEqual(result.stdout, "device 1: 2\n", result)
        result = run([TOOL, "run", "--limit-job", "1GiB", "--exec", STEPS], preload=[])
        self.assertEqual((result.status, result.stderr),
                         (125, "rmmshim: RMM_LIMIT_JOB: with --exec nobody holds the job; name a file for it with "
                               "--job\n"))

    def test_many_that_die_at_random(self):
        """Nothing is left of them.  (That their sum is never above the limit, shared_job_limit shows.)"""
        keeper = Steered(self, self.settings("96MiB"))
        keeper.step("device", 2)
        served, lock = [], threading.Lock()

        def live(number):
            rng = random.Random(7000 + number)
            process = Steered(self, self.settings("96MiB", **({"RMM_POOL_MAX_SIZE": "32MiB"} if number % 3 else {})))
            held = 0
            for _ in range(rng.randrange(4, 24)):
                if held and rng.random() < 0.5:
                    process.step("free")
                    held -= 1
                elif process.step("device", rng.choice((2, 4, 6, 10))):
                    break  # it has waited for the dead as long as a request may
                else:
                    held += 1
                    with lock:
                        served.append(number)
            process.process.kill()
            process.process.wait()

        lives = [threading.Thread(target=live, args=(number,)) for number in range(32)]
        for life in lives:
            life.start()
        for life in lives:
            life.join()
        self.assertGreater(len(served), 32)
        self.assertEqual(keeper.step("device", 94), [])  # what they had is the keeper's to have
        # Who joins frees the places of those that are gone.
        newcomer = Steered(self, self.settings("96MiB"))
        newcomer.step("info")
        self.assertEqual(Job(self.path("job")).sums(), (96 * MIB, 2))


if __name__ == "__main__":
    unittest.main()
