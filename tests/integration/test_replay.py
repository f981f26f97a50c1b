# SPDX-License-Identifier: Apache-2.0
"""`rmmshim replay`: its figures are those of real runs of the same program; and recordings that are made up here.  TOOL is
the command."""
import os

import json_schema
import recordings
import replays
import support
from recordings import REFUSED, STACK, STACK_GONE, Recording
from support import run

TOOL = os.environ["TOOL"]
MIB, SECOND = 1 << 20, 10**9
STACKS = ["cuda", "pool(cuda)", "pool(cuda, initial_size=256MiB)", "arena(cuda, arena_size=512MiB)", "virtual",
          "virtual(granularity=2MiB)", "binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)",
          "pool(cuda, maximum_size=64MiB)", "limiting(pool(cuda), limit=48MiB)"]


class Replay(replays.Test):
    def replay(self, *words, **how):
        return run([TOOL, "replay", *words], preload=[], **how)

    def replayed(self, path, *resources, words=(), said=""):
        """The document, and the figures by resource."""
        options = [word for resource in resources for word in ("--resource", resource)]
        result = self.replay(path, *options, *words, "--json")
        self.assertEqual((result.status, result.stderr), (0, said), result)
        document = json_schema.check(result.stdout, "replay.json")
        return document, {one["resource"]: one for one in document["replays"]}

    def made(self, recording, name="a.rec"):
        return recording.write(self.path(name))


