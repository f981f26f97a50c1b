# SPDX-License-Identifier: Apache-2.0
"""What `rmmshim run` says when its program has ended, and the checks that decide its exit status.  TOOL is the
command."""
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import unittest

import json_schema
import run_socket
import support
from support import ENOUGH_SECONDS, run, until

TOOL = os.environ["TOOL"]
STEPS = support.program("memory_steps")
MIB = 1 << 20
NO_PRELOAD = ("NOT served or limited: %s (pid N): it runs without librmmshim.so -> pass LD_PRELOAD and the RMM_ variables on "
              "to it")
MISSED_WHY = "(usual causes: another network namespace, another version of rmmshim, or a low `ulimit -n`)"


def child_of(process):
    with open("/proc/%d/task/%d/children" % (process, process), encoding="ascii") as file:
        return int(file.read().split()[0])


class Run(support.Test):
    def under(self, *words, settings=None, **how):
        return run([TOOL, "run"] + [str(word) for word in words], settings, preload=[], **how)

    def said(self, result):
        """The command's lines, numbers of processes left out."""
        return [re.sub(r"\b(pid|doctor) \d+", r"\1 N", line[len("rmmshim: "):]) for line in result.stderr.splitlines()
                if line.startswith("rmmshim: ")]

    def report(self, *words, **how):
        path = self.path("end.json")
        result = self.under("--json", path, *words, **how)
        return result, json_schema.read(path, "run.json")

    def failing(self, functions):
        """A library to preload, whose functions fail in the command."""
        source, failing = self.path("failing.c"), self.path("failing.so")
        with open(source, "w", encoding="utf-8") as file:
            file.write("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <stdlib.h>\n#include <string.h>\n"
                       "static int is_command(void) { return strcmp(program_invocation_short_name, \"rmmshim\") == 0; }\n" +
                       functions)
        if subprocess.run(["cc", "-shared", "-fPIC", "-o", failing, source], capture_output=True, check=False).returncode:
            self.skipTest("no compiler here")
        return failing

    def wait_for_look(self, process):
        """Until it has looked at all processes after now: nothing else has it read much, and it answers between looks."""
        variable = run_socket.variable_of(child_of(process))
        much = len(list(filter(str.isdigit, os.listdir("/proc")))) // 2

        def reads():
            with open("/proc/%d/io" % process, encoding="ascii") as file:
                return int(re.search(r"\nsyscr: (\d+)", file.read()).group(1))

        run_socket.ask(variable, run_socket.NONSENSE)
        begin = reads()
        until(lambda: reads() - begin > much, "a look")
        run_socket.ask(variable, run_socket.NONSENSE)


