# SPDX-License-Identifier: Apache-2.0
"""`rmmshim top` in a terminal, and elsewhere.

Other processes may be served on the machine meanwhile, so these look for their own.  meson sets TOOL."""
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import unittest

import json_schema
import served
import support
from served import page, scene, tool
from support import ENOUGH_SECONDS
from test_ls import HOSTILE, is_hostile

MIB = 1 << 20
GIVEN_BACK = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
BEGIN, END = "\x1b[?2026h\x1b[H", "\x1b[?2026l"
SEQUENCE = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")


class Top:
    """`top` in a pseudo terminal."""

    def __init__(self, test, *arguments, lines=24, columns=80, **environment):
        self.master, slave = pty.openpty()
        self.resize(lines, columns)
        self.before = termios.tcgetattr(slave)
        env = {"TERM": "xterm", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], **environment}
        self.process = subprocess.Popen([served.TOOL, "top", *arguments], stdin=slave, stdout=slave, stderr=slave, env=env,
                                        start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.slave = slave
        self.output = b""
        test.addCleanup(self.end)

    def end(self):
        if self.process.poll() is None:
            support.let_end(self.process, signal.SIGTERM)
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        if self.slave is not None:
            os.close(self.slave)

    def resize(self, lines, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys.encode())

    def read(self, seconds):
        """All that is there; a terminal gives 4095 bytes at a time."""
        while select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 65536)
            seconds = 0

    @staticmethod
    def lines_of(picture):
        lines = re.split("\r+\n", picture.decode(errors="replace"))  # the terminal adds a \r of its own
        return [SEQUENCE.sub("", line) for line in lines]

    @property
    def frame(self):
        """The lines of the last whole picture."""
        end = self.output.rfind(END.encode())
        begin = self.output.rfind(BEGIN.encode(), 0, max(end, 0))
        return self.lines_of(self.output[begin + len(BEGIN):end]) if begin >= 0 else []

    def frames_from(self, position):
        """The lines of all whole pictures that began there or later in the output."""
        pictures = [picture.partition(END.encode()) for picture in self.output[position:].split(BEGIN.encode())[1:]]
        return [self.lines_of(picture) for picture, end, _ in pictures if end]

    def until_output(self, condition, what):
        """Waits for output after which it is so."""
        def is_so():
            self.read(0.05)
            return condition()
        try:
            support.until(is_so, what)
        except AssertionError as error:
            raise AssertionError("%s:\n%s" % (error, "\n".join(self.frame))) from error

    def until(self, condition, what):
        """Waits for a picture that is so."""
        self.until_output(lambda: self.frame and condition(self.frame), what)
        return self.frame

    def until_line(self, text):
        return self.until(lambda frame: any(text in line for line in frame), text)

    def order(self, *processes):
        """Those processes in the order in which their rows stand."""
        pids = [str(process.pid) for process in processes]
        return [line.split()[0] for line in self.frame if line.split() and line.split()[0] in pids]

    def until_order(self, *processes):
        pids = [str(process.pid) for process in processes]
        self.until(lambda frame: self.order(*processes) == pids, "in order %s" % pids)

    def status(self):
        """How it has ended; all of its output is read."""
        self.until_output(lambda: self.process.poll() is not None, "its end")
        self.after = termios.tcgetattr(self.slave)
        os.close(self.slave)
        self.slave = None
        try:
            while True:
                self.read(ENOUGH_SECONDS)
        except OSError:  # nobody has the terminal open any more
            return self.process.poll()

    def is_as_before(self):
        after = self.after if self.slave is None else termios.tcgetattr(self.slave)
        return self.output.endswith(GIVEN_BACK) and after == self.before


class Test(support.Test):
    def top(self, *arguments, **how):
        return Top(self, "--interval", "0.1", *arguments, **how)

    def three(self):
        """By live and held in two different orders."""
        return [scene(self, "hold:%d" % (live * MIB), RMM_POOL_SIZE="%dMiB" % held)
                for live, held in ((2, 128), (1, 256), (3, 64))]

    @staticmethod
    def by_number(*processes):
        """As their numbers ascend: these begin anew when they have become too large."""
        return tuple(sorted(processes, key=lambda process: process.pid))


