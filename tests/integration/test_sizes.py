# SPDX-License-Identifier: Apache-2.0
"""Sizes are judged by the memory that they are of: nothing is larger than the device where its leaf is
device memory, and nowhere else."""
import json
import os

import support
from support import run

MIB = 1 << 20
# 64 MiB of the device are the program's.
SMALL = {"HOSTCUDA_MEMORY": "96MiB", "HOSTCUDA_CONTEXT_MEMORY": "32MiB", "HOSTCUDA_PAGEABLE": "1"}
HOST_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

# settings, steps, the resource that holds 128 MiB, the kind of its stack
LARGER = [
    ({"RMM_MANAGED": "1", "RMM_POOL_SIZE": "128MiB"}, "device 100", "pool", "device"),
    ({"RMM_MANAGED": "1", "RMM_POOL_SIZE": "64MiB", "RMM_POOL_MAX_SIZE": "128MiB"}, "device 60 device 64",
     "pool", "device"),
    ({"RMM_MANAGED": "1", "RMM_ARENA_SIZE": "128MiB"}, "device 100", "arena", "device"),
    ({"RMM_MANAGED_POOL_SIZE": "128MiB"}, "managed 100", "pool", "managed"),
    ({"RMM_PINNED_POOL_SIZE": "128MiB"}, "pinned 100", "pool", "pinned"),
    ({"RMM_RESOURCE": "pool(system, initial_size=128MiB)"}, "device 100", "pool", "device"),
    ({"RMM_RESOURCE": "arena(system, arena_size=128MiB)"}, "device 100", "arena", "device"),
    ({"RMM_RESOURCE": "async_managed(initial_size=128MiB)"}, "device 100", "async_managed", "device"),
    ({"RMM_RESOURCE": "binning(pool(managed, initial_size=128MiB), minimum_size=1MiB, maximum_size=4MiB)"},
     "device 100", "pool", "device"),
    ({"RMM_RESOURCE": "fixed_size(managed, block_size=64MiB, blocks_to_preallocate=2)"}, "device 60", "fixed_size",
     "device"),
    ({"RMM_RESOURCE": "fallback(cuda, pool(managed, initial_size=128MiB))"}, "device 1", "pool", "device"),
    ({"RMM_RESOURCE": "pool(fallback(cuda, managed), initial_size=128MiB)"}, "device 100", "pool", "device"),
    ({"RMM_RESOURCE": "pool(fallback(cuda, pinned), initial_size=128MiB)"}, "device 100", "pool", "device"),
    ({"RMM_MANAGED_RESOURCE": "statistics(pool(managed, initial_size=128MiB))"}, "managed 100", "pool", "managed"),
    ({"RMM_PINNED_RESOURCE": "arena(pinned, arena_size=128MiB)"}, "pinned 100", "arena", "pinned"),
    # A percentage is of the device's 96 MiB, and managed memory may be more than that.
    ({"RMM_MANAGED": "1", "RMM_POOL_SIZE": "133.5%"}, "device 100", "pool", "device"),
    ({"RMM_MANAGED": "1", "RMM_POOL_MAX_SIZE": "133.5%"}, "device 60 device 60 device 8", "pool", "device"),
    ({"RMM_MANAGED": "1", "RMM_ARENA_SIZE": "133.5%"}, "device 100", "arena", "device"),
    ({"RMM_MANAGED_POOL_SIZE": "133.5%"}, "managed 100", "pool", "managed"),
    ({"RMM_RESOURCE": "pool(fallback(cuda, managed), initial_size=133.5%)"}, "device 100", "pool", "device"),
    ({"RMM_RESOURCE": "limiting(pool(managed, initial_size=128MiB), limit=105%)"}, "device 100", "pool", "device"),
]