class NotSeen(Run):
    """A check is passed only by what was seen."""

    def test_nothing_was_observed(self):
        for check in (["--fail-on-leak"], ["--fail-over", "1GiB"]):
            with self.subTest(check):
                result = self.under("--limit", "1GiB", *check, "true")
                self.assertEqual(result.status, 1, result)
                self.assertIn(check[0] + " cannot be checked, which counts as failed: no process used CUDA through rmmshim; `rmmshim doctor PROGRAM` may say why", self.said(result))

    def test_a_check_alone_observes(self):
        """Without a setting that gives a stack or a limit."""
        result = self.under("--fail-on-leak", STEPS, "device", 1)
        self.assertEqual(result.status, 1, result)
        self.assertIn("--fail-on-leak: memory_steps (pid N) ended with 1 block on GPU 0 not freed: 1.00 MiB",
                      self.said(result))
        self.assertEqual(self.under("--fail-on-leak", STEPS, "device", 1, "free").status, 0)
        result, end = self.report(STEPS, "device", 1)
        self.assertEqual((result.status, len(end["processes"]), end["incomplete"]), (0, 1, False))

    def test_processes_of_a_run_below(self):
        """The pages come to each `run` above, and the innermost one writes reports."""
        below = (TOOL, "run", "--quiet", "--limit", "1GiB", "sh", "-c", '"$0" device 30; "$0" device 20 && kill -9 $$', STEPS)
        result, end = self.report(TOOL, "run", "--quiet", *below)
        self.assertEqual((len(end["processes"]), end["incomplete"]), (2, False), result)
        self.assertEqual(sorted(device["unfreed_bytes"] >> 20 for process in end["processes"]
                                for device in process["devices"]), [20, 30])
        self.assertEqual({process["program"] for process in end["processes"]}, {"memory_steps"})
        result = self.under("--fail-over", "25MiB", *below[:5], STEPS, "device", 30)
        self.assertEqual(result.status, 1, result)
        self.assertEqual(self.under("--fail-over", "35MiB", *below[:5], STEPS, "device", 30).status, 0)
        # A page that the inner one has not, the outer one has not either.
        lost = 'RMMSHIM_JOB=$(echo $RMMSHIM_JOB | sed "s/^................................/$(printf %032d 0)/") "$0" device 1'
        result = self.under("--fail-over", "1GiB", *below[:5], "sh", "-c", '"$0" device 1; ' + lost, STEPS)
        self.assertIn("--fail-over cannot be checked, which counts as failed: the counters of 1 process that rmmshim served did not "
                      "reach this command " + MISSED_WHY, self.said(result), result)

    def test_a_process_that_is_not_reached(self):
        """Its page came to no one."""
        lost = 'RMMSHIM_JOB=$(echo $RMMSHIM_JOB | sed "s/^................................/$(printf %032d 0)/") "$0" device 1'
        result, end = self.report("--limit", "1GiB", "--fail-over", "1GiB", "sh", "-c", '"$0" device 1; ' + lost, STEPS)
        self.assertEqual((result.status, len(end["processes"]), end["incomplete"]), (1, 1, True), result)
        self.assertIn("--fail-over cannot be checked, which counts as failed: the counters of 1 process that rmmshim served did not "
                      "reach this command " + MISSED_WHY, self.said(result))


    def test_pages_for_which_there_is_no_room(self):
        """More processes begin at once than `run` may have descriptors: each is held, or is said to be missed, also where
        the program ends before `run` has looked."""
        code = ("import os, signal, sys, time; sys.path.insert(0, %r); import run_socket\n"
                "own, command, sent = os.getpid(), os.getppid(), os.pipe()\n"
                "os.kill(command, signal.SIGSTOP)\n"
                "for _ in range(30):\n"
                "    if os.fork() == 0:\n"
                "        connection = run_socket.send(os.environ['RMMSHIM_JOB'], run_socket.HOLD_PAGE, [0])\n"
                "        os.write(sent[1], b'.')\n"
                "        connection.recv(4)\n"
                "        os._exit(0)\n"
                "for _ in range(30):\n"
                "    os.read(sent[0], 1)\n"
                "if sys.argv[1] == 'waits':\n"
                "    os.kill(command, signal.SIGCONT)\n"
                "    for _ in range(30):\n"
                "        os.wait()\n"
                "elif os.fork() == 0:\n"
                "    while os.getppid() == own:\n"
                "        time.sleep(0.01)\n"
                "    os.kill(command, signal.SIGCONT)" % os.path.dirname(os.path.abspath(run_socket.__file__)))
        for how in "waits", "ends":
            with self.subTest(how):
                result = run(["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", TOOL, "run", "--limit", "1GiB", sys.executable, "-c",
                              code, how], preload=[])
                self.assertEqual(self.said(result), ["NOT counted: 30 processes that rmmshim served, but whose counters did "
                                                     "not reach this command " + MISSED_WHY], result)


    @unittest.skipIf(support.PRELOAD_FIRST, "sanitizers stand in for this function of libc's themselves")
    def test_a_request_for_which_there_is_no_memory(self):
        """It waits until there is some."""
        failing = self.failing(
            "#include <sys/socket.h>\n"
            "extern void *__libc_calloc(size_t, size_t);\n"
            "static int fails;\n"
            "int listen(int socket, int most)\n"
            "{\n"
            "    int (*next)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, \"listen\");\n"
            "    fails = is_command();\n"
            "    return next(socket, most);\n"
            "}\n"
            "void *calloc(size_t count, size_t bytes)\n"
            "{\n"
            "    if (!fails || count != 1 || bytes != 24)\n"
            "        return __libc_calloc(count, bytes);\n"
            "    fails = 0;\n"
            "    errno = ENOMEM;\n"
            "    return 0;\n"
            "}\n")
        code = ("import os, sys; sys.path.insert(0, %r); import run_socket\n"
                "print(run_socket.ask(os.environ['RMMSHIM_JOB'], run_socket.GIVE_LIMIT))" %
                os.path.dirname(os.path.abspath(run_socket.__file__)))
        result = run([TOOL, "run", "--limit-job", "1GiB", sys.executable, "-c", code], preload=[failing])
        self.assertRegex(result.stdout, r"^\(True, ", result)

    def test_processes_that_cannot_be_listed(self):
        """Those that use CUDA without the library would be among them."""
        body = ("(const char *path, int flags, int mode)\n"
                "{\n"
                "    int (*next)(const char *, int, int) = (int (*)(const char *, int, int))dlsym(RTLD_NEXT, \"%s\");\n"
                "    if (!is_command() || strcmp(path, \"/proc\") != 0)\n"
                "        return next(path, flags, mode);\n"
                "    errno = EMFILE;\n"
                "    return -1;\n"
                "}\n")
        failing = self.failing("int open" + body % "open" + "int open64" + body % "open64")
        result = run([TOOL, "run", "--limit", "1GiB", "true"], preload=[failing])
        self.assertEqual(self.said(result), ["NOT counted: some processes, because `rmmshim run` ran out of host memory or file "
                                             "descriptors"])


