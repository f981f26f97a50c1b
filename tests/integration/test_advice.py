# SPDX-License-Identifier: Apache-2.0
"""The setting that would pool what a program has from the driver call by call, at the end of `rmmshim run` and from
`rmmshim doctor`.  TOOL is the command."""
import json
import os
import subprocess
import sys

import support
from support import run

TOOL = os.environ["TOOL"]
# Allocates and frees memory of a kind so often, or keeps it; then it waits for the end of stdin.
PROGRAM = """
import ctypes, sys
cuda, kind, count, frees = ctypes.CDLL("libcuda.so.1"), sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["frees"]
context, block, size, pitch = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(1000), ctypes.c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(block), size) == 0
for i in range(count):
    result = (cuda.cuMemHostAlloc(ctypes.byref(block), size, 0) if kind == "pinned" else
              cuda.cuMemAllocManaged(ctypes.byref(block), size, 1) if kind == "managed" else
              cuda.cuMemAllocPitch_v2(ctypes.byref(block), ctypes.byref(pitch), size, size, 4) if kind == "pitch" else
              cuda.cuMemAlloc_v2(ctypes.byref(block), size))
    assert result == 0
    if frees:
        assert (cuda.cuMemFreeHost if kind == "pinned" else cuda.cuMemFree_v2)(block) == 0
print("ready", flush=True)
sys.stdin.read()
"""
MANY = 4200
PINNED = "4,200 pinned allocations went to the driver one by one, which takes time"
PINNED_STEP = "add --pinned-pool-size 0, a pool that grows (RMM_PINNED_POOL_SIZE)"


class Advice(support.Test):
    def advised(self, options, *arguments):
        result = run([TOOL, "run", *options, sys.executable, "-c", PROGRAM, *map(str, arguments)], preload=[])
        self.assertEqual(result.status, 0, result)
        return [line.partition("): ")[2] for line in result.stderr.splitlines() if " -> " in line]

    def test_a_kind_that_no_pool_serves(self):
        for options in (["--pool-size", "64MiB"], ["--pool-size", "64MiB", "--statistics", "text:" + os.devnull],
                        ["--limit", "1GiB"]):
            self.assertIn("%s -> %s" % (PINNED, PINNED_STEP), self.advised(options, "pinned", MANY, "frees"), options)
        self.assertEqual(self.advised(["--pool-size", "1MiB"], "managed", MANY, "frees"),
                         ["4,200 managed allocations went to the driver one by one, which takes time -> "
                          "add --managed-pool-size 0, a pool that grows (RMM_MANAGED_POOL_SIZE)"])
        device = ["4,201 device memory allocations went to the driver one by one, which takes time -> "
                  "add --pool-size 0, a pool that grows (RMM_POOL_SIZE)"]
        self.assertEqual(self.advised(["--limit", "1GiB"], "device", MANY, "frees"), device)
        for kind in ("device", "pitch"):
            self.assertEqual(self.advised(["--managed-pool-size", "0"], kind, MANY, "frees"), device, kind)

    def test_where_it_would_not_help(self):
        """A pool is there; few calls; nothing to be used again; a stack that the user has written."""
        for options, *arguments in ((["--pool-size", "64MiB", "--pinned-pool-size", "0"], "pinned", MANY, "frees"),
                                    (["--pool-size", "64MiB"], "pinned", 50, "frees"),
                                    (["--pool-size", "64MiB"], "pinned", MANY),
                                    (["--pool-size", "64MiB"], "device", MANY, "frees"),
                                    (["--profile", "fast"], "pinned", MANY, "frees"),
                                    (["--pool-size", "64MiB", "--framework-pools", "off"], "pinned", MANY, "frees"),
                                    (["--resource", "cuda"], "device", MANY, "frees"),
                                    (["--quiet", "--pool-size", "64MiB"], "pinned", MANY, "frees")):
            self.assertEqual(self.advised(options, *arguments), [], options)

    def test_of_a_process_that_runs(self):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, "pinned", str(MANY), "frees"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, env=support.environment({"RMM_POOL_SIZE": "64MiB"}), text=True)
        with process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            result = run([TOOL, "doctor", str(process.pid), "--json"], preload=[])
            process.stdin.close()
        self.assertEqual([finding["step"] for finding in json.loads(result.stdout)["findings"]
                          if finding["text"] == PINNED], [PINNED_STEP], result)

    def test_pinned_memory_without_the_frameworks_pools(self):
        """Whatever comes first; a setting about it stays."""
        off, shown = "--framework-pools=off", ["sh", "-c", "echo $RMM_PINNED_POOL_SIZE,$RMM_PINNED_RESOURCE"]
        for options, said in (([off], "0,"), ([], ","), ([off, "--pinned-pool-size", "2MiB"], "2MiB,"),
                              ([off, "--pinned-resource", "pinned"], ",pinned"), ([off, "--hooks", "device"], ","),
                              (["--pinned-resource", "pinned", off], ",pinned"), ([off, "--profile", "fast"], "64MiB,")):
            result = run([TOOL, "run", "--quiet", *options, *shown], preload=[])
            self.assertEqual(result.outcome, (0, said + "\n"), (options, result))


if __name__ == "__main__":
    support.main()
