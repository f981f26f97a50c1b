# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: rmmshim, the driver, cudaMallocAsync, a door with no allocator behind it (the floor) and,
where its packages are, RMM, by turns on the same core.  Prints a table for each group of workloads.

    run_bench.py [--only GROUP,...] [--quick] [--json FILE]
    run_bench.py --before LIBRARY [--quick]
    run_bench.py --against NAME=VALUE [--quick]

fence     what a fence costs here: what our larger figures are made of
pairs     allocate and free one block, by size; `shared` is the runtime door, `static` the driver's
random    random sizes: RMM's own benchmark, and sizes of all magnitudes
threads   pairs by 1 to 16 threads at once, wall time of a round; with a stream for each thread too
busy      a free while a kernel runs
streams   kernels on 1, 2 and 4 streams, each with a block that is freed at once
pinned    pinned host memory
tails     pairs while one kernel runs that does not end: the worst calls, by how many pairs there were
startup   a program's first CUDA calls, and the process as a whole
preload   a process that uses no CUDA
observed  pairs below deep stacks of Python and C, by what observes them: statistics, log, tracking, recording

PROGRAMS is the folder of the programs, RMMSHIM_LIBRARY the library, EXPORTS (where the driver is the one of
tests/hostcuda) the list of its functions.  --quick: fewer turns.  --before: pairs, threads, random sizes, frees
beside a kernel and streams, by an earlier librmmshim.so and this one, two processes each, and the ratio of
their times (that of two like processes tells how far to trust it).  --against: the same of the stack that a
variable makes, RMM_RESOURCE=virtual say, and that of RMM_POOL_SIZE.  Exit status: 1 when a program failed or saw
an error, never for a figure; 77 without a device."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from contenders import ENOUGH_SECONDS, Contender, Contest, Figures, compare, environment, parse_figure, show_ns
import gpu_common

