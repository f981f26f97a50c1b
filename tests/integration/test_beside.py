# SPDX-License-Identifier: Apache-2.0
"""Other libraries and tools in the same process: interposers of cudaMalloc, dlsym and malloc before and
after us, injected tools, programs built with sanitizers.  Programs print what they print with those
alone."""
import os
import unittest

import support
from support import run

SETTINGS = [{}, {"RMM_POOL_SIZE": "256MiB"}, {"RMM_MANAGED": "1"}, {"RMM_POOL_SIZE": "64MiB", "RMM_FREE": "wait"},
            {"RMM_POOL_MAX_SIZE": "1GiB", "RMM_LIMIT": "4GiB", "RMM_BINNING": "256KiB-4MiB"}]
POOL = {"RMM_POOL_SIZE": "256MiB"}


def library(name):
    return os.path.join(support.PROGRAMS, "lib%s.so" % name)


class Beside(support.Test):
    def counts(self, command, settings, preload, **more):
        """What the other library counted, and the run."""
        path = self.path("counts")
        if os.path.exists(path):
            os.unlink(path)
        result = run(command, settings, preload=preload, more=dict(more, BESIDE_COUNTS=path))
        self.assertEqual(result.status, 0, result)
        seen = []
        with open(path, encoding="utf-8") as file:
            for line in file:
                seen = list(map(int, line.split()[1:]))
        return seen, result

    def both_orders(self, name):
        return [library(name), support.SHIM], [support.SHIM, library(name)]

    def same_as_alone(self, name, programs, at_least, settings=None):
        for program in programs:
            command = [support.program(program)]
            _, alone = self.counts(command, {}, [library(name)])
            for setting in settings or SETTINGS:
                for preload in self.both_orders(name):
                    with self.subTest("%s under %s, %s first" % (program, setting, os.path.basename(preload[0]))):
                        seen, result = self.counts(command, setting, preload)
                        self.assertEqual(result.outcome, alone.outcome, support.difference(alone, result))
                        self.assertEqual(result.stderr, alone.stderr)
                        self.assertGreaterEqual(seen[0], at_least, seen)

    @unittest.skipIf(support.PRELOAD_FIRST, "a sanitizer's malloc stands before all others")
    def test_hooks_malloc(self):
        self.same_as_alone("beside_malloc", ["sample_vector_runtime_static", "sample_vector_runtime_shared",
                                             "sample_vector_driver", "sample_vector_dlopen"], 10)

    @unittest.skipIf(support.PRELOAD_FIRST, "a sanitizer asks dlsym before its functions can run")
    def test_hooks_dlsym(self):
        self.same_as_alone("beside_dlsym", ["sample_vector_runtime_static", "sample_vector_runtime_shared",
                                            "sample_vector_dlopen"], 0)

    @unittest.skipIf(support.PRELOAD_FIRST, "a sanitizer asks dlsym before its functions can run")
    def test_dlsym_of_the_first_is_asked_first(self):
        command = [support.program("sample_vector_dlopen")]
        _, alone = self.counts(command, {}, [library("beside_dlsym")])
        seen, _ = self.counts(command, POOL, [library("beside_dlsym"), support.SHIM])
        plain, _ = self.counts(command, {}, [library("beside_dlsym")])
        self.assertGreaterEqual(seen[0], plain[0])
        self.assertEqual(alone.status, 0)

    def test_serves_large_blocks_itself(self):
        """As torch_memory_saver: it serves what it wants, and what it passes on is served by us when it
        comes first; after us it gets what the runtime door forwards."""
        program = [support.program("sample_vector_runtime_shared")]
        path = self.path("report.json")
        alone_counts, alone = self.counts(program, {}, [library("beside_saver")])
        self.assertGreater(alone_counts[0], 0, alone)
        for settings in SETTINGS:
            for preload in self.both_orders("beside_saver"):
                with self.subTest("%s, %s first" % (settings, os.path.basename(preload[0]))):
                    seen, result = self.counts(program, settings, preload)
                    self.assertEqual(result.outcome, alone.outcome)
                    if preload[0] == library("beside_saver"):
                        self.assertEqual(seen, alone_counts)
        self.counts(program, dict(POOL, RMM_STATISTICS="json:" + path), [library("beside_saver"), support.SHIM])
        with open(path, encoding="utf-8") as file:
            self.assertIn('"pool"', file.read())


class Injected(support.Test):
    """CUDA_INJECTION64_PATH (nsys, CUPTI): the tool is loaded by the driver and traces the runtime's
    calls, so none may pass it by; that the runtime sees them all is test_door's."""

    def test_programs_under_a_tool(self):
        for name in ("sample_vector_runtime_shared", "sample_vector_runtime_static", "door_program"):
            for settings in SETTINGS:
                self.assert_same([support.program(name)], settings,
                                 more={"CUDA_INJECTION64_PATH": library("beside_dlsym")})


class ComputeSanitizer(support.Test):
    """It tells the processes that it runs by variables of its own."""

    def said(self, settings, variable="NV_SANITIZER_INJECTION_PORT_BASE"):
        command = [support.program("sample_vector_runtime_static")]
        result = run(command, settings, more={variable: "49152", "HOSTCUDA_DEVICES": "4"})
        self.assertEqual(result.outcome, support.run_plain(command).outcome)
        return result.said

    def test_what_it_cannot_see_is_said_once(self):
        for settings in (POOL, {"RMM_ARENA_SIZE": "256MiB"}, {"RMM_RESOURCE": "statistics(virtual)"},
                         {"RMM_RESOURCE": "fixed_size(cuda, block_size=1MiB)"},
                         {"RMM_POOL_SIZE_3": "1GiB"}):
            for variable in ("NV_SANITIZER_INJECTION_PORT_BASE", "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN"):
                said = self.said(settings, variable)
                self.assertEqual(len(said), 1, settings)
                self.assertIn("RMM_RESOURCE=cuda", said[0])

    def test_nothing_is_said_where_it_sees_all(self):
        for settings in ({}, {"RMM_RESOURCE": "cuda"}, {"RMM_STATISTICS": "json:/dev/null"}, {"RMM_MANAGED": "1"},
                         {"RMM_PINNED_POOL_SIZE": "64MiB"}):
            self.assertEqual(self.said(settings), [], settings)
        self.assertEqual(self.said(POOL, "NV_SANITIZER"), []) # without the tool


class Sanitized(support.Test):
    """A program that was built with a sanitizer, with its runtime first, and where it allows that, after."""

    def check(self, name, runtime, options):
        command = [support.program(name)]
        first = os.environ.get(runtime, "")
        orders = [[first, support.SHIM]] if first else [[support.SHIM]]
        if first and options:
            orders.append([support.SHIM])
        plain = run(command, preload=[])
        self.assertEqual(plain.status, 0, plain)
        for settings in SETTINGS:
            for preload in orders:
                more = options if len(preload) == 1 else {}
                result = run(command, settings, preload=preload, more=more)
                self.assertEqual(result.outcome, plain.outcome, "%s %s\n%s" % (settings, preload, result))

    @unittest.skipIf(support.PRELOAD_FIRST, "the library itself is built with one")
    def test_address(self):
        self.check("beside_asan", "ASAN_RUNTIME", {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"})

    @unittest.skipIf(support.PRELOAD_FIRST, "the library itself is built with one")
    def test_undefined(self):
        self.check("beside_ubsan", "", {})


if __name__ == "__main__":
    support.main()
