# SPDX-License-Identifier: Apache-2.0
"""`rmmshim doctor`: whether a machine, a program or a process is served, and why not.  TOOL is the command."""
import json
import os
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import unittest

import json_schema
import support
from test_steer import Steered

TOOL = os.environ["TOOL"]
STEPS = support.program("memory_steps")
ONE_ASKED = "RMM_POOL_SIZE"


def doctor(*words, settings=None, driver=False, **how):
    """Without the library in LD_PRELOAD, as a user starts it."""
    env = support.environment(settings, preload=[], driver=driver)
    env["RMMSHIM_LIBRARY"] = support.SHIM
    env.update({name: value for name, value in (settings or {}).items() if value is not None})
    done = subprocess.run([TOOL, "doctor"] + [str(word) for word in words], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=support.ENOUGH_SECONDS, check=False, **how)
    return support.Result(done.returncode, done.stdout, done.stderr)


class Doctor(support.Test):
    def expect(self, answer, status, verdict, *lines):
        """The exit code, the whole of the first line, and what each of the others has somewhere."""
        self.assertEqual(answer.status, status, answer)
        self.assertRegex(answer.stdout.splitlines()[0], "^%s$" % verdict, answer)
        for line in lines:
            self.assertRegex(answer.stdout, "(?m)^  %s" % line, answer)
        return answer.stdout

    def file(self, name, content, mode=0o755):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        os.chmod(self.path(name), mode)
        return self.path(name)


