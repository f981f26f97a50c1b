# SPDX-License-Identifier: Apache-2.0
"""Host memory that is full of freed memory: requests by every way are served as the driver alone serves them, and
none waits where the driver's own would not."""
import support
from support import run

PINNED = ("flags", "same", "plain", "context", "device")
SETTINGS = ({"RMM_PINNED_POOL_SIZE": "0"}, {"RMM_PINNED_RESOURCE": "pinned"},
            {"RMM_PINNED_POOL_SIZE": "610MiB"}, {"RMM_PINNED_POOL_SIZE": "0", "RMM_FREE": "wait"})


class FullHost(support.Test):
    def scene(self, name, way, settings):
        with self.subTest("%s %s under %s" % (name, way, settings)):
            # Addresses for eight times as much pinned memory.
            how = {"more": {"HOSTCUDA_MEMORY": "128MiB", "HOSTCUDA_DEVICES": "2", "HOSTCUDA_RACE": "1"}}
            if settings:
                how["more"]["SERVED"] = "1"
            else:
                how["preload"] = []
            result = run([support.program("full_host"), name, way], settings, **how)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)

    def test_plain(self):
        """The scenes themselves, on the driver alone."""
        for name in ("ready", "pending", "busy", "beside", "live", "too_much"):
            for way in PINNED:
                self.scene(name, way, {})

    def test_what_nobody_uses_goes_back(self):
        for settings in SETTINGS:
            for way in PINNED:
                self.scene("ready", way, settings)
        for settings in SETTINGS[:2]:
            for way in PINNED:
                self.scene("beside", way, settings)

    def test_what_work_uses_is_waited_for(self):
        for settings in SETTINGS[:3]:
            for name in ("pending", "busy"):
                for way in PINNED:
                    self.scene(name, way, settings)

    def test_what_spills_is_served_too(self):
        for name in ("ready", "pending", "busy", "live", "too_much"):
            for settings in ({"RMM_POOL_SIZE": "0"}, {}):
                self.scene(name, "spill", dict(settings, RMM_FALLBACK="pinned", RMM_PINNED_POOL_SIZE="0"))

    def test_nothing_waits_for_what_cannot_be_served(self):
        for name in ("live", "too_much"):
            for way in PINNED:
                self.scene(name, way, SETTINGS[0])

    def test_calls_that_may_lack_host_memory_are_made_again(self):
        for way in PINNED + ("managed", "register", "create"):
            self.scene("fault", way, SETTINGS[0])


if __name__ == "__main__":
    support.main()
