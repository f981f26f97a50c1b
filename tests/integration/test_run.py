# SPDX-License-Identifier: Apache-2.0
"""`rmmshim run` as a program's parent: the program is as if it were that process, and what it was asked to report is
written however it ends.  TOOL is the command."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import served
import support
import test_output_files
from served import state_of
from support import ENOUGH_SECONDS, run, until

TOOL = os.environ["TOOL"]
SCENES = test_output_files.SCENES
OFFER = os.path.join(served.FOLDER, "offer_scene.py")
PYTHON = [sys.executable]
MANY = 80

# What cannot be told of a process that is gone: it takes a walk of its memory, or of the driver's.
COMPUTED = {("pool", "largest_free"), ("virtual", "reserved"), ("virtual", "free"), ("virtual", "largest_free"),
            ("arena", "largest_free"), ("reuse", "kept"), ("reuse", "stream_reuses"), ("binning", "bins"),
            ("async", "held"), ("async", "held_peak"), ("async_managed", "held"),
            ("async_managed", "held_peak")}


class Run(support.Test):
    def under(self, command, settings=None, **how):
        """Runs the command under `run`, which preloads the library itself and says nothing at the end."""
        return run([TOOL, "run", "--quiet"] + [str(word) for word in command], settings, preload=[], **how)

    def start(self, command, settings=None, **how):
        process = subprocess.Popen([TOOL, "run", "--quiet"] + list(command), env=support.environment(settings, preload=[]),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   **how)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def report(self, name="report"):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def counters(self, name="report"):
        return {(device["device"], device["kind"], counter["resource"], counter["name"]): counter["value"]
                for device in self.report(name)["devices"] for counter in device["counters"]}


class Reports(Run):
    EXPRESSIONS = [
        "statistics(pool(cuda, initial_size=64MiB))",
        "statistics(tracking(limiting(aligned(poison(binning(prefetch(headroom(fallback(fixed_size(managed), virtual), "
        "headroom=1MiB))))), limit=1GiB)))",
        "statistics(arena(cuda, arena_size=64MiB))",
        "statistics(async)",
        "statistics(async_managed)",
    ]

    def test_the_same_counters_however_it_ends(self):
        for expression in self.EXPRESSIONS:
            settings = {"RMM_RESOURCE": expression, "RMM_LIMIT": "1GiB", "RMM_TRACKING": "0"}
            self.under(PYTHON + [SCENES, "use:300"], dict(settings, RMM_STATISTICS="json:" + self.path("report")))
            expected, whole = self.counters(), self.report()
            for how, status in test_output_files.Deaths.WAYS.items():
                with self.subTest("%s by %s" % (expression, how)):
                    result = self.under(PYTHON + [SCENES, "use:300", "end:" + how],
                                        dict(settings, RMM_STATISTICS="json:" + self.path("report")))
                    self.assertEqual((result.status, result.stderr), (status, ""), result)
                    self.assertNotEqual(self.report()["pid"], whole["pid"])
                    self.assertEqual(self.report()["program"], whole["program"])
                    self.assertEqual(self.report()["devices"][0]["expression"], whole["devices"][0]["expression"])
                    self.assertEqual({key: value for key, value in self.counters().items() if key[2:] not in COMPUTED},
                                     {key: value for key, value in expected.items() if key[2:] not in COMPUTED})
                    self.assertIn((0, "device", "statistics", "allocations"), self.counters())
                    self.assertLessEqual(self.counters().keys(), expected.keys())

    def test_as_text_and_for_prometheus(self):
        for form in ("1", "text:" + self.path("text"), "prom-all:" + self.path("prom")):
            with self.subTest(form):
                result = self.under(["--pool-size", "64MiB", "--statistics", form] + PYTHON +
                                    [SCENES, "use:5", "end:SIGKILL"])
                self.assertEqual(result.status, -signal.SIGKILL)
                path = form.partition(":")[2]
                text = test_output_files.text_of(path) if path else result.stderr
                self.assertIn('rmmshim_statistics_allocations_total{device="0",kind="device",program="python' if
                              form.startswith("prom") else "allocations 5\n", text)

    def test_one_report_and_not_two(self):
        for how in ("return", "exit", "_exit"):
            with self.subTest(how):
                result = self.under(["--pool-size", "64MiB", "--statistics", "1"] + PYTHON +
                                    [SCENES, "use:5", "end:" + how])
                self.assertEqual(result.stderr.count("  statistics  peak"), 1, result)

    def test_contexts_that_are_gone(self):
        """What their stacks counted is in it."""
        steps = [SCENES, "use:5", "reset", "use:7"]
        settings = {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("report")}
        self.under(PYTHON + steps, settings)
        expected = self.counters()
        self.assertEqual(expected[0, "device", "statistics", "allocations"], 12)
        self.under(PYTHON + steps + ["end:SIGKILL"], settings)
        self.assertEqual({key: value for key, value in self.counters().items()},
                         {key: value for key, value in expected.items() if key[2:] not in COMPUTED})

    def test_workers_that_end_by_exit(self):
        """As multiprocessing's do: each has a report, none is lost."""
        result = self.under(PYTHON + [SCENES, "worker:use:30", "worker:use:40", "use:50", "end:_exit"],
                            {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("%p.json")})
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertEqual(sorted(self.counters(name)[0, "device", "statistics", "allocations"]
                                for name in os.listdir(self.folder)), [30, 40, 50])

    def test_a_file_that_another_has_written_since(self):
        """The report of a process that went on as another program, which wrote its own to the same path, is beside
        it."""
        result = self.under(PYTHON + [SCENES, "use:30", "again:use:40"],
                            {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("report")})
        self.assertEqual(result.status, 0, result)
        self.assertIn("another process writes to this file; the report is in", result.stderr)
        self.assertEqual(sorted(self.counters(name)[0, "device", "statistics", "allocations"]
                                for name in os.listdir(self.folder)), [30, 40])

    def test_an_old_report_is_replaced(self):
        with open(self.path("report"), "w", encoding="utf-8") as file:
            file.write("old\n" * 1000)
        os.utime(self.path("report"), (1, 1))
        self.under(PYTHON + [SCENES, "use:30", "end:SIGKILL"],
                   {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("report")})
        self.assertEqual(os.listdir(self.folder), ["report"])
        self.assertEqual(self.counters()[0, "device", "statistics", "allocations"], 30)

    def test_nothing_to_report(self):
        """No file and no line of a process that used no CUDA."""
        result = self.under(["--pool-size", "64MiB", "--statistics", "1", "sh", "-c", "kill -KILL $$"])
        self.assertEqual((result.status, result.stderr), (-signal.SIGKILL, ""))

    def test_only_a_page_that_cannot_shrink_is_held(self):
        """`run` reads it when it likes: one that shrinks would end `run` by SIGBUS."""
        real = served.scene(self, "use:1")
        for kind, answer in (("sealed", "held"), ("unsealed", "refused"), ("ordinary", "refused")):
            with self.subTest(kind):
                self.assertEqual(self.under(PYTHON + [OFFER, real.pid, kind]).stdout, answer + "\n")

    def test_the_job_is_gone(self):
        """A process that outlives its `run`, or is in another network namespace, is served as without one."""
        result = run(PYTHON + [SCENES, "use:5"], {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "1",
                                                  "RMMSHIM_JOB": "%s:%s:999999:3:17:1" % ("1" * 32, "2" * 32)})
        self.assertEqual(result.status, 0)
        self.assertIn("allocations 5\n", result.stderr)


