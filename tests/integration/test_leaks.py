# SPDX-License-Identifier: Apache-2.0
"""Who holds memory, and who has not given it back: of processes that run, and of those that ended without a report.
TOOL is the command."""
import ctypes.util
import json
import os
import shutil
import signal
import subprocess
import sys

import json_schema
import support
from support import ENOUGH_SECONDS, run

TOOL = os.environ["TOOL"]
HOLDS = [support.program("debug_blocks_shared"), "holds"]
SITES = 4000
POOL = {"RMM_POOL_SIZE": "64MiB"}
TRACKED = dict(POOL, RMM_TRACKING="1")

# Allocates what its first argument says, and then does what the second one says.
PROGRAM = """\
import ctypes, os, signal, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")

def allocate(size):
    block = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    return block

context = ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
blocks = [allocate(int(size)) for size in sys.argv[1].split(",") if size]
exec(sys.argv[2])
"""
ORDERED = """
block, free, total = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemAllocAsync(ctypes.byref(block), ctypes.c_size_t(5 << 20), None) == 0
print("ready", flush=True)
for line in sys.stdin:
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print("called", flush=True)
"""
# Blocks of more call sites than are told apart; then it makes a call for each line of stdin.
MANY = """
for i in range(%d):
    exec(compile("allocate(512)", "<site %%d>" %% i, "exec"))
print("ready", flush=True)
for line in sys.stdin:
    cuda.cuMemFree_v2(allocate(100))
    print("called", flush=True)
""" % SITES
DOES_NOT_RUN_HANDLERS = "without running its exit handlers"


class Leaks(support.Test):
    def setUp(self):
        super().setUp()
        self.program = self.path("program.py")
        with open(self.program, "w", encoding="utf-8") as file:
            file.write(PROGRAM)

    def command(self, sizes, then):
        return [sys.executable, self.program, ",".join(map(str, sizes)), then]

    def under_run(self, then, settings=None, words=("--quiet",)):
        result = run([TOOL, "run", *words] + self.command([1 << 20, 1000], then), settings or TRACKED, preload=[])
        return result, [line for line in result.stderr.splitlines() if "leak" in line]


