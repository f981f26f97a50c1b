# SPDX-License-Identifier: Apache-2.0
"""Where memory comes from beneath a stack: the driver's own pools, managed ones, the process's memory.
Programs print what they print without the library, and the race detector is silent."""
import json

import support
from support import run

ASYNC = [
    {"RMM_ASYNC": "1"},
    {"RMM_ASYNC": "1", "RMM_FREE": "wait"},
    {"RMM_ASYNC": "1", "RMM_FREE": "immediate"},
    {"RMM_RESOURCE": "async(release_threshold=0)"},
    {"RMM_RESOURCE": "pool(async)"},
    {"RMM_ASYNC": "1", "RMM_POOL_SIZE": "64MiB", "RMM_BINNING": "256KiB-4MiB"},
    {"RMM_ASYNC": "1", "RMM_MANAGED": "1"},
    {"RMM_RESOURCE": "statistics(async_managed)"},
]
SYSTEM = [
    {"RMM_RESOURCE": "system"},
    {"RMM_RESOURCE": "system", "RMM_FREE": "immediate"},
    {"RMM_RESOURCE": "pool(system)"},
]
# The detector sees blocks by the notes of the test runtime, which a library that takes cudaMalloc
# itself passes by: so programs with a shared runtime leave that door shut.
PROGRAMS = ["sample_vector_driver", "sample_vector_dlopen", "sample_vector_runtime_static",
            "sample_vector_runtime_shared", "sample_memory_mix_static", "sample_memory_mix_shared"]
RACE = {"HOSTCUDA_RACE": "1"}
PAGEABLE = {"HOSTCUDA_RACE": "1", "HOSTCUDA_PAGEABLE": "1"}


def with_doors(name, settings):
    return dict(settings, RMM_HOOKS="device") if name.endswith("shared") else settings


class Programs(support.Test):
    def test_pools_of_the_driver(self):
        for name, settings in support.pairs(PROGRAMS, ASYNC):
            with self.subTest("%s under %s" % (name, settings)):
                self.assert_same([support.program(name)], with_doors(name, settings), more=RACE)

    def test_memory_of_the_process(self):
        """Those that do not ask the driver about the range of a block, of which it knows nothing."""
        for name in ("sample_vector_runtime_static", "sample_vector_runtime_shared"):
            for settings in SYSTEM:
                with self.subTest("%s under %s" % (name, settings)):
                    self.assert_same([support.program(name)], with_doors(name, settings), more=PAGEABLE)

    def test_bins_with_resources_of_their_own(self):
        settings = {"RMM_RESOURCE": "binning(pool(cuda), bin(arena(cuda, arena_size=64MiB), size=4KiB), "
                                    "bin(fixed_size(cuda, block_size=1MiB), size=1MiB), bins=30000+300000)"}
        for name in PROGRAMS:
            with self.subTest(name):
                self.assert_same([support.program(name)], with_doors(name, settings), more=RACE)
        path = self.path("report.json")
        result = run([support.program("sample_memory_mix_static")], dict(settings, RMM_STATISTICS="json:" + path))
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        with open(path, encoding="utf-8") as file:
            counters = {(c["resource"], c["name"]): c["value"]
                        for stack in json.load(file)["devices"] for c in stack["counters"]}
        self.assertEqual(counters["binning", "bins"], 4)
        for resource in ("arena", "fixed_size", "pool"):
            self.assertGreater(counters[resource, "allocations"], 0, resource)

    def test_served_by_the_leaf(self):
        """The runs above are about something: the leaf served them."""
        for settings, leaf, more in ((ASYNC[0], "async", RACE), (ASYNC[6], "async_managed", RACE),
                                     (SYSTEM[0], "system", PAGEABLE)):
            with self.subTest(leaf):
                path = self.path("report.json")
                result = run([support.program("sample_vector_runtime_static")],
                             dict(settings, RMM_STATISTICS="json:" + path), more=more)
                self.assertEqual(result.status, 0, result)
                with open(path, encoding="utf-8") as file:
                    text = json.dumps(json.load(file))
                self.assertIn('"%s"' % leaf, text)


class Sharing(support.Test):
    def test_no_block_of_a_pool_claims_a_handle(self):
        for settings, expected in (({}, "capable 1, of a pool 0, handle 0"),
                                   ({"RMM_ASYNC": "1"}, "capable 0, of a pool 1, handle 0"),
                                   ({"RMM_ASYNC": "1", "RMM_POOL_SIZE": "64MiB"},
                                    "capable 0, of a pool 1, handle 0"),
                                   ({"RMM_RESOURCE": "async(ipc=0)"}, "capable 0, of a pool 1, handle 1"),
                                   ({"RMM_RESOURCE": "pool(async(ipc=0), initial_size=64MiB)"},
                                    "capable 0, of a pool 1, handle 801")):
            with self.subTest(str(settings)):
                result = run([support.program("leaves"), "ipc"], settings)
                self.assertEqual(result.stdout.strip(), expected, result)


class Contexts(support.Test):
    def test_memory_ends_with_its_context(self):
        """Fifty devices' worth of memory in all, and a driver's pool outlives a context."""
        device = {"HOSTCUDA_MEMORY": "128MiB", "HOSTCUDA_CONTEXT_MEMORY": "1MiB"}
        for scene in ("reset", "destroy"):
            for settings in ASYNC + [{"RMM_POOL_SIZE": "16MiB"}]:
                with self.subTest("%s under %s" % (scene, settings)):
                    self.assert_same([support.program("leaves"), scene], settings,
                                     more=device)
            for settings in SYSTEM:
                with self.subTest("%s under %s" % (scene, settings)):
                    self.assert_same([support.program("leaves"), scene], settings,
                                     more=dict(device, HOSTCUDA_MEMORY="32MiB", HOSTCUDA_PAGEABLE="1"))


class Alone(support.Test):
    """One block at a time, freed with work under way: what waits for it is reused, or waited for, and never
    is the answer that memory is out.  How much is held meanwhile depends on how late the work is."""

    def test_nothing_is_refused(self):
        device = {"HOSTCUDA_MEMORY": "256MiB", "HOSTCUDA_CONTEXT_MEMORY": "1MiB"}
        for resource in ("async", "fallback(async, pinned)"):
            with self.subTest(resource):
                self.assert_same([support.program("leaves"), "alone", "100"], {"RMM_RESOURCE": resource},
                                 more=device)


class Unsupported(support.Test):
    def refused(self, settings, words, more):
        result = run([support.program("life_runtime_shared"), "plain"], settings, more=more)
        self.assertEqual(result.status, 78, result)
        self.assertEqual(len(result.said), 1, result)
        for word in words:
            self.assertIn(word, result.said[0])

    def test_old_drivers(self):
        self.refused({"RMM_ASYNC": "1", "RMM_MANAGED": "1"}, ["RMM_ASYNC=1", "13.0"],
                     {"HOSTCUDA_DRIVER_VERSION": "12080"})
        self.refused({"RMM_ASYNC": "1"}, ["RMM_ASYNC=1", "memory pools"],
                     {"HOSTCUDA_WITHHOLD": "cuMemPoolCreate"})

    def test_no_pageable_access(self):
        self.refused({"RMM_RESOURCE": "system"}, ["RMM_RESOURCE=system", "HMM"], {})


if __name__ == "__main__":
    support.main()
