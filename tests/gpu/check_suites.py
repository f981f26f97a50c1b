# SPDX-License-Identifier: Apache-2.0
"""The part of run_suites.py that needs no GPU: lists and their mistakes, which differences count, and what
becomes of tests that crash, hang or cannot be collected.  The latter with a stand-in for pytest that
writes what the plugin would, and with pytest itself where it is installed."""
import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run_suites
import suite_list

FETCH = os.path.join(HERE, "..", "..", "scripts", "fetch-suites")

# Runs the tests that a file names, a word each: pass, fail, crash, hang, exit; take_N writes a report as of a process
# that took N bytes in N allocations, limit_N passes where that is the limit.
STAND_IN = """
import json, os, signal, sys
path, shard, shards = os.environ["SUITE_OUTCOMES"], *map(int, os.environ["SUITE_SHARE"].split("/"))
only = open(os.environ["SUITE_ONLY"]).read().split("\\n") if "SUITE_ONLY" in os.environ else None
file = os.path.basename(sys.argv[1])
tests = ["%s::%s" % (file, word) for word in open(sys.argv[1]).read().split()]
tests = [t for i, t in enumerate(tests) if i % shards == shard and (only is None or t in only)]
begun = set()
if os.path.exists(path):
    begun = {v["begin"] for v in (json.loads(line) for line in open(path) if line.strip()) if "begin" in v}

def write(**value):
    with open(path, "a") as out:
        out.write(json.dumps(value) + "\\n")

write(collected=tests)
status = 0
for test in tests:
    if test in begun:
        continue
    write(begin=test)
    kind = test.split("::")[1].split("_")[0]
    if kind == "crash":
        os.abort()
    if kind == "hang":
        signal.pause()  # until it is killed
    if kind == "exit":
        os._exit(0)
    number = test.split("_")[-1]
    if kind == "take":
        with open(os.environ["RMM_STATISTICS"][5:].replace("%p", "%d.%s" % (os.getpid(), number)), "w") as out:
            counters = [("account", "charged_peak"), ("statistics", "allocations")]
            json.dump({"devices": [{"counters": [{"resource": resource, "name": name, "value": int(number)}
                                                 for resource, name in counters]}]}, out)
    fails = (kind == "fail" or kind == "preload" and "RMM_POOL_SIZE" in os.environ
             or kind == "limit" and os.environ.get("RMM_LIMIT") != number + "B")
    write(end=test, outcome="failed" if fails else "passed", said="why" if fails else "")
    status |= fails
sys.exit(status)
"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-check-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        return path


class Lists(Folder):
    def read(self, text):
        return suite_list.read_list(self.write("list.txt", text))

    def test_units(self):
        units, files = self.read("""
            # a comment
            run torch a.py shards=2 k='graph and not oom'
            run torch a.py X=1
            run numba c/d.py  # another
            needs cupy tests/conftest.py
            """)
        self.assertEqual([unit.name for unit in units],
                         ["torch:a.py 1/2", "torch:a.py 2/2", "torch:a.py@X=1", "numba:c/d.py"])
        self.assertEqual(units[0].expression, "graph and not oom")
        self.assertEqual(files, {"torch": ["a.py", "a.py"], "cupy": ["tests/conftest.py"], "numba": ["c/d.py"],
                                 "rmm": [], "cuda-core": [], "thrust": [], "cub": [], "catch2": []})

    def test_mistakes_are_named(self):
        for line, said in [
                ("walk torch a.py", "list.txt:1: a line is"), ("run torch", "list.txt:1: a line is"),
                ("run jax a.py", "unknown suite jax"), ("run catch2 a", "unknown suite catch2"),
                ("run torch /etc/passwd", "leads out"),
                ("run torch a/../../b.py", "leads out"), ("run torch a.py shards=0", "shards=0 is none of"),
                ("run torch a.py fast", "fast is none of"),
                ("run torch a.py\nrun torch a.py", "list.txt:2: torch a.py again"),
                ("needs cupy a b", "no more words"), ("run torch 'a", "No closing quotation")]:
            with self.subTest(line=line), self.assertRaises(suite_list.Bad) as caught:
                self.read(line)
            self.assertIn(said, str(caught.exception))

    def test_differences(self):
        path = self.write("differences.txt", "torch:a.py::t passed -> failed  # because\n'cupy:b.py::t[x y]' a -> b\n")
        self.assertEqual(suite_list.read_differences(path),
                         {"torch:a.py::t": ("passed", "failed"), "cupy:b.py::t[x y]": ("a", "b")})
        with self.assertRaises(suite_list.Bad):
            suite_list.read_differences(self.write("differences.txt", "torch:a.py::t passed failed\n"))

    def test_each_variant_is_a_program(self):
        units, _ = self.read("run cub cub/test/deep/a.cu\nrun cub cub/test/deep/a.cu B=2\nrun thrust thrust/testing/a.cu")
        self.assertEqual([suite_list.program(unit) for unit in units], ["deep.a", "deep.a.B_2", "a"])

    def test_the_lists_of_this_tree(self):
        units, files = suite_list.read_list()
        self.assertEqual({unit.suite for unit in units}, set(suite_list.SUITES))
        self.assertTrue(all(files.values()))
        suite_list.read_differences()


class Judgement(unittest.TestCase):
    def sides(self, base, other):
        sides = [run_suites.Side(name, None, "") for name in ("without", "with")]
        for side, outcomes in zip(sides, (base, other)):
            side.outcomes = {name: (outcome, "") for name, outcome in outcomes.items()}
            side.seen.update({name: {outcome} for name, outcome in outcomes.items()})
        return sides

    def test_same_failures_are_no_difference(self):
        wrong, fine = run_suites.judge(*self.sides({"a": "passed", "b": "failed"}, {"a": "passed", "b": "failed"}), {})
        self.assertEqual((wrong, fine), ([], []))

    def test_each_kind_of_difference(self):
        wrong, _ = run_suites.judge(*self.sides({"a": "passed", "b": "failed", "c": "passed", "d": "skipped"},
                                                {"a": "crashed", "b": "passed", "c": "skipped", "d": "passed"}), {})
        self.assertEqual(wrong, ["a passed -> crashed", "b failed -> passed", "c passed -> skipped",
                                 "d skipped -> passed"])

    def test_explained_differences(self):
        sides = self.sides({"a": "passed", "b": "passed", "c": "passed"},
                           {"a": "failed", "b": "crashed", "c": "passed"})
        explained = {"a": ("passed", "failed"), "b": ("passed", "failed"), "c": ("passed", "failed"),
                     "gone": ("passed", "failed")}
        wrong, fine = run_suites.judge(*sides, explained)
        self.assertEqual(wrong, ["b passed -> crashed"])
        self.assertEqual(fine, ["explained: a passed -> failed",
                                "explained: c no longer differs (passed -> failed in the list)"])

    def test_what_comes_out_both_ways_without_the_library(self):
        sides = self.sides({"a": "passed", "b": "passed", "c": "passed"},
                           {"a": "failed", "b": "crashed", "c": "failed"})
        for name in "ab":
            sides[0].seen[name].add("failed")
        sides[1].seen["a"].add("passed")
        wrong, fine = run_suites.judge(*sides, {})
        self.assertEqual(wrong, ["b passed -> crashed", "c passed -> failed"])
        self.assertEqual(fine, ["unsteady without rmmshim too: a passed -> failed"])

    def test_what_only_one_side_ran_is_wrong(self):
        sides = self.sides({"a": "passed", "b": "passed"}, {"a": "passed"})
        sides[0].where["b"] = (None, "b")
        self.assertEqual(run_suites.judge(*sides, {})[0], ["1 tests ran only without rmmshim: b ..."])
        sides[1].out_of_time = True
        self.assertEqual(len(run_suites.judge(*sides, {})[0]), 1)
        self.assertIn("reached in time", run_suites.judge(*sides, {})[0][0])

    def test_a_run_in_which_nothing_passes_proves_nothing(self):
        self.assertIn("no test passes", run_suites.judge(*self.sides({"a": "failed"}, {"a": "failed"}), {})[0][0])


class Running(Folder):
    def setUp(self):
        super().setUp()
        self.stand_in = self.write("stand_in.py", STAND_IN)

    def side(self, name="without", setting=None, stall_seconds=300, limits=None):
        return run_suites.Side(name, setting, self.folder, stall_seconds=stall_seconds, limits=limits,
                               command=lambda root, unit: [sys.executable, self.stand_in, os.path.join(root, unit.file)])

    def run_words(self, words, side=None, seconds=600, **unit):
        self.write("suite.py", words)
        side = side or self.side()
        units = [suite_list.Unit("torch", "suite.py", shard, unit.get("shards", 1))
                 for shard in range(unit.get("shards", 1))]
        side.run([(self.folder, one, None) for one in units], 2, time.monotonic() + seconds)
        return side, {name.split("::")[-1]: value[0] for name, value in side.outcomes.items()}

    def test_goes_on_behind_crashes(self):
        side, outcomes = self.run_words("pass crash_1 fail exit_1 crash_2 pass_2")
        self.assertEqual(outcomes, {"pass": "passed", "crash_1": "crashed", "fail": "failed", "exit_1": "crashed",
                                    "crash_2": "crashed", "pass_2": "passed"})
        self.assertEqual(side.unrun, {"torch:suite.py": 0})
        self.assertEqual(side.given_up, [])

    def test_a_test_that_hangs_is_ended(self):
        _, outcomes = self.run_words("pass hang pass_2", self.side(stall_seconds=3))
        self.assertEqual(outcomes, {"pass": "passed", "hang": "stalled", "pass_2": "passed"})

    def test_crashes_without_end_are_left(self):
        side, outcomes = self.run_words(" ".join("crash_%d" % i for i in range(20)))
        self.assertEqual(set(outcomes.values()), {"crashed"})
        self.assertEqual([unit.name for unit in side.given_up], ["torch:suite.py"])
        self.assertEqual(side.unrun["torch:suite.py"], 20 - run_suites.CRASHES)
        base, _ = self.run_words("pass")
        self.assertIn("torch:suite.py: left after %d crashes" % run_suites.CRASHES, run_suites.judge(base, side, {})[0])

    def test_out_of_time(self):
        """The time is over once the test that hangs has begun."""
        class Clock:
            def monotonic(clock):
                has_begun = False
                for path in glob.glob(os.path.join(self.folder, "*.jsonl")):
                    with open(path, encoding="utf-8") as file:
                        has_begun |= any("begin" in line and "hang" in line for line in file)
                return time.monotonic() + (1e6 if has_begun else 0)

        with unittest.mock.patch.object(run_suites, "time", Clock()):
            side, outcomes = self.run_words("pass hang pass_2")
        self.assertEqual(outcomes, {"pass": "passed"})
        self.assertTrue(side.out_of_time)
        self.assertEqual(side.unrun, {"torch:suite.py": 2})

    def test_shares(self):
        side, outcomes = self.run_words("pass_1 pass_2 pass_3 fail_4 pass_5", shards=2)
        self.assertEqual(len(outcomes), 5)
        self.assertEqual(outcomes["fail_4"], "failed")
        self.assertEqual({name: len(tests) for name, tests in side.of_unit.items()},
                         {"torch:suite.py 1/2": 3, "torch:suite.py 2/2": 2})

    def test_a_suite_that_does_not_start(self):
        self.stand_in = self.write("broken.py", "import sys; print('no such option'); sys.exit(4)")
        side, outcomes = self.run_words("pass")
        self.assertEqual(outcomes, {"torch:suite.py (as a whole)": "error"})
        self.assertIn("no such option", side.outcomes["torch:suite.py (as a whole)"][1])

    def test_with_and_without(self):
        """What differs runs once more alone, and a difference that stays is reported."""
        sides = [self.side(), self.side("with", {"RMM_POOL_SIZE": "1MiB"})]
        for side in sides:
            self.run_words("pass preload fail", side)
        self.assertEqual(run_suites.differing(*sides), ["torch:suite.py::preload"])
        flaky = "torch:suite.py::pass"
        sides[1].outcomes[flaky] = ("failed", "disturbed")
        self.assertEqual(sides[0].seen[flaky], {"passed"})
        self.assertEqual(run_suites.run_again(sides, {"torch": self.folder}, 600), (2, 2))
        self.assertEqual(run_suites.judge(*sides, {})[0], ["torch:suite.py::preload passed -> failed"])
        units = [suite_list.Unit("torch", "suite.py")]
        self.assertEqual([line.split() for line in run_suites.table(sides, units).splitlines()[2:]],
                         [["torch:suite.py", "without", "3", "2", "1", "0", "0", "0"],
                          ["torch:suite.py", "with", "3", "1", "2", "0", "0", "0"],
                          ["all", "without", "3", "2", "1", "0", "0", "0"],
                          ["all", "with", "3", "1", "2", "0", "0", "0"]])

    def test_what_was_seen_without_the_library_serves_a_later_call(self):
        base, _ = self.run_words("pass crash fail pass_2")
        base.seen["torch:suite.py::pass"].add("failed")
        with open(self.write("base.json", json.dumps(base.saved())), encoding="utf-8") as file:
            saved = json.load(file)
        units = [suite_list.Unit("torch", "suite.py"), suite_list.Unit("torch", "other.py")]
        later = self.side()
        later.restore(saved, units)
        for name in ("outcomes", "of_unit", "unrun", "out_of_time", "seen"):
            self.assertEqual(getattr(later, name), getattr(base, name), name)
        self.assertEqual(later.where["torch:suite.py::fail"], (units[0], "suite.py::fail"))
        none = self.side()
        none.restore(saved, units[1:])
        self.assertEqual((none.outcomes, none.of_unit), ({}, {}))

    def test_what_ran_once_more_serves_a_later_call(self):
        base, name = self.side(), "torch:suite.py::a"
        share = suite_list.Unit("torch", "suite.py", shards=2)
        base.of_unit, base.unrun = {share.name: [name]}, {share.name: 0}
        base.outcomes[name], base.where[name] = ("passed", ""), (share.alone(), "suite.py::a")
        base.seen[name].add("passed")
        later = self.side()
        later.restore(json.loads(json.dumps(base.saved())), [share])
        self.assertEqual(later.where[name][0].name, share.alone().name)

    def test_limits_are_above_what_was_taken(self):
        """By file, whichever of its processes took most; and the next side is told so."""
        side, _ = self.run_words("pass take_100 take_300 take_200", self.side("pool", {"RMM_POOL_SIZE": "1MiB"}), shards=2)
        units = [suite_list.Unit("torch", "suite.py", shard, 2) for shard in range(2)]
        self.assertEqual(run_suites.served(side, units), 600)
        limits = run_suites.limits_of(side, units)
        self.assertEqual(limits, {"torch:suite.py": 300 + run_suites.SPARE_BYTES})
        limited = self.side("limit", {"RMM_POOL_SIZE": "1MiB"}, limits=limits)
        _, outcomes = self.run_words("limit_%d pass" % limits["torch:suite.py"], limited)
        self.assertEqual(set(outcomes.values()), {"passed"})
        self.assertEqual(run_suites.limits_of(side, [suite_list.Unit("torch", "other.py")]), {})

    def test_a_process_that_crashed_says_nothing_of_what_it_took(self):
        side, _ = self.run_words("take_100 crash take_200", self.side("pool", {"RMM_POOL_SIZE": "1MiB"}))
        self.assertEqual(run_suites.limits_of(side, [suite_list.Unit("torch", "suite.py")]), {})

    def test_what_the_time_does_not_suffice_for_ran_not_once_more(self):
        sides = [self.side(), self.side("with", {"RMM_POOL_SIZE": "1MiB"})]
        for side in sides:
            self.run_words("pass preload", side)
        self.assertEqual(run_suites.run_again(sides, {"torch": self.folder}, 0), (1, 0))

    def test_limits_come_from_another_side(self):
        """Without it all would run without a limit, and be well."""
        for stacks in ("limit", "pool,limit", "limit,growing"):
            done = subprocess.run([sys.executable, run_suites.__file__, "--stacks", stacks], stderr=subprocess.PIPE, text=True,
                                  check=False)
            self.assertEqual((done.returncode, "--stacks growing,limit" in done.stderr), (2, True), done)

    def test_stand_in_alone(self):
        """Its own exit statuses are pytest's."""
        self.write("suite.py", "pass fail")
        env = dict(os.environ, SUITE_OUTCOMES=os.path.join(self.folder, "o"), SUITE_SHARE="0/1")
        status = subprocess.run([sys.executable, self.stand_in, os.path.join(self.folder, "suite.py")], env=env,
                                check=False).returncode
        self.assertEqual(status, 1)


