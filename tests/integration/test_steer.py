# SPDX-License-Identifier: Apache-2.0
"""`rmmshim limit` and `rmmshim trim`: commands to a process that runs.  TOOL is the command."""
import os
import signal
import struct
import subprocess
import sys
import unittest

import support
from support import ENOUGH_SECONDS, run, until

TOOL = os.environ["TOOL"]
STEPS = support.program("memory_steps")
# The layout of shared/commands.h: places of fields, and steps.
STEP_AT, DEVICE_AT, ATTENTION_AT = 40, 48, 384
ASKED, ANSWERED = 1, 3
ATTENTION_ASKED = 1 << 32
WAIT = ("--wait", ENOUGH_SECONDS)  # for commands that are answered

# Prints the error of its own call, and what is left of it when a command has set a limit.
LAST_ERROR = """
import ctypes
cuda, here = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
here.rmmshim_last_error.restype = ctypes.c_char_p
context, block, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context) and not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000))
assert here.rmmshim_set_limit(99, ctypes.c_size_t(1 << 30)) != 0
print(here.rmmshim_last_error().decode(), flush=True)
while total.value != 1 << 30:
    assert not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(here.rmmshim_last_error().decode())
"""

# Has memory of two devices, and makes a call at each further line.
TWO_DEVICES = """
import ctypes, sys
cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert not cuda.cuInit(0)
for device in (0, 1):
    assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) and not cuda.cuCtxSetCurrent(context)
    assert not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1000))
for line in sys.stdin:
    if line == "call\\n":
        assert not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print("done", flush=True)
"""


