# SPDX-License-Identifier: Apache-2.0
"""cudaMallocAsync and cudaFreeAsync: the driver's by default, served in the stream's order where RMM_HOOKS
asks for it, and mixed with the synchronous calls."""
import json

import support
from support import run

POOL = {"RMM_POOL_SIZE": "64MiB"}
SERVED = [dict(settings, RMM_HOOKS="all") for settings in (
    POOL,
    {"RMM_POOL_SIZE": "64MiB", "RMM_BINNING": "256KiB-4MiB"},
    {"RMM_ARENA_SIZE": "512MiB"},
    {"RMM_RESOURCE": "virtual"},
    {"RMM_ASYNC": "1"},
    {"RMM_RESOURCE": "pool(async)"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_LIMIT": "1GiB", "RMM_STATISTICS": "text:/dev/null"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_FREE": "wait"},
)]
# Not served: nobody asked for it, or frees of the stack wait.
FORWARDED = [POOL, dict(POOL, RMM_HOOKS="device,runtime"), {"RMM_RESOURCE": "cuda", "RMM_HOOKS": "all"},
             {"RMM_ASYNC": "1", "RMM_FREE": "immediate", "RMM_HOOKS": "all"}]
RACE = {"HOSTCUDA_RACE": "1"}
TWO = {"HOSTCUDA_DEVICES": "2"}
OLD = {"HOSTCUDA_DRIVER_VERSION": "12040"}  # without fences


class StreamOrdered(support.Test):
    def scene(self, name, settings, more=None):
        with self.subTest("%s under %s, %s" % (name, settings, more)):
            result = run([support.program("stream_ordered"), name], settings, more=more)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)
            return result

    def counters(self, name, settings):
        path = self.path("report.json")
        self.scene(name, dict(settings, RMM_STATISTICS="json:" + path))
        with open(path, encoding="utf-8") as file:
            stack = [stack for stack in json.load(file)["devices"] if stack["kind"] == "device"][0]
        return {(c["resource"], c["name"]): c["value"] for c in stack["counters"]}

    def test_answers(self):
        """Every call answers what the driver answers, and no order is lost."""
        program = [support.program("stream_ordered"), "answers"]
        for settings in SERVED + FORWARDED:
            with self.subTest(str(settings)):
                self.assert_same(program, settings)

    def test_a_free_serves_its_own_stream_at_once_and_no_other(self):
        for settings in SERVED[:-1]:
            self.scene("order", settings)
            self.scene("per_thread", settings)

    def test_the_driver_serves_it_unless_asked_otherwise(self):
        for settings in FORWARDED:
            self.scene("not_served", settings)
        self.scene("not_served", SERVED[0], OLD)

    def test_no_call_waits_for_work(self):
        for settings in SERVED + [POOL, {"RMM_RESOURCE": "cuda"}]:
            self.scene("no_wait", settings)
        for settings in FORWARDED:
            self.scene("no_wait_async", settings)
        self.scene("no_wait_async", SERVED[0], OLD)

    def test_pools_of_the_programs_own_stay_its_own(self):
        self.scene("pools", SERVED[0])
        for settings in SERVED:
            self.assertEqual(self.scene("shared_pool", settings, TWO).said, [])
        self.assertEqual(self.scene("shared_by_eight", SERVED[0], TWO).said, [])
        for name in ("shared_too_late", "shared_by_nine"):
            result = self.scene(name, SERVED[0], TWO)
            self.assertEqual(len(result.said), 1, result)
            self.assertIn("cuMemPoolSetAccess: memory that rmmshim has served so far for cudaMallocAsync on device 0",
                          result.said[0])

    def test_a_free_on_another_devices_stream_comes_after_its_work(self):
        """With so little memory that a freed block is the next one."""
        for hooks in ("all", "device"):
            self.scene("elsewhere", {"RMM_POOL_MAX_SIZE": "2MiB", "RMM_HOOKS": hooks}, dict(RACE, **TWO))

    def test_a_refusal_ends(self):
        """Memory that the driver gathers for an attempt and refuses comes back each time."""
        for settings in SERVED[:2] + SERVED[3:-2] + FORWARDED + [dict(POOL, RMM_LIMIT="8GiB")]:  # an arena has a maximum
            self.scene("refused", settings)

    def test_a_request_beyond_all_memory_does_not_wait(self):
        """The line that says of a wait comes after a second of it; others have the rest of the device."""
        for settings in SERVED[:-2] + FORWARDED:
            result = self.scene("hopeless", settings, {"HOSTCUDA_MEMORY": "4GiB", "HOSTCUDA_CONTEXT_MEMORY": "2500MiB"})
            self.assertEqual(result.said, [], settings)

    def test_statistics(self):
        served = self.counters("no_wait_async", SERVED[0])
        self.assertEqual(served["statistics", "allocations"], 80)
        self.assertEqual(served["statistics", "live_allocations"], 0)
        self.assertEqual(served["account", "stream_ordered_allocations"], 0)
        driver = self.counters("no_wait_async", POOL)
        self.assertEqual(driver["account", "stream_ordered_allocations"], 80)
        self.assertEqual(driver["account", "stream_ordered_blocks"], 0)
        self.assertEqual(driver["account", "stream_ordered_live"], 0)


if __name__ == "__main__":
    support.main()
