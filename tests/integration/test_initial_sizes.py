# SPDX-License-Identifier: Apache-2.0
"""What a stack takes at its first allocation stays, and comes back: in the next context, and after
requests that take all there is or cannot be served."""
import json
import os

import support
from support import run

MIB = 1 << 20
# 64 MiB of the device are the program's.
SMALL = {"HOSTCUDA_MEMORY": "96MiB", "HOSTCUDA_CONTEXT_MEMORY": "32MiB", "HOSTCUDA_PAGEABLE": "1"}

POOL = {"RMM_POOL_SIZE": "16MiB"}
ASYNC = {"RMM_RESOURCE": "async(initial_size=16MiB)"}
VIRTUAL = {"RMM_RESOURCE": "virtual(initial_size=16MiB)"}
ARENA = {"RMM_ARENA_SIZE": "16MiB"}
POOLS = [
    POOL,
    {"RMM_POOL_SIZE": "16MiB", "RMM_FREE": "immediate"},
    {"RMM_POOL_SIZE": "16MiB", "RMM_FREE": "wait"},
    {"RMM_POOL_SIZE": "16MiB", "RMM_BINNING": "256KiB-512KiB"},
    {"RMM_RESOURCE": "pool(cuda, initial_size=16MiB, growth=rmm)"},
    {"RMM_RESOURCE": "limiting(statistics(pool(cuda, initial_size=16MiB)), limit=1GiB)"},
    {"RMM_RESOURCE": "pool(pool(cuda), initial_size=16MiB)"},
    {"RMM_RESOURCE": "pool(limiting(cuda, limit=1GiB), initial_size=16MiB)"},
    {"RMM_POOL_SIZE": "16MiB", "HOSTCUDA_DRIVER_VERSION": "11040"},
]


