# SPDX-License-Identifier: Apache-2.0
"""What it costs that memory of cuMemCreate can be shared (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR): medians in
microseconds of creation, mapping and the way back with and without it, and of an export and an import.  Without
rmmshim; prints one table."""
import ctypes
import os
import statistics
import sys
import time

KINDS = {"plain": 0, "shareable": 1}  # of CUmemAllocationHandleType
MIB = 1 << 20
ROUNDS = 60


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp"""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("metadata", ctypes.c_void_p), ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class Access(ctypes.Structure):
    """CUmemAccessDesc"""
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def must(result):
    if result:
        raise RuntimeError("the driver says %d" % result)


def measure(cuda, base, size, kind):
    """Medians of the steps, in microseconds."""
    properties = Properties(type=1, handle_types=KINDS[kind], location=Location(1, 0), rdma=1)
    access, steps = Access(Location(1, 0), 3), {}

    def step(name, function, *arguments):
        begin = time.perf_counter()
        must(function(*arguments))
        steps.setdefault(name, []).append((time.perf_counter() - begin) * 1e6)

    for _ in range(ROUNDS):
        handle, again, fd = ctypes.c_ulonglong(), ctypes.c_ulonglong(), ctypes.c_int()
        step("create", cuda.cuMemCreate, ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties),
             ctypes.c_ulonglong(0))
        step("map", cuda.cuMemMap, base, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        step("access", cuda.cuMemSetAccess, base, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        if KINDS[kind]:
            step("export", cuda.cuMemExportToShareableHandle, ctypes.byref(fd), handle, 1, ctypes.c_ulonglong(0))
            step("import", cuda.cuMemImportFromShareableHandle, ctypes.byref(again), ctypes.c_void_p(fd.value), 1)
            os.close(fd.value)
            must(cuda.cuMemRelease(again))
        step("unmap", cuda.cuMemUnmap, base, ctypes.c_size_t(size))
        step("release", cuda.cuMemRelease, handle)
    return {name: statistics.median(times) for name, times in steps.items()}


def main():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        must(cuda.cuInit(0))
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 77
    context, base = ctypes.c_void_p(), ctypes.c_ulonglong()
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    must(cuda.cuMemAddressReserve(ctypes.byref(base), ctypes.c_size_t(64 * MIB), ctypes.c_size_t(0),
                                  ctypes.c_ulonglong(0), ctypes.c_ulonglong(0)))
    for size in (2 * MIB, 32 * MIB):
        for turn in range(2):  # the first warms up, and both orders are seen
            for kind in KINDS if turn else reversed(KINDS):
                medians = measure(cuda, base, size, kind)
                print("%2d MiB %-9s turn %d: %s" % (size // MIB, kind, turn, "  ".join(
                    "%s %.1f" % (name, value) for name, value in medians.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
