# SPDX-License-Identifier: Apache-2.0
"""Bad settings: one clear line for each, and the program ends, runs untouched or is denied memory,
as RMM_ON_ERROR says.  Nothing is said before the first call that allocates, frees or asks."""
import os

import support
from support import run

GIB = 1 << 30

# settings, words that the one line must hold (the variable first)
CASES = [
    ({"RMM_POOL_SIZE": "10Q"}, ["RMM_POOL_SIZE", "Q"]),
    ({"RMM_POOL_SIZE": "-1"}, ["RMM_POOL_SIZE", "-1"]),
    ({"RMM_POOL_SIZE": "200%"}, ["RMM_POOL_SIZE", "200"]),
    ({"RMM_POOL_SIZE": "1 GiB x"}, ["RMM_POOL_SIZE"]),
    ({"RMM_POOL_SIZE": "99999999999999999999GiB"}, ["RMM_POOL_SIZE"]),
    ({"RMM_POOL_SIZE": "2GiB", "RMM_POOL_MAX_SIZE": "1GiB"}, ["RMM_POOL_MAX_SIZE"]),
    ({"RMM_RESOURCE": "pol(cuda)"}, ["RMM_RESOURCE", "pool"]),
    ({"RMM_RESOURCE": "pool("}, ["RMM_RESOURCE", "pool("]),
    ({"RMM_RESOURCE": "pool(cuda"}, ["RMM_RESOURCE"]),
    ({"RMM_RESOURCE": "pool(cuda))"}, ["RMM_RESOURCE"]),
    ({"RMM_RESOURCE": "pool()"}, ["RMM_RESOURCE"]),
    ({"RMM_RESOURCE": "pool(cuda, initial=1GiB)"}, ["RMM_RESOURCE", "initial_size"]),
    ({"RMM_RESOURCE": "pool(" * 10000 + "cuda" + ")" * 10000}, ["RMM_RESOURCE"]),
    ({"RMM_RESOURCE": "cuda", "RMM_POOL_SIZE": "1GiB"}, ["RMM_POOL_SIZE", "RMM_RESOURCE"]),
    ({"RMM_MANAGED": "maybe"}, ["RMM_MANAGED", "maybe"]),
    ({"RMM_BINNING": "4MiB-256KiB", "RMM_POOL_SIZE": "1GiB"}, ["RMM_BINNING"]),
    ({"RMM_FREE": "wiat", "RMM_POOL_SIZE": "1GiB"}, ["RMM_FREE", "wait"]),
    ({"RMM_ON_ERROR": "abrt", "RMM_POOL_SIZE": "1GiB"}, ["RMM_ON_ERROR", "abort"]),
    ({"RMM_STATISTICS": "jsn:x", "RMM_POOL_SIZE": "1GiB"}, ["RMM_STATISTICS", "json"]),
    ({"RMM_ARENA_SIZE": "1GiB", "RMM_POOL_SIZE": "1GiB"}, ["RMM_ARENA_SIZE", "RMM_POOL_SIZE"]),
    ({"RMM_ARENA_SIZE": "1000KiB"}, ["RMM_ARENA_SIZE", "1MiB"]),
    ({"RMM_ASYNC": "2GiB"}, ["RMM_ASYNC", "2GiB"]),
    ({"RMM_RESOURCE": "pool(simulated)"}, ["RMM_RESOURCE", "simulated", "no memory"]),
    ({"RMM_POOL_SIZE_1": "10Q"}, ["RMM_POOL_SIZE_1", "Q"]),
    ({"RMM_Limit": "1GiB"}, ["RMM_Limit", "RMM_LIMIT"]),
    ({"RMM_LIMIT_GPU0": "1GiB"}, ["RMM_LIMIT_GPU0", "RMM_LIMIT_0"]),
    ({"RMM_LIMIT_100": "1GiB"}, ["RMM_LIMIT_100", "set RMM_LIMIT for all devices"]),
    ({"RMM_LIMIT": "8"}, ["RMM_LIMIT", "8GiB?"]),
    ({"RMM_LIMIT": "0%"}, ["RMM_LIMIT", "0%"]),
    ({"RMM_LIMIT": "1.0"}, ["RMM_LIMIT", "did you mean 100%"]),
    ({"RMM_POOL_SIZE": "0.5"}, ["RMM_POOL_SIZE", "did you mean 50%?"]),
]