class OtherVersions(Run):
    """A library and a command of two versions do not share counters, and say so."""

    def test_a_library_of_another_version(self):
        """It is refused before the program starts: with a limit of the job, it could not keep to it."""
        with open(support.SHIM, "rb") as file:
            library = file.read()
        mark = re.search(rb"@\(#\)rmmshim ([0-9.]+)", library)
        path = self.path("librmmshim.so")
        for other, said in ((b"@(#)rmmshim 9" + mark.group(0)[13:], "has version 9" + mark.group(1)[1:].decode()),
                            (b"@(#)nothing!" + mark.group(0)[12:], "has another version")):
            with open(path, "wb") as file:
                file.write(library.replace(mark.group(0), other))
            result = self.under("--limit", "1GiB", "sh", "-c", "echo started", more={"RMMSHIM_LIBRARY": path})
            self.assertEqual((result.status, result.stdout), (125, ""), result)
            self.assertRegex(result.stderr, r"\Armmshim: %s %s.*, but this command has version %s: use both from one installation\n\Z" % (
                re.escape(path), re.escape(said), re.escape(mark.group(1).decode())))

    def test_a_process_with_a_library_of_another_version(self):
        """One below `run` that brings its own.  It may ask for a limit, too, and counts once, in each `run` above."""
        code = ("import os, sys; sys.path.insert(0, %r); import run_socket\n"
                "for wish in run_socket.HOLD_PAGE, run_socket.GIVE_LIMIT:\n"
                "    run_socket.ask(os.environ['RMMSHIM_JOB'], wish, layout=b'rmmshim job 999')" %
                os.path.dirname(os.path.abspath(run_socket.__file__)))
        for above in (), (TOOL, "run", "--quiet", "--limit", "1GiB"):
            with self.subTest(above=above):
                result, end = self.report("--limit", "1GiB", *above, sys.executable, "-c", code)
                self.assertEqual((result.status, end["processes"], end["incomplete"]), (0, [], True), result)
                self.assertEqual(self.said(result), ["NOT counted: 1 process that rmmshim served, but whose counters did "
                                                     "not reach this command " + MISSED_WHY])