GIB = 1 << 30
PAIR_SIZES = [256, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
THREADS = [1, 2, 4, 8, 16]
THREAD_SIZES = [4 << 10, 1 << 20]
LOG_SIZES = [1 << 20, 64 << 20]
RMM_COUNTS = [1000, 10000, 100000]
RMM_MIB = [1, 4, 64, 256, 1024, 4096]
PINNED_SIZES = [64 << 20, 512 << 20]
BUSY_BYTES = 1 << 20
STREAMS = [1, 2, 4]
TAIL_SIZES = [256, 4 << 10, 64 << 10]
RANDOM_POOL = 20 * GIB  # of which RMM's benchmark has 16000 MiB live

FLAVOURS = ["static", "shared"]
RMM_MEMORY = ["pool", "arena", "binning", "async"]

figures = Figures()
wrong, notes = [], []


def programs(name):
    return os.path.join(os.environ["PROGRAMS"], name)


def has_rmm():
    return os.path.exists(programs("bench_rmm"))


def pool_setting(pool_bytes, **more):
    return dict({"RMM_POOL_SIZE": str(pool_bytes)}, **more)


def rmm(memory, pool_bytes):
    return Contender("RMM " + memory.replace("_", " "), "bench_rmm", "rmm_" + memory, pool_bytes=pool_bytes, foreign=True)


def contenders(pool_bytes, floor, groups):
    """groups: which of driver, async, floor, rmmshim, binning, hooked, rmm."""
    made = []
    for flavour in FLAVOURS:
        program = "bench_" + flavour
        if "driver" in groups:
            made.append(Contender(flavour + " driver", program, "cuda"))
        if "async" in groups and flavour == "static":
            made.append(Contender("cudaMallocAsync", program, "async"))
        if "floor" in groups:
            made.append(Contender(flavour + " floor", program, "cuda", preload=programs(floor)))
        if "rmmshim" in groups:
            made.append(Contender(flavour + " rmmshim", program, "cuda", pool_setting(pool_bytes)))
        if flavour == "shared":
            continue
        if "binning" in groups:
            made.append(Contender("static rmmshim, bins", program, "cuda",
                                  pool_setting(pool_bytes, RMM_BINNING="256KiB-4MiB")))
        if "hooked" in groups:
            made.append(Contender("rmmshim, cudaMallocAsync", program, "async", pool_setting(pool_bytes, RMM_HOOKS="all")))
    if "rmm" in groups and has_rmm():
        made += [rmm(memory, pool_bytes) for memory in RMM_MEMORY]
    return made


def close(contest):
    for contender in contest.contenders:
        if contender.problem:
            wrong.append("%s: %s" % (contender.name, contender.problem))


# ---- groups ----


def short_groups(groups, quick):
    """Those that do with the same processes."""
    turns, ms = (3, 1) if quick else (15, 4)
    everyone = contenders(4 * GIB, "libfloor.so", {"driver", "async", "floor", "rmmshim", "binning", "hooked", "rmm"})
    with Contest(everyone, figures) as contest:
        if "fence" in groups:
            contest.turns("fence", turns, [contender for contender in everyone if contender.name == "static driver"])
        if "pairs" in groups:
            for size in PAIR_SIZES:
                contest.turns("pairs %d %d" % (size, ms), turns)
        if "threads" in groups:
            streams = [contender for contender in everyone if contender.memory not in ("cuda", "pinned")]
            for count in THREADS:
                for size in THREAD_SIZES:
                    contest.turns("threads %d %d %d" % (count, size, 2 * ms), 3 if quick else 5)
                contest.turns("threads %d %d %d own" % (count, THREAD_SIZES[-1], 2 * ms), 1 if quick else 3, streams)
        if "busy" in groups:
            contest.turns("busy %d 3" % BUSY_BYTES, 1 if quick else 3)
        if "streams" in groups:
            for count in STREAMS:
                contest.turns("streams %d 4" % count, 1 if quick else 3)
    close(contest)


def random_log(quick):
    everyone = contenders(4 * GIB, "libfloor_addresses.so", {"driver", "async", "floor", "rmmshim", "binning", "rmm"})
    with Contest(everyone, figures) as contest:
        for size in LOG_SIZES:
            contest.turns("random_log %d %d %d" % (size, 4 * GIB, 4 if quick else 10), 3 if quick else 9)
    close(contest)


def random_rmm(quick):
    """The floor and rmmshim by turns.  The others take long and much memory: RMM's pools one at a time, as
    large as in its own benchmark; no row longer than its limit, which then is of the beginning of it."""
    limit_ms = 300 if quick else 6000
    with Contest(contenders(RANDOM_POOL, "libfloor_addresses.so", {"floor", "rmmshim"}), figures) as contest:
        for count in RMM_COUNTS:
            for mib in RMM_MIB:
                contest.turns("random_rmm %d %d %d" % (count, mib, limit_ms), 3 if quick else 5)
    close(contest)
    others = [contender for contender in contenders(0, "", {"driver", "async", "rmm"}) if contender.name != "shared driver"]
    pools = [contender for contender in others if contender.memory in ("rmm_pool", "rmm_arena", "rmm_binning")]
    for together in [[contender] for contender in pools] + [[contender for contender in others if contender not in pools]]:
        with Contest(together, figures) as contest:
            side_by_side(contest, quick, limit_ms)
        close(contest)


def side_by_side(contest, quick, limit_ms):
    """One run of each row, each process on a core of its own."""
    counts = RMM_COUNTS[:2] if quick else RMM_COUNTS
    cores = sorted(os.sched_getaffinity(0))
    lock = threading.Lock()

    def rows(index, contender):
        limit = min(limit_ms, 1000) if contender.memory == "cuda" else limit_ms
        contender.say("core %d" % cores[(index + 1) % len(cores)])
        for count in counts:
            for mib in RMM_MIB:
                for figure in contender.say("random_rmm %d %d %d" % (count, mib, limit), limit / 1e3 + ENOUGH_SECONDS):
                    with lock:
                        figures.add(contender.name, 0, figure)

    threads = [threading.Thread(target=rows, args=item) for item in enumerate(contest.contenders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pinned(quick):
    setting = {"RMM_PINNED_POOL_SIZE": str(4 * GIB)}
    everyone = [Contender("static driver", "bench_static", "pinned"),
                Contender("static rmmshim", "bench_static", "pinned", setting),
                Contender("shared rmmshim", "bench_shared", "pinned", setting)]
    if has_rmm():
        everyone.append(rmm("pinned_pool", 4 * GIB))
    found = Figures()
    with Contest(everyone, found) as contest:
        for size in PINNED_SIZES:
            contest.turns("pairs %d 2" % size, 2 if quick else 3)
    close(contest)
    add_renamed(found, "pinned_")


def add_renamed(found, prefix):
    for name, by_contender in found.turns.items():
        for contender, values in by_contender.items():
            for turn, value in values.items():
                figures.add(contender, turn, parse_figure("%s%s %s ns" % (prefix, name, value)))


def tails(quick):
    """What is freed meanwhile is held: 64 KiB for fewer pairs."""
    with Contest([Contender("static rmmshim", "bench_static", "cuda", pool_setting(GIB))], figures) as contest:
        for size in TAIL_SIZES:
            pairs = 100000 if quick else min(4000000, 32 * GIB // size)
            contest.turns("tails %d %d" % (size, pairs), 1, timeout=2 * ENOUGH_SECONDS)
        contest.turns("tails 0 %d" % (30000 if quick else 1000000), 1, timeout=2 * ENOUGH_SECONDS)
    close(contest)


def output_of(command, timeout, env=None):
    """Its figures; a failure goes to `wrong`."""
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                                timeout=timeout, env=env)
    except subprocess.TimeoutExpired:
        wrong.append("%s took more than %d s" % (os.path.basename(command[0]), timeout))
        return []
    if result.returncode != 0 or result.stderr:
        wrong.append("%s: status %d; %s" % (os.path.basename(command[0]), result.returncode,
                                            "; ".join((result.stdout + result.stderr).decode(errors="replace").splitlines()[-3:])))
        return []
    return [figure for figure in map(parse_figure, result.stdout.decode().splitlines()) if figure]


def startup(quick):
    exports = os.environ.get("EXPORTS")
    setting = pool_setting(GIB)
    for flavour in FLAVOURS:
        command = [programs("startup_" + flavour)] + ([exports] if exports else [])
        for turn in range(3):
            for name, env in (("driver", environment(None, None)), ("rmmshim", environment(setting, None))):
                for figure in output_of(command, ENOUGH_SECONDS, env):
                    # Calls are as good as a figure of time, but never of the same name.
                    name_of = figure.name if figure.unit == "ns" else figure.name.replace("startup/", "startup_calls/")
                    figures.add("%s %s" % (flavour, name), turn, figure._replace(name=name_of))
    spawn("process/startup", 5 if quick else 6, [programs("startup_static")], setting)


def preload(quick):
    spawn("process/true", 100 if quick else 400, ["/bin/true"], pool_setting(GIB))


def observed(quick):
    command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "observed.py"),
               programs("libobserved.so")] + (["--quick"] if quick else [])
    with tempfile.TemporaryDirectory() as folder:
        observers = {
            "pool": {},
            "statistics": {"RMM_STATISTICS": "json:" + os.path.join(folder, "report.json")},
            "log": {"RMM_LOG": os.path.join(folder, "log.csv")},
            "tracking": {"RMM_TRACKING": "json:" + os.path.join(folder, "leaks.json")},
            "recording": {"RMM_RECORD": os.path.join(folder, "a.rec")},
            "with sites": {"RMM_RECORD": os.path.join(folder, "b.rec"), "RMM_RECORD_SITES": "all"},
        }
        for turn in range(1 if quick else 3):
            for name, setting in observers.items():
                for figure in output_of(command, ENOUGH_SECONDS, environment(pool_setting(GIB, **setting), None)):
                    figures.add(name, turn, figure)
        # Without Python, what an event costs: half of what a recording adds to a pair.
        found = Figures()
        setting = pool_setting(GIB, RMM_RECORD=os.path.join(folder, "c.rec"), RMM_RECORD_SIZE="1GiB")
        with Contest([Contender("pool", "bench_static", "cuda", pool_setting(GIB)),
                      Contender("recording", "bench_static", "cuda", setting)], found) as contest:
            for size in PAIR_SIZES[:3]:
                contest.turns("pairs %d 3" % size, 2 if quick else 24)
        close(contest)
    add_renamed(found, "observed_")


def spawn(name, count, command, setting):
    shim = os.environ["RMMSHIM_LIBRARY"]
    env = dict(environment(None, None), **setting)
    core = sorted(os.sched_getaffinity(0))[-1]
    found = output_of([programs("spawn"), "--core", str(core), str(count), "-," + shim] + command, ENOUGH_SECONDS, env)
    by_number = {figure.name: figure for figure in found}
    for number, who in (("0", "without"), ("1", "rmmshim")):
        figure = by_number.get("spawn/" + number)
        if figure:
            figures.add(who, 0, figure._replace(name=name))


SHORT_GROUPS = ["fence", "pairs", "threads", "busy", "streams"]
GROUPS = SHORT_GROUPS + ["random", "pinned", "tails", "startup", "preload", "observed"]


def compare_with(first, second, quick):
    """Each is a name, a library or None for this one, and a setting.  Two processes of each, as like ones differ by up
    to 4 % for as long as they live."""
    turns, ms = (2, 1) if quick else (9, 3)
    everyone = [Contender("%s %s%s" % (flavour, name, again), "bench_" + flavour, "cuda", setting, shim=shim)
                for flavour in FLAVOURS
                for (name, shim, setting), again in ((first, ""), (second, ""), (second, " 2"), (first, " 2"))]
    with Contest(everyone, figures) as contest:
        for size in PAIR_SIZES:
            contest.turns("pairs %d %d" % (size, ms), turns)
        for count in THREADS[:1] + [THREADS[-1], 64]:
            for size in THREAD_SIZES:
                contest.turns("threads %d %d %d" % (count, size, 2 * ms), turns)
        for size in LOG_SIZES:
            contest.turns("random_log %d %d %d" % (size, 2 * GIB, 2 * ms), turns)
        contest.turns("busy %d 3" % BUSY_BYTES, min(turns, 3))
        contest.turns("streams %d 4" % STREAMS[-1], min(turns, 3))
    close(contest)
    a, b = second[0], first[0]
    rows = [["%s / %s (two like ones)" % (a, b)] + FLAVOURS]
    for name in figures.turns:
        pairs = [[figures.ratio(name, "%s %s" % (flavour, one), "%s %s" % (flavour, other))
                  for one, other in ((a, b), (a + " 2", b + " 2"), (b + " 2", b), (a + " 2", a))]
                 for flavour in FLAVOURS]
        rows.append([name] + ["-" if None in ratios else "%s: %.3f %.3f (%.3f %.3f)" % ((show_ns(figures.median(name, "%s %s" % (flavour, a))),) + tuple(ratios))
                              for flavour, ratios in zip(FLAVOURS, pairs)])
    print(compare.text_table(rows, right=range(1, len(rows[0]))))


def run_groups(groups, quick):
    if set(SHORT_GROUPS) & set(groups):
        short_groups(groups, quick)
    if "random" in groups:
        random_log(quick)
        random_rmm(quick)
    for group in (pinned, tails, startup, preload, observed):
        if group.__name__ in groups:
            group(quick)


# ---- what came of it ----


def check_failures():
    """An allocation that fails turns into a free in RMM's benchmark: what is measured is then another thing."""
    for name, by_contender in figures.fields.items():
        for contender, fields in by_contender.items():
            if not fields.get("failures"):
                continue
            text = "%s, %s: %d allocations failed" % (contender, name, fields["failures"])
            (wrong if "rmmshim" in contender else notes).append(text)


PREFERRED = ["static floor", "static rmmshim", "shared floor", "shared rmmshim"]


def table(prefix):
    names = [name for name in figures.turns if name.startswith(prefix)]
    if not names:
        return
    found = list(dict.fromkeys(contender for name in names for contender in figures.turns[name]))
    columns = [name for name in PREFERRED if name in found] + [name for name in found if name not in PREFERRED]
    rows = [["median"] + columns]
    for name in names:
        row = [name]
        for column in columns:
            value = figures.median(name, column)
            text = "-" if value is None else "%.0f" % value if figures.units[name] == "calls" else show_ns(value)
            if figures.field(name, column, "finished") == 0:
                text = "> %s" % text  # the beginning of it
            row.append(text)
        rows.append(row)
    print("\n" + compare.text_table(rows, right=range(1, len(rows[0]))))


TAIL_FIELDS = ["p99", "p9999", "worst", "unfaulted_p9999", "unfaulted_worst", "grown", "worst_grown"]


def tail_table():
    """unfaulted: of pairs in which the host's kernel had no page to give; grown: allocations that asked the
    driver, which are in no other figure."""
    rows = [["tails", "median"] + TAIL_FIELDS]
    for name, by_contender in figures.turns.items():
        if not name.startswith("tails"):
            continue
        for contender in by_contender:
            values = [figures.field(name, contender, field) for field in TAIL_FIELDS]
            rows.append([name, show_ns(figures.median(name, contender))] +
                        ["-" if value is None else "%d" % value if field == "grown" else show_ns(value)
                         for field, value in zip(TAIL_FIELDS, values)])
    if len(rows) > 1:
        print("\n" + compare.text_table(rows, right=range(1, len(rows[0]))))


def ratios():
    """Lines for programs: each of our figures against the floor, the driver and cudaMallocAsync of its turns."""
    for name, by_contender in figures.turns.items():
        for contender in by_contender:
            if "rmmshim" not in contender or figures.units[name] != "ns":
                continue
            flavour = contender.split(" ")[0]
            words = ["ratio", name, contender.replace(" ", "_").replace(",", ""), "%.1f" % figures.median(name, contender)]
            for key, other in (("floor", flavour + " floor"), ("driver", flavour + " driver"), ("driver", "without"),
                               ("cudaMallocAsync", "cudaMallocAsync")):
                ratio = figures.ratio(name, contender, other)
                if ratio is not None:
                    words.append("%s=%.4g" % (key, ratio))
            print(" ".join(words))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), metavar="GROUP,...")
    parser.add_argument("--quick", action="store_true", help="fewer turns, for a device that is not to be judged")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--before", metavar="LIBRARY")
    parser.add_argument("--against", metavar="NAME=VALUE")
    args = parser.parse_args()
    groups = args.only.split(",")
    for group in groups:
        if group not in GROUPS:
            parser.error("unknown group %s; known are %s" % (group, " ".join(GROUPS)))
    if groups != ["preload"] and not gpu_common.has_gpu():
        print("no device")
        return 77
    begin = time.monotonic()
    if args.before or args.against:
        pool = pool_setting(4 * GIB)
        if args.before:
            compare_with(("before", os.path.abspath(args.before), pool), ("now", None, pool), args.quick)
        else:
            compare_with(("pool", None, pool), (args.against, None, dict([args.against.split("=", 1)])), args.quick)
        for line in wrong:
            print("FAILED: " + line)
        return 1 if wrong else 0
    if not has_rmm():
        print("RMM is left out: there is no bench_rmm (tests/bench/build-rmm makes it of RMM's packages)")
    run_groups(groups, args.quick)
    check_failures()
    for prefix in ("fence/", "pairs/", "threads/", "threads_own/", "busy/", "streams/", "random_log/", "random_rmm/",
                   "pinned_pairs/", "startup/", "startup_calls/", "process/", "observed/", "observed_pairs/"):
        table(prefix)
    tail_table()
    print()
    ratios()
    for line in notes:
        print("note: " + line)
    for line in wrong:
        print("FAILED: " + line)
    print("benchmarks: %s, %.0f s" % ("%d wrong" % len(wrong) if wrong else "all well", time.monotonic() - begin))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"figures": figures.to_json(), "wrong": wrong, "notes": notes}, file, indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
