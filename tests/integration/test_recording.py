# SPDX-License-Identifier: Apache-2.0
"""RMM_RECORD, `rmmshim export` and `rmmshim replay`: what programs did, looked at afterwards.

meson sets TOOL."""
import collections
import contextlib
import json
import os
import pickle
import re
import shutil
import sqlite3
import sys
import unittest
import unittest.mock

import json_schema
import support
from served import SCENES, TOOL, tool

MIB = 1 << 20
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
ENDS = ["return", "exit", "_exit", "quick_exit", "abort", "SIGKILL", "SIGSEGV", "exec"]


def fields(message):
    """Of a message of protocol buffers: number -> list of values."""
    found, at = collections.defaultdict(list), 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 2:
            length = number()
            found[key >> 3].append(message[at:at + length])
            at += length
        else:
            assert key & 7 == 0, key
            found[key >> 3].append(number())
    assert at == len(message)
    return found


def rows(text):
    """Of a log: (action, pointer, size, stream)."""
    return [tuple(line.split(",")[2:]) for line in text.splitlines()[1:]]


class Test(support.Test):
    def record(self, *steps, status=0, **settings):
        """The path of a recording of the steps of output_scenes.py."""
        path = self.path("a.rec")
        result = support.run([sys.executable, SCENES, *steps], dict({"RMM_RECORD": path}, **settings))
        self.assertEqual((result.status, result.said), (status, []), result)
        return path

    def record_phases(self):
        script = ("import ctypes, sys\nsys.path.insert(0, %r)\nsys.argv = ['x']\nimport output_scenes\n"
                  "api = ctypes.CDLL(None)\noutput_scenes.hold(1000)\napi.rmmshim_push_phase(b'train <b>\\x1b')\n"
                  "output_scenes.hold(1 << 50)\napi.rmmshim_pop_phase()\napi.rmmshim_mark(b'done\\n')\noutput_scenes.drop()\n"
                  % os.path.dirname(SCENES))
        path = self.path("a.rec")
        result = support.run([sys.executable, "-c", script], {"RMM_RECORD": path})
        self.assertEqual(result.status, 0, result)
        return path

    def export(self, path, form, status=0, stderr=""):
        result = tool("export", "--format", form, path, "-o", "-")
        self.assertEqual((result.status, result.stderr), (status, stderr))
        return result.stdout


class Recording(Test):
    def test_a_recording_has_what_the_log_has(self):
        log = self.path("a.csv")
        program = support.program("sample_memory_mix_shared")
        path = self.path("a.rec")
        for settings in ({"RMM_POOL_SIZE": "64MiB"}, {"RMM_MANAGED_POOL_SIZE": "1MiB"}, {}):
            plain = support.run_plain([program])
            result = support.run([program], dict(settings, RMM_RECORD=path, RMM_LOG=log))
            self.assertEqual(result.outcome, plain.outcome)
            with open(log, encoding="utf-8") as file:
                wanted = file.read()
            exported = self.export(path, "csv")
            self.assertTrue(exported.startswith(HEADER))
            self.assertGreater(len(rows(wanted)), 1000)
            if "RMM_MANAGED_POOL_SIZE" not in settings:  # whose blocks the device's log does not have
                self.assertEqual(sorted(rows(exported)), sorted(rows(wanted)))

    def test_every_event_outlives_the_process(self):
        for how in ENDS:
            with self.subTest(how=how):
                path = self.path(how + ".rec")
                support.run([sys.executable, SCENES, "use:100", "hold:4096", "end:" + how], {"RMM_RECORD": path})
                exported = rows(self.export(path, "csv"))
                self.assertEqual([row[0] for row in exported], 100 * ["allocate", "free"] + ["allocate"])
                self.assertEqual(exported[-1][2], "4096")

    def test_each_process_has_a_file(self):
        path = self.path("a.rec")
        result = support.run([sys.executable, SCENES, "worker:use:3", "use:2"], {"RMM_RECORD": path})
        self.assertEqual(result.status, 0, result)
        other, = re.findall(r"it belongs to %s\.part, which a process left; this one writes (\S+)" % re.escape(path),
                            "\n".join(result.said))
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(["a.rec", "a.rec.part", os.path.basename(other)]))
        self.assertEqual([len(rows(self.export(name, "csv"))) for name in (path, other)], [6, 4])

    def test_the_size_bounds_the_file(self):
        path = self.record("use:40000", RMM_RECORD_SIZE="1MiB")
        self.assertLessEqual(os.path.getsize(path), MIB)
        exported = rows(self.export(path, "csv"))
        self.assertEqual(exported[-1][0], "free")
        self.assertEqual(exported[-1][2], "40999")

    def test_a_refusal_and_a_limit(self):
        path = self.record("hold:%d" % (64 * MIB), "hold:1000", RMM_LIMIT="32MiB")
        self.assertEqual([row[0] for row in rows(self.export(path, "csv"))], ["allocate failure", "allocate"])

    def test_options_of_run_set_the_variables(self):
        path = self.path("b.rec")
        result = support.run([TOOL, "run", "--quiet", "--record", path, "--record-size", "2MiB", "--record-stacks", "1",
                              sys.executable, SCENES, "use:2"], preload=[])
        self.assertEqual((result.status, result.stderr), (0, ""))
        self.assertEqual(len(rows(self.export(path, "csv"))), 4)

    def test_a_path_that_cannot_be_written_is_said_once(self):
        result = support.run([sys.executable, SCENES, "use:5", "reset", "use:5"], {"RMM_RECORD": "/proc/none/a.rec"})
        self.assertEqual(result.status, 0)
        self.assertEqual(result.said, ["recording: /proc/none/a.rec: cannot be opened: No such file or directory; "
                                       "nothing is recorded"])


