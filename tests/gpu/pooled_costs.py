# SPDX-License-Identifier: Apache-2.0
"""What it costs that a driver's pool can be shared (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR): medians in
microseconds of a growth, of an allocation from what is reserved, of a free, of a trim, and of the way into another
process, and the bytes that the pool reserves.  Also what async(ipc=true) takes for granted: which calls a pool
refuses, and that a process may import an allocation again after it has freed it.  Without rmmshim; prints one
table."""
import ctypes
import os
import socket
import statistics
import sys
import time

KINDS = {"plain": 0, "shareable": 1}  # of CUmemAllocationHandleType
THRESHOLD, RESERVED = 4, 5  # of CUmemPool_attribute
HANDLE_TYPES = 119  # CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
MIB = 1 << 20
ROUNDS = 60


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemPoolProps"""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("attributes", ctypes.c_void_p), ("maximum", ctypes.c_size_t), ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 54)]


class Access(ctypes.Structure):
    """CUmemAccessDesc"""
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


Data = ctypes.c_ubyte * 64  # CUmemPoolPtrExportData


def must(result):
    if result:
        raise RuntimeError("the driver says %d" % result)


class Clock:
    def __init__(self):
        self.steps = {}

    def step(self, name, *calls):
        """Each call is a function with its arguments."""
        begin = time.perf_counter()
        for function, *arguments in calls:
            must(function(*arguments))
        self.steps.setdefault(name, []).append((time.perf_counter() - begin) * 1e6)

    def text(self):
        return "  ".join("%s %.1f" % (name, statistics.median(times)) for name, times in self.steps.items())


def begin():
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    return cuda


def make_pool(cuda, kind):
    pool, most = ctypes.c_void_p(), ctypes.c_ulonglong(2**64 - 1)
    properties = Properties(type=1, handle_types=KINDS[kind], location=Location(1, 0))
    must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(properties)))
    must(cuda.cuMemPoolSetAttribute(pool, THRESHOLD, ctypes.byref(most)))
    return pool


def reserved_bytes(cuda, pool):
    value = ctypes.c_ulonglong()
    must(cuda.cuMemPoolGetAttribute(pool, RESERVED, ctypes.byref(value)))
    return value.value


def measure(cuda, stream, size, kind):
    """The steps of one process, and the bytes reserved for one allocation."""
    clock, pool, block = Clock(), make_pool(cuda, kind), ctypes.c_ulonglong()
    allocate = (cuda.cuMemAllocFromPoolAsync, ctypes.byref(block), ctypes.c_size_t(size), pool, stream)
    settle = (cuda.cuStreamSynchronize, stream)
    for _ in range(ROUNDS):
        clock.step("grow", allocate, settle)
        reserved = reserved_bytes(cuda, pool)
        clock.step("free", (cuda.cuMemFreeAsync, block, stream), settle)
        clock.step("allocate", allocate, settle)
        must(cuda.cuMemFreeAsync(block, stream))
        must(cuda.cuStreamSynchronize(stream))
        clock.step("trim", (cuda.cuMemPoolTrimTo, pool, ctypes.c_size_t(0)))
    must(cuda.cuMemPoolDestroy(pool))
    return clock, reserved


def answers(cuda, stream, kind):
    """Results of the calls that make a block of a pool known to others."""
    pool, block, fd, data = make_pool(cuda, kind), ctypes.c_ulonglong(), ctypes.c_int(-1), Data()
    must(cuda.cuMemAllocFromPoolAsync(ctypes.byref(block), ctypes.c_size_t(MIB), pool, stream))
    must(cuda.cuStreamSynchronize(stream))
    results = [("handle", cuda.cuIpcGetMemHandle(ctypes.byref(Data()), block)),
               ("pointer", cuda.cuMemPoolExportPointer(ctypes.byref(data), block)),
               ("pool", cuda.cuMemPoolExportToShareableHandle(ctypes.byref(fd), pool, 1, ctypes.c_ulonglong(0))),
               ("pointer then", cuda.cuMemPoolExportPointer(ctypes.byref(data), block))]
    if fd.value >= 0:
        os.close(fd.value)
    must(cuda.cuMemFreeAsync(block, stream))
    must(cuda.cuStreamSynchronize(stream))
    must(cuda.cuMemPoolDestroy(pool))
    return "  ".join("%s %d" % result for result in results)


def import_here(other):
    """The importer, a process of its own: says what it took, and what it saw."""
    cuda = begin()
    message, fds, _, _ = socket.recv_fds(other, 64, 1)
    data, location, clock = Data.from_buffer_copy(message), Location(1, 0), Clock()
    access, flags, seen = Access(location, 3), ctypes.c_int(), set()
    for _ in range(ROUNDS):
        pool, first, second = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        clock.step("import pool", (cuda.cuMemPoolImportFromShareableHandle, ctypes.byref(pool),
                                   ctypes.c_void_p(fds[0]), 1, ctypes.c_ulonglong(0)))
        clock.step("ask access", (cuda.cuMemPoolGetAccess, ctypes.byref(flags), pool, ctypes.byref(location)))
        clock.step("set access", (cuda.cuMemPoolSetAccess, pool, ctypes.byref(access), ctypes.c_size_t(1)))
        clock.step("import", (cuda.cuMemPoolImportPointer, ctypes.byref(first), pool, ctypes.byref(data)))
        clock.step("free", (cuda.cuMemFree_v2, first))
        clock.step("import again", (cuda.cuMemPoolImportPointer, ctypes.byref(second), pool, ctypes.byref(data)))
        word = ctypes.c_uint()
        must(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), second, ctypes.c_size_t(4)))
        seen.add((flags.value, word.value, first.value == second.value))
        must(cuda.cuMemFree_v2(second))
        clock.step("destroy pool", (cuda.cuMemPoolDestroy, pool))
    other.send(("%s\n  (access at first, word, same address): %s" % (clock.text(), sorted(seen))).encode())


def export_to(cuda, stream, other, size):
    clock, pool, block, fd, data = Clock(), make_pool(cuda, "shareable"), ctypes.c_ulonglong(), ctypes.c_int(), Data()
    must(cuda.cuMemAllocFromPoolAsync(ctypes.byref(block), ctypes.c_size_t(size), pool, stream))
    must(cuda.cuMemsetD32Async(block, 77, ctypes.c_size_t(1), stream))
    must(cuda.cuStreamSynchronize(stream))
    for _ in range(ROUNDS):
        clock.step("export pool", (cuda.cuMemPoolExportToShareableHandle, ctypes.byref(fd), pool, 1,
                                   ctypes.c_ulonglong(0)))
        clock.step("export", (cuda.cuMemPoolExportPointer, ctypes.byref(data), block))
        os.close(fd.value)
    must(cuda.cuMemPoolExportToShareableHandle(ctypes.byref(fd), pool, 1, ctypes.c_ulonglong(0)))
    socket.send_fds(other, [bytes(data)], [fd.value])
    answer = other.recv(4096).decode()
    print("%2d MiB exporter: %s\n%2d MiB importer: %s" % (size // MIB, clock.text(), size // MIB, answer))
    must(cuda.cuMemFreeAsync(block, stream))
    must(cuda.cuStreamSynchronize(stream))
    must(cuda.cuMemPoolDestroy(pool))
    return bool(answer)


def fork_importer():
    """The parent's end of a pair; the child does not come back."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    status = 1
    try:
        import_here(theirs)
        status = 0
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
    os._exit(status)


def main():
    sizes = (2 * MIB, 32 * MIB)
    importers = [fork_importer() for _ in sizes]  # before the driver is used
    try:
        cuda = begin()
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 77
    stream, types = ctypes.c_void_p(), ctypes.c_int()
    must(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    must(cuda.cuDeviceGetAttribute(ctypes.byref(types), HANDLE_TYPES, 0))
    print("handle types of pools: %d" % types.value)
    for kind in KINDS:
        print("results of a %s pool: %s" % (kind, answers(cuda, stream, kind)))
    for size in sizes:
        for turn in range(2):  # the first warms up, and both orders are seen
            for kind in KINDS if turn else reversed(KINDS):
                clock, reserved = measure(cuda, stream, size, kind)
                print("%2d MiB %-9s turn %d: %s  reserved %d MiB" % (size // MIB, kind, turn, clock.text(),
                                                                    reserved // MIB))
    return 0 if all([export_to(cuda, stream, *which) for which in zip(importers, sizes)]) else 1


if __name__ == "__main__":
    sys.exit(main())
