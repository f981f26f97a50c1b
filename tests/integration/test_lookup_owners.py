# SPDX-License-Identifier: Apache-2.0
"""Who answers a look-up: with the library, ours stands exactly where the driver's stood; all else,
errors included, is as without it.  And what NVIDIA's own runtime finds."""
import os

import support
from support import run



def hooked_symbols():
    """Symbols of HOOK rows."""
    with open(os.environ["ENTRY_POINTS"], encoding="utf-8") as file:
        return {line.split("(")[1].split(",")[0] for line in file if line.startswith(("HOOK(", "RETRY("))}


def last_symbol():
    """The one that the library looks up last: without it that look-up ends with an error."""
    with open(os.environ["ENTRY_POINTS"], encoding="utf-8") as file:
        return [line.split("(")[1].split(")")[0] for line in file if line.startswith("CALL(")][-1]


class Owners(support.Test):
    def owners(self, status=0, **how):
        folder = support.PROGRAMS
        libraries = [os.path.join(folder, name) for name in ("liblookup_next.so", "liblookup_first.so",
                                                             "liblookup_second.so", "liblookup_namesake.so")]
        result = run([support.program("lookup_owners")] + libraries, **how)
        self.assertEqual(result.status, status, result)
        self.assertEqual(result.stderr, "")
        return result.stdout.splitlines()

    def test_ours_stand_where_the_drivers_stood(self):
        hooked = hooked_symbols()
        for more in ({}, {"HOSTCUDA_WITHHOLD": last_symbol()}):
            plain, served = self.owners(preload=[], more=more), self.owners(more=more)
            self.assertEqual(len(plain), len(served))
            ours = 0
            for before, after in zip(plain, served):
                name = before.split(":")[0].split()[-1]
                expected = before
                if name in hooked:
                    expected = before.replace(": libcuda.so.1,", ": librmmshim.so,")
                ours += expected != before
                with self.subTest(before, more=more):
                    self.assertEqual(after, expected)
            self.assertGreater(ours, 0)

    def test_errors_where_no_driver_is_installed(self):
        """The program ends where it opens libcuda; what it asked before is answered as without us."""
        self.only_without_a_driver()
        plain, served = (self.owners(status=2, driver=False, preload=preload) for preload in ([], None))
        self.assertTrue(any("namesake" in line for line in plain))
        for before, after in zip(plain, served):
            with self.subTest(before):
                self.assertEqual(after, before)
        self.assertEqual(len(plain), len(served))

    def test_without_a_driver(self):
        """No libcuda anywhere: our exports must not make it look as if there were one."""
        self.only_without_a_driver()
        for name in ("cuMemAlloc_v2", "cuGetProcAddress_v2", "cudaMalloc"):
            code = ("import ctypes\n"
                    "program = ctypes.CDLL(None)\n"
                    "libc = ctypes.CDLL('libc.so.6')\n"
                    "print(hasattr(program, %r))\n" % name)
            result = self.assert_same(["python3", "-c", code], {"RMM_POOL_SIZE": "1GiB"}, driver=False)
            self.assertEqual(result.stdout, "False\n", name)

    def test_exports_called_without_a_driver(self):
        """A program with weak references may reach them all the same: an error, not a crash."""
        self.only_without_a_driver()
        code = ("import ctypes\n"
                "shim = ctypes.CDLL(%r)\n"
                "libc = ctypes.CDLL('libc.so.6')\n"
                "libc.dlvsym.restype = ctypes.c_void_p\n"
                "libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]\n"
                "get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(\n"
                "    libc.dlvsym(ctypes.c_void_p(libc._handle), b'dlsym', b'GLIBC_2.2.5')\n"
                "    or libc.dlvsym(ctypes.c_void_p(libc._handle), b'dlsym', b'GLIBC_2.17'))\n"
                "out = (ctypes.c_uint64 * 8)()\n"
                "for name in %r:\n"
                "    call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)(\n"
                "        get(shim._handle, name.encode()))\n"
                "    result = call(ctypes.addressof(out), 64, 0, 0, 0)\n"
                "    assert result != 0, name\n"
                "print('no crash')\n"
                % (support.SHIM, ["cuMemAlloc_v2", "cuMemAllocManaged", "cuMemGetInfo_v2", "cuMemGetAddressRange_v2",
                                  "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2", "cudaMalloc"]))
        result = run(["python3", "-c", code], {"RMM_POOL_SIZE": "1GiB"}, driver=False)
        self.assertEqual((result.status, result.stdout, result.stderr), (0, "no crash\n", ""), result)


    def test_an_unknown_answer_is_said_once(self):
        """Without cuMemAlloc_v2 this driver answers the name with the old version, which is not ours:
        said at the first allocation that the settings are for, not at the look-up."""
        code = ("import ctypes\n"
                "driver = ctypes.CDLL('libcuda.so.1')\n"
                "found = ctypes.c_void_p()\n"
                "for version in 12000, 13000:\n"
                "    driver.cuGetProcAddress_v2(b'cuMemAlloc', ctypes.byref(found), version, ctypes.c_uint64(0), None)\n"
                "print('looked up', flush=True)\n"
                "if %s:\n"
                "    pitch = ctypes.c_size_t()\n"
                "    driver.cuMemAllocPitch_v2(ctypes.byref(found), ctypes.byref(pitch), ctypes.c_size_t(100),\n"
                "                              ctypes.c_size_t(10), 4)\n")
        withhold = {"HOSTCUDA_WITHHOLD": "cuMemAlloc_v2"}
        result = run(["python3", "-c", code % "False"], {"RMM_POOL_SIZE": "1GiB"}, more=withhold)
        self.assertEqual((result.status, result.said), (0, []), result)
        result = run(["python3", "-c", code % "True"], more=withhold)
        self.assertEqual((result.status, result.said), (0, []), result)
        result = run(["python3", "-c", code % "True"], {"RMM_POOL_SIZE": "1GiB"}, more=withhold)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(len(result.said), 1, result)
        self.assertIn("cuMemAlloc", result.said[0])


