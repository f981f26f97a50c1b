# SPDX-License-Identifier: Apache-2.0
"""Processes that use no CUDA do not notice the library: no output, no file, and hardly any time,
which is printed, not judged."""
import os
import time

import support
from support import run

COMMANDS = [
    ["true"],
    ["ls", "/"],
    ["bash", "-c", "echo a; ls / | wc -l; exit 3"],
    ["sh", "-c", "cd / && cat /proc/self/status >/dev/null && echo done"],
    ["python3", "-c", "import ctypes, json, threading; print(json.dumps({'a': 1}))"],
    ["python3", "-c", "import ctypes\ntry:\n ctypes.CDLL('libcuda.so.1')\nexcept OSError as error:\n print(error)"],
    ["env", "-u", "LD_PRELOAD", "-u", "RMM_POOL_SIZE", "-u", "LD_LIBRARY_PATH", "-u", "ASAN_OPTIONS",
     "true"],
]

SETTINGS = [
    {},
    {"RMM_POOL_SIZE": "4GiB"},
    {"RMM_POOL_SIZE": "4GiB", "RMM_STATISTICS": "1", "RMM_VERBOSE": "1", "RMM_LOG": "log.csv"},
    {"RMM_TRACKING": "1"},
    {"RMM_POOL_SIZE": "nonsense"},
]


class Quiet(support.Test):
    def test_no_output_and_no_file(self):
        for driver, every_settings in ((True, SETTINGS), (False, SETTINGS[1:3])):
            for settings in every_settings:
                for command in COMMANDS:
                    with self.subTest("%s under %s, driver %s" % (command, settings, driver)):
                        self.assert_same(command, settings, driver=driver, cwd=self.folder)
                        self.assertEqual(os.listdir(self.folder), [])

    def test_driver_opened_but_not_used(self):
        """A program may load the driver and count devices without a word from us."""
        command = ["python3", "-c",
                   "import ctypes\n"
                   "cuda = ctypes.CDLL('libcuda.so.1')\n"
                   "count = ctypes.c_int(-1)\n"
                   "print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)\n"
                   "print(bool(cuda.cuMemAlloc_v2), bool(cuda.cuMemFree_v2))\n"]
        for settings in SETTINGS:
            with self.subTest(str(settings)):
                result = self.assert_same(command, settings, cwd=self.folder)
                self.assertEqual(result.stdout, "0 0 1\nTrue True\n")
                self.assertEqual(os.listdir(self.folder), [])

    def test_cost(self):
        """Prints what preloading costs: the least of many starts of `true`."""
        def least(preload):
            env = support.environment({"RMM_POOL_SIZE": "4GiB"}, preload=preload)
            best = 1.0
            for _ in range(20):
                begin = time.perf_counter()
                pid = os.posix_spawn("/bin/true", ["true"], env)
                os.waitpid(pid, 0)
                best = min(best, time.perf_counter() - begin)
            return best

        plain, loaded = least([]), least(None)
        print("\n  /bin/true takes %.3f ms, preloaded %.3f ms: %.3f ms more"
              % (plain * 1e3, loaded * 1e3, (loaded - plain) * 1e3))
        self.assertEqual(run(["true"]).status, 0)


if __name__ == "__main__":
    support.main()
