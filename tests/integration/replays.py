# SPDX-License-Identifier: Apache-2.0
"""What the tests of `rmmshim replay` and `rmmshim tune` share: real runs of replay_scene.py, and what they counted."""
import json
import os
import sys

import support
from support import run

SCENE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "replay_scene.py")
DEVICE = {"HOSTCUDA_MEMORY": "4GiB"}


class Test(support.Test):
    def real(self, resource, words, **settings):
        """What a run of the scene with these resources counted."""
        path = self.path("statistics.json")
        result = run([sys.executable, SCENE, *words], dict(settings, RMM_RESOURCE=resource, RMM_STATISTICS="json:" + path),
                     more=DEVICE)
        self.assertEqual(result.status, 0, result)
        with open(path, encoding="utf-8") as file:
            device, = json.load(file)["devices"]
        counters = {(one["resource"], one["name"]): one["value"] for one in device["counters"]}
        return {"used_peak_bytes": counters["statistics", "peak"],
                "held_peak_bytes": counters["account", "charged_peak"],
                "refused": counters["program", "refused"],
                "driver_calls": sum(value for (_, name), value in counters.items() if name in ("driver_allocations", "driver_frees")),
                "waits": counters.get(("reuse", "waits"), 0) + counters.get(("reuse", "full_waits"), 0)}

    def assert_like_real_run(self, replayed, words, **settings):
        real = self.real(replayed["resource"], words, **settings)
        if replayed["resource"] == "cuda":  # the driver's own way to have small blocks share larger ones
            self.assertLess(abs(replayed["held_peak_bytes"] - real["held_peak_bytes"]), 0.02 * real["held_peak_bytes"])
            real["held_peak_bytes"] = replayed["held_peak_bytes"]
        self.assertEqual({name: replayed[name] for name in real}, real)
