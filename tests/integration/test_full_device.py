# SPDX-License-Identifier: Apache-2.0
"""A device, or a limit, that is full of freed memory: requests by every way are served as the driver alone
serves them, and none waits where the driver's own would not."""
import support
from support import run

WAYS = ("plain", "async", "create", "array", "context")
# Under a limit the device has room; the account stands in the way.
SMALL = {"HOSTCUDA_MEMORY": "1GiB"}
STACKS = [({"RMM_POOL_SIZE": "0"}, SMALL),
          ({"RMM_RESOURCE": "binning(pool(cuda), minimum_size=256KiB, maximum_size=1MiB)"}, SMALL),
          ({"RMM_RESOURCE": "virtual(granularity=2MiB)"}, SMALL),
          ({"RMM_ASYNC": "1"}, SMALL),
          ({"RMM_POOL_SIZE": "0", "RMM_LIMIT": "900MiB"}, {})]
BARE = ({}, SMALL)


class FullDevice(support.Test):
    def scene(self, name, way, stack):
        settings, more = stack
        with self.subTest("%s %s under %s, %s" % (name, way, settings, more)):
            how = {"more": dict(more, HOSTCUDA_RACE="1")}
            if not settings:
                how["preload"] = []
            result = run([support.program("full_device"), name, way], settings, **how)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)

    def test_plain(self):
        """The scenes themselves, on the driver alone."""
        for name in ("pending", "too_much", "ready"):
            for way in WAYS:
                self.scene(name, way, BARE)

    def test_what_was_freed_is_waited_for(self):
        for stack in STACKS:
            for way in WAYS:
                self.scene("pending", way, stack)

    def test_managed_memory_goes_back_when_its_context_is_idle(self):
        self.scene("busy", "plain", ({"RMM_POOL_SIZE": "0", "RMM_MANAGED_POOL_SIZE": "0", "RMM_LIMIT": "900MiB"}, {}))

    def test_a_contexts_end_is_waited_for(self):
        for way in WAYS:
            self.scene("ending", way, STACKS[0])

    def test_nothing_waits_for_what_cannot_be_served(self):
        for stack in STACKS:
            for way in WAYS:
                self.scene("too_much", way, stack)

    def test_what_is_ready_is_given_back_beside_a_kernel_that_waits(self):
        for stack in STACKS[:3]:
            for way in WAYS:
                self.scene("ready", way, stack)


if __name__ == "__main__":
    support.main()
