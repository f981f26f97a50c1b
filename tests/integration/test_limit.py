# SPDX-License-Identifier: Apache-2.0
"""RMM_LIMIT over every way to the driver's memory, as the device itself counts it."""
import json

import support
from support import run

MIB = 1 << 20
SCENES = ("every_path", "mixture", "information", "references", "trim", "contexts", "threads", "destroyed_pool")


class Limit(support.Test):
    def play(self, scene, settings=None, arguments=(), **more):
        settings = dict({"RMM_LIMIT": "64MiB"}, **(settings or {}))
        more = dict({"HOSTCUDA_MEMORY": "1GiB"}, **more)
        result = run([support.program("limit"), scene, str(64 * MIB), *arguments], settings, more=more)
        self.assertEqual((result.status, result.stdout), (0, "ok\n"), "%s under %s\n%s" % (scene, settings, result))
        return result

    def test_nothing_else_set(self):
        for scene in SCENES:
            with self.subTest(scene):
                self.assertEqual(self.play(scene).stderr, "")

    def test_written_otherwise(self):
        for limit in ("67108864", "6.25%", "7%free"):
            result = run([support.program("limit"), "sizes"], {"RMM_LIMIT": limit}, more={"HOSTCUDA_MEMORY": "1GiB"})
            size = "68" if "free" in limit else "64"  # 7 % of what a context leaves of 1 GiB, in whole blocks
            self.assertIn(size + " MiB, no more free", result.stdout, str(result))

    def test_over_stacks(self):
        stacks = ({"RMM_RESOURCE": "pool(cuda)"}, {"RMM_RESOURCE": "pool(cuda)", "RMM_FREE": "wait"},
                  {"RMM_RESOURCE": "virtual"}, {"RMM_RESOURCE": "tracking(aligned(pool(cuda)))"},
                  {"RMM_POOL_SIZE": "32MiB"},
                  {"RMM_RESOURCE": "binning(pool(cuda), minimum_size=1KiB, maximum_size=256KiB)"})
        scenes = ("every_path", "mixture", "trim", "contexts", "threads", "references")
        for settings, scene in support.pairs(stacks, scenes):
            with self.subTest(scene, settings=settings):
                self.play(scene, settings, ["keeps"])

    def test_old_driver(self):
        for scene in ("mixture", "references", "trim", "threads"):
            with self.subTest(scene):
                self.play(scene, HOSTCUDA_DRIVER_VERSION="11040")

    def test_hooks_that_do_not_serve(self):
        """The driver's own allocations are counted where no stack serves them."""
        for scene in ("every_path", "mixture", "contexts", "threads"):
            with self.subTest(scene):
                self.play(scene, {"RMM_HOOKS": "pinned"})

    def test_trim_without_a_limit(self):
        """What one way keeps serves another, when it is the device that is full: 96 MiB without the
        context's, and blocks of 60."""
        result = run([support.program("limit"), "trim", str(96 * MIB), "keeps"], {"RMM_RESOURCE": "pool(cuda)"},
                     more={"HOSTCUDA_MEMORY": "128MiB", "HOSTCUDA_CONTEXT_MEMORY": "16MiB"})
        self.assertEqual((result.status, result.stdout), (0, "ok\n"), str(result))

    def test_each_device_has_its_own(self):
        result = run([support.program("limit"), "sizes"], {"RMM_LIMIT_0": "32MiB", "RMM_LIMIT_1": "50%"},
                     more={"HOSTCUDA_MEMORY": "1GiB", "HOSTCUDA_DEVICES": "3"})
        self.assertEqual(result.stdout, "device 0: 32 MiB, 32 MiB, no more free\n"
                         "device 1: 512 MiB, 512 MiB, no more free\n"
                         "device 2: 1024 MiB, 1024 MiB, no more free\n", str(result))
        self.assertEqual(result.stderr, "")

    def charges(self, *words, devices=1, **settings):
        result = run([support.program("exact_limit"), *words], settings, more={"HOSTCUDA_DEVICES": str(devices)})
        self.assertEqual((result.status, result.stdout), (0, "ok\n"), "%s\n%s" % (words, result))
        return result

    def test_pools_however_many(self):
        for count in ("31", "40", "100"):
            self.charges("many_pools", count, RMM_LIMIT="1GiB")

    def test_small_blocks_share_pages(self):
        for way in ("managed", "array", "row", "levels"):
            with self.subTest(way):
                self.charges("small", way, RMM_LIMIT="32MiB")
        self.charges("small", "plain", RMM_LIMIT="32MiB", RMM_HOOKS="pinned")
        self.charges("rows", RMM_LIMIT="32MiB")

    def test_limit_set_late(self):
        self.charges("late", RMM_POOL_SIZE="0")

    def test_another_device(self):
        self.charges("elsewhere", devices=2, RMM_LIMIT_1="256MiB")
        self.charges("share_elsewhere", devices=2, RMM_LIMIT="10%free")

    def test_kinds_of_pools(self):
        self.charges("host_pool", "created", RMM_LIMIT="256MiB")
        self.charges("host_pool", "default", RMM_LIMIT="256MiB")
        for where in ("none", "host", "numa"):
            with self.subTest(where):
                self.charges("managed_pool", where, RMM_LIMIT="256MiB")

    def test_a_pool_without_a_location(self):
        self.charges("no_location", RMM_LIMIT="256MiB")

    def test_growth_in_flight_is_waited_for(self):
        result = run([support.program("exact_limit"), "side_by_side"], {"RMM_LIMIT": "256MiB"},
                     more={"HOSTCUDA_POOL_STEP": "32MiB"})
        self.assertEqual((result.status, result.stdout), (0, "ok\n"), str(result))

    def test_every_way_at_once(self):
        """A million operations by 8 threads, with 16 MiB more than is live: nothing is refused, the device holds no
        more than the limit, and nothing stays charged."""
        for settings in ({}, {"RMM_HOOKS": "pinned"}, {"RMM_POOL_SIZE": "0"}, {"RMM_RESOURCE": "virtual(granularity=2MiB)"}):
            with self.subTest(settings):
                self.charges("everything", str(125000 // support.FEWER), RMM_LIMIT="64MiB", **settings)

    def test_report(self):
        path = self.path("report.json")
        self.play("destroyed_pool", {"RMM_STATISTICS": "json:" + path})
        with open(path, encoding="utf-8") as file:
            stack, = json.load(file)["devices"]
        counters = {c["name"]: c["value"] for c in stack["counters"] if c["resource"] == "account"}
        self.assertEqual(counters.pop("limit"), 64 * MIB)
        self.assertGreater(counters.pop("charged_peak"), 34 * MIB - 1)
        self.assertGreater(counters.pop("internal_refusals"), 0)
        self.assertGreater(counters.pop("unserved_peak"), MIB)
        self.assertEqual(set(counters), {"charged", "served", "unserved", "driver", "managed", "arrays", "vmm",
                                         "stream_ordered", "graphs", "stream_ordered_live",
                                         "stream_ordered_blocks", "stream_ordered_allocations"})
        self.assertGreater(counters.pop("stream_ordered_allocations"), 0)
        self.assertEqual(set(counters.values()), {0})

    def test_initial_size_above_the_limit(self):
        for settings, said in (
                ({"RMM_POOL_SIZE": "128MiB"}, "RMM_POOL_SIZE=128MiB: 'pool' has an initial size of 128MiB, which is above "
                                              "the limit of 64MiB (RMM_LIMIT)"),
                ({"RMM_POOL_SIZE": "50%"}, "RMM_POOL_SIZE=50%: 'pool' has an initial size of 512MiB, which is above "
                                           "the limit of 64MiB (RMM_LIMIT)"),
                ({"RMM_POOL_SIZE": "96MiB", "RMM_LIMIT": "5%"},
                 "RMM_POOL_SIZE=96MiB: 'pool' has an initial size of 96MiB, which is above the limit of 50MiB (RMM_LIMIT)")):
            with self.subTest(settings):
                result = run([support.program("limit"), "information", "0"], dict({"RMM_LIMIT": "64MiB"}, **settings),
                             more={"HOSTCUDA_MEMORY": "1GiB"})
                self.assertEqual((result.status, result.said), (78, [said]), str(result))

    def test_a_way_around_is_a_bad_setting(self):
        """Without cuMemAlloc_v2 this driver answers the name with the old version, which is not ours:
        what it takes cannot be counted.  Before and after the settings are read."""
        look_up = ("for version in 12000, 13000:\n"
                   "    driver.cuGetProcAddress_v2(b'cuMemAlloc', ctypes.byref(found), version, ctypes.c_uint64(0), None)\n"
                   "print('looked up', flush=True)\n")
        allocate = ("pitch = ctypes.c_size_t()\n"
                    "driver.cuMemAllocPitch_v2(ctypes.byref(found), ctypes.byref(pitch), ctypes.c_size_t(100),\n"
                    "                          ctypes.c_size_t(10), 4)\n"
                    "print('allocated', flush=True)\n")
        start = "import ctypes\ndriver = ctypes.CDLL('libcuda.so.1')\nfound = ctypes.c_void_p()\n"
        said = ["%s=64MiB: cuMemAlloc: the driver returned a version of this function that rmmshim does not know, so "
                "the limit would not hold, and the process ends: install a newer rmmshim, or remove the limit"]
        withhold = {"HOSTCUDA_WITHHOLD": "cuMemAlloc_v2"}
        for name in "RMM_LIMIT", "RMM_LIMIT_JOB":
            settings = {name: "64MiB", "RMM_JOB": self.path("job")}
            for code, stdout in ((look_up + allocate, "looked up\n"), (allocate + look_up, "allocated\n")):
                result = run(["python3", "-c", start + code], settings, more=withhold)
                self.assertEqual((result.status, result.said, result.stdout),
                                 (78, [line % name for line in said], stdout), str(result))
        result = run(["python3", "-c", start + look_up], {"RMM_LIMIT": "64MiB"}, more=withhold)
        self.assertEqual((result.status, result.said), (0, []), str(result))


if __name__ == "__main__":
    support.main()
