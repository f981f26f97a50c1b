#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the driver takes for itself (modules, graphs, streams, contexts), while stacks keep what it lacks."""
import support
from support import run

# What was freed is clean at once, so that it is kept when the call is made.
CLEAN = {"RMM_RESOURCE": "pool(cuda)", "RMM_FREE": "immediate"}
FULL = {"HOSTCUDA_MEMORY": "256MiB", "HOSTCUDA_CONTEXT_MEMORY": "64MiB", "HOSTCUDA_MODULE_MEMORY": "64MiB"}


class Retry(support.Test):
    def play(self, scene, settings=None, *, more=None, **how):
        more = dict(more or {}, HOSTCUDA_DRIVER_VERSION="13040")  # the first that has cuGraphAddNode_v3
        result = run([support.program("retry"), *scene], settings, more=more, **how)
        self.assertEqual((result.status, result.stdout), (0, "ok\n"), "%s under %s\n%s" % (scene, settings, result))
        self.assertEqual(result.stderr, "")

    def test_every_call_is_made_again(self):
        for settings in (CLEAN, {"RMM_RESOURCE": "pool(cuda)", "RMM_FREE": "wait"}, {"RMM_RESOURCE": "virtual", "RMM_FREE": "immediate"}):
            with self.subTest(settings):
                self.play(["rows", "2"], settings)

    def test_not_where_nothing_is_served(self):
        for how in ({"settings": {}}, {"settings": {"RMM_HOOKS": "pinned"}}, {"preload": []}):
            with self.subTest(how):
                self.play(["rows", "1"], **how)

    def test_full_device(self):
        self.play(["full"], more=FULL, preload=[])
        for settings in (CLEAN, {"RMM_RESOURCE": "pool(cuda)", "RMM_FREE": "wait"}, {"RMM_RESOURCE": "pool(cuda)"},
                         {"RMM_RESOURCE": "virtual"}):
            with self.subTest(settings):
                self.play(["full"], settings, more=FULL)

    def test_full_device_while_the_gpu_is_busy(self):
        """What was freed is given back when the work before it is done, as the driver's free waits."""
        self.play(["full", "busy"], more=FULL, preload=[])
        for settings in ({"RMM_RESOURCE": "pool(cuda)"}, {"RMM_RESOURCE": "virtual"}):
            with self.subTest(settings):
                self.play(["full", "busy"], settings, more=FULL)

    def test_the_device_that_is_full(self):
        self.play(["devices"], CLEAN, more={"HOSTCUDA_DEVICES": "2"})


if __name__ == "__main__":
    support.main()