@unittest.skipUnless(importlib.util.find_spec("pytest"), "no pytest")
class WithPytest(Folder):
    SUITE = """
        import os, unittest, pytest

        def test_passes(): pass
        def test_fails(): assert False, "so it is"
        def test_skips(): pytest.skip("why")
        @pytest.mark.xfail
        def test_expected(): assert False
        def test_crashes(): os.abort()
        @pytest.fixture
        def broken(): raise OSError("no")
        def test_set_up(broken): pass
        @pytest.fixture
        def late():
            yield
            raise OSError("late")
        def test_tear_down(late): pass

        class TestUnit(unittest.TestCase):
            def test_part(self):
                for i in range(3):
                    with self.subTest(i=i):
                        self.assertNotEqual(i, 1)

        @pytest.mark.usefixtures("initialize_from_pytest_config")
        class TestConfigured:
            def test_has(self): assert self._dump_failed_filechecks is False

        @pytest.mark.parametrize("word", ["a b", "c'd"])
        def test_words(word): pass
        """

    def run_file(self, expression="", shards=1, suite="cupy", file="tests/test_it.py"):
        side = run_suites.Side("without", None, self.folder)
        units = [suite_list.Unit(suite, file, i, shards, expression) for i in range(shards)]
        side.run([(self.folder, unit, None) for unit in units], 2, time.monotonic() + 600)
        return side, {name.split("test_it.py")[-1]: value[0] for name, value in side.outcomes.items()}

    def test_outcomes(self):
        self.write("tests/test_it.py", self.SUITE)
        side, outcomes = self.run_file()
        self.assertEqual(outcomes, {
            "::test_passes": "passed", "::test_fails": "failed", "::test_skips": "skipped",
            "::test_expected": "xfailed", "::test_crashes": "crashed", "::test_set_up": "error",
            "::test_tear_down": "error", "::TestUnit::test_part": "failed", "::TestConfigured::test_has": "passed",
            "::test_words[a b]": "passed", "::test_words[c'd]": "passed"})
        self.assertIn("so it is", side.outcomes["cupy:tests/test_it.py::test_fails"][1])
        self.assertEqual(run_suites.run_again([side, self.changed(side)], {"cupy": self.folder}, 600), (2, 2))

    def changed(self, side):
        other = run_suites.Side("with", None, self.folder)
        other.outcomes = dict(side.outcomes)
        for name in ("::test_words[a b]", "::test_crashes"):
            other.outcomes["cupy:tests/test_it.py" + name] = ("stalled", "")
        self.addCleanup(lambda: self.assertEqual(run_suites.differing(side, other), []))
        return other

    def test_a_file_imports_its_neighbour(self):
        self.write("tests/beside.py", "answer = 42")
        self.write("tests/test_it.py", "from beside import answer\ndef test_answer(): assert answer == 42")
        self.assertEqual(self.run_file()[1], {"::test_answer": "passed"})

    def test_what_a_suite_imports_from(self):
        """Its own project's folder is in the working directory, by the same name as a package in it."""
        self.write("cuda_python_test_helpers/cuda_python_test_helpers/__init__.py", "answer = 42")
        self.write("cuda_core/tests/conftest.py", "import helpers")
        self.write("cuda_core/tests/helpers.py", "from cuda_python_test_helpers import answer")
        self.write("cuda_core/tests/memory_ipc/__init__.py", "")
        test = "from helpers import answer\ndef test_answer(): assert answer == 42"
        for folder in ("memory_ipc", "graph"):
            file = "cuda_core/tests/%s/test_it.py" % folder
            self.write(file, test)
            self.assertEqual(self.run_file(suite="cuda-core", file=file)[1], {"::test_answer": "passed"})

    def test_expression_and_shares(self):
        self.write("tests/test_it.py", self.SUITE)
        side, outcomes = self.run_file("passes or words or has", 2)
        self.assertEqual(set(outcomes), {"::test_passes", "::TestConfigured::test_has", "::test_words[a b]",
                                         "::test_words[c'd]"})
        self.assertEqual(sorted(len(tests) for tests in side.of_unit.values()), [2, 2])

    def test_what_cannot_be_collected(self):
        self.write("tests/test_it.py", "import nothing_of_this_name\n")
        side, outcomes = self.run_file()
        self.assertEqual(outcomes, {" (collection)": "error"})
        self.assertIn("nothing_of_this_name", side.outcomes["cupy:tests/test_it.py (collection)"][1])


