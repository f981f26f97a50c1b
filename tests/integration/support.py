# SPDX-License-Identifier: Apache-2.0
"""What the integration tests share: paths from the build, and runs with and without the library.

meson sets RMMSHIM_LIBRARY, HOSTCUDA_DIRECTORY, PROGRAMS (where the test programs are), SAMPLES,
PRELOAD_FIRST, and TOOLKIT_LIBRARIES (empty without a CUDA Toolkit)."""
import contextlib
import difflib
import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SHIM = os.environ.get("RMMSHIM_LIBRARY", "")
HOSTCUDA = os.environ.get("HOSTCUDA_DIRECTORY", "")
PROGRAMS = os.environ.get("PROGRAMS", "")
SAMPLES = os.environ.get("SAMPLES", "")
PRELOAD_FIRST = os.environ.get("PRELOAD_FIRST", "")
TOOLKIT = os.environ.get("TOOLKIT_LIBRARIES", "")

# A wait for an event ends with it, so its limit only catches what never comes, and a busy machine never meets it.
ENOUGH_SECONDS = 120
MEASURED_SECONDS = 10  # where coverage is measured: what does not end by then leaves no trace
GDB_SECONDS = 60  # the program is ended after it, whatever gdb does

# Under a sanitizer a process takes up to ten times as long: of what is repeated, it does one in so many.
FEWER = 4 if PRELOAD_FIRST else 1

# In the report at out-of-memory, where others' pages could not all be read in 20 ms.
NO_TIME = "  the list of processes is incomplete, because there was no time to look at all of them\n"

LINE = re.compile(r"^rmmshim\[\d+\]: (.*)$")


def without_neighbours(text):
    """A report at out-of-memory without what other tests hold at the time."""
    return re.sub(r"^  \S+ \S+ held by .*\n", "", text.replace(NO_TIME, ""), flags=re.M)


def program(name):
    for folder in (PROGRAMS, SAMPLES):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    raise unittest.SkipTest("%s was not built" % name)


def until(ask, what="an event"):
    """Asks until the answer is true, and returns it; `what` is named when it never comes."""
    end = time.monotonic() + ENOUGH_SECONDS
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError("%s did not come in %d s" % (what, ENOUGH_SECONDS))
        time.sleep(0.002)


def let_end(process, number=None):
    """Before a process is killed: where coverage is measured it ends by itself, at the end of its input or by that signal,
    since one that is killed leaves no trace of what it has reached (tests/coverage/run)."""
    if "MEASURES_COVERAGE" not in os.environ:
        return
    with open(os.devnull, "wb") as nothing, contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
        if number is None:
            os.dup2(nothing.fileno(), process.stdin.fileno())
        else:
            process.send_signal(number)
        process.wait(MEASURED_SECONDS)


class Result:
    def __init__(self, status, stdout, stderr):
        self.status = status
        self.stdout = stdout.decode(errors="replace")
        self.stderr = stderr.decode(errors="replace")

    @property
    def said(self):
        """The library's own lines, without their prefix."""
        return [match.group(1) for match in map(LINE.match, self.stderr.splitlines()) if match]

    @property
    def outcome(self):
        return (self.status, self.stdout)

    def __str__(self):
        return "status %s\nstdout:\n%sstderr:\n%s" % (self.status, self.stdout, self.stderr)


