# SPDX-License-Identifier: Apache-2.0
"""The settings are those of the environment with which the process was started: what the program does to it
later changes nothing, and is never read."""
import os

import support
from support import run

SETS = [support.program("environment"), "set"]
UNREADABLE = [support.program("environment"), "unreadable"]


class Environment(support.Test):
    def test_what_a_program_sets_for_itself_is_no_setting(self):
        plain = run(SETS, preload=[])
        for words in (["RMM_POOL_SIZE=10Q"], ["RMM_POOL_SIZE=8GiB"], ["RMM_Limit=1"], ["RMM_RESOURCE=mine"],
                      ["RMM_LIMIT=256KiB", "RMM_LIMIT_0=256KiB"], ["RMM_ONLY=another"], ["RMM_VERBOSE=1"],
                      ["RMM_LOG=log.csv", "RMM_STATISTICS=1"], ["RMMSHIM_JOB=1:2:3", "RMM_LIMIT_JOB=256KiB"],
                      ["RMM_COMPAT=hami", "CUDA_DEVICE_MEMORY_LIMIT=256k"]):
            for settings in ({}, {"RMM_LIMIT": "4GiB"}, {"RMM_POOL_SIZE": "0"}, {"RMM_COMPAT": "hami"}):
                with self.subTest("%s under %s" % (words, settings)):
                    result = run(SETS + words, settings, cwd=self.folder)
                    self.assertEqual(result.outcome, plain.outcome, result)
                    self.assertEqual(result.stderr, "", result)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_setting_stays_what_it_was(self):
        """A limit that the program lifts, a path that it redirects."""
        for words in (["RMM_LIMIT=4GiB"], ["RMM_LIMIT="], ["LIMIT=4GiB"], ["RMM_ON_ERROR=passthrough"]):
            with self.subTest(str(words)):
                result = run(SETS + words, {"RMM_LIMIT": "%q{LIMIT}", "LIMIT": "6MiB"})
                self.assertEqual(result.stdout, "alloc = 0\nalloc = 2\nfree = 0\nfree = 0\n", result)
        result = run(SETS + ["RANK=7", "WHERE=" + self.path("late")],
                     {"RMM_STATISTICS": "json:%q{WHERE}.%r", "WHERE": self.path("early"), "RANK": "3"})
        self.assertEqual((result.status, result.stderr), (0, ""), result)
        self.assertEqual(os.listdir(self.folder), ["early.3"])

    def test_a_variable_that_comes_later_is_not_set(self):
        result = run(SETS + ["LIMIT=4GiB"], {"RMM_LIMIT": "%q{LIMIT}"})
        self.assertEqual((result.status, result.stdout), (78, ""), result)
        self.assertIn("RMM_LIMIT=^%q{LIMIT}: %q{...} names an environment variable that is not set", result.stderr)

    def test_the_environment_is_not_read_later(self):
        statistics = "json:" + self.path("%q{PART}.%r.%p")
        for settings in ({}, {"RMM_POOL_SIZE": "0"}, {"RMM_POOL_SIZE": "%q{PART}GiB"}, {"RMM_LIMIT": "4GiB"},
                         {"RMM_POOL_SIZE": "1GiB", "RMM_ONLY": "environment"},
                         {"RMM_POOL_SIZE": "1GiB", "RMM_ONLY": "another"},
                         {"RMM_COMPAT": "hami", "CUDA_DEVICE_MEMORY_LIMIT": "4g", "RMM_VERBOSE": "1"},
                         {"RMM_STATISTICS": statistics, "RMM_TRACKING": "text:" + self.path("leaks.%q{PART}")},
                         {"RMM_ON_OOM": "json:" + self.path("oom.%q{PART}"), "RMM_CONTROL": "thread"},
                         {"RMM_LOG": self.path("log.%q{PART}.%p"), "RMM_POOL_SIZE": "0"},
                         {"RMM_LIMIT_JOB": "4GiB", "RMM_JOB": self.path("job.%q{PART}")},
                         {"RMM_POOL_SIZE": "1GiB", "NV_SANITIZER_INJECTION_PORT_BASE": "1"}):
            for ways in ([], ["refused"], ["forked"], ["overwritten", "refused"]):
                with self.subTest("%s under %s" % (ways, settings)):
                    plain = run(UNREADABLE + ways, preload=[])
                    result = run(UNREADABLE + ways, dict(settings, PART="2"))
                    self.assertEqual(plain.status, 0, plain)
                    self.assertEqual(result.outcome, plain.outcome, result)

    def test_a_large_environment(self):
        many = {"V%d" % i: "x" * 1000 for i in range(1000)}
        last = {"~%d" % i: "x" * 1000 for i in range(200)}
        settings = dict(many, RMM_LIMIT="%q{LIMIT}", **dict(last, LIMIT="6MiB"))
        result = run(SETS + ["LIMIT=4GiB"], settings)
        self.assertEqual(result.stdout, "alloc = 0\nalloc = 2\nfree = 0\nfree = 0\n", result)


if __name__ == "__main__":
    support.main()
