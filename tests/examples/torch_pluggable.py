# SPDX-License-Identifier: Apache-2.0
"""PyTorch with rmmshim as its pluggable allocator: a tensor freed on a stream makes room for the next
one on that stream at once.

    LD_PRELOAD=librmmshim.so RMM_POOL_SIZE=1GiB python3 torch_pluggable.py
"""
import ctypes
import os
import sys

try:
    import torch
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

import rmmshim


def install():
    """Before the first use of CUDA memory."""
    library = next(word for word in os.environ["LD_PRELOAD"].replace(":", " ").split() if "librmmshim" in word)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "rmmshim_torch_alloc", "rmmshim_torch_free")
    inner = allocator.allocator()
    record = ctypes.cast(ctypes.CDLL(None).rmmshim_torch_record_stream, ctypes.c_void_p).value
    # Without it PyTorch drops what Tensor.record_stream says.
    if hasattr(inner, "set_record_stream_fn"):
        inner.set_record_stream_fn(record)
    else:
        print("this PyTorch does not pass record_stream on: do not use it")
    torch.cuda.memory.change_current_allocator(allocator)


def main():
    if not rmmshim.is_active():
        print("rmmshim is not active")
        return
    install()
    a = torch.full((1 << 20,), 2.0, device="cuda")
    assert rmmshim.statistics()["used_bytes"] >= a.nbytes
    address = a.data_ptr()
    del a
    b = torch.full((1 << 20,), 3.0, device="cuda")
    assert b.data_ptr() == address, "the same stream gets its block back at once"

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        c = b * 2
        d = torch.matmul(c.view(1024, 1024), c.view(1024, 1024))
    torch.cuda.current_stream().wait_stream(side)
    assert float(d[0, 0]) == 6.0 * 6.0 * 1024
    del b, c, d
    torch.cuda.synchronize()
    print("torch: ok, %d bytes live" % rmmshim.statistics()["used_bytes"])


main()