# What Thrust's test framework prints: a test prints what it likes, "late" leaves an error of the device behind.
THRUST_STAND_IN = """#!%s
import os, sys
TESTS = ["TestPasses", "TestFails", "TestKnown", "TestSaysSo", "TestError<int, 3>", "TestCrashes", "TestLate", "TestLast"]
if "--list" in sys.argv:
    print("\\n".join(TESTS))
    sys.exit(0)
wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
assert set(wanted) <= set(TESTS) and "--verbose" in sys.argv
print('Testing Device 0: "a"\\nRunning %%d unit tests.' %% len(wanted))
wrong = []
for test in wanted:
    print("Running %%s..." %% test, end="", flush=True)
    if test == "TestCrashes":
        os.abort()
    if test == "TestSaysSo":
        print("Running TestNone... [PASS] TestNone", flush=True)
    kind = {"TestFails": "FAILURE", "TestKnown": "KNOWN FAILURE", "TestError<int, 3>": "ERROR",
            "TestLast": "FAILURE"}.get(test)
    wrong += [(kind, test)] if kind else []
    print("\\r[PASS]     1.2e+03 ms %%s" %% test if not kind else "\\r[%%s]           %%s" %% (kind, test), flush=True)
    if test == "TestLate":
        print("\\t[ERROR] CUDA error detected after running TestLate: [cudaErrorX: why]", flush=True)
        sys.exit(1)
line = "=" * 64
for kind, test in wrong:
    print(line + "\\n%%s: %%s\\nso it is\\n" %% (kind, test))
print(line + "\\nTotals: ...")
sys.exit(1 if wrong else 0)
""" % sys.executable