class RealRuntime(support.Test):
    """NVIDIA's libcudart finds its functions through us, and in the end refuses this driver as it
    does without us."""

    def record(self, name, preload, **how):
        if support.PRELOAD_FIRST:
            self.skipTest("a sanitizer's runtime looks functions up before the recorder can")
        path = self.path("record")
        if os.path.exists(path):
            os.unlink(path)
        recorder = os.path.join(support.PROGRAMS, "liblookup_recorder.so")
        result = run([support.program(name)], preload=[recorder] + preload,
                     more={"LOOKUP_RECORD": path, "LOOKUP_SHIM": preload[0] if preload else ""}, **how)
        with open(path, encoding="utf-8") as file:
            return result, [line.split() for line in file]

    def discovery(self, name):
        hooked = hooked_symbols()
        # The host-memory driver without its runtime, then NVIDIA's runtime.
        os.symlink(os.path.join(support.HOSTCUDA, "libcuda.so.1"), self.path("libcuda.so.1"))
        with_toolkit = {"LD_LIBRARY_PATH": self.folder + ":" + support.TOOLKIT}
        for version in ("11040", "12020", "12080", "13000", "99000"):
            with self.subTest("%s, driver %s" % (name, version)):
                how = {"settings": dict(with_toolkit, HOSTCUDA_DRIVER_VERSION=version)}
                plain, before = self.record(name, [], **how)
                served, after = self.record(name, [support.SHIM], **how)
                self.assertEqual(served.outcome, plain.outcome)
                self.assertEqual([row[:5] for row in after], [row[:5] for row in before])
                ours = set()
                for old, new in zip(before, after):
                    self.assertNotEqual(old[5], "librmmshim.so")
                    if new[7] in hooked:
                        self.assertEqual(new[5], "librmmshim.so", new)
                        self.assertIn(new[6], (new[7], "-"), new)  # not all hooks are exported
                        ours.add(new[7])
                    else:
                        self.assertEqual(new[5:7], old[5:7], new)
                if int(version) >= 13000: # a runtime of CUDA 13 gives up on older drivers
                    for wanted in ("cuGetProcAddress_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2",
                                   "cuMemFreeAsync_ptsz"):
                        self.assertIn(wanted, ours)
                print("\n  %s, driver %s: %d look-ups, %d names ours, ends with %s"
                      % (name, version, len(after), len(ours), served.stdout.split("\n")[0]))

    def test_shared(self):
        self.discovery("lookup_discovery_shared")

    def test_static(self):
        self.discovery("lookup_discovery_static")


if __name__ == "__main__":
    support.main()
