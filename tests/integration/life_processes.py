# SPDX-License-Identifier: Apache-2.0
"""A Python program that uses the driver through ctypes and starts workers, as data loaders do.  Prints
what each of them is answered.

    life_processes.py spawn|fork|forkserver before|after     workers, and whether CUDA runs in the parent first
    life_processes.py alone                                  no worker"""
import ctypes
import multiprocessing
import os
import sys

BLOCK_BYTES = 50000


def open_driver():
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_size_t]
    driver.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
    return driver


def begin(driver):
    """The results of what starts CUDA."""
    context = ctypes.c_void_p()
    return (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
            driver.cuCtxSetCurrent(context))


def use(driver, value):
    """Blocks made, filled, read and freed: (results, all bytes are right)."""
    results, right, block = set(), True, ctypes.c_uint64()
    host = ctypes.create_string_buffer(BLOCK_BYTES)
    for i in range(20):
        results.add(driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(BLOCK_BYTES + i)))
        results.add(driver.cuMemsetD8_v2(block, value, BLOCK_BYTES))
        results.add(driver.cuMemcpyDtoH_v2(host, block, BLOCK_BYTES))
        right = right and host.raw == bytes([value]) * BLOCK_BYTES
        results.add(driver.cuMemFree_v2(block))
    return sorted(results), right


def work(value):
    """A worker: CUDA from its beginning."""
    driver = open_driver()
    return (value, begin(driver), use(driver, value))


def workers(method, parent_first):
    driver = open_driver()
    if parent_first:
        print("parent", begin(driver), use(driver, 9))
    with multiprocessing.get_context(method).Pool(2) as pool:
        for answer in pool.map(work, range(1, 5), chunksize=1):
            print(answer)
    if not parent_first:
        print("parent", begin(driver))
    print("parent", use(driver, 10))


def main():
    sys.stdout.reconfigure(line_buffering=True)
    if sys.argv[1] == "alone":
        driver = open_driver()
        print(begin(driver), use(driver, 3))
    else:
        workers(sys.argv[1], sys.argv[2] == "after")
    os.write(1, b"done\n")


if __name__ == "__main__":
    main()
