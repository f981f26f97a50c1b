# SPDX-License-Identifier: Apache-2.0
"""Runs what suites.txt names of PyTorch's, CuPy's, numba-cuda's, RMM's, cuda.core's, Thrust's and CUB's own tests,
without the library and with it under each of the stacks, and compares what became of each test.  numba-cuda's tests are
those of the installed package; the others lie in .suites at the top of the tree, where scripts/fetch-suites
puts them; what is not there is left out.  build-cccl compiles Thrust's and CUB's.  Tests that came out differently run
once more by themselves on both sides: only what differs then too counts, and neither what
suite_differences.txt explains nor what came out both ways without the library.

    run_suites.py [--stacks NAME,NAME] [--seconds N] [--jobs N] [--suites NAME,NAME] [--files TEXT,TEXT]
                  [--base FILE] [--json FILE]

The stack `growing` is a pool without an initial size, and `limit` is this one with a limit for each file of
tests: what `growing` took for it from the driver, and a little more; so name growing before it.  FILE of --base is
written where it is not there: what was seen without the library.  A later call reads it and need not do it again.

RMMSHIM_LIBRARY is the library.  Exit status: 1 when a test differs and is not explained; 77 where there is
neither GPU nor suite."""
import argparse
import collections
import concurrent.futures
import glob
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import gpu_common
import suite_list
from gpu_common import compare

TOP = os.path.dirname(os.path.dirname(gpu_common.HERE))
POOL = {"RMM_POOL_SIZE": "1GiB"}
STACKS = {
    "pool": POOL,
    "bins": dict(POOL, RMM_BINNING="256KiB-4MiB"),
    "async": {"RMM_ASYNC": "1"},
    "virtual": {"RMM_RESOURCE": "virtual"},
    "growing": {"RMM_POOL_SIZE": "0"},
    "limit": {"RMM_POOL_SIZE": "0"},  # and limits, of what the stack `growing` took
}
SPARE_BYTES = 64 << 20  # above what was taken before: the order of threads varies it
STALL_SECONDS = 60  # without an outcome: the test hangs
CRASHES = 6  # of one unit, after which the rest of it is left
AGAIN_JOBS = 4  # tests that are run once more: few at a time, since many are disturbed by neighbours


def root_of(suite):
    """Where its tests are, or None."""
    if suite == "numba":
        spec = importlib.util.find_spec("numba_cuda")
        folder = os.path.join(os.path.dirname(spec.origin), "numba", "cuda", "tests") if spec else ""
    else:
        folder = os.path.join(TOP, ".suites", suite)
    return folder if os.path.isdir(folder) else None


def pytest_command(root, unit):
    file = os.path.join(root, unit.file)
    folders = [os.path.join(root, folder) for folder in suite_list.IMPORTED.get(unit.suite, ())]
    if not os.path.exists(os.path.join(os.path.dirname(file), "__init__.py")):
        folders.insert(0, os.path.dirname(file))  # the file may import what lies beside it
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite_plugin", "-p", "no:cacheprovider", "-c", os.devnull,
               "--rootdir", root, "-o", "consider_namespace_packages=true", "--continue-on-collection-errors"]
    if folders:
        command += ["-o", "pythonpath=" + shlex.join(folders)]
    if unit.expression:
        command += ["-k", unit.expression]
    return command + [file]


def command_of(root, unit):
    if unit.suite not in suite_list.COMPILED:
        return pytest_command(root, unit)
    return [sys.executable, os.path.join(gpu_common.HERE, unit.suite + "_outcomes.py"),
            os.path.join(root, "built", suite_list.program(unit))]


class Outcomes:
    """What the plugin wrote of one unit."""

    def __init__(self, path):
        self.collected, self.begun, self.ended = [], [], {}
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue  # cut off by a crash
                if "collected" in value:
                    self.collected += [name for name in value["collected"] if name not in self.collected]
                elif "begin" in value:
                    self.begun.append(value["begin"])
                elif "end" in value:
                    self.ended[value["end"]] = (value["outcome"], value["said"])

    @property
    def in_work(self):
        """The test in which the process ended, or None."""
        return next((name for name in self.begun if name not in self.ended), None)

    @property
    def unrun(self):
        return [name for name in self.collected if name not in self.ended]


