# SPDX-License-Identifier: Apache-2.0
"""RMM_LIMIT under frameworks: each takes memory until it is refused, and what the device has lost then
is read by another process, which has no rmmshim.  Prints one table.

RMMSHIM_LIBRARY is the library.  Exit status: 1 when more than the limit was held, less than was to be
had, or the framework was told something else; 77 where there is neither framework nor GPU."""
import ctypes
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

MIB = 1 << 20
LIMIT = 1 << 30
STEP = 16 * MIB
SLACK = 48 * MIB  # kernels that a framework loads meanwhile, and the driver's granules
PROGRAMS = {
    "torch": ("PyTorch", {}),
    "torch_expandable": ("PyTorch, expandable segments", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "torch_nocache": ("PyTorch, no cache", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    "torch_async": ("PyTorch, cudaMallocAsync", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "cupy": ("CuPy", {}),
    "cupy_async": ("CuPy, cudaMallocAsync", {}),
    "jax": ("JAX, no preallocation", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "jax_platform": ("JAX, platform", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
}
SETTINGS = [{"RMM_LIMIT": "1GiB"}, {"RMM_LIMIT": "1GiB", "RMM_POOL_SIZE": "256MiB"}]

# cudaMallocAsync may be served too.
SERVED_ASYNC = {"RMM_LIMIT": "1GiB", "RMM_POOL_SIZE": "256MiB", "RMM_HOOKS": "all"}


# ---- in the child ----


def torch_parts():
    import torch
    torch.zeros(1, device="cuda")

    def take(size):
        try:
            return torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1)
        except RuntimeError as error:  # without its cache PyTorch hands the runtime's error on
            if "out of memory" in str(error):
                return None
            raise
    return take, lambda: torch.cuda.mem_get_info(), torch.cuda.synchronize


def cupy_parts(asynchronous):
    import cupy
    if asynchronous:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    cupy.zeros(1, dtype=cupy.uint8).fill(1)

    def take(size):
        try:
            block = cupy.empty(size, dtype=cupy.uint8)
            block.fill(1)
            return block
        except cupy.cuda.memory.OutOfMemoryError:
            return None
    return take, lambda: cupy.cuda.runtime.memGetInfo(), lambda: cupy.cuda.Device().synchronize()


def jax_parts():
    import jax
    import jax.numpy
    import numpy
    host = numpy.ones(STEP, dtype=numpy.uint8)
    jax.device_put(host[:1]).block_until_ready()

    def take(size):
        try:
            block = jax.device_put(host[:size])
            block.block_until_ready()
            return block
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
                return None
            raise
    return take, None, lambda: None


def child(name):
    try:
        parts = torch_parts() if name.startswith("torch") else jax_parts() if name.startswith("jax") else cupy_parts(
            name == "cupy_async")
    except ImportError as error:
        print("absent %s" % error, flush=True)
        return 77
    take, info, synchronize = parts
    synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    blocks = []
    while len(blocks) < 400:
        block = take(STEP)
        if block is None:
            break
        blocks.append(block)
    synchronize()
    free, total = info() if info else (-1, -1)
    print("taken %d free %d total %d" % (len(blocks) * STEP, free, total), flush=True)
    sys.stdin.readline()
    return 0


# ---- in the parent ----


def used_bytes(driver):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value


def settled(driver):
    """What is used when it no longer changes: the program before may still be giving memory back."""
    last = used_bytes(driver)
    for _ in range(50):
        time.sleep(0.05)
        now = used_bytes(driver)
        if now == last:
            break
        last = now
    return last


def run(driver, name, setting, rows, wrong):
    title, environment = PROGRAMS[name]
    env = compare.environment(setting, os.environ["RMMSHIM_LIBRARY"], os.devnull)
    env.pop("RMM_STATISTICS", None)
    env.update(environment)
    label = "%s, %s" % (title, " ".join("%s=%s" % item for item in setting.items()))
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), name], env=env, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        while line and not line.startswith(("ready", "absent")):
            line = process.stdout.readline()
        if line.startswith("absent"):
            rows.append([title, "", "not there", "", "", ""])
            return
        before = settled(driver)
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
        while line and not line.startswith("taken"):
            line = process.stdout.readline()
        after = used_bytes(driver)
        if not line:
            process.kill()
            wrong.append("%s: %s" % (label, process.stderr.read().strip().splitlines()[-3:]))
            return
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, taken, _, free, _, total = line.split()
    taken, free, total, grown = int(taken), int(free), int(total), after - before
    rows.append([label, compare.size(taken), compare.size(grown), compare.size(free) if free >= 0 else "-",
                 compare.size(total) if total >= 0 else "-"])
    if taken > LIMIT:
        wrong.append("%s: the program took %s" % (label, compare.size(taken)))
    if grown > LIMIT + SLACK:
        wrong.append("%s: the device lost %s" % (label, compare.size(grown)))
    if taken < LIMIT * 0.7:
        wrong.append("%s: refused at %s" % (label, compare.size(taken)))
    if total >= 0 and (total != LIMIT or free > LIMIT - taken):
        wrong.append("%s: was told free %s of %s" % (label, compare.size(free), compare.size(total)))


def main():
    if len(sys.argv) > 1:
        return child(sys.argv[1])
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    driver = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    rows, wrong = [["program and setting", "took until refused", "device lost", "told: free", "told: total"]], []
    for name in PROGRAMS:
        for setting in SETTINGS + ([SERVED_ASYNC] if name.endswith("_async") else []):
            run(driver, name, setting, rows, wrong)
    width = len(rows[0])
    print(compare.text_table([row[:width] + [""] * (width - len(row)) for row in rows], right=range(1, width)))
    for line in wrong:
        print("FAILED: " + line)
    print("limit: %s" % ("%d wrong" % len(wrong) if wrong else "all well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