class InitialSizes(support.Test):
    def steps(self, settings, steps, **more):
        """What the program prints, and the counters of each kind's stacks."""
        path = self.path("report.json")
        result = run([support.program("memory_steps")] + steps.split(),
                     dict(settings, RMM_STATISTICS="json:" + path), more=dict(SMALL, **more))
        self.assertEqual((result.status, result.stderr), (0, ""), "%s\n%s" % (settings, result))
        counters = {}
        if os.path.exists(path) and os.path.getsize(path):
            with open(path, encoding="utf-8") as file:
                for stack in json.load(file)["devices"]:
                    for c in stack["counters"]:
                        counters[stack["kind"], c["resource"], c["name"]] = c["value"]
        return result.stdout, counters

    def prints(self, settings, steps, *lines, **more):
        """In use may be 2 MiB more, for blocks of 512 bytes that are the library's own."""
        with self.subTest("%s %s" % (settings, steps)):
            stdout, _ = self.steps(settings, steps, **more)
            got = stdout.splitlines()
            for i, line in enumerate(lines):
                words = line.split()
                if words[0] == "used" and got[i:] and got[i] == "used %d" % (int(words[1]) + 2):
                    got[i] = line
            self.assertEqual(got, list(lines))

    def test_every_context_after_another_takes_it(self):
        for settings in POOLS + [ASYNC, VIRTUAL, ARENA]:
            self.prints(settings, "device 1 used reset retain device 1 used reset retain device 1 used", *["used 16"] * 3)
            self.prints(settings, "create device 1 used destroy create device 1 used", *["used 16"] * 2)

    def test_only_one_context_at_a_time_takes_it(self):
        """A context that comes while another has it begins with what it needs, 1 MiB in 2."""
        for settings in (POOL, VIRTUAL):
            self.prints(settings, "device 1 create device 1 used destroy", "used 2")
            self.prints(settings, "create device 1 retain device 1 used", "used 2")

    def test_an_async_pool_without_room_begins_empty(self):
        result = run([support.program("memory_steps"), "device", "60"], {"RMM_RESOURCE": "async(initial_size=80MiB)"},
                     more=SMALL)
        self.assertEqual((result.outcome, len(result.said)), ((0, ""), 1), result)
        self.assertIn("the initial size of 80MiB could not be reserved (CUDA_ERROR_OUT_OF_MEMORY)", result.said[0])

    def test_other_memory(self):
        for settings, kind in (({"RMM_PINNED_POOL_SIZE": "16MiB"}, "pinned"),
                               ({"RMM_MANAGED_POOL_SIZE": "16MiB"}, "managed"),
                               ({"RMM_RESOURCE": "pool(system, initial_size=16MiB)"}, "device"),
                               ({"RMM_RESOURCE": "pool(fallback(system, managed(charged=0)), initial_size=16MiB)"},
                                "device")):
            for steps in ("%s 1 reset retain %s 1", "create %s 1 destroy create %s 1",
                          "%s 1 free %s 99999999 used"):
                with self.subTest("%s %s" % (settings, steps)):
                    _, counters = self.steps(settings, steps.replace("%s", kind))
                    self.assertEqual(counters[kind, "pool", "held"], 16 * MIB)

    def test_more_than_the_device_has(self):
        settings = {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "128MiB"}
        for steps in ("device 1 free device 99999999 device 1", "device 1 free ordered 60 device 1"):
            with self.subTest("%s %s" % (settings, steps)):
                _, counters = self.steps(settings, steps)
                self.assertEqual(counters["device", "pool", "held"], 128 * MIB)

    def test_the_driver_takes_what_its_pool_has_idle(self):
        """For whatever does not fit, as from any pool of its own; the next requests are served as before.  For what its
        own pool is asked it gathers all that fits, of which the initial size stays."""
        for steps, line, used in (("device 100 device 1 used", "device 100: 2", "used 16"),
                                  ("ordered 100 device 1 used", "ordered 100: 2", "used 2")):
            self.prints(ASYNC, "device 1 free " + steps, line, used, HOSTCUDA_POOL_STEP="2MiB")
        self.prints(dict(ASYNC, RMM_LIMIT="40MiB"), "device 1 free device 41 used", "device 41: 2", "used 16")

    def test_a_stack_that_could_not_be_made_has_not_taken_it(self):
        with self.subTest("async"):
            result = run([support.program("memory_steps")] + "device 1 reset retain device 1 used".split(), ASYNC,
                         more=dict(SMALL, HOSTCUDA_FAULT="cuMemPoolCreate:count=2:code=801"))
            self.assertEqual((result.status, result.stdout), (0, "used 16\n"), result)
            self.assertEqual(len(result.said), 1, result)

    def test_what_cannot_be_served_takes_nothing(self):
        for settings in POOLS + [VIRTUAL, ARENA]:
            refused = "device 100: 2", "used 16"
            self.prints(settings, "device 1 free used device 100 used device 100 used", "used 16", *refused * 2)
        for settings in POOLS + [VIRTUAL]:
            # Neither with 30 MiB in use by others, ...
            self.prints(settings, "device 1 free ordered 30 used device 40 used", "used 46", "device 40: 2", "used 46",
                        HOSTCUDA_POOL_STEP="2MiB")
            # ... which the device has, and a limit has not; nor for others.
            self.prints(dict(settings, RMM_LIMIT="40MiB"), "device 1 free device 41 used", "device 41: 2", "used 16")
            # The driver takes back what a pool of its own has idle for whatever does not fit.
            self.prints(settings, "device 1 free ordered 100 device 1 used", "ordered 100: 2", "used 16")

    def test_bounds_of_its_own(self):
        for settings in ({"RMM_POOL_SIZE": "16MiB", "RMM_POOL_MAX_SIZE": "32MiB"},
                         {"RMM_RESOURCE": "pool(limiting(cuda, limit=32MiB), initial_size=16MiB)"}):
            self.prints(settings, "device 1 free device 33 used", "device 33: 2", "used 16")
            self.prints(settings, "device 10 device 10 device 20 used free free device 28 used", "device 20: 2",
                        "used 26", "used 28")

    def test_spilling_takes_nothing(self):
        for second in ("managed", "pinned"):
            for more in ({}, {"RMM_FREE": "immediate"}):
                settings = dict(POOL, RMM_FALLBACK=second, **more)
                self.prints(settings, "device 1 free device 100 used device 70 used", "used 16", "used 16")
                # 40 MiB are live, and 16 idle: 30 more fit in no case.
                self.prints(settings, "device 1 free device 40 used device 30 used", "used 56", "used 56")
        for second in ("pool(managed, initial_size=128MiB)", "pool(pinned, initial_size=128MiB)"):
            with self.subTest(second):
                _, counters = self.steps({"RMM_RESOURCE": "fallback(cuda, %s)" % second},
                                         "device 1 free device 100 free device 80")
                self.assertEqual(counters["device", "pool", "held"], 128 * MIB)

    def test_what_fits_takes_it_and_it_comes_back(self):
        self.prints(ASYNC, "device 1 free used device 60 used", "used 16", "used 60")
        # `virtual` gives it to another user of the device, and grows with the requests that need it.
        self.prints(VIRTUAL, "device 1 free used ordered 60 used free used device 1 used", "used 16", "used 60",
                    "used 0", "used 2", HOSTCUDA_POOL_STEP="2MiB")
        for settings in POOLS:
            # Of the pool's own ...
            self.prints(settings, "device 1 free used device 60 used", "used 16", "used 60")
            # ... and of the driver's: it is taken again with the next growth.
            self.prints(settings, "device 1 free used ordered 60 used free used device 1 used", "used 16", "used 60",
                        "used 0", "used 16", HOSTCUDA_POOL_STEP="2MiB")
            # As much as there is room for, at first, and the rest with the growth after that.
            with self.subTest(str(settings)):
                stdout, _ = self.steps(settings, "device 1 free ordered 52 device 1 free free device 12 used",
                                       HOSTCUDA_POOL_STEP="2MiB")
                self.assertGreaterEqual(int(stdout.split()[1]), 16, stdout)


if __name__ == "__main__":
    support.main()
