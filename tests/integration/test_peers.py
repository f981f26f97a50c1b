# SPDX-License-Identifier: Apache-2.0
"""Devices that reach each other's memory, enabled before and after there is any, under every leaf; and a
process with many devices, a thread for each."""
import support
from support import run

THREE = {"HOSTCUDA_DEVICES": "3"}
REACHED = [
    {},
    {"RMM_POOL_SIZE": "64MiB"},
    {"RMM_ARENA_SIZE": "1GiB"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_BINNING": "256KiB-4MiB"},
    {"RMM_RESOURCE": "virtual"},
    {"RMM_RESOURCE": "virtual(granularity=2MiB, initial_size=64MiB)"},
    {"RMM_RESOURCE": "pool(virtual)"},
    {"RMM_RESOURCE": "virtual", "RMM_FREE": "immediate"},
    {"RMM_ASYNC": "1"},
    {"RMM_RESOURCE": "pool(async)"},
    {"RMM_RESOURCE": "fallback(pool(async, maximum_size=64MiB), virtual)"},
]
# What every device reaches anyhow.
EVERYWHERE = [
    {"RMM_MANAGED": "1"},
    {"RMM_MANAGED": "1", "RMM_ASYNC": "1"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_FALLBACK": "pinned"},
]


class Peers(support.Test):
    def scene(self, name, settings, stdout="ok\n"):
        with self.subTest("%s under %s" % (name, settings)):
            result = run([support.program("peers"), name], settings, more=THREE)
            self.assertEqual((result.status, result.stdout, result.stderr), (0, stdout, ""), result)

    def test_enabled_before_there_is_memory(self):
        for settings in REACHED + EVERYWHERE:
            self.scene("before", settings)

    def test_enabled_after(self):
        for settings in REACHED:
            self.scene("after", settings)

    def test_disabled(self):
        for settings in REACHED:
            self.scene("disabled", settings)

    def test_refused(self):
        """What our memory cannot be given is not enabled at all."""
        for settings in ({"RMM_RESOURCE": "virtual"}, {"RMM_ASYNC": "1"}):
            self.scene("refused", settings, "enable 801\ndisable 705\nok\n")
        self.scene("refused", {"RMM_POOL_SIZE": "64MiB"}, "enable 0\ndisable 0\nok\n")

    def test_while_memory_comes_goes_and_moves(self):
        for settings in ({"RMM_RESOURCE": "virtual(granularity=2MiB)"}, {"RMM_RESOURCE": "virtual"},
                         {"RMM_RESOURCE": "virtual(granularity=2MiB)", "RMM_FREE": "immediate"},
                         {"RMM_ASYNC": "1"}):
            self.scene("moving", settings)

    def test_a_thread_for_each_device(self):
        for settings in REACHED + EVERYWHERE:
            self.scene("threads", settings)
        self.scene("threads", {"RMM_POOL_SIZE": "64MiB", "RMM_LIMIT": "2GiB", "RMM_STATISTICS": "text:/dev/null"})


if __name__ == "__main__":
    support.main()
