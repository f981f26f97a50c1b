# SPDX-License-Identifier: Apache-2.0
"""Settings for one device of several, and pinned memory on stacks of its own."""
import json

import support
from support import run

THREE = {"HOSTCUDA_DEVICES": "3"}


class Devices(support.Test):
    def report(self, settings):
        path = self.path("report.json")
        plain = run([support.program("devices")], preload=[], more=THREE)
        served = run([support.program("devices")], dict(settings, RMM_STATISTICS="json:" + path), more=THREE)
        self.assertEqual((served.status, served.stdout, served.stderr), (0, plain.stdout, ""),
                         support.difference(plain, served))
        with open(path, encoding="utf-8") as file:
            stacks = json.load(file)["devices"]
        return {(stack["device"], stack["kind"]):
                (stack["expression"], {(c["resource"], c["name"]): c["value"] for c in stack["counters"]})
                for stack in stacks}

    def test_each_device_has_its_own_stack(self):
        report = self.report({"RMM_POOL_SIZE": "64MiB", "RMM_POOL_SIZE_1": "16MiB", "RMM_RESOURCE_2": "cuda"})
        self.assertEqual({key: value[0] for key, value in report.items()}, {
            (0, "device"): "statistics(reuse(pool(cuda, initial_size=64MiB)))",
            (1, "device"): "statistics(reuse(pool(cuda, initial_size=16MiB)))",
            (2, "device"): "statistics(cuda)"})
        for _, counters in report.values():
            self.assertEqual(counters["statistics", "allocations"], 20)
            self.assertEqual(counters["statistics", "live_allocations"], 0)
        self.assertEqual(report[0, "device"][1]["cuda", "driver_allocations"], 1)
        self.assertEqual(report[2, "device"][1]["cuda", "driver_allocations"], 20)

    def test_only_one_device(self):
        report = self.report({"RMM_POOL_SIZE_1": "16MiB"})
        self.assertEqual(report[1, "device"][0], "statistics(reuse(pool(cuda, initial_size=16MiB)))")
        self.assertEqual(report[0, "device"][0], "statistics(cuda)")

    def test_settings_for_a_device_that_is_not_there_are_said_once(self):
        report = "json:" + self.path("report.json")
        for settings, line in (
            ({"RMM_LIMIT_3": "1GiB"}, "RMM_LIMIT_3 is for device 3, but the process has only 3 devices: this setting is ignored"),
            ({"RMM_POOL_SIZE": "64MiB", "RMM_POOL_SIZE_7": "1GiB", "RMM_LIMIT_7": "2GiB", "RMM_LIMIT_63": "2GiB",
              "RMM_STATISTICS": report},
             "RMM_POOL_SIZE_7 is for device 7, but the process has only 3 devices: this setting is ignored, and so are "
             "2 more settings for missing devices"),
            ({"RMM_FREE_3": "wait", "RMM_STATISTICS": report},
             "RMM_FREE_3 is for device 3, but the process has only 3 devices: this setting is ignored"),
            ({"RMM_LIMIT_2": "1GiB", "RMM_STATISTICS": report}, None),
        ):
            with self.subTest(settings):
                plain = run([support.program("devices")], preload=[], more=THREE)
                served = run([support.program("devices")], settings, more=THREE)
                self.assertEqual(served.outcome, plain.outcome, support.difference(plain, served))
                self.assertEqual(served.said, [line] if line else [])

    def test_pinned_memory(self):
        for settings in ({}, {"RMM_FREE": "wait"}, {"RMM_POOL_SIZE": "64MiB"}):
            with self.subTest(settings):
                report = self.report(dict(settings, RMM_PINNED_POOL_SIZE="8MiB"))
                expression, counters = report[0, "pinned"]
                self.assertIn("pool(pinned, initial_size=8MiB)", expression)
                # The buffer, and two blocks for each of eight sets of flags, which share no pool.
                self.assertEqual(counters["statistics", "allocations"], 17)
                self.assertEqual(counters["statistics", "live_allocations"], 0)
                self.assertGreaterEqual(counters["pinned", "driver_allocations"], 8)

    def test_pinned_memory_without_settings_is_the_drivers(self):
        self.assertNotIn((0, "pinned"), self.report({"RMM_POOL_SIZE": "64MiB"}))


if __name__ == "__main__":
    support.main()