class Program(Doctor):
    def elf(self, name, bits=64, machine=None, kind=2, interpreter=None, flags=None, tail=b""):
        """The beginning of a program: enough to see for whom it is.  `flags` is DT_FLAGS_1."""
        with open(sys.executable, "rb") as own:
            header = bytearray(own.read(64))
        header[4] = {32: 1, 64: 2}[bits]
        struct.pack_into("<H", header, 16, kind)
        if machine:
            struct.pack_into("<H", header, 18, machine)
        segments, data = b"", b""
        count = (interpreter is not None) + (flags is not None)
        at = 64 + 56 * count
        if interpreter is not None:
            data = interpreter.encode() + b"\0"
            segments += struct.pack("<IIQQQQQQ", 3, 4, at, 0, 0, len(data), len(data), 1)  # PT_INTERP
        if flags is not None:
            dynamic = struct.pack("<QQQQ", 0x6ffffffb, flags, 0, 0)
            segments += struct.pack("<IIQQQQQQ", 2, 4, at + len(data), 0, 0, len(dynamic), len(dynamic), 8)
            data += dynamic
        struct.pack_into("<Q", header, 32, 64)
        struct.pack_into("<HH", header, 54, 56, count)
        return self.file(name, bytes(header) + segments + data + tail)

    def test_what_cannot_load_the_library(self):
        static, pie = self.elf("static"), self.elf("pie", kind=3, flags=0x08000000)
        for program, why, step in (
                (static, "is linked statically: no library can be loaded into it", "link the program dynamically"),
                (pie, "is linked statically: no library can be loaded into it", "link the program dynamically"),
                (self.elf("small", bits=32), "is a 32-bit program: the 64-bit librmmshim.so cannot be loaded into it",
                 "use a build of the program for this machine"),
                (self.elf("foreign", machine=0x1234), "is for another processor than librmmshim.so",
                 "use a build of the program for this machine"),
                (self.elf("musl", interpreter="/lib/ld-musl-x86_64.so.1"),
                 "is linked with musl: librmmshim.so needs glibc", "use a build of the program that is linked with glibc"),
                (self.file("script", "#!%s\n" % static),
                 "is run by %s, which is linked statically: no library can be loaded into it" % static,
                 "link the program dynamically")):
            with self.subTest(program):
                self.expect(doctor(program), 1, "GPU memory is not served: %s %s" % (program, why), "! program: .* -> " + step)
                refused = support.run([TOOL, "run", program], preload=[], driver=False)
                self.assertEqual(refused.status, 125)
                self.assertRegex(refused.stderr, "^rmmshim: %s -> %s.*\n$" % (re.escape("%s %s" % (program, why)), step))

    def test_a_program_of_a_static_libc(self):
        source = self.file("empty.c", "int main(void) { return 0; }")
        for kind in ("-static", "-static-pie"):
            with self.subTest(kind):
                program = self.path("linked" + kind)
                built = subprocess.run(["cc", kind, "-o", program, source], stderr=subprocess.PIPE, check=False)
                if built.returncode != 0:
                    self.skipTest("no static libc")
                self.expect(doctor(program), 1, "GPU memory is not served: %s is linked statically: .*" % program)

    @unittest.skipUnless(os.geteuid() == 0, "only root makes files of other users")
    def test_raised_rights(self):
        program = shutil.copy(STEPS, self.path("raised"))
        for owner, bit, whose in (((12345, 0), stat.S_ISUID, "user"), ((0, 12345), stat.S_ISGID, "group")):
            os.chown(program, *owner)
            os.chmod(program, 0o755 | bit)
            with self.subTest(whose):
                self.expect(doctor(program), 1, "GPU memory is not served: %s runs as another %s \\(set%sid\\), so the dynamic linker ignores "
                                                "LD_PRELOAD" % (program, whose, whose[0]), "! program: .* -> start a copy of the "
                                                                                 "program that has no setuid or setgid "
                                                                                 "bit and no capabilities")

    def test_its_way_to_cuda(self):
        for program, line in ((STEPS, r"- driver: .* needs libcuda\.so\.1$"),
                              (support.program("door_program_shared"), r"- runtime: .* needs libcudart\.so\.\d+$"),
                              (support.program("door_program_static"), "- runtime: .* contains a CUDA runtime"),
                              (self.elf("later", interpreter="/lib64/ld-linux-x86-64.so.2", tail=b"libcuda.so.1\0"),
                               r"- driver: .* contains the name libcuda\.so, so it may load the driver with dlopen, which rmmshim serves as well$"),
                              (sys.executable, "- driver: .* uses neither libcuda nor a CUDA runtime itself; .* -> ")):
            with self.subTest(program):
                self.expect(doctor(program), 0, "GPU memory would be served under `rmmshim run`", line,
                            "- settings: .* -> rmmshim run --pool-size 4GiB PROGRAM")
        stripped = self.path("stripped")
        subprocess.run(["strip", "-o", stripped, support.program("door_program_static")], check=True)
        self.expect(doctor(stripped), 0, "GPU memory would.*", "- runtime: .* contains a CUDA runtime")

    def test_scripts_and_names(self):
        script = self.file("script", "#!/usr/bin/env memory_steps\n")
        path = {"PATH": os.path.dirname(STEPS) + ":/usr/bin:/bin"}
        self.expect(doctor(script, settings=path), 0, "GPU memory would.*", "- program: %s is run by %s$" % (script, STEPS),
                    "- driver: %s needs libcuda" % STEPS)
        self.expect(doctor("memory_steps", settings=path), 0, "GPU memory would.*", "- driver: %s needs libcuda" % STEPS)
        self.expect(doctor("no-such-program"), 1, "GPU memory is not served: no-such-program: not found")
        shell = self.file("shell", "#!/bin/sh\nexec memory_steps\n")
        self.expect(doctor(shell), 0, "GPU memory would.*", "- program: %s is a shell script: the programs that it starts are not examined -> run `rmmshim doctor` with the program" % shell)
        self.expect(doctor(self.folder), 1, "GPU memory is not served: .*: Permission denied")

    def test_a_script_that_stands_for_an_interpreter(self):
        """As pyenv's does: which one it starts depends on its tool's files, and only the script itself knows."""
        shim = self.file("python3", "#!/usr/bin/env bash\nset -e\nprogram=${0##*/}\nexec %s \"$@\"\n" % sys.executable)
        path = {"PATH": self.folder + ":/usr/bin:/bin"}
        for words in (["python3"], ["python3", "train.py", "--epochs", "3"], ["python3", "-m", "module"]):
            self.expect(doctor(*words, settings=path), 0, "GPU memory would.*", "- program: %s starts %s$" % (shim, sys.executable),
                        "- driver: %s uses neither libcuda" % sys.executable)
        broken = self.file("python3.1", "#!/bin/sh\necho not here; exit 1\n")
        self.expect(doctor(broken), 0, "GPU memory would.*", "- program: %s is run by /bin/sh" % broken)

    def test_what_was_meant(self):
        self.file("train.py", "import torch\n", mode=0o644)
        self.file("app", "#!/bin/sh\n")
        for name, why, meant in (("train.py", "not found", "python3 train.py"), ("app", "not found", "./app"),
                                 ("./train.py", "Permission denied", "python3 ./train.py")):
            with self.subTest(name):
                self.expect(doctor(name, cwd=self.folder), 1, "GPU memory is not served: %s: %s; did you mean 'rmmshim doctor %s'\\?" % (name, why, meant))
                refused = support.run([TOOL, "run", name], preload=[], driver=False, cwd=self.folder)
                self.assertEqual(refused.stderr, "rmmshim: %s: %s; did you mean 'rmmshim run %s'?\n" % (name, why, meant))

    def test_settings(self):
        self.assertNotIn("settings", doctor(STEPS, settings={ONE_ASKED: "1GiB"}).stdout)
        self.expect(doctor(STEPS, settings={ONE_ASKED: "1Gib?"}), 1, r"GPU memory is not served: RMM_POOL_SIZE=1\^Gib\?: .*",
                    "! settings: .* -> correct the variable; `rmmshim check` shows what the variables do")

    def test_programs_that_rmm_only_leaves_out(self):
        python = os.path.basename(os.path.realpath(sys.executable))
        train = self.file("train.py", "#!/usr/bin/env -S %s -u\n" % sys.executable)
        nested, shell = self.file("nested", "#!%s -x \n" % train), self.file("shell", "#! /bin/sh\t-e \n")
        link = self.path("linked")
        os.symlink(STEPS, link)
        for only, program, names in (("worker", STEPS, "memory_steps"), ("memory", STEPS, "memory_steps"),
                                     ("worker,linked*", link, None), ("memory_steps", link, None),
                                     ("worker", link, "memory_steps, linked"),
                                     ("train.py", train, None), ("python*", train, None),
                                     ("worker", train, ".*%s, .*train.py" % python),
                                     ("nested", nested, None), ("train.py", nested, None),
                                     ("worker", nested, ".*%s, .*train.py, nested" % python), ("-x", nested, ".*, nested"),
                                     ("shell", shell, None), ("-e", shell, ".*sh, .*shell"),
                                     ("lib.sh", self.file("given", "#!/bin/sh lib.sh \t\n"), None), ("", STEPS, None),
                                     ("module", self.file("by", "#!/usr/bin/env -S python3 -m module\n"), None)):
            with self.subTest(only=only, program=program):
                answer = doctor(program, settings={"RMM_ONLY": only, ONE_ASKED: "1GiB"})
                if names is None:
                    self.expect(answer, 0, "GPU memory would be served under `rmmshim run`")
                    self.assertNotIn(" only: ", answer.stdout)
                else:
                    self.expect(answer, 1, "it is not known whether GPU memory is served: RMM_ONLY=%s does not match this program \\(%s\\), "
                                           "but may match its arguments, which doctor was not given" %
                                (re.escape(only), names), "! only: .* -> give the program's arguments, too")
        bad = {"RMM_ONLY": "worker", ONE_ASKED: "1Gib?"}
        self.assertNotIn("settings", self.expect(doctor(STEPS, settings=bad), 1, "it is not known whether GPU memory is served: RMM_ONLY=worker .*"))

    def test_a_program_may_be_given_an_argument_that_rmm_only_names(self):
        only = {"RMM_ONLY": "train.py", ONE_ASKED: "1GiB"}
        self.expect(doctor(sys.executable, settings=only), 1, "it is not known whether GPU memory is served: RMM_ONLY=train.py does not match this program .*, but "
                                                              "may match its arguments, which doctor was not given", "! only: ")
        self.assertEqual(json.loads(doctor("--json", sys.executable, settings=only).stdout)["verdict"], "unknown")
        self.expect(doctor(sys.executable, settings=dict(only, RMM_ONLY="python*")), 0, "GPU memory would.*")
        self.expect(doctor(sys.executable, "-u", "train.py", settings=only), 0, "GPU memory would.*")
        self.expect(doctor(sys.executable, "other.py", settings=only), 1, "GPU memory is not served: RMM_ONLY=train.py does not match this program "
                                                                          "\\(.*, other.py\\): .*")

    def test_broken_files(self):
        """Headers that point nowhere are read, and nothing crashes."""
        with open(STEPS, "rb") as file:
            whole = file.read(4096)
        for i in range(0, 1024, 4):
            with self.subTest(i):
                answer = doctor(self.file("broken", whole[:i] + b"\xff\xff\xff\x7f" + whole[i + 4:]))
                self.assertIn(answer.status, (0, 1), answer)
        self.assertEqual(doctor(self.file("short", whole[:100])).status, 0)

    def test_json(self):
        hostile = self.elf("\x1b[31m\"\\\xa0\u20ac\n")
        for words, settings, verdict, status in (
                ([STEPS], {}, "served", 0), ([hostile], {}, "not", 1), ([], {}, None, None),
                ([os.getpid()], {}, "not", 1), ([STEPS], {ONE_ASKED: "x"}, "not", 1)):
            with self.subTest(words):
                answer = doctor("--json", *words, settings=settings)
                self.file("answer", answer.stdout)
                document = json_schema.read(self.path("answer"), "doctor.json")
                self.assertIn(verdict, (None, document["verdict"]))
                self.assertIn(status, (None, answer.status))
                self.assertEqual(document["verdict"] == "served", answer.status == 0)
                self.assertEqual(bool(document["reason"]), answer.status != 0)
                self.assertNotIn("\x1b", answer.stdout)
        self.assertIn("?[31m\"\\\xa0\u20ac?", json.loads(doctor("--json", hostile).stdout)["reason"])
        self.assertEqual(len(doctor(hostile).stdout.splitlines()), 2)

    def test_usage(self):
        for words, said in ((["--jsn"], "unknown option '--jsn'; did you mean '--json'?"), (["1", "b"], "unexpected argument 'b'"),
                            (["-1"], "unknown option '-1'"), ([""], "the program's name is empty")):
            with self.subTest(words):
                answer = doctor(*words)
                self.assertEqual((answer.status, answer.stdout), (2, ""), answer)
                self.assertIn(said, answer.stderr)
        self.expect(doctor("--", "--json"), 1, "GPU memory is not served: --json: not found")
        for words in (["--json", STEPS, "-v"], [STEPS, "-v", "--json"]):
            self.assertEqual(json.loads(doctor(*words).stdout)["subject"], STEPS)


