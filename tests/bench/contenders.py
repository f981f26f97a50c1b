# SPDX-License-Identifier: Apache-2.0
"""Programs that take turns: all of them alive, one of them running, so that what the machine does meanwhile
falls on all alike and two figures of one turn can be compared."""
import collections
import math
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "gpu"))
from gpu_common import compare

Figure = collections.namedtuple("Figure", "name value unit fields")
# A limit on time only catches hangs, and a busy machine never meets it.
ENOUGH_SECONDS = 300

FIGURE = re.compile(r"^(\S+/\S+) (\S+) (ns|calls)((?: \w+=\S+)*)$")


def parse_figure(line):
    """`NAME VALUE UNIT KEY=VALUE...` as the programs print it, or None."""
    match = FIGURE.match(line)
    if not match:
        return None
    fields = dict(word.split("=", 1) for word in match.group(4).split())
    return Figure(match.group(1), float(match.group(2)), match.group(3), {key: float(value) for key, value in fields.items()})


def environment(setting, preload, shim=None):
    """setting: of rmmshim, which is preloaded then; or None.  preload: another library instead, or None.  shim: the
    rmmshim to take, where it is another one than RMMSHIM_LIBRARY."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RMM_") and name != "LD_PRELOAD"}
    libraries = [os.environ.get("LD_PRELOAD")]
    if setting is not None:
        libraries.append(shim or os.environ["RMMSHIM_LIBRARY"])
        env.update(setting)
    libraries = [library for library in libraries + [preload] if library]
    if libraries:
        env["LD_PRELOAD"] = ":".join(libraries)
    return env


class Contender:
    """A kind of memory, measured in a process of its own."""

    def __init__(self, name, program, memory, setting=None, preload=None, pool_bytes=0, foreign=False, shim=None):
        self.name, self.memory, self.pool_bytes = name, memory, pool_bytes
        self.foreign = foreign  # it may say what it likes to standard error
        self.command = [os.path.join(os.environ["PROGRAMS"], program), "--turns"]
        self.environment = environment(setting, preload, shim)
        self.process = self.errors = None
        self.problem = None

    def start(self):
        self.errors = tempfile.TemporaryFile()
        self.buffer = b""
        self.process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True, bufsize=0)

    def ready(self, timeout):
        """After start(); False where it did not become ready."""
        lines = self._read_until("ready", timeout)
        if lines is not None:
            self.say("memory %s %d" % (self.memory, self.pool_bytes), timeout)
        return not self.problem

    def say(self, line, timeout=ENOUGH_SECONDS):
        """Has a line done, and returns the figures of it."""
        if self.problem:
            return []
        try:
            self.process.stdin.write(line.encode() + b"\n")
            lines = self._read_until("done", timeout)
        except OSError as error:
            lines, self.problem = None, str(error)
        return [figure for figure in map(parse_figure, lines or []) if figure]

    def _read_until(self, last, timeout):
        end = time.monotonic() + timeout
        lines = []
        while True:
            while b"\n" in self.buffer:
                line, _, self.buffer = self.buffer.partition(b"\n")
                lines.append(line.decode(errors="replace"))
                if lines[-1] == last:
                    return lines
            if not select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                self.problem = "took more than %.0f s" % timeout
                return None
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                self.problem = "; ".join(["ended, status %s" % self.process.wait()] + lines[-2:] + self.said())
                return None
            self.buffer += more

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip().splitlines()[-3:]

    def end_soon(self):
        """So that several end at the same time."""
        try:
            if self.process:
                self.process.stdin.close()
        except OSError as error:
            self.problem = self.problem or str(error)

    def end(self):
        """Kills it where it is not well."""
        if not self.process:
            return
        try:
            self.end_soon()
            status = self.process.wait(ENOUGH_SECONDS if not self.problem else 0)
            if status != 0 and not self.problem:
                self.problem = "; ".join(["status %s at the end" % status] + self.said())
            if status == 0 and not self.foreign and self.said() and not self.problem:
                self.problem = "said: " + "; ".join(self.said())
        except (OSError, subprocess.TimeoutExpired):
            self.problem = self.problem or "did not end"
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.process = None


class Contest:
    """Contenders that are alive together; a context manager."""

    def __init__(self, contenders, figures):
        self.contenders, self.figures = contenders, figures

    def __enter__(self):
        try:
            for contender in self.contenders:
                contender.start()
            for contender in self.contenders:
                contender.ready(ENOUGH_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for contender in self.contenders:
            contender.end_soon()
        for contender in self.contenders:
            contender.end()

    def turns(self, line, count, contenders=None, timeout=ENOUGH_SECONDS):
        """Each turn on another core (`threads` spreads by itself), and every other one in reversed order."""
        contenders = contenders or self.contenders
        cores = sorted(os.sched_getaffinity(0))
        cores = cores[1:5] or cores  # the first one has the machine's own work
        for i in range(count):
            for contender in contenders if i % 2 == 0 else reversed(contenders):
                contender.say("core %s" % ("all" if line.startswith("threads") else cores[i % len(cores)]))
                for figure in contender.say(line, timeout):
                    self.figures.add(contender.name, i, figure)


class Figures:
    """What was measured: by the figure's name and the contender's."""

    def __init__(self):
        self.turns = {}  # name -> contender -> {turn: value}
        self.fields = {}  # name -> contender -> the latest fields
        self.units = {}

    def add(self, contender, turn, figure):
        self.turns.setdefault(figure.name, {}).setdefault(contender, {})[turn] = figure.value
        self.fields.setdefault(figure.name, {}).setdefault(contender, {}).update(figure.fields)
        self.units[figure.name] = figure.unit

    def median(self, name, contender):
        values = self.turns.get(name, {}).get(contender)
        return statistics.median(values.values()) if values else None

    def field(self, name, contender, field):
        return self.fields.get(name, {}).get(contender, {}).get(field)

    def pairs(self, name, contender, other):
        ours, theirs = (self.turns.get(name, {}).get(who, {}) for who in (contender, other))
        return [(ours[turn], theirs[turn]) for turn in ours if turn in theirs]

    def difference(self, name, contender, other):
        """The median of the differences within each turn."""
        pairs = self.pairs(name, contender, other)
        return statistics.median(a - b for a, b in pairs) if pairs else None

    def ratio(self, name, contender, other):
        """The median of the ratios within each turn."""
        pairs = [(a, b) for a, b in self.pairs(name, contender, other) if b > 0]
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def to_json(self):
        return {name: {contender: {"median": self.median(name, contender), "unit": self.units[name],
                                   "turns": {str(turn): value for turn, value in values.items()},
                                   **self.fields[name][contender]}
                       for contender, values in contenders.items()}
                for name, contenders in self.turns.items()}

    @staticmethod
    def from_json(data):
        figures = Figures()
        for name, contenders in data.items():
            for contender, entry in contenders.items():
                fields = {key: value for key, value in entry.items() if key not in ("median", "unit", "turns")}
                for turn, value in entry["turns"].items():
                    figures.add(contender, int(turn), Figure(name, value, entry["unit"], fields))
        return figures


def show_ns(value):
    if value is None or math.isnan(value):
        return "-"
    for limit, divisor, unit, digits in ((1000, 1, "ns", 1), (1e6, 1e3, "us", 2), (1e9, 1e6, "ms", 2)):
        if abs(value) < limit:
            return "%.*f %s" % (digits, value / divisor, unit)
    return "%.2f s" % (value / 1e9)
