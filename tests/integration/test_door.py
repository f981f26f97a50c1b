# SPDX-License-Identifier: Apache-2.0
"""The runtime door: exported cudaMalloc and cudaFree serve at once what succeeds; everything else goes
to the runtime that the caller would have called without the library."""
import json
import os
import sys
import unittest

import support
from support import run

SETTINGS = [{}, {"RMM_POOL_SIZE": "256MiB"}, {"RMM_POOL_SIZE": "256MiB", "RMM_HOOKS": "device"},
            {"RMM_MANAGED": "1"}, {"RMM_POOL_MAX_SIZE": "1GiB", "RMM_BINNING": "256KiB-4MiB"}]
POOL = {"RMM_POOL_SIZE": "256MiB"}

# What door_use() calls: 200 pairs, then cudaMalloc 4 and cudaFree 6 times more.
MALLOCS, FREES = 204, 206


def library(name):
    return os.path.join(support.PROGRAMS, "lib%s.so" % name)


RUNTIMES = [library("door_runtime"), library("door_second_runtime"), "libcudart.so.13"]
PLUGINS = ["door_counting", "door_shared", "door_static", "door_second"]

# Loads a runtime twice at one place, as two versions, and prints where it was and what calls of each reached it.
RELOAD = """
import _ctypes, ctypes, os, sys
path, version = sys.argv[1], "DOOR_VERSION"
places = set()
for os.environ[version] in ("13000", "11080"):
    runtime = ctypes.CDLL(path)
    with open("/proc/self/maps", encoding="utf-8") as file:
        places.add(next(line.split("-")[0] for line in file if path in line))
    block = ctypes.c_void_p()
    for _ in range(100):
        assert not runtime.cudaMalloc(ctypes.byref(block), 4096) and not runtime.cudaFree(block)
    _ctypes.dlclose(runtime._handle)
print(len(places), flush=True)
"""