class Sizes(support.Test):
    def steps(self, settings, steps, **more):
        """What the program prints and the library says, and the counters of each kind's stacks."""
        path = self.path("report.json")
        result = run([support.program("memory_steps")] + (steps.split() if isinstance(steps, str) else steps),
                     dict(settings, RMM_STATISTICS="json:" + path), more=dict(SMALL, **more))
        counters = {}
        if os.path.exists(path) and os.path.getsize(path):
            with open(path, encoding="utf-8") as file:
                for stack in json.load(file)["devices"]:
                    for c in stack["counters"]:
                        counters[stack["kind"], c["resource"], c["name"]] = c["value"]
        return result, counters

    def assert_served(self, settings, steps, out="", **more):
        result, counters = self.steps(settings, steps, **more)
        self.assertEqual((result.status, result.stdout, result.stderr), (0, out, ""), "%s\n%s" % (settings, result))
        return counters

    def test_memory_beyond_the_device(self):
        for settings, steps, resource, kind in LARGER:
            with self.subTest(str(settings)):
                counters = self.assert_served(settings, steps)
                self.assertEqual(counters[kind, resource, "held"], 128 * MIB)

    def test_a_maximum_beyond_the_device_holds(self):
        for settings in ({"RMM_MANAGED": "1", "RMM_POOL_MAX_SIZE": "128MiB"},
                         {"RMM_MANAGED": "1", "RMM_POOL_MAX_SIZE": "133.5%"},
                         {"RMM_RESOURCE": "limiting(pool(managed), limit=133.5%)"}):
            with self.subTest(str(settings)):
                self.assert_served(settings, "device 60 device 60 device 10 device 8", "device 10: 2\n")

    def test_twelve_gib_beside_eight(self):
        """Nothing is touched, so that this takes addresses alone."""
        device = {"HOSTCUDA_MEMORY": "8GiB"}
        for settings, resource, kind in (
                ({"RMM_MANAGED": "1", "RMM_POOL_SIZE": "12GiB"}, "pool", "device"),
                ({"RMM_MANAGED": "1", "RMM_ARENA_SIZE": "12GiB"}, "arena", "device"),
                ({"RMM_MANAGED_POOL_SIZE": "12GiB"}, "pool", "managed")):
            with self.subTest(str(settings)):
                counters = self.assert_served(settings, [kind, "1"], **device)
                self.assertEqual(counters[kind, resource, "held"], 12 << 30)

    def test_device_memory_is_still_bounded(self):
        for settings, steps, words in (
                ({"RMM_POOL_SIZE": "128MiB"}, "device 1", "larger than the device's memory, which is 96.0 MiB"),
                ({"RMM_ARENA_SIZE": "128MiB"}, "device 1", "larger than the device's memory, which is 96.0 MiB"),
                ({"RMM_RESOURCE": "async(initial_size=128MiB)"}, "device 1", "larger than the device's memory"),
                ({"RMM_RESOURCE": "virtual(initial_size=128MiB)"}, "device 1", "larger than the device's memory"),
                ({"RMM_RESOURCE": "fallback(pool(cuda, initial_size=128MiB), managed)"}, "device 1",
                 "larger than the device's memory"),
                ({"RMM_RESOURCE": "pool(fallback(cuda, virtual), initial_size=128MiB)"}, "device 1",
                 "larger than the device's memory"),
                ({"RMM_POOL_SIZE": "150%", "RMM_FALLBACK": "managed"}, "device 1", "^150%: more than 100%"),
                ({"RMM_POOL_SIZE": "50%", "RMM_POOL_MAX_SIZE": "150%"}, "device 1", "^150%: more than 100%"),
                ({"RMM_RESOURCE": "pool(cuda, maximum_size=150%)"}, "device 1", "more than 100%"),
                ({"RMM_PINNED_POOL_SIZE": "150%"}, "pinned 1", "^150%: more than 100%"),
                ({"RMM_MANAGED": "1", "RMM_POOL_SIZE": "10001%"}, "device 1", "^10001%: more than 10000%")):
            with self.subTest(str(settings)):
                result, _ = self.steps(settings, steps)
                self.assertEqual((result.status, len(result.said)), (78, 1), result)
                self.assertIn(words, result.said[0])

    def test_pushed_expressions(self):
        counters = self.assert_served({"RMM_POOL_SIZE": "8MiB"},
                                      ["push", "pool(managed, initial_size=128MiB)", "device", "100", "pop",
                                       "push", "arena(managed, arena_size=200%)", "device", "150"],
                                      "push: 0\npush: 0\n")
        self.assertEqual(counters["device", "arena", "held"], 192 * MIB)
        result, _ = self.steps({"RMM_POOL_SIZE": "8MiB"}, ["push", "pool(cuda, initial_size=128MiB)", "push",
                                                           "pool(cuda, initial_size=150%)"])
        self.assertEqual((result.status, result.stdout), (0, "push: -22\npush: -22\n"), result)

    def test_percentages_of_host_memory_are_of_the_hosts(self):
        share = HOST_BYTES // 400 // (2 * MIB) * (2 * MIB)
        for settings, kind in (({"RMM_PINNED_POOL_SIZE": "0.25%"}, "pinned"),
                               ({"RMM_RESOURCE": "pool(system, initial_size=0.25%)"}, "device"),
                               ({"RMM_RESOURCE": "fallback(cuda, pool(pinned, initial_size=0.25%))"}, "device")):
            with self.subTest(str(settings)):
                counters = self.assert_served(settings, [kind, "1"])
                self.assertEqual(counters[kind, "pool", "held"], share)
        counters = self.assert_served({"RMM_PINNED_POOL_SIZE": "0.25%free"}, "pinned 1")
        self.assertLessEqual(counters["pinned", "pool", "held"], share)
        self.assertGreater(counters["pinned", "pool", "held"], MIB)

    def test_a_limit_may_be_larger_than_the_device(self):
        limit = {"RMM_LIMIT": "150%"}
        for settings in ({"RMM_MANAGED": "1"}, {"RMM_MANAGED": "1", "RMM_POOL_MAX_SIZE": "200%"},
                         {"RMM_RESOURCE": "fallback(cuda, managed)"}):
            with self.subTest(str(settings)):
                self.assert_served(dict(limit, **settings), "device 60 device 60 device 60", "device 60: 2\n")
        for settings in ({"RMM_MANAGED_POOL_SIZE": "0"}, {}):
            with self.subTest(str(settings)):
                self.assert_served(dict(limit, **settings), "managed 60 managed 60 managed 60", "managed 60: 2\n")

    def test_a_limit_does_not_count_the_hosts_memory(self):
        limit = {"RMM_LIMIT": "16MiB"}
        for settings, steps in (({"RMM_PINNED_POOL_SIZE": "32MiB"}, "pinned 20"),
                                ({"RMM_RESOURCE": "fallback(pool(cuda), pool(pinned, initial_size=32MiB))"},
                                 "device 20"),
                                ({"RMM_RESOURCE": "fallback(pool(cuda), pool(managed(charged=0), initial_size=32MiB))"},
                                 "device 20")):
            with self.subTest(str(settings)):
                self.assert_served(dict(limit, **settings), steps)
        for settings, steps in (({"RMM_MANAGED_POOL_SIZE": "32MiB"}, "managed 1"),
                                ({"RMM_MANAGED": "1", "RMM_POOL_SIZE": "32MiB"}, "device 1")):
            with self.subTest(str(settings)):
                result, _ = self.steps(dict(limit, **settings), steps)
                self.assertEqual((result.status, len(result.said)), (78, 1), result)
                self.assertIn("'pool' has an initial size of 32MiB, which is above the limit of 16MiB (RMM_LIMIT)", result.said[0])


if __name__ == "__main__":
    support.main()
