# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks' programs make of figures: parsing, medians within turns, the table of targets; and the
programs that take turns, with a stand-in."""
import os
import stat
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import contenders
import run_bench
import targets
from contenders import Contender, Contest, Figure, Figures, parse_figure, show_ns


class Lines(unittest.TestCase):
    def test_a_figure(self):
        figure = parse_figure("threads_own/16/4096 341.50 ns pairs=20 idle_after=1")
        self.assertEqual(figure, Figure("threads_own/16/4096", 341.5, "ns", {"pairs": 20.0, "idle_after": 1.0}))
        self.assertEqual(parse_figure("startup/init 103 calls"), Figure("startup/init", 103.0, "calls", {}))

    def test_what_is_no_figure(self):
        for line in ("done", "ready", "pairs/256 12 s", "pairs/256", "bench.c:12: MUST gave 2", "a/b 1 ns and more"):
            self.assertIsNone(parse_figure(line), line)

    def test_times(self):
        self.assertEqual([show_ns(value) for value in (12.34, 1234, 12.3e6, 2.5e9, None)],
                         ["12.3 ns", "1.23 us", "12.30 ms", "2.50 s", "-"])


def figures_of(entries):
    """{name: {contender: [value of each turn]}}"""
    figures = Figures()
    for name, by_contender in entries.items():
        for contender, values in by_contender.items():
            for turn, value in enumerate(values):
                figures.add(contender, turn, Figure(name, value, "ns", {}))
    return figures


class Turns(unittest.TestCase):
    def test_differences_are_within_a_turn(self):
        # The machine was twice as slow in the second turn: the medians are 50 apart, the turns 10.
        figures = figures_of({"it": {"rmmshim": [60, 110, 61], "floor": [50, 100, 11]}})
        self.assertEqual(figures.difference("it", "rmmshim", "floor"), 10)
        self.assertAlmostEqual(figures.ratio("it", "rmmshim", "floor"), 1.2)

    def test_what_was_not_measured(self):
        figures = figures_of({"it": {"rmmshim": [60]}})
        self.assertIsNone(figures.difference("it", "rmmshim", "floor"))
        self.assertIsNone(figures.ratio("other", "rmmshim", "floor"))
        self.assertIsNone(figures.median("it", "floor"))

    def test_json_is_all_of_it(self):
        figures = figures_of({"it": {"rmmshim": [60, 70], "floor": [50, 51]}})
        figures.add("floor", 0, Figure("it", 52, "ns", {"failures": 3.0}))
        again = Figures.from_json(figures.to_json())
        self.assertEqual(again.turns, figures.turns)
        self.assertEqual(again.field("it", "floor", "failures"), 3)


class Table(unittest.TestCase):
    def rows(self, entries):
        return {row.what: row for row in targets.bench_rows(figures_of(entries))}

    def test_the_worst_size_counts(self):
        rows = self.rows({"pairs/256": {"static rmmshim": [100], "static floor": [60], "RMM pool": [400]},
                          "pairs/65536": {"static rmmshim": [130], "static floor": [70], "RMM pool": [401]}})
        row = rows["allocate + free to 16 MiB, static, the worst: 64 KiB"]
        self.assertEqual(row.verdict, "missed by 10.0 ns")
        self.assertEqual((row.cells["rmmshim"], row.cells["floor"], row.cells["RMM pool"]), ("130.0 ns", "70.0 ns", "401.0 ns"))
        self.assertEqual(len(row.details), 2)
        self.assertEqual(rows["allocate + free to 16 MiB, shared"].verdict, "not measured")

    def test_a_target_that_is_just_met(self):
        rows = self.rows({"pairs/268435456": {"static rmmshim": [410], "static floor": [60], "shared rmmshim": [61],
                                              "shared floor": [10]}})
        self.assertEqual(rows["allocate + free 256 MiB, static"].verdict, "met")
        self.assertEqual(rows["allocate + free 256 MiB, shared"].verdict, "missed by 1.0 ns")

    def test_threads(self):
        names = ["threads/16/%d" % size for size in run_bench.THREAD_SIZES]
        rows = self.rows({names[0]: {"static rmmshim": [149], "static floor": [100]},
                          names[1]: {"static rmmshim": [160], "static floor": [100]}})
        row = rows["16 threads at once, a round, static, the worst: 1 MiB"]
        self.assertEqual((row.target, row.verdict), ("1.5 x floor", "missed by 0.100 x the floor"))

    def test_limits(self):
        rows = self.rows({"busy/%d" % run_bench.BUSY_BYTES: {"static rmmshim": [900], "static driver": [5e7]},
                          "random_rmm/100000/1": {"shared rmmshim": [151]},
                          "pinned_pairs/%d" % run_bench.PINNED_SIZES[0]: {"static rmmshim": [1001], "RMM pinned pool": [300]}})
        self.assertEqual(rows["free while the GPU is busy, static"].verdict, "met")
        self.assertEqual(rows["free while the GPU is busy, static"].cells["driver"], "50.00 ms")
        self.assertEqual(rows["RMM's random benchmark, 100,000, shared, the worst: to 1 MiB"].verdict, "missed by 1.0 ns")
        self.assertEqual(rows["pinned 64 MiB, static"].verdict, "missed by 1.0 ns")
        self.assertEqual(rows["pinned 64 MiB, static"].cells["RMM pool"], "300.0 ns")

    def test_where_the_time_goes(self):
        known = {"fence/record": {"static driver": [500]}, "fence/query": {"static driver": [200]}}
        self.assertIn("a fence costs 500.0 ns here and the answer that it is done 200.0 ns:", targets.fence_note(figures_of(known)))
        known["fence/query_pending"] = {"static driver": [100]}
        self.assertIn("200.0 ns (that it is not: 100.0 ns):", targets.fence_note(figures_of(known)))
        self.assertIsNone(targets.fence_note(figures_of({})))
        self.assertIn("runtime_pair ", targets.budget_note())

    def test_preload(self):
        figures = figures_of({"process/true": {"without": [800e3]}})
        figures.add("rmmshim", 0, Figure("process/true", 1e6, "ns", {"more": 310e3}))
        row = targets.bench_rows(figures)[-1]
        self.assertEqual((row.what, row.verdict), ("preloading a process without CUDA", "missed by 10.00 us"))

    def test_a_run_that_was_cut_short_says_so(self):
        figures = figures_of({"random_rmm/100000/1": {"static rmmshim": [100]}})
        figures.add("RMM pool", 0, Figure("random_rmm/100000/1", 30000, "ns", {"finished": 0.0}))
        row = [row for row in targets.bench_rows(figures) if "the worst: to 1 MiB, static" in row.what or
               row.what.startswith("RMM's random benchmark, 100,000, static")][0]
        self.assertEqual(row.cells["RMM pool"], "> 30.00 us")

    def program(self, variant, ms, report=None):
        return {"workload": "mlp", "variant": variant, "ms": ms, "result": {}, "problem": None, "report": report}

    def test_frameworks(self):
        counters = [{"resource": "statistics", "name": "peak", "value": 1 << 30},
                    {"resource": "pool", "name": "held_peak", "value": 2 << 30}]
        rows = {row.what: row for row in targets.speed_rows([
            *(self.program(variant, [ms] * 24) for ms, variant in ((2.0, "own"), (1.9, "shim"), (2.2, "both")) for _ in "ab"),
            self.program("none", [4.0] * 6), self.program("counted", [], {"devices": [{"counters": counters}]})])}
        title = targets.framework_speed.TITLES["mlp"]
        self.assertEqual(rows["without its cache: " + title].verdict, "met")
        self.assertEqual(rows["without its cache: " + title].cells["driver"], "2.00 x")
        self.assertEqual(rows["beneath its own cache: " + title].verdict, "missed by 0.100 x")
        # 2 GiB for a peak of 1: half a GiB and a growth step of 256 MiB may be added.
        self.assertEqual(rows["held, RMM_POOL_SIZE=512MiB: " + title].verdict, "missed by 256.000 MiB")

    def test_footprints(self):
        met, missed, unknown = targets.footprint_rows({
            "a": {"pool": 1.04, "virtual": 1.01, "RMM pool": 1.3, "PyTorch": 1.1},
            "b": {"pool": 1.2, "RMM pool": 1.3, "RMM arena": None, "PyTorch": 1.1},
            "c": {"pool": None, "RMM pool": 1.3}})
        self.assertEqual((met.verdict, missed.verdict, unknown.verdict), ("met", "missed by 0.100 x", "not measured"))
        self.assertIn("PyTorch", missed.details[0])

    def test_nothing_measured(self):
        rows = targets.all_rows(None, None, None)
        self.assertEqual({row.verdict for row in rows}, {"not measured"})


STAND_IN = """#!/bin/sh
echo ready
while read -r line; do
    case $line in
    pairs*) [ "$1" != --turns ] || echo "pairs/256 $VALUE ns count=1" ;;
    die) echo something is wrong; echo "said before" >&2; exit 3 ;;
    esac
    echo done