class Lines(Run):
    NO_DRIVER = "true did not use CUDA: libcuda.so.1, NVIDIA's driver, cannot be loaded here"

    def test_what_a_process_took(self):
        result = self.under("--limit", "200MiB", STEPS, "device", 100, "free", "device", 300, "device", 50)
        self.assertEqual(self.said(result), [
            "memory_steps (pid N), GPU 0: used up to 100 MiB, held up to 100 MiB of its 200 MiB limit; 1 out-of-memory error"])

    def test_without_a_limit(self):
        result = self.under("--pool-size", "64MiB", STEPS, "device", 1)
        self.assertIn("GPU 0: used up to 1.00 MiB, held up to 64.0 MiB; no out-of-memory errors", self.said(result)[0])

    def test_however_it_ends(self):
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
            with self.subTest(number):
                result = self.under("--limit", "1GiB", "sh", "-c", '"$0" device 100; kill -%d $$' % number, STEPS)
                self.assertEqual(result.status, -number, result)
                self.assertIn("used up to 100 MiB, held up to 100 MiB of its 1.00 GiB limit; no", self.said(result)[0])

    def test_the_eight_highest_peaks(self):
        result = self.under("--limit", "1GiB", "sh", "-c",
                            'for i in 6 14 2 18 4 16 20 8 10 12; do "$0" device $i; done', STEPS)
        lines = self.said(result)
        self.assertEqual([re.search(r"used up to (\d+)", line).group(1) for line in lines[:8]],
                         [str(mib) for mib in range(20, 4, -2)])
        self.assertEqual(lines[8:], ["and 2 more processes"])

    def test_quiet(self):
        result = self.under("--quiet", "--limit", "1GiB", STEPS, "device", 100)
        self.assertEqual((result.status, result.stderr), (0, ""))

    def test_why_none_used_it(self):
        self.assertEqual(self.said(self.under("--limit", "1GiB", "true")),
                         ["true did not use CUDA, so rmmshim had nothing to do"])
        self.assertEqual(self.said(self.under(STEPS, "device", 1)),
                         ["nothing was served, since no setting asks for a pool, a limit or a report (`rmmshim run --help` lists "
                          "the settings)"])
        if not support.has_driver():
            self.assertEqual(self.said(self.under("--limit", "1GiB", "true", settings={"LD_LIBRARY_PATH": self.folder})),
                             [self.NO_DRIVER])
        for only, shown in (("memory_stpes", "memory_stpes"), ("tr\x1bain", "tr?ain"), ("x" * 100, "x" * 63 + "...")):
            self.assertEqual(self.said(self.under("--limit", "1GiB", "--only", only, STEPS, "device", 1)),
                             ["nothing was served: RMM_ONLY=%s names no program that used CUDA" % shown])

    def test_a_driver_that_ends_who_loads_it(self):
        """`run` does not load it into itself; and an alarm ends one that hangs, though `run` blocks signals."""
        for number in (signal.SIGSEGV, signal.SIGALRM):
            with self.subTest(number):
                source = self.path("driver.c")
                with open(source, "w", encoding="utf-8") as file:
                    file.write("#include <signal.h>\n"
                               "__attribute__((constructor)) static void begin(void) { raise(%d); }\n" % number)
                if subprocess.run(["cc", "-shared", "-fPIC", "-o", self.path("libcuda.so.1"), source],
                                  capture_output=True, check=False).returncode:
                    self.skipTest("no compiler here")
                result = self.under("--limit", "1GiB", "true", settings={"LD_LIBRARY_PATH": self.folder})
                self.assertEqual((result.status, self.said(result)),
                                 (0, [self.NO_DRIVER]))

    def test_a_static_pie(self):
        source, program = self.path("static.c"), self.path("static")
        with open(source, "w", encoding="utf-8") as file:
            file.write("int main(void) { return 0; }\n")
        if subprocess.run(["cc", "-static-pie", "-o", program, source], capture_output=True, check=False).returncode:
            self.skipTest("no static-pie here")
        result = self.under("--limit", "1GiB", program)
        self.assertEqual(result.status, 125, result)
        self.assertIn("is linked statically: no library can be loaded into it", result.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root makes a /dev of its own, as here for a device that is in use")
    def test_the_device_in_use_without_an_allocation(self):
        """A CUDA context maps the file of managed memory.  NVML only opens it, as monitors such as Dask's do."""
        device = ("mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && "
                  "dd if=/proc/self/exe of=/dev/nvidia-uvm bs=4096 count=1 && exec \"$@\"")
        if run(["unshare", "-m", "sh", "-c", device, "sh", "true"], preload=[]).status:
            self.skipTest("no namespace for mounts here")
        allocates = ("print('ready', flush=True); sys.stdin.readline(); import ctypes; cuda, at = ctypes.CDLL(None), ctypes.c_void_p(); cuda.cuInit(0); "
                     "cuda.cuDevicePrimaryCtxRetain(ctypes.byref(at), 0); cuda.cuCtxSetCurrent(at); "
                     "assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1)) == 0; ")
        opens = "import sys; file = open('/dev/nvidia-uvm', 'r+b'); print('ready', flush=True); sys.stdin.read()"
        maps = opens.replace("print", "import mmap; there = mmap.mmap(file.fileno(), 4096); print")
        name, preload = os.path.basename(sys.executable), "LD_PRELOAD=%s:libcuda.so.1" % support.SHIM
        for script, words, said in (
                (maps, ["LD_PRELOAD=libcuda.so.1:" + support.SHIM],
                 "NOT served or limited: %s (pid N): its LD_PRELOAD lists the driver (libcuda) before rmmshim -> name librmmshim.so "
                 "first in LD_PRELOAD" % name),
                (maps, [preload],
                 "NOT served or limited: %s (pid N): none of its allocations reached rmmshim -> when it runs again, `rmmshim doctor PID` "
                 "says why" %
                 name),
                (maps.replace("print", allocates + "print"), ["sh", "-c", 'env -u RMMSHIM_JOB "$@"; true', "sh", preload],
                 "NOT counted: %s (pid N): rmmshim served it, but its counters did not reach this command (it may lack the "
                 "variable RMMSHIM_JOB, or run in another network namespace)" % name),
                (opens, [preload], "env did not use CUDA, so rmmshim had nothing to do")):
            with self.subTest(said):
                process = subprocess.Popen(["unshare", "-m", "sh", "-c", device, "sh", TOOL, "run", "--limit", "1GiB", "env",
                                            *words, sys.executable, "-c", script],
                                           env=support.environment(preload=[]), stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.assertEqual(process.stdout.readline(), b"ready\n")
                self.wait_for_look(process.pid)
                if "readline" in script:  # it allocates after it was first seen
                    process.stdin.write(b"\n")
                    process.stdin.flush()
                    self.assertEqual(process.stdout.readline(), b"ready\n")
                    self.wait_for_look(process.pid)
                self.wait_for_look(process.pid)
                stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
                self.assertEqual(self.said(support.Result(process.returncode, stdout, stderr))[-1], said)

    def test_looked_at_while_it_was_loaded(self):
        """The dynamic linker may have loaded the driver, and not yet the library."""
        files = [self.path(name) for name in ("libcuda.so.1", "librmmshim.so", "nvidia-uvm")]
        for path in files:
            with open(path, "wb") as file:
                file.write(b"text")
        script = ("import mmap, sys\n"
                  "def load(path):\n"
                  "    with open(path, 'r+b') as file: return mmap.mmap(file.fileno(), 4)\n"
                  "first = load(sys.argv[1]); print('ready', flush=True); sys.stdin.readline()\n"
                  "rest = [load(path) for path in sys.argv[2:]]; print('ready', flush=True); sys.stdin.read()\n")
        process = subprocess.Popen([TOOL, "run", "--limit", "1GiB", "env", "-u", "LD_PRELOAD", sys.executable, "-c", script,
                                    *files], env=support.environment(preload=[]), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), b"ready\n")
        self.wait_for_look(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        self.assertEqual(process.stdout.readline(), b"ready\n")
        for _ in range(3):
            self.wait_for_look(process.pid)
        stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
        self.assertEqual(len(self.said(support.Result(process.returncode, stdout, stderr))), 1, stderr)
        self.assertIn(b": none of its allocations reached rmmshim", stderr)

    def test_seen_without_it(self):
        """A child whose environment is empty, and one that has lost its parent."""
        os.mkfifo(self.path("fifo"))
        for script in ('env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" "$0"; true',
                       'exec 3<&0; (env -u LD_PRELOAD "$0" <&3 &); read x < "$1"'):
            with self.subTest(script):
                process = subprocess.Popen([TOOL, "run", "--limit", "1GiB", "--json", self.path("json"), "sh", "-c",
                                            script, STEPS, self.path("fifo")], env=support.environment(preload=[]),
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                process.stdin.write(b"device 1\n")
                process.stdin.flush()
                self.assertEqual(process.stdout.readline(), b"done\n")
                self.wait_for_look(process.pid)
                if "read" in script:
                    with open(self.path("fifo"), "wb") as file:
                        file.write(b"\n")
                stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
                self.assertEqual(self.said(support.Result(process.returncode, stdout, stderr)), [
                    NO_PRELOAD % "memory_steps"])
                row, = json_schema.read(self.path("json"), "run.json")["unserved"]
                self.assertEqual((row["program"], row["reason"]), ("memory_steps", "it runs without librmmshim.so"))

    def test_who_is_left_out_is_not_missed(self):
        """Under --only, of those that are named alone."""
        for only, said in (("sh", "nothing was served: RMM_ONLY=sh names no program that used CUDA"),
                           ("sh,memory_st*", NO_PRELOAD % "memory_steps")):
            with self.subTest(only):
                process = subprocess.Popen([TOOL, "run", "--limit", "1GiB", "--only", only, "sh", "-c",
                                            'env -u LD_PRELOAD "$0"; true', STEPS], env=support.environment(preload=[]),
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                process.stdin.write(b"device 1\n")
                process.stdin.flush()
                self.assertEqual(process.stdout.readline(), b"done\n")
                self.wait_for_look(process.pid)
                stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
                self.assertEqual(self.said(support.Result(process.returncode, stdout, stderr)),
                                 [said])

    def test_hostile_names(self):
        name = self.path("a\x1b[2J\"b\u202e\u009b")
        os.symlink(STEPS, name)
        result, report = self.report("--limit", "1GiB", name, "device", 1)
        self.assertTrue(self.said(result)[0].startswith('a?[2J"b?? (pid N), GPU 0'), result)
        self.assertEqual(report["processes"][0]["program"], 'a?[2J"b??')

    def test_scripts(self):
        """An interpreter's process is known by what it runs, served or not, though it is gone."""
        folder = os.path.dirname(os.path.abspath(__file__))
        script = shutil.copy(os.path.join(folder, "output_scenes.py"), self.path("train.py"))
        served = ["--limit", "1GiB", "--fail-over", "1MiB", sys.executable, "-u"]
        result, report = self.report(*served, script, "hold:%d" % (2 * MIB))
        said = self.said(result)
        self.assertTrue(said[0].startswith("train.py (pid N), GPU 0: "), said)
        self.assertIn("--fail-over 1MiB: train.py (pid N) used up to 2.00 MiB of GPU 0", said)
        process, = report["processes"]
        self.assertEqual((process["program"], process["script"]), (os.path.basename(sys.executable), "train.py"))
        result = self.under(*served, "-m", "output_scenes", "use:1", more={"PYTHONPATH": folder})
        self.assertTrue(self.said(result)[0].startswith("-m output_scenes (pid N), GPU 0: "), result)
        process = subprocess.Popen([TOOL, "run", "--limit", "1GiB", "--json", self.path("json"), "sh", "-c",
                                    'env -u LD_PRELOAD "$@"; true', "sh", sys.executable, script, "use:1", "say", "wait"],
                                   env=support.environment(preload=[]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), b"ready\n")
        self.wait_for_look(process.pid)
        stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
        self.assertEqual(self.said(support.Result(process.returncode, stdout, stderr)),
                         [NO_PRELOAD % "train.py"])
        row, = json_schema.read(self.path("json"), "run.json")["unserved"]
        self.assertEqual(row["script"], "train.py")

    def test_nobody_reads_it(self):
        read, write = os.pipe()
        os.close(read)
        process = subprocess.run([TOOL, "run", "--limit", "1GiB", "sh", "-c", "exit 7"], stderr=write, check=False,
                                 env=support.environment(preload=[]))
        os.close(write)
        self.assertEqual(process.returncode, 7)


class Json(Run):
    def test_what_happened(self):
        result, report = self.report("--limit", "200MiB", "sh", "-c",
                                     '"$0" device 100 free device 300 device 50; exit 3', STEPS)
        self.assertEqual((result.status, report["exit_status"], report["signal"], report["program"]), (3, 3, 0, "sh"))
        process, = report["processes"]
        self.assertEqual((process["program"], process["ended"]), ("memory_steps", True))
        device, = process["devices"]
        self.assertEqual({name: value for name, value in device.items() if name != "waited_nanoseconds"},
                         {"device": 0, "used_peak_bytes": 100 * MIB, "held_peak_bytes": 100 * MIB, "spilled_peak_bytes": 0,
                          "limit_bytes": 200 * MIB, "refused": 1, "internal_refusals": 2, "allocations": 2,
                          "unfreed_bytes": 50 * MIB, "unfreed_blocks": 1})

    def test_a_signal(self):
        result, report = self.report("sh", "-c", "kill -9 $$")
        self.assertEqual((result.status, report["exit_status"], report["signal"]), (-9, 137, 9))

    def test_on_stderr(self):
        result = self.under("--quiet", "--json", "-", "true")
        self.assertTrue(result.stderr.startswith('{"schema":1,'), result)

    def test_a_path_that_cannot_be_written(self):
        """The program does not start."""
        result = self.under("--json", self.path("no/such"), "touch", self.path("marker"))
        self.assertEqual((result.status, os.listdir(self.folder)), (125, []), result)
        self.assertIn("No such file or directory", result.stderr)

    def test_a_process_that_goes_on(self):
        """Its numbers are those of the end of `run`.  It ends with its input, which this process holds open."""
        os.mkfifo(self.path("in"))
        os.mkfifo(self.path("out"))
        with open(self.path("in"), "r+b", buffering=0) as steps:
            steps.write(b"device 8\n")
            script = 'setsid "$0" < "$1/in" > "$1/out" 2>&- & read answer < "$1/out"'
            result, report = self.report("--limit", "1GiB", "--fail-on-leak", "sh", "-c", script, STEPS, self.folder)
        process, = report["processes"]
        self.assertEqual((process["ended"], process["devices"][0]["used_peak_bytes"]), (False, 8 * MIB), result)
        self.assertEqual(result.status, 0, result)


class Numbers(Run):
    """What the program used and was refused, and not what happened inside."""

    def device(self, *words, **how):
        result, report = self.report(*words, **how)
        process, = report["processes"]
        return result, process["devices"][0]

    def test_an_error_that_the_program_never_saw(self):
        """The device's stack is refused, and managed memory serves instead."""
        result, device = self.device("--limit", "64MiB", "--fallback", "managed", STEPS, "device", 60, "device", 60)
        self.assertEqual((result.stdout, device["refused"]), ("", 0), result)
        self.assertGreater(device["internal_refusals"], 0)
        self.assertEqual((device["used_peak_bytes"], device["spilled_peak_bytes"]), (120 * MIB, 60 * MIB))
        self.assertIn("GPU 0: used up to 120 MiB, held up to 60.0 MiB of its 64.0 MiB limit, spilled up to 60.0 MiB to the "
                      "fallback; "
                      "no out-of-memory errors", self.said(result)[0])

    def test_each_error_that_it_saw(self):
        """Once each, whoever refused: the limit, the driver, a pool's maximum; served or not."""
        small = {"HOSTCUDA_MEMORY": "256MiB"}
        for words, more in ((["--limit", "64MiB"], None), (["--pool-size", "0"], small), (["--pool-max-size", "64MiB"], None),
                            (["--limit", "64MiB", "--hooks", "managed"], None), (["--control", "calls"], small),
                            (["--pool-size", "0", "--limit", "64MiB"], None)):
            with self.subTest(words):
                result, device = self.device(*words, STEPS, "device", 300, "device", 10, "device", 300, settings=more)
                self.assertEqual((result.stdout.count("device 300"), device["refused"]), (2, 2), result)
                self.assertIn("; 2 out-of-memory errors", self.said(result)[0])

    def test_a_request_in_the_order_of_a_stream(self):
        result, device = self.device("--limit", "64MiB", STEPS, "ordered", 300, "ordered", 10)
        self.assertEqual((device["refused"], device["used_peak_bytes"]), (1, 10 * MIB), result)

    def test_pinned_memory(self):
        result, device = self.device("--pinned-pool-size", "0", STEPS, "device", 1, "pinned", 300,
                                     settings={"HOSTCUDA_HOST_MEMORY": "128MiB"})
        self.assertEqual((device["refused"], device["used_peak_bytes"]), (1, MIB), result)

    def test_used_and_held_are_two(self):
        """A pool holds more than the program uses."""
        for over, status in (("500MiB", 0), ("64MiB", 0), ("63MiB", 1)):
            result, device = self.device("--pool-size", "512MiB", "--fail-over", over, STEPS, "device", 64)
            self.assertEqual((result.status, device["used_peak_bytes"], device["held_peak_bytes"]),
                             (status, 64 * MIB, 512 * MIB), result)

    def test_what_is_not_served_is_used_too(self):
        result, device = self.device("--limit", "1GiB", "--hooks", "managed", "--fail-over", "99MiB", STEPS, "device", 100,
                                     "free", "device", 50)
        self.assertEqual((result.status, device["used_peak_bytes"]), (1, 100 * MIB), result)


class Checks(Run):
    def test_fail_over(self):
        for size, status in (("99MiB", 1), ("100MiB", 0), ("1%", 1), ("100%", 0)):
            with self.subTest(size):
                result = self.under("--quiet", "--limit", "1GiB", "--fail-over", size, STEPS, "device", 100)
                self.assertEqual(result.status, status, result)
                self.assertEqual(self.said(result), ["--fail-over %s: memory_steps (pid N) used up to 100 MiB of "
                                                     "GPU 0" %
                                                     size] * status)

    def test_a_share_of_what_is_not_known(self):
        """The driver does not tell how much memory the device has: that fails the check, and is said."""
        for size, status, said in (("50%", 1, ["--fail-over 50% cannot be checked, which counts as failed: the memory size of GPU 0 is not known; give --fail-over a size "
                                                  "in bytes, as in 8GiB"]), ("1GiB", 0, [])):
            with self.subTest(size):
                result = self.under("--quiet", "--limit", "1GiB", "--fail-over", size, STEPS, "device", 100,
                                    settings={"HOSTCUDA_FAULT": "cuDeviceTotalMem:code=999"})
                self.assertEqual((result.status, self.said(result)), (status, said), result)

    def test_fail_on_leak(self):
        leak = "--fail-on-leak: memory_steps (pid N) ended with 2 blocks on GPU 0 not freed: 102 MiB"
        for steps, said in ((["device", 100, "free"], []), (["device", 100, "reset"], []),
                            (["device", 100, "device", 2], [leak])):
            with self.subTest(steps):
                result = self.under("--quiet", "--limit", "1GiB", "--fail-on-leak", STEPS, *steps)
                self.assertEqual((result.status, self.said(result)), (len(said), said), result)

    def test_the_programs_own_status_wins(self):
        result = self.under("--limit", "1GiB", "--fail-on-leak", "--fail-over", "1MiB", "sh", "-c",
                            '"$0" device 100; exit 5', STEPS)
        self.assertEqual(result.status, 5)

    def test_wrong_words(self):
        for words, said in ((["--fail-over", "10Q"], "unknown unit"), (["--fail-over"], "needs a value"),
                            (["--fail-over", "5%free"], "expected a size, as in 8GiB"), (["--json"], "needs a value"),
                            (["--quiet=1"], "takes no value"), (["--fail-on-leek"], "did you mean '--fail-on-leak'"),
                            (["--exec", "--find-min"],
                             "--find-min cannot be used together with --exec: `rmmshim run` must stay the program's parent"),
                            (["--exec", "--json", "x"], "--json cannot be used together with --exec"),
                            (["--fail-on-leak", "--find-min"], "cannot be used together with --fail-over"),
                            (["--limit", "1GiB", "--find-min"], "remove RMM_LIMIT=1GiB"),
                            (["--limit-1", "1GiB", "--find-min"], "remove RMM_LIMIT_1=1GiB")):
            with self.subTest(words):
                result = self.under(*words, *([] if said == "needs a value" else ["true"]))
                self.assertEqual((result.status, len(self.said(result))), (125, 1), result)
                self.assertIn(said, result.stderr)


class FindMin(Run):
    SUCCEEDS = 'test -z "$("$0" device 100 device 30)"'

    def test_the_smallest_limit(self):
        result, report = self.report("--find-min", "sh", "-c", self.SUCCEEDS, STEPS)
        lines = self.said(result)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(lines[:3], ["without a limit: the program succeeds; it used up to 130 MiB, held up to 130 MiB",
                                     "with a limit of 130 MiB: the program succeeds",
                                     "with a limit of 64.0 MiB: the program fails with exit code 1"])
        self.assertEqual(lines[-1], "the smallest limit with which the program succeeded is 130 MiB (%d runs)" %
                         (len(lines) - 1))
        self.assertEqual((report["smallest_limit_bytes"], report["runs"]), (130 * MIB, len(lines) - 1))
        process, = report["processes"]
        self.assertEqual((process["devices"][0]["used_peak_bytes"], report["exit_status"]), (130 * MIB, 0))

    def test_a_pool_does_not_decide_it(self):
        """What is found is what the program needs, and not the size of a pool that is larger."""
        result, report = self.report("--find-min", "--pool-size", "1GiB", "sh", "-c", self.SUCCEEDS, STEPS)
        self.assertEqual(report["smallest_limit_bytes"], 130 * MIB, result)
        self.assertIn("(with a pool that starts empty; ", self.said(result)[-1])
        result, report = self.report("--find-min", "--pool-size", "16MiB", "sh", "-c", self.SUCCEEDS, STEPS)
        self.assertLess(report["smallest_limit_bytes"], 200 * MIB, result)
        self.assertNotIn("starts empty", result.stderr)

    def test_less_than_the_peak(self):
        """A program that makes do with less."""
        result = self.under("--quiet", "--find-min", "sh", "-c", '! "$0" device 400 device 100 | grep -q "device 100"',
                            STEPS)
        self.assertRegex(self.said(result)[-1], r"is 10[0-2] MiB \(\d+ runs\)$")

    def test_no_refusal_is_reported(self):
        """Runs that fail for want of memory are the search itself; also those whose refusals the program bore."""
        result = self.under("--find-min", "sh", "-c", self.SUCCEEDS, STEPS)
        self.assertEqual((result.status, result.stderr.count("out of memory")), (0, 0), result)

    def test_who_escaped_the_first_run_is_in_the_report(self):
        os.mkfifo(self.path("fifo"))
        script = '"$0" device 4; if test "$RMM_LIMIT" = 64TiB; then env -u LD_PRELOAD "$0" < "$1" & wait; fi'
        process = subprocess.Popen([TOOL, "run", "--find-min", "--json", self.path("json"), "sh", "-c", script, STEPS,
                                    self.path("fifo")], env=support.environment(preload=[]), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        with open(self.path("fifo"), "wb", buffering=0) as steps:
            steps.write(b"device 1\n")
            self.assertEqual(process.stdout.readline(), b"done\n")
            self.wait_for_look(process.pid)
        stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
        self.assertEqual(process.returncode, 0, support.Result(0, stdout, stderr))
        row, = json_schema.read(self.path("json"), "run.json")["unserved"]
        self.assertEqual(row["program"], "memory_steps")

    def test_only_the_first_run_is_heard(self):
        result = self.under("--find-min", "sh", "-c", "echo out; echo err >&2; cat; " + self.SUCCEEDS, STEPS)
        self.assertEqual((result.stdout, result.stderr.count("err\n")), ("out\n", 1), result)

    def test_what_cannot_be_found(self):
        for script, status, said in (("exit 4", 4, "the program fails even without a limit"),
                                     ("true", 1, "no process had GPU memory served by rmmshim"),
                                     ('"$0" device 5; test "$RMM_LIMIT" = 64TiB', 1, "but fails with every "
                                                                                     "limit")):
            with self.subTest(script):
                result = self.under("--find-min", "sh", "-c", script, STEPS)
                self.assertEqual(result.status, status, result)
                self.assertIn(said, self.said(result)[-1])

    def search_in_second_run(self, **how):
        """A search whose program waits in its second run, until something is written to `go`."""
        os.mkfifo(self.path("ready"))
        os.mkfifo(self.path("go"))
        script = ('"$0" device 50; test "$RMM_LIMIT" = 64TiB || test -e "$1/mark" || '
                  '{ : > "$1/mark"; echo > "$1/ready"; read x < "$1/go"; }')
        process = subprocess.Popen([TOOL, "run", "--find-min", "sh", "-c", script, STEPS, self.folder], **how,
                                   env=support.environment(preload=[]), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        with open(self.path("ready"), "rb") as ready:
            ready.read()
        return process

    def test_a_signal_ends_it(self):
        process = self.search_in_second_run()
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
        result = support.Result(process.returncode, stdout, stderr)
        self.assertEqual((result.status, self.said(result)[-1]),
                         (-signal.SIGTERM, "--find-min: interrupted in run 2, so no limit was found"), result)

    def test_a_signal_that_is_ignored_does_not_end_it(self):
        """As under nohup: the terminal goes away, and the search goes on."""
        process = self.search_in_second_run(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        with open(self.path("go"), "wb") as file:
            file.write(b"\n")
        stdout, stderr = process.communicate(timeout=ENOUGH_SECONDS)
        result = support.Result(process.returncode, stdout, stderr)
        self.assertEqual(result.status, 0, result)
        self.assertIn("the smallest limit", self.said(result)[-1])


class Signals(Run):
    """Beside those of test_run.py: each signal that a program can catch, and the terminal's."""

    # Those that would tell of a mistake of `run` itself, or cannot be caught.
    OWN = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT,
           signal.SIGPIPE, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    # Python calls a handler once for signals that come together, and writes a byte for each.
    WAIT = ("import os, signal, sys\n"
            "read, write = os.pipe()\n"
            "os.set_blocking(write, False)\n"
            "signal.set_wakeup_fd(write)\n"
            "for number in %r + [signal.SIGRTMIN]: signal.signal(number, lambda number, frame: None)\n"
            "os.write(1, b'ready\\n')\n"
            "while (number := os.read(read, 1)[0]) != signal.SIGRTMIN: os.write(1, b'got %%d\\n' %% number)\n"
            "os.write(write, b'end')\n"  # of two that come together the handler of the later one runs first
            "for number in os.read(read, 1000)[:-3]: os.write(1, b'got %%d\\n' %% number)\n"
            "sys.exit(7)")

    def test_each_one_once(self):
        numbers = [number for number in range(1, 32) if number not in self.OWN]
        with subprocess.Popen([TOOL, "run", sys.executable, "-c", self.WAIT % numbers], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=support.environment(preload=[])) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            for number in numbers:
                process.send_signal(number)
                self.assertEqual(process.stdout.readline(), "got %d\n" % number)
            process.send_signal(signal.SIGRTMIN)
            self.assertEqual((process.stdout.read(), process.wait()), ("", 7))

    def read_until(self, terminal, text):
        seen = ""
        while text not in seen:
            self.assertTrue(select.select([terminal], [], [], ENOUGH_SECONDS)[0], seen)
            try:
                seen += os.read(terminal, 1000).decode()
            except OSError:
                self.fail(seen)
        return seen

    def test_the_terminals_interrupt_comes_once(self):
        """SIGRTMIN, which is sent to `run` after it, is delivered after all of it."""
        process, terminal = pty.fork()
        if process == 0:
            os.execve(TOOL, [TOOL, "run", "--quiet", sys.executable, "-c", self.WAIT % [int(signal.SIGINT)]],
                      support.environment(preload=[]))
        self.addCleanup(os.close, terminal)
        self.read_until(terminal, "ready")
        seen = ""
        for _ in range(20):
            os.write(terminal, b"\x03")
            seen += self.read_until(terminal, "got 2")
        os.kill(process, signal.SIGRTMIN)
        try:
            while select.select([terminal], [], [], ENOUGH_SECONDS)[0]:
                seen += os.read(terminal, 1000).decode()
        except OSError:
            pass
        self.assertEqual((seen.count("got 2"), os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])), (20, 7))

    def test_a_signal_of_the_program_to_its_group_comes_once(self):
        """`run` is of that group, too.  It is stopped until the program has the signal: two that are on their way at the
        same time are one."""
        send = ("os.kill(os.getppid(), signal.SIGSTOP)\n"
                "os.killpg(0, signal.SIGUSR1)\n"
                "os.read(read, 1)\n"
                "os.kill(os.getppid(), signal.SIGCONT)\n"
                "os.write(1, b'ready\\n')")
        program = (self.WAIT % [int(signal.SIGUSR1)]).replace("os.write(1, b'ready\\n')", send)
        with subprocess.Popen([TOOL, "run", "--quiet", sys.executable, "-c", program], stdout=subprocess.PIPE,
                              start_new_session=True, text=True, env=support.environment(preload=[])) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(signal.SIGRTMIN)
            self.assertEqual((process.stdout.read(), process.wait()), ("", 7))


if __name__ == "__main__":
    support.main()