class Steered:
    """A program that runs step after step, as the test says."""

    def __init__(self, test, settings, command=(STEPS,), **how):
        self.process = subprocess.Popen(list(command), env=support.environment(settings), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
        self.pid = self.process.pid
        test.addCleanup(self.process.communicate)
        test.addCleanup(self.process.kill)
        test.addCleanup(support.let_end, self.process)

    def step(self, *words):
        """What the program printed for that step."""
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != "done\n":
            if not line:
                raise AssertionError("the program ended in step %r after %r" % (words, lines))
            lines.append(line.rstrip("\n"))
        return lines

    def commands(self):
        """The path of a file that joins it takes commands."""
        fds = "/proc/%d/fd/" % self.pid
        return next(fds + fd for fd in os.listdir(fds) if os.readlink(fds + fd).startswith("/memfd:rmmshim-commands"))

    def command_step(self):
        """How far the command in that file is."""
        return self.command_field(STEP_AT)

    def command_device(self):
        return self.command_field(DEVICE_AT)

    def command_field(self, at):
        with open(self.commands(), "rb") as file:
            return struct.unpack_from("I", file.read(at + 4), at)[0]


def tool(*words):
    return run([TOOL] + [str(word) for word in words], preload=[], driver=False)


class Steer(support.Test):
    """The command waits for the process's next call: it runs beside the step that makes one."""

    def command_beside(self, steered, step, *words):
        command = subprocess.Popen([TOOL] + [str(word) for word in words + WAIT], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=support.environment(preload=[], driver=False))
        outputs = []
        while command.poll() is None:
            outputs += steered.step(*step)
        stdout, stderr = command.communicate()
        return support.Result(command.returncode, stdout.encode(), stderr.encode()), outputs

    def test_a_limit_holds_at_the_next_allocation(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB", "RMM_LIMIT": "1GiB"})
        self.assertEqual(steered.step("device", 64), [])
        for step in (("info",), ("wait",)):
            with self.subTest(step):
                answer, _ = self.command_beside(steered, step, "limit", steered.pid, "96MiB")
                self.assertEqual(answer.status, 0, answer)
                self.assertRegex(answer.stdout, r"^memory_steps \[%d\] device 0: limit 96.0 MiB \(was .*\); holds "
                                                r"[0-9.]+ MiB\n$" % steered.pid)
        self.assertEqual(steered.step("device", 64), ["device 64: 2"])
        self.assertEqual(steered.step("info")[0].split()[2], "96")

    def test_at_an_allocation_and_at_a_free(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        command = subprocess.Popen([TOOL, "limit", str(steered.pid), "200MiB", *map(str, WAIT)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=support.environment(preload=[], driver=False))
        while command.poll() is None:
            steered.step("device", 1)
            steered.step("free")
        self.assertEqual(command.wait(), 0, command.communicate())
        self.assertEqual(steered.step("device", 300), ["device 300: 2"])
        command.communicate()

    def test_none_takes_it_away(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB", "RMM_LIMIT": "64MiB"})
        self.assertEqual(steered.step("device", 100), ["device 100: 2"])
        answer, _ = self.command_beside(steered, ("info",), "limit", steered.pid, "none")
        self.assertIn("limit none (was 64.0 MiB)", answer.stdout)
        self.assertEqual(steered.step("device", 100), [])

    def test_below_what_is_live(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 256)
        answer, _ = self.command_beside(steered, ("info",), "limit", steered.pid, "100MiB")
        self.assertEqual(answer.status, 0, answer)
        self.assertRegex(answer.stdout, r"MiB above the limit: memory in use stays, and the process gets no more from the "
                                        r"driver until it holds less than the limit\n$")
        self.assertEqual(steered.step("device", 64), ["device 64: 2"])

    def test_a_share_of_the_device(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB", "HOSTCUDA_MEMORY": "1GiB"})
        steered.step("device", 1)
        answer, _ = self.command_beside(steered, ("info",), "limit", steered.pid, "50%")
        self.assertIn("limit 512 MiB", answer.stdout, answer)

    def test_a_share_that_rounds_to_nothing(self):
        """A limit of 0 would be none: it is the smallest one, as RMM_LIMIT has it."""
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB", "HOSTCUDA_MEMORY": "1GiB"})
        steered.step("device", 1)
        answer, _ = self.command_beside(steered, ("info",), "limit", steered.pid, "0.02%")
        self.assertIn("limit 1 B (was none);", answer.stdout, answer)
        self.assertEqual(steered.step("device", 64), ["device 64: 2"])

    def test_trim_gives_back(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        for _ in range(4):
            steered.step("device", 64)
        for _ in range(4):
            steered.step("free")
        steered.step("wait")
        answer, _ = self.command_beside(steered, ("info",), "trim", steered.pid)
        self.assertEqual(answer.status, 0, answer)
        self.assertRegex(answer.stdout, r"^memory_steps \[\d+\] device 0: gave back [1-9][0-9.]* [KMG]iB, holds ")
        used = int(steered.step("used")[0].split()[1])
        self.assertLessEqual(used, 32)

    def leave_to_the_wait(self, steered, step, *words):
        """A command while the GPU works, which may wait for the thread that carries the command out: what that keeps
        from going back goes when the program has waited.  True when it has by then."""
        for words_of_step in (("device", 64), ("free",), ("wait",), ("work",)):
            steered.step(*words_of_step)
        answer, _ = self.command_beside(steered, step, *words)
        self.assertEqual(answer.status, 0, answer)
        self.assertRegex(answer.stdout, "; some unused memory cannot be given back while the GPU works; it goes back when the program next waits for all work of the GPU\n$")
        steered.step("go")
        steered.step("wait")
        answer, _ = self.command_beside(steered, ("info",), "trim", steered.pid)
        return "gave back 0 B" in answer.stdout

    def test_no_command_waits_for_the_gpu(self):
        """Once asked for, the memory goes back in a bounded time, which a busy machine may exceed, but not each time."""
        for step in (("info",), ("stream",), ("event",)):
            with self.subTest(step):
                steered = Steered(self, {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "0"})
                until(lambda: self.leave_to_the_wait(steered, step, "trim", steered.pid), "memory left to a wait")
        steered = Steered(self, {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "0", "RMM_CONTROL": "thread"})
        until(lambda: self.leave_to_the_wait(steered, ("used",), "trim", steered.pid), "memory left to a wait")
        steered = Steered(self, {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "0"})
        self.leave_to_the_wait(steered, ("info",), "limit", steered.pid, "1MiB")

    def test_a_driver_that_does_not_tell_whether_it_works(self):
        steered = Steered(self, {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "0", "HOSTCUDA_DRIVER_VERSION": "12040"})
        steered.step("device", 64)
        steered.step("free")
        answer, _ = self.command_beside(steered, ("info",), "trim", steered.pid)
        self.assertRegex(answer.stdout, "gave back 0 B, holds .*; some unused memory was not given back: only driver 555 or "
                                        "newer gives it back without waiting for the GPU\n$")

    def test_nobody_calls(self):
        """Nothing is changed, and that is said."""
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        answer = tool("limit", steered.pid, "64MiB", "--wait", "0.05")
        self.assertEqual(answer.status, 3, answer)
        self.assertIn("did not answer in time, so nothing was changed on device 0: it answers at calls such as cudaMalloc; try a longer "
                      "--wait, or start", answer.stderr)
        steered.step("info")
        self.assertEqual(steered.step("device", 100), [])

    def test_a_thread_takes_it_between_calls(self):
        steered = Steered(self, {"RMM_CONTROL": "thread"})
        steered.step("device", 64)
        answer = tool("limit", steered.pid, "96MiB", *WAIT)
        self.assertEqual(answer.status, 0, answer)
        self.assertEqual(steered.step("device", 64), ["device 64: 2"])
        self.assertEqual(tool("trim", steered.pid, *WAIT).status, 0)
        steered.process.send_signal(signal.SIGSTOP)
        answer = tool("trim", steered.pid, "--wait", "0.05")
        steered.process.send_signal(signal.SIGCONT)
        self.assertEqual((answer.status, answer.stderr),
                         (3, "rmmshim: process %d did not answer in time, so nothing was changed on device 0; try a longer "
                             "--wait\n" % steered.pid))

    def test_commands_leave_the_library_its_lines(self):
        """It writes 40 lines unasked (base/log.h); who gives a command has asked."""
        steered = Steered(self, {"RMM_CONTROL": "thread"})
        steered.step("device", 1)
        for i in range(41):
            self.assertEqual(tool("limit", steered.pid, "%dMiB" % (64 + i), *WAIT).status, 0)
        _, said = steered.process.communicate()
        self.assertEqual(said.count("`rmmshim limit` has set"), 41, said)
        self.assertNotIn("no further messages", said)

    def test_a_thread_answers_where_nothing_is_served(self):
        """A setting that is bad on the device: the process goes on without the library."""
        steered = Steered(self, {"RMM_CONTROL": "thread", "RMM_ON_ERROR": "passthrough", "RMM_POOL_SIZE": "64GiB"})
        self.assertEqual(steered.step("device", 64), [])
        for words in (["trim", "--device", "0"], ["limit", "--device", "0", "1GiB"]):
            answer = tool(words[0], steered.pid, *words[1:], *WAIT)
            self.assertEqual((answer.status, answer.stderr),
                             (1, "rmmshim: process %d, device 0: rmmshim no longer serves this process: see the "
                                 "process's messages on stderr\n" % steered.pid))

    def test_a_command_keeps_the_program_s_last_error(self):
        process = subprocess.Popen([sys.executable, "-c", LAST_ERROR], text=True, stdout=subprocess.PIPE,
                                   env=support.environment({"RMM_POOL_SIZE": "16MiB"}))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        error = process.stdout.readline()
        self.assertEqual(error, "there is no device with this number\n")
        self.assertEqual(tool("limit", process.pid, "1GiB", *WAIT).status, 0)
        self.assertEqual(process.stdout.read(), error)

    def test_control_alone_counts_what_came_before(self):
        steered = Steered(self, {"RMM_CONTROL": "calls"})
        steered.step("device", 64)
        answer, _ = self.command_beside(steered, ("info",), "limit", steered.pid, "96MiB")
        self.assertEqual(answer.status, 0, answer)
        self.assertEqual(steered.step("device", 64), ["device 64: 2"])

    def test_what_is_no_process_of_ours(self):
        here = os.getpid()
        for words, status, said in (
                (["limit", here, "1GiB"], 1, "process %d is not served by rmmshim" % here),
                (["limit", 2 ** 22 + 1, "1GiB"], 1, "process %d does not exist" % (2 ** 22 + 1)),
                (["limit", "python3", "1GiB"], 2, "'python3' is not a process ID; `rmmshim ls` lists the processes"),
                (["limit", "-1", "1GiB"], 2, "unknown option '-1'"),
                (["limit", here], 2, "no limit was given: expected a size such as 6GiB or 50%, or the word none"),
                (["limit", here, ""], 2, "limit=^: a size is missing"),
                (["trim", here, "--keep", ""], 2, "--keep needs a value"),
                (["limit"], 2, "no process ID given; `rmmshim ls` lists the processes"),
                (["limit", here, "1Gib?"], 2, "limit=1^Gib?: unknown unit; the possible units are"),
                (["limit", here, "50%free"], 2, "limit=50%free: a percentage of the free memory cannot be used here; give bytes"),
                (["limit", here, "1GiB", "--device", "x"], 2, "--device x: this is not the number of a device"),
                (["limit", here, "1GiB", "--devise", "1"], 2, "unknown option '--devise'; did you mean '--device'?"),
                (["limit", here, "1GiB", "--wait", "never"], 2, "--wait never: expected a number of seconds"),
                (["trim", here, "1GiB"], 2, "unexpected argument '1GiB'"),
                (["trim", here, "--keep"], 2, "--keep needs a value"),
                (["trim", here, "--keep="], 2, "--keep needs a value"),
                (["trim", here, "--keep", "50%"], 2, "--keep 50%: expected a size such as 1GiB, not a percentage")):
            with self.subTest(words):
                answer = tool(*words)
                self.assertEqual(answer.status, status, answer)
                self.assertTrue(answer.stderr.startswith("rmmshim: " + said) or said in answer.stderr, answer)

    def test_a_device_that_is_not_there(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        answer, _ = self.command_beside(steered, ("info",), "limit", steered.pid, "1GiB", "--device", "7")
        self.assertEqual(answer.status, 1, answer)
        self.assertIn("device 7: there is no device with this number", answer.stderr)

    def test_a_process_that_ends_meanwhile(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        command = subprocess.Popen([TOOL, "limit", str(steered.pid), "1GiB", *map(str, WAIT)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=support.environment(preload=[], driver=False))
        steered.process.send_signal(signal.SIGKILL)
        stdout, stderr = command.communicate()
        self.assertEqual((command.returncode, stdout), (1, ""), stderr)
        self.assertRegex(stderr, "has ended|does not exist|is not served")

    def test_many_at_once_come_one_after_the_other(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        commands = [subprocess.Popen([TOOL, "limit", str(steered.pid), "%dMiB" % (100 + i), *map(str, WAIT)],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=support.environment(preload=[], driver=False)) for i in range(8)]
        while any(command.poll() is None for command in commands):
            steered.step("info")
        outputs = [command.communicate()[0] for command in commands]
        self.assertEqual([command.returncode for command in commands], [0] * 8)
        # Each saw what the one before it had set.
        after = sorted(line.split("limit ")[1].split(" (")[0] for line in outputs)
        before = sorted(line.split("(was ")[1].split(")")[0] for line in outputs)
        self.assertEqual(after, ["%d MiB" % (100 + i) for i in range(8)])
        self.assertEqual(len(set(before) - set(after)), 1, before)

    def asked(self, steered, *words, **how):
        """The command, once it has written itself into the process's file."""
        command = subprocess.Popen([TOOL] + [str(word) for word in words], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=support.environment(preload=[], driver=False), **how)
        self.addCleanup(command.communicate)
        self.addCleanup(command.kill)
        until(lambda: steered.command_step() == ASKED or command.poll() is not None, "the command")
        return command

    def test_an_interrupted_command_is_withdrawn(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number):
                command = self.asked(steered, "limit", steered.pid, "64MiB", *WAIT,  # nohup(1) ignores SIGHUP
                                     preexec_fn=lambda number=number: signal.signal(number, signal.SIG_DFL))
                command.send_signal(number)
                stdout, stderr = command.communicate(timeout=ENOUGH_SECONDS)
                self.assertEqual((command.returncode, stdout, stderr),
                                 (-number, "", "rmmshim: interrupted; nothing was changed on device 0 of process %d\n" %
                                  steered.pid))
        self.assertEqual(steered.step("device", 100), [])

    FIRST_HAS_IT = r"^python3.* \[%d\] device 0: limit 64.0 MiB \(was none\); .*\n$"

    def two_devices(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB", "HOSTCUDA_DEVICES": "2"}, (sys.executable, "-c", TWO_DEVICES))
        steered.step("begin")
        return steered

    def test_of_two_devices_one_has_the_limit(self):
        """The first device has answered; the line names the one that nothing was changed on."""
        steered = self.two_devices()
        command = self.asked(steered, "limit", steered.pid, "64MiB", *WAIT)
        self.assertEqual(steered.step("call"), [])
        until(lambda: steered.command_device() == 1 and steered.command_step() == ASKED, "the second device's command")
        command.send_signal(signal.SIGINT)
        stdout, stderr = command.communicate(timeout=ENOUGH_SECONDS)
        self.assertEqual((command.returncode, stderr),
                         (-signal.SIGINT, "rmmshim: interrupted; nothing was changed on device 1 of process %d\n" %
                          steered.pid))
        self.assertRegex(stdout, self.FIRST_HAS_IT % steered.pid)

    def test_of_two_devices_one_is_late(self):
        """Where the first device's call came too late, too, the command is made again with more time."""
        line = ("rmmshim: process %d did not answer in time, so nothing was changed on device %d: it answers at calls such as "
                "cudaMalloc; try a longer --wait, or start it with RMM_CONTROL=thread\n")
        steered, seconds = self.two_devices(), 1
        while True:
            command = self.asked(steered, "limit", steered.pid, "64MiB", "--wait", seconds)
            self.assertEqual(steered.step("call"), [])
            stdout, stderr = command.communicate(timeout=ENOUGH_SECONDS)
            self.assertEqual(command.returncode, 3)
            if stderr != line % (steered.pid, 0) or seconds > ENOUGH_SECONDS / 4:
                break
            seconds *= 2
        self.assertEqual(stderr, line % (steered.pid, 1))
        self.assertRegex(stdout, self.FIRST_HAS_IT % steered.pid)

    def test_a_signal_that_comes_with_the_answer(self):
        """The answer is printed, the next device is left alone, and the command ends by the signal."""
        steered = self.two_devices()
        for words in (("limit", steered.pid, "64MiB"), ("trim", steered.pid)):
            command = self.asked(steered, *words, *WAIT)
            command.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, command.pid, os.WSTOPPED | os.WNOWAIT)
            steered.step("call")
            command.send_signal(signal.SIGINT)
            command.send_signal(signal.SIGCONT)
            stdout, stderr = command.communicate(timeout=ENOUGH_SECONDS)
            self.assertEqual((command.returncode, stderr), (-signal.SIGINT, ""))
            self.assertRegex(stdout, r"^python3.* \[%d\] device 0: .*\n$" % steered.pid)

    def test_an_ignored_signal_does_not_interrupt(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        command = self.asked(steered, "limit", steered.pid, "64MiB", *WAIT,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        command.send_signal(signal.SIGHUP)
        steered.step("info")
        self.assertIn("limit 64.0 MiB", command.communicate(timeout=ENOUGH_SECONDS)[0])
        self.assertEqual(command.returncode, 0)

    def test_what_any_program_writes_there(self):
        """The file is the user's to write: nonsense is refused, and the process goes on."""
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        path = steered.commands()
        with open(path, "r+b", buffering=0) as file:
            whole = bytearray(file.read(4096))
            for seed in range(64):
                noise = bytearray((i * 2654435761 + seed * 40503 >> 7) & 255 for i in range(4096))
                struct.pack_into("I", noise, STEP_AT, ASKED)
                attention = struct.unpack_from("Q", noise, ATTENTION_AT)[0]
                struct.pack_into("Q", noise, ATTENTION_AT, attention | ATTENTION_ASKED)
                file.seek(0)
                file.write(noise)
                for _ in range(3):
                    self.assertEqual(steered.step("device", 1), [])
                    steered.step("free")
                self.assertEqual(steered.command_step(), ANSWERED)
            file.seek(0)
            file.write(whole)
        with self.assertRaises(OSError):
            os.truncate(path, 0)
        self.assertEqual(steered.step("device", 1), [])

    def test_others_may_not(self):
        """A process of another user is not ours to steer."""
        if os.getuid() != 0:
            self.skipTest("needs root, to become another user")
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("device", 1)
        answer = subprocess.run([TOOL, "limit", str(steered.pid), "1GiB"], user=65534, group=65534, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                                env=support.environment(preload=[], driver=False))
        self.assertEqual(answer.returncode, 1, answer)
        self.assertIn("process %d belongs to another user" % steered.pid, answer.stderr)


class Quiet(support.Test):
    def test_nothing_set_nothing_opened(self):
        """A process in which nothing is set has no page, no file for commands and no thread."""
        steered = Steered(self, {})
        steered.step("device", 1)
        fds = "/proc/%d/fd/" % steered.pid
        self.assertEqual([link for link in (os.readlink(fds + fd) for fd in os.listdir(fds)) if "memfd:rmmshim" in link], [])
        self.assertEqual(tool("limit", steered.pid, "1GiB").stderr,
                         "rmmshim: process %d is not served by rmmshim; `rmmshim doctor PID` says why\n" % steered.pid)

    def test_served_without_a_thread(self):
        plain, served = Steered(self, {}), Steered(self, {"RMM_POOL_SIZE": "16MiB", "RMM_CONTROL": "calls"})
        for steered in (plain, served):
            steered.step("device", 1)
        until(lambda: len(os.listdir("/proc/%d/task" % plain.pid)) == len(os.listdir("/proc/%d/task" % served.pid)),
              "the same number of threads")


if __name__ == "__main__":
    unittest.main()
