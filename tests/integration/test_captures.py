# SPDX-License-Identifier: Apache-2.0
"""Memory while a stream captures, in every mode of capture: no call of ours spoils a capture, graphs' own
memory stays the driver's, and what was taken meanwhile is the program's like any other."""
import support
from support import run

STACKS = [
    {"RMM_POOL_SIZE": "64MiB"},
    {"RMM_POOL_SIZE": "16MiB", "RMM_BINNING": "4KiB-1MiB", "RMM_HOOKS": "all"},
    {"RMM_ARENA_SIZE": "1GiB", "RMM_HOOKS": "all"},
    {"RMM_RESOURCE": "virtual(granularity=2MiB)", "RMM_HOOKS": "all"},
    {"RMM_ASYNC": "1", "RMM_HOOKS": "all"},
    {"RMM_RESOURCE": "pool(async)"},
    {"RMM_RESOURCE": "statistics(cuda)"},
    {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "64MiB", "RMM_HOOKS": "all"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_FREE": "wait", "RMM_HOOKS": "all"},
    {"RMM_POOL_SIZE": "64MiB", "RMM_LIMIT": "2GiB", "RMM_STATISTICS": "text:/dev/null", "RMM_HOOKS": "all"},
]
MODES = ["0", "1", "2"]
OLD = {"HOSTCUDA_DRIVER_VERSION": "12040"}  # without fences
GROWING = [{"RMM_RESOURCE": "pool(cuda)"}, {"RMM_POOL_SIZE": "64MiB"}, {"RMM_RESOURCE": "virtual", "RMM_HOOKS": "all"}]


class Captures(support.Test):
    def scene(self, name, settings, mode="0", more=None, says=""):
        with self.subTest("%s %s under %s, %s" % (name, mode, settings, more)):
            result = run([support.program("captures"), name, mode], settings, more=more)
            self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)
            self.assertEqual("\n".join(result.said), says, result)
            self.assertEqual(len(result.said), len(result.stderr.splitlines()), result)

    def test_the_driver_alone(self):
        """What the scenes ask for is what the driver does, where it does not refuse to allocate."""
        for name, mode in (("allocations", "2"), ("frees", "0"), ("frees", "1"), ("frees", "2"),
                           ("pools", "2"), ("nodes", "2"), ("nodes_by_hand", "0")):
            with self.subTest("%s %s" % (name, mode)):
                result = run([support.program("captures"), name, mode], preload=[])
                self.assertEqual((result.status, result.stdout), (0, "ok\n"), result)

    def test_allocations_and_frees(self):
        for settings in STACKS:
            for mode in MODES:
                self.scene("allocations", settings, mode)
        for mode in MODES:
            self.scene("allocations", STACKS[1], mode, OLD)

    def test_frees_of_what_a_graph_uses(self):
        for settings in STACKS:
            for mode in MODES:
                self.scene("frees", settings, mode)

    def test_pools_of_the_drivers(self):
        for settings in STACKS:
            for mode in MODES if "RMM_MANAGED" not in settings else []:  # more than a device has is served
                self.scene("pools", settings, mode)

    def test_nodes(self):
        for settings in STACKS:
            for mode in MODES:
                self.scene("nodes", settings, mode)
            self.scene("nodes_by_hand", settings)

    def test_what_is_held_in_a_long_capture(self):
        for settings in GROWING:
            for mode in MODES:
                self.scene("growth", settings, mode)

    def test_what_was_freed_before(self):
        for settings in GROWING:
            for mode in MODES:
                self.scene("freed_before", settings, mode)

    def test_captures_that_go_with_their_context(self):
        for mode in MODES:
            for scene in ("contexts", "primary", "green_contexts", "last_green_context"):
                self.scene(scene, GROWING[0], mode)
            self.scene("contexts", GROWING[1], mode, {"HOSTCUDA_DEVICES": "2"})

    def test_fences_that_cannot_be_had(self):
        for settings in GROWING:
            self.scene("refused", settings)
            self.scene("distrust", settings, says="cuStreamBeginCaptureToCig may start GPU work whose end rmmshim "
                                                  "cannot see: from now on freed memory is reused only after a wait "
                                                  "for all work of the GPU, which is slower (a newer rmmshim may know this "
                                                  "function)")


if __name__ == "__main__":
    support.main()
