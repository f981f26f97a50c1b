# SPDX-License-Identifier: Apache-2.0
"""Control from inside the process: the public functions in whole programs."""
import json
import os
import re
import sys

import json_schema
import prometheus_text
import support
from support import run

HERE = os.path.dirname(os.path.abspath(__file__))
SCENES = os.path.join(HERE, "control_scenes.py")
EXAMPLES = os.path.join(HERE, "..", "examples")
MIB = 1 << 20
PATH = {"PYTHONDONTWRITEBYTECODE": "1"}
POOL = {"RMM_POOL_SIZE": "64MiB"}
GROWING = {"RMM_POOL_SIZE": "0"}
KINDS = dict(POOL, RMM_PINNED_POOL_SIZE="16MiB", RMM_MANAGED_POOL_SIZE="8MiB")

STACKS = [
    {"RMM_RESOURCE": "cuda"},
    {"RMM_RESOURCE": "statistics(cuda)"},
    {"RMM_RESOURCE": "pool(cuda)"},
    {"RMM_RESOURCE": "statistics(limiting(pool(cuda, initial_size=32MiB), limit=1GiB))"},
    {"RMM_RESOURCE": "binning(pool(cuda), minimum_size=512, maximum_size=4MiB)"},
    {"RMM_RESOURCE": "binning(pool(cuda), bin(arena(cuda, arena_size=64MiB), size=64KiB), bin(cuda, size=1MiB), "
                     "bins=300000)"},
    {"RMM_RESOURCE": "arena(cuda)"},
    {"RMM_RESOURCE": "virtual"},
    {"RMM_RESOURCE": "pool(async)"},
    {"RMM_RESOURCE": "async"},
    {"RMM_RESOURCE": "tracking(poison(pool(cuda)))", "RMM_TRACKING": "0"},
    {"RMM_RESOURCE": "pool(cuda)", "RMM_FREE": "wait"},
    {"RMM_RESOURCE": "pool(cuda)", "RMM_FREE": "immediate"},
    {"RMM_RESOURCE": "pool(cuda)", "HOSTCUDA_DRIVER_VERSION": "11040"},
]
# An allocation that fails says so.
LINES = re.compile(r"rmmshim_torch_(alloc|free): ")


