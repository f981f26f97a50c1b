# SPDX-License-Identifier: Apache-2.0
"""RMM_PHASES=nvtx: ranges that a program pushes by NVTX 3 are phases."""
import importlib.util
import os
import sys
import unittest

import json_schema
import support
from support import SHIM, program, run

PYTHON = """
import ctypes, nvtx
cuda, block, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)

def use(size):
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)) == cuda.cuMemFree_v2(block) == 0

@nvtx.annotate("step", domain="mine")
def step():
    use(100)

with nvtx.annotate("epoch", color="blue"):
    use(1000)
    step()
    step()
nvtx.push_range("pushed")
use(7)
nvtx.pop_range()
print("done 0")
"""
PYTHON_EXPECTED = {"epoch": 1200, "mine/step": 200, "pushed": 7}
TOOL = os.environ.get("TOOL", "")
EXPECTED = {"before CUDA": 6187, "ascii": 6000, "(no message)": 2021, "event": 3000, "one/first": 120, "two/second": 23,
            "two/(no message)": 0}
ENTRIES = {"(no message)": 3}
NVTX = {"RMM_PHASES": "nvtx", "NVTX_INJECTION64_PATH": SHIM}


class Nvtx(support.Test):
    def reported(self, command, settings, **how):
        path = self.path("report.json")
        result = run(command, dict(settings, RMM_POOL_SIZE="8MiB", RMM_STATISTICS="json:" + path), **how)
        self.assertEqual((result.status, result.stdout), (0, "done 0\n"), result)
        self.said = result.said
        return json_schema.read(path, "statistics.json")

    def check(self, document):
        phases = {phase["name"]: phase for phase in document["phases"]}
        self.assertEqual({name: sum(memory["allocated_bytes"] for memory in phase["memory"])
                          for name, phase in phases.items()}, EXPECTED)
        self.assertEqual({name: (phase["entries"], phase["open"]) for name, phase in phases.items()},
                         {name: (ENTRIES.get(name, 1), 0) for name in EXPECTED})

    def test_ranges(self):
        for more in ([], ["pops"], ["fork"]):
            with self.subTest(more):
                self.check(self.reported([program("nvtx_ranges")] + more, NVTX))
                self.assertEqual(self.said, [])

    def test_many_strings(self):
        """Each string has one handle, and those beyond 1024 share one."""
        result = run([program("nvtx_ranges"), "many"], dict(NVTX, RMM_POOL_SIZE="8MiB"))
        self.assertEqual((result.outcome, result.said), ((0, "1 0 1\ndone 0\n"), []), result)

    def test_not_asked_for(self):
        """Without the variable, without settings, and in a child that has lost LD_PRELOAD."""
        document = self.reported([program("nvtx_ranges")], {"NVTX_INJECTION64_PATH": SHIM})
        self.assertNotIn("phases", document)
        self.assert_same([program("nvtx_ranges")], {"NVTX_INJECTION64_PATH": SHIM})
        alone = run([program("nvtx_ranges")], dict(NVTX, RMM_POOL_SIZE="a bad setting"), preload=[])
        self.assertEqual((alone.outcome, alone.stderr), ((0, "done 0\n"), ""), alone)

    def test_run(self):
        """`rmmshim run` says to NVTX where the library is, unless another tool has been named."""
        command = [TOOL, "run", "--quiet", "--phases", "nvtx", program("nvtx_ranges")]
        self.check(self.reported(command, {}, preload=[]))
        document = self.reported(command, {"NVTX_INJECTION64_PATH": "/nonexistent/tool.so"}, preload=[])
        self.assertNotIn("phases", document)

    def test_run_says_that_another_tool_has_them(self):
        result = run([TOOL, "run", "--quiet", "--phases", "nvtx", program("nvtx_ranges")],
                     {"NVTX_INJECTION64_PATH": "/nonexistent/tool.so"}, preload=[])
        self.assertIn("NVTX ranges go to that tool", result.stderr)


    @unittest.skipUnless(importlib.util.find_spec("nvtx"), "NVIDIA's package nvtx is not installed")
    def test_python(self):
        """Ranges of NVIDIA's package for Python, which has a copy of NVTX of its own."""
        document = self.reported([sys.executable, "-c", PYTHON], NVTX)
        phases = {phase["name"]: phase["memory"][0]["allocated_bytes"] for phase in document["phases"]
                  if phase["memory"]}
        self.assertEqual({name: phases.get(name) for name in PYTHON_EXPECTED}, PYTHON_EXPECTED, phases)


if __name__ == "__main__":
    support.main()
