# SPDX-License-Identifier: Apache-2.0
"""Who holds memory in the report at out-of-memory where no stack tracks: libraries and the program, by the object
that a call returns to; and other processes on the device."""
import contextlib
import fcntl
import os
import re
import shutil
import struct
import subprocess

import json_schema
import support
from support import run

MIB = 1 << 20
PUBLISHED_BYTES = 32 << 20
F_DUPFD_CLOEXEC = 1030
SETTINGS = {"RMM_RESOURCE": "pool(cuda)"}
DEVICE_UUID = os.getpid() % 10**7 * 10  # devices of its own: what other tests hold at the time is on others
DEVICE = {"HOSTCUDA_MEMORY": "256MiB", "HOSTCUDA_UUID": str(DEVICE_UUID)}


def library(name):
    return support.program("lib%s.so" % name)


SHARED, STATIC = library("holder_shared"), library("holder_static")


class Holders(support.Test):
    def report(self, *steps, on_oom="text", preload=None, more=None, **settings):
        """What is said where those steps are followed by a request that is refused."""
        result = run([support.program("holder_host"), *steps, "ask", "1000"],
                     dict(SETTINGS, RMM_ON_OOM=on_oom, **settings), preload=preload, more=dict(DEVICE, **(more or {})))
        self.assertEqual((result.status, result.stdout.splitlines()[-1]), (0, "2"), str(result))
        return result

    def holders(self, *steps, **how):
        """The lines of libraries, with their sizes behind them."""
        result = self.report(*steps, **how)
        lines = re.findall(r"^  (?:  )?(?:and )?\S+ \S+ in \d+ (?:more )?block.*$", result.stderr, re.M)
        return [line[2:] for line in lines]

    def test_each_library(self):
        """With a shared and a static runtime, through the driver, and by generated code."""
        lines = self.holders("hold", SHARED, "malloc", "4096", "hold", STATIC, "malloc", "3072", "hold", SHARED,
                             "malloc", "4096", "hold", STATIC, "driver", "512", "hold", "generated", "-", "1024")
        self.assertEqual(lines, [
            "8.00 MiB in 2 blocks of 4.00 MiB, allocated by libholder_shared.so",
            "3.50 MiB in 2 blocks, allocated by libholder_static.so",
            "  3.00 MiB in 1 block of 3.00 MiB",
            "  512 KiB in 1 block of 512 KiB",
            "1.00 MiB in 1 block of 1.00 MiB, allocated by an unknown library"])

    def test_each_function(self):
        for how in ("malloc", "managed", "driver", "pitch", "ordered"):
            with self.subTest(how):
                lines = self.holders("hold", SHARED, "driver", "64", "hold", STATIC, how, "4096",
                                     RMM_MANAGED_RESOURCE="pool(managed)", RMM_HOOKS="all")
                self.assertEqual(len(lines), 2, lines)
                self.assertRegex(lines[0], r"^4\.00 MiB in 1 block of 4\.00 MiB(, managed memory)?, allocated by "
                                 r"libholder_static\.so$")

    def test_memory_that_another_library_freed(self):
        """A block that is kept for the next request of its size keeps its record, and changes its holder.  After so
        many pairs some are kept."""
        for first, second in ((SHARED, STATIC), (STATIC, SHARED)):
            for how in ("malloc", "driver"):
                lines = self.holders(*["hold", first, how, "64", "free", first] * 60,
                                     *["hold", second, how, "64"] * 60)
                self.assertEqual(lines, ["3.75 MiB in 60 blocks of 64.0 KiB, allocated by " + os.path.basename(second)])

    def test_a_runtime_that_sees_every_call(self):
        """The runtime asks the driver: for the library."""
        counting, by_handle = library("holder_counting"), library("holder_by_handle")
        runtime = {"DOOR_RUNTIME": library("door_runtime")}
        for more, settings in (({}, {}), ({"DOOR_VERSION": "11080"}, {}), ({}, {"RMM_HOOKS": "device"}),
                               ({"CUDA_INJECTION64_PATH": "/nowhere/tool.so"}, {})):
            for name in counting, by_handle:
                with self.subTest("%s %s %s" % (name, more, settings)):
                    lines = self.holders("hold", name, "malloc", "1024", "hold", SHARED, "malloc", "64",
                                         "hold", name, "malloc", "1024", more=dict(runtime, **more), **settings)
                    self.assertEqual(lines, [
                        "2.00 MiB in 2 blocks of 1.00 MiB, allocated by " + os.path.basename(name),
                        "64.0 KiB in 1 block of 64.0 KiB, allocated by libholder_shared.so"])

    def test_a_runtime_that_asks_for_nobody_known(self):
        """Its next request is the library's again."""
        counting = library("holder_counting")
        lines = self.holders("hold", "generated", "malloc", "64", "hold", counting, "malloc", "1024",
                             "hold", "generated", "malloc", "64", preload=[support.SHIM, library("door_runtime")],
                             more={"DOOR_VERSION": "11080"})
        self.assertEqual(lines, ["1.00 MiB in 1 block of 1.00 MiB, allocated by libholder_counting.so",
                                 "128 KiB in 2 blocks of 64.0 KiB, allocated by libdoor_runtime.so"])

    def test_many_libraries_and_sizes(self):
        """Eight libraries, and four sizes of each."""
        steps = []
        for i in range(10):
            copy = self.path("libcopy_%d.so" % i)
            shutil.copy(STATIC, copy)
            for j in range(1 + (i == 9) * 5):
                steps += ["hold", copy, "driver", str((i + 1) * 64 >> j)]
        lines = self.holders(*steps)
        self.assertEqual(lines[0], "1.23 MiB in 6 blocks, allocated by libcopy_9.so")
        self.assertEqual(lines[1:6], ["  640 KiB in 1 block of 640 KiB", "  320 KiB in 1 block of 320 KiB",
                                      "  160 KiB in 1 block of 160 KiB", "  80.0 KiB in 1 block of 80.0 KiB",
                                      "  and 60.0 KiB in 2 more blocks"])
        self.assertEqual([line.split()[-1] for line in lines[6:13]], ["libcopy_%d.so" % i for i in range(8, 1, -1)])
        self.assertEqual(lines[13:], ["and 192 KiB in 2 more blocks"])

    def test_json(self):
        path = self.path("oom.json")
        self.report("hold", SHARED, "malloc", "4096", "hold", STATIC, "malloc", "1024", "hold", STATIC, "driver", "64",
                    "hold", "generated", "-", "2048", on_oom="json:" + path)
        report = json_schema.read(path, "oom.json")
        self.assertEqual((report["by"], report["more"]), ("library", {"bytes": 0, "blocks": 0}))
        size = {"blocks": 1, "bytes": 4 * MIB, "smallest": 4 * MIB, "largest": 4 * MIB}
        self.assertEqual(report["holders"][0], {"kind": "device", "bytes": 4 * MIB, "blocks": 1,
                                                "library": "libholder_shared.so", "sizes": [size]})
        self.assertNotIn("library", report["holders"][1])
        self.assertEqual([each["bytes"] for each in report["holders"][2]["sizes"]], [MIB, 64 << 10])

    def test_call_sites_come_first(self):
        text = self.report("hold", SHARED, "malloc", "4096", RMM_TRACKING="1").stderr
        self.assertIn("  4.00 MiB in 1 block, allocated at\n    hold+", text)
        self.assertNotIn("allocated by", text)

    def test_a_library_that_is_gone(self):
        lines = self.holders("hold", SHARED, "driver", "1024", "hold", STATIC, "driver", "64", "unload", SHARED)
        self.assertEqual(lines[0], "1.00 MiB in 1 block of 1.00 MiB, allocated by libholder_shared.so")

    def test_a_library_in_the_place_of_another(self):
        """Calls of both return to the same addresses."""
        for origin, how in ((STATIC, "driver"), (SHARED, "malloc")):
            names = [self.path("libfirst.so"), self.path("libsecond.so")]
            for name in names:
                shutil.copy(origin, name)
            result = self.report("where", names[0], "hold", names[0], how, "1024", "unload", names[0],
                                 "where", names[1], "hold", names[1], how, "1024")
            first, second, _ = result.stdout.split()
            said = re.findall(r"  2\.00 MiB in 2 blocks of 1\.00 MiB, (.*)", result.stderr)
            if first != second:
                self.skipTest("the loader found another place")
            self.assertEqual(said, ["allocated by an unknown library"], str(result))