class Export(Test):
    def test_call_sites_are_python_lines(self):
        path = self.record("hold:%d" % MIB, "hold:4096", "use:1", RMM_RECORD_STACKS="1")
        folded = self.export(path, "folded")
        line, = [line for line in folded.splitlines() if line.endswith(" %d" % (MIB + 4096))
                 or line.endswith(" %d" % MIB)][:1]
        self.assertRegex(line, r"^device 0;.*output_scenes\.py:\d+ in hold.* \d+$")
        self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in folded.splitlines()), MIB + 4096 + 1000)

    def test_a_sample_of_sites(self):
        path = self.record("use:1000", RMM_RECORD_STACKS="100KiB")
        data = json.loads(self.export(path, "speedscope"))
        self.assertEqual(data["$schema"], "https://www.speedscope.app/file-format-schema.json")
        names = [frame["name"] for frame in data["shared"]["frames"]]
        peak, total = data["profiles"]
        self.assertEqual((peak["name"], total["name"]), ("device 0: live at the peak", "device 0: allocated in all"))
        self.assertEqual(total["endValue"], sum(1000 + i for i in range(1000)))
        self.assertEqual(sum(total["weights"]), total["endValue"])
        self.assertEqual(len(total["samples"]), len(total["weights"]))
        self.assertTrue(all(index < len(names) for sample in total["samples"] for index in sample))
        self.assertTrue(any("output_scenes.py" in name for name in names), names)

    def test_a_database_has_blocks_and_sites(self):
        path, out = self.record("hold:%d" % MIB, "use:3", RMM_RECORD_STACKS="1"), self.path("a.db")
        for _ in range(2):  # a second time over the first
            result = tool("export", "--format", "sqlite", path, "-o", out)
            self.assertEqual((result.status, result.stderr), (0, ""))
        with contextlib.closing(sqlite3.connect(out)) as database:
            def ask(text):
                return database.execute(text).fetchall()
            self.assertEqual(ask("SELECT bytes, device, freed_ns IS NULL FROM blocks ORDER BY allocated_ns"),
                             [(MIB, 0, 1), (1000, 0, 0), (1001, 0, 0), (1002, 0, 0)])
            self.assertEqual(ask("SELECT device, memory, resource FROM stacks"), [(0, "device", "cuda")])
            lines = ask("SELECT text FROM blocks JOIN sites USING(site) JOIN frames USING(frame) "
                        "WHERE bytes = %d AND is_python ORDER BY depth" % MIB)
            self.assertRegex(lines[0][0], r"output_scenes\.py:\d+ in hold$")
            self.assertEqual(ask("SELECT count(*) FROM threads"), [(1,)])
        result = tool("export", "--format", "sqlite", path, "-o", "-")
        self.assertEqual((result.status, result.stderr), (2, "rmmshim: sqlite needs a file, not standard output\n"))

    def test_a_snapshot_of_pytorch(self):
        path, out = self.record("hold:%d" % (3 * MIB), "use:2", "hold:%d" % (1 << 50), RMM_RECORD_STACKS="1"), self.path("a.pickle")
        self.assertEqual(tool("export", "--format", "pytorch", path, "-o", out).status, 0)
        with open(out, "rb") as file:
            snapshot = pickle.load(file)
        trace, = snapshot["device_traces"]
        self.assertEqual([entry["action"] for entry in trace],
                         ["alloc"] + 2 * ["alloc", "free_requested", "free_completed"] + ["oom"])
        self.assertEqual([entry["size"] for entry in trace][:2] + [trace[-1]["size"]], [3 * MIB, 1000, (1 << 48) - 1])
        self.assertEqual(sorted(time["time_us"] for time in trace), [entry["time_us"] for entry in trace])
        frame = trace[0]["frames"][0]
        self.assertEqual((os.path.basename(frame["filename"]), frame["name"]), ("output_scenes.py", "hold"))
        self.assertGreater(frame["line"], 0)
        segment, = snapshot["segments"]
        self.assertEqual((segment["address"], segment["total_size"], segment["segment_type"]),
                         (trace[0]["addr"], 3 * MIB, "large"))
        self.assertEqual(segment["blocks"], [{"address": trace[0]["addr"], "size": 3 * MIB, "requested_size": 3 * MIB,
                                              "state": "active_allocated", "frames": trace[0]["frames"]}])

    def test_a_trace_of_perfetto(self):
        path, out = self.record_phases(), self.path("a.pftrace")
        self.assertEqual(tool("export", "--format", "perfetto", path, "-o", out).status, 0)
        with open(out, "rb") as file:
            packets = [fields(packet) for packet in fields(file.read())[1]]
        self.assertTrue(all(packet[10] == [1] for packet in packets))
        tracks = [fields(track) for packet in packets for track in packet[60]]
        process, thread, counter = tracks
        self.assertEqual(fields(process[3][0])[6], [b"python3"])
        self.assertEqual(fields(thread[4][0])[1], fields(process[3][0])[1])
        self.assertEqual((counter[2], counter[5], fields(counter[8][0])[3]), ([b"device 0: live"], process[1], [3]))
        events = [(packet[8][0], fields(event)) for packet in packets for event in packet[11]]
        self.assertEqual([time for time, _ in events], sorted(time for time, _ in events))
        self.assertEqual([(event[9][0], event[11], event[23], event[30]) for _, event in events],
                         [(4, counter[1], [], [1000]), (1, thread[1], [b"train <b> "], []),
                          (3, thread[1], [b"out of memory"], []), (2, thread[1], [], []), (3, thread[1], [b"done?"], []),
                          (4, counter[1], [], [0])])

    def test_phases_are_rows_of_a_database(self):
        path, out = self.record_phases(), self.path("a.db")
        self.assertEqual(tool("export", "--format", "sqlite", path, "-o", out).status, 0)
        with contextlib.closing(sqlite3.connect(out)) as database:
            self.assertEqual(database.execute("SELECT kind, name FROM marks ORDER BY ns").fetchall(),
                             [("begin", "train <b> "), ("end", "train <b> "), ("mark", "done?")])

    def test_a_log_is_exported_as_it_is(self):
        log = self.path("a.csv")
        text = HEADER + "7,09:59:59.000001,allocate,0x1000,512,0\n7,10:00:00.000000,allocate failure,(nil),99,0x55\n"
        with open(log, "w", encoding="utf-8") as file:
            file.write(text)
        with unittest.mock.patch.dict(os.environ, TZ="UTC-9"):  # the log's times are local already
            self.assertEqual(self.export(log, "csv"), text)
            self.assertEqual(tool("export", "--format", "recording", log, "-o", self.path("b.rec")).status, 0)
            self.assertEqual(self.export(self.path("b.rec"), "csv"), text)

    def test_a_recording_of_a_recording_says_the_same(self):
        path, again = self.record("hold:%d" % MIB, "use:3000", RMM_RECORD_STACKS="1"), self.path("b.rec")
        self.assertEqual(tool("export", "--format", "recording", path, "-o", again).status, 0)
        for form in ("csv", "folded", "speedscope"):
            self.assertEqual(self.export(again, form), self.export(path, form))

    def test_what_is_damaged_is_said_in_a_line(self):
        path = self.record("use:3000")
        size = os.path.getsize(path)
        self.assertEqual(len(rows(self.export(path, "csv"))), 6000)
        cut = self.path("cut.rec")
        shutil.copy(path, cut)
        os.truncate(cut, size - 1000)
        result = tool("export", "--format", "csv", cut, "-o", self.path("out.csv"))
        self.assertEqual((result.status, result.stderr), (1, "rmmshim: %s: the file is cut off at byte %d; what is whole is "
                                                             "used\n" % (cut, size - 1000)))
        with open(self.path("out.csv"), encoding="utf-8") as file:
            self.assertGreater(len(rows(file.read())), 5000)
        for text, said in (("", "is empty"), ("\x1b[31mhello", "is neither a recording nor a log of RMM's")):
            with open(cut, "w", encoding="utf-8") as file:
                file.write(text)
            self.export(cut, "csv", 1, "rmmshim: %s: %s\n" % (cut, said))
        self.export(self.folder, "csv", 1, "rmmshim: %s: Is a directory\n" % self.folder)
        self.export(self.path("none"), "csv", 1, "rmmshim: %s: No such file or directory\n" % self.path("none"))

    def test_wrong_usage(self):
        for words, said in ((("export", "a"), "no --format; `rmmshim export --help` says how"),
                            (("export", "a", "--format", "csv"), "no -o OUT; `rmmshim export --help` says how"),
                            (("export", "a", "--format", "speedscop", "-o", "-"),
                             "unknown format 'speedscop'; did you mean 'speedscope'?"),
                            (("replay", "a"), "no --resource, as in --resource 'pool(cuda)'"),
                            (("replay", "a", "--resource", "cuda", "--lag", "5"),
                             "--lag=5: a time has a unit, as in 10us, 1ms or 2s")):
            result = tool(*words)
            self.assertEqual((result.status, result.stderr), (2, "rmmshim: %s\n" % said))

    def test_a_full_disk_is_said(self):
        path = self.record("use:3000")
        result = tool("export", "--format", "csv", path, "-o", "/dev/full")
        self.assertEqual((result.status, result.stderr), (1, "rmmshim: /dev/full: No space left on device\n"))