class Parent(Run):
    # A signal that comes before the read ends it, too.  A signal in print() would find it locked.
    WAIT = ("import os, signal, sys\n"
            "read, write = os.pipe()\n"
            "os.set_blocking(write, False)\n"
            "signal.set_wakeup_fd(write)\n"
            "%s\n"
            "os.write(1, b'ready\\n')\n"
            "while True: os.read(read, 1)")

    def waiting(self, handler="", **how):
        process = self.start(PYTHON + ["-c", self.WAIT % handler], **how)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def child_of(self, process):
        with open("/proc/%d/task/%d/children" % (process.pid, process.pid), encoding="ascii") as file:
            return int(file.read())

    def test_signals_go_on_to_the_program(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                       signal.SIGRTMIN):
            with self.subTest(number):
                process = self.waiting("signal.signal(%d, lambda n, f: (os.write(1, b'got %%d\\n' %% n), sys.exit(7)))" %
                                       number)
                process.send_signal(number)
                self.assertEqual(process.communicate(timeout=ENOUGH_SECONDS)[0], "got %d\n" % number)
                self.assertEqual(process.returncode, 7)

    def test_it_ends_by_the_programs_signal(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGALRM):
            with self.subTest(number):
                result = self.under(["sh", "-c", "kill -%d $$" % number])
                self.assertEqual(result.outcome, (-number, ""))

    def test_killing_it_kills_the_program(self):
        process = self.waiting()
        process.kill()
        process.communicate(timeout=ENOUGH_SECONDS)  # which ends when nobody has its stdout any more

    # A shell with job control, as far as this needs one: starts a job in the foreground or the background, says when it
    # has stopped, continues it in the foreground, and ends as it does.
    SHELL = ("import os, signal, sys\n"
             "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
             "job = os.fork()\n"
             "if not job:\n"
             "    os.setpgid(0, 0)\n"
             "    if sys.argv[1] == 'foreground':\n"
             "        os.tcsetpgrp(0, os.getpid())\n"
             "    signal.signal(signal.SIGTTOU, signal.SIG_DFL)\n"
             "    os.execv(sys.argv[2], sys.argv[2:])\n"
             "stopped = os.WIFSTOPPED(os.waitpid(job, os.WUNTRACED)[1])\n"
             "os.write(1, b'stopped\\n' if stopped else b'ended\\n')\n"
             "os.tcsetpgrp(0, job)\n"
             "os.killpg(job, signal.SIGCONT)\n"
             "sys.exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))\n")

    def as_job(self, place, program, keys):
        """Runs the program as a job of the shell; types each key when its text is seen.  The shell must end with 5."""
        shell, terminal = pty.fork()
        if shell == 0:
            os.execve(sys.executable, PYTHON + ["-c", self.SHELL, place, TOOL, "run", "--quiet"] + PYTHON + ["-c", program],
                      support.environment(preload=[]))
        self.addCleanup(os.close, terminal)
        self.addCleanup(os.kill, shell, signal.SIGKILL)
        seen = ""
        for text, key in keys:
            while text not in seen:
                self.assertTrue(select.select([terminal], [], [], ENOUGH_SECONDS)[0], seen)
                seen += os.read(terminal, 1000).decode()
            os.write(terminal, key)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitid(os.P_PID, shell, os.WEXITED | os.WNOWAIT).si_status << 8), 5)

    def test_a_stop_by_the_terminal_stops_both(self):
        """The shell sees its job stop, and the program goes on when the shell lets it."""
        program = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT]); " + \
            "print('ready', flush=True); signal.sigwait([signal.SIGCONT]); sys.exit(5)"
        self.as_job("foreground", program, [("ready", b"\x1a"), ("stopped", b"")])

    def test_a_job_in_the_background_that_reads_the_terminal(self):
        """The shell sees it stop by SIGTTIN: it sends SIGCONT to no job that it holds for running."""
        self.as_job("background", "import sys; sys.exit(5 if sys.stdin.readline() == 'typed\\n' else 6)",
                    [("stopped", b"typed\n")])

    def test_a_job_in_the_background_that_is_told_to_stop(self):
        """By `kill -TSTP %1`, which goes to `run` and the program."""
        self.as_job("background", "import os, signal, sys; os.killpg(0, signal.SIGTSTP); sys.exit(5)", [("stopped", b"")])

    def test_a_terminal_that_hangs_up(self):
        """The kernel tells the leader of the session alone, which `run` is here; it and the program end."""
        leader, terminal = pty.fork()
        if leader == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
            os.execve(TOOL, [TOOL, "run", "--quiet"] + PYTHON + ["-c", self.WAIT % "print(os.getpid(), flush=True)"],
                      support.environment(preload=[]))
        seen = ""
        while "ready" not in seen:
            seen += os.read(terminal, 1000).decode()
        program = int(seen.split()[0])
        watched = os.pidfd_open(program)
        os.close(terminal)
        self.assertTrue(select.select([watched], [], [], ENOUGH_SECONDS)[0], "the end of the program")
        os.close(watched)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1]), -signal.SIGHUP)

    def test_what_the_kernel_sends_to_it_alone(self):
        """A timer that was set before `run` began, as `perl -e 'alarm 1; exec @ARGV'` does."""
        for timer, number in ((signal.ITIMER_REAL, signal.SIGALRM), (signal.ITIMER_VIRTUAL, signal.SIGVTALRM)):
            with self.subTest(number):
                process = self.start(PYTHON + ["-c", "import time; time.sleep(%d)" % ENOUGH_SECONDS],
                                     preexec_fn=lambda timer=timer: signal.setitimer(timer, 0.3 if timer == signal.ITIMER_REAL
                                                                                     else 0.002))
                # `run` uses processor time for signals that it passes on, which the program ignores.
                deadline = time.monotonic() + ENOUGH_SECONDS
                while process.poll() is None and time.monotonic() < deadline:
                    if timer == signal.ITIMER_VIRTUAL:
                        process.send_signal(signal.SIGURG)
                    else:
                        time.sleep(0.01)
                self.assertEqual(process.returncode, -number)

    def test_the_first_process_of_a_namespace(self):
        """It waits for orphans, and for the program alone."""
        script = ("for i in 1 2 3 4 5 6 7 8; do (true &); done; "
                  "while ps -e -o stat= | grep -q Z; do sleep 0.01; done; echo none left; exit 5")
        result = run(["unshare", "-pf", "--mount-proc", TOOL, "run", "--quiet", "timeout", str(ENOUGH_SECONDS), "sh", "-c",
                      script], preload=[])
        if "unshare:" in result.stderr:
            self.skipTest(result.stderr)
        self.assertEqual(result.outcome, (5, "none left\n"), result)
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
            result = run(["unshare", "-pf", "--mount-proc", TOOL, "run", "--quiet", "sh", "-c", "kill -%d $$" % number],
                         preload=[])
            self.assertEqual(result.status, 128 + number, result)

    def test_streams_that_are_closed(self):
        """The program finds them closed, and no file of the command's has their numbers."""
        for streams in ((0,), (2,), (0, 1, 2)):
            with self.subTest(streams):
                show = ["sh", "-c", "for i in 0 1 2; do [ -e /proc/$$/fd/$i ] && echo $i >>'%s'; done; cd /proc/$PPID/fd; "
                        "readlink 0 1 2 >>'%s'" % (self.path("own"), self.path("parent"))]
                subprocess.run([TOOL, "run", "--quiet", "--limit-job", "1GiB", "--pool-size", "0"] + show, check=False,
                               env=support.environment(preload=[]),
                               preexec_fn=lambda streams=streams: [os.close(stream) for stream in streams])
                self.assertEqual(support.read_or_empty(self.path("own")).split(),
                                 [str(stream) for stream in range(3) if stream not in streams])
                parent = support.read_or_empty(self.path("parent")).splitlines()
                self.assertEqual([parent[stream] for stream in streams], ["/dev/null"] * len(streams))
                for name in ("own", "parent"):
                    if os.path.exists(self.path(name)):
                        os.unlink(self.path(name))

    def test_a_reader_that_is_gone(self):
        """Neither the program nor the report ends by it."""
        for settings in (["--statistics", "1"], ["--statistics", "json:" + self.path("report")]):
            with self.subTest(settings):
                read, write = os.pipe()
                os.close(read)
                code = "import os, subprocess, sys; subprocess.run([sys.executable, %r, 'use:1', 'again:use:2', " \
                       "'end:SIGKILL']); open(%r, 'w')" % (SCENES, self.path("done"))
                process = subprocess.run([TOOL, "run", "--pool-size", "0"] + settings + PYTHON + ["-c", code], stderr=write, check=False,
                                         env=support.environment(preload=[]))
                os.close(write)
                self.assertEqual(process.returncode, 0)
                self.assertTrue(os.path.exists(self.path("done")))
                os.unlink(self.path("done"))

    def test_a_reader_that_is_slow(self):
        """The other side has made the pipe non-blocking, and it holds less than the report: the rest comes after."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        room = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        process = subprocess.Popen([TOOL, "run", "--resource", Reports.EXPRESSIONS[1], "--statistics", "json"] + PYTHON +
                                   [SCENES, "use:5", "end:SIGKILL"], stderr=write, env=support.environment(preload=[]))
        os.close(write)
        with open(read, encoding="utf-8") as file:
            text = file.read()
        process.wait()
        report, end = json.JSONDecoder().raw_decode(text)
        self.assertGreater(end, room)
        self.assertEqual(report["devices"][0]["device"], 0)
        self.assertIn("no out-of-memory errors", text[end:])

    def is_pending(self, number, process):
        with open("/proc/%d/status" % process, encoding="ascii") as file:
            pending = int(re.search(r"\nShdPnd:\s*([0-9a-f]+)", file.read()).group(1), 16)
        return pending >> number - 1 & 1

    def test_a_stop_of_the_program_alone(self):
        """Where no shell waits, `run` goes on: who stops the program alone continues it alone.  SIGRTMIN comes to `run`
        after its child's stop and goes on to the program, which has it when it is continued."""
        process = self.waiting("signal.signal(signal.SIGRTMIN, lambda n, f: sys.exit(5))")
        child = self.child_of(process)
        os.kill(child, signal.SIGSTOP)
        until(lambda: state_of(child) == "T", "the stop of the program")
        process.send_signal(signal.SIGRTMIN)
        until(lambda: self.is_pending(signal.SIGRTMIN, child), "the signal to the program")
        os.kill(child, signal.SIGCONT)
        process.communicate(timeout=ENOUGH_SECONDS)
        self.assertEqual(process.returncode, 5)

    def test_the_program_inherits_signals_as_they_were(self):
        """Ignored ones, blocked ones, and SIGCHLD."""
        def change():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        show = ["grep", "-E", "^(SigBlk|SigIgn|SigCgt)", "/proc/self/status"]
        for before in (None, change):
            bare = subprocess.run(show, capture_output=True, text=True, check=True, preexec_fn=before)
            under = subprocess.run([TOOL, "run"] + show, capture_output=True, text=True, check=True, preexec_fn=before)
            self.assertEqual(under.stdout, bare.stdout)

    def test_the_program_has_no_descriptor_more(self):
        show = ["sh", "-c", "ls /proc/self/fd | wc -l"]
        self.assertEqual(self.under(show).stdout, run(show, preload=[]).stdout)

    def test_with_exec_it_becomes_the_program(self):
        process = self.start(["--exec"] + PYTHON + ["-c", "import os; print(os.getpid(), 'RMMSHIM_JOB' in os.environ)"])
        self.assertEqual(process.communicate(timeout=ENOUGH_SECONDS)[0], "%d False\n" % process.pid)

    def test_a_crash_at_the_first_allocation_is_not_lost(self):
        result = self.under(["--pool-size", "64MiB", "--statistics", "1"] + PYTHON + [SCENES, "use:1", "end:SIGSEGV"])
        self.assertIn("allocations 1\n", result.stderr)

    def test_a_cancelled_thread(self):
        """Not in what it publishes either."""
        result = self.under(["--pool-size", "64MiB", support.program("outputs"), "cancelled"])
        self.assertEqual(result.outcome, (0, "all calls came back; cancelled\ndone\n"), result)

    def test_a_process_that_has_no_processor_between_two_calls(self):
        """It has connected, and sends its request after `run` has looked several times, a second after the other."""
        script = ("import os, socket, sys, time; sys.path.insert(0, %r); import run_socket, support\n"
                  "name, token = os.environ['RMMSHIM_JOB'].split(':')[:2]\n"
                  "connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                  "connection.connect('\\0' + name)\n"
                  "end = time.monotonic() + 4\n"
                  "support.until(lambda: time.monotonic() > end)\n"
                  "connection.send(run_socket.REQUEST.pack(run_socket.LAYOUT, token.encode(), run_socket.GIVE_LIMIT, 9))\n"
                  "print(run_socket.ANSWER.unpack(connection.recv(4)))" % served.FOLDER)
        result = self.under(PYTHON + ["-c", script])
        self.assertEqual((result.outcome, result.stderr), ((0, "(0,)\n"), ""), result)

    def test_many_processes_at_once(self):
        """Each is held.  They begin when the last of them is there."""
        script = ("import os, sys; sys.path.insert(0, %r); import output_scenes\n"
                  "begin, go = os.pipe()\n"
                  "for _ in range(%d):\n"
                  "    if os.fork() == 0:\n"
                  "        os.close(go)\n"
                  "        os.read(begin, 1)\n"
                  "        output_scenes.take(['use:1', 'end:_exit'])\n"
                  "os.close(go)\n"
                  "for _ in range(%d):\n"
                  "    assert os.wait()[1] == 0" % (served.FOLDER, MANY, MANY))
        result = self.under(["--pool-size", "4MiB", "--statistics", "json:" + self.path("%p")] + PYTHON + ["-c", script])
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertEqual(len(os.listdir(self.folder)), MANY)


if __name__ == "__main__":
    support.main()