class Control(support.Test):
    def scene(self, name, settings, *arguments, **how):
        more = dict(PATH, **how.pop("more", {}))
        result = run([sys.executable, SCENES, name, *arguments], settings, more=more, **how)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.stdout, "done\n", result)
        return result

    def quiet(self, name, settings, *arguments, **how):
        result = self.scene(name, settings, *arguments, **how)
        self.assertEqual([line for line in result.said if not LINES.match(line)], [], result)
        return result

    def test_statistics_of_every_stack(self):
        for settings in STACKS:
            with self.subTest(settings):
                self.quiet("statistics", settings)
        self.quiet("statistics", {"RMM_RESOURCE": "pool(managed)"})

    def test_statistics_of_a_fallback(self):
        for second in ("managed(charged=0)", "pinned"):
            self.quiet("spilled", {"RMM_RESOURCE": "fallback(cuda, %s)" % second})

    def test_statistics_of_the_programs_own(self):
        for settings, held in (({"RMM_POOL_SIZE_0": "8MiB"}, 8 << 20), ({"RMM_RESOURCE_0": "cuda"}, 1000),
                               ({"RMM_RESOURCE_0": "pool(managed, initial_size=8MiB)"}, 8 << 20)):
            for more in ({}, {"RMM_LIMIT_0": "1GiB"}):
                with self.subTest("%s %s" % (settings, more)):
                    self.quiet("the_programs_own", dict(settings, **more), str(held),
                               more={"HOSTCUDA_DEVICES": "2"})

    def test_peaks_of_contexts(self):
        for resource in ("cuda", "virtual", "async", "fallback(cuda, managed)"):
            with self.subTest(resource):
                self.quiet("peaks_of_contexts", {"RMM_RESOURCE": resource, "RMM_FREE": "wait"})

    def test_pools_that_shrink(self):
        for settings in ({"RMM_LIMIT": "1GiB"}, {"RMM_POOL_SIZE": "0", "RMM_STATISTICS": "json:/dev/null"},
                         dict(GROWING, RMM_LIMIT="1GiB")):
            with self.subTest(settings):
                self.quiet("pools_that_shrink", settings, "limited" if "RMM_LIMIT" in settings else "free")

    def test_what_pools_gave_back_is_in_the_report(self):
        report = self.path("report.json")
        for scene, settings, *arguments in (
                ("followed_to_the_end", {"RMM_LIMIT": "1GiB", "RMM_STATISTICS": "json:" + report}),
                ("followed_to_the_end", dict(GROWING, RMM_STATISTICS="json:" + report)),
                ("followed_on_demand", {"RMM_LIMIT": "1GiB"}, "json:" + report)):
            self.quiet(scene, settings, *arguments)
            with open(report, encoding="utf-8") as file:
                counters = {counter["name"]: counter["value"] for stack in json.load(file)["devices"]
                            for counter in stack["counters"] if counter["resource"] == "account"}
            self.assertGreaterEqual(counters["charged_peak"], 64 << 20, counters)
            self.assertEqual((counters["charged"], counters["stream_ordered"]), (0, 0), counters)

    def test_released_when_the_program_synchronises(self):
        """Issue 18, point 4."""
        for form, counts in (("async(%s)", "device"), ("statistics(limiting(async(%s), limit=4GiB))", "device"),
                             ("binning(async(%s))", "device"), ("async_managed(%s)", "library")):
            for kept, more in ((0, {}), (128, {"RMM_LIMIT": "4GiB"}), (0, {"RMM_LIMIT": "4GiB"}), (0, {"RMM_FREE": "wait"}),
                               (128, {"RMM_STATISTICS": "json:/dev/null"})):
                settings = dict(more, RMM_RESOURCE=form % ("release_threshold=%dMiB" % kept))
                with self.subTest(settings):
                    self.quiet("released", settings, str(kept), counts)

    def test_released_in_order(self):
        self.quiet("released_in_order", {"RMM_RESOURCE": "async(release_threshold=0)"})

    def test_not_released(self):
        for resource in ("async", "pool(cuda)", "pool(async(release_threshold=0))",
                         "arena(async(release_threshold=0))"):
            with self.subTest(resource):
                self.quiet("not_released", {"RMM_RESOURCE": resource})

    def test_smallest_limit(self):
        self.quiet("smallest_limit", GROWING)

    def test_what_a_failed_call_leaves_behind_a_context(self):
        for resource, function, *more in (
                ("fallback(cuda, virtual)", "cuMemUnmap", "refused"),
                ("async(initial_size=64MiB)", "cuMemPoolDestroy"),
                ("async(initial_size=64MiB)", "cuMemFree_v2")):
            with self.subTest(resource + " " + function):
                self.quiet("given_back_late", {"RMM_RESOURCE": resource}, function + ":count=1:code=999", *more)

    def test_statistics_of_every_kind(self):
        self.quiet("statistics_of_kinds", KINDS)

    def test_counters_nest(self):
        for settings in (KINDS, dict(GROWING, RMM_PINNED_RESOURCE="pinned", RMM_STATISTICS="json:/dev/null")):
            with self.subTest(settings):
                self.quiet("counters", settings)
        self.quiet("counters_of_another_size", POOL)

    def test_peaks_begin_anew(self):
        self.quiet("peaks", GROWING)

    def test_a_trim_waits_for_its_fences(self):
        for resource in ("pool(cuda)", "async", "virtual"):
            with self.subTest(resource):
                self.quiet("trimmed_at_once", {"RMM_RESOURCE": resource})

    def test_what_a_free_waited_for_is_unknown(self):
        for free in ("wait", "immediate"):
            for resource in ("async", "statistics(async)", "async_managed", "pool(async)", "cuda"):
                if free == "immediate" and resource == "pool(async)":
                    continue  # its blocks wait for nothing
                with self.subTest(resource + " " + free):
                    self.quiet("freed_is_unknown", {"RMM_RESOURCE": resource, "RMM_FREE": free},
                               "at once" if free == "wait" else "soon", more={"HOSTCUDA_SCHEDULE": "random:1"})

    def test_struct_of_another_size(self):
        self.quiet("grown_struct", POOL)

    def test_before_cuda_starts(self):
        self.quiet("before_start", GROWING)

    def test_limit_of_a_share_before_cuda_starts(self):
        memory = {"HOSTCUDA_MEMORY": "1GiB", "HOSTCUDA_CONTEXT_MEMORY": "32MiB"}
        for limit, settings, size in (("50%", {}, 512 << 20), ("50%free", {}, 496 << 20),
                                      ("10%", {"RMM_LIMIT_0": "25%"}, 256 << 20)):
            with self.subTest(limit):
                self.quiet("limit_before_start", dict(POOL, RMM_LIMIT=limit, **settings), str(size), more=memory)
        self.quiet("limit_before_start", dict(GROWING, RMM_LIMIT="50%"), str(64 << 20), "set", more=memory)
        for settings, size in ((POOL, 0), (dict(POOL, RMM_LIMIT="1GiB"), 1 << 30),
                               (dict(POOL, RMM_LIMIT_1="50%"), 0)):
            with self.subTest(settings):
                self.quiet("known_limit_before_start", settings, str(size))

    def test_nothing_served(self):
        self.quiet("nothing_served", {})
        result = self.scene("nothing_served", {"RMM_POOL_SIZE": "1Q", "RMM_ON_ERROR": "passthrough"})
        self.assertEqual(len([line for line in result.said if not LINES.match(line)]), 1, result)

    def test_forked_child(self):
        self.quiet("forked", POOL)

    def test_limits(self):
        self.quiet("limits", {"RMM_RESOURCE": "fixed_size(cuda, block_size=8MiB, blocks_to_preallocate=1)"})

    def test_pushed_resources(self):
        """Conformance 80: what was there before comes back, and they nest."""
        for settings in (POOL, GROWING, {"RMM_RESOURCE": "cuda"}, dict(POOL, RMM_STATISTICS="json:/dev/null")):
            with self.subTest(settings):
                self.quiet("pushed", settings)

    def test_pushed_wrongly(self):
        self.quiet("pushed_wrongly", POOL)
        self.quiet("pushed_without_device_memory", {"RMM_HOOKS": "pinned", "RMM_PINNED_POOL_SIZE": "0"})

    def test_pushed_too_large_before_cuda_starts(self):
        result = self.scene("denied_late", POOL)
        self.assertEqual(len(result.said), 1, result)

    def test_pushed_when_the_driver_fails_once(self):
        self.quiet("pushed_again", GROWING)

    def test_pushed_by_threads(self):
        self.quiet("pushed_by_threads", GROWING)

    def test_pushed_in_contexts(self):
        self.quiet("pushed_in_contexts", GROWING)

    def test_set_resource(self):
        """Conformance 13: the resource of a device is all threads'."""
        for settings in (POOL, GROWING, {"RMM_RESOURCE": "cuda"}, dict(POOL, RMM_STATISTICS="json:/dev/null")):
            with self.subTest(settings):
                self.quiet("set_resource", settings)
                self.quiet("set_resource_by_threads", settings)
        self.quiet("set_resource_runtime", POOL)
        result = self.scene("set_resource_before_start", POOL, more={"HOSTCUDA_DEVICES": "2"})
        self.assertEqual(len(result.said), 1, result)

    def test_set_resource_of_each_device(self):
        for settings in (POOL, GROWING):
            with self.subTest(settings):
                self.quiet("set_resource_of_devices", settings, more={"HOSTCUDA_DEVICES": "2"})

    def test_prefetch(self):
        for resource in ("managed", "pool(managed)", "statistics(pool(managed, initial_size=64MiB))"):
            for driver in ({}, {"HOSTCUDA_DRIVER_VERSION": "11040"}):
                with self.subTest(resource, **driver):
                    self.quiet("prefetch", {"RMM_RESOURCE": resource}, more=driver)
        for settings in (dict(POOL, RMM_PINNED_POOL_SIZE="4MiB"), {"RMM_RESOURCE": "virtual", "RMM_PINNED_RESOURCE": "pinned"},
                         {"RMM_RESOURCE": "async", "RMM_PINNED_RESOURCE": "pinned"}):
            with self.subTest(settings):
                self.quiet("prefetch_other", settings)
        result = self.scene("prefetch_other", {"RMM_MANAGED": "1", "RMM_PINNED_RESOURCE": "pinned"},
                            more={"HOSTCUDA_CONCURRENT_MANAGED": "0"})
        self.assertEqual(result.stdout, "done\n", result)

    def test_report_on_demand(self):
        for name, settings in (("plain", {}), ("json", {"RMM_STATISTICS": "json:" + self.path("exit.json")}),
                               ("text", {"RMM_STATISTICS": "text:" + self.path("exit.txt"), "RMM_TRACKING": "1"})):
            with self.subTest(name):
                self.reports_on_demand(self.path(name), dict(POOL, **settings))

    def reports_on_demand(self, folder, settings):
        os.makedirs(folder)
        result = self.scene("reports", settings, folder)
        failed = [line for line in result.said if "rmmshim_report" in line]
        self.assertEqual(len(failed), 2, result)  # of the folder that is not there, and of the full device
        self.assertEqual(result.stderr.count("  pool "), 2, result)
        one, two = (self.counters(os.path.join(folder, name)) for name in ("one.json", "two.json"))
        self.assertEqual((one["pool", "allocations"], one["pool", "live"]), (2, 3 * MIB + 1024))
        self.assertEqual((two["cuda", "held"], two["pool", "live_peak"]), (64 * MIB, 3 * MIB + 1024))
        with open(os.path.join(folder, "three.prom"), encoding="utf-8") as file:
            self.assertIn("rmmshim_pool_allocations_total", prometheus_text.read(file.read()))
        with open(os.path.join(folder, "four.txt"), encoding="utf-8") as file:
            self.assertIn("  pool        held 64.0 MiB", file.read())
        if "json" in settings.get("RMM_STATISTICS", ""):
            self.assertEqual(self.counters(self.path("exit.json"))["statistics", "allocations"], 2)
        elif "RMM_STATISTICS" in settings:
            with open(self.path("exit.txt"), encoding="utf-8") as file:
                self.assertEqual(file.read().count("device 0: "), 1)

    def counters(self, path):
        device, = json_schema.read(path, "statistics.json")["devices"]
        return {(counter["resource"], counter["name"]): counter["value"] for counter in device["counters"]}

    def test_reports_of_threads_are_whole(self):
        folder = self.path("reports")
        os.makedirs(folder)
        self.quiet("reports_by_threads", GROWING, folder)
        self.assertEqual(len(os.listdir(folder)), 15)
        for name in os.listdir(folder):
            self.assertGreaterEqual(self.counters(os.path.join(folder, name))["pool", "allocations"], 1)

    def test_marks(self):
        log = self.path("log.csv")
        self.quiet("marks", dict(POOL, RMM_LOG=log))
        with open(log, encoding="utf-8") as file:
            rows = file.read().splitlines()
        self.assertEqual([row.split(",")[2] for row in rows[1:]], ["allocate", "free", "allocate", "free"])
        with open(log + ".marks", encoding="utf-8") as file:
            marks = file.read().splitlines()
        self.assertEqual(marks[0], "Thread,Time,Row,Phase")
        self.assertEqual(len(marks), 3, marks)
        self.assertRegex(marks[1], r"^\d+,\d\d:\d\d:\d\d\.\d{6},1,setup$")
        self.assertRegex(marks[2], r"^\d+,\d\d:\d\d:\d\d\.\d{6},4,a phase, with two lines and x+$")
        self.assertEqual(len(marks[2].split(",", 3)[3]), 200)
        self.scene_without_log()

    def scene_without_log(self):
        result = run([sys.executable, SCENES, "marks"], POOL, more=PATH)
        self.assertNotEqual(result.status, 0)
        self.assertIn("neither an event log (RMM_LOG) nor a recording (RMM_RECORD) is open", result.stderr)

    def test_torch(self):
        """Conformance 81 and 82: no bytes, streams, a stream that died before the free; live bytes."""
        for settings in (POOL, GROWING, dict(POOL, RMM_STATISTICS="json:/dev/null")):
            with self.subTest(settings):
                self.quiet("torch_order", settings, more={"HOSTCUDA_SCHEDULE": "stepped"})
        self.quiet("torch_inactive", POOL)

    def test_torch_on_several_devices(self):
        self.quiet("torch_devices", POOL, more={"HOSTCUDA_DEVICES": "2"})

    def test_examples(self):
        expected = ["used 8 MiB of 64 MiB", "a pool of its own: 80 MiB in all",
                    "100 MiB under a limit of 96 MiB: error 2"]
        command = [sys.executable, os.path.join(EXAMPLES, "python_control.py")]
        more = dict(PATH, PYTHONPATH=os.environ["PYTHON_MODULE"])
        result = run(command, POOL, more=more)
        self.assertEqual(result.status, 0, result)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[:3], expected, result)
        self.assertIn("did you mean 'pool'", lines[3])
        self.assertEqual(lines[4:], ["peak 12 MiB, 2 allocations, 0 live"], result)
        self.assertEqual(result.said, [], result)
        plain = run(command, preload=[], more=more)
        self.assertEqual(plain.outcome, (0, "rmmshim is not active\n"), plain)

    def test_example_in_c(self):
        command = [support.program("example_control")]
        result = run(command, dict(POOL, RMM_LOG=self.path("log.csv")))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.stdout.splitlines(), [
            "before CUDA starts: CUDA is not initialised yet",
            "with one block: used 8 MiB of 64 MiB, peak 8 MiB",
            "with a pool of its own: used 32 MiB of 88 MiB, peak 32 MiB",
            "after all: used 0 MiB of 64 MiB, peak 32 MiB"], result)
        with open(self.path("log.csv.marks"), encoding="utf-8") as file:
            self.assertTrue(file.read().endswith(",1,one block\n"))
        plain = run(command, preload=[])
        self.assertEqual(plain.outcome, (0, "rmmshim is not preloaded\n"), plain)


if __name__ == "__main__":
    support.main()
