# SPDX-License-Identifier: Apache-2.0
"""A working set of twice the device's memory, and what becomes of it when there is room again."""
import json
import re

import support
from support import run

MIB = 1 << 20
ROOM = 64           # MiB of the device that a program has
SMALL = {"HOSTCUDA_MEMORY": "96MiB", "HOSTCUDA_CONTEXT_MEMORY": "32MiB"}
MANY, FEWER = 2 * ROOM, ROOM // 2


class Spill(support.Test):
    def spill(self, settings, device=None):
        """What the program says, and the counters of its stack."""
        path = self.path("report.json")
        result = run([support.program("spill"), str(MANY), str(FEWER)],
                     dict(settings, RMM_STATISTICS="json:" + path, RMM_MEMORY_TYPE="actual"),
                     more=dict(SMALL, **(device or {})))
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        with open(path, encoding="utf-8") as file:
            stack = [stack for stack in json.load(file)["devices"] if stack["kind"] == "device"][0]
        counters = {(c["resource"], c["name"]): c["value"] for c in stack["counters"]}
        return result.stdout, counters

    def places(self, stdout):
        return [tuple(map(int, found)) for found in re.findall(r"device (\d+), managed (\d+), host (\d+)", stdout)]

    def moved(self, stdout):
        return tuple(map(int, re.findall(r"moved (\d+) to the device, (\d+) to the host, prefetches (\d+)", stdout)[0]))

    def assert_right(self, stdout):
        self.assertNotIn("out of memory", stdout)
        for count in (MANY, FEWER):
            self.assertIn("%d blocks: synchronised 0, wrong 0\n" % count, stdout)
        self.assertEqual(stdout.count("0 frees refused"), 2, stdout)

    def test_without_a_fallback_it_fails(self):
        stdout, _ = self.spill({"RMM_POOL_SIZE": "8MiB"})
        self.assertIn("out of memory at block ", stdout)

    def test_what_does_not_fit_lies_elsewhere_and_comes_home(self):
        for kind, place in (("managed", 1), ("pinned", 2)):
            for more in ({}, {"RMM_POOL_SIZE": "16MiB"}, {"RMM_POOL_SIZE": "16MiB", "RMM_FREE": "wait"},
                         {"RMM_POOL_SIZE": "16MiB", "RMM_BINNING": "512KiB-1MiB"}):
                for device in ({}, {"HOSTCUDA_DRIVER_VERSION": "11040"})[:1 + (kind == "managed")]:
                    with self.subTest(kind=kind, more=more, device=device):
                        stdout, counters = self.spill(dict(more, RMM_FALLBACK=kind), device)
                        self.assert_right(stdout)
                        first, again = self.places(stdout)
                        self.assertEqual(sum(first), MANY)
                        self.assertEqual(first[0] + first[place], MANY)
                        self.assertGreaterEqual(first[0], ROOM - 4)  # the device is full
                        self.assertEqual(again, (FEWER, 0, 0))
                        self.assertEqual(counters["fallback", "live_first"] + counters["fallback", "live_second"],
                                         0 if not more or "RMM_FREE" in more else
                                         counters["reuse", "quarantined"])
                        self.assertEqual(counters["fallback", "fallbacks"], first[place])
                        self.assertEqual(counters["fallback", "live_second_peak"], first[place] * MIB)
                        self.assertEqual(counters["statistics", "peak"], MANY * MIB)

    def test_managed_memory_moves(self):
        stdout, _ = self.spill({"RMM_MANAGED": "1"})
        self.assert_right(stdout)
        self.assertEqual(self.places(stdout), [(0, MANY, 0), (0, FEWER, 0)])
        to_device, to_host, prefetches = self.moved(stdout)
        self.assertGreaterEqual(to_device, MANY // 2)
        self.assertGreater(to_host, 0)
        self.assertEqual(prefetches, 0)

    def test_managed_memory_is_prefetched(self):
        for more in ({}, {"RMM_POOL_SIZE": "16MiB"}):
            for device in ({}, {"HOSTCUDA_DRIVER_VERSION": "11040"}, {"HOSTCUDA_SCHEDULE": "random:7"},
                           {"HOSTCUDA_RACE": "1"}):
                with self.subTest(more=more, device=device):
                    stdout, counters = self.spill(dict(more, RMM_MANAGED="1", RMM_PREFETCH="1"), device)
                    self.assert_right(stdout)
                    self.assertEqual(self.moved(stdout)[2], MANY + FEWER)
                    self.assertEqual(counters["prefetch", "prefetches"], MANY + FEWER)
                    self.assertEqual(counters["prefetch", "prefetched"], (MANY + FEWER) * MIB)
                    self.assertEqual(counters["prefetch", "internal_refusals"], 0)

    def test_only_managed_blocks_are_prefetched(self):
        stdout, counters = self.spill({"RMM_FALLBACK": "managed", "RMM_PREFETCH": "1"})
        self.assert_right(stdout)
        self.assertEqual(counters["prefetch", "prefetches"], counters["fallback", "fallbacks"])
        self.assertEqual(counters["prefetch", "internal_refusals"], MANY + FEWER - counters["fallback", "fallbacks"])

    def test_device_memory_can_be_left_free(self):
        stdout, counters = self.spill({"RMM_RESOURCE": "fallback(headroom(cuda, headroom=16MiB), managed)"})
        self.assert_right(stdout)
        first = self.places(stdout)[0]
        self.assertIn(first[0], range(ROOM - 16 - 4, ROOM - 16 + 1))
        self.assertGreater(counters["headroom", "internal_refusals"], 0)
        self.assertEqual(counters["cuda", "internal_refusals"], 0)

    def test_managed_memory_with_headroom(self):
        stdout, counters = self.spill({"RMM_RESOURCE": "headroom(pool(managed), headroom=16MiB)"})
        self.assert_right(stdout)
        self.assertEqual(counters["headroom", "preferred_on_device"] + counters["headroom", "preferred_on_host"],
                         (MANY + FEWER) * MIB)

    def test_a_limit_can_be_spilled_over(self):
        stdout, counters = self.spill(
            {"RMM_RESOURCE": "fallback(limiting(pool(cuda), limit=24MiB), pool(managed, initial_size=8MiB))"})
        self.assert_right(stdout)
        first, again = self.places(stdout)
        self.assertEqual((first, again[0] + again[1]), ((24, MANY - 24, 0), FEWER))
        self.assertEqual(counters["limiting", "live_peak"], 24 * MIB)
        self.assertEqual(again[0], 24)  # home again

    def test_aligned_blocks(self):
        stdout, counters = self.spill({
            "RMM_RESOURCE": "aligned(fallback(pool(cuda), pool(pinned)), alignment=2MiB, alignment_threshold=1MiB)"})
        self.assert_right(stdout)
        self.assertEqual(counters["aligned", "aligned"], MANY + FEWER)


if __name__ == "__main__":
    support.main()