class Process(Doctor):
    def test_served(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB", "RMM_LIMIT": "1GiB"})
        steered.step("device", 64)
        self.expect(doctor(steered.pid), 0, "GPU memory is served", "- library: .*/librmmshim.so is loaded",
                    r"- driver: .*/libcuda\.so\S* is loaded", r"- stack: device 0, device memory: .*pool\(",
                    r"- memory: device 0: [1-9][0-9.]* MiB taken from the driver to serve the program, limit 1\.00 GiB$")

    def test_memory_that_no_stack_serves(self):
        counts = {"RMM_POOL_SIZE": "16MiB", "RMM_CONTROL": "calls"}
        steered = Steered(self, counts)
        steered.step("device", 1)
        steered.step("ordered", 64)
        self.expect(doctor(steered.pid), 1,
                    r"GPU memory is served only in part: device 0: [1-9][0-9.]* MiB not served by rmmshim: it lies in stream-ordered pools .*",
                    "! memory: .* -> set RMM_HOOKS=all")
        steered = Steered(self, dict(counts, RMM_HOOKS="all"))
        steered.step("ordered", 64)
        self.expect(doctor(steered.pid), 0, "GPU memory is served")
        steered = Steered(self, counts)
        steered.step("managed", 64)
        self.expect(doctor(steered.pid), 1, "GPU memory is served only in part: device 0: 64.0 MiB .*: it was allocated by the driver's cuMemAllocManaged",
                    "! memory: .* -> set RMM_MANAGED_POOL_SIZE or RMM_MANAGED_RESOURCE")
        steered = Steered(self, {"RMM_LIMIT": "1GiB", "RMM_HOOKS": "pinned"})
        steered.step("device", 64)
        self.expect(doctor(steered.pid), 1, "GPU memory is served only in part: device 0: .*: it was allocated by the driver's cuMemAlloc",
                    "! memory: .* -> set RMM_POOL_SIZE or RMM_RESOURCE; if RMM_HOOKS is set, add `device` to it")

    def test_pools_that_are_not_counted(self):
        steered = Steered(self, {"RMM_POOL_SIZE": "16MiB"})
        steered.step("ordered", 64)
        self.expect(doctor(steered.pid), 0, "GPU memory is served", "- memory: stream-ordered pools .* are not counted .* -> set RMM_STAT")
        with self.subTest("a variable that only the process has"):
            steered = Steered(self, {ONE_ASKED: "16MiB", "RMM_TRACKING": "text:%q{ONLY_THERE}", "ONLY_THERE": self.path("t")})
            steered.step("device", 1)
            self.expect(doctor(steered.pid), 0, "GPU memory is served", "- memory: stream-ordered pools .* are not counted")

    def test_no_library(self):
        sleeper = self.start([sys.executable, "-c", WAITS], preload=[])
        self.expect(doctor(sleeper), 1, "GPU memory is not served: the process was started without the library: its LD_PRELOAD does not "
                                        "name librmmshim.so", "! preload: .* -> start the program with `rmmshim run` and an option "
                                                   "such as --pool-size")
        missing = self.path("librmmshim.so")
        sleeper = self.start([sys.executable, "-c", WAITS], preload=[missing])
        self.expect(doctor(sleeper), 1, "GPU memory is not served: LD_PRELOAD names %s: No such file or directory" % missing,
                    "! preload: .* -> correct LD_PRELOAD")

    def test_replaced_library(self):
        library = shutil.copy(support.SHIM, self.path("librmmshim.so"))
        sleeper = self.start([sys.executable, "-c", WAITS], preload=[library])
        os.remove(library)
        self.expect(doctor(sleeper), 1, "GPU memory is not served: librmmshim.so is loaded, but .*",
                    r"- library: %s \(deleted\) is loaded, but its file was replaced or removed -> start the program again to "
                    "use the new file$" % library)

    def start(self, command, settings=None, told=b"", **how):
        """A process that has printed a line, and waits; it was told something on stdin."""
        process = subprocess.Popen(command, env=support.environment(settings, **how), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdin.write(told)
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return process.pid

    def test_loaded_and_not_serving(self):
        with_folder = {ONE_ASKED: "1GiB", "RMM_STATISTICS": "json:%q{ONLY_THERE}/%p", "ONLY_THERE": self.folder}
        for settings, verdict, line in (
                (with_folder, "GPU memory is not served: librmmshim.so is loaded, but libcuda is not.*", "! driver: "),
                ({}, "GPU memory is not served: librmmshim.so is loaded, but no RMM_ variable asks for a pool, a limit or a report: .*",
                 "! settings: .* -> start the program with `rmmshim run` and an option such as --pool-size"),
                ({ONE_ASKED: "1GiB"}, "GPU memory is not served: librmmshim.so is loaded, but libcuda is not: .*",
                 "! driver: .* -> run `rmmshim doctor` again when the process uses the GPU"),
                ({ONE_ASKED: "1Gib?"}, r"GPU memory is not served: RMM_POOL_SIZE=1\^Gib\?: .*", "! settings: ")):
            with self.subTest(settings):
                self.expect(doctor(self.start([sys.executable, "-c", WAITS], settings)), 1, verdict, line)
        pid = self.start([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')\n" + WAITS],
                         {ONE_ASKED: "1GiB"})
        self.expect(doctor(pid), 1, "GPU memory is not served: libcuda is loaded, but librmmshim.so has seen no allocation yet .it never sees .*",
                    "! driver: .*RTLD_DEEPBIND.* -> run `rmmshim doctor` again when the process has allocated")

    def test_what_rmm_only_leaves_out(self):
        python = os.path.basename(os.path.realpath(sys.executable))
        train = self.file("train.py", WAITS)
        settings, bad = {ONE_ASKED: "1GiB", "RMM_ONLY": "worker,train"}, {ONE_ASKED: "1Gib?", "RMM_ONLY": "worker,train"}
        for command, told, names in (([sys.executable, "-c", WAITS], b"", python + ".*"), ([sys.executable, "-u", train], b"",
                                                                                     python + ", .*train.py"),
                                     (["sh"], b"echo ready\nread line\n", ".*sh")):
            for values in (settings, bad):
                with self.subTest(names, bad=values is bad):
                    said = self.expect(doctor(self.start(command, values, told)), 1,
                                       "GPU memory is not served: RMM_ONLY=worker,train does not match this program \\(%s\\): the "
                                       "library does nothing in it" % names, "! only: .* -> add its name to RMM_ONLY")
                    self.assertNotIn("settings", said)
        pid = self.start([sys.executable, train], {ONE_ASKED: "1GiB", "RMM_ONLY": "train*"})
        self.expect(doctor(pid), 1, "GPU memory is not served: librmmshim.so is loaded, but libcuda is not: .*")
        steered = Steered(self, {ONE_ASKED: "16MiB", "RMM_ONLY": "memory_steps"})
        steered.step("device", 1)
        self.expect(doctor(steered.pid), 0, "GPU memory is served")

    def test_a_forked_child(self):
        process = subprocess.Popen([sys.executable, "-c", FORKS], env=support.environment({ONE_ASKED: "16MiB"}),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        child = int(process.stdout.readline())
        self.expect(doctor(process.pid), 0, "GPU memory is served")
        self.expect(doctor(child), 1, "GPU memory is not served: the process was forked by process %d: CUDA does not work in a forked child .*" % process.pid,
                    "! process: .* -> .*spawn")

    def test_no_room_for_the_page(self):
        steered = Steered(self, {ONE_ASKED: "16MiB"})
        steered.step("used")
        resource.prlimit(steered.pid, resource.RLIMIT_FSIZE, (31 << 20, 31 << 20))
        steered.step("device", 1)
        self.expect(doctor(steered.pid), 1, "it is not known whether GPU memory is served: the process may not write files of 32 MiB \\(ulimit -f\\), "
                                            "so it cannot publish its counters, and .*", "! counters: .* -> set `ulimit -f unlimited`")
        self.assertEqual(json.loads(doctor("--json", steered.pid).stdout)["verdict"], "unknown")

    def test_the_order_of_preloaded_libraries(self):
        other = support.program("libbeside_malloc.so")
        pid = self.start([sys.executable, "-c", WAITS], {ONE_ASKED: "1GiB"}, preload=[other, support.SHIM])
        self.expect(doctor(pid), 1, "GPU memory is not served: .*", "- preload: %s is loaded before librmmshim.so" % other)
        pid = self.start([sys.executable, "-c", WAITS], {ONE_ASKED: "1GiB"}, preload=[support.SHIM, other])
        self.assertNotIn("preload:", doctor(pid).stdout)

    def test_processes_that_are_not_there(self):
        gone = 2 ** 22 + 1
        self.expect(doctor(gone), 1, "GPU memory is not served: process %d does not exist" % gone)
        steered = Steered(self, {ONE_ASKED: "16MiB"})
        steered.step("device", 1)
        steered.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, steered.pid, os.WEXITED | os.WNOWAIT)
        self.expect(doctor(steered.pid), 1, "GPU memory is not served: process %d does not exist" % steered.pid)

    @unittest.skipUnless(os.geteuid() == 0, "only root becomes another user")
    def test_another_user(self):
        steered = Steered(self, {ONE_ASKED: "16MiB"})
        steered.step("device", 1)
        if subprocess.run([TOOL, "--version"], user=65534, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("the command is not for others")
        self.expect(doctor(steered.pid, user=65534, group=65534, extra_groups=[]), 1,
                    "it is not known whether GPU memory is served: process %d belongs to another user" % steered.pid,
                    "! process: .* -> run this command as that user, or as root")


WAITS = "print('ready', flush=True); input()"
FORKS = """
import ctypes, os
cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
               cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 20))):
    assert result == 0, result
if os.fork() == 0:
    print(os.getpid(), flush=True)
try:
    input()
except EOFError:
    os._exit(0)
"""


class Machine(Doctor):
    def test_what_is_there(self):
        self.expect(doctor(driver=True, settings={ONE_ASKED: "1GiB"}), 0, "rmmshim can be used on this machine: .*",
                    "- library: %s can be loaded with this machine's glibc [0-9.]+$" % support.SHIM,
                    r"- driver: \S*/libcuda\.so\S*, for CUDA [0-9]+\.[0-9]+$",
                    "- settings: the RMM_ variables of the environment are valid$")

    def test_no_driver(self):
        self.file("libcuda.so.1", "no library")
        self.expect(doctor(settings={"LD_LIBRARY_PATH": self.folder}), 1, r"GPU memory is not served: libcuda\.so\.1 cannot be used: .*",
                    "! driver: .* -> install NVIDIA's driver")

    def test_a_driver_that_crashes(self):
        source = self.file("crash.c", "#include <signal.h>\n"
                                      "__attribute__((constructor)) static void crash(void) { raise(SIGSEGV); }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.path("libcuda.so.1"), source], check=True)
        self.expect(doctor(settings={"LD_LIBRARY_PATH": self.folder}), 1,
                    r"GPU memory is not served: libcuda\.so\.1 cannot be used: loading libcuda\.so\.1 ends the process: "
                    "Segmentation fault")

    def test_no_library(self):
        gone = self.path("gone.so")
        self.expect(doctor(settings={"RMMSHIM_LIBRARY": gone}, driver=True), 1,
                    "GPU memory is not served: RMMSHIM_LIBRARY=%s: No such file or directory" % gone)
        text = self.file("text.so", "text")
        self.expect(doctor(settings={"RMMSHIM_LIBRARY": text}, driver=True), 1, "GPU memory is not served: librmmshim.so cannot be loaded: %s: .*" % text,
                    "! library: .* -> build the library on this machine")

    def test_limits(self):
        def files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        def descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        # The library serves without a page of counters too.
        self.expect(doctor(driver=True, preexec_fn=files), 0, "rmmshim can be used on this machine: .*",
                    "- counters: memory is served, but .* the limit on file sizes is lower -> set `ulimit -f unlimited`")
        files_low = "! files: the limit on open files is 32, .* may be too low: .* -> set `ulimit -n 1024`"
        self.expect(doctor(driver=True, preexec_fn=descriptors), 1,
                    "it is not known whether GPU memory is served: the limit on open files .*", files_low)
        self.expect(doctor(driver=True, preexec_fn=descriptors, settings={"RMM_POOL_SISE": "1GiB"}), 1,
                    "GPU memory is not served: RMM_POOL_SISE.*", files_low)

    def test_settings(self):
        self.expect(doctor(driver=True, settings={"RMM_POOL_SISE": "1GiB"}), 1, "GPU memory is not served: RMM_POOL_SISE.*",
                    "! settings: ")

    def test_rmm_only(self):
        self.expect(doctor(driver=True, settings={"RMM_ONLY": "train*", ONE_ASKED: "1GiB"}), 0, "rmmshim can be used .*",
                    r"- only: RMM_ONLY=train\*: .* -> `rmmshim doctor PROGRAM` tells whether RMM_ONLY matches PROGRAM")
        self.assertNotIn(" only: ", doctor(driver=True, settings={"RMM_ONLY": ""}).stdout)

    MPS_RUNS = r"- mps: MPS is running \(process {}\)".format

    def mps_daemons(self):
        """Those of the machine, or of this test in another checkout."""
        found = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/comm" % pid, encoding="utf-8", errors="replace") as file:
                    if file.read().startswith("nvidia-cuda-mps"):
                        found.add(int(pid))
            except OSError:
                pass  # it has ended meanwhile
        return found

    def test_mps(self):
        before = self.mps_daemons()
        answer = doctor(driver=True, settings={"CUDA_MPS_PIPE_DIRECTORY": self.folder})
        after = self.mps_daemons()
        others = before | after
        none = "- mps: CUDA_MPS_PIPE_DIRECTORY=%s, but no MPS daemon is seen here" % self.folder
        self.expect(answer, 0, "rmmshim can be used .*", "(%s)" % "|".join([none] * (not before & after) + list(map(self.MPS_RUNS, others))))
        daemon = shutil.copy(shutil.which("sleep"), self.path("nvidia-cuda-mps-control"))
        process = subprocess.Popen([daemon, "infinity"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        # Popen returns once exec has closed its pipe, which it does just before it gives the process its name.
        support.until(lambda: process.pid in self.mps_daemons(), "the daemon's name")
        others |= self.mps_daemons()
        answer = doctor(driver=True)
        self.expect(answer, 0, "rmmshim can be used .*", "(%s)" % "|".join(map(self.MPS_RUNS, others | self.mps_daemons())))


if __name__ == "__main__":
    support.main()
