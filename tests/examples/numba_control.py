# SPDX-License-Identifier: Apache-2.0
"""Numba over rmmshim: statistics, and a resource of its own for one part of a program.

    LD_PRELOAD=librmmshim.so RMM_POOL_SIZE=1GiB python3 numba_control.py
"""
import sys

try:
    import numpy
    from numba import cuda
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

import rmmshim

COUNT = 1 << 20


@cuda.jit
def add_one(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] += 1


def main():
    if not rmmshim.is_active():
        print("rmmshim is not active")
        return
    host = numpy.arange(COUNT, dtype=numpy.float32)
    values = cuda.to_device(host)
    before = rmmshim.statistics()
    assert before["used_bytes"] >= host.nbytes
    with rmmshim.resource("binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)"):
        other = cuda.to_device(host)
    assert rmmshim.statistics()["used_bytes"] >= before["used_bytes"] + host.nbytes
    add_one[COUNT // 256, 256](values)
    add_one[COUNT // 256, 256](other)
    assert (values.copy_to_host() == host + 1).all()
    assert (other.copy_to_host() == host + 1).all()
    del values, other
    cuda.current_context().deallocations.clear()
    now = rmmshim.statistics()
    print("numba: ok, %d bytes live" % now["used_bytes"])


main()
