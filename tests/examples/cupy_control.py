# SPDX-License-Identifier: Apache-2.0
"""CuPy over rmmshim: what its MemoryPool answers, for rmmshim's pool.

    LD_PRELOAD=librmmshim.so RMM_POOL_SIZE=1GiB python3 cupy_control.py
"""
import sys

try:
    import cupy
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

import rmmshim

MIB = 1 << 20


class MemoryPool:
    """The questions of cupy.cuda.MemoryPool, answered by rmmshim for one device."""

    def __init__(self, device=0):
        self.device = device

    def used_bytes(self):
        return rmmshim.statistics(self.device)["used_bytes"]

    def total_bytes(self):
        return rmmshim.statistics(self.device)["total_bytes"]

    def free_bytes(self):
        return rmmshim.statistics(self.device)["free_bytes"]

    def n_free_blocks(self):
        return rmmshim.statistics(self.device)["free_blocks"]

    def free_all_blocks(self):
        rmmshim.trim(self.device)

    def set_limit(self, size=None, fraction=None):
        rmmshim.limit(size if fraction is None else "%f%%" % (100 * fraction), self.device)

    def get_limit(self):
        return rmmshim.limit(device=self.device)


def main():
    if not rmmshim.is_active():
        print("rmmshim is not active")
        return
    cupy.cuda.set_allocator(None)  # without CuPy's own pool every array is a cudaMalloc
    pool = MemoryPool()
    a = cupy.arange(4 * MIB, dtype=cupy.float32)
    assert pool.used_bytes() >= a.nbytes
    assert pool.total_bytes() >= pool.used_bytes() + pool.free_bytes()
    with rmmshim.resource("pool(managed)"):  # larger than the device would do
        b = cupy.ones(4 * MIB, dtype=cupy.float32)
    total = float((a + b).sum())
    expected = 4 * MIB * (4 * MIB - 1) / 2 + 4 * MIB
    assert abs(total - expected) / expected < 1e-3, total
    del a, b
    cupy.cuda.Device().synchronize()
    pool.free_all_blocks()
    pool.set_limit(fraction=0.5)
    assert pool.get_limit() > 0
    pool.set_limit(size=0)
    print("cupy: ok, %d blocks live" % rmmshim.statistics()["used_blocks"])


main()
