# SPDX-License-Identifier: Apache-2.0
"""Reports at exit are whole, however large, and are what their formats say."""
import os
import re
import sys
import unittest

import json_schema
import prometheus_text
import support
from support import run

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
DEVICES = 8
SETTINGS = {
    "RMM_POOL_SIZE": "16MiB", "RMM_BINNING": "4KiB-1MiB", "RMM_FALLBACK": "pinned", "RMM_LIMIT": "1GiB",
    "RMM_PINNED_POOL_SIZE": "1MiB", "RMM_MANAGED_POOL_SIZE": "1MiB",
}


class Reports(support.Test):
    def report(self, name, statistics, settings=None, scene="everywhere", program=None, rank=None):
        """The path of a report of a program that uses all kinds of memory on all devices."""
        path = self.path("report")
        command = [program or support.program("outputs"), scene]
        result = run(command, dict(SETTINGS if settings is None else settings, **{name: "%s:%s" % (statistics, path)}),
                     more=dict({"HOSTCUDA_DEVICES": str(DEVICES)}, **({"RANK": rank} if rank else {})))
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        return path

    def statistics(self, **how):
        return json_schema.read(self.report("RMM_STATISTICS", "json", **how), "statistics.json")

    def test_a_large_report_is_whole(self):
        report = self.statistics()
        self.assertGreater(os.path.getsize(self.path("report")), 65535)
        self.assertEqual([(device["device"], device["kind"]) for device in report["devices"]],
                         [(device, kind) for device in range(DEVICES) for kind in ("device", "pinned", "managed")])
        for device in report["devices"]:
            names = [(counter["resource"], counter["name"]) for counter in device["counters"]]
            self.assertEqual(len(names), len(set(names)))
            self.assertIn(("pool", "held"), names)

    def scene(self, settings, *arguments):
        """The counters of each kind after a scene of the control tests."""
        path = self.path("report")
        command = [sys.executable, os.path.join(HERE, "control_scenes.py"), *arguments]
        result = run(command, dict(settings, RMM_STATISTICS="json:" + path), more={
            "PYTHONPATH": os.path.join(HERE, "..", "examples"), "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "done\n", ""), result)
        return {device["kind"]: {(counter["resource"], counter["name"]): counter["value"]
                                 for counter in device["counters"]}
                for device in json_schema.read(path, "statistics.json")["devices"]}

    def test_peaks_of_stacks_side_by_side(self):
        """They may all have been at their peak at once, so no peak is below what is live; what came after one
        another was not."""
        settings = {"RMM_POOL_SIZE": "40MiB", "RMM_PINNED_POOL_SIZE": "1MiB"}
        for arguments, live, held, pool_peak in ((["after"], 1, 1, 40 + 64 + 40), ([], 1, 1, 40 + 64 + 3 * 40),
                                                 (["after", "free"], 0, 1, 40 + 64 + 40),
                                                 (["free", "reset"], 0, 0, 40 + 64 + 3 * 40),
                                                 (["after", "reset"], 0, 0, 40 + 64 + 40)):
            with self.subTest(arguments):
                kinds = self.scene(settings, "side_by_side", *arguments)
                pinned, device = kinds["pinned"], kinds["device"]
                self.assertEqual(pinned["statistics", "live"], 3 * MIB * live)
                self.assertEqual(pinned["statistics", "peak"], 3 * MIB)
                self.assertEqual(pinned["statistics", "peak_allocations"], 3)
                self.assertEqual(pinned["statistics", "total"], 3 * MIB)
                self.assertEqual(device["statistics", "live"], 40 * MIB * live)
                self.assertEqual(device["pool", "held"], (40 + 64) * MIB * held)
                self.assertEqual(device["pool", "held_peak"], pool_peak * MIB)
                self.assertEqual(device["pool", "largest_free"], 24 * MIB * held)  # of what is there
                self.no_peak_is_below_what_is_live(kinds)

    def test_peaks_of_two_pools_in_one_expression(self):
        kinds = self.scene({"RMM_RESOURCE": "fallback(pool(cuda, initial_size=16MiB, maximum_size=16MiB), "
                                            "pool(managed, initial_size=16MiB))"}, "two_pools")
        device = kinds["device"]
        self.assertEqual(device["pool", "held"], 32 * MIB)
        self.assertEqual(device["pool", "held_peak"], 32 * MIB)
        self.assertEqual(device["pool", "live_peak"], 32 * MIB)
        self.no_peak_is_below_what_is_live(kinds)

    def no_peak_is_below_what_is_live(self, kinds):
        for counters in kinds.values():
            for (resource, name), value in counters.items():
                for peak in (name + "_peak", name.replace("live", "peak")):
                    if name in ("live", "held", "live_allocations") and (resource, peak) in counters:
                        self.assertGreaterEqual(counters[resource, peak], value, (resource, peak))

    def test_many_leaks_are_whole(self):
        path = self.report("RMM_TRACKING", "json", scene="leaks")
        report = json_schema.read(path, "leaks.json")
        self.assertEqual([leak["device"] for leak in report["leaks"]], list(range(DEVICES)))

    def test_a_name_that_is_no_text(self):
        """Bytes that are not UTF-8, quotes and ends of lines in a program's name."""
        path = os.path.join(os.fsencode(self.folder), b'od"d\\\n\xff\xc3\xa9\xe2\x82')
        os.symlink(support.program("outputs"), path)
        report = self.statistics(program=path)
        self.assertEqual(report["program"], 'od"d\\??\u00e9??')
        with open(self.report("RMM_STATISTICS", "prom-all", program=path), encoding="utf-8") as file:
            metrics = prometheus_text.read(file.read())
        labels = dict(next(iter(metrics["rmmshim_pool_held_bytes"].samples)))
        self.assertEqual(labels["program"], 'od\\"d\\\\??\u00e9??')

    def test_a_name_without_an_end(self):
        """A program may be called by any name, of any length."""
        command = ["python3", "-c", "import os, sys; os.execv(sys.argv[1], ['n' * 100000, 'leaks'])",
                   support.program("outputs")]
        for name in ("RMM_STATISTICS", "RMM_TRACKING"):
            for form in ("text", "json"):
                result = run(command, {"RMM_POOL_SIZE": "16MiB", name: "%s:%s" % (form, self.path("report"))})
                self.assertEqual((result.status, result.stderr), (0, ""), result)
                self.assertGreater(os.path.getsize(self.path("report")), 8000)

    def test_prometheus(self):
        statistics = self.statistics()
        with open(self.report("RMM_STATISTICS", "prom"), encoding="utf-8") as file:
            usual = prometheus_text.read(file.read())
        with open(self.report("RMM_STATISTICS", "prom-all"), encoding="utf-8") as file:
            metrics = prometheus_text.read(file.read())
        self.assertEqual({name: metric.samples.keys() for name, metric in usual.items()},
                         {name: metrics[name].samples.keys() for name in usual})
        self.assertLess(len(usual), 15)
        key = (("device", "3"), ("kind", "device"), ("program", "outputs"))
        self.assertEqual(usual["rmmshim_limit_bytes"].samples[key], 1 << 30)
        for name in ("rmmshim_used_peak_bytes", "rmmshim_held_peak_bytes", "rmmshim_allocations_total"):
            self.assertGreater(usual[name].samples[key], 0)
        for metric in metrics.values():
            for labels in metric.samples:
                self.assertEqual([name for name, _ in labels], ["device", "kind", "program"], metric.name)
        counters = [counter for device in statistics["devices"] for counter in device["counters"]]
        self.assertEqual(sum(len(metric.samples) for name, metric in metrics.items() if name not in usual), len(counters))
        self.assertEqual(metrics["rmmshim_pool_held_bytes"].type, "gauge")
        self.assertEqual(metrics["rmmshim_pool_growths_total"].type, "counter")
        self.assertEqual(metrics["rmmshim_statistics_bytes_total"].type, "counter")
        self.assertEqual(metrics["rmmshim_reuse_waited_seconds_total"].type, "counter")
        with open(self.report("RMM_STATISTICS", "prom", rank="7"), encoding="utf-8") as file:
            ranked = prometheus_text.read(file.read())
        self.assertEqual(ranked["rmmshim_limit_bytes"].samples[key + (("rank", "7"),)], 1 << 30)
        for metric in metrics.values():
            self.assertRegex(metric.help, r"^[A-Z].* .*\.$", metric.name)
            self.assertNotRegex(metric.help.replace("RMM_LIMIT", ""), r"_|does not know", metric.name)
        self.assertEqual(metrics["rmmshim_account_limit_bytes"].samples[key], 1 << 30)

    def text(self, **how):
        with open(self.report("RMM_STATISTICS", "text", **how), encoding="utf-8") as file:
            return file.read().split("\n")

    def test_a_process_that_only_asks_how_much_there_is(self):
        """It has no report: with %r in the path it would take that of the first rank, as torchrun did."""
        path = self.path("report")
        for limit in ({}, {"RMM_LIMIT": "1GiB"}):
            result = run([support.program("memory_steps"), "info"], dict(limit, RMM_POOL_SIZE="1MiB",
                                                                        RMM_STATISTICS="json:" + path))
            self.assertEqual(result.status, 0, result)
            self.assertEqual(os.path.exists(path), bool(limit), result)

    def test_text_says_it_too(self):
        self.assertEqual(sum(line.startswith("rmmshim[") for line in self.text()), 3 * DEVICES)

    def test_text_leaves_out_what_is_zero(self):
        lines = [line for line in self.text() if line.startswith("  ")]
        for line in lines:
            self.assertNotRegex(line, r" 0(,|$)| 0 B| 0\.000 ms")
        self.assertIn("account", {line.split()[0] for line in lines})

    def test_text_says_whether_there_is_a_limit(self):
        self.assertEqual(sum("account     limit 1.00 GiB" in line for line in self.text()), DEVICES)
        none = self.text(settings={"RMM_POOL_SIZE": "16MiB"})
        self.assertEqual(sum("account     limit none" in line for line in none), DEVICES)

    def test_text_has_a_line_for_each_thing_that_happened(self):
        """The pool finds no room once and the block lies in pinned memory, on each device."""
        lines = self.text(settings={"RMM_POOL_MAX_SIZE": "8MiB", "RMM_FALLBACK": "pinned"}, scene="full")
        self.assertEqual(sum(line == "  fallback: 1 request served from its second memory resource" for line in lines), DEVICES, lines)
        for line in lines:
            self.assertNotRegex(line, r"failures|refusals|refused")  # the program got all it asked for
            if not re.match(r"  \w+: \w+ \d+$", line):
                self.assertNotRegex(line, r"fallbacks|waits")


class Checkers(unittest.TestCase):
    """What checks the formats finds what is wrong with them."""

    GOOD = '# HELP a_bytes Bytes.\n# TYPE a_bytes gauge\na_bytes{b="c",d="e\\"f"} 1\na_bytes{b="g"} 2.5\n'

    def test_prometheus(self):
        self.assertEqual(len(prometheus_text.read(self.GOOD)["a_bytes"].samples), 2)
        for before, after in (("} 2.5\n", "} 2.5"), ("# HELP a_bytes Bytes.\n", ""), ("# TYPE a_bytes gauge\n", ""),
                              ("gauge", "counter"), ("a_bytes", "a_bytes_total"), ("a_bytes", "A_bytes"),
                              ("a_bytes", "a_nanoseconds"), ("a_bytes", "a_count"), ("a_bytes", "gauge_a"),
                              ('b="g"', 'b="c",d="e\\"f"'), ('b="g"', 'b="g",b="h"'), ('b="g"', "b=g"),
                              ('b="g"', 'b="\\g"'), ("2.5", "five"), ("gauge", "gage"), ("Bytes.", ""),
                              ("a_bytes{b=\"g\"}", "b_bytes{b=\"g\"}"), ("# TYPE", "# TIPE")):
            with self.subTest("%r instead of %r" % (after, before)):
                self.assertIn(before, self.GOOD)
                with self.assertRaises(ValueError):
                    prometheus_text.read(self.GOOD.replace(before, after))

    def test_schema(self):
        schema = {"type": "object", "required": ["a"], "additionalProperties": False,
                  "properties": {"a": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                                 "b": {"enum": ["x"]}, "c": {"const": 1}, "d": {"type": "string", "pattern": "^y$"}}}
        self.assertEqual(json_schema.errors({"a": [1], "b": "x", "c": 1, "d": "y"}, schema), [])
        for wrong in ([], {}, {"a": []}, {"a": [-1]}, {"a": [True]}, {"a": 1}, {"a": [1], "b": "y"}, {"a": [1], "c": 2},
                      {"a": [1], "d": "z"}, {"a": [1], "e": 1}):
            self.assertEqual(len(json_schema.errors(wrong, schema)), 1, wrong)
        with self.assertRaises(ValueError):
            json_schema.errors(1, {"maximum": 2})
        with self.assertRaises(ValueError):
            json_schema.refuse_twice([("a", 1), ("a", 2)])


if __name__ == "__main__":
    support.main()