def environment(settings=None, preload=None, driver=True, more=None):
    """A clean environment: no RMM_ variable but `settings`, the host-memory driver if wanted."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("RMM_", "HOSTCUDA_", "LD_"))}
    preload = [SHIM] if preload is None else list(preload)
    if PRELOAD_FIRST:
        preload.insert(0, PRELOAD_FIRST)
    if preload:
        env["LD_PRELOAD"] = ":".join(preload)
    if driver:
        env["LD_LIBRARY_PATH"] = HOSTCUDA
    # CUDA keeps memory to its end and so may programs; what is looked for here is not leaks.
    env["ASAN_OPTIONS"] = "detect_leaks=0:" + env.get("ASAN_OPTIONS", "")
    if driver:
        env["HOSTCUDA_WAITS"] = "1"  # no allocation may wait for the device
    env.update(more or {})
    env.update(settings or {})
    return env


def read_or_empty(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def group(leader):
    """The processes of a process group."""
    # After the name in parentheses: state, parent, process group.
    stats = {int(pid): read_or_empty("/proc/%s/stat" % pid).rpartition(")")[2].split()
             for pid in os.listdir("/proc") if pid.isdigit()}
    return [pid for pid, stat in stats.items() if len(stat) > 2 and stat[2] == str(leader)]


def stacks(leader):
    """Where each thread of a process group is: its stack where gdb is installed, else its system call."""
    lines = []
    for pid in group(leader):
        lines.append("process %d: %s" % (pid, read_or_empty("/proc/%d/cmdline" % pid).replace("\0", " ")))
        for at in sorted(glob.glob("/proc/%d/task/*/" % pid)):
            thread = at.split("/")[-2]
            state = read_or_empty(at + "stat").rpartition(")")[2].split()[:1]
            lines.append("  thread %s: state %s, in %s, system call %s" %
                         (thread, "".join(state), read_or_empty(at + "wchan"), read_or_empty(at + "syscall")))
        if not shutil.which("gdb"):
            continue
        try:
            gdb = subprocess.run(["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off",
                                  "-ex", "thread apply all bt"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, timeout=GDB_SECONDS, check=False)
            lines += ["  " + line for line in gdb.stdout.decode(errors="replace").splitlines()
                      if line.startswith(("#", "Thread"))]
        except subprocess.TimeoutExpired:
            lines.append("  gdb took more than %d s" % GDB_SECONDS)
    return "\n".join(lines)


def run(command, settings=None, timeout=ENOUGH_SECONDS, cwd=None, **how):
    """Runs with the library preloaded, or with preload=[] without it.  A run that takes too long ends
    with status None, its children with it, and its stacks stand at the end of stderr."""
    process = subprocess.Popen(command, env=environment(settings, **how), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, start_new_session=True)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        return Result(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        where = stacks(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Result(None, stdout, stderr + ("\nended after %d s:\n%s\n" % (timeout, where)).encode())


def difference(plain, served):
    """What is not the same, in a few lines."""
    lines = list(difflib.unified_diff(plain.stdout.splitlines(), served.stdout.splitlines(), "without", "with",
                                      lineterm="", n=0))
    if len(lines) > 24:
        lines[24:] = ["... %d lines more" % (len(lines) - 24)]
    return "\n".join(["status %s, without the library %s" % (served.status, plain.status)] + lines
                     + ["stderr: " + line for line in served.stderr.splitlines()[:10 if served.status is not None else None]])


def pairs(first, second):
    """All pairs of two lists; under a sanitizer one in FEWER, or in as many as keep each element of either list."""
    step = min(FEWER, len(first), len(second))
    return [(a, b) for i, a in enumerate(first) for j, b in enumerate(second) if (i + j) % step == 0]


_plain_runs = {}


@functools.lru_cache(maxsize=None)
def has_driver():
    """Whether this machine has a driver of its own, which a test without one would find."""
    return run(["python3", "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], preload=[], driver=False).status == 0


def run_plain(command, **how):
    """A run without the library; each is made once."""
    key = repr((command, sorted(how.items())))
    if key not in _plain_runs:
        _plain_runs[key] = run(command, preload=[], **how)
    return _plain_runs[key]


def whole_log(path):
    """The text of a log with what its .part holds, where there is one: as rmmshim-reports(7) says."""
    with open(path, "rb") as file:
        log = file.read()
    if not os.path.exists(path + ".part"):
        return log.decode()
    with open(path + ".part", "rb") as file:
        part = file.read()
    rows, at = part[:-24].split(b"\0")[0], int(part[-24:])
    return ((log[:at] + rows) if rows else log).decode()


class Test(unittest.TestCase):
    """Adds: a scratch folder, and comparison of a run with and without the library."""

    longMessage = True
    maxDiff = 5000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def only_without_a_driver(self):
        if has_driver():
            self.skipTest("this machine has a driver")

    def assert_same(self, command, settings=None, silent=True, **how):
        """The program prints and exits as without the library, and the library says nothing."""
        plain = run_plain(command, **how)
        served = run(command, settings, **how)
        if served.outcome != plain.outcome:
            self.fail("%s under %s\n%s" % (command, settings, difference(plain, served)))
        if silent:
            self.assertEqual(served.stderr, plain.stderr, "%s under %s" % (command, settings))
        return served


def main():
    unittest.main(argv=[sys.argv[0]] + sys.argv[1:], verbosity=2)
