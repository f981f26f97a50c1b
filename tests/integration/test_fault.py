# SPDX-License-Identifier: Apache-2.0
"""A fault of the program's work is told to a program that checks its frees and allocations alone, once the driver has
said so in passing, until the context ends."""
import support
from support import run

BESIDE = {"RMM_PINNED_POOL_SIZE": "0", "RMM_MANAGED_POOL_SIZE": "0"}
POOLS = tuple(dict(BESIDE, **more) for more in (
    {"RMM_POOL_SIZE": "0"}, {"RMM_POOL_SIZE": "1GiB"}, {"RMM_RESOURCE": "virtual"}, {"RMM_RESOURCE": "cuda"},
    {"RMM_RESOURCE": "binning(pool(cuda))", "RMM_TRACKING": "1", "RMM_LOG": "/dev/null"}))
UNFENCED = tuple(dict(BESIDE, **more) for more in (
    {"RMM_POOL_SIZE": "0", "RMM_FREE": "immediate"}, {"RMM_POOL_SIZE": "0", "RMM_FREE": "wait"}))


class Fault(support.Test):
    def scene(self, name, settings):
        with self.subTest("%s under %s" % (name, settings)):
            how = {"more": {"HOSTCUDA_MEMORY": "4GiB"}}
            if settings in POOLS and settings.get("RMM_RESOURCE") != "cuda":
                how["more"]["POOLED"] = "1"
            if settings:
                how["more"]["SERVED"] = "1"
            else:
                how["preload"] = []
            result = run([support.program("fault"), name], settings, **how)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)

    def test_plain(self):
        for name in ("frees", "large", "fence", "wait", "thread", "limit", "ended"):
            self.scene(name, {})

    def test_what_the_driver_says_in_passing(self):
        for settings in POOLS:
            for name in ("frees", "large", "wait", "thread", "ended"):
                self.scene(name, settings)
            if settings.get("RMM_RESOURCE") != "cuda":  # whose frees wait
                self.scene("fence", settings)

    def test_without_fences(self):
        for settings in UNFENCED:
            for name in ("wait", "thread", "ended"):
                self.scene(name, settings)

    def test_a_limit_does_not_hide_it(self):
        for settings in POOLS[:1] + POOLS[3:4] + ({},):
            self.scene("limit", dict(settings, RMM_LIMIT="256MiB"))

    def test_what_the_driver_takes_back(self):
        for settings in POOLS[:3]:
            self.scene("denied", settings)


if __name__ == "__main__":
    support.main()