class Running(Leaks):
    """`rmmshim leaks`."""

    def start(self, command, settings):
        process = subprocess.Popen(command, env=support.environment(settings), text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(support.let_end, process)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def leaks(self, process, *words):
        return run([TOOL, "leaks", str(process.pid), *words], preload=[])

    def answer(self, process, *words):
        """What it lists while the process makes a call."""
        with open(self.path("said"), "w", encoding="utf-8") as said:  # a pipe would be full
            command = subprocess.Popen([TOOL, "leaks", str(process.pid), "--wait", str(ENOUGH_SECONDS), *words],
                                       env=support.environment(preload=[]), stdout=said, stderr=subprocess.STDOUT)
        while command.poll() is None:
            process.stdin.write("\n")
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), "called\n")
        with open(self.path("said"), encoding="utf-8") as file:
            said = file.read()
        self.assertEqual(command.returncode, 0, said)
        return said

    def asked(self, process):
        return self.answer(process).replace("[%d]" % process.pid, "[PID]").splitlines()

    def asked_json(self, process):
        report = json.loads(self.answer(process, "--json"))
        with open(os.path.join(json_schema.FOLDER, "holders.json"), encoding="utf-8") as file:
            self.assertEqual(json_schema.errors(report, json.load(file)), [])
        self.assertEqual(report["pid"], process.pid)
        return report["program"], report["devices"]

    def test_by_library_and_size(self):
        process = self.start(HOLDS, dict(POOL, RMM_PINNED_POOL_SIZE="1MiB"))
        said = self.asked(process)
        self.assertEqual(said[:4], ["debug_blocks_shared [PID] device 0: uses 781 KiB in 5 blocks",
                                    "  684 KiB in 4 blocks, allocated by debug_blocks_shared",
                                    "    586 KiB in 3 blocks of 195 KiB", "    97.7 KiB in 1 block of 97.7 KiB"])
        self.assertRegex(said[4], r"^  97.7 KiB in 1 block of 97.7 KiB, pinned memory, allocated by ")
        self.assertEqual(len(said), 5)
        program, (device,) = self.asked_json(process)
        self.assertEqual((program, device["device"], device["bytes"], device["blocks"]), ("debug_blocks_shared", 0, 800000, 5))
        self.assertEqual(device["holders"][0], {
            "kind": "device", "bytes": 700000, "blocks": 4, "library": "debug_blocks_shared", "sizes": [
                {"bytes": 600000, "blocks": 3, "smallest": 200000, "largest": 200000},
                {"bytes": 100000, "blocks": 1, "smallest": 100000, "largest": 100000}]})
        self.assertEqual((device["holders"][1]["kind"], device["holders"][1]["blocks"]), ("pinned", 1))
        self.assertEqual((device["complete"], device["more"]), (True, {"holders": 0, "bytes": 0, "blocks": 0}))

    def test_memory_that_no_stack_serves(self):
        process = self.start(self.command([1000], ORDERED), dict(POOL, RMM_LIMIT="1GiB"))
        said = self.asked(process)
        self.assertRegex(said[0], r"\[PID\] device 0: uses 1000 B in 1 block$")
        self.assertRegex(said[1], r"^  1000 B in 1 block of 1000 B, allocated by libffi")
        self.assertRegex(said[2], r"^  \S+ MiB not served by rmmshim: the driver's pools of cudaMallocAsync$")
        _, (device,) = self.asked_json(process)
        self.assertEqual([way for way, size in device["outside"].items() if size], ["stream_ordered"])

    def test_by_call_site(self):
        process = self.start(HOLDS, dict(TRACKED, RMM_PINNED_POOL_SIZE="1MiB", RMM_CONTROL="thread"))
        with open(HOLDS[0], "rb") as file:
            has_lines = shutil.which("addr2line") and b".debug_line" in file.read()
        result = self.leaks(process, "--wait", str(ENOUGH_SECONDS))  # which makes no call
        said = "\n".join(line for line in result.stdout.splitlines() if "cudaMalloc" not in line)
        self.assertEqual(result.status, 0, result)
        self.assertIn(": uses 781 KiB in 5 blocks\n", said)
        if ctypes.util.find_library("stdc++"):
            self.assertRegex(said, r"in \d blocks?, allocated at\n    app::train\(int\)")
        self.assertRegex(said, r"  97.7 KiB in 1 block, allocated at\n    forgets_one")
        self.assertRegex(said, r"  97.7 KiB in 1 block, pinned memory, allocated at\n    holds")
        self.assertNotIn("libcudart", said)
        device, = json.loads(self.leaks(process, "--json", "--wait", str(ENOUGH_SECONDS)).stdout)["devices"]
        self.assertEqual(sum(holder["bytes"] for holder in device["holders"]), 800000)
        self.assertEqual("holds" in [frame["function"] for holder in device["holders"] for frame in holder["frames"]], True)
        if has_lines:
            self.assertRegex(said, r"  586 KiB in 3 blocks, allocated at\n    \S+ at \S+/debug_blocks.c:\d+ \(debug_blocks_shared\)"
                                   r"\n    holds at \S+/debug_blocks.c:\d+ ")

    def test_python(self):
        process = self.start(self.command([1 << 20, 1000], MANY), TRACKED)
        said = self.asked(process)
        total = (1 << 20) + 1000 + 512 * SITES
        self.assertIn("[PID] device 0: uses %.2f MiB in %d blocks" % (total / (1 << 20), SITES + 2), said[0])
        text = "\n".join(said)
        self.assertRegex(text, r"1.00 MiB in 2 blocks, allocated at\n    \S+/program.py:6 in allocate\n    \S+/program.py:11 in ")
        self.assertRegex(text, r", from \d+ more places$")
        self.assertNotRegex(text, r"PyEval|\(python3|\(libpython|_start")
        self.assertNotIn("the end of the list is missing", text)
        _, (device,) = self.asked_json(process)
        self.assertEqual((device["bytes"], device["blocks"]), (total, SITES + 2))
        self.assertEqual((len(device["holders"]), device["complete"]), (256, True))
        self.assertEqual(sum(part["bytes"] for part in device["holders"] + [device["more"]]), total)
        site = next(holder for holder in device["holders"] if holder["bytes"] == (1 << 20) + 1000)
        self.assertRegex("\n".join(site["python"]), r"/program.py:6 in allocate\n\S+/program.py:11 in ")
        self.assertIn("PyEval", "".join(frame["function"] for frame in site["frames"]))

    def test_a_process_that_makes_no_call(self):
        """It says so in time, and the process is as it was."""
        process = self.start(HOLDS, TRACKED)
        result = self.leaks(process, "--wait", "0.05")
        self.assertEqual((result.status, result.stdout), (3, ""), result)
        self.assertIn("did not answer in time, so its memory on device 0 is not listed: it answers at calls such as cudaMalloc; try a longer",
                      result.stderr)
        self.assertIn("uses 684 KiB in 4 blocks", self.asked(process)[0])
        process.send_signal(signal.SIGSTOP)
        self.assertEqual(self.leaks(process, "--wait", "0.05").status, 3)
        process.send_signal(signal.SIGCONT)
        self.assertIn("uses 684 KiB in 4 blocks", self.asked(process)[0])
        process.communicate()
        self.assertEqual(process.returncode, 0)

    def test_no_process(self):
        for words, code, said in ((["x"], 2, "'x' is no"), ([], 2, "no process"), ([str(os.getpid())], 1, "process"),
                                  (["1", "2"], 2, "unexpected argument")):
            result = run([TOOL, "leaks", *words], preload=[])
            self.assertEqual((result.status, result.stdout), (code, ""), result)
            self.assertIn(said, result.stderr)