class Thrust(Folder):
    def test_outcomes(self):
        os.chmod(self.write("built/cuda.it", THRUST_STAND_IN), 0o755)
        side = run_suites.Side("without", None, self.folder)
        units = [suite_list.Unit("thrust", "thrust/testing/cuda/it.cu", shard, 2) for shard in range(2)]
        side.run([(self.folder, unit, None) for unit in units], 2, time.monotonic() + 600)
        self.assertEqual({name.split(":")[-1]: value[0] for name, value in side.outcomes.items()}, {
            "TestPasses": "passed", "TestFails": "failed", "TestKnown": "xfailed", "TestError<int, 3>": "error",
            "TestSaysSo": "passed", "TestCrashes": "crashed", "TestLate": "error", "TestLast": "failed"})
        self.assertEqual(sum(side.unrun.values()), 0)
        self.assertIn("cudaErrorX: why", side.outcomes["thrust:cuda.it::TestLate"][1])
        self.assertEqual("so it is", side.outcomes["thrust:cuda.it::TestLast"][1].strip())
        again = run_suites.Side("again", None, self.folder)
        again.run([(self.folder, units[0].alone(), ["cuda.it::TestFails"])], 1, time.monotonic() + 600)
        self.assertEqual(list(again.outcomes), ["thrust:cuda.it::TestFails"])


