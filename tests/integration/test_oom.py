# SPDX-License-Identifier: Apache-2.0
"""The report at out-of-memory (RMM_ON_OOM): written at once, once for each device, and the program goes on."""
import os
import re
import sys

import json_schema
import support
from support import run

MIB = 1 << 20
DEVICE = {"HOSTCUDA_MEMORY": "128MiB"}

# Asks through the driver, from a function that the report can name.
PYTHON = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def begin(device):
    context = ctypes.c_void_p()
    assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    assert not cuda.cuCtxSetCurrent(context)
def ask_for(mib):
    block = ctypes.c_uint64()
    print(mib, cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(mib << 20)), flush=True)
    return block
"""


class OutOfMemory(support.Test):
    def steps(self, on_oom, *steps, refused, **settings):
        """A run whose requests of `refused` MiB are refused, and no other."""
        result = run([support.program("memory_steps"), *steps], dict(settings, RMM_ON_OOM=on_oom), more=DEVICE)
        self.assertEqual((result.status, [line.split()[1] for line in result.stdout.splitlines()]),
                         (0, ["%d:" % mib for mib in refused]), str(result))
        return result

    def reports(self, *steps, refused, **settings):
        """What json:PATH has, a document for each line."""
        path = self.path("oom.json")
        result = self.steps("json:" + path, *steps, refused=refused, **settings)
        self.assertEqual([line for line in result.said if "leaked" not in line], [], str(result))
        with open(path, encoding="utf-8") as file:
            return [json_schema.check(line, "oom.json") for line in file]

    def python(self, script, on_oom="text", devices=1, **settings):
        result = run([sys.executable, "-c", PYTHON + script], dict(settings, RMM_ON_OOM=on_oom),
                     more=dict(DEVICE, HOSTCUDA_DEVICES=str(devices), HOSTCUDA_SCHEDULE="stepped"))
        self.assertEqual(result.status, 0, str(result))
        return result


class Text(OutOfMemory):
    def test_below_a_limit(self):
        result = self.steps("text", "device", "20", "free", "device", "30", "device", "1", "managed", "5", "device",
                            "50", refused=[50], RMM_RESOURCE="pool(cuda)", RMM_LIMIT="64MiB")
        self.assertRegex(support.without_neighbours(result.stderr), re.compile(
            r"\Armmshim\[\d+\]: out of memory on GPU 0: 50\.0 MiB refused by the 64\.0 MiB limit \(RMM_LIMIT\): "
            r"36\.0 MiB used, 1\.00 MiB cached, largest cached piece 1\.00 MiB; the GPU has \S+ MiB of 128 MiB free -> "
            r"raise --limit \(RMM_LIMIT\), or add --fallback managed \(RMM_FALLBACK\)\n"
            r"  asked at\n(    .*memory_steps\+0x.*\n)(    .*\n)*"
            r"  31\.0 MiB in 2 blocks, allocated by memory_steps\n"
            r"    30\.0 MiB in 1 block of 30\.0 MiB\n"
            r"    1\.00 MiB in 1 block of 1\.00 MiB\n"
            r"  6\.00 MiB not served by rmmshim: managed memory\n\Z"))

    def test_full_device(self):
        result = self.steps("text", "device", "40", "device", "33", "device", "10", "device", "10", "device", "100",
                            refused=[100])
        self.assertIn("100 MiB refused by the driver: the GPU has ", result.said[0])
        self.assertIn(" free; 93.0 MiB used -> use less memory at a time, or end other processes on the GPU, or add "
                      "--fallback",
                      result.said[0])
        self.assertNotIn("limit", result.said[0])
        self.assertIn("\n    73.0 MiB in 2 blocks of 33.0 MiB to 40.0 MiB\n    20.0 MiB in 2 blocks of 10.0 MiB\n",
                      result.stderr)

    def test_an_arena_without_room(self):
        result = self.steps("text", "device", "40", "device", "25", refused=[25], RMM_ARENA_SIZE="64MiB")
        self.assertIn("40.0 MiB used, 24.0 MiB cached, largest cached piece 24.0 MiB -> raise the maximum size (for "
                      "example RMM_POOL_MAX_SIZE or RMM_ARENA_SIZE)",
                      result.said[0])

    def test_once_for_each_device(self):
        result = self.python("for device in 0, 1, 0:\n    begin(device)\n    ask_for(200)\n    ask_for(500)\n",
                             devices=2)
        self.assertEqual([line[:40] for line in result.said], [
            "out of memory on GPU 0: 200 MiB refused ", "out of memory on GPU 1: 200 MiB refused "], str(result))

    def test_pinned_memory_is_for_itself(self):
        result = self.steps("text", "pinned", "5", "device", "3", "pinned", "20", "device", "200", "pinned", "30",
                            refused=[20, 200, 30], RMM_PINNED_RESOURCE="limiting(pool(pinned), limit=10MiB)",
                            RMM_RESOURCE="pool(cuda)")
        self.assertEqual([line.split(" refused")[0] for line in result.said],
                         ["out of memory: 20.0 MiB of pinned memory", "out of memory on GPU 0: 200 MiB"], str(result))
        pinned, device = result.stderr.split("out of memory")[1:]
        self.assertIn("  5.00 MiB in 1 block of 5.00 MiB, allocated by memory_steps\n", pinned)
        self.assertNotIn("3.00 MiB in", pinned)
        self.assertIn("  3.00 MiB in 1 block of 3.00 MiB, allocated by memory_steps\n", device)
        self.assertNotIn("5.00 MiB in", device)

    def test_managed_memory_counts_as_the_device_s(self):
        result = self.steps("text", "managed", "20", "device", "10", "managed", "50", refused=[50], RMM_LIMIT="64MiB",
                            RMM_MANAGED_RESOURCE="pool(managed)")
        self.assertEqual(len(result.said), 1)
        self.assertIn("GPU 0: 50.0 MiB of managed memory refused by the 64.0 MiB limit (RMM_LIMIT): 30.0 MiB used", result.said[0])
        self.assertIn("\n  20.0 MiB in 1 block of 20.0 MiB, allocated by memory_steps\n  10.0 MiB in 1 block of 10.0 MiB, "
                      "allocated by memory_steps\n", result.stderr)

    def test_what_no_stack_serves(self):
        result = self.steps("text", "device", "50", "device", "60", refused=[60], RMM_HOOKS="pinned",
                            RMM_LIMIT="64MiB")
        self.assertIn("60.0 MiB refused by the 64.0 MiB limit (RMM_LIMIT): 50.0 MiB used", result.said[0])
        self.assertIn("\n  50.0 MiB not served by rmmshim: allocated by the driver's cuMemAlloc\n", result.stderr)

    def test_stream_ordered_memory(self):
        result = self.steps("text", "device", "10", "ordered", "60", refused=[60], RMM_LIMIT="64MiB")
        self.assertIn("60.0 MiB refused by the 64.0 MiB limit (RMM_LIMIT): 10.0 MiB used", result.said[0])

    def test_a_graph_s_node(self):
        """Refused by the limit, and by the device."""
        ways = (60, {"RMM_LIMIT": "64MiB"}), (200, {"RMM_POOL_SIZE": "0"})
        for call, (refused, settings) in support.pairs(("node", "any_node", "any_node_v2", "any_node_v3"), ways):
            with self.subTest(call, settings=settings):
                result = self.steps("text", "device", "10", call, str(refused), refused=[refused],
                                    HOSTCUDA_DRIVER_VERSION="13040", **settings)
                self.assertIn("out of memory on GPU 0: %d" % refused, result.stderr)
                self.assertIn("10.0 MiB used", result.said[0])

    def test_freed_memory_that_the_gpu_still_uses(self):
        result = self.python("begin(0)\nblock = ask_for(30)\n"
                             "cuda.cuMemsetD8Async(block, 0, ctypes.c_size_t(1 << 20), None)\n"
                             "cuda.cuMemFree_v2(block)\nask_for(100)\nsys.stdout.flush()\nos._exit(0)\n",
                             RMM_RESOURCE="pool(cuda)", RMM_LIMIT="64MiB")
        self.assertIn("nothing used, 30.0 MiB freed but perhaps still in use by the GPU", result.said[0])

    def test_free_memory_in_pieces(self):
        result = self.python("begin(0)\nblocks = [ask_for(20) for _ in range(3)]\ncuda.cuMemFree_v2(blocks[0])\n"
                             "cuda.cuMemFree_v2(blocks[2])\ncuda.cuCtxSynchronize()\nask_for(35)\n",
                             RMM_POOL_SIZE="60MiB", RMM_POOL_MAX_SIZE="60MiB")
        self.assertIn("40.0 MiB cached, largest cached piece 20.0 MiB", result.said[0])
        self.assertIn("or use --resource virtual, which can serve a large request from several free pieces", result.said[0])

    def test_python_s_line(self):
        result = self.python("begin(0)\ndef train():\n    return ask_for(200)\ntrain()\n")
        self.assertRegex(result.stderr, r"  asked at\n    <string>:\d+ in ask_for\n    <string>:\d+ in train\n")

    def test_the_longest_python_line(self):
        for line_bytes in (1023, 1024, 1025, 2048):
            with self.subTest(line_bytes):
                result = self.python("begin(0)\nblock, size = ctypes.c_uint64(), ctypes.c_size_t(1 << 20)\n"
                                     "cuda = ctypes.PyDLL('libcuda.so.1')\n"
                                     "line = 'cuda.cuMemAlloc_v2(ctypes.byref(block), size)'\n"
                                     "exec(compile(line, 'f' * %d, 'exec'))\n"
                                     "ask_for(200)\n" % (line_bytes - len(":1 in <module>")), RMM_TRACKING="1")
                self.assertEqual("1 block, allocated at\n    ffff" in result.stderr, line_bytes <= 1024, str(result))

    def test_holders_by_call_site(self):
        result = self.python("begin(0)\ndef small():\n    ask_for(10)\ndef large():\n    ask_for(40)\n"
                             "small(), small(), large(), ask_for(100)\n", RMM_TRACKING="1")
        report = result.stderr.split("leaked")[0]
        self.assertRegex(report, re.compile(
            r"  40\.0 MiB in 1 block, allocated at\n    <string>:\d+ in ask_for\n    <string>:\d+ in large\n.*"
            r"  20\.0 MiB in 2 blocks, allocated at\n    <string>:\d+ in ask_for\n    <string>:\d+ in small\n", re.S))
        self.assertNotIn(" of 10.0 MiB", report)

    def test_tracking_without_call_sites(self):
        result = self.steps("text", "device", "10", "device", "200", refused=[200], RMM_TRACKING="0",
                            RMM_RESOURCE="tracking(pool(cuda))")
        self.assertIn("  10.0 MiB in 1 block of 10.0 MiB, allocated by memory_steps\n", result.stderr)

    def test_many_holders(self):
        """Eight are named."""
        script = "".join("def f%d():\n    block = ctypes.c_uint64()\n    cuda.cuMemAlloc_v2(ctypes.byref(block), "
                         "ctypes.c_size_t(4096 << %d))\nf%d()\n" % (i, i, i) for i in range(12))
        result = self.python("begin(0)\n" + script + "ask_for(200)\n", RMM_TRACKING="1")
        holders = re.findall(r"^  .* in \d+ (?:more )?block.*$", result.stderr.split("leaked")[0], re.M)
        self.assertEqual(len(holders), 9, str(result))
        self.assertEqual((holders[0], holders[8]),
                         ("  8.00 MiB in 1 block, allocated at", "  and 60.0 KiB in 4 more blocks"))


class Json(OutOfMemory):
    def test_by_library(self):
        report, = self.reports("device", "20", "free", "device", "30", "device", "17", "device", "1", "device", "50",
                               "device", "60", refused=[50, 60], RMM_RESOURCE="pool(cuda)", RMM_LIMIT="64MiB")
        numbers = {name: report[name] for name in ("device", "asked", "limit", "job_limit", "used", "waiting", "total")}
        self.assertEqual(numbers, {"device": 0, "asked": 50 * MIB, "limit": 64 * MIB, "job_limit": 0,
                                   "used": 48 * MIB, "waiting": 0, "total": 128 * MIB})
        self.assertEqual(report["holders"], [{
            "kind": "device", "bytes": 48 * MIB, "blocks": 3, "library": "memory_steps", "sizes": [
                {"bytes": 47 * MIB, "blocks": 2, "smallest": 17 * MIB, "largest": 30 * MIB},
                {"bytes": MIB, "blocks": 1, "smallest": MIB, "largest": MIB}]}])
        self.assertEqual((report["by"], report["more"]), ("library", {"bytes": 0, "blocks": 0}))
        self.assertIn("memory_steps", [frame["object"] for frame in report["asked_at"]["frames"]])

    def test_by_call_site(self):
        report, = self.reports("device", "30", "device", "17", "device", "100", refused=[100], RMM_TRACKING="1")
        holder, = report["holders"]
        self.assertEqual((report["by"], holder["bytes"], holder["blocks"]), ("call_site", 47 * MIB, 2))
        self.assertEqual(holder["frames"][0]["object"], "memory_steps")

    def test_a_line_for_each_device(self):
        path = self.path("oom.json")
        self.python("for device in 0, 1, 0:\n    begin(device)\n    ask_for(200)\n", "json:" + path, 2)
        with open(path, encoding="utf-8") as file:
            reports = [json_schema.check(line, "oom.json") for line in file]
        self.assertEqual([report["device"] for report in reports], [0, 1])

    def test_nothing_refused_leaves_no_file(self):
        self.steps("json:" + self.path("oom.json"), "device", "10", refused=[])
        self.assertEqual(os.listdir(self.folder), [])


class Setting(OutOfMemory):
    def test_a_word_that_is_none(self):
        for text, said in (("jsn:x", "^jsn:x: unknown value; did you mean 'json'?"),
                           ("nne", "^nne: unknown value; did you mean 'none'?"),
                           ("prom:x", "^prom:x: expected text, text:PATH, json:PATH or none"),
                           ("json:", "json:^: a path is missing")):
            with self.subTest(text):
                result = run([support.program("memory_steps"), "device", "1"], {"RMM_ON_OOM": text}, more=DEVICE)
                self.assertEqual((result.status, result.said), (78, ["RMM_ON_OOM=" + said]), str(result))

    def test_none_and_unset(self):
        for settings in ({}, {"RMM_ON_OOM": "none"}, {"RMM_ON_OOM": "0"}):
            result = run([support.program("memory_steps"), "device", "200"], dict(settings, RMM_RESOURCE="pool(cuda)"),
                         more=DEVICE)
            self.assertEqual((result.status, result.stderr), (0, ""), str(result))


if __name__ == "__main__":
    support.main()
