# SPDX-License-Identifier: Apache-2.0
"""`rmmshim tune`: what it searches, that what it shows is what was replayed, and what it measures.

meson sets TOOL and SOURCE_ROOT."""
import glob
import json
import os
import re
import shlex
import sys
import unittest

import json_schema
import support
from served import SCENES, TOOL, tool

sys.path.insert(0, os.path.join(os.environ["SOURCE_ROOT"], "tests", "bench", "footprint"))
import footprint  # noqa: E402

MIB = 1 << 20
TRACES = sorted(glob.glob(os.path.join(os.environ["SOURCE_ROOT"], "tests", "bench", "traces", "*.trace")))
OPERATION = "10us"  # of each event, where a log has one time for all
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
# Blocks of few sizes; the pool that one run keeps, another takes as need be.
STEPS = ["hold:%d" % (5 * MIB), "use:60", "hold:%d" % (30 * MIB), "drop", "use:40"]


class Test(support.Test):
    def record(self, *steps):
        path = self.path("a.rec")
        result = support.run([sys.executable, SCENES, *steps], {"RMM_RECORD": path})
        self.assertEqual((result.status, result.said), (0, []), result)
        return path

    def log_of(self, trace):
        footprint.write_log(trace, self.path("trace.csv"))
        return self.path("trace.csv")

    def tune(self, *words, status=0, stderr=""):
        result = tool("tune", "--json", *words)
        self.assertEqual((result.status, result.stderr), (status, stderr), result)
        return json_schema.check(result.stdout, "tune.json")

    def replay(self, path, *words, resources):
        result = tool("replay", path, "--json", "--memory", "1TiB", *words, *[word for resource in resources for word in ("--resource", resource)])
        self.assertEqual(result.status, 0, result)
        return json.loads(result.stdout)["results"]

    def assert_is_accepted(self, variables):
        result = tool("check", *["%s=%s" % item for item in variables.items()])
        self.assertEqual((result.status, result.stderr), (0, ""), variables)