# Names that may be ours: an error beside a setting of ours, else a line.
DOUBTFUL_CASES = [
    ({"RMM_POOLSIZE": "1GiB"}, ["RMM_POOLSIZE", "RMM_POOL_SIZE"]),
    ({"RMM_MANAGE": "1"}, ["RMM_MANAGE", "RMM_MANAGED"]),
    ({"RMM_POOL": "1GiB"}, ["RMM_POOL", "RMM_POOL_SIZE"]),
    ({"RMM_LOG_COLOR": "1"}, ["RMM_LOG_COLOR", "did you mean RMM_LOG?"]),
    ({"RMM_INITIAL_POOL_SIZE": "1GiB"}, ["RMM_INITIAL_POOL_SIZE", "did you mean RMM_POOL_SIZE?"]),
    ({"RMM_MAXIMUM_POOL_SIZE": "1GiB"}, ["RMM_MAXIMUM_POOL_SIZE", "did you mean RMM_POOL_MAX_SIZE?"]),
    ({"RMM_POOL_ALLOCATOR": "1"}, ["RMM_POOL_ALLOCATOR", "did you mean RMM_POOL_SIZE?"]),
]
SETTINGS_OF_OURS = [{"RMM_LIMIT": "4GiB"}, {"RMM_VERBOSE": "0"}, {"RMMSHIM_JOB": "1:2:3"}]

# These can only be seen on the device, which has 8 GiB.
DEVICE_CASES = [
    ({"RMM_POOL_SIZE": "16GiB"}, ["RMM_POOL_SIZE"]),
    ({"RMM_ARENA_SIZE": "16GiB"}, ["RMM_ARENA_SIZE"]),
    ({"RMM_RESOURCE": "pool(cuda, initial_size=16GiB)"}, ["RMM_RESOURCE"]),
    ({"RMM_POOL_SIZE": "80%", "RMM_POOL_MAX_SIZE": "1GiB"}, ["RMM_POOL"]),
    ({"RMM_RESOURCE": "async(initial_size=16GiB)"}, ["RMM_RESOURCE", "16GiB"]),
    ({"RMM_RESOURCE": "pool(system)"}, ["RMM_RESOURCE", "HMM"]),
]


def scene(*words):
    return [support.program("life_runtime_shared")] + list(words)


class BadSettings(support.Test):
    def complaints(self, result):
        """One line for each bad setting; a last one may say what happens now."""
        lines = result.said
        self.assertEqual(len(lines), result.stderr.count("\n"), result)
        if lines and lines[-1].startswith("bad settings: "):
            lines.pop()
        return lines

    def assert_one_line(self, result, words, context):
        lines = self.complaints(result)
        self.assertEqual(len(lines), 1, "%s\n%s" % (context, result))
        line = lines[0]
        self.assertLess(len(line), 600, context)
        for word in words:
            # A '^' stands in front of the wrong place.
            self.assertIn(word, line.replace("^", ""), "%s: %s" % (context, line))

    def test_ends_the_process_by_default(self):
        for settings, words in CASES + DEVICE_CASES:
            for more in ({}, {"RMM_ON_ERROR": "abort"}):
                if "RMM_ON_ERROR" in settings and more:
                    continue
                context = str(settings)[:200]
                with self.subTest(context):
                    result = run(scene("first_call", "malloc"), dict(settings, **more))
                    self.assertEqual(result.status, 78, "%s\n%s" % (context, result))
                    self.assertEqual(result.stdout, "before\n", context)
                    self.assert_one_line(result, words, context)

    def test_passthrough_runs_untouched(self):
        plain = run(scene("plain"), preload=[])
        for settings, words in CASES + DEVICE_CASES:
            if "RMM_ON_ERROR" in settings:
                continue
            context = str(settings)[:200]
            with self.subTest(context):
                result = run(scene("plain"), dict(settings, RMM_ON_ERROR="passthrough"))
                self.assertEqual(result.outcome, plain.outcome, "%s\n%s" % (context, result))
                self.assert_one_line(result, words, context)

    def test_deny_answers_out_of_memory(self):
        for settings, words in CASES + DEVICE_CASES:
            if "RMM_ON_ERROR" in settings:
                continue
            context = str(settings)[:200]
            with self.subTest(context):
                result = run(scene("first_call", "malloc"), dict(settings, RMM_ON_ERROR="deny"))
                self.assertEqual(result.status, 0, "%s\n%s" % (context, result))
                self.assertIn("cudaMalloc(&p, BYTES) = 2\n", result.stdout, context)
                self.assertIn("cudaFree(p) = 0\n", result.stdout, context)
                self.assert_one_line(result, words, context)

    def test_a_doubtful_name_ends_the_process_beside_a_setting(self):
        for settings, words in DOUBTFUL_CASES:
            for ours in SETTINGS_OF_OURS:
                with self.subTest("%s beside %s" % (settings, ours)):
                    result = run(scene("first_call", "malloc"), dict(settings, **ours))
                    self.assertEqual((result.status, result.stdout), (78, "before\n"), result)
                    self.assert_one_line(result, words, str(settings))

    def test_a_doubtful_name_alone_is_one_line(self):
        plain = run(scene("plain"), preload=[])
        for settings, words in DOUBTFUL_CASES:
            with self.subTest(str(settings)):
                result = run(scene("plain"), dict(settings, RMM_LIMIT="", RMM_LOG_LEVEL="x", RMM_FOO="1"))
                self.assertEqual(result.outcome, plain.outcome, result)
                self.assert_one_line(result, words + ["ignored"], str(settings))

    def test_first_call_that_frees_or_asks(self):
        for call in ("free", "info"):
            result = run(scene("first_call", call), {"RMM_POOL_SIZE": "10Q"})
            self.assertEqual(result.status, 78, result)
            self.assert_one_line(result, ["RMM_POOL_SIZE"], call)

    def test_several_errors_are_told_together(self):
        result = run(scene("first_call", "malloc"), {"RMM_POOL_SIZE": "10Q", "RMM_MANAGED": "maybe"})
        self.assertEqual(result.status, 78, result)
        self.assertEqual(len(self.complaints(result)), 2, result)

    def test_terminal_escapes_are_not_passed_on(self):
        result = run(scene("first_call", "malloc"), {"RMM_POOL_SIZE": "1\x1b[31mG\nfalse line"})
        self.assertEqual(result.status, 78, result)
        self.assertNotIn("\x1b", result.stderr)
        self.assertEqual(len(self.complaints(result)), 1, result)

    def test_nothing_before_memory_is_wanted(self):
        bad = {"RMM_POOL_SIZE": "10Q"}
        result = self.assert_same(scene("first_call", "nothing"), bad)
        self.assertEqual(result.status, 0)
        self.assert_same(scene("first_call", "count"), bad)
        self.assert_same(["true"], bad)
        self.assert_same(["sh", "-c", "echo hello; exit 3"], bad)
        self.assert_same(["python3", "-c", "print(6 * 7)"], bad)

    def test_nothing_at_look_ups(self):
        command = [support.program("test_lookup"), os.environ["HOSTCUDA_EXPORTS"]]
        result = run(command, {"RMM_POOL_SIZE": "10Q"})
        self.assertEqual((result.status, result.stderr), (0, ""), result)