class AtTheEnd(Leaks):
    def test_more_call_sites_than_are_listed(self):
        """What is not listed is counted, as text and as JSON."""
        path = self.path("leaks.json")
        result = run(self.command([], MANY), TRACKED)
        self.assertRegex(result.stderr, r"^rmmshim\[\d+\]: python\S*, device 0: leaked 768 KiB in 1536 blocks from 1536 call "
                         r"sites\n")
        lines = result.stderr.splitlines()
        self.assertEqual(sum(line.endswith(", allocated at") for line in lines), 32)
        self.assertEqual(lines[-2], "  752 KiB in 1504 blocks from 1504 more call sites")
        self.assertRegex(lines[-1], r"^rmmshim\[\d+\]: python\S*: also leaked 1.20 MiB in 2464 blocks from further call sites$")
        result = run(self.command([], MANY), dict(TRACKED, RMM_TRACKING="json:" + path))
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        report = json_schema.read(path, "leaks.json")
        leak, = report["leaks"]
        self.assertEqual((leak["bytes"], leak["blocks"], len(leak["call_sites"])), (1536 * 512, 1536, 256))
        self.assertEqual(leak["more"], {"call_sites": 1280, "bytes": 1280 * 512, "blocks": 1280})
        self.assertEqual(report["others"], {"bytes": (SITES - 1536) * 512, "blocks": SITES - 1536})

    def test_a_report_that_could_not_be_written(self):
        """It is said, with the reason."""
        for then, why in (("os.kill(os.getpid(), signal.SIGKILL)", r"it was ended by signal 9 \(Killed\)"),
                          ("os.kill(os.getpid(), signal.SIGTERM)", r"it was ended by signal 15 \(Terminated\)"),
                          ("os._exit(0)", "it ended by _exit or exec, " + DOES_NOT_RUN_HANDLERS),
                          ("os.execv('/bin/true', ['true'])", "it ended by _exit or exec, " + DOES_NOT_RUN_HANDLERS)):
            for settings in (TRACKED, dict(POOL, RMM_TRACKING="json:" + self.path("%p.json"))):
                with self.subTest(then):
                    _, lines = self.under_run(then, settings)
                    self.assertEqual(len(lines), 1, lines)
                    self.assertRegex(lines[0], r"^rmmshim: program\.py \(pid \d+\) wrote no leak report, because %s; by its counters, it "
                                               r"did not free 1.00 MiB in 2 blocks$" % why)

    def test_of_a_process_that_the_program_started(self):
        then = "subprocess.run([sys.executable, sys.argv[0], '5000', 'os.kill(os.getpid(), signal.SIGKILL)'])"
        result, lines = self.under_run("blocks.clear(); " + then)
        self.assertRegex(lines[-1], r"^rmmshim: program\.py \(pid \d+\) wrote no leak report, because it ended by a signal, _exit or "
                                    r"exec, %s; by its counters, it did not free 4.88 KiB in 1 block$" % DOES_NOT_RUN_HANDLERS, result)

    def test_nothing_is_missing(self):
        for then, settings in (("pass", TRACKED), ("sys.exit(3)", TRACKED), ("os._exit(0)", POOL)):
            result, lines = self.under_run(then, settings)
            self.assertEqual([line for line in lines if "no leak report" in line], [], result)

    def test_the_interpreter_is_left_out(self):
        """Of the text: Python's own lines say more."""
        _, lines = self.under_run("pass")
        self.assertEqual(len(lines), 1, lines)
        result = run(self.command([1000], "pass"), TRACKED)
        sites = [line.strip() for line in result.stderr.splitlines() if line.startswith("    ")]
        self.assertRegex(sites[0], r"/program.py:6 in allocate$", result)
        self.assertGreater(len(sites), 3, result)
        for site in sites[1:]:
            self.assertNotRegex(site, r"PyEval|\(python3|\blibpython|libc\.so|_start", result)


if __name__ == "__main__":
    support.main()