class Search(Test):
    def test_what_is_shown_is_what_was_replayed(self):
        log = self.log_of(TRACES[0])
        told = self.tune(log, "--lag", "1ms")
        self.assertGreaterEqual(told["replayed"], 200)
        self.assertGreaterEqual(len(told["front"]), 3)
        replayed = self.replay(log, "--lag", "1ms", "--operation", OPERATION,
                               resources=[stack["resource"] for stack in told["front"]])
        for stack, result in zip(told["front"], replayed):
            with self.subTest(stack=stack):
                self.assert_is_accepted(stack["variables"])
                self.assertEqual(stack["peak_held"], result["peak_held"])
                self.assertEqual(stack["driver_calls"], result["upstream_allocations"] + result["upstream_frees"])
                self.assertGreaterEqual(stack["waits"], result["waits"])
                self.assertEqual(result["refusals"], 0)
        none, = self.replay(log, "--lag", "1ms", "--operation", OPERATION, "--free", "immediate", resources=["cuda"])
        self.assertEqual((told["none"]["peak_held"], told["none"]["variables"]), (none["peak_held"], {}))
        self.assertEqual(told["none"]["waits"], none["upstream_frees"])

    def test_the_variables_mean_the_stack(self):
        log = self.log_of(TRACES[0])
        for stack in self.tune(log)["front"]:
            shown = tool("check", *["%s=%s" % item for item in stack["variables"].items()]).stdout.splitlines()[1:]
            meant = tool("check", stack["resource"]).stdout.splitlines()
            self.assertEqual([re.sub(" *<- put here.*", "", line).strip() for line in shown], [line.strip() for line in meant])

    def test_a_front_has_less_held_for_more_calls_and_waits(self):
        front = self.tune(self.log_of(TRACES[-1]))["front"]
        points = [(stack["peak_held"], stack["driver_calls"] + stack["waits"]) for stack in front]
        self.assertEqual(points, sorted(set(points)))
        self.assertEqual([stops for _, stops in points], sorted({stops for _, stops in points}, reverse=True))

    def test_the_search_finds_the_footprint_of_each_known_stack(self):
        """Those of footprint.py, of which an arena has the smallest of 64 sizes that serves."""
        for trace in TRACES:
            for lag in ("0", "1ms"):
                with self.subTest(trace=os.path.basename(trace), lag=lag):
                    log = self.log_of(trace)
                    told = self.tune(log, "--lag", lag, "--for", "footprint")
                    best = min(stack["peak_held"] for stack in told["front"])
                    arenas = [footprint.STACKS["arena"] % (told["peak_live"] * (100 + i) // 100) for i in range(1, 60)]
                    resources = [text for text in footprint.STACKS.values() if "%d" not in text] + arenas
                    known = [result["peak_held"] for result in
                             self.replay(log, "--lag", lag, "--operation", OPERATION, resources=resources)
                             if not result["refusals"]]
                    self.assertLessEqual(best, min(known))
                    self.assertLessEqual(best, told["none"]["peak_held"])

    def test_a_search_says_the_same_each_time(self):
        log = self.log_of(TRACES[1])
        self.assertEqual(self.tune(log), self.tune(log))

    def test_each_template_is_tried(self):
        told = self.tune(self.record("hold:%d" % (3 * MIB), "hold:%d" % (3 * MIB), "hold:4096"))
        self.assertEqual([row["stack"] for row in told["searched"] if not row["count"]], [])
        self.assertEqual(sum(row["count"] for row in told["searched"]), told["replayed"])
        self.assertEqual(told["allocations"], 3)
        many = {row["stack"]: row["count"] for row in self.tune(self.log_of(TRACES[0]))["searched"]}
        self.assertEqual(many["fixed_size"], 0)  # which is for programs of few sizes

    def test_wishes(self):
        log = self.log_of(TRACES[0])
        footprint_best, speed_best = self.tune(log)["best"]
        self.assertEqual((footprint_best["for"], speed_best["for"]), ("footprint", "speed"))
        told = self.tune(log, "--for", "limit=250MiB")
        limit_best, = told["best"]
        self.assertEqual(limit_best["variables"].pop("RMM_LIMIT"), "250MiB")
        stack, = [stack for stack in told["front"] if stack["variables"] == limit_best["variables"]]
        self.assertLessEqual(stack["peak_held"], 250 * MIB)
        self.assertEqual(stack["driver_calls"] + stack["waits"],
                         min(other["driver_calls"] + other["waits"] for other in told["front"]
                             if other["peak_held"] <= 250 * MIB))
        for best in (footprint_best, speed_best, limit_best):
            self.assert_is_accepted(best["variables"])
            self.assertFalse(best["stack"].startswith("arena"), best)
            self.assertGreater(len(best["reason"].split()), 10)

    def test_a_limit_that_nothing_keeps(self):
        best, = self.tune(self.record(*STEPS), "--for=limit=1MiB", status=1)["best"]
        self.assertEqual((best["for"], best["found"]), ("limit", False))
        self.assertIn("nothing that was replayed held at most 1.00 MiB; the least was ", best["reason"])

    def test_where_no_stack_is_best(self):
        path = self.record("hold:%d" % (2 * MIB))
        self.assertEqual([best["stack"] for best in self.tune(path)["best"]], ["no stack", "no stack"])
        limited, = self.tune(path, "--for", "limit=64MiB")["best"]  # which has a stack made by itself
        self.assertEqual((limited["stack"], limited["variables"]), ("cuda", {"RMM_RESOURCE": "cuda", "RMM_LIMIT": "64MiB"}))
        self.assertIn("\nbest for footprint: set nothing\n  nothing that was replayed held less than no stack: 2.00 MiB",
                      tool("tune", path).stdout)

    def test_the_text_has_the_variables_as_a_shell_takes_them(self):
        result = tool("tune", self.log_of(TRACES[0]))
        self.assertEqual((result.status, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"^device 0: 1775 allocations, at most 207 MiB live; \d+ stacks replayed, the GPU at most "
                                        r"1 ms behind\n\nSTACK +HELD +HELD/LIVE +DRIVER CALLS +WAITS +VARIABLES\nno stack ")
        wishes = re.findall(r"^best for (\w+): (.*)\n  (.*)\.$", result.stdout, re.M)
        self.assertEqual([wish for wish, _, _ in wishes], ["footprint", "speed"])
        for _, line, _ in wishes:
            self.assert_is_accepted(dict(word.split("=", 1) for word in shlex.split(line)))
        self.assertIn("(the time of a run was not measured)", wishes[1][2])

    def test_a_damaged_recording_is_used_and_said(self):
        path = self.record("use:3000")
        os.truncate(path, os.path.getsize(path) - 1000)
        result = tool("tune", path, "--json")
        self.assertEqual(result.status, 1)
        self.assertRegex(result.stderr, r"^rmmshim: \S+: the file is cut off at byte \d+; what is whole is used\n$")
        self.assertGreater(json_schema.check(result.stdout, "tune.json")["allocations"], 1000)

    def test_wrong_usage(self):
        log = self.log_of(TRACES[0])
        for words, said in (((), "no file; `rmmshim tune --help` says how"),
                            (("a", "b"), "one file; `rmmshim tune --help` says how"),
                            (("a", "--fro", "speed"), "unknown option '--fro'; did you mean '--for'?"),
                            (("a", "--for"), "--for needs a value"),
                            (("a", "--for", "sped"), "unknown --for 'sped'; did you mean 'speed'?"),
                            (("a", "--for", "limt=1GiB"), "unknown --for 'limt'; did you mean 'limit'?"),
                            (("a", "--for", "limit"), "--for=limit=: expected a size, as in limit=8GiB"),
                            (("a", "--for", "limit=80%"), "--for=limit=80%: a percentage has no meaning here"),
                            (("a", "--lag", "3"), "--lag=3: a time has a unit, as in 10us, 1ms or 2s"),
                            (("a", "--device", "x"), "--device=x: not a device's number"),
                            (("--run", "1", "--", "a"), "--run=1: expected a number of rounds from 2 to 1000"),
                            (("--run", "3"), "--run: no program behind --; `rmmshim tune --help` says how"),
                            (("--run", "3", "a"), "--run: a program stands behind --, and FILE is left out; "
                                                  "`rmmshim tune --help` says how"),
                            (("a", "--", "b"), "a program is run with --run N; `rmmshim tune --help` says how")):
            result = tool("tune", *words)
            self.assertEqual((result.status, result.stderr, result.stdout), (2, "rmmshim: %s\n" % said, ""), words)
        empty = self.path("empty.csv")
        with open(empty, "w", encoding="utf-8") as file:
            file.write(HEADER)
        for words, said in (((log, "--device", "3"), "the recording has no allocation of device 3"),
                            ((empty,), "the recording has no allocation of device 0"),
                            ((self.folder,), "%s: Is a directory" % self.folder),
                            ((self.path("none"),), "%s: No such file or directory" % self.path("none"))):
            result = tool("tune", *words)
            self.assertEqual((result.status, result.stderr, result.stdout), (1, "rmmshim: %s\n" % said, ""), words)

    def test_words_are_completed(self):
        def complete(*words):
            first, *found = tool("--complete", "tune", *words).stdout.splitlines()
            return first, [line.split("\t")[0] for line in found]
        self.assertEqual(complete("--for", ""), ("open", ["footprint", "speed", "limit="]))
        self.assertEqual(complete("--run", "3", "--", "a", "-"), ("program 4", []))
        self.assertEqual(complete(""), ("files ", []))
        self.assertIn("--lag", complete("-")[1])


class Run(Test):
    def measure(self, *words, steps=STEPS, status=0, **settings):
        result = support.run([TOOL, "tune", "--run", "2", *words, "--", sys.executable, SCENES, *steps],
                             dict(settings, TMPDIR=self.folder), preload=[], timeout=120)
        self.assertEqual(result.status, status, result)
        self.assertEqual(os.listdir(self.folder), [])
        return result

    def test_the_best_are_measured_beside_the_program_alone(self):
        result = self.measure("--json")
        self.assertEqual(result.stderr, "")
        told = json_schema.check(result.stdout, "tune.json")
        self.assertEqual((told["allocations"], told["measured"]["rounds"]), (102, 2))
        none, *others = told["measured"]["stacks"]
        self.assertEqual((none["stack"], none["variables"], none["peak_held"], none["more_seconds"]), ("no stack", {}, 0, 0))
        self.assertGreaterEqual(len(others), 2)
        self.assertEqual(len({json.dumps(stack["variables"]) for stack in others}), len(others))
        for stack in others:
            self.assertEqual(stack["status"], 0)
            self.assertGreater(stack["peak_held"], 30 * MIB)
            self.assertGreater(stack["seconds"], 0)
            self.assert_is_accepted(stack["variables"])
        footprint_best, speed_best = told["best"]
        self.assertRegex(footprint_best["reason"], r"; a run took \S+ s \+- \S+ s (less|more) than without the library$")
        faster = [stack for stack in others if stack["more_seconds"] + stack["more_seconds_half"] < 0]
        if not faster:
            self.assertEqual((speed_best["stack"], speed_best["variables"]), ("no stack", {}))
            self.assertIn("nothing that was measured is faster than no stack by more than its interval", speed_best["reason"])
        else:
            self.assertIn(speed_best["variables"], [stack["variables"] for stack in faster])

    def test_the_program_is_seen_once(self):
        result = self.measure("--for", "footprint", steps=["hold:%d" % (5 * MIB), "use:10", "say"])
        self.assertEqual(result.stdout.count("ready\n"), 1)
        self.assertRegex(result.stdout, r"\nmeasured in 2 rounds, with 95 % intervals:\n\nSTACK +A RUN TAKES +THAN WITHOUT +HELD +"
                                        r"VARIABLES\nno stack +\S+ s \+- \S+ s ")
        self.assertEqual(re.findall(r"^best for (\w+):", result.stdout, re.M), ["footprint"])

    def test_a_limit_is_set_in_the_runs(self):
        told = json_schema.check(self.measure("--json", "--for", "limit=64MiB").stdout, "tune.json")
        none, *others = told["measured"]["stacks"]
        self.assertEqual(none["variables"], {})
        for stack in others:
            self.assertEqual((stack["variables"]["RMM_LIMIT"], stack["status"]), ("64MiB", 0))
            self.assertLessEqual(stack["peak_held"], 64 * MIB)
        best, = told["best"]
        self.assertEqual(best["variables"]["RMM_LIMIT"], "64MiB")

    def test_what_cannot_be_run_is_said(self):
        result = self.measure(steps=["use:3", "end:exit"], status=3)
        self.assertEqual((result.stdout, result.stderr),
                         ("", "rmmshim: %s failed with status 3 while it was recorded\n" % sys.executable))
        result = self.measure(steps=[], status=1)
        self.assertEqual((result.stdout, result.stderr),
                         ("", "rmmshim: %s allocated no memory through CUDA, so there is nothing to tune\n" % sys.executable))
        result = self.measure(status=2, RMM_POOL_SIZE="1GiB")
        self.assertEqual((result.stdout, result.stderr),
                         ("", "rmmshim: RMM_POOL_SIZE is set: --run sets the variables of stacks itself\n"))
        result = self.measure(status=2, RMM_POOL_SIZ="1GiB")
        self.assertIn("RMM_POOL_SIZE", result.stderr)
        result = tool("tune", "--run", "2", "--", self.path("none"))
        self.assertEqual(result.status, 127)
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_of_several_processes_the_largest_is_tuned(self):
        result = self.measure("--json", "--for", "footprint", steps=["worker:use:3000", "use:2"])
        self.assertEqual(result.stderr, "rmmshim: 2 processes were recorded; the one with the largest recording is tuned\n")
        self.assertEqual(json.loads(result.stdout)["allocations"], 3000)


if __name__ == "__main__":
    support.main()
