# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/gpu-check that need no GPU: its table of programs, what it makes of their runs, and
what test_ranks.py makes of files."""
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import framework_speed
import soak
import table
import test_ranks


def load_gpu_check():
    loader = importlib.machinery.SourceFileLoader("gpu_check", os.path.join(HERE, "..", "..", "scripts", "gpu-check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


gpu_check = load_gpu_check()


class Programs(unittest.TestCase):
    def setUp(self):
        self.programs = gpu_check.programs(None, 2)

    def test_each_has_a_name_and_a_part(self):
        names = [(program.part, program.name) for program in self.programs]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({program.part for program in self.programs}, set(gpu_check.PARTS))

    def test_each_runs_a_scene_that_there_is(self):
        scenes = {}
        for program in self.programs:
            for script, *arguments in zip(program.command, program.command[1:]):
                if not script.endswith(("_scenes.py", "guides.py")):
                    continue
                if script not in scenes:
                    scenes[script] = gpu_check.scene_names(os.path.basename(script))
                self.assertIn(arguments[0], scenes[script], program.name)
        used = {(word, following) for program in self.programs
                for word, following in zip(program.command, program.command[1:])}
        for script, names in scenes.items():
            for name in names:
                if (os.path.basename(script), name) != ("rank_scenes.py", "alone"):  # test_ranks.py's
                    self.assertIn((script, name), used)

    def test_one_device_has_no_peers(self):
        self.assertNotIn("peers", {program.part for program in gpu_check.programs(None, 1)})

    def test_scripts_compile(self):
        for name in sorted(os.listdir(HERE)):
            if name.endswith(".py"):
                with open(os.path.join(HERE, name), encoding="utf-8") as file:
                    compile(file.read(), name, "exec")


class Table(unittest.TestCase):
    def test_the_readme_has_its_rows(self):
        with open(os.path.join(HERE, "..", "..", "README.md"), encoding="utf-8") as file:
            rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in file if line.startswith("|")]
        begin = [row[:len(table.COLUMNS) + 1] for row in rows].index(["Program", *table.COLUMNS]) + 2
        shown = rows[begin:begin + len(table.ROWS)]
        self.assertEqual([row[0] for row in shown], [row.title for row in table.ROWS])
        for row, cells in zip(table.ROWS, shown):
            for column, cell in zip(table.COLUMNS, cells[1:]):
                self.assertEqual(cell == "-", column not in row.columns, "%s, %s" % (row.title, column))

    def test_what_is_not_there_is_said_once(self):
        row = table.ROWS[0]
        self.assertEqual(table.cells_of(row, {column: "no CuPy" for column in row.columns}),
                         [row.title, "not run: no CuPy", "", "", ""])
        self.assertEqual(table.cells_of(table.ROWS[-1], {table.NONE: [0.5, 0.2, 0.3], table.RMM: "no bench_rmm",
                                                         table.SHIM: [7.8e-5]}),
                         [table.ROWS[-1].title, "-", "0.300 ms", "not run: no bench_rmm", "0.0780 us"])


class Turns(unittest.TestCase):
    """Programs of the same speed, four processes of each kind, in rounds whose speed drifts."""
    DRIFT = [1.0, 1.02, 2.1, 0.9] * 8
    PROCESSES = [0.98, 1.0, 1.01, 1.03]  # by how much like processes differ for as long as they live

    def ratio(self, own, shim):
        figures = framework_speed.figures_of([(kind, [speed * drift for drift in self.DRIFT])
                                              for kind, speeds in (("own", own), ("shim", shim)) for speed in speeds])
        return framework_speed.ratio_and_interval(figures, "own", "shim")

    def test_turns_of_one_process_are_no_more_certain_than_the_process(self):
        middle, low, high = self.ratio(self.PROCESSES, [speed * 1.02 for speed in self.PROCESSES])
        self.assertAlmostEqual(middle, 1.02)
        self.assertLess(low, 1)
        self.assertGreater(high, 1.04)

    def test_a_difference_larger_than_that_of_processes_is_certain(self):
        self.assertGreater(self.ratio(self.PROCESSES, [speed * 1.08 for speed in self.PROCESSES])[1], 1.01)

    def test_one_process_says_nothing(self):
        self.assertIsNone(self.ratio([1.0], [1.2]))
        self.assertIsNone(framework_speed.ratio_and_interval({}, "own", "shim"))


class Soak(unittest.TestCase):
    """What soak.py says of samples and rounds.  Alone a process rose by nothing."""

    def setUp(self):
        dry = unittest.mock.patch.object(soak, "is_dry", lambda: False)
        dry.start()
        self.addCleanup(dry.stop)

    def process(self, **values):
        """Each value is a function of the sample's number."""
        watched = soak.Watched(1, "it")
        watched.samples = [{"at": 10 * i, **{name: of(i) for name, of in values.items()}} for i in range(40)]
        return watched

    def steady(self, **values):
        steady = {"rss": 10 ** 8, "descriptors": 20, "threads": 9, "held": 10 ** 9}
        return self.process(**{**{name: lambda i, value=value: value for name, value in steady.items()},
                               "allocations": lambda i: 1000 * i, **values})

    def wrong(self, watched, alone=None):
        return watched.wrong("paths", alone, True)

    def test_what_is_steady_or_rose_at_first_is_well(self):
        self.assertEqual(self.wrong(self.steady()), [])
        self.assertEqual(self.wrong(self.steady(rss=lambda i: 10 ** 8 * min(i, 19), descriptors=lambda i: min(i, 19))), [])
        self.assertEqual(self.wrong(self.steady(rss=lambda i: 10 ** 8 + 10 ** 6 * (i % 2),
                                                held=lambda i: 10 ** 9 * i, descriptors=lambda i: 20 + 9 * (i % 2))), [])

    def test_each_thing_that_grows_is_named(self):
        for name, of in (("rss", lambda i: 10 ** 8 + 10 ** 6 * i), ("descriptors", lambda i: 20 + i // 2),
                         ("threads", lambda i: 9 + i // 2)):
            wrong = self.wrong(self.steady(**{name: of}))
            self.assertEqual(len(wrong), 1, wrong)
            self.assertIn("it: %s grew" % name, wrong[0])

    def test_what_grows_alone_too_is_well(self):
        grows = {"rss": lambda i: 10 ** 8 + 10 ** 6 * i}
        self.assertEqual(self.wrong(self.steady(**grows), self.process(**grows)), [])

    def test_a_byte_for_each_allocation_is_well(self):
        self.assertEqual(self.wrong(self.steady(rss=lambda i: 10 ** 8 + 10 ** 6 * i, allocations=lambda i: 10 ** 6 * i)), [])

    def test_nothing_seen_is_wrong(self):
        self.assertIn("only 0 samples", self.wrong(soak.Watched(1, "it"))[0])
        unnamed = self.process(rss=lambda i: 1, descriptors=lambda i: 1, threads=lambda i: 1)
        self.assertIn("never named it", self.wrong(unnamed)[0])

    def test_memory_that_a_pool_lost(self):
        of = {("pool", "held"): 1 << 25, ("pool", "live"): 7559680, ("pool", "free"): (1 << 25) - 7559680,
              ("reuse", "quarantined"): 7559440, ("reuse", "quarantined_blocks"): 1, ("statistics", "live"): 0}
        self.assertEqual(soak.lost_bytes(of), 0)
        self.assertEqual(soak.lost_bytes({**of, ("pool", "free"): (1 << 25) - 7559936}), 256)
        self.assertEqual(soak.lost_bytes({**of, ("reuse", "quarantined"): 6559440}), 1000240)

    def compared(self, ours, alone):
        return soak.compare_rounds(soak.of_rounds(ours), soak.of_rounds(alone))

    def test_rounds_are_compared_by_seed(self):
        alone = "round 1 0.5 abc\nidle 0 0\nround 2 0.25 def\nidle 0 0\nround 1 0.5 abc\n"
        self.assertEqual(self.compared("round 2 0.25 def\nround 3 1 x\nround 2 0.25 def\n", alone), (2, True, []))
        self.assertEqual(self.compared("round 1 0.5 abd\n", alone), (1, True, ["seed 1: 0.5 abd, alone 0.5 abc"]))
        self.assertEqual(self.compared("round 7 0.5 abd\n", alone)[0], 0)

    def test_rounds_that_differ_alone_ask_for_their_spread(self):
        alone = "round 1 1.0 a\nround 1 1.5 b\nround 2 3 c\n"
        self.assertEqual(self.compared("round 1 1.9 d\n", alone), (1, False, []))
        self.assertEqual(len(self.compared("round 1 2.1 d\nround 2 4 c\n", alone)[2]), 2)

    def test_blocks_that_stay_between_rounds(self):
        self.assertEqual(soak.idle_wrong("idle 5 5\nround 1 2\n" * 20), [])
        self.assertIn("at last 39", soak.idle_wrong("".join("idle 5 %d\n" % i for i in range(40)))[0])
        self.assertIn("only 1", soak.idle_wrong("idle 5 5\n")[0])


class Judgement(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-check-")
        self.addCleanup(folder.cleanup)
        self.check = gpu_check.Check(folder.name, 2)
        self.check.gpu, self.check.devices = "none", 0
        self.addCleanup(self.check.log_file.close)

    def run_of(self, text, status=0, setting=None):
        run = gpu_check.compare.Run(setting)
        run.stdout, run.status = text.encode(), status
        return run

    def verdict(self, first, second, text, status=0):
        program = gpu_check.Program("samples", "it", ["it"])
        program.bases = [self.run_of(first), self.run_of(second)]
        return self.check.judge(program, self.run_of(text, status, {"RMM_POOL_SIZE": "1"}))

    def test_equal_bases_ask_for_equality(self):
        self.assertEqual(self.verdict("loss 1.5\n", "loss 1.5\n", "loss 1.5\n"), "bit-equal")
        self.assertEqual(self.verdict("loss 1.5\n", "loss 1.5\n", "loss 1.6\n"), "DIFFERS")

    def test_other_bases_ask_for_their_spread(self):
        self.assertEqual(self.verdict("loss 1.5\ndigest a\n", "loss 1.7\ndigest b\n", "loss 1.6\ndigest c\n"),
                         "within spread")
        self.assertEqual(self.verdict("loss 1.5\n", "loss 1.7\n", "loss 2.6\n"), "OUTSIDE")

    def test_a_status_counts(self):
        self.assertEqual(self.verdict("a\n", "a\n", "a\n", 1), "status 1")

    def failures_of(self, program, status):
        program.bases = [self.run_of("", status)]
        self.check.program_table([program])
        return self.check.failures

    def test_what_is_missing(self):
        self.assertEqual(self.failures_of(gpu_check.Program("samples", "it", ["it"], optional=True), 77), [])
        self.assertIn("not there", self.failures_of(gpu_check.Program("samples", "it", ["it"]), 77)[0])
        self.assertIn("status 1", self.failures_of(gpu_check.Program("samples", "it", ["it"], optional=True), 1)[-1])

    def test_a_program_that_was_not_built(self):
        result = self.check.one_run(gpu_check.Program("samples", "it", ["/nowhere/it"]), None)
        self.assertEqual(result.status, 77)
        self.assertIn(b"/nowhere/it was not built", result.stderr)


class Ranks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-check-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for rank in (0, 1):
            self.report(rank, rank)
            suffix = ".dev1" if rank else ""
            self.write("log.%d.77%s.csv" % (rank, suffix),
                       "Thread,Time,Action,Pointer,Size,Stream\n7,0,allocate,0x1,1,0\n")

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def report(self, rank, device):
        self.write("statistics.%d.json" % rank, json.dumps({"devices": [
            {"device": device, "counters": [{"name": "allocations", "value": 3}]}]}))

    def wrong(self):
        return list(test_ranks.wrong_files(self.folder))

    def test_good(self):
        self.assertEqual(self.wrong(), [])

    def test_each_mistake(self):
        self.report(1, 0)
        self.assertEqual(self.wrong(), ["rank 1 was served on devices [0]"])
        os.unlink(os.path.join(self.folder, "statistics.0.json"))
        self.assertIn("rank 0 wrote no report", self.wrong())
        self.write("log.0.77.csv", "Thread,Time,Action,Pointer,Size,Stream\n")
        os.unlink(os.path.join(self.folder, "statistics.1.json"))
        self.report(0, 0)
        self.report(1, 1)
        self.assertEqual(self.wrong(), ["rank 0 logged nothing in ['log.0.77.csv']"])
        self.write("core.7", "")
        self.assertIn("the folder has", self.wrong()[-1])


if __name__ == "__main__":
    unittest.main()