# What Catch2 does with names, files of them and signals, and writes as XML to the file that it is told.
CATCH2_STAND_IN = """#!%s
import os, re, signal, sys
from xml.sax.saxutils import escape, quoteattr
TESTS = ['"Passes, [all] of <int>"(0) - 0', 'Fails *', 'Skips', 'Aborts', 'Exits', 'Last']
if "--list-tests" in sys.argv:
    print("<MatchingTests>%%s</MatchingTests>" %% "".join(
        "<TestCase><Name>%%s</Name></TestCase>" %% escape(test) for test in TESTS))
    sys.exit(0)
option = sys.argv[1:]
chosen = []
for line in open(option[option.index("--input-file") + 1]).read().splitlines():
    assert re.fullmatch(r'"([^\\\\",*]|\\\\.)*"', line), line  # it would read another as several
    chosen.append(re.sub(r'\\\\(.)', r'\\1', line[1:-1]))
assert set(chosen) <= set(TESTS) and option[option.index("--rng-seed") + 1] == "1"
out = open(option[option.index("--reporter") + 1].replace("xml::out=", ""), "w")
print("<TestCase name='Said'>", flush=True)

def write(text):
    print(text, file=out, flush=True)

write('<?xml version="1.0" encoding="UTF-8"?><Catch2TestRun>')
failed = False
for test in [test for test in TESTS if test in chosen]:
    write("<TestCase name=%%s>" %% quoteattr(test))
    good = not test.startswith("Fails")
    failed |= not good
    if test == "Aborts":
        write("<FatalErrorCondition/><OverallResult success='false' skips='0'/></TestCase>")
        os.abort()
    if test == "Exits":
        os._exit(42)
    if not good:
        write("<Section><Expression><Original>a == b</Original>\\n<Expanded>1 == 2</Expanded></Expression></Section>")
    write("<OverallResult success='%%s' skips='%%d'/></TestCase>" %% (str(good).lower(), test == "Skips"))
write("</Catch2TestRun>")
sys.exit(42 if failed else 4 if chosen == ["Skips"] else 0)
""" % sys.executable


