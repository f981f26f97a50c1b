# SPDX-License-Identifier: Apache-2.0
"""RMM_LIMIT_JOB: a limit over all processes of a job.  TOOL is the command."""
import concurrent.futures
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

import support
from support import run, until
from test_steer import ATTENTION_AT, STEPS, TOOL, WAIT, Steered, tool

MIB = 1 << 20
ATTENTION_JOB = 1 << 33  # of shared/commands.h
# The layout of shared/job_layout.h.
USED_AT, ASKED_AT, ENTRIES_AT = 96, 120, 128
ENTRY = struct.Struct("12Q")  # owner, the device's UUID, taken, kept, idle, wanted, ticket, asked, ended, two of commands

USE_TWO_DEVICES = """
import ctypes, sys
cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0)
for device in 0, 1:
    assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) and not cuda.cuCtxSetCurrent(context)
    assert not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000))
print("used", flush=True)
sys.stdin.read()
"""


class Job:
    """The file of a job, as a monitor sees it."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def sums(self):
        """Taken of the device, and how many processes have taken it, or may."""
        return sum(entry[3] for entry in self.entries()), len({entry[0] for entry in self.entries()})

    def entries(self):
        used = struct.unpack_from("I", self.memory, USED_AT)[0]
        entries = (ENTRY.unpack_from(self.memory, ENTRIES_AT + number * ENTRY.size) for number in range(used))
        return [entry for entry in entries if entry[0]]

    def wanted(self):
        """By all members."""
        return sum(entry[6] for entry in self.entries())

    def asked(self):
        """How often members have asked for idle memory."""
        return struct.unpack_from("I", self.memory, ASKED_AT)[0]


def beside(steered, words, *others):
    """What a step prints while other processes make calls all the time."""
    lines = []
    step = threading.Thread(target=lambda: lines.extend(steered.step(*words)))
    step.start()
    while step.is_alive():
        for other in others:
            other.step("info")
    step.join()
    return lines


WAIT_SECONDS, IN_VAIN_MOST = 1, 6  # of src/charge/reclaim.c


class LimitJob(support.Test):
    def gets_idle_memory(self, steered, words, *others):
        """The request has idle memory of others.  Where these do not come to give it back while it waits, in a second
        at first and in half of the time after each wait in vain, it is refused, and made again."""
        for attempt in range(1000):
            begin = time.monotonic()
            lines = beside(steered, words, *others)
            if not lines:
                return
            self.assertEqual(lines, ["%s %s: 2" % words])
            # It was refused for no other reason.
            self.assertGreater(time.monotonic() - begin, WAIT_SECONDS / 2 ** min(attempt + 1, IN_VAIN_MOST))
        self.fail("it was never served")

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

    def test_a_driver_that_does_not_tell_the_device_s_size(self):
        """A limit in bytes holds without it."""
        process = Steered(self, self.settings(HOSTCUDA_FAULT="cuDeviceTotalMem:code=2"))
        self.assertEqual(process.step("device", 160), [])
        self.assertEqual(process.step("device", 100), ["device 100: 2"])

    def test_a_driver_that_tells_the_device_s_size_late(self):
        """What was allocated before counts from then on."""
        process = Steered(self, self.settings("25%", HOSTCUDA_MEMORY="1GiB", RMM_RESOURCE="cuda",
                                              HOSTCUDA_FAULT="cuDeviceTotalMem:count=3:code=2"))
        self.assertEqual(process.step("device", 160), [])
        self.assertEqual(Job(self.path("job")).sums()[0], 0)
        process.step("info")
        self.assertEqual(process.step("device", 100), ["device 100: 2"])
        self.assertEqual(Job(self.path("job")).sums()[0], 160 * MIB)
        process.step("free")
        self.assertEqual(Job(self.path("job")).sums()[0], 0)

    def test_what_a_process_had_comes_back_when_it_is_gone(self):
        """The request waits for it, as for any memory that is about to be free."""
        first, second = Steered(self, self.settings()), Steered(self, self.settings())
        first.step("device", 200)
        self.assertEqual(second.step("device", 32), [])
        first.process.kill()
        first.process.wait()
        self.assertEqual(second.step("device", 200), [])
        self.assertEqual(Job(self.path("job")).sums(), (232 * MIB, 1))

    def test_what_a_program_had_comes_back_when_it_becomes_another(self):
        """By exec(), which keeps the process's number and start time."""
        process, other = Steered(self, self.settings()), Steered(self, self.settings())
        process.step("device", 200)
        self.assertEqual(other.step("device", 32), [])
        process.process.stdin.write("exec\n")
        self.assertEqual(process.step("device", 200), [])
        self.assertEqual(other.step("device", 64), ["device 64: 2"])
        self.assertEqual(Job(self.path("job")).sums(), (232 * MIB, 2))

    def test_idle_memory_of_another_is_asked_back(self):
        for number, settings in enumerate(({"RMM_POOL_SIZE": "16MiB"}, {"RMM_POOL_SIZE": "200MiB"}, {},
                                           {"RMM_FREE": "immediate", "RMM_POOL_SIZE": "16MiB"})):
            with self.subTest(settings):
                settings = dict(self.settings(**settings), RMM_JOB=self.path("job%d" % number))
                first, second = Steered(self, settings), Steered(self, dict(settings, RMM_POOL_SIZE="1MiB"))
                self.assertEqual(first.step("device", 80), [])
                self.assertEqual(first.step("device", 80), [])
                first.step("free")
                first.step("free")
                first.step("wait")
                first.step("info")
                self.gets_idle_memory(second, ("device", 180), first)
                job = Job(self.path("job%d" % number))
                self.assertLessEqual(job.sums()[0], 256 * MIB)
                self.assertEqual(job.wanted(), 0)
                self.assertEqual(first.step("device", 16), [])  # the rest is its own

    def test_no_more_than_is_wanted(self):
        first, second = (Steered(self, self.settings(RMM_RESOURCE="fixed_size(cuda, block_size=8MiB, "
                                                                  "blocks_to_preallocate=1)")) for _ in "12")
        for _ in range(24):
            self.assertEqual(first.step("device", 8), [])
        for _ in range(24):
            first.step("free")
        first.step("wait")
        first.step("info")
        for _ in range(10):
            self.gets_idle_memory(second, ("device", 8), first)
        self.assertGreaterEqual(Job(self.path("job")).sums()[0], 240 * MIB)

    def test_nobody_is_asked_who_has_nothing_idle(self):
        first, second = (Steered(self, self.settings(RMM_POOL_SIZE="1MiB")) for _ in "12")
        self.assertEqual(first.step("device", 200), [])
        first.step("info")
        self.assertEqual(second.step("device", 128), ["device 128: 2"])
        self.assertEqual(Job(self.path("job")).asked(), 0)

    def test_a_process_that_makes_no_call_gives_nothing(self):
        """And is waited for a bounded time only."""
        first = Steered(self, self.settings(RMM_POOL_SIZE="1MiB"))
        self.assertEqual(first.step("device", 200), [])
        first.step("free")
        first.step("wait")
        job = Job(self.path("job"))

        def asks():
            second, before = Steered(self, self.settings(RMM_POOL_SIZE="1MiB")), job.asked()
            self.assertEqual(second.step("device", 128), ["device 128: 2"])
            self.assertEqual(job.wanted(), 0)
            return second if job.asked() - before > 2 else None
        second = until(asks, "a process that asks anew while it waits")  # for a second, which may give it one turn
        first.step("info")
        self.gets_idle_memory(second, ("device", 128), first)

    def test_a_thread_for_commands_gives_between_calls(self):
        first = Steered(self, self.settings(RMM_POOL_SIZE="1MiB", RMM_CONTROL="thread"))
        second = Steered(self, self.settings(RMM_POOL_SIZE="1MiB"))
        self.assertEqual(first.step("device", 200), [])
        first.step("free")
        first.step("wait")
        first.step("info")
        self.gets_idle_memory(second, ("device", 128))

    def test_a_thread_for_commands_sleeps_where_nothing_is_served_any_more(self):
        """It puts the question away that it does not answer, so it does not come back to it at once, and again."""
        first = Steered(self, self.settings(RMM_CONTROL="thread", RMM_ON_ERROR="passthrough", HOSTCUDA_DEVICES="2",
                                            RMM_RESOURCE_1="pool(cuda, initial_size=10TiB)"),
                        command=[sys.executable, "-c", USE_TWO_DEVICES])
        self.assertEqual(first.process.stdout.readline(), "used\n")
        answer = tool("trim", first.pid, *WAIT)
        self.assertIn("no longer serves this process", answer.stderr, answer)
        with open(first.commands(), "r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
            word = struct.unpack_from("Q", memory, ATTENTION_AT)[0]
            struct.pack_into("Q", memory, ATTENTION_AT, word | ATTENTION_JOB)  # as another member does
            until(lambda: not struct.unpack_from("Q", memory, ATTENTION_AT)[0] & ATTENTION_JOB,
                  "an answer to the question")  # the thread looks each second

    def stop_while_it_asks(self, job):
        """A process that wants 128 MiB and is stopped.  It asks for 1 s, which a busy machine may miss."""
        def stopped():
            process = Steered(self, self.settings(RMM_RESOURCE="cuda()"))
            process.process.stdin.write("device 128\n")
            process.process.stdin.flush()
            until(lambda: job.wanted() or select.select([process.process.stdout], [], [], 0)[0], "a question")
            process.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            if job.wanted():
                return process
            process.process.kill()
            process.process.wait()
            return None
        return until(stopped, "a process that is stopped while it asks")

    def test_who_dies_while_it_asks_leaves_nothing(self):
        first = Steered(self, self.settings(RMM_RESOURCE="pool(cuda())"))
        self.assertEqual(first.step("device", 200), [])
        first.step("free")
        first.step("wait")
        job = Job(self.path("job"))
        second = self.stop_while_it_asks(job)
        self.assertEqual(job.wanted(), 128 * MIB)
        second.process.kill()
        second.process.wait()
        Steered(self, self.settings()).step("info")  # who joins frees the place, which had no bytes taken
        self.assertEqual(job.wanted(), 0)

    def test_another_pid_namespace_is_refused(self):
        """Nobody sees there which of the members live."""
        unshare = ["unshare", "-Urpf"]
        if subprocess.run(unshare + ["true"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("user namespaces are not permitted")
        first = Steered(self, self.settings())
        self.assertEqual(first.step("device", 200), [])
        for mount in ([], ["--mount-proc"]):
            with self.subTest(mount):
                result = run(unshare + mount + [STEPS, "device", "200"], self.settings())
                self.assertEqual((result.status, result.stdout), (78, ""), result)
                self.assertEqual([line for line in result.said if "PID" in line],
                                 ["RMM_LIMIT_JOB=256MiB: the job's file (RMM_JOB) %s is used by processes in another PID "
                                  "namespace, and this process cannot see whether they still run: set RMM_JOB to "
                                  "another file, or remove this one when they have ended" % self.path("job")], result)
        self.assertEqual(Job(self.path("job")).sums(), (200 * MIB, 1))
        # Nor is a process of another one a member of a `run`'s job.
        result = run([TOOL, "run", "--quiet", "--limit-job", "256MiB"] + unshare + [STEPS, "device", "1"], preload=[])
        self.assertEqual(result.status, 78, result)
        self.assertIn("has ended, or is in another PID or network namespace", result.stderr)

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

    def test_nobody_can_take_the_memory_of_run_s_files(self):
        """Its members would end by SIGBUS at their next store."""
        code = ("import os, sys; sys.path.insert(0, %r); import run_socket\n"
                "variable = os.environ['RMMSHIM_JOB']\n"
                "_, (limit,) = run_socket.ask(variable, run_socket.GIVE_LIMIT)\n"
                "for name, file in ('file', run_socket.file_of(variable)), ('limit', limit):\n"
                "    for size in 0, os.fstat(file).st_size + 1:\n"
                "        try:\n"
                "            os.ftruncate(file, size)\n"
                "            print(name, 'has another size')\n"
                "        except PermissionError:\n"
                "            pass\n") % os.path.dirname(os.path.abspath(__file__))
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", "python3", "-c", code], preload=[])
        self.assertEqual((result.status, result.stdout), (0, ""), result)

    def test_run_says_that_its_files_have_no_room(self):
        """It is not ended by SIGXFSZ."""
        result = run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", TOOL, "run", "--quiet", "--limit-job", "64MiB",
                      STEPS], preload=[])
        self.assertEqual(result.status, 125, result)
        self.assertIn("File too large", result.stderr)

    def test_a_run_below_stays_in_the_job(self):
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", TOOL, "run", "--quiet", STEPS, "device", "100"],
                     preload=[])
        self.assertEqual((result.status, result.stdout), (0, "device 100: 2\n"), result)
        self.assertRegex(support.without_neighbours(result.stderr), r"^rmmshim\[\d+\]: out of memory on GPU 0: 100 MiB refused by "
                         r"the job's 64\.0 MiB limit \(RMM_LIMIT_JOB\), which leaves 64\.0 MiB for this process; in this process nothing used -> raise --limit-job [^\n]*\n$")

    def test_a_larger_limit_below_a_smaller_one(self):
        """The smaller one holds, and that is said."""
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", TOOL, "run", "--quiet", "--limit-job", "1GiB",
                      STEPS, "device", "100", "info"], preload=[])
        self.assertEqual((result.status, result.stdout), (0, "device 100: 2\ninfo 64 64\n"), result)
        self.assertIn("RMM_LIMIT_JOB=1GiB: the job of the enclosing `rmmshim run` has a limit of 64MiB, which "
                      "applies instead", result.stderr)
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", "sh", "-c",
                      'RMM_LIMIT_JOB=1GiB "$0" device 100 info; RMM_LIMIT_JOB=32MiB "$0" device 48 info', STEPS], preload=[])
        self.assertEqual(result.stdout.splitlines(), ["device 100: 2", "info 64 64", "device 48: 2", "info 32 32"])

    def test_a_smaller_limit_below_a_larger_one(self):
        """Both hold for who is in both, and what is had in the inner job is had in the outer one."""
        inner = '"$1" run --quiet --limit-job 128MiB'
        chain = [TOOL, "run", "--quiet", "--limit-job", "256MiB", "sh", "-c"]
        result = run(chain + [inner + ' "$0" device 160 info', STEPS, TOOL], preload=[])
        self.assertEqual((result.status, result.stdout), (0, "device 160: 2\ninfo 128 128\n"), result)
        # Others hold 224 of the outer job's.
        result = run(chain + ['mkfifo "$2/go"; "$0" device 224 exec <"$2/go" >"$2/held" & exec 3>"$2/go"; '
                              'until "$0" info | grep -q "info 32 "; do sleep 0.01; done; ' +
                              inner + ' "$0" device 48 info; ' + inner + ' "$0" device 16 info; echo free >&3; echo >&3',
                              STEPS, TOOL, self.folder], preload=[])
        self.assertEqual(result.stdout.splitlines(), ["device 48: 2", "info 32 256", "info 16 256"], result)
        # And as much as is had in an inner job is not to be had in the outer one.
        result = run(chain + [inner + ' sh -c \'"$0" device 100 info; "$0" info\' "$0"; "$0" info', STEPS, TOOL],
                     preload=[])
        self.assertEqual(result.stdout.splitlines()[0], "info 28 128", result)

    def test_a_file_below_a_run(self):
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", "sh", "-c",
                      'RMM_JOB="$1" RMM_LIMIT_JOB=1GiB "$0" device 100 info; "$2" run --quiet --job "$1" "$0" device 80 info',
                      STEPS, self.path("file"), TOOL], preload=[])
        self.assertEqual(result.stdout.splitlines(), ["device 100: 2", "info 64 64", "device 80: 2", "info 64 64"], result)

    def test_two_limits_by_one_file(self):
        first = Steered(self, self.settings("64MiB"))
        self.assertEqual(first.step("device", 48), [])
        result = run([STEPS, "device", "100"], self.settings("1GiB"))
        self.assertEqual((result.status, result.said),
                         (78, ["RMM_LIMIT_JOB=1GiB: the processes that use the job's file %s have another limit, 64MiB: "
                               "set the same RMM_LIMIT_JOB, or another file in RMM_JOB" % self.path("job")]), result)
        first.process.kill()
        first.process.wait()
        self.assertEqual(run([STEPS, "device", "100"], self.settings("1GiB")).status, 0)

    def test_more_devices_than_a_process_has(self):
        """As where each process sees a part of its own of one of many GPUs."""
        result = run([TOOL, "run", "--quiet", "--limit-job", "64MiB", "sh", "-c",
                      'for i in $(seq 40); do HOSTCUDA_UUID=$((i * 100)) "$0" device 48 device 48; done', STEPS], preload=[])
        self.assertEqual((result.status, result.stdout), (0, "device 48: 2\n" * 40), result)

    def test_what_makes_no_job(self):
        stale = "%s:%s:1:3:17:1" % ("1" * 32, "2" * 32)
        foreign = self.path("foreign")
        with open(foreign, "wb") as file:
            file.write(b"something else")
        os.chmod(foreign, 0o600)
        shared = self.path("shared")
        with open(shared, "wb"):
            os.chmod(shared, 0o666)
        for settings, said in (
                ({}, "this process belongs to no job, so it has nobody to share the limit with: use `rmmshim run "
                     "--limit-job`, or set RMM_JOB to the same file in all processes (rmmshim creates the file)"),
                ({"RMMSHIM_JOB": stale}, "this process cannot share the limit of the `rmmshim run` that started it, because that "
                                         "`run` has ended, or is in another PID or network namespace: start the program again with "
                                         "`rmmshim run`, inside its own container if it is in one"),
                ({"RMM_JOB": foreign}, "the job's file (RMM_JOB) %s was not written by this version of rmmshim: remove it, or choose "
                                       "another file" % foreign),
                ({"RMM_JOB": shared}, "the job's file (RMM_JOB) %s must belong to this user and be writable, with no access for "
                                      "others (chmod 600)" % shared),
                ({"RMM_JOB": self.folder}, "cannot use the job's file (RMM_JOB) %s: Is a directory" % self.folder),
                ({"RMM_JOB": self.path("no/such")},
                 "cannot use the job's file (RMM_JOB) %s: No such file or directory" % self.path("no/such"))):
            with self.subTest(settings):
                result = run([STEPS, "device", "1"], dict(settings, RMM_LIMIT_JOB="1GiB"))
                self.assertEqual(result.status, 78, result)
                self.assertEqual(result.said, ["RMM_LIMIT_JOB=1GiB: " + said], result)
        with self.subTest("deny"):
            result = run([STEPS, "device", "1"], {"RMM_LIMIT_JOB": "1GiB", "RMM_ON_ERROR": "deny"})
            self.assertEqual(result.stdout, "device 1: 2\n", result)
        result = run([TOOL, "run", "--limit-job", "1GiB", "--exec", STEPS], preload=[])
        self.assertEqual((result.status, result.stderr),
                         (125, "rmmshim: RMM_LIMIT_JOB: with --exec no parent process is left to keep the shared "
                               "limit; add --job FILE, which then keeps it\n"))

    def test_32_that_are_killed_at_random(self):
        """They never have more than the limit, and nothing is left of them."""
        result = run([support.program("job_deaths"), "384"], self.settings("384MiB"))
        self.assertEqual(result.status, 0, result)
        self.assertRegex(result.stdout, r"^above: 0 of \d+\n$", result)
        newcomer = Steered(self, self.settings("384MiB"))
        self.assertEqual(newcomer.step("device", 384), [])  # it waits for what they had
        self.assertEqual(Job(self.path("job")).sums(), (384 * MIB, 1))

    def test_many_that_die_at_random(self):
        """Nothing is left of them, whatever they were doing."""
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

        with concurrent.futures.ThreadPoolExecutor(max_workers=32) as lives:
            for life in [lives.submit(live, number) for number in range(32)]:
                life.result()  # what was raised there is raised here
        number = 32
        while len(served) <= 32:  # how often many at once are refused is up to the scheduler: one alone is served
            before = len(served)
            live(number)
            self.assertGreater(len(served), before)
            number += 1
        self.assertEqual(keeper.step("device", 94), [])  # what they had is the keeper's to have
        # Who joins frees the places of those that are gone.
        newcomer = Steered(self, self.settings("96MiB"))
        newcomer.step("info")
        self.assertEqual(Job(self.path("job")).sums(), (96 * MIB, 2))


if __name__ == "__main__":
    unittest.main()