class Tolerated(support.Test):
    """Settings that are not ours, and outputs that cannot be written."""

    def test_names_of_others_are_ignored(self):
        for settings in ({"RMM_LOG_FILE": self.path("a.csv")}, {"RMM_DEBUG_LOG_FILE": self.path("b.log")},
                         {"RMM_FOO": "1"}, {"RMM_": "1"}, {"RMM_TAG": "x"}, {"RMM_POOL_SIZE": ""},
                         {"RMM_LIMIT_SERVICE_HOST": "10.0.0.1", "RMM_LIMIT_PORT": "tcp://10.0.0.1:80"},
                         {"RMM_LOG_FILE": "x", "RMM_DEBUG_LOG_FILE": "x", "RMM_LOGGING_LEVEL": "debug"},
                         {"RMM_LOG_LEVEL": "debug", "RMM_LOG_DIR": "x", "RMM_LOGGING": "1", "RMM_ALLOCATOR": "x"},
                         {"RMM_MANAGED_MEMORY": "1", "RMM_ASYNC_ALLOC": "1", "RMM_DEVICES": "0"},
                         {"RMM_JOBS": "8", "RMM_TREE": "/x"},
                         {"RMMSHIM_LIBRARY": "x"}):
            for more in ({}, {"RMM_POOL_SIZE": "1GiB"}):
                with self.subTest(str(settings)):
                    self.assert_same(scene("plain"), dict(more, **settings))
        self.assertEqual(os.listdir(self.folder), [])

    def test_ignored_names_are_named_when_asked(self):
        settings = {"RMM_LOG_LEVEL": "debug", "RMM_FOO": "1", "RMM_JOBS": "", "RMM_VERBOSE": "1"}
        for more in ({}, {"RMM_POOL_SIZE": "1GiB"}):
            result = run(scene("plain"), dict(settings, **more))
            self.assertEqual(sorted(line for line in result.said if "ignored" in line),
                             ["RMM_FOO=1: this is not a variable of rmmshim and is ignored",
                              "RMM_LOG_LEVEL=debug: this variable belongs to RAPIDS RMM and is ignored; rmmshim writes "
                              "a log when RMM_LOG is set"], result)

    def test_unwritable_outputs_are_one_line(self):
        folder = self.path("missing/")
        os.mkdir(self.path("directory"))
        plain = run(scene("plain"), preload=[])
        for name, value in (("RMM_LOG", folder + "log.csv"), ("RMM_LOG", self.path("directory")),
                            ("RMM_STATISTICS", "json:" + folder + "report"),
                            ("RMM_STATISTICS", "text:" + self.path("directory"))):
            with self.subTest("%s=%s" % (name, value)):
                result = run(scene("plain"), {name: value, "RMM_POOL_SIZE": "1GiB"})
                self.assertEqual(result.outcome, plain.outcome, result)
                self.assertEqual(len(result.said), 1, result)
                self.assertIn(value.partition(":")[2] or value, result.said[0])

    def test_pool_larger_than_what_is_free(self):
        # The context itself takes some of the device's memory.
        plain = run(scene("plain"), preload=[])
        result = run(scene("plain"), {"RMM_POOL_SIZE": "8GiB"})
        self.assertEqual(result.outcome, plain.outcome, result)
        self.assertEqual(len(result.said), 1, result)
        self.assertIn("8GiB", result.said[0])


if __name__ == "__main__":
    support.main()
