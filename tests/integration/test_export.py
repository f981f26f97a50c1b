# SPDX-License-Identifier: Apache-2.0
"""`rmmshim export`: each format, read by what it is for where that is installed (scripts/setup): Perfetto's protos, and
PyTorch's _memory_viz.py.  TOOL is the command."""
import json
import os
import pickle
import pickletools
import re
import subprocess
import sys
import unittest

import support
from recordings import CHUNK_BYTES, EVENT_BYTES, HEADER_BYTES, MARK, NAME, REFUSED, STACK_GONE, THREAD, Recording
from support import run
from test_report import EVIL, LOG, MIB, PROGRAM, SECOND, document_of, training

TOOL = os.environ["TOOL"]
HERE = os.path.dirname(os.path.abspath(__file__))
READERS = os.path.join(HERE, "..", "..", ".venv", "export")
PYTHON = os.path.join(READERS, "bin", "python3")
MEMORY_VIZ = os.path.join(READERS, "memory_viz.py")
BEGUN = 1_700_000_000 * SECOND  # of recordings that are made up; in UTC at 22:13:20
FORMATS = ("perfetto", "pytorch", "csv", "folded")

# What MemoryViz.js reads, the page of https://pytorch.org/memory_viz.
OPS = {"PROTO", "APPEND", "APPENDS", "LIST", "TUPLE", "NEWFALSE", "NEWTRUE", "NONE", "BINGET", "BININT", "BININT1", "BININT2",
       "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "SETITEMS",
       "SETITEM", "DICT", "SHORT_BINUNICODE", "BINUNICODE", "STOP", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINFLOAT"}


class Export(support.Test):
    def export(self, form, *words, **how):
        return run([TOOL, "export", "--format", form, *words], preload=[], **how)

    def made(self, recording, name="a.rec"):
        return recording.write(self.path(name))

    def text(self, form, *recordings):
        result = self.export(form, *[self.made(one, "%d.rec" % i) for i, one in enumerate(recordings)],
                             settings={"TZ": "UTC"})
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        return result.stdout

    def file(self, form, *files):
        path = self.path("out." + form)
        result = self.export(form, *files, "-o", path)
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "", ""), result)
        return path

    def trace(self, *files):
        if not os.path.exists(PYTHON):
            raise unittest.SkipTest("without Perfetto's protos (scripts/setup)")
        result = subprocess.run([PYTHON, os.path.join(HERE, "perfetto_events.py"), self.file("perfetto", *files)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        return json.loads(result.stdout)

    def snapshot(self, path):
        with open(self.file("pytorch", path), "rb") as file:
            data = file.read()
        names = [op.name for op, _, _ in pickletools.genops(data)]
        self.assertLessEqual(set(names), OPS)
        self.assertLess(max(map(len, re.findall("A?i*", "".join(  # that a list takes at a time
            {"APPENDS": "A", "SETITEMS": "i"}.get(name, "") for name in names)))), 1100)
        return pickle.loads(data)

    def refused(self, form, *words, status=1, says):
        result = self.export(form, *words)
        self.assertEqual(result.status, status, result)
        self.assertRegex(result.stderr, r"^rmmshim: [^\n]*%s[^\n]*\n$" % says)
        return result


class Csv(Export):
    def test_rows(self):
        recording = Recording()
        recording.allocate(250_000, 0x7f00_0000_1000, 1000, thread=7)
        recording.add(REFUSED, SECOND, 0, 80 * MIB, thread=8)
        recording.free(59 * SECOND, 0x7f00_0000_1000, 1000, thread=7)
        self.assertEqual(self.text("csv", recording), """\
Thread,Time,Action,Pointer,Size,Stream
7,22:13:20.000250,allocate,0x7f0000001000,1000,0
8,22:13:21.000000,allocate failure,(nil),83886080,0
7,22:14:19.000000,free,0x7f0000001000,1000,0
""")

    def test_both_ways(self):
        path = self.path("log.csv")
        with open(path, "w", encoding="ascii") as file:
            file.write(LOG)
        again = LOG.replace("0x0\n", "0\n").replace("0x7f0000001000,500,0\n", "0x7f0000001000,500,0x55d0deadbeef\n")
        for zone in "UTC", "Pacific/Auckland", "America/New_York":
            result = self.export("csv", path, settings={"TZ": zone})
            self.assertEqual((result.outcome, result.stderr), ((0, again), ""))

    def test_it_says_what_the_recording_says(self):
        path, out = self.made(training()), self.path("o.html")
        says = []
        for file in path, self.file("csv", path):
            self.assertEqual(run([TOOL, "report", file, "-o", out], preload=[]).status, 0)
            run_, = document_of(out)["runs"]
            series, = run_["series"]
            says.append([series[key] for key in ("peak_used", "end_used", "allocations", "frees", "end_blocks")]
                        + [run_["refusals"]["count"]])
        self.assertEqual(says[0], says[1])

    def test_each_free_has_an_allocation(self):
        recording = Recording(lost=3)
        recording.free(5, 0x1000, 512)  # its allocation is lost
        recording.allocate(6, 0x2000, 256)
        recording.allocate(7, 0x2000, 128)  # the free in between is lost
        recording.allocate(8, 0x3000, 64, device=1)
        recording.add(STACK_GONE, 9)
        recording.free(10, 0x2000, 128)  # ended with its context
        rows = [row.split(",", 2)[2] for row in self.text("csv", recording).splitlines()[1:]]
        self.assertEqual(rows, ["allocate,0x1000,512,0", "free,0x1000,512,0", "allocate,0x2000,256,0", "free,0x2000,256,0",
                                "allocate,0x2000,128,0", "allocate,0x3000,64,0", "free,0x2000,128,0"])


class Folded(Export):
    def test_what_made_the_peak(self):
        self.assertEqual(self.text("folded", training(), training("b.py", 4712)), "".join("""\
{0};device 0;train.py:7 in step;forward+0x10 (model.so+0x510) 8388608
{0};device 0;train.py:7 in step;cache+0x20 (model.so+0x620) 4194304
{0};device 0;(no call site was recorded) 3145728
""".format(name) for name in ("train.py [4711]", "b.py [4712]")))

    def test_each_device_has_its_own_peak(self):
        recording = Recording()
        recording.allocate(1, 0x1000, 100, definition=recording.site("a"))
        recording.free(2, 0x1000, 100)
        recording.allocate(3, 0x2000, 50, device=1, definition=recording.site("b"))
        recording.allocate(4, 0x3000, 25, memory=1, definition=recording.site("c"))
        self.assertEqual(self.text("folded", recording).splitlines(), [
            "made-up [4711];device 0;a 100", "made-up [4711];device 1;b 50", "made-up [4711];device 0, pinned memory;c 25"])

    def test_a_frame_has_no_semicolon_and_no_line_end(self):
        recording = Recording("a;b")
        recording.allocate(1, 0x1000, 100, definition=recording.site("one;two", "three\nfour 5"))
        self.assertEqual(self.text("folded", recording), "a:b [4711];device 0;three?four 5;one:two 100\n")


class Perfetto(Export):
    def test_counters(self):
        counters = self.trace(self.made(training()))["counters"]
        name = "train.py [4711], device 0: "
        self.assertEqual(set(counters), {name + what for what in ("used", "held", "limit")})
        self.assertEqual(counters[name + "held"], [[BEGUN + 1, 16 * MIB], [BEGUN + 4 * SECOND + 2500, 32 * MIB]])
        self.assertEqual([value for _, value in counters[name + "limit"]], [64 * MIB] * 2)
        used = counters[name + "used"]
        self.assertEqual(used[:3], [[BEGUN + SECOND // 2, 3 * MIB], [BEGUN + SECOND + 1000, 7 * MIB], [BEGUN + SECOND + 2000, 8 * MIB]])
        self.assertEqual((len(used), max(used, key=lambda point: point[1])), (16, [BEGUN + 4 * SECOND + 2000, 15 * MIB]))

    def test_phases_marks_and_refusals(self):
        found = self.trace(self.made(training()))
        self.assertEqual(found["slices"], [[4711, 1, BEGUN + step * SECOND, "step", BEGUN + step * SECOND + 9000] for step in range(1, 6)])
        self.assertEqual(found["instants"], [[4711, 1, BEGUN + 7 * SECOND, "refused", {"bytes": 80 * MIB}],
                                             [4711, 1, BEGUN + 8 * SECOND, "saved", {}]])

    def test_threads(self):
        recording = Recording()
        recording.define(THREAD, "worker \u540d", 77)
        recording.end(1, "before", thread=77)  # it began before the recording
        recording.begin(2, "outer", thread=77)
        recording.begin(3, "other", thread=78)
        recording.begin(4, "inner", thread=77)
        recording.end(5, "inner", thread=77)
        recording.end(6, "outer", thread=77)
        recording.end(7, "outer", thread=77)  # and once too often
        found = self.trace(self.made(recording))
        self.assertEqual(found["threads"], {"77": [4711, "worker \u540d"], "78": [4711, ""]})
        self.assertEqual(found["slices"], [[4711, 77, BEGUN + 2, "outer", BEGUN + 6], [4711, 78, BEGUN + 3, "other", None],
                                           [4711, 77, BEGUN + 4, "inner", BEGUN + 5]])

    def test_devices_and_kinds_of_memory(self):
        recording = Recording()
        for device, memory in ((0, 0), (0, 1), (0, 2), (255, 0)):
            recording.allocate(1, 0x1000 * (1 + device + memory), 512, device=device, memory=memory)
        recording.held(2, 1024, 0)
        recording.held(3, 1024, 4096)
        recording.held(4, 1024, 0)  # the limit is lifted
        counters = self.trace(self.made(recording))["counters"]
        self.assertEqual({name.partition(", ")[2]: [value for _, value in points] for name, points in counters.items()}, {
            "device 0: used": [512], "device 0, pinned memory: used": [512], "device 0, managed memory: used": [512],
            "device 255: used": [512], "device 0: held": [1024] * 3, "device 0: limit": [4096, 0]})

    def test_processes_side_by_side(self):
        """Also those of two hosts, with one ID, and a log, which has none."""
        with open(self.path("log.csv"), "w", encoding="ascii") as file:
            file.write(LOG)
        files = [self.made(training("a.py", 100), "a"), self.made(training("b.py", 100), "b"), self.path("log.csv")]
        found = self.trace(*files)
        self.assertEqual(sorted(found["processes"].values()), ["a.py [100]", "b.py [100]", "log.csv"])
        self.assertEqual(found["processes"]["100"], "a.py [100]")
        self.assertEqual(len([name for name in found["counters"] if name.endswith("used")]), 3)
        self.assertEqual(len(found["slices"]), 10)

    def test_any_name(self):
        recording = Recording(EVIL)
        for text in (EVIL, b"\xff\xfe\x80 no UTF-8", "\u540d" * 1000, ""):
            recording.add(MARK, 1, definition=recording.define(NAME, text))
        names = [name for _, _, _, name, _ in self.trace(self.made(recording))["instants"]]
        self.assertEqual(names[1], "??? no UTF-8")
        self.assertTrue(names[0].startswith("</script>") and names[2].startswith("\u540d" * 160), names)
        self.assertEqual(names[3], "")


def frame(name, filename="??", line=0):
    return {"filename": filename, "line": line, "name": name}


class PyTorch(Export):
    def test_a_trace(self):
        recording = Recording()
        site = recording.site("forward+0x10 (model.so+0x510)", "operator new(unsigned long)", lines=["/a in b/t.py:7 in step"])
        recording.held(1, 600, 1000)
        recording.allocate(2000, 0x7f00_0000_0000, 512, definition=site)
        recording.add(REFUSED, 3000, 0, 5 << 40, definition=site)
        recording.free(4000, 0x7f00_0000_0000, 512)
        entries, = self.snapshot(self.made(recording))["device_traces"]
        frames = [frame("forward+0x10 (model.so+0x510)"), frame("operator new(unsigned long)"), frame("step", "/a in b/t.py", 7)]
        self.assertEqual([entry["action"] for entry in entries],
                         ["segment_alloc", "alloc", "oom", "free_requested", "free_completed", "segment_free"])
        self.assertEqual(entries[1], {"action": "alloc", "addr": 0x7f00_0000_0000, "size": 512, "stream": 0,
                                      "time_us": (BEGUN + 2000) // 1000, "frames": frames})
        self.assertEqual(entries[2], {"action": "oom", "device_free": 400, "size": 5 << 40, "stream": 0,
                                      "time_us": (BEGUN + 3000) // 1000, "frames": frames})
        self.assertTrue(all(entry["frames"] is entries[0]["frames"] for entry in entries))

    def test_segments_are_the_blocks_that_live_at_the_end(self):
        snapshot = self.snapshot(self.made(training()))
        self.assertEqual(sorted(segment["total_size"] for segment in snapshot["segments"]), [MIB] * 5 + [3 * MIB])
        for segment in snapshot["segments"]:
            self.assertEqual({key: type(value) for key, value in segment.items()}, {
                "device": int, "address": int, "stream": int, "total_size": int, "allocated_size": int, "active_size": int,
                "requested_size": int, "segment_type": str, "segment_pool_id": tuple, "is_expandable": bool, "frames": list,
                "blocks": list})
            block, = segment["blocks"]
            self.assertEqual(block, {"address": segment["address"], "size": segment["total_size"], "frames": segment["frames"],
                                     "requested_size": segment["total_size"], "state": "active_allocated"})

    def test_each_block_lies_in_a_segment(self):
        recording = Recording(lost=1)
        recording.free(1, 0x9000, 512)
        for i in range(3000):  # more than a list takes at a time
            recording.allocate(2 + i, 0x10000 + i % 1500 * 512, 512)
        recording.add(STACK_GONE, 5000)
        for i in range(2500):
            recording.allocate(6000 + i, 0x10000 + i * 512, 512)
        snapshot = self.snapshot(self.made(recording))
        segments, blocks = set(), set()
        for entry in snapshot["device_traces"][0]:
            {"segment_alloc": lambda address: self.assertNotIn(address, segments | blocks) or segments.add(address),
             "alloc": lambda address: self.assertNotIn(address, blocks) or self.assertIn(address, segments) or blocks.add(address),
             "free_requested": lambda address: self.assertIn(address, blocks),
             "free_completed": blocks.remove, "segment_free": segments.remove}[entry["action"]](entry["addr"])
            self.assertLessEqual(blocks, segments) if len(blocks) < 10 else None
        self.assertEqual(sorted(segment["address"] for segment in snapshot["segments"]), sorted(blocks))
        self.assertEqual(len(blocks), 2500)

    def test_devices_and_kinds_of_memory(self):
        recording = Recording()
        recording.allocate(1, 0x1000, 1, device=2)
        recording.allocate(2, 0x2000, 2, device=2, memory=2)
        recording.allocate(3, 0x3000, 3, memory=1)  # pinned memory is the host's
        recording.allocate(4, 0x4000, 0)
        snapshot = self.snapshot(self.made(recording))
        self.assertEqual([[entry["size"] for entry in trace] for trace in snapshot["device_traces"]], [[], [], [1, 1, 2, 2]])
        self.assertEqual([(segment["device"], segment["total_size"]) for segment in snapshot["segments"]], [(2, 1), (2, 2)])

    def test_a_recording_without_events(self):
        snapshot = self.snapshot(self.made(Recording()))
        self.assertEqual((snapshot["segments"], snapshot["device_traces"]), ([], [[]]))

    def memory_viz(self, *words):
        if not os.path.exists(MEMORY_VIZ):
            raise unittest.SkipTest("without PyTorch's _memory_viz.py (scripts/setup)")
        result = subprocess.run([sys.executable, MEMORY_VIZ, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                universal_newlines=True, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_by_pytorchs_own_reader(self):
        path = self.file("pytorch", self.made(training()))
        stats = self.memory_viz("stats", path)
        for line in "segments: 6", "total_reserved: 8.0MiB", "total_allocated: 8.0MiB", "total_free: 0.0B":
            self.assertIn(line, stats.splitlines())
        trace = self.memory_viz("trace", path).splitlines()
        self.assertEqual(trace[:2], ["Device 0 ----------------", "38 entries"])
        self.assertEqual((len([line for line in trace if line.startswith("del ")]),
                          len([line for line in trace if "cudaMalloc" in line])), (5, 11))
        self.assertRegex("\n".join(trace), r"\nraise OutOfMemoryError(\(\))? # 80\.0MiB requested, 32\.0MiB free in CUDA\n")
        for plot in "trace_plot", "segment_plot":
            self.memory_viz(plot, path, "-o", self.path("plot.html"))
            self.assertGreater(os.path.getsize(self.path("plot.html")), 1000)


class Recorded(Export):
    """A program under the library."""

    def test_a_known_program(self):
        with open(self.path("known.py"), "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        path = self.path("known.rec")
        settings = {"RMM_POOL_SIZE": "64MiB", "RMM_RECORD": path, "RMM_RECORD_SITES": "all", "RMM_LIMIT": "1GiB",
                    "RMM_LOG": self.path("known.csv")}
        result = run([sys.executable, self.path("known.py")], settings)
        self.assertEqual(result.status, 0, result)
        folded = self.export("folded", path).stdout.splitlines()
        self.assertEqual(sorted(int(line.rpartition(" ")[2]) for line in folded), [MIB, 7 * MIB])
        for line in folded:
            self.assertRegex(line, r"^known\.py \[\d+\];device 0;.*known\.py:\d+ in <module>;.*in (small|large);.*in allocate;")
        with open(self.path("known.csv"), encoding="ascii") as file:
            log = file.read()
        self.assertEqual(self.without_times(self.export("csv", path).stdout), self.without_times(log))
        snapshot = self.snapshot(path)
        self.assertEqual([segment["total_size"] for segment in snapshot["segments"]], [MIB])
        self.assertEqual([entry["size"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"],
                         [MIB] * 5 + [7 * MIB])
        self.assertIn(frame("small", self.path("known.py"), 5), snapshot["segments"][0]["frames"])
        trace = self.trace(path)
        self.assertEqual([instant[3:] for instant in trace["instants"]], [["refused", {"bytes": 1 << 40}]])
        counters = {name.rpartition(" ")[2]: [value for _, value in points] for name, points in trace["counters"].items()}
        self.assertEqual((max(counters["used"]), max(counters["held"]), set(counters["limit"])), (8 * MIB, 64 * MIB, {1 << 30}))

    @staticmethod
    def without_times(log):
        return re.sub(r"^(\d+),[\d:.]+,", r"\1,", log, flags=re.M)


class Input(Export):
    def test_no_recording(self):
        os.mkdir(self.path("folder"))
        with open(self.path("empty"), "wb"), open(self.path("foreign"), "wb") as file:
            file.write(b"PK\3\4" * 5000)
        for form in FORMATS:
            for name in ("folder", "empty", "foreign", "missing"):
                result = self.refused(form, self.path(name), "-o", self.path("out"), says=re.escape(self.path(name)))
                self.assertEqual(result.stdout, "")
                self.assertFalse(os.path.exists(self.path("out")))

    def test_what_is_whole_is_used(self):
        data = bytearray(training().bytes())
        data[HEADER_BYTES + CHUNK_BYTES + 32 + 3 * EVENT_BYTES + 9] ^= 1
        with open(self.path("damaged"), "wb") as file:
            file.write(data)
        for form in FORMATS:
            self.refused(form, self.path("damaged"), "-o", self.path("out"), says="1 part of the recording is damaged; the rest is used")
            self.assertGreater(os.path.getsize(self.path("out")), 100)

    def test_one_of_several(self):
        result = self.refused("folded", self.path("missing"), self.made(training()), says="missing: No such file")
        self.assertEqual(len(result.stdout.splitlines()), 3)

    def test_a_file_that_is_cut_anywhere(self):
        whole = training().bytes()
        for length in range(0, len(whole), 1777 * support.FEWER):
            with open(self.path("cut"), "wb") as file:
                file.write(whole[:length])
            for form in FORMATS:
                result = self.export(form, self.path("cut"), "-o", self.path("out"))
                self.assertIn(result.status, (0, 1), result)
                self.assertLessEqual(result.stderr.count("\n"), 1, result)

    def test_formats_of_one_process(self):
        files = [self.made(training(), name) for name in ("a.rec", "b.rec")]
        for form in ("csv", "pytorch"):
            self.refused(form, *files, "-o", self.path("out"), status=2, says="the format %s holds a single recording" % form)
            self.assertFalse(os.path.exists(self.path("out")))


class Output(Export):
    def test_standard_output(self):
        path = self.made(training())
        for form in FORMATS:
            with open(self.file(form, path), "rb") as file:
                data = file.read()
            for words in "", "-o /dev/stdout":
                result = subprocess.run([TOOL, "export", "--format", form, path, *words.split()], stdout=subprocess.PIPE, check=True)
                self.assertEqual(result.stdout, data)

    def test_a_full_disk(self):
        path = self.made(training())
        for form in FORMATS:
            self.refused(form, path, "-o", "/dev/full", says="/dev/full: No space left on device")
        words = "ulimit -f 1; '%s' export --format pytorch '%s' -o '%s'" % (TOOL, path, self.path("out"))
        result = run(["sh", "-c", words], preload=[])
        self.assertEqual((result.status, os.listdir(self.folder)), (1, ["a.rec"]), result)
        self.assertRegex(result.stderr, "^rmmshim: [^\n]*: File too large\n$")

    def test_usage(self):
        path = self.made(training())
        self.refused("folded", status=2, says="needs the FILE")
        self.refused("foldet", path, status=2, says="unknown format 'foldet'.*folded")
        self.refused("folded", path, "--output", "x", status=2, says="unknown option")
        self.refused("folded", path, "-o", path, status=2, says="is one of the recordings to read")
        result = run([TOOL, "export", path], preload=[])
        self.assertEqual((result.status, result.stderr), (2, "rmmshim: export needs --format, the format to write; see `rmmshim export --help`\n"))


if __name__ == "__main__":
    support.main()
