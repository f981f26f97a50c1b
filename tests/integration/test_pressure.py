# SPDX-License-Identifier: Apache-2.0
"""A device, or a limit, that is nearly full: what the driver alone would serve is served.  The programs are
tests/gpu's, and run on hardware too; tests/fuzz/run-pressure has random ones."""
import support
from support import run

BLOCK = 8 << 20
LIMIT = {"RMM_LIMIT": "34MiB"}
ROOM_FOR_FOUR = [
    LIMIT,
    dict(LIMIT, RMM_POOL_SIZE="0"),
    dict(LIMIT, RMM_RESOURCE="virtual(granularity=2MiB)"),
    {"RMM_ARENA_SIZE": "32MiB"},
    {"RMM_RESOURCE": "pool(cuda, maximum_size=32MiB)"},
    {"RMM_RESOURCE": "virtual(granularity=2MiB, maximum_size=32MiB)"},
]
# Live is 64 MiB in two threads: settings and what they may hold.  What cuts chunks may lack a hole of the
# right size, and is run-pressure's to count.
MIX = [
    {"RMM_LIMIT": "66MiB"},
    {"RMM_LIMIT": "70MiB", "RMM_RESOURCE": "virtual(granularity=2MiB)"},
    {"RMM_LIMIT": "112MiB", "RMM_ASYNC": "1"},  # of which 32 MiB are a step of the driver's pool
]

# As on a GPU: a pool of the driver's grows by whole steps, what it keeps is in pieces, and to give memory back takes
# long.  Live is 256 MiB in four threads: `virtual` holds no more, and 32 blocks have half a step besides.
SLOW = {
    "HOSTCUDA_POOL_STEP": "8MiB",
    "HOSTCUDA_FAULT": "cuMemUnmap,cuMemRelease,cuMemFree,cuMemPoolTrimTo,cuMemCreate,cuMemSetAccess:before_us=100:"
                      "after_us=100",
}
SLOW_MIX = [
    {"RMM_LIMIT": "288MiB", "RMM_RESOURCE": "virtual(granularity=2MiB)"},
    {"RMM_LIMIT": "320MiB", "RMM_POOL_SIZE": "0"},
]


class Pressure(support.Test):
    def test_four_threads_with_a_block_each(self):
        for settings in [None] + ROOM_FOR_FOUR:
            with self.subTest(settings):
                result = run([support.program("four_threads"), "0.2", str(BLOCK)], settings,
                             preload=None if settings else [])
                self.assertEqual(result.status, 0, result)
                self.assertIn(" refused 0 ", result.stdout)

    def test_a_mix_of_paths(self):
        for paths in ("dsva", "dv", "sa"):
            command = [support.program("path_mix"), "1", "100", str(32 << 20), "2", paths]
            for settings in MIX:
                with self.subTest(settings, paths=paths):
                    self.assert_same(command, settings)

    def test_a_slow_driver_whose_pools_hold_pieces(self):
        for paths, settings in support.pairs(("ds", "dv"), SLOW_MIX):
            command = [support.program("path_mix"), "1", "200", str(64 << 20), "4", paths]
            with self.subTest(settings, paths=paths):
                self.assert_same(command, dict(settings, **SLOW))


if __name__ == "__main__":
    support.main()
