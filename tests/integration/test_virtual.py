# SPDX-License-Identifier: Apache-2.0
"""The resource virtual: programs print what they print alone, with the race detector on; physical
memory is moved instead of taken, and comes back when a context ends."""
import json

import support
from support import run

RACE = {"HOSTCUDA_RACE": "1"}
MIB = 1 << 20

# The detector sees the allocations of a runtime that is not passed by (the library serves the shared
# one's cudaMalloc itself), and those of the driver where nobody cuts them.
RACED = ["sample_vector_driver", "sample_memory_mix_static", "large_blocks"]
PROGRAMS = [["sample_vector_driver"], ["sample_vector_runtime_shared"], ["sample_memory_mix_shared"],
            ["sample_memory_mix_static"], ["sample_memory_mix_static", "--threads", "16", "--seed", "8", "mix"],
            ["sample_memory_mix_shared", "huge"], ["large_blocks"],
            ["life_driver", "destroyed_contexts"], ["life_driver", "two_contexts"], ["life_driver", "no_context"],
            ["life_driver", "primary_context"], ["life_driver", "two_references"],
            ["life_driver", "live_at_exit"], ["life_runtime_shared", "reset"],
            ["life_runtime_shared", "free_late"], ["life_runtime_static", "leave"]]
SETTINGS = [{"RMM_RESOURCE": "virtual"}, {"RMM_RESOURCE": "virtual(granularity=2MiB)"},
            {"RMM_RESOURCE": "binning(pool(virtual), minimum_size=256KiB, maximum_size=4MiB)"},
            {"RMM_RESOURCE": "binning(pool(cuda), bin(virtual(granularity=2MiB), size=1MiB), bins=300000)"},
            {"RMM_RESOURCE": "virtual(granularity=2MiB)", "RMM_FREE": "wait"}]


class Virtual(support.Test):
    def test_programs_print_the_same(self):
        for program, *arguments in PROGRAMS:
            for settings in SETTINGS if program in RACED else SETTINGS[1:2]:
                with self.subTest("%s %s under %s" % (program, arguments, settings)):
                    self.assert_same([support.program(program)] + arguments, settings,
                                     more=RACE if program in RACED else None)

    def counters(self, settings, more):
        path = self.path("report.json")
        result = run([support.program("large_blocks")], dict(settings, RMM_STATISTICS="json:" + path), more=more)
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        with open(path, encoding="utf-8") as file:
            return result, {(c["resource"], c["name"]): c["value"]
                            for stack in json.load(file)["devices"] for c in stack["counters"]}

    def test_other_sizes_are_served_from_the_same_memory(self):
        """What was live at once is 60 MiB and a counter.  Each of the ten small live blocks lies across
        two granules, which makes 82 MiB, and the device has just that beside its context and 2 MiB of
        the driver's small blocks."""
        result, counters = self.counters({"RMM_RESOURCE": "virtual(granularity=2MiB)"},
                                         {"HOSTCUDA_MEMORY": "92MiB", "HOSTCUDA_CONTEXT_MEMORY": "8MiB"})
        self.assertNotIn("not itself", result.stdout)
        self.assertGreater(counters["virtual", "moved"], 10 * MIB)
        self.assertLessEqual(counters["virtual", "held_peak"], 82 * MIB)
        self.assertEqual(counters["statistics", "failures"], 0)

    def test_a_context_gives_back_what_outlives_it(self):
        for resource in ("virtual", "pool(virtual(granularity=2MiB))", "cuda",
                         "binning(cuda, bin(virtual(granularity=2MiB), size=1GiB))"):
            result = run([support.program("large_blocks")], {"RMM_RESOURCE": resource})
            self.assertIn("destroyed: 0\n", result.stdout, resource)
            self.assertIn("\nreset: 0\nreleased: 0\n", result.stdout, resource)

    def test_without_reuse_memory_does_not_move_under_running_work(self):
        """One stream, so that blocks handed out again at once are in order; unmapping is not."""
        result = run([support.program("large_blocks")],
                     {"RMM_RESOURCE": "virtual(granularity=2MiB)", "RMM_FREE": "immediate"})
        self.assertEqual(result.status, 0, result)
        self.assertNotRegex(result.stdout, r": [1-9]\d* wrong words")

    def test_a_driver_without_it_is_a_bad_setting(self):
        result = run([support.program("large_blocks")], {"RMM_RESOURCE": "virtual"},
                     more={"HOSTCUDA_WITHHOLD": "cuMemSetAccess"})
        self.assertEqual(result.status, 78, result)
        self.assertEqual(len(result.said), 1, result)
        self.assertIn("RMM_RESOURCE", result.said[0])
        self.assertIn("virtual memory management", result.said[0])


if __name__ == "__main__":
    support.main()