done
[ -z "$NOISE" ] || echo "$NOISE" >&2
"""


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-check-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "bench")
        with open(path, "w", encoding="utf-8") as file:
            file.write(STAND_IN)
        os.chmod(path, stat.S_IRWXU)
        old = os.environ.get("PROGRAMS")
        os.environ["PROGRAMS"] = folder.name
        self.addCleanup(lambda: os.environ.pop("PROGRAMS") if old is None else os.environ.update(PROGRAMS=old))
        self.figures = Figures()

    def contender(self, name, value, **more):
        made = Contender(name, "bench", "cuda", **more)
        made.environment = dict(made.environment, VALUE=str(value), NOISE=os.environ.get("NOISE", ""))
        return made

    def test_turns(self):
        with Contest([self.contender("a", 5), self.contender("b", 7)], self.figures) as contest:
            contest.turns("pairs 256 1", 3)
        self.assertEqual([contender.problem for contender in contest.contenders], [None, None])
        self.assertEqual(self.figures.turns["pairs/256"], {"a": {0: 5, 1: 5, 2: 5}, "b": {0: 7, 1: 7, 2: 7}})

    def test_one_that_dies(self):
        with Contest([self.contender("a", 5), self.contender("b", 7)], self.figures) as contest:
            contest.turns("die", 1, contest.contenders[:1])
            contest.turns("pairs 256 1", 1)
        self.assertIn("status 3", contest.contenders[0].problem)
        self.assertIn("something is wrong", contest.contenders[0].problem)
        self.assertIn("said before", contest.contenders[0].problem)
        self.assertEqual(self.figures.turns["pairs/256"], {"b": {0: 7}})

    def test_what_is_said_to_standard_error(self):
        ours, theirs = self.contender("a", 5), self.contender("b", 7, foreign=True)
        for contender in (ours, theirs):
            contender.environment["NOISE"] = "a line"
        with Contest([ours, theirs], self.figures):
            pass
        self.assertEqual((ours.problem, theirs.problem), ("said: a line", None))

    def test_one_that_is_too_slow(self):
        slow = self.contender("a", 5)
        slow.command = ["/bin/sleep", "60"]
        slow.start()
        self.assertFalse(slow.ready(0.2))
        slow.end()
        self.assertEqual(slow.problem, "took more than 0 s")

    def test_environment(self):
        os.environ["RMM_POOL_MAX_SIZE"] = "1"
        self.addCleanup(lambda: os.environ.pop("RMM_POOL_MAX_SIZE"))
        os.environ.setdefault("RMMSHIM_LIBRARY", "/nowhere/librmmshim.so")
        env = contenders.environment({"RMM_POOL_SIZE": "5"}, None)
        self.assertEqual(env["RMM_POOL_SIZE"], "5")
        self.assertNotIn("RMM_POOL_MAX_SIZE", env)
        self.assertTrue(env["LD_PRELOAD"].endswith("librmmshim.so"))
        self.assertTrue(contenders.environment(None, "/nowhere/libfloor.so")["LD_PRELOAD"].endswith("/nowhere/libfloor.so"))

    def test_scripts_compile(self):
        for name in sorted(os.listdir(HERE)):
            if name.endswith(".py"):
                with open(os.path.join(HERE, name), encoding="utf-8") as file:
                    compile(file.read(), name, "exec")


if __name__ == "__main__":
    unittest.main()
