# SPDX-License-Identifier: Apache-2.0
"""Lives of processes and contexts: forks, exits, resets, threads.  The program's answers are those it
gets without the library, and the outputs asked for are whole."""
import csv
import json
import os
import signal
import unittest

import support
from support import run

SETTINGS = [
    {},
    {"RMM_STATISTICS": "json:/dev/null"},
    {"RMM_POOL_SIZE": "64MiB"},
    {"RMM_POOL_MAX_SIZE": "4GiB"},
    {"RMM_ARENA_SIZE": "256MiB"},
    {"RMM_MANAGED": "1"},
    {"RMM_POOL_SIZE": "256MiB", "RMM_MANAGED": "1"},
    {"RMM_POOL_SIZE": "256MiB", "RMM_BINNING": "256KiB-4MiB"},
    {"RMM_RESOURCE": "statistics(limiting(pool(cuda), limit=1GiB))"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_HOOKS": "device"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_TRACKING": "json:/dev/null"},
    {"RMM_ASYNC": "1"},
    {"RMM_ASYNC": "1", "RMM_POOL_SIZE": "64MiB"},
    {"RMM_ASYNC": "1", "RMM_MANAGED": "1"},
]

RUNTIME_SCENES = [
    ["plain"], ["plain", "live"],
    ["fork_before"], ["fork_before", "live"], ["fork_after"], ["fork_after", "exit"], ["fork_busy"],
    ["fork_loading"],
    ["exec"], ["exec_child"],
    ["leave"], ["leave", "_exit"], ["leave", "quick_exit"], ["leave_in_thread"],
    ["free_late"], ["free_late", "early_handler"],
    ["reset"], ["threads"], ["threads_that_kept"],
    ["clone_after"], ["spawn"], ["exec_in_thread"], ["descriptors"], ["close_all"],
]

if support.PRELOAD_FIRST:
    # gcc 12's sanitizers do not take their allocator's lock around a fork, so the child of a process
    # whose threads allocate meanwhile may find it locked for ever.
    RUNTIME_SCENES.remove(["fork_busy"])

DRIVER_SCENES = ["destroyed_contexts", "two_contexts", "no_context", "primary_context", "two_references",
                 "other_thread", "cloned", "green_contexts", "live_at_exit"]


class Lives(support.Test):
    def scenes_are_same(self, name, scenes, every_settings=None):
        program = support.program(name)
        for scene, settings in support.pairs(scenes, every_settings or SETTINGS):
            with self.subTest("%s under %s" % (scene, settings)):
                self.assert_same([program] + scene, settings)

    def test_shared_runtime(self):
        self.scenes_are_same("life_runtime_shared", RUNTIME_SCENES)

    def test_static_runtime(self):
        """It comes through the driver's functions; the stacks behind these are those of the shared runtime's test."""
        self.scenes_are_same("life_runtime_static", RUNTIME_SCENES, [
            {}, {"RMM_STATISTICS": "json:/dev/null"}, {"RMM_POOL_SIZE": "64MiB"}, {"RMM_POOL_SIZE": "64MiB", "RMM_HOOKS": "device"},
            {"RMM_POOL_SIZE": "64MiB", "RMM_TRACKING": "json:/dev/null"}, {"RMM_POOL_SIZE": "256MiB", "RMM_MANAGED": "1"},
            {"RMM_ASYNC": "1"}])

    def test_driver(self):
        self.scenes_are_same("life_driver", [[scene] for scene in DRIVER_SCENES])

    def test_poison(self):
        """Without the scene of the most allocations: each waits for its fill."""
        for scene in RUNTIME_SCENES:
            if scene != ["fork_busy"]:
                self.assert_same([support.program("life_runtime_shared")] + scene,
                                 {"RMM_RESOURCE": "poison(pool(cuda))"})
        for scene in DRIVER_SCENES:
            served = self.assert_same([support.program("life_driver"), scene], {"RMM_RESOURCE": "poison(pool(cuda))"},
                                      silent=False)
            for line in served.said:  # some free a block twice, or inside it
                self.assertRegex(line, r"^poison: .* was freed (twice|with an address inside it, byte 512); the block was "
                                       r"allocated at ")

    def test_reused_handles_and_addresses(self):
        """A driver that gives the same addresses again at once, and one that never does."""
        program = support.program("life_driver")
        for placement in ("same", "never"):
            for scene in DRIVER_SCENES:
                with self.subTest("%s, %s" % (scene, placement)):
                    self.assert_same([program, scene], {"RMM_POOL_SIZE": "64MiB"},
                                     more={"HOSTCUDA_PLACEMENT": placement})

    def test_python_workers(self):
        """multiprocessing in each of its ways, with CUDA running in the parent or not."""
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "life_processes.py")
        for method in ("spawn", "fork", "forkserver"):
            for when in ("before", "after"):
                for settings in ({"RMM_ASYNC": "1"},
                                 {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("report.%p"),
                                  "RMM_LOG": self.path("log.%p")}):
                    with self.subTest("%s %s under %s" % (method, when, settings)):
                        self.assert_same(["python3", program, method, when], settings)

    def test_what_threads_kept_is_there_for_others(self):
        """6 MiB of each of 40 threads, in a pool of 16."""
        for more in ({}, {"RMM_FREE": "wait"}, {"RMM_BINNING": "4KiB-128KiB"}):
            self.assert_same([support.program("life_runtime_shared"), "threads_that_kept"],
                             dict(more, RMM_POOL_MAX_SIZE="16MiB"))

    @unittest.skipIf(support.PRELOAD_FIRST, "a sanitizer's runtime would have to be there from the start")
    def test_loaded_late(self):
        """Not preloaded but opened by the program itself, before CUDA and after: it does no harm."""
        here = os.path.dirname(os.path.abspath(__file__))
        load = "ctypes.CDLL(%r, ctypes.RTLD_GLOBAL)\n" % support.SHIM
        use = "life_processes.main()\n"
        for body in (load + use, use + load + use):
            script = ("import ctypes, sys\nsys.argv = ['', 'alone']\nsys.path.insert(0, %r)\n"
                      "sys.dont_write_bytecode = True\nimport life_processes\n" % here) + body
            result = run(["python3", "-c", script], {"RMM_POOL_SIZE": "64MiB"}, preload=[])
            self.assertEqual((result.status, result.stderr), (0, ""), result)
            self.assertEqual(result.stdout.count("(0, 0, 0) ([0], True)\n"), body.count(use), result)

    def test_abort_is_a_signal_still(self):
        result = run([support.program("life_runtime_shared"), "leave", "abort"], {"RMM_POOL_SIZE": "64MiB"})
        self.assertEqual(result.status, -signal.SIGABRT, result)


