# SPDX-License-Identifier: Apache-2.0
"""Recordings of whole programs, as a reader of its own finds them (recording_file.py).  TOOL is the command."""
import os
import signal
import sys

import support
from recording_file import Recording
from support import run

HERE = os.path.dirname(os.path.abspath(__file__))
SCENES = os.path.join(HERE, "output_scenes.py")
TOOL = os.environ["TOOL"]
POOLS = {"RMM_POOL_SIZE": "64MiB", "RMM_PINNED_POOL_SIZE": "1MiB"}
MIB = 1 << 20


class Recordings(support.Test):
    def scene(self, *steps, status=0, said=(), **settings):
        """The recording that these steps leave at PATH."""
        path = self.path("a.rec")
        result = run([sys.executable, SCENES, *steps], dict(POOLS, RMM_RECORD=path, **settings))
        self.assertEqual((result.status, result.said), (status, list(said)), result)
        return Recording(path)

    def assert_pairs(self, recording, count):
        self.assertEqual([event.size for event in recording.of("allocate")], list(range(1000, 1000 + count)))
        self.assertEqual([event.address for event in recording.of("allocate")],
                         [event.address for event in recording.of("deallocate")])
        self.assertEqual(recording.live(), {})
        self.assertEqual((recording.lost_events, recording.missed_events, recording.lost_definitions), (0, 0, 0))

    def test_whole_after_every_end(self):
        ways = {"return": 0, "exit": 3, "pthread_exit": 0, "_exit": 0, "quick_exit": 0, "exec": 0,
                "abort": -signal.SIGABRT, "SIGTERM": -signal.SIGTERM, "SIGKILL": -signal.SIGKILL,
                "SIGSEGV": -signal.SIGSEGV}
        for how, status in ways.items():
            with self.subTest(how):
                recording = self.scene("use:1000", "end:" + how, status=status)
                self.assert_pairs(recording, 1000)
                self.assertEqual(recording.ended_ns > 0, how in ("return", "exit", "pthread_exit"))
                if recording.ended_ns:
                    self.assertEqual(recording.length, recording.header_bytes + recording.chunks * recording.chunk_bytes)
                os.unlink(self.path("a.rec"))

    def test_what_a_process_is(self):
        recording = self.scene("use:1")
        self.assertEqual(recording.texts("program"), [os.path.basename(sys.executable)])
        self.assertEqual(recording.texts("command"), ["\0".join([sys.executable, SCENES, "use:1"])])
        self.assertEqual(len(recording.texts("thread")), 1)
        self.assertEqual({event.thread for event in recording.events}, {recording.process})

    def test_its_rank(self):
        for settings, ranks in (({}, []), ({"SLURM_PROCID": "5"}, ["5"]), ({"SLURM_PROCID": "5", "RANK": "7"}, ["7"])):
            self.assertEqual(self.scene("use:1", **settings).texts("rank"), ranks)

    def test_kinds_of_memory(self):
        recording = self.scene("hold:8192", "pin:4096", "drop")
        self.assertEqual([(event.memory, event.size) for event in recording.of("allocate")],
                         [("device", 8192), ("pinned", 4096)])
        self.assertEqual([(event.memory, recording.text(event)) for event in recording.of("stack")],
                         [("device", "reuse(pool(cuda))"), ("pinned", "reuse(pool(pinned))")])
        self.assertEqual([event.stack for event in recording.of("stack", "allocate")], [0, 0, 1, 1])
        self.assertEqual(sorted(recording.live().values()), [4096])

    def test_held_bytes_and_the_limit(self):
        recording = self.scene("hold:%d" % (128 * MIB), "array:1024", "use:1", "hold:%d" % (512 * MIB), RMM_LIMIT="256MiB")
        held = [(event.size, event.address) for event in recording.of("held")]
        self.assertEqual({limit for _, limit in held}, {256 * MIB})
        self.assertEqual(held[0][0], 64 * MIB + 128 * MIB, held)
        self.assertGreaterEqual(max(held)[0], (64 + 128 + 4) * MIB)
        self.assertTrue(all(one != next_one for one, next_one in zip(held, held[1:])), held)
        refused, = recording.of("refused")
        self.assertEqual((refused.size, refused.address), (512 * MIB, 0))

    def test_each_event_looks_at_what_is_held(self):
        recording = self.scene("hold:1000", "array:1024", "drop", "array:1024", "hold:1000")
        self.assertEqual([event.kind for event in recording.events],
                         ["stack", "held", "allocate", "held", "deallocate", "held", "allocate"])
        held = [event.size for event in recording.of("held")]
        self.assertEqual(sorted(held), held)

    def test_a_request_that_takes_long_says_how_long(self):
        recording = self.scene("hold:%d" % (128 * MIB), "use:100")
        slow = recording.of("slow")
        self.assertEqual([event.size for event in slow], [128 * MIB])
        self.assertGreater(slow[0].address, 0)
        self.assertLess(slow[0].address, recording.ended_ns)
        after = recording.events[recording.events.index(slow[0]) + 1]
        self.assertEqual((after.kind, after.size), ("allocate", 128 * MIB))

    def test_a_request_that_comes_again_with_more_effort_is_not_refused(self):
        path = self.path("a.rec")
        result = run([sys.executable, SCENES, "hold:%d" % (128 * MIB)],
                     {"RMM_RESOURCE": "reuse(recording(pool(cuda, initial_size=64MiB), path=%s))" % path})
        self.assertEqual((result.status, result.said), (0, []), result)
        recording = Recording(path)
        self.assertEqual([event.size for event in recording.of("refused")], [])
        self.assertEqual([event.size for event in recording.of("allocate")], [128 * MIB])

    def test_a_context_that_ends(self):
        recording = self.scene("hold:5000", "reset", "hold:6000")
        order = [event.kind for event in recording.of("stack", "stack_gone", "allocate")]
        self.assertEqual(order, ["stack", "allocate", "stack_gone", "stack", "allocate"])
        self.assertEqual([event.stack for event in recording.of("stack", "stack_gone", "allocate")], [0, 0, 0, 1, 1])

    def test_call_sites(self):
        every = self.scene("use:50", RMM_RECORD_SITES="all")
        for event in every.of("allocate"):
            self.assertRegex(every.frames(event)[0], r"output_scenes\.py:\d+ in use$")
        self.assertEqual(len({event.definition for event in every.of("allocate")}), 1)
        some = self.scene("use:500", RMM_RECORD_SITES="100KiB")
        sites = [event for event in some.of("allocate") if event.definition]
        self.assertIn(len(sites), range(5, 7))  # 500 blocks of 1000 to 1500 bytes: 610 KiB
        self.assertEqual([value for kind, value, _ in some.definitions.values() if kind == "sample"], [100 << 10])
        none = self.scene("use:5", RMM_RECORD_SITES="none")
        self.assertEqual(every.texts("sample") + none.texts("sample"), [])
        self.assertEqual([event.definition for event in none.of("allocate")], [0] * 5)

    def test_phases(self):
        path = self.path("phases.rec")
        result = run([sys.executable, os.path.join(HERE, "phase_scenes.py"), "sums"], dict(POOLS, RMM_RECORD=path),
                     more={"PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual((result.status, result.said), (0, []), result)
        recording = Recording(path)
        phases = [(event.kind[6:], recording.text(event)) for event in recording.of("phase_begin", "phase_end")]
        self.assertEqual(phases, 3 * [("begin", "step"), ("begin", "inner"), ("end", "inner"), ("end", "step")]
                         + [("end", "all")])  # "all" begins before there is a stack, and so a recording

    def test_marks_and_trims(self):
        path = self.path("marks.rec")
        program = ("import c_api as rmmshim, control_scenes as scenes; scenes.start(); "
                   "scenes.free(scenes.allocate(128 << 20)); rmmshim.mark('here'); rmmshim.trim(0, 0)")
        result = run([sys.executable, "-c", program], dict(POOLS, RMM_RECORD=path),
                     more={"PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual((result.status, result.said), (0, []), result)
        recording = Recording(path)
        order = recording.of("deallocate", "mark", "trim")
        self.assertEqual([event.kind for event in order[:3]], ["deallocate", "mark", "trim"])
        self.assertEqual(recording.text(order[1]), "here")
        self.assertEqual(sum(event.size for event in order[2:]), 128 << 20)
        self.assertEqual([event.size for event in recording.of("held")][-1], 64 << 20)

    def recordings(self):
        return {name: Recording(self.path(name)) for name in os.listdir(self.folder)}

    def under_run(self, *steps, record="a.rec", **settings):
        result = run([TOOL, "run", "--quiet", "--record", self.path(record), sys.executable, SCENES, *steps],
                     dict(POOLS, **settings), preload=[])
        self.assertEqual(result.status, 0, result)
        return result

    def test_processes_of_a_job_have_a_file_each(self):
        self.under_run("worker:use:3", "worker:use:4", "use:5")
        found = self.recordings()
        self.assertEqual(sorted(len(recording.of("allocate")) for recording in found.values()), [3, 4, 5])
        self.assertEqual(set(found), {"a.rec"} | {"a.rec.%d" % recording.process for name, recording in found.items()
                                                  if name != "a.rec"})
        self.assertEqual(len({recording.job for recording in found.values()}), 1)

    def test_a_program_after_exec_has_one_of_its_own(self):
        result = run([sys.executable, SCENES, "use:3", "again:use:4"], dict(POOLS, RMM_RECORD=self.path("a.rec")))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(sorted(len(recording.of("allocate")) for recording in self.recordings().values()), [3, 4])

    def test_a_new_run_replaces_the_file(self):
        for count in (3, 4):
            self.under_run("use:%d" % count)
            self.assert_pairs(Recording(self.path("a.rec")), count)
        self.assertEqual(os.listdir(self.folder), ["a.rec"])

    def test_placeholders(self):
        self.under_run("worker:use:3", "use:4", record="%p.rec")
        found = self.recordings()
        self.assertEqual(set(found), {"%d.rec" % recording.process for recording in found.values()})
        self.assertEqual(len(found), 2)

    def test_a_forked_child_leaves_it_alone(self):
        self.assert_pairs(self.scene("use:10", "worker:say"), 10)
        self.assertEqual(os.listdir(self.folder), ["a.rec"])
        program = ("import os, sys, c_api as rmmshim, control_scenes as scenes; scenes.start()\n"
                   "scenes.free(scenes.allocate(1 << 20)); child = os.fork()\n"
                   "if child == 0:\n"
                   "    try: rmmshim.mark('child')\n"
                   "    except rmmshim.Error: sys.exit()\n"
                   "    sys.exit('marked')\n"
                   "os.waitpid(child, 0); rmmshim.mark('parent'); os._exit(0)")
        result = run([sys.executable, "-c", program], dict(POOLS, RMM_RECORD=self.path("b.rec")),
                     more={"PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual((result.status, result.said), (0, []), result)
        recording = Recording(self.path("b.rec"))
        self.assertEqual([recording.text(event) for event in recording.of("mark")], ["parent"])
        self.assertEqual(recording.ended_ns, 0)

    def test_the_file_is_bounded(self):
        recording = self.scene("use:60000", RMM_RECORD_SIZE="4MiB")
        self.assertLessEqual(recording.length, 4 * MIB + recording.header_bytes)
        self.assertEqual(recording.lost_events % recording.events_each, 0)
        self.assertGreater(recording.lost_events, 0)
        sizes = [event.size for event in recording.of("deallocate")]
        self.assertEqual(sizes, list(range(61000 - len(sizes), 61000)))
        self.assertEqual(recording.texts("program"), [os.path.basename(sys.executable)])

    def test_a_file_that_cannot_be_written(self):
        for path, reason in ((self.path("missing/a.rec"), "No such file or directory"), (self.folder, "Is a directory")):
            result = run([sys.executable, SCENES, "use:3"], dict(POOLS, RMM_RECORD=path))
            self.assertEqual((result.status, result.said), (
                0, ["RMM_RECORD: %s: the file cannot be opened: %s; nothing is recorded" % (path, reason)]), result)

    def test_bad_settings(self):
        for settings, words in (({"RMM_RECORD": self.path("%z.rec")}, "unknown placeholder"),
                                ({"RMM_RECORD_SITES": "often"}, "RMM_RECORD_SITES"),
                                ({"RMM_RECORD_SIZE": "1KiB"}, "RMM_RECORD_SIZE")):
            settings = dict({"RMM_RECORD": self.path("b.rec")}, **settings)
            result = run([sys.executable, SCENES, "use:3"], dict(POOLS, **settings))
            self.assertEqual(result.status, 78, result)
            self.assertIn(words, result.stderr)
        result = run([sys.executable, SCENES, "use:3"], dict(POOLS, RMM_RECORD_SITES="all"))
        self.assertEqual((result.status, result.said[:1]), (
            78, ["RMM_RECORD_SITES=all: nothing is recorded without RMM_RECORD, the path of the recording"]), result)
        self.assertEqual(os.listdir(self.folder), [])

    def test_beside_other_outputs(self):
        recording = self.scene("use:20", RMM_LOG=self.path("log.csv"), RMM_STATISTICS="json:" + self.path("s.json"),
                               RMM_TRACKING="json:" + self.path("t.json"))
        self.assert_pairs(recording, 20)


if __name__ == "__main__":
    support.main()
