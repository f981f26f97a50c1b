# SPDX-License-Identifier: Apache-2.0
"""Large blocks of changing sizes fill the device nearly, and of each phase one block lives on: what comes next is
served as the driver alone serves it, which maps pages.  (Blocks of a pool cannot be moved.)"""
import support
from support import run

DEVICE = {"HOSTCUDA_MEMORY": "11GiB"}
SURVIVORS = [1 << 10, 3 << 20, 40 << 20]
ORDERS = [str(order) for order in range(11)]  # the plain one and ten at random
POOLS = [{"RMM_POOL_SIZE": "10GiB"}, {"RMM_POOL_SIZE": "1GiB"}, {"RMM_POOL_MAX_SIZE": "100%"}]


class Survivors(support.Test):
    def scenes(self, units, settings):
        for unit in units:
            for survivor_bytes in SURVIVORS:
                with self.subTest("%s, %d bytes under %s" % (unit, survivor_bytes, settings)):
                    self.assert_same([support.program("survivors"), unit, str(survivor_bytes), *ORDERS], settings,
                                     more=DEVICE)

    def test_the_driver_serves_all(self):
        for unit in ("GB", "GiB"):
            for survivor_bytes in SURVIVORS:
                result = run([support.program("survivors"), unit, str(survivor_bytes), *ORDERS], preload=[], more=DEVICE)
                self.assertEqual(result.status, 0, result)
                orders = result.stdout.split("order ")[1:]
                self.assertEqual(len(orders), len(ORDERS), result)
                for order in orders:
                    self.assertEqual(sorted(line.split(" of ")[0] for line in order.splitlines()[1:]),
                                     ["10", "20", "3 live on", "5"], result)

    def test_pools(self):
        """Of 10 GiB one block of 3 MB inside leaves no room for five of 2 GiB: it comes to lie outside, except
        where it is the program's first, before anything large is known (no order here)."""
        for settings in POOLS:
            self.scenes(("GB", "GiB"), settings)

    def test_other_frees(self):
        for free in ("wait", "immediate"):
            for settings in POOLS:
                self.scenes(("GB", "GiB"), dict(settings, RMM_FREE=free))

    def test_arena(self):
        """It never holds more: 10 GiB and what lives on must have room in it."""
        for settings in ({"RMM_ARENA_SIZE": "10.5GiB"}, {"RMM_ARENA_SIZE": "98%"},
                         {"RMM_ARENA_SIZE": "98%", "RMM_FREE": "immediate"}):
            self.scenes(("GB", "GiB"), settings)


if __name__ == "__main__":
    support.main()