class Terminal(Test):
    def test_keys(self):
        one, two, three = self.three()
        ascending = self.by_number(one, two, three)
        top = self.top(lines=200)
        top.until_order(two, one, three)
        for key, text, order in (("s", "by used", (three, one, two)), ("s", "by peak", (three, one, two)),
                                 ("s", "by rate", ()), ("s", "by pid", ascending),
                                 ("r", "by pid, reversed", ascending[::-1]), ("r", "by pid", ascending),
                                 ("s", "by held", (two, one, three))):
            with self.subTest(key, text=text):
                top.press(key)
                top.until_line(text)
                if order:
                    top.until_order(*order)
        top.press("d")
        top.until(lambda frame: any(line.startswith("DEVICE ") for line in frame), "by device")
        self.assertEqual(top.order(one, two, three), [])
        top.press("d")
        top.until_order(two, one, three)
        top.press("\x1b")
        top.press("q")
        self.assertEqual(top.status(), 0)
        self.assertTrue(top.is_as_before(), top.output[-200:])

    def test_pause(self):
        process = scene(self, "hold:%d" % MIB, "say", "wait", "hold:%d" % (2 * MIB), "say", "wait", "drop")
        top = self.top(lines=200)
        row = lambda: next((line for line in top.frame if line.split()[:1] == [str(process.pid)]), "")
        top.until(lambda frame: "1.00 MiB" in row(), "1 MiB")
        top.press(" ")
        top.until_line("paused")
        process.step()
        for _ in range(3):  # drawn anew from what was read before
            count = top.output.count(END.encode())
            top.press("x")
            top.until_output(lambda count=count: top.output.count(END.encode()) > count, "drawn")
            self.assertIn("1.00 MiB", row())
        top.press("p")
        top.until(lambda frame: "3.00 MiB" in row(), "3 MiB")

    def test_scrolling(self):
        """One row is shown, by number: other processes may come and go before and behind it."""
        first, _, last = (process.pid for process in self.by_number(*self.three()))
        top = self.top("--sort", "pid", lines=4)
        top.until(lambda frame: len(frame) == 4, "four lines")
        shown = lambda: int(top.frame[2].split()[0])
        home, end = lambda _: shown() <= first, lambda _: int(top.frame[-1].split()[0]) >= last
        down, up = lambda before: shown() > before, lambda before: shown() < before
        for key, is_done in (("\x1b[H", home), ("\x1b[B", down), ("\x1b[A", up), ("\x1bOB", down), ("\x1b[H", home),
                             ("\x1b[6~", down), ("\x1b[5~", up), ("\x1b[F", end), ("\x1b[1~", home), ("\x1b[4~", end)):
            with self.subTest(repr(key)):
                before = shown()
                for byte in key:  # as over a slow line
                    top.press(byte)
                top.until(lambda frame, is_done=is_done, before=before: is_done(before), "scrolled")

    @staticmethod
    def shape(frame):
        """Its lines and columns."""
        return len(frame), max(map(len, frame), default=0)

    def test_sizes(self):
        scene(self, "use:1", name="a name of some length")
        top = self.top()
        for lines, columns in ((24, 80), (3, 10), (1, 1), (2, 200), (50, 200), (4, 40), (24, 79), (24, 12),
                               (24, 2000), (24, 65535)):
            with self.subTest("%d x %d" % (columns, lines)):
                before = self.shape(top.frame)
                top.resize(lines, columns)
                # Pictures of the size before may come yet, and no two sizes that follow each other have the same one.
                frame = top.until(lambda frame, size=(lines, columns), before=before: self.shape(frame) != before and
                                  self.shape(frame)[0] <= size[0] and self.shape(frame)[1] <= size[1], "drawn")
                if lines > 2:
                    self.assertRegex(frame[0], "^rmmshim to?")
                if columns >= 2000:
                    title = next(line for line in frame if "PROGRAM" in line)
                    self.assertEqual(len(title), columns)  # in reverse video, all of it
        top.press("q")
        self.assertEqual(top.status(), 0)

    def test_everything_fits_into_80_columns(self):
        """Of a process with a name of this length; columns are as wide as the rows that are shown, so it is shown
        alone."""
        process = scene(self, "hold:%d" % MIB, RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB")
        top = self.top("--sort", "pid", lines=3)
        top.until(lambda frame: len(frame) == 3, "one row")
        while (shown := int(top.frame[2].split()[0])) != process.pid:
            top.press("\x1b[B" if shown < process.pid else "\x1b[A")
            top.until(lambda frame, shown=shown: int(frame[2].split()[0]) != shown, "another row")
        words = ("PID", "PROGRAM", "DEVICE", "USED", "HELD", "PEAK", "LIMIT", "REFUSED", "HISTORY")
        # Other tests' processes come and go; those on a device with another UUID widen the column.
        top.until(lambda frame: all(word in frame[1] for word in words), "all of %s" % (words,))

    def test_the_columns_are_those_of_ls(self):
        """In the same order, as many as there is room for; rates and the history stand behind them."""
        # With all columns that only some processes have: others' may come and go between two looks.
        process = scene(self, "hold:%d" % MIB, RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB", RANK="1", RMM_LIMIT_JOB="2GiB",
                        RMM_JOB=self.path("job"))
        spiller = scene(self, *["hold:%d" % (30 * MIB)] * 3, RMM_RESOURCE="fallback(limiting(cuda, limit=64MiB), managed)")
        title_of = lambda text: next(line for line in text.splitlines() if "PROGRAM" in line)
        names_of = lambda text: title_of(text.replace("JOB LIMIT", "JOB-LIMIT")).split()
        columns = names_of(tool("ls").stdout)
        always = {"PID", "PROGRAM", "DEVICE", "USED", "HELD", "LIMIT", "REFUSED", "SPILLED"}
        for width in (200, 150, 100, 80):
            with self.subTest(width):
                top = self.top(lines=200, columns=width)
                top.until_order(spiller, process)
                # Another process's row may widen a column while it is there.
                shown = names_of("\n".join(top.until(lambda frame: always <= set(names_of("\n".join(frame))), always)))
                self.assertEqual([name for name in shown if name in columns], [name for name in columns if name in shown])
                self.assertEqual([name for name in shown if name not in columns],
                                 [name for name in ("ALLOC/S", "BYTES/S", "HISTORY") if name in shown])
                top.press("q")
                self.assertEqual(top.status(), 0)

    def test_help(self):
        process = scene(self, "use:1")
        top = self.top(lines=40)
        top.until_order(process)
        self.assertIn("h help", top.frame[-1])
        for key in "h?":
            top.press(key)
            top.until(lambda frame: all(any(line.startswith(word) for line in frame) for word in
                                        ("q    ", "p, space", "s    ", "r    ", "d    ", "arrows", "h, ?", "REFUSED")), "the keys")
            self.assertLessEqual(max(map(len, top.frame)), 80)
            self.assertEqual(top.order(process), [])
            top.press("x")
            top.until_order(process)
        top.press("h")
        top.until_line("p, space")
        top.press("q")
        self.assertEqual(top.status(), 0)

    def test_rates(self):
        """One picture has the rate of the time in which it was, be that short or long.  The process holds more than
        those of other tests, so that its row is in each picture."""
        process = scene(self, "use:1", "say", "wait", "use:1000", "say", "wait", RMM_POOL_SIZE="256MiB")
        top = self.top("--by", "process", lines=200, columns=150)
        top.until_order(process)

        def is_counted(frame):
            line = next((line for line in frame if line.split()[:1] == [str(process.pid)]), "")
            rate = re.search(r" 0 +([0-9]+) +[0-9.]+ [KMG]?i?B ", line)
            return rate is not None and int(rate.group(1)) > 0

        begin = len(top.output)
        process.step()
        top.until_output(lambda: any(map(is_counted, top.frames_from(begin))), "a rate")

    def test_processes_come_and_go(self):
        first = scene(self, "use:1")
        top = self.top(lines=200)
        top.until_order(first)
        second = scene(self, "use:1")
        top.until(lambda frame: len(top.order(first, second)) == 2, "two processes")
        first.end()
        top.until(lambda frame: top.order(first, second) == [str(second.pid)], "one process")

    def test_a_process_that_goes_on_as_another_program(self):
        process = scene(self, "hold:%d" % MIB, "say", "wait", "again:hold:%d,say,wait" % (7 * MIB))
        top = self.top(lines=200)
        top.until(lambda frame: any("1.00 MiB" in line and str(process.pid) in line for line in frame), "1 MiB")
        process.step()
        top.until(lambda frame: any("7.00 MiB" in line and str(process.pid) in line for line in frame), "7 MiB")

    def test_hostile_names(self):
        process = scene(self, "use:1", name=HOSTILE)
        top = self.top(lines=200)
        top.until_order(process)
        self.assertFalse(is_hostile("\n".join(top.frame)))
        self.assertNotIn(b"evil\x07", top.output)

    def test_pages_that_lie(self):
        real = scene(self, "use:1")
        top = self.top(lines=200)
        processes = [page(self, real.pid, change) for change in ("version", "directory:33554400", "empty", "same")]
        top.until_order(processes[-1])
        self.assertEqual(top.order(*processes[:-1]), [])
        top.until(lambda frame: re.search(r"\+ \d+ unreadable", frame[0]), "unreadable")
        for text in ("by used", "by peak", "by rate", "by pid"):  # said also where some are left out
            top.press("s")
            top.until(lambda frame, text=text: text in frame[0] and re.search(r"\+ \d+ unreadable", frame[0]), text)
        top.press("r")
        top.until(lambda frame: "by pid, reversed" in frame[0] and "unreadable" in frame[0], "reversed")


class Signals(Test):
    def started(self, *arguments):
        top = self.top(*arguments)
        top.until_line("rmmshim top")
        return top

    def test_the_terminal_is_given_back(self):
        for number, status in ((signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP),
                               (signal.SIGQUIT, -signal.SIGQUIT)):
            with self.subTest(number):
                top = self.started()
                self.assertNotEqual(termios.tcgetattr(top.slave), top.before)
                top.process.send_signal(number)
                self.assertEqual(top.status(), status)
                self.assertTrue(top.is_as_before(), top.output[-200:])

    def test_keys_that_are_signals(self):
        for key, status in (("\x03", 0), ("\x1c", -signal.SIGQUIT)):
            with self.subTest(repr(key)):
                top = self.started()
                top.press(key)
                self.assertEqual(top.status(), status)
                self.assertTrue(top.is_as_before())

    def test_stop_and_go(self):
        for stop in (lambda top: top.process.send_signal(signal.SIGTSTP), lambda top: top.press("\x1a")):
            top = self.started()
            for _ in range(2):
                stop(top)
                self.assertTrue(os.WIFSTOPPED(os.waitpid(top.process.pid, os.WUNTRACED)[1]))
                top.until_output(top.is_as_before, "the terminal as it was")
                drawn = len(top.output)
                top.process.send_signal(signal.SIGCONT)
                top.until(lambda frame, drawn=drawn: top.output.count(b"\x1b[H", drawn) > 2, "drawn again")
                self.assertIn(b"\x1b[?1049h", top.output[drawn:])
            top.press("q")
            self.assertEqual(top.status(), 0)

    def test_the_terminal_goes_away(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([served.TOOL, "top"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                   env={"TERM": "xterm"})
        os.close(slave)
        os.read(master, 100)
        os.close(master)
        self.assertEqual(process.wait(timeout=ENOUGH_SECONDS), 0)


class Looks(Test):
    def drawn(self, **environment):
        process = scene(self, "hold:%d" % (60 * MIB), RMM_POOL_SIZE="0", RMM_LIMIT="64MiB")
        top = self.top(lines=100, **environment)
        top.until(lambda frame: any(line.startswith("%d " % process.pid) and line.rstrip()[-1:] in "@\u2588" for line in
                                    (line.strip() for line in frame)), "a chart")
        return top

    def test_the_chart_shows_a_part(self):
        """Of the limit, else of the device: not of the most that was held."""
        for limit, block in (("64MiB", "\u2588"), ("600MiB", "\u2582"), (None, "\u2581")):
            with self.subTest(limit):
                settings = {"RMM_POOL_SIZE": "0", **({"RMM_LIMIT": limit} if limit else {})}
                process = scene(self, "hold:%d" % (60 * MIB), **settings)
                top = self.top(lines=100)
                top.until(lambda frame, pid=process.pid, block=block: any(
                    line.split()[:1] == [str(pid)] and line.rstrip().endswith(block) for line in frame), block)

    def test_colours(self):
        for environment, has_colors in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True),
                                        ({"TERM": "vt100"}, False), ({"TERM": "screen-256color"}, True),
                                        ({"TERM": "linux-m"}, False)):
            with self.subTest(str(environment)):
                top = self.drawn(**environment)
                self.assertEqual(b"\x1b[1;31m" in top.output, has_colors)
                self.assertEqual(b"\x1b[36m" in top.output, has_colors)

    def test_other_locales(self):
        top = self.drawn(LC_ALL="C")
        self.assertTrue(top.output.isascii())
        self.assertIn("@", "\n".join(top.frame))

    def test_a_terminal_that_can_nothing(self):
        for environment in ({"TERM": "dumb"}, {"TERM": ""}):
            top = Top(self, **environment)
            self.assertEqual(top.status(), 0)
            self.assertNotIn(b"\x1b", top.output)
            self.assertTrue(top.output.startswith(b"rmmshim top "), top.output)


class Once(Test):
    def test_in_a_pipe(self):
        """One picture for which no terminal is needed, with --once or without."""
        processes = self.three()
        for arguments in (["top"], ["top", "--once"], ["top", "--by", "device"], ["top", "--once", "--interval=0.1"]):
            with self.subTest(arguments):
                result = tool(*arguments)
                self.assertEqual(result.status, 0, result)
                self.assertNotIn("\x1b", result.stdout)
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
                if "device" not in arguments:
                    pids = [line.split()[0] for line in result.stdout.splitlines()]
                    for process in processes:
                        self.assertIn(str(process.pid), pids)

    def test_json(self):
        one, two, three = self.three()
        for sort, order in (("held", (two, one, three)), ("used", (three, one, two)), ("pid", self.by_number(one, two, three))):
            with self.subTest(sort):
                rows = json_schema.check(tool("top", "--once", "--json", "--sort", sort).stdout, "processes.json")
                pids = [process.pid for process in order]
                self.assertEqual([row["pid"] for row in rows if row["pid"] in pids], pids)
                self.assertNotIn("bytes_per_second", rows[0])
        rows = json_schema.check(tool("top", "--json", "--interval", "0.1").stdout, "processes.json")
        self.assertEqual([row["allocations_per_second"] for row in rows if row["pid"] == one.pid], [0])

    def test_wrong_usage(self):
        for arguments, line in (
            (["--onec"], "unknown option '--onec'; did you mean '--once'?"),
            (["4711"], "unknown option '4711'"),
            (["--by", "thread"], "unknown --by 'thread'"),
            (["--by"], "--by needs a value"),
            (["--sort", "usd"], "unknown --sort 'usd'; did you mean 'used'?"),
            (["--sort="], "--sort needs a value"),
            (["--interval", "0"], "--interval 0: expected a number of seconds from 0.1 to 3600"),
            (["--interval", "nan"], "--interval nan: expected a number of seconds from 0.1 to 3600"),
            (["--interval", "1s"], "--interval 1s: expected a number of seconds from 0.1 to 3600"),
            (["--interval"], "--interval needs a value"),
            (["--json", "--by", "device"], "--by device cannot be used with --json, which lists processes, not devices"),
        ):
            with self.subTest(arguments):
                result = tool("top", *arguments)
                self.assertEqual((result.status, result.stdout, result.stderr), (2, "", "rmmshim: %s\n" % line))

    def test_it_fails_when_it_cannot_write(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([served.TOOL, "top"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"rmmshim: standard output: No space left on device\n", result.stderr)


@unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
class Tmux(Test):
    """A whole terminal shows what we think it does."""

    def tmux(self, *arguments):
        return subprocess.run(["tmux", "-f", "/dev/null", "-S", self.path("tmux"), *arguments], capture_output=True, text=True,
                              check=False, env=dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8")).stdout

    def until(self, condition):
        def shown():
            text = self.tmux("capture-pane", "-p")
            return text if condition(text) else None
        return support.until(shown, "a picture").splitlines()

    def test_a_session(self):
        process = scene(self, "hold:%d" % MIB)
        pid = str(process.pid)
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", "env PS1=prompt: sh")
        self.addCleanup(self.tmux, "kill-server")
        self.until(lambda text: text.startswith("prompt:"))
        self.tmux("send-keys", served.TOOL + " top --sort pid", "Enter")
        lines = self.until(lambda text: pid in text and text.rstrip().endswith("scroll") and "\u2581" in text)
        self.assertEqual(len(lines), 24)
        self.assertTrue(lines[0].startswith("rmmshim top "))
        self.tmux("resize-window", "-x", "10", "-y", "3")
        lines = self.until(lambda text: text.count("\n") == 3 and "PID" in text)
        self.assertTrue(lines[0].startswith("rmmshim t"), lines)
        self.tmux("resize-window", "-x", "100", "-y", "30")
        self.until(lambda text: text.rstrip().endswith("scroll") and text.count("\n") == 30)
        self.tmux("send-keys", "d")
        self.until(lambda text: "PROCESSES" in text)
        self.tmux("send-keys", "C-z")
        self.until(lambda text: "prompt:" in text and "PROCESSES" not in text)
        self.tmux("send-keys", "fg", "Enter")
        self.until(lambda text: "PROCESSES" in text)
        self.tmux("send-keys", "q")
        self.until(lambda text: "prompt:" in text and "PROCESSES" not in text)
        self.assertEqual(self.tmux("display", "-p", "#{cursor_flag} #{alternate_on} #{wrap_flag}"), "1 0 1\n")


if __name__ == "__main__":
    support.main()
