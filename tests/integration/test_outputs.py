# SPDX-License-Identifier: Apache-2.0
"""Lines, reports and logs that cannot be written do the program no harm."""
import json
import os
import re
import subprocess
import unittest

import support
from support import run


class NoSignals(support.Test):
    """What the library writes raises no signal in the program."""

    OUTPUTS = [
        {"RMM_POOL_SIZE": "64MiB", "RMM_VERBOSE": "1"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_STATISTICS": "1"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_TRACKING": "1"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": "/dev/stderr"},
        {"RMM_POOL_SIZE": "nonsense", "RMM_ON_ERROR": "passthrough"},
    ]

    def test_reader_is_gone(self):
        """As in `program 2>&1 | head -1`: the program goes on and ends as it does without us."""
        command = [support.program("life_runtime_shared"), "plain", "live"]
        plain = support.run_plain(command)
        for settings in self.OUTPUTS:
            with self.subTest(str(settings)):
                reader, writer = os.pipe()
                os.close(reader)
                process = subprocess.Popen(command, env=support.environment(settings), stdout=subprocess.PIPE,
                                           stderr=writer)
                os.close(writer)
                stdout = process.communicate(timeout=support.ENOUGH_SECONDS)[0].decode()
                self.assertEqual((process.returncode, stdout), plain.outcome)

    def test_file_may_not_grow(self):
        """As under `ulimit -f`, which concerns files in memory too: one line, and the program goes on."""
        command = [support.program("outputs"), "limited"]
        for name, value in (("RMM_LOG", "%s"), ("RMM_STATISTICS", "json:%s"), ("RMM_TRACKING", "text:%s")):
            with self.subTest(name):
                path = self.path(name)
                result = self.assert_same(command, {"RMM_POOL_SIZE": "64MiB", name: value % path}, silent=False)
                self.assertEqual(sum("File too large" in line for line in result.said), 1, result)


class NoCancellation(support.Test):
    """A cancelled thread ends at a cancellation point of the program's, with none of our locks."""

    SETTINGS = [
        {"RMM_POOL_SIZE": "64MiB"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_LOG": "log"},
        {"RMM_RESOURCE": "logging(pool(cuda), path=log, auto_flush=1)"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_VERBOSE": "1"},
        {"RMM_POOL_SIZE": "nonsense", "RMM_ON_ERROR": "passthrough"},
        {"RMM_POOL_SIZE": "8MiB", "RMM_LIMIT": "32MiB", "RMM_STATISTICS": "json:report"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_TRACKING": "json:leaks"},
        {"RMM_ARENA_SIZE": "64MiB"},
        {"RMM_RESOURCE": "virtual", "RMM_LIMIT": "64MiB"},
        {"RMM_POOL_MAX_SIZE": "64MiB", "RMM_FREE": "wait"},
        {"RMM_RESOURCE": "poison(pool(cuda, maximum_size=64MiB))"},
        {"RMM_POOL_SIZE": "64MiB", "RMM_BINNING": "4KiB-1MiB"},
    ]

    def test_a_cancelled_thread(self):
        command = [support.program("outputs"), "cancelled"]
        for settings in self.SETTINGS:
            with self.subTest(str(settings)):
                self.assert_same(command, settings, silent=False, cwd=self.folder)


class ManyCounters(support.Test):
    """Every counter of every resource is in the report, however many there are."""

    # Every word that serves a program, but for leaves: a stack has one or two.
    WORDS = ("statistics(tracking(limiting(aligned(poison(binning(prefetch(headroom(fallback(arena("
             "pool(fixed_size(managed)), arena_size=64MiB), virtual), headroom=1MiB))))), limit=1GiB)))")

    def resources(self, path):
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        return [(counter["resource"], counter["name"]) for device in report["devices"] for counter in device["counters"]]

    def test_an_expression_of_many_words(self):
        result = self.assert_same([support.program("outputs"), "pushed"], {
            "RMM_RESOURCE": self.WORDS, "RMM_STATISTICS": "json:" + self.path("report"), "RMM_TRACKING": "0"})
        self.assertEqual(result.status, 0)
        counters = self.resources(self.path("report"))
        self.assertGreater(len(counters), 96)
        self.assertEqual(len(counters), len(set(counters)))
        words = set(re.findall(r"\w+(?=\()", self.WORDS)) | {"managed", "virtual", "async", "async_managed", "pinned",
                                                               "account"}
        self.assertEqual({resource for resource, _ in counters} - {"cuda", "reuse", "program"}, words)

    def test_pushed_stacks_without_statistics(self):
        self.assert_same([support.program("outputs"), "pushed"], {"RMM_RESOURCE": "pool(cuda)"})


class ExitInHandler(support.Test):
    """A process that exits in a signal's handler, in the middle of a call of ours, ends."""

    # Where it is interrupted, and what it then says was left out.
    PLACES = [
        ("log", {"RMM_LOG": "log.csv"}, "log.csv"),
        ("pool", {}, "pool"),
        ("contexts", {}, "contexts"),
    ]

    @unittest.skipIf(support.PRELOAD_FIRST, "sanitizers stand in for these functions of libc's themselves")
    def test_what_is_locked_is_left_out(self):
        for place, more, left_out in self.PLACES:
            for statistics in ("json", "text", "prom"):
                with self.subTest("%s, %s" % (place, statistics)):
                    settings = dict(more, RMM_POOL_SIZE="64MiB", RMM_TRACKING="json:leaks",
                                    RMM_STATISTICS="%s:report" % statistics)
                    folder = self.path("%s.%s" % (place, statistics))
                    os.mkdir(folder)
                    result = run([support.program("outputs"), "left", place], settings, cwd=folder)
                    self.assertEqual(result.outcome, (9, "going\n"), result)
                    left = os.path.join(folder, left_out) if "." in left_out else left_out
                    self.assertEqual(result.said, ["reports or logs are incomplete: at exit a thread was still using what rmmshim needs for %s; let all threads end before "
                                                   "exit, and call exit outside of signal handlers" % left],
                                     result)

    @unittest.skipIf(support.PRELOAD_FIRST, "sanitizers stand in for these functions of libc's themselves")
    def test_what_is_not_locked_is_there(self):
        """The counters of other resources are reported."""
        run([support.program("outputs"), "left", "pool"],
            {"RMM_RESOURCE": "statistics(pool(cuda))", "RMM_STATISTICS": "json:" + self.path("report")})
        with open(self.path("report"), encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["left_out"], ["pool"])
        names = {counter["resource"] for counter in report["devices"][0]["counters"]}
        self.assertNotIn("pool", names)
        self.assertLessEqual({"statistics", "cuda", "account"}, names)


if __name__ == "__main__":
    support.main()