class Outputs(support.Test):
    def report(self, *scene, settings=None, status=0):
        path = self.path("report.json")
        result = run([support.program("life_runtime_shared")] + list(scene),
                     dict(settings or {"RMM_POOL_SIZE": "64MiB"}, RMM_STATISTICS="json:" + path))
        self.assertEqual(result.status, status, result)
        self.assertEqual(result.stderr, "")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def counter(self, report, name):
        return [counter["value"] for device in report["devices"] for counter in device["counters"]
                if (counter["resource"], counter["name"]) == ("statistics", name)][0]

    def test_report_counts_what_the_program_did(self):
        report = self.report("plain")
        self.assertEqual(report["schema"], 1)
        self.assertEqual(len(report["devices"]), 1)
        self.assertEqual(report["devices"][0]["device"], 0)
        self.assertIn("pool(cuda", report["devices"][0]["expression"])
        sizes = sum(100000 + i for i in range(16))
        expected = {"live": 0, "peak": sizes, "total": sizes, "live_allocations": 0, "peak_allocations": 16,
                    "allocations": 16, "failures": 0}
        self.assertEqual({name: self.counter(report, name) for name in expected}, expected)

    def test_report_shows_live_blocks(self):
        report = self.report("leave", status=7)
        self.assertEqual(self.counter(report, "live_allocations"), 16)

    def test_report_at_exit_from_a_thread(self):
        report = self.report("leave_in_thread", status=8)
        self.assertEqual(self.counter(report, "allocations"), 32)

    def test_report_outlives_a_reset(self):
        report = self.report("reset")
        self.assertEqual(self.counter(report, "allocations"), 6 * 16)
        self.assertEqual(self.counter(report, "live_allocations"), 0)

    def test_no_report_after__exit(self):
        """But the path has been this process's own."""
        path = self.path("report.json")
        result = run([support.program("life_runtime_shared"), "leave", "_exit"],
                     {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + path})
        self.assertEqual((result.status, result.stderr, os.path.getsize(path)), (5, "", 0), result)

    def test_a_forked_child_leaves_the_parents_report_alone(self):
        for scene in [scene for scene in RUNTIME_SCENES if scene[0] in ("fork_after", "fork_busy")]:
            report = self.report(*scene)
            self.assertEqual(self.counter(report, "live_allocations"), 0, scene)
            self.assertGreater(self.counter(report, "allocations"), 0, scene)

    def test_parent_and_child_report_each(self):
        result = run([support.program("life_runtime_shared"), "fork_before"],
                     {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("report.%p")})
        self.assertEqual(result.status, 0, result)
        names = os.listdir(self.folder)
        self.assertEqual(len(names), 2, names)
        for name in names:
            with open(self.path(name), encoding="utf-8") as file:
                self.assertEqual(self.counter(json.load(file), "allocations"), 16)

    def test_text_report_goes_to_stderr(self):
        result = run([support.program("life_runtime_shared"), "plain"],
                     {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "1"})
        self.assertEqual(result.status, 0)
        self.assertIn("16", result.stderr)

    def test_no_report_without_cuda(self):
        result = run(["true"], {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "json:" + self.path("r")})
        self.assertEqual((result.status, result.stderr, os.listdir(self.folder)), (0, "", []))

    def read_log(self, path):
        text = support.whole_log(path)
        self.assertTrue(text.endswith("\n"), "the last line is cut off")
        rows = list(csv.reader(text.splitlines()))
        self.assertEqual(rows[0], ["Thread", "Time", "Action", "Pointer", "Size", "Stream"])
        for row in rows[1:]:
            self.assertEqual(len(row), 6, row)
        return rows[1:]

    def test_log_has_every_event(self):
        path = self.path("log.csv")
        result = run([support.program("life_runtime_shared"), "plain"], {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": path})
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        rows = self.read_log(path)
        made = [row for row in rows if row[2] == "allocate"]
        freed = [row for row in rows if row[2] == "free"]
        self.assertEqual([int(row[4]) for row in made], [100000 + i for i in range(16)])
        self.assertEqual([row[3] for row in freed], [row[3] for row in made])
        self.assertEqual([row[4] for row in freed], [row[4] for row in made])

    @unittest.skipIf(support.PRELOAD_FIRST, "a sanitizer's allocator does not survive such a fork")
    def test_log_of_threads_is_whole(self):
        path = self.path("log.csv")
        result = run([support.program("life_runtime_shared"), "fork_busy"],
                     {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": path})
        self.assertEqual(result.status, 0, result)
        rows = self.read_log(path)
        allocations = sum(row[2] == "allocate" for row in rows)
        self.assertGreaterEqual(allocations, 4 * 2000)
        self.assertEqual(len(rows), 2 * allocations)
        live = set()
        for row in rows:
            if row[2] == "allocate":
                self.assertNotIn(row[3], live)
                live.add(row[3])
            else:
                live.remove(row[3])

    def test_log_of_a_parent_alone_after_fork(self):
        """What the parent had not written when it forked is not written twice."""
        for scene in (["fork_after"], ["fork_after", "exit"], ["clone_after"]):
            path = self.path("log.csv")
            result = run([support.program("life_runtime_shared")] + scene, {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": path})
            self.assertEqual((result.status, result.stderr), (0, ""), result)
            actions = [row[2] for row in self.read_log(path)]
            blocks = 16 if scene == ["clone_after"] else 32
            self.assertEqual((actions.count("allocate"), actions.count("free")), (blocks, blocks), scene)

    def test_a_new_program_inherits_no_descriptor(self):
        settings = {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": self.path("log.%p"),
                    "RMM_STATISTICS": "json:" + self.path("report.%p")}
        served = self.assert_same([support.program("life_runtime_shared"), "exec_in_thread"], settings, silent=False)
        self.assertRegex("\n".join(served.said), r"^logging: .* was not ended by the process that wrote it, whose last rows are in .*; both files are kept, and this process writes to .*$")

    def test_a_log_whose_descriptor_is_another_files(self):
        path = self.path("log.csv")
        plain = run([support.program("life_runtime_shared"), "close_all"], preload=[])
        result = run([support.program("life_runtime_shared"), "close_all"], {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": path})
        self.assertEqual(result.outcome, plain.outcome)
        self.assertEqual(result.said, ["logging: %s: the program closed rmmshim's file descriptor (perhaps in a loop over all "
                                       "descriptors): Bad file descriptor; nothing more is written to this log" % path])

    def test_log_is_whole_after__exit_and_exec(self):
        for scene, status in ((["leave", "_exit"], 5), (["exec"], 0)):
            path = self.path("log.%p.csv")
            result = run([support.program("life_runtime_shared")] + scene, {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": path})
            self.assertEqual(result.status, status, result)
            names = [name for name in os.listdir(self.folder) if not name.endswith(".part")]
            rows = sorted(len(self.read_log(self.path(name))) for name in names)
            self.assertEqual(rows, [16] if scene[0] == "leave" else [16, 32])
            for name in os.listdir(self.folder):
                os.unlink(self.path(name))


if __name__ == "__main__":
    support.main()