class Replay(Test):
    def replay(self, path, *words, status=0):
        result = tool("replay", path, "--json", *words)
        self.assertEqual(result.status, status, result)
        return json_schema.check(result.stdout, "replay.json")

    def test_stacks_are_compared(self):
        path = self.record("hold:%d" % (5 * MIB), "hold:%d" % (3 * MIB), "drop", "use:200")
        told = self.replay(path, "--resource", "cuda", "--resource", "pool(managed, initial_size=64MiB)", "--resource=virtual")
        self.assertEqual([result["resource"] for result in told["results"]],
                         ["cuda", "pool(managed, initial_size=64MiB)", "virtual"])
        for result in told["results"]:
            self.assertEqual((result["allocations"], result["peak_live"], result["refusals"]), (202, 8 * MIB, 0))
        self.assertEqual([result["peak_held"] for result in told["results"]][:2], [10 * MIB, 64 * MIB])
        self.assertEqual(told["results"][0]["upstream_allocations"], 202)
        self.assertEqual(told["results"][1]["upstream_allocations"], 1)
        self.assertEqual(self.replay(path, "--resource", "cuda", "--resource", "pool(managed, initial_size=64MiB)",
                                     "--resource=virtual"), told)

    def test_what_does_not_fit_is_counted(self):
        path = self.record("hold:%d" % (5 * MIB), "hold:%d" % (3 * MIB))
        result, = self.replay(path, "--resource", "cuda", "--memory", "6MiB")["results"]
        self.assertEqual((result["refusals"], result["peak_held"]), (1, 6 * MIB))

    def test_a_gpu_that_is_behind_is_waited_for(self):
        path = self.record(*(50 * ["hold:%d" % MIB, "drop"]))
        prompt, = self.replay(path, "--resource", "pool(cuda)", "--operation", "10us")["results"]
        late, = self.replay(path, "--resource", "pool(cuda)", "--operation", "10us", "--lag", "10ms")["results"]
        self.assertEqual((prompt["waits"], prompt["longer_ppm"]), (0, 0))
        self.assertGreater(late["waits"], 0)
        self.assertGreater(late["waited_ns"], 0)

    def test_a_log_is_replayed(self):
        log = self.path("a.csv")
        support.run([sys.executable, SCENES, "hold:%d" % MIB, "use:5"], {"RMM_LOG": log})
        told = self.replay(log, "--resource", "cuda")
        self.assertEqual(told["results"][0]["allocations"], 6)
        result = tool("replay", log, "--resource", "pool(cuda)")
        self.assertRegex(result.stdout, r"^device 0: 6 allocations, at most 1\.00 MiB live\n\nRESOURCE +HELD +HELD/LIVE")

    def test_what_cannot_be_replayed_is_said(self):
        path = self.record("use:1")
        result = tool("replay", path, "--resource", "pool(async)")
        self.assertEqual(result.status, 1)
        self.assertIn("the driver's own pool", result.stderr)
        result = tool("replay", path, "--resource", "pol(cuda)")
        self.assertEqual(result.status, 1)
        self.assertIn("did you mean 'pool'", result.stderr)


if __name__ == "__main__":
    support.main()
