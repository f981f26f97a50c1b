# SPDX-License-Identifier: Apache-2.0
"""A thread and a coroutine with 16 KiB of stack: whatever a request does first, or when it is refused, needs less."""
import os
import unittest

import support
from support import run

# With a file for each output, as paths are what takes most room.
SETTINGS = [
    {"RMM_POOL_SIZE": "0"},
    {"RMM_POOL_SIZE": "0", "RMM_TRACKING": "1", "RMM_ON_OOM": "text", "RMM_VERBOSE": "1"},
    {"RMM_POOL_SIZE": "0", "RMM_TRACKING": "json:%s/leaks", "RMM_ON_OOM": "json:%s/oom", "RMM_ONLY": "small_stack"},
    {"RMM_POOL_SIZE": "0", "RMM_TRACKING": "text:%s/leaks", "RMM_ON_OOM": "text:%s/oom", "RMM_LOG": "%s/log.csv",
     "RMM_STATISTICS": "json:%s/statistics"},
    {"RMM_ARENA_SIZE": "256MiB", "RMM_TRACKING": "1", "RMM_ON_OOM": "text:%s/oom"},
    {"RMM_POOL_SIZE": "0", "RMM_LIMIT_JOB": "4GiB", "RMM_JOB": "%s/job", "RMM_TRACKING": "1", "RMM_ON_OOM": "text:%s/oom"},
]


@unittest.skipIf(support.PRELOAD_FIRST, "sanitizers need more")
class SmallStacks(support.Test):
    def test_first_requests_and_refusals(self):
        for number, settings in enumerate(SETTINGS):
            folder = self.path(str(number))
            os.mkdir(folder)
            settings = {name: value.replace("%s", folder) for name, value in settings.items()}
            for how in "thread", "coroutine":
                with self.subTest("%s under %s" % (how, settings)):
                    # How much of a stack the loader needs to find a function depends on the processor.
                    result = run([support.program("small_stack"), how], settings, more={"LD_BIND_NOW": "1"})
                    self.assertEqual(result.outcome, support.run_plain([support.program("small_stack"), how]).outcome, result)
                    self.assertEqual(result.status, 0, result)


if __name__ == "__main__":
    support.main()
