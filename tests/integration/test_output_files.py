# SPDX-License-Identifier: Apache-2.0
"""What processes write: several of them with one path, and working directories that change."""
import json
import os
import signal
import subprocess
import sys

import support
from support import run, whole_log

SCENES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "output_scenes.py")
POOL = {"RMM_POOL_SIZE": "64MiB"}
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"


class Scene:
    """A program of steps that runs while the test goes on."""

    def __init__(self, test, steps, settings):
        self.process = subprocess.Popen([sys.executable, SCENES] + steps, env=support.environment(settings),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.pid = self.process.pid
        test.addCleanup(self.kill)
        test.addCleanup(support.let_end, self.process)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def until_ready(self):
        assert self.process.stdout.readline() == b"ready\n", self.process.communicate()
        return self

    def go_on(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self):
        """Its result; what it waits for is given."""
        stdout, stderr = self.process.communicate(b"\n\n", timeout=support.ENOUGH_SECONDS)
        return support.Result(self.process.returncode, stdout, stderr)


def text_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


class Outputs(support.Test):
    def start(self, *steps, **settings):
        return Scene(self, list(steps), dict(POOL, **settings))

    def run_steps(self, *steps, **settings):
        return run([sys.executable, SCENES] + list(steps), dict(POOL, **settings))

    def assert_log(self, path, pairs):
        """A header and whole rows of so many allocations and frees."""
        text = whole_log(path)
        self.assertEqual(text[:len(HEADER)], HEADER)
        self.assertNotIn("\0", text)
        rows = text.split("\n")
        self.assertEqual(rows.pop(), "")
        self.assertEqual([row for row in rows if row.count(",") != 5], [])
        self.assertEqual(len(rows), 1 + 2 * pairs, path)

    def allocations(self, path):
        return sum(counter["value"] for device in json.loads(text_of(path))["devices"]
                   for counter in device["counters"]
                   if (counter["resource"], counter["name"]) == ("statistics", "allocations"))


class Deaths(Outputs):
    WAYS = {"_exit": 0, "quick_exit": 0, "exec": 0, "abort": -signal.SIGABRT, "SIGTERM": -signal.SIGTERM,
            "SIGINT": -signal.SIGINT, "SIGKILL": -signal.SIGKILL, "SIGSEGV": -signal.SIGSEGV}
    ORDERLY = {"return": 0, "exit": 3, "pthread_exit": 0, "cancel": 0}  # exit() runs in all of them

    def test_every_output_after_every_end(self):
        """The log is whole whatever happens, a report is there after exit() and never in part, and the program's
        status is its own."""
        for how, status in {**self.WAYS, **self.ORDERLY}.items():
            with self.subTest(how):
                log, reports = self.path(how + ".csv"), [self.path(how + name) for name in (".json", ".leaks", ".prom")]
                result = self.run_steps("use:5", "end:" + how, RMM_LOG=log, RMM_STATISTICS="json:" + reports[0],
                                        RMM_TRACKING="json:" + reports[1])
                self.assertEqual((result.status, result.said), (status, []), result)
                self.assert_log(log, 5)
                prometheus = self.run_steps("use:5", "end:" + how, RMM_STATISTICS="prom:" + reports[2])
                self.assertEqual((prometheus.status, prometheus.said), (status, []), prometheus)
                if how in self.ORDERLY:
                    self.assertEqual(self.allocations(reports[0]), 5)
                    self.assertEqual(json.loads(text_of(reports[1]))["pid"] > 0, True)
                    self.assertIn("# TYPE", text_of(reports[2]))
                else:
                    self.assertEqual([text_of(path) for path in reports if os.path.exists(path)],
                                     [""] * sum(map(os.path.exists, reports)))

    def test_every_row_outlives_the_process(self):
        for how, status in self.WAYS.items():
            for pairs in (100, 2500):
                with self.subTest("%d by %s" % (pairs, how)):
                    path = self.path("%s.%d" % (how, pairs))
                    result = self.run_steps("use:%d" % pairs, "end:" + how, RMM_LOG=path)
                    self.assertEqual((result.status, result.said), (status, []), result)
                    self.assert_log(path, pairs)

    def test_an_end_in_order_leaves_the_log_alone(self):
        path = self.path("log.csv")
        self.run_steps("use:100", RMM_LOG=path)
        self.assertEqual(os.listdir(self.folder), ["log.csv"])
        self.assert_log(path, 100)

    def test_a_running_log_holds_whole_rows(self):
        path = self.path("log.csv")
        scene = self.start("use:3000", "say", "wait", RMM_LOG=path).until_ready()
        text = text_of(path)
        self.assertNotIn("\0", text)
        self.assertEqual(text[-1], "\n")
        self.assertEqual(os.stat(path + ".part").st_mode & 0o7777, 0o600)
        self.assert_log(path, 3000)
        scene.end()
        self.assert_log(path, 3000)

    def test_the_manual_says_how_the_two_files_are_one(self):
        with open(os.path.join(os.path.dirname(SCENES), "..", "..", "src", "tool", "man", "rmmshim-reports.7.md"), encoding="utf-8") as file:
            program = file.read().partition("So the whole log is\n\n```python\n")[2].partition("```")[0]
        self.run_steps("use:2500", "end:_exit", RMM_LOG=self.path("log.csv"))
        result = run([sys.executable, "-c", program + "print(whole.decode(), end='')"], preload=[], cwd=self.folder)
        self.assertEqual((result.status, result.stdout.count("\n")), (0, 5001), result.stderr)
        self.assertEqual(result.stdout, whole_log(self.path("log.csv")))

    def test_prefork_workers_have_their_rows(self):
        """Also the one that comes when the first is gone: its rows are in two files, neither is lost."""
        path = self.path("log.csv")
        result = self.run_steps("worker:use:100", "worker:use:50", "use:20", RMM_LOG=path)
        self.assertEqual((result.status, len(result.said)), (0, 2), result)
        self.assertIn("%s was not ended by the process that wrote it, whose last rows are in %s.part" % (path, path), result.said[0])
        logs = [name for name in sorted(os.listdir(self.folder)) if not name.endswith(".part")]
        self.assertEqual(len(logs), 3)
        self.assertEqual(sorted(whole_log(self.path(name)).count("\n") for name in logs), [41, 101, 201])
        self.assert_log(path, 100)

    def test_multiprocessing(self):
        program = os.path.join(os.path.dirname(SCENES), "life_processes.py")
        for method in ("spawn", "fork", "forkserver"):
            folder = self.path(method)
            os.mkdir(folder)
            self.assert_same([sys.executable, program, method, "before"],
                             dict(POOL, RMM_LOG=os.path.join(folder, "log.%p")))
            names = [os.path.join(folder, name) for name in os.listdir(folder) if not name.endswith(".part")]
            self.assertGreater(len(names), 1)
            self.assertEqual(sum(whole_log(name).count("\n") - 1 for name in names), (4 + 1) * 40, method)

    def test_a_program_in_the_same_process_leaves_the_first_ones_rows(self):
        path = self.path("log.csv")
        scene = self.start("use:3", "again:use:4,say,wait", RMM_LOG=path).until_ready()
        self.assertEqual(len(scene.end().said), 1)
        self.assert_log(path, 3)
        self.assert_log("%s.%d" % (path, scene.pid), 4)

    def test_a_forked_child_leaves_the_rows_alone(self):
        for how in ("_exit", "quick_exit", "SIGTERM"):
            path = self.path(how)
            scene = self.start("use:100", "say", "stayer", "use:10", "end:" + how, RMM_LOG=path)
            scene.until_ready().end()
            self.assert_log(path, 110)


class SharedPaths(Outputs):
    def test_four_logs_of_one_path(self):
        path = self.path("log.csv")
        scenes = [self.start("use:3000", "say", "wait", RMM_LOG=path).until_ready() for _ in range(4)]
        results = [scene.end() for scene in scenes]
        self.assertEqual([result.status for result in results], [0] * 4)
        names = ["log.csv"] + ["log.csv.%d" % scene.pid for scene in scenes[1:]]
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))
        for name, result in zip(names, results):
            self.assert_log(self.path(name), 3000)
            said = ["logging: another process writes to %s, so this one writes to %s" % (path, self.path(name))]
            self.assertEqual(result.said, [] if name == "log.csv" else said)

    def test_a_late_log_leaves_the_first_alone(self):
        path = self.path("log.csv")
        first = self.start("use:3000", "say", "wait", "use:10", RMM_LOG=path).until_ready()
        late = self.run_steps("use:7", RMM_LOG=path)
        self.assertEqual((late.status, len(late.said)), (0, 1), late)
        self.assertEqual(first.end().said, [])
        self.assert_log(path, 3010)

    def test_a_log_whose_writer_is_gone_is_written_anew(self):
        """Also while a forked child, which shares the file, is still there."""
        path = self.path("log.csv")
        first = self.start("use:3", "stayer", "say", RMM_LOG=path).until_ready()
        self.assertEqual(os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT).si_status, 0)
        second = self.run_steps("use:5", RMM_LOG=path)
        self.assertEqual((second.status, second.said), (0, []), second)
        self.assert_log(path, 5)
        first.end()

    def test_two_reports_of_one_path(self):
        for variable in ("RMM_STATISTICS", "RMM_TRACKING"):
            path = self.path(variable)
            settings = {"RMM_STATISTICS": "json:" + self.path("%p"), variable: "json:" + path}
            first = self.start("use:3", "say", "wait", **settings).until_ready()
            second = self.start("use:5", "say", "wait", **settings).until_ready()
            said = ["%s: another process writes to %s, so this process writes to %s.%d" %
                    (variable, path, path, second.pid)]
            self.assertEqual((second.end().said, first.end().said), (said, []))
            if variable == "RMM_STATISTICS":
                self.assertEqual(self.allocations(path), 3)
                self.assertEqual(self.allocations("%s.%d" % (path, second.pid)), 5)
            else:
                self.assertEqual(json.loads(text_of(path))["pid"], first.pid)
                self.assertEqual(json.loads(text_of("%s.%d" % (path, second.pid)))["pid"], second.pid)
            third = self.run_steps("use:4", **settings)
            self.assertEqual((third.status, third.said), (0, []), third)
        self.assertEqual(self.allocations(self.path("RMM_STATISTICS")), 4)

    def test_relative_paths_stay_where_the_program_was(self):
        os.mkdir(self.path("elsewhere"))
        settings = dict(POOL, RMM_LOG="log.csv", RMM_STATISTICS="json:report", RMM_TRACKING="json:leaks")
        result = run([sys.executable, SCENES, "use:2", "chdir:elsewhere"], settings, cwd=self.folder)
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertEqual(os.listdir(self.path("elsewhere")), [])
        self.assertEqual(sorted(os.listdir(self.folder)), ["elsewhere", "leaks", "log.csv", "report"])
        self.assertEqual(self.allocations(self.path("report")), 2)

    def test_a_process_that_reports_nothing_leaves_no_file(self):
        result = self.run_steps("use:1", RMM_ON_OOM="text:" + self.path("refusals"))
        self.assertEqual((result.stderr, os.listdir(self.folder)), ("", []), result)

    def test_a_report_whose_descriptor_is_another_files(self):
        """A daemon that closes all that it does not know; its own file has the number by then."""
        path = self.path("report")
        program = [support.program("life_runtime_shared"), "close_all"]
        self.assert_same(program, dict(POOL, RMM_STATISTICS="json:" + path))
        self.assertEqual(self.allocations(path), 16 * 201)


if __name__ == "__main__":
    support.main()
