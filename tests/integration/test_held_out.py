# SPDX-License-Identifier: Apache-2.0
"""No thread is held out, nor refused, because a context's end or a kernel takes long."""
import support
from support import run

DEVICE = {"HOSTCUDA_MEMORY": "1GiB"}
# What can go back only by a driver call that waits for the context's work.
WAITING = [{"RMM_PINNED_POOL_SIZE": "0"}, {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "0"},
           {"RMM_POOL_SIZE": "0", "RMM_FREE": "immediate"},
           {"RMM_POOL_SIZE": "0", "RMM_ASYNC": "1", "RMM_FREE": "immediate"}]


class HeldOut(support.Test):
    def scene(self, name, settings, **more):
        with self.subTest("%s under %s, %s" % (name, settings, more)):
            result = run([support.program("held_out"), name], settings, more=more)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)
            # A wait says so after a second, and a busy machine makes long ones short and short ones long.
            self.assertLessEqual(set(result.said), {"device 0 is full: an allocation waits for freed memory that the "
                                                    "GPU still uses"}, result)

    def test_plain(self):
        """The scenes that need nothing of the library, on the driver alone."""
        for name in ("idle_beside_an_end", "idle_in_what_ends"):
            result = run([support.program("held_out"), name], preload=[], more=DEVICE)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)

    def test_idle_memory_beside_an_end(self):
        for settings in ({"RMM_POOL_SIZE": "0"}, {"RMM_RESOURCE": "virtual"}, {"RMM_ASYNC": "1"},
                         {"RMM_POOL_SIZE": "0", "RMM_LIMIT": "700MiB"}):
            self.scene("idle_beside_an_end", settings, **DEVICE)
        self.scene("idle_beside_an_end", {"RMM_POOL_SIZE": "0"}, HOSTCUDA_DRIVER_VERSION="12040", **DEVICE)

    def test_idle_memory_of_what_ends(self):
        self.scene("idle_in_what_ends", {"RMM_POOL_SIZE": "0"}, **DEVICE)

    def test_a_trim_beside_a_kernel(self):
        for settings in WAITING:
            self.scene("trim_beside_a_kernel", settings)
        self.scene("trim_and_release", WAITING[0])


if __name__ == "__main__":
    support.main()
