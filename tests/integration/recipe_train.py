# SPDX-License-Identifier: Apache-2.0
"""The program that recipes start in tests: recipe_train.py FOLDER COUNT

Takes 100 MiB of the first device, says so to the others by a file in FOLDER, holds the memory until COUNT processes
have said theirs, and prints `allocated` or `refused`.  So a limit over all of them has met them at the same time.
Frameworks that start functions import this module and call take()."""
import ctypes
import os
import sys
import time

MIB = 1 << 20
TAKEN_MIB = 100
PATIENCE_SECONDS = 120


def allocate():
    cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
        assert result == 0, result
    result = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(TAKEN_MIB * MIB))
    assert result in (0, 2), result
    return "refused" if result else "allocated"


def take(folder, count):
    said = allocate()
    with open(os.path.join(folder, "%d.new" % os.getpid()), "w", encoding="ascii") as file:
        file.write(said)
    os.rename(file.name, os.path.join(folder, "%d.said" % os.getpid()))
    end = time.monotonic() + PATIENCE_SECONDS
    while sum(name.endswith(".said") for name in os.listdir(folder)) < count:
        assert time.monotonic() < end, "the other processes did not come"
        time.sleep(0.01)
    return said


if __name__ == "__main__":
    # By one write, as other processes write to the same pipe.
    os.write(1, (take(sys.argv[1], int(sys.argv[2])) + "\n").encode())