class RealRuns(Replay):
    def assert_like_real_runs(self, recorded, words, **settings):
        path = self.path("a.rec")
        self.real(recorded, words, RMM_RECORD=path, **settings)
        resources = STACKS[STACKS.index(recorded):]
        _, found = self.replayed(path, *resources, words=["--lag", "0"])
        for resource in resources:
            with self.subTest(resource):
                self.assert_like_real_run(found[resource], words, **settings)
        return found

    def test_figures_are_those_of_real_runs(self):
        found = self.assert_like_real_runs("cuda", ["1", "3000"])
        self.assertLess(found["pool(cuda)"]["driver_calls"], found["cuda"]["driver_calls"] // 10)
        self.assertGreater(found["limiting(pool(cuda), limit=48MiB)"]["refused"], 0)

    def test_memory_in_the_order_of_streams(self):
        # Frees of `cuda` may wait, so the driver serves such memory.
        self.assert_like_real_runs("pool(cuda)", ["2", "3000", "ordered"], RMM_HOOKS="all")

    def test_the_recording_says_the_same(self):
        path = self.path("a.rec")
        real = self.real("pool(cuda)", ["3", "2000"], RMM_RECORD=path)
        document, found = self.replayed(path, "pool(cuda)", words=["--lag", "0"])
        self.assertEqual(document["recorded"], {name: real[name] for name in document["recorded"]})
        self.assertEqual({name: found["pool(cuda)"][name] for name in real}, real)

    def test_a_log_in_csv(self):
        path = self.path("a.csv")
        resources = ["cuda", "pool(cuda)", "virtual(granularity=2MiB)"]
        self.real("cuda", ["4", "2000"], RMM_LOG=path, RMM_RECORD=self.path("a.rec"))
        document, of_log = self.replayed(path, *resources, words=["--lag", "0"])
        self.assertEqual(of_log, self.replayed(self.path("a.rec"), *resources, words=["--lag", "0"])[1])
        self.assertEqual((document["recorded"]["used_peak_bytes"], document["recorded"]["held_peak_bytes"]),
                         (of_log["cuda"]["used_peak_bytes"], 0))


class MadeUp(Replay):
    def loop(self, count=200, size=64 * MIB, step_ns=100_000):
        """Allocates and frees a block again and again, half of the time apart from the next one."""
        recording = Recording()
        for i in range(count):
            recording.allocate((i + 1) * step_ns, 0x7000_0000_0000, size)
            recording.free((i + 1) * step_ns + step_ns // 2, 0x7000_0000_0000, size)
        return recording

    def test_late_fences(self):
        path = self.made(self.loop())
        prompt = self.replayed(path, "pool(cuda)", words=["--lag", "0"])[1]["pool(cuda)"]
        late = self.replayed(path, "pool(cuda)", words=["--lag", "0.005"])[1]["pool(cuda)"]
        self.assertEqual((prompt["used_peak_bytes"], late["used_peak_bytes"]), (64 * MIB, 64 * MIB))
        self.assertEqual((prompt["held_peak_bytes"], prompt["waits"], prompt["waited_nanoseconds"]), (64 * MIB, 0, 0))
        # The block that was freed 0.05 ms ago may be in use for 5 ms.
        self.assertGreaterEqual(late["held_peak_bytes"] + late["waits"] * MIB, 128 * MIB, late)
        self.assertEqual(bool(late["waits"]), late["waited_nanoseconds"] > 0)

    def test_the_same_each_time(self):
        path = self.made(self.loop())
        self.assertEqual(self.replayed(path, "pool(cuda)", "virtual"), self.replayed(path, "pool(cuda)", "virtual"))
        first = self.replayed(path, "virtual", "pool(cuda)")[1]
        self.assertEqual(self.replayed(path, "pool(cuda)", "cuda", "virtual", "cuda")[1]["virtual"], first["virtual"])

    def test_the_memory_of_the_device(self):
        recording = Recording()
        recording.add(STACK, 1, 0, 256 * MIB)
        for i in range(4):
            recording.allocate(10 + i, 0x7000_0000_0000 + i * 128 * MIB, 100 * MIB)
        recording.add(REFUSED, 100, 0, 50 * MIB)
        document, found = self.replayed(self.made(recording), "pool(cuda)", "virtual")
        self.assertEqual([found[name]["refused"] for name in ("pool(cuda)", "virtual")], [2, 2])
        self.assertEqual(found["virtual"]["used_peak_bytes"], (200 + 50) * MIB)  # two, and what was refused before
        self.assertEqual(document["recorded"], {"used_peak_bytes": 400 * MIB, "held_peak_bytes": 0, "refused": 1})

    def test_what_was_refused_is_not_kept(self):
        recording = Recording()
        recording.allocate(1, 0x7000_0000_0000, 100 * MIB)
        recording.add(REFUSED, 2, 0, 400 * MIB)
        recording.add(REFUSED, 3, 0, 400 * MIB)
        one = self.replayed(self.made(recording), "cuda")[1]["cuda"]
        self.assertEqual((one["refused"], one["used_peak_bytes"], one["held_peak_bytes"]), (0, 500 * MIB, 500 * MIB))

    def test_blocks_of_a_context_that_ends_are_freed(self):
        recording = Recording()
        for i in range(3):
            for at in range(4):
                recording.allocate(i * SECOND + at + 1, 0x7000_0000_0000 + at * 8 * MIB, 8 * MIB)
            recording.add(STACK_GONE, i * SECOND + 100)
        document, found = self.replayed(self.made(recording), "cuda")
        self.assertEqual((found["cuda"]["used_peak_bytes"], found["cuda"]["held_peak_bytes"]), (32 * MIB, 32 * MIB))
        self.assertEqual((found["cuda"]["driver_calls"], document["lost_events"]), (24, 0))

    def test_lost_events(self):
        # A block that is freed without an allocation was live when what is left of the recording begins, if some was lost.
        for lost, missing, used in ((0, 2, 4 * MIB), (5, 6, 12 * MIB)):
            recording = self.loop(3, 4 * MIB)
            recording.free(SECOND, 0x7fff_0000_0000, 8 * MIB)
            recording.allocate(SECOND + 1, 0x7000_0000_0000, 4 * MIB)
            recording.allocate(SECOND + 2, 0x7000_0000_0000, 4 * MIB)  # a free is missing
            recording.lost = lost
            path = self.made(recording)
            said = "rmmshim: %s: %d events are missing from the file, so all figures may be too low\n" % (path, missing)
            with self.subTest(lost=lost):
                document, found = self.replayed(path, "cuda", said=said)
                self.assertEqual((document["lost_events"], found["cuda"]["used_peak_bytes"]), (missing, used))

    def test_devices_and_kinds_of_memory(self):
        recording = self.loop(2, 4 * MIB)
        for i in range(3):
            recording.allocate(SECOND + i, 0x7100_0000_0000 + i * MIB, 1000, device=1)
            recording.allocate(SECOND + i, 0x7200_0000_0000 + i * MIB, 9 * MIB, memory=1)
        path = self.made(recording)
        for words, device, used in (([], 1, 3000), (["--device", "0"], 0, 4 * MIB), (["--device=1"], 1, 3000)):
            document, found = self.replayed(path, "cuda", words=words)
            self.assertEqual((document["device"], found["cuda"]["used_peak_bytes"]), (device, used))

    def test_the_table(self):
        recording = self.loop(10, 4 * MIB)
        recording.held(1, 6 * MIB)
        result = self.replay(self.made(recording), "--resource", "cuda", "--resource=pool(cuda)", "--lag=0")
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertEqual([line.split() for line in result.stdout.splitlines()], [
            "USED HELD HELD/USED DRIVER CALLS WAITS REFUSED RESOURCE".split(),
            "4.00 MiB 4.00 MiB 1.000 20 0 0 cuda".split(),
            "4.00 MiB 4.00 MiB 1.000 1 0 0 pool(cuda)".split(),
            "4.00 MiB 6.00 MiB 1.500 - - 0 (as recorded)".split()])
        without = self.replay(self.made(self.loop(1, 4 * MIB)), "--resource", "cuda")
        self.assertEqual(without.stdout.splitlines()[-1].split(), "4.00 MiB - - - - 0 (as recorded)".split())
        heads = [line.rindex("  ") for line in result.stdout.splitlines()]
        self.assertEqual(len(set(heads)), 1, result)  # the columns are below their heads


class BadInput(Replay):
    def assert_refused(self, *words, status, says):
        result = self.replay(*words)
        self.assertEqual((result.status, result.stdout), (status, ""), result)
        self.assertRegex(result.stderr, r"^rmmshim: [^\n]*%s[^\n]*\n$" % says)

    def test_words(self):
        good = self.made(MadeUp.loop(self, 2))
        pool = ["--resource", "pool(cuda)"]
        for words, says in (([], "needs the FILE"), ([good], "needs a --resource"), ([good, *pool, "x"], "unexpected argument 'x'"),
                            ([good, *pool, "--lag", "1ms"], "--lag 1ms: expected a number of seconds"),
                            ([good, *pool, "--lag", "-1"], "--lag -1: expected a number of seconds"),
                            ([good, *pool, "--device", "x"], "not the number of a device"),
                            ([good, "--resource"], "--resource needs a value"), ([good, *pool, "--jsn"], "unknown option '--jsn'"),
                            ([good, *pool * 65], "--resource can be given at most 64 times"),
                            ([good, "--resource", "pol(cuda)"], "pol"), ([good, *pool, "--resource", "pool(cuda"], "--resource="),
                            ([good, "--resource", "pool(managed)"], "'managed' cannot be replayed: the memory"),
                            ([good, "--resource", "fallback(pool(cuda), pinned)"], "'pinned' cannot be replayed: the memory"),
                            ([good, "--resource", "logging(cuda, path=x)"], "'logging' cannot be replayed: a replay writes no log"),
                            ([good, "--resource", "recording(cuda, path=x)"], "'recording' cannot be replayed: a replay writes no log"),
                            ([good, "--resource", "simulated"], "simulated"),
                            ([good, "--resource", "pool(cuda, initial_size=9TiB)"], "--resource=")):
            with self.subTest(words=words):
                self.assert_refused(*words, status=2, says=says)

    def test_files(self):
        pool = ["--resource", "pool(cuda)"]
        whole = self.made(MadeUp.loop(self, 2))
        with open(whole, "rb") as file:
            content = file.read()
        for name, data, says in (("empty", b"", "this is neither a recording"), ("foreign", b"\x7fELF" * 2000, "this is neither a recording"),
                                 ("newer", content[:12] + b"\x02\0" + content[14:], "the file was written by another version"),
                                 ("begin", content[:4096], "the file has no allocation of device memory")):
            path = self.path(name)
            with open(path, "wb") as file:
                file.write(data)
            with self.subTest(name):
                self.assert_refused(path, *pool, status=1, says="(%s)" % says)
        self.assert_refused(self.path("absent"), *pool, status=1, says="No such file")
        self.assert_refused(self.path(""), *pool, status=1, says="this is not a regular file")
        self.assert_refused(whole, *pool, "--device", "3", status=1, says="no allocation of device memory on device 3")

    def test_what_is_whole_of_a_damaged_file_is_used(self):
        path = self.made(MadeUp.loop(self, 100, 4 * MIB))
        with open(path, "r+b") as file:
            file.seek(-recordings.CHUNK_BYTES + 100, os.SEEK_END)
            file.write(b"\xff" * 8)
        result = self.replay(path, "--resource", "cuda", "--json")
        self.assertEqual(result.status, 1, result)
        self.assertRegex(result.stderr, r": 1 part of the recording is damaged; the rest is used\n.*: 1 event is missing")
        self.assertEqual(json_schema.check(result.stdout, "replay.json")["replays"][0]["used_peak_bytes"], 4 * MIB)


if __name__ == "__main__":
    support.main()