class Door(support.Test):
    def counts(self, command, settings, preload=None, **more):
        """What each counting library saw, and the run."""
        path = self.path("counts")
        if os.path.exists(path):
            os.unlink(path)
        result = run(command, settings, preload=preload, more=dict(more, DOOR_COUNTS=path))
        self.assertEqual(result.status, 0, result)
        seen = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    words = line.split()
                    seen[words[0]] = (int(words[1]), int(words[3]))
        return seen, result

    def test_same_answers_in_a_program(self):
        for settings in SETTINGS:
            for name in ("door_program", "door_program_shared", "door_program_static"):
                with self.subTest("%s under %s" % (name, settings)):
                    self.assert_same([support.program(name)], settings)
                    self.assert_same([support.program(name), "wrong"], settings)

    def test_same_answers_by_handle(self):
        program = support.program("door_program_by_handle")
        for runtime in RUNTIMES:
            for settings in SETTINGS:
                for word in ([], ["wrong"]):
                    with self.subTest("%s %s under %s" % (runtime, word, settings)):
                        self.assert_same([program] + word, settings, more={"DOOR_RUNTIME": runtime})

    def test_same_answers_in_libraries(self):
        for settings in SETTINGS:
            for way in ("use", "errors", "reload", "cross", "keep"):
                for names in [[name] for name in PLUGINS] + [PLUGINS, PLUGINS[::-1]]:
                    with self.subTest("%s %s under %s" % (way, names, settings)):
                        self.assert_same([support.program("door_host"), way] + [library(name) for name in names],
                                         settings)

    def test_same_answers_elsewhere(self):
        """From code that a library generates, and from a library without a runtime: by the runtime that was loaded first."""
        for settings in SETTINGS:
            for way in ("use", "errors", "reload", "cross", "keep"):
                for name in ("door_generated", "door_handed"):
                    with self.subTest("%s %s under %s" % (way, name, settings)):
                        self.assert_same([support.program("door_host"), way, library(name)], settings)

    def test_two_devices(self):
        """By each runtime, and by several in one process: the counting one knows one device only."""
        names = ["door_shared", "door_static", "door_second"]
        for settings in SETTINGS + [{"RMM_POOL_SIZE_0": "16MiB", "RMM_ARENA_SIZE_1": "64MiB"},
                                    {"RMM_POOL_SIZE_1": "16MiB"}, {"RMM_ASYNC": "1"}]:
            for chosen in [[name] for name in names] + [names, names[::-1]]:
                with self.subTest("%s under %s" % (chosen, settings)):
                    self.assert_same([support.program("door_host"), "devices"] + [library(name) for name in chosen],
                                     settings, more={"HOSTCUDA_DEVICES": "2"})

    @unittest.skipIf(support.PRELOAD_FIRST, "sanitizers refuse RTLD_DEEPBIND")
    def test_libraries_that_bind_past_us(self):
        """They run as without the library."""
        served = self.path("report.json")
        for settings in SETTINGS:
            for how in ("deepbind", "namespace"):
                for name in ("door_shared", "door_static", "door_second"):
                    for way in ("use", "keep"):
                        with self.subTest("%s %s %s under %s" % (way, name, how, settings)):
                            self.assert_same([support.program("door_host"), way, library(name)], settings,
                                             more={"DOOR_LOAD": how})
        for how, seen in (("", True), ("deepbind", False), ("namespace", False)):
            run([support.program("door_host"), "use", library("door_static")],
                dict(POOL, RMM_STATISTICS="json:" + served), more={"DOOR_LOAD": how})
            self.assertEqual(os.path.exists(served), seen, how) # past us indeed
            if seen:
                os.unlink(served)

    def test_serves_at_once(self):
        program = [support.program("door_program")]
        seen, _ = self.counts(program, POOL)
        # The first call starts CUDA; wrong ones and size 0 go on; nothing else does.
        self.assertLess(seen["runtime"][0], 10)
        self.assertLess(seen["runtime"][1], 10)
        self.assertGreater(seen["runtime"][0], 0)
        by_handle = [support.program("door_program_by_handle")]
        seen, _ = self.counts(by_handle, POOL, DOOR_RUNTIME=library("door_runtime"))
        self.assertLess(seen["runtime"][0], 10)
        self.assertLess(seen["runtime"][1], 10)
        self.assertGreater(seen["runtime"][0], 0)
        plugin = [support.program("door_host"), "use", library("door_counting")]
        seen, _ = self.counts(plugin, POOL)
        self.assertLess(seen["runtime"][0], 20)

    def test_forwards_all(self):
        """Where nothing is to be served at once the runtime sees every call."""
        program = [support.program("door_program")]
        for settings, more in (({}, {}), (dict(POOL, RMM_HOOKS="device"), {}),
                               (POOL, {"CUDA_INJECTION64_PATH": "/nowhere/tool.so"}),
                               (POOL, {"DOOR_VERSION": "11080"})):
            with self.subTest("%s %s" % (settings, more)):
                seen, _ = self.counts(program, settings, **more)
                self.assertEqual(seen["runtime"], (MALLOCS, FREES))
                seen, _ = self.counts([support.program("door_program_by_handle")], settings,
                                      DOOR_RUNTIME=library("door_runtime"), **more)
                self.assertEqual(seen["runtime"], (MALLOCS, FREES))

    def test_another_runtime_at_the_same_place(self):
        """A version that is not served follows one that is."""
        path = self.path("counts")
        result = run([sys.executable, "-c", RELOAD, library("door_runtime")], POOL, more={"DOOR_COUNTS": path})
        self.assertEqual(result.outcome, (0, "1\n"), result)
        with open(path, encoding="utf-8") as file:
            first, second = (int(line.split()[1]) for line in file)
        self.assertLess(first, 10)
        self.assertEqual(second, 100)

    def test_only_runtimes_by_handle(self):
        """What another interposer answers for itself is not ours to replace."""
        program = [support.program("door_program_by_handle"), "open"]
        for name, owner in (("door_runtime", "librmmshim.so"), ("door_interposer", "libdoor_interposer.so")):
            result = run(program, POOL, more={"DOOR_RUNTIME": library(name), "DOOR_OWNER": "1"})
            self.assertEqual(result.stdout, "cudaMalloc is in %s\n" % owner)

    def test_a_failure_counts_once(self):
        """The runtime comes back with what the door has refused: one request, one failure, one row of the log."""
        settings = {"RMM_POOL_SIZE": "16MiB", "RMM_MANAGED_POOL_SIZE": "16MiB"}
        for name, more in [("door_program", {}), ("door_program_shared", {}), ("door_program_static", {})] + [
                ("door_program_by_handle", {"DOOR_RUNTIME": runtime}) for runtime in RUNTIMES]:
            with self.subTest("%s %s" % (name, more)):
                report, log = self.path("report.json"), self.path("log.csv")
                _, result = self.counts([support.program(name)], dict(settings, RMM_STATISTICS="json:" + report,
                                                                      RMM_LOG=log), **more)
                with open(report, encoding="utf-8") as file:
                    stacks = {stack["kind"]: {(counter["resource"], counter["name"]): counter["value"]
                                              for counter in stack["counters"]}
                              for stack in json.load(file)["devices"]}
                for kind in ("device", "managed"):
                    self.assertEqual(stacks[kind]["statistics", "failures"], 1, result)
                with open(log, encoding="utf-8") as file:
                    self.assertEqual(file.read().count("allocate failure"), 2, result)  # one of each kind

    def test_interposer_that_frees(self):
        """What an interposer between us and the runtime gives back serves the request that the door has refused."""
        result = run([support.program("door_program"), "kept"], {"RMM_POOL_MAX_SIZE": "64MiB"},
                     preload=[support.SHIM, library("door_interposer")], more={"DOOR_KEEPS": "1"})
        self.assertEqual(result.outcome, (0, "program: malloc of what is kept = 0\n"), result)

    def test_interposer_before_us(self):
        program = [support.program("door_program")]
        interposer = library("door_interposer")
        plain = run(program, preload=[interposer])
        for settings in SETTINGS:
            seen, result = self.counts(program, settings, preload=[interposer, support.SHIM])
            self.assertEqual(result.outcome, plain.outcome, settings)
            self.assertEqual(seen["interposer"], (MALLOCS, FREES))

    def test_interposer_after_us(self):
        program = [support.program("door_program")]
        interposer = library("door_interposer")
        plain = run(program, preload=[interposer])
        for settings in SETTINGS:
            seen, result = self.counts(program, settings, preload=[support.SHIM, interposer])
            self.assertEqual(result.outcome, plain.outcome, settings)
            # What is forwarded passes through it, as it would without us.
            self.assertEqual(seen["interposer"], seen["runtime"], settings)
        seen, _ = self.counts(program, POOL, preload=[support.SHIM, interposer], CUDA_INJECTION64_PATH="/nowhere")
        self.assertEqual(seen["interposer"], (MALLOCS, FREES))

    def test_interposer_under_a_library(self):
        command = [support.program("door_host"), "use", library("door_shared")]
        interposer = library("door_interposer")
        plain = run(command, preload=[])
        self.assertEqual(plain.status, 0, plain)
        for preload in ([support.SHIM, interposer], [interposer, support.SHIM]):
            # The interposer alone finds no next cudaMalloc there; the library must not do worse.
            alone = run(command, preload=[interposer])
            if alone.status == 0:
                self.assertEqual(run(command, POOL, preload=preload).outcome, alone.outcome, preload)


if __name__ == "__main__":
    support.main()
