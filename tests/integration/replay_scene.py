# SPDX-License-Identifier: Apache-2.0
"""Allocates and frees device memory as a seed says, by one thread: replay_scene.py SEED COUNT [ordered].  With `ordered`
half of it is on two streams, which are used first in the order in which they were made, as that is how a replay numbers
them.  A request that is refused changes nothing in those that follow."""
import ctypes
import random
import sys

MIB = 1 << 20


def main():
    chance, driver = random.Random(int(sys.argv[1])), ctypes.CDLL("libcuda.so.1")
    is_ordered = sys.argv[3:] == ["ordered"]
    context, streams = ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    for stream in streams:
        block = ctypes.c_uint64()
        assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert not is_ordered or driver.cuMemAllocAsync(ctypes.byref(block), ctypes.c_size_t(MIB), stream) == 0
    live = []
    for _ in range(int(sys.argv[2])):
        if len(live) > 40 or (live and chance.random() < 0.4):
            address, stream = live.pop(chance.randrange(len(live)))
            assert not address or (driver.cuMemFreeAsync(address, stream) if stream else driver.cuMemFree_v2(address)) == 0
            continue
        # From 2 KiB to 32 MiB; sizes come again, as in a program that repeats itself.
        size = (2 << chance.randrange(10, 24)) + 512 * chance.randrange(4)
        stream = chance.choice(streams) if is_ordered and chance.random() < 0.5 else None
        address = ctypes.c_uint64()
        result = (driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), stream) if stream
                  else driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
        assert result in (0, 2), result
        live.append((address if result == 0 else None, stream))


if __name__ == "__main__":
    main()