class Cub(Folder):
    def run_unit(self, unit, program, only=None):
        os.chmod(self.write(os.path.join("built", suite_list.program(unit)), program), 0o755)
        side = run_suites.Side("run %d" % len(os.listdir(self.folder)), None, self.folder)
        side.run([(self.folder, unit, only)], 1, time.monotonic() + 600)
        self.assertEqual(sum(side.unrun.values()), 0)
        return {name.split(":", 1)[1]: value for name, value in side.outcomes.items()}

    def test_outcomes(self):
        unit = suite_list.Unit("cub", "cub/test/catch2_it.cu", environment={"A": "1"})
        outcomes = self.run_unit(unit, CATCH2_STAND_IN)
        self.assertEqual({name.split("::")[1]: value[0] for name, value in outcomes.items()}, {
            '"Passes, [all] of <int>"(0) - 0@A=1': "passed", "Fails *@A=1": "failed", "Skips@A=1": "skipped",
            "Aborts@A=1": "crashed", "Exits@A=1": "crashed", "Last@A=1": "passed"})
        self.assertEqual(outcomes["catch2_it.A_1::Fails *@A=1"][1], "a == b 1 == 2")

    def test_one_of_them(self):
        unit = suite_list.Unit("cub", "cub/test/catch2_it.cu")
        for test, outcome in [("Skips", ("skipped", "")), ("Fails *", ("failed", "a == b 1 == 2"))]:
            name = "catch2_it::" + test
            self.assertEqual(self.run_unit(unit, CATCH2_STAND_IN, [name]), {name: outcome})

    def test_without_catch2(self):
        unit = suite_list.Unit("cub", "cub/test/it.cu")
        for program, outcome in [("true", ("passed", "")), ("echo why; exit 3", ("failed", "why\n"))]:
            self.assertEqual(self.run_unit(unit, "#!/bin/sh\n%s\n" % program), {"it": outcome})
        self.assertEqual(self.run_unit(unit, "#!/bin/sh\nkill -9 $$\n")["it"][0], "crashed")