class Side:
    """All units, without the library or with it."""

    def __init__(self, name, setting, folder, command=command_of, stall_seconds=STALL_SECONDS, limits=None):
        self.name, self.setting, self.folder = name, setting, folder
        self.command, self.stall_seconds = command, stall_seconds
        self.limits = limits or {}  # by file, in bytes
        self.outcomes = {}  # by test: (outcome, the end of what was said)
        self.seen = collections.defaultdict(set)  # by test: its outcomes in all runs
        self.where = {}  # by test: (unit, pytest's name of it)
        self.of_unit = {}  # by unit: its tests
        self.unrun = {}  # by unit: how many tests
        self.given_up = []  # units
        self.out_of_time = False
        self.lock = threading.Lock()
        self.paths = []  # (unit, path), of each run

    def environment(self, unit, path, only):
        setting = self.setting
        if unit.alone().name in self.limits:
            setting = dict(setting, RMM_LIMIT="%dB" % self.limits[unit.alone().name])
        env = compare.environment(setting, os.environ.get("RMMSHIM_LIBRARY", ""), path + ".report.%p.json")
        # The order of sets, and with it that of tests, is the same in every process.
        env.update({"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2",
                    "SUITE_OUTCOMES": path, "SUITE_SHARE": "%d/%d" % (unit.shard, unit.shards)})
        env.update(unit.environment)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), gpu_common.HERE]))
        if only:
            env["SUITE_ONLY"] = path + ".only"
            with open(env["SUITE_ONLY"], "w", encoding="utf-8") as file:
                file.write("\n".join(only))
        return env

    def watch(self, command, env, cwd, path, deadline):
        """Runs it; returns (status, output).  Status None: out of time; "stalled": no outcome for long."""
        with open(path + ".out", "w+b") as output:
            process = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            # Until it has said anything it starts, which may take longer than any test.
            size, since, status = os.path.getsize(path) if os.path.exists(path) else 0, time.monotonic(), None
            patience = max(self.stall_seconds, STALL_SECONDS)
            while True:
                try:
                    status = process.wait(0.25)
                    break
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    grown = os.path.getsize(path) if os.path.exists(path) else 0
                    if grown != size:
                        size, since, patience = grown, now, self.stall_seconds
                    if now > deadline:
                        break
                    if now - since > patience:
                        status = "stalled"
                        break
            try:  # what it started too
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            output.seek(max(0, output.seek(0, os.SEEK_END) - 3000))
            return status, output.read().decode(errors="replace")

    def run_unit(self, root, unit, deadline, only=None):
        """Runs it again behind each crash."""
        with self.lock:
            path = os.path.join(self.folder, "%s.%d.jsonl" % (self.name, len(self.paths)))
            self.paths.append((unit, path))
        env = self.environment(unit, path, only)
        done = Outcomes(path)
        for _ in range(CRASHES):
            if time.monotonic() > deadline:
                break
            status, output = self.watch(self.command(root, unit), env, root, path, deadline)
            begun_before, done = len(done.begun), Outcomes(path)
            if status is None or status in (0, 1, 5) and not done.unrun:
                break
            broken = done.in_work
            if broken:
                outcome = "stalled" if status == "stalled" else "crashed"
                said = "status %s\n%s" % (status, output)
                with open(path, "a", encoding="utf-8") as file:
                    file.write("\n" + json.dumps({"end": broken, "outcome": outcome, "said": said[-2000:]}) + "\n")
                done.ended[broken] = (outcome, said[-2000:])
            elif len(done.begun) == begun_before or not done.unrun:
                # Not a test's fault: it did not start, or did not end.
                if status not in (0, 1, 5):
                    done.ended[unit.file + " (as a whole)"] = ("error", "status %s\n%s" % (status, output[-1500:]))
                break
        else:
            with self.lock:
                self.given_up.append(unit)
        with self.lock:
            if time.monotonic() > deadline and (done.unrun or not done.collected):
                self.out_of_time = True
            for test, value in done.ended.items():
                name = unit.name_of(test)
                self.outcomes[name] = value
                self.seen[name].add(value[0])
                if test in done.collected:
                    self.where[name] = (unit, test)
            if not only:
                self.of_unit[unit.name] = [unit.name_of(test) for test in done.ended]
                self.unrun[unit.name] = len(done.unrun)
        return done

    def reports(self, unit):
        """What each process of the unit's file reported."""
        for path in [path for other, path in self.paths if other.alone().name == unit.alone().name]:
            for name in sorted(glob.glob(glob.escape(path) + ".report.*.json")):
                report = compare.Run({})
                try:
                    with open(name, encoding="utf-8") as file:
                        report.report = json.load(file)
                except ValueError:
                    continue  # its process was killed while it wrote
                yield report

    def saved(self):
        """What a later call needs of this side, as JSON."""
        return {"outcomes": self.outcomes, "seen": {test: sorted(outcomes) for test, outcomes in self.seen.items()},
                "of_unit": self.of_unit, "unrun": self.unrun,
                "out_of_time": self.out_of_time, "where": {name: [unit.name, test] for name, (unit, test) in self.where.items()},
                "given_up": [unit.name for unit in self.given_up]}

    def restore(self, saved, units):
        """Of the units alone, as their side would be that had run."""
        named = {unit.name: unit for unit in units}
        alone = {unit.alone().name: unit.alone() for unit in units}  # of tests that ran once more
        self.of_unit = {name: tests for name, tests in saved["of_unit"].items() if name in named}
        self.unrun = {name: saved["unrun"][name] for name in self.of_unit}
        for test in [test for tests in self.of_unit.values() for test in tests]:
            self.outcomes[test] = tuple(saved["outcomes"][test])
            self.seen[test].update(saved["seen"][test])
            if test in saved["where"]:
                unit, name = saved["where"][test]
                self.where[test] = (named.get(unit) or alone[unit], name)
        self.given_up = [named[name] for name in saved["given_up"] if name in named]
        self.out_of_time = saved["out_of_time"] and any(self.unrun.values())

    def run(self, work, jobs, deadline):
        """work: (root, unit, tests to run or None).  Returns the outcomes of each."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            return [future.result() for future in
                    [pool.submit(self.run_unit, root, unit, deadline, only) for root, unit, only in work]]


def differing(base, other):
    """Tests that both sides ran, with different outcomes."""
    return [name for name in base.outcomes
            if name in other.outcomes and base.outcomes[name][0] != other.outcomes[name][0]]


def missed(base, other):
    """Tests that only base ran: the other side could not read the file, say."""
    return [name for name in base.outcomes if name not in other.outcomes and name in base.where]


def judge(base, other, explained):
    """(lines about what is wrong, lines about what differs and is not)."""
    wrong, fine = [], []
    for name in differing(base, other):
        outcomes = (base.outcomes[name][0], other.outcomes[name][0])
        line = "%s %s -> %s" % (name, *outcomes)
        if explained.get(name) == outcomes:
            fine.append("explained: " + line)
        elif other.seen[name] <= base.seen[name]:
            fine.append("unsteady without rmmshim too: " + line)
        else:
            wrong.append(line)
    for name, outcomes in explained.items():
        if name in base.outcomes and name in other.outcomes and name not in differing(base, other):
            fine.append("explained: %s no longer differs (%s -> %s in the list)" % (name, *outcomes))
    for unit in other.given_up:
        if unit.name not in [given_up.name for given_up in base.given_up]:
            wrong.append("%s: left after %d crashes" % (unit.name, CRASHES))
    if missed(base, other) and not other.out_of_time:
        wrong.append("%d tests ran only without rmmshim: %s ..." % (len(missed(base, other)), missed(base, other)[0]))
    if other.out_of_time and not base.out_of_time:
        wrong.append("without rmmshim all tests were reached in time, with it not")
    if base.outcomes and not any(value[0] == "passed" for value in base.outcomes.values()):
        wrong.append("no test passes without rmmshim, so nothing is compared")
    return wrong, fine


def run_again(sides, roots, seconds):
    """Each test that differs by itself, on both sides, and what only one has run.  Returns how many these are, and how
    many of them both sides reached in time."""
    work, reached = [], []
    for name in differing(*sides) + ([] if sides[1].out_of_time else missed(*sides)):
        if name in sides[0].where:  # else it is a file as a whole
            unit, test = sides[0].where[name]
            work.append((roots[unit.suite], unit.alone(), [test]))
    for side in sides:
        out_of_time = side.out_of_time
        done = side.run(work, AGAIN_JOBS, time.monotonic() + seconds)
        reached.append([only[0] in each.ended for (_, _, only), each in zip(work, done)])
        side.out_of_time = out_of_time
    return len(work), sum(map(all, zip(*reached)))


def files_of(units):
    """One unit for each file, or each way to run it."""
    return list({unit.alone().name: unit.alone() for unit in units}.values())


def served(side, units):
    """Allocations that the stack served in all processes of the units."""
    return sum(report.allocations or 0 for unit in files_of(units) for report in side.reports(unit))


def limits_of(side, units):
    """By file: a limit just above the most that one of its processes took from the driver.  A process that crashed, or was
    killed as it hung, left no report; so its file has none."""
    lost = [unit.alone().name for unit in units
            if any(side.outcomes[test][0] in ("crashed", "stalled") for test in side.of_unit.get(unit.name, ()))]
    taken = {unit.name: [report.counter("account", "charged_peak") or 0 for report in side.reports(unit)]
             for unit in files_of(units)}
    return {name: max(peaks) + SPARE_BYTES for name, peaks in taken.items() if peaks and name not in lost}


def table(sides, units):
    """A row for each file and side, and the sums of each side."""
    rows = [["file", "side", "tests", "passed", "failed", "skipped", "other", "unrun"]]
    sums = {side.name: [0] * 6 for side in sides}
    for name in [unit.name for unit in files_of(units)]:
        shares = [unit for unit in units if unit.alone().name == name]
        for side in sides:
            kinds = collections.Counter(side.outcomes[test][0] for unit in shares for test in side.of_unit[unit.name])
            known = [kinds["passed"], kinds["failed"] + kinds["error"], kinds["skipped"]]
            numbers = [sum(kinds.values())] + known + [sum(kinds.values()) - sum(known),
                                                       sum(side.unrun[unit.name] for unit in shares)]
            sums[side.name] = [one + other for one, other in zip(sums[side.name], numbers)]
            rows.append([name, side.name] + [str(number) for number in numbers])
    rows += [["all", name] + [str(number) for number in numbers] for name, numbers in sums.items()]
    return compare.text_table(rows, right=range(2, 8))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=190, help="for all tests of a side (190)")
    parser.add_argument("--again-seconds", type=int, default=60, help="for the tests that differ, a side (60)")
    parser.add_argument("--jobs", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 4)))
    parser.add_argument("--suites", default=",".join(suite_list.SUITES), metavar="NAME,NAME")
    parser.add_argument("--stacks", type=lambda text: text.split(","), default=["pool"], metavar="NAME,NAME",
                        help="%s (pool)" % ", ".join(STACKS))
    parser.add_argument("--base", metavar="FILE", help="what a call sees without the library, for later calls")
    parser.add_argument("--files", metavar="TEXT,TEXT", help="only files whose names have one of these in them")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    chosen = args.suites.split(",")
    if not set(chosen) <= set(suite_list.SUITES):
        parser.error("known suites are %s" % " ".join(suite_list.SUITES))
    if not set(args.stacks) <= set(STACKS):
        parser.error("known stacks are %s" % " ".join(STACKS))
    if "limit" in args.stacks and not args.base and "growing" not in args.stacks[:args.stacks.index("limit")]:
        parser.error("limit has its limits from growing: --stacks growing,limit")
    try:
        units, _ = suite_list.read_list()
        explained = suite_list.read_differences()
    except suite_list.Bad as error:
        parser.error(str(error))
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    roots = {suite: root_of(suite) for suite in chosen}
    for suite in chosen:
        if not roots[suite]:
            print("%s: its tests are not there, left out" % suite)
    units = [unit for unit in units if roots.get(unit.suite)
             and (not args.files or any(text in unit.file for text in args.files.split(",")))]
    for unit in [unit for unit in units if not os.path.exists(command_of(roots[unit.suite], unit)[-1])]:
        print("%s: not there, left out" % unit.name)
        units.remove(unit)
    if not units:
        return 77
    with tempfile.TemporaryDirectory(prefix="rmmshim-suites-") as folder:
        return compare_sides(args, folder, roots, units, explained)


def run_side(side, args, roots, units):
    begin = time.monotonic()
    side.run([(roots[unit.suite], unit, None) for unit in units], args.jobs, begin + args.seconds)
    kinds = collections.Counter(outcome for outcome, _ in side.outcomes.values())
    print("%s: %d tests (%s), %d unrun, %.0f s" % (
        side.name, len(side.outcomes), ", ".join("%d %s" % (count, kind) for kind, count in kinds.most_common()),
        sum(side.unrun.values()), time.monotonic() - begin), flush=True)


def compare_sides(args, folder, roots, units, explained):
    base, limits = Side("without", None, folder), {}
    known = args.base and os.path.exists(args.base)
    if known:
        with open(args.base, encoding="utf-8") as file:
            saved = json.load(file)
        limits = saved["limits"]
        base.restore(saved["base"], units)
        print("without: %d tests of %s" % (len(base.outcomes), args.base))
    missing = [unit for unit in units if unit.name not in base.of_unit]
    if missing:
        run_side(base, args, roots, missing)
    sides, all_wrong, first = [base], [], {}
    for stack in args.stacks:
        side = Side(stack, STACKS[stack], folder, limits=limits if stack == "limit" else None)
        sides.append(side)
        run_side(side, args, roots, units)
        if stack == "growing":
            limits.update(limits_of(side, units))
        elif stack == "limit":
            limited = len([unit for unit in files_of(units) if unit.name in limits])
            print("limit: %d of %d files had one" % (limited, len(files_of(units))))
        first[stack] = {name: [each.outcomes[name][0] for each in (base, side)] for name in differing(base, side)}
        count, reached = run_again([base, side], roots, args.again_seconds)
        if count:
            print("%s: %d tests differed, %d of them ran once more by themselves, %d differ still" % (
                stack, count, reached, len(differing(base, side))))
        wrong, fine = judge(base, side, explained)
        if stack == "limit" and not limited:
            wrong.append("no file had a limit")
        for suite in dict.fromkeys(unit.suite for unit in units):
            allocations = served(side, [unit for unit in units if unit.suite == suite])
            print("%s: %s: the stack served %s allocations" % (stack, suite, compare.number(allocations)))
            if not allocations:
                wrong.append("%s: the stack served nothing" % suite)
        for line in fine:
            print("%s: %s" % (stack, line))
        for line in wrong:
            print("FAILED: %s: %s" % (stack, line), flush=True)
        all_wrong += ["%s: %s" % (stack, line) for line in wrong]
        # Now, lest the time ends during the next.
        if args.json:
            write_json(args.json, sides, first, all_wrong)
        if args.base and not known:
            with open(args.base, "w", encoding="utf-8") as file:
                json.dump({"base": base.saved(), "limits": limits}, file)
    print(table(sides, units))
    print("suites: %s" % ("%d wrong" % len(all_wrong) if all_wrong else "all well"))
    return 1 if all_wrong else 0


def write_json(path, sides, first, wrong):
    names = dict.fromkeys(name for side in sides for name in side.outcomes)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({
            "sides": [side.name for side in sides], "first": first, "wrong": wrong,
            "tests": {name: [side.outcomes.get(name, ("unrun", ""))[0] for side in sides] for name in names},
            "said": {side.name: {name: value[1] for name, value in side.outcomes.items() if value[1]}
                     for side in sides},
        }, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
