# SPDX-License-Identifier: Apache-2.0
"""rmmshim from Python without any framework: the driver API by ctypes.

    LD_PRELOAD=librmmshim.so RMM_POOL_SIZE=64MiB python3 python_control.py
"""
import ctypes
import sys

import rmmshim

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def ok(result):
    if result:
        sys.exit("CUDA error %d" % result)


def allocate(size):
    address = ctypes.c_uint64()
    ok(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    return address.value


def free(address):
    ok(cuda.cuMemFree_v2(ctypes.c_uint64(address)))


def main():
    if not rmmshim.is_active():
        print("rmmshim is not active")
        return
    context = ctypes.c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(cuda.cuCtxSetCurrent(context))

    first = allocate(8 * MIB)
    now = rmmshim.statistics()
    print("used %d MiB of %d MiB" % (now["used_bytes"] // MIB, now["total_bytes"] // MIB))

    with rmmshim.resource("pool(cuda, initial_size=16MiB)"):
        second = allocate(4 * MIB)
        print("a pool of its own: %d MiB in all" % (rmmshim.statistics()["total_bytes"] // MIB))
    free(second)  # back to the pool that it came from
    free(first)

    rmmshim.limit("96MiB")
    refused = ctypes.c_uint64()
    print("100 MiB under a limit of 96 MiB: error %d"
          % cuda.cuMemAlloc_v2(ctypes.byref(refused), ctypes.c_size_t(100 * MIB)))
    rmmshim.limit(0)

    try:
        rmmshim.set_resource("pol(cuda)")
    except rmmshim.Error as error:
        print(error)
    now = rmmshim.statistics()
    print("peak %d MiB, %d allocations, %d live" % (now["peak_used_bytes"] // MIB, now["allocations"],
                                                    now["used_blocks"]))


main()