@unittest.skipUnless(shutil.which("git"), "no git")
class Fetching(Folder):
    def test_copies_what_the_list_names(self):
        git = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", os.path.join(self.folder, "theirs")]
        self.write("theirs/test/a.py", "first\n")
        self.write("theirs/test/deep/b.py", "b\n")
        self.write("theirs/other.py", "no\n")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
            subprocess.run(git + words, check=True)
        self.write("theirs/test/a.py", "second\n")
        subprocess.run(git + ["commit", "-qam", "y"], check=True)
        path = self.write("list.txt", "run torch test/a.py\nneeds torch test/deep\nneeds torch test/gone.py\n")

        def fetch(*words):
            return subprocess.run([sys.executable, FETCH, "--list", path, "--into", os.path.join(self.folder, "out")] +
                                  list(words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

        result = fetch("torch=%s/theirs@v1" % self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("torch: test/gone.py is not in v1", result.stdout)
        found = sorted(os.path.relpath(os.path.join(at, name), self.folder)
                       for at, _, names in os.walk(os.path.join(self.folder, "out")) for name in names)
        self.assertEqual(found, ["out/torch/REVISION", "out/torch/test/a.py", "out/torch/test/deep/b.py"])
        with open(os.path.join(self.folder, "out/torch/test/a.py"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "first\n")
        self.assertIn("has no revision v2", fetch("torch=%s/theirs@v2" % self.folder).stdout)
        self.assertIn("suites to fetch are", fetch("jax=%s/theirs" % self.folder).stdout)


if __name__ == "__main__":
    unittest.main()
