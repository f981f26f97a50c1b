# SPDX-License-Identifier: Apache-2.0
"""Managed memory on stacks of its own: programs answer as without the library, advice and attachments
keep their meaning, and what cannot be pooled goes to the driver."""
import json
import os

import support
from support import run

SETTINGS = [
    {"RMM_MANAGED_POOL_SIZE": "64MiB"},
    {"RMM_MANAGED_POOL_SIZE": "0"},
    {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_FREE": "wait"},
    {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_FREE": "immediate"},
    {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_HOOKS": "managed"},
    {"RMM_MANAGED_POOL_SIZE": "64MiB", "HOSTCUDA_DRIVER_VERSION": "12040"},
    {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_POOL_SIZE": "64MiB", "RMM_MANAGED": "1"},
    {"RMM_MANAGED_RESOURCE": "managed"},
    {"RMM_MANAGED_RESOURCE": "binning(pool(managed), minimum_size=64KiB, maximum_size=1MiB)"},
    {"RMM_MANAGED_RESOURCE": "statistics(limiting(pool(managed, alignment=128KiB), limit=4GiB))"},
    {"RMM_MANAGED": "1"},
]
SCENES = ["use", "advice", "calls", "contexts"]
PROGRAMS = ["managed_shared", "managed_static"]


class Managed(support.Test):
    def test_programs_see_no_difference(self):
        for name in PROGRAMS:
            for scene in SCENES:
                for settings in SETTINGS:
                    with self.subTest("%s %s under %s" % (name, scene, settings)):
                        version = settings.get("HOSTCUDA_DRIVER_VERSION", "13000")
                        self.assert_same([support.program(name), scene], settings,
                                         more={"HOSTCUDA_RACE": "1", "HOSTCUDA_DRIVER_VERSION": version})

    def report(self, command, settings, **how):
        path = self.path("report.json")
        plain = run(command, preload=[], **how)
        served = run(command, dict(settings, RMM_STATISTICS="json:" + path), **how)
        self.assertEqual((served.status, served.stdout), (0, plain.stdout), support.difference(plain, served))
        stacks = []
        if os.path.exists(path): # not where no stack served
            with open(path, encoding="utf-8") as file:
                stacks = json.load(file)["devices"]
        return served, {stack["kind"]: (stack["expression"],
                                        {(c["resource"], c["name"]): c["value"] for c in stack["counters"]})
                        for stack in stacks}

    def test_the_pool_serves(self):
        for name in PROGRAMS:
            served, report = self.report([support.program(name), "use"], {"RMM_MANAGED_POOL_SIZE": "64MiB"})
            expression, counters = report["managed"]
            self.assertEqual(expression, "statistics(reuse(pool(managed, initial_size=64MiB, alignment=64KiB)))")
            self.assertEqual(counters["statistics", "allocations"], 180)
            self.assertEqual(counters["statistics", "live_allocations"], 0)
            self.assertEqual(counters["managed", "driver_allocations"], 1)
            self.assertEqual(served.stderr, "")

    def test_text_report_and_verbose_line(self):
        result = run([support.program("managed_shared"), "calls"],
                     {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_STATISTICS": "1", "RMM_VERBOSE": "1"})
        self.assertIn("device 0, managed memory: "
                      "statistics(reuse(pool(managed, initial_size=64MiB, alignment=64KiB)))", result.said)
        self.assertIn("rmmshim", result.stderr)
        self.assertIn(", device 0, managed memory: memory resource statistics(reuse(", result.stderr)

    def test_verbose_line_on_a_driver_whose_frees_wait(self):
        for version, more in (("12040", "; a free waits for the GPU, because the driver is older than 555"), ("12050", "")):
            result = run([support.program("managed_shared"), "calls"], {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_VERBOSE": "1"},
                         more={"HOSTCUDA_DRIVER_VERSION": version})
            self.assertEqual(result.said, ["device 0, managed memory: "
                                           "reuse(pool(managed, initial_size=64MiB, alignment=64KiB))" + more])

    def test_what_is_switched_off_or_attached_elsewhere_is_the_drivers(self):
        for hooks in ("device", "pinned,runtime"):
            _, report = self.report([support.program("managed_shared"), "use"],
                                    {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_HOOKS": hooks})
            self.assertNotIn("managed", report)

    def test_devices_without_concurrent_access(self):
        served, report = self.report([support.program("managed_shared"), "calls"],
                                     {"RMM_MANAGED_POOL_SIZE": "64MiB"},
                                     more={"HOSTCUDA_CONCURRENT_MANAGED": "0"})
        self.assertNotIn("managed", report)
        self.assertEqual(served.said, ["device 0 cannot use managed memory at the same time as the host, so "
                                       "the driver, not rmmshim, serves cudaMallocManaged"])

    def test_a_log_has_its_events(self):
        path = self.path("log.csv")
        result = run([support.program("managed_shared"), "use"],
                     {"RMM_MANAGED_POOL_SIZE": "64MiB", "RMM_LOG": path})
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        with open(path, encoding="utf-8") as file:
            actions = [line.split(",")[2] for line in file.read().splitlines()[1:]]
        self.assertEqual(actions.count("allocate"), 180)
        self.assertEqual(actions.count("free"), 180)

    def test_bad_settings(self):
        for settings, words in (
                ({"RMM_MANAGED_RESOURCE": "pool(cuda)"}, "managed memory must come from the memory resource 'managed', "
                                                         "not from 'cuda'"),
                ({"RMM_MANAGED_RESOURCE": "pool(managed, alignment=4KiB)"}, "must be a multiple of 64KiB"),
                ({"RMM_MANAGED_RESOURCE": "pool(managed)", "RMM_MANAGED_POOL_SIZE": "1GiB"}, "remove one of the two settings")):
            result = run([support.program("managed_shared"), "calls"], settings)
            self.assertEqual((result.status, len(result.said)), (78, 1), result)
            self.assertIn(words, result.said[0])


if __name__ == "__main__":
    support.main()