class Others(support.Test):
    @contextlib.contextmanager
    def holding(self, mib, name=None, uuid=DEVICE_UUID, more=None, **settings):
        """A process that has taken so much, until the end."""
        env = support.environment(dict(SETTINGS, **settings), more=dict(DEVICE, HOSTCUDA_UUID=str(uuid), **(more or {})))
        with subprocess.Popen([name or "holder"], executable=support.program("memory_steps"), env=env,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdin.write(b"device %d\n" % mib)
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), b"done\n")
            yield process.pid
            process.stdin.close()

    def refuse(self, kind="device", json=False, more=None):
        """The report of a refused request, at a time at which the machine lets it look at all processes."""
        path = self.path("oom")

        def whole_report():
            run([support.program("memory_steps"), "device", "2", kind, "1000"],
                dict(SETTINGS, RMM_ON_OOM=("json:" if json else "text:") + path,
                     RMM_PINNED_RESOURCE="limiting(pool(pinned), limit=10MiB)"), more=dict(DEVICE, **(more or {})))
            with open(path, encoding="utf-8") as file:
                report = file.read()
            return report if support.NO_TIME not in report and '"complete":false' not in report else None

        return support.until(whole_report, "a report for which there was time")

    def others(self, **how):
        return re.findall(r"^  (\S+ \S+) held by (.*)$", self.refuse(**how), re.M)

    def test_nobody(self):
        self.assertEqual(self.others(), [])

    def test_the_most_first(self):
        with self.holding(8) as small, self.holding(20, "large one") as large:
            self.assertEqual(self.others(), [("20.0 MiB", "large one (pid %d)" % large),
                                             ("8.00 MiB", "holder (pid %d)" % small)])
            others = json_schema.check(self.refuse(json=True), "oom.json")["others"]
            self.assertEqual(others["processes"], [{"pid": large, "program": "large one", "held": 20 * MIB},
                                                   {"pid": small, "program": "holder", "held": 8 * MIB}])
            self.assertEqual(others["more"], {"held": 0, "processes": 0})
            self.assertIs(others["complete"], True)

    def test_whom_the_own_limit_does_not_concern(self):
        """The text is of what refused; the JSON has all."""
        with self.holding(8) as other:
            more = {"RMM_LIMIT": "64MiB"}
            self.assertEqual(self.others(more=more), [])
            report = json_schema.check(self.refuse(json=True, more=more), "oom.json")
            self.assertEqual((report["refused_by"], [process["pid"] for process in report["others"]["processes"]]),
                             ("limit", [other]))
            self.assertEqual(json_schema.check(self.refuse(json=True), "oom.json")["refused_by"], "device")

    def test_the_device_is_the_same_and_not_its_number(self):
        """Device 0 of the one is device 1 of the other."""
        with self.holding(8, uuid=DEVICE_UUID + 1) as second:
            self.assertEqual(self.others(), [])
            more = {"HOSTCUDA_UUID": str(DEVICE_UUID + 1)}
            self.assertEqual(self.others(more=more), [("8.00 MiB", "holder (pid %d)" % second)])

    def test_pinned_memory_has_no_device(self):
        with self.holding(8):
            self.assertEqual(self.others(kind="pinned"), [])

    def test_more_than_eight(self):
        with contextlib.ExitStack() as stack:
            for mib in range(2, 22, 2):
                stack.enter_context(self.holding(mib))
            lines = self.others()
        self.assertEqual([line[0] for line in lines[:8]], ["%d.0 MiB" % mib for mib in range(20, 9, -2)] +
                         ["8.00 MiB", "6.00 MiB"])
        self.assertEqual(lines[8:], [("6.00 MiB", "2 more processes")])

    def test_names_are_plain(self):
        with self.holding(8, "a\033[2J\u202e\nb"):
            line, = self.others()
        self.assertTrue(line[1].startswith("a?[2J??b (pid "), line)

    def test_a_run_holds_the_pages_of_its_processes(self):
        """A parent that has a page open, as `rmmshim run` and a process that forked have, is not their process."""
        with self.holding(8) as holder:
            fd = next(os.open("/proc/%d/fd/%s" % (holder, name), os.O_RDONLY)
                      for name in os.listdir("/proc/%d/fd" % holder)
                      if os.readlink("/proc/%d/fd/%s" % (holder, name)) == "/memfd:rmmshim (deleted)")
            high = fcntl.fcntl(fd, F_DUPFD_CLOEXEC, 700)
            try:
                self.assertEqual(len(self.others()), 1)
            finally:
                os.close(fd)
                os.close(high)

    def test_pages_that_make_no_sense(self):
        """Of this very process."""
        with self.holding(8) as holder:
            page = next(name for name in os.listdir("/proc/%d/fd" % holder)
                        if os.readlink("/proc/%d/fd/%s" % (holder, name)) == "/memfd:rmmshim (deleted)")
            with open("/proc/%d/fd/%s" % (holder, page), "rb") as file:
                sound = file.read(1 << 20)
        sound = sound[:32] + struct.pack("i", os.getpid()) + sound[36:]
        for content, length, is_listed in ((sound, PUBLISHED_BYTES, True), (sound, len(sound), False),
                                           (b"x" * len(sound), PUBLISHED_BYTES, False),
                                           (sound[:32] + b"\xff" * (len(sound) - 32), PUBLISHED_BYTES, False),
                                           (sound[:4096] + b"\xff" * (len(sound) - 4096), PUBLISHED_BYTES, False)):
            fd = os.memfd_create("rmmshim", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            high = fcntl.fcntl(fd, F_DUPFD_CLOEXEC, 700)
            try:
                os.write(fd, content)
                os.ftruncate(fd, length)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                self.assertEqual(len(self.others()), is_listed)
            finally:
                os.close(fd)
                os.close(high)


if __name__ == "__main__":
    support.main()
