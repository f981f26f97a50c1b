# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint (cuCheckpointProcess*, driver 12.8 and later) of a process with a pool: its device
memory goes to the host and comes back at the same addresses, while freed blocks still wait for the GPU.  A
process without rmmshim is paused first, for what the driver itself can do on this machine.

RMMSHIM_LIBRARY is the library.  Exit status: 1 when a process does not get its memory back, or cannot go on; 77 where
there is no GPU, the driver has no checkpoint, or even the process without rmmshim cannot be paused."""
import ctypes
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

MIB = 1 << 20
BLOCK = 8 * MIB
BLOCKS = 64
TIMEOUT_MS = 10000
STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
SETTINGS = [None, {"RMM_POOL_SIZE": "1GiB"}, {"RMM_LIMIT": "4GiB"}, {"RMM_RESOURCE": "virtual"}, {"RMM_ASYNC": "1"},
            {"RMM_PINNED_POOL_SIZE": "64MiB", "RMM_POOL_SIZE": "1GiB"}]


def must(result, what):
    if result != 0:
        raise SystemExit("%s: CUDA error %d" % (what, result))


def driver_with_context():
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    must(driver.cuInit(0), "cuInit")
    must(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    must(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    return driver


# ---- in the child ----


class Blocks:
    """Blocks of device memory, each filled with its own number."""

    def __init__(self, driver):
        self.driver, self.addresses = driver, {}

    def take(self, number):
        address = ctypes.c_uint64()
        must(self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(BLOCK)), "cuMemAlloc")
        must(self.driver.cuMemsetD32Async(address, ctypes.c_uint(number), ctypes.c_size_t(BLOCK // 4), None), "cuMemsetD32Async")
        self.addresses[number] = address

    def free(self, number):
        must(self.driver.cuMemFree_v2(self.addresses.pop(number)), "cuMemFree")

    def check(self):
        words = (ctypes.c_uint32 * (BLOCK // 4))()
        for number, address in self.addresses.items():
            must(self.driver.cuMemcpyDtoH_v2(words, address, ctypes.c_size_t(BLOCK)), "cuMemcpyDtoH")
            if bytes(words) != number.to_bytes(4, "little") * (BLOCK // 4):
                raise SystemExit("block %d is not what was written to it" % number)


def child():
    blocks = Blocks(driver_with_context())
    for number in range(BLOCKS):
        blocks.take(number)
    for number in range(0, BLOCKS, 4):  # behind work that may not have ended
        blocks.free(number)
    print("ready", flush=True)
    sys.stdin.readline()
    blocks.check()
    for number in range(0, BLOCKS, 4):
        blocks.take(BLOCKS + number)
    for number in range(1, BLOCKS, 4):
        blocks.free(number)
        blocks.take(2 * BLOCKS + number)
    blocks.check()
    print("well", flush=True)


# ---- in the parent, which has no rmmshim ----


class Pauser:
    def __init__(self):
        self.driver = driver_with_context()

    def can(self):
        return hasattr(self.driver, "cuCheckpointProcessLock")

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        must(self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
        return free.value

    def state(self, process):
        state = ctypes.c_int(-1)
        self.driver.cuCheckpointProcessGetState(process, ctypes.byref(state))
        return STATES.get(state.value, str(state.value))

    def step(self, name, process, arguments=None):
        begin = time.monotonic()
        result = getattr(self.driver, "cuCheckpointProcess" + name)(process, arguments)
        return "" if result == 0 else "%s: error %d, state %s" % (name, result, self.state(process)), time.monotonic() - begin

    def pause_and_resume(self, process):
        """A fault, or "" and what was seen."""
        lock = (ctypes.c_uint * 16)(TIMEOUT_MS)  # CUcheckpointLockArgs: 64 bytes, timeoutMs first
        seconds = {}
        before = self.free_bytes()
        for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
            fault, seconds[name] = self.step(name, process, lock if name == "Lock" else None)
            if fault:
                return fault, ""
            if name == "Checkpoint":
                paused = self.free_bytes()
        return "", "%d MiB free more while paused; %s" % (
            (paused - before) // MIB, ", ".join("%s %.0f ms" % (name.lower(), 1000 * seconds[name]) for name in seconds))


def play(pauser, setting):
    """A fault, or "" and what was seen."""
    environment = compare.environment(setting, os.environ["RMMSHIM_LIBRARY"], "", os.environ.get("PRELOAD_FIRST", ""))
    environment.pop("RMM_STATISTICS", None)
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "child"], env=environment,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        if process.stdout.readline() != b"ready\n":
            return "the process did not begin", ""
        fault, seen = pauser.pause_and_resume(process.pid)
        if fault:
            return fault, ""
        said, _ = process.communicate(b"go\n", timeout=60)
        if process.returncode == 0 and said.endswith(b"well\n"):
            return "", seen
        return "after resume: status %d: %s" % (process.returncode, said.decode(errors="replace").strip()[-300:]), ""
    except subprocess.TimeoutExpired:
        return "the process hangs after resume", ""
    finally:
        process.kill()
        process.communicate()


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    pauser = Pauser()
    if not pauser.can():
        print("the driver has no cuCheckpointProcessLock")
        return 77
    wrong = 0
    for setting in SETTINGS:
        name = " ".join("%s=%s" % item for item in (setting or {}).items()) or "without rmmshim"
        fault, seen = play(pauser, setting)
        print("%-45s %s" % (name, "FAILED: " + fault if fault else seen), flush=True)
        if fault and not setting:
            print("the driver alone cannot pause a process here")
            return 77
        wrong += bool(fault)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        child()
    else:
        sys.exit(main())
