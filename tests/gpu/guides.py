# SPDX-License-Identifier: Apache-2.0
"""What RMM's and CuPy's own guides show their users, each as a program that prints what it computed and
what the library says of its memory; the same must come out with rmmshim beneath.

    guides.py NAME        one of those below; `guides.py list` names them"""
import os
import sys

from scenes import digest, main, scene


def work(cupy):
    """Some expressions, reductions and a sort on CuPy's current allocator."""
    import numpy
    random = numpy.random.Generator(numpy.random.PCG64(11))
    results = []
    for n in (1000, 100000, 2000000):
        a = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
        b = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
        for _ in range(20):
            a = (a * b + a) / (1 + cupy.abs(b))
        results.append(cupy.asnumpy(cupy.sort(a)))
        del a, b
    return digest(*results)


# ---- RMM ----


@scene
def device_buffer():
    import numpy
    import rmm
    data = numpy.arange(100000, dtype=numpy.float64)
    buffer = rmm.DeviceBuffer.to_device(data.view(numpy.uint8).tobytes())
    print("size", buffer.size, "capacity", buffer.capacity() >= buffer.size)
    copy = buffer.copy()
    buffer.resize(80000)
    print("resized", buffer.size)
    back = numpy.frombuffer(copy.tobytes(), dtype=numpy.float64)
    print("same", bool((back == data).all()), digest(back))
    buffers = [rmm.DeviceBuffer(size=1 << (10 + i % 14)) for i in range(200)]
    print("distinct", len({b.ptr for b in buffers}) == 200, "aligned", all(b.ptr % 256 == 0 for b in buffers))


def reinitialized(**settings):
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator
    rmm.reinitialize(**settings)
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    print(type(rmm.mr.get_current_device_resource()).__name__, work(cupy))


@scene
def reinitialize_managed():
    reinitialized(managed_memory=True)


@scene
def reinitialize_pool():
    reinitialized(pool_allocator=True, initial_pool_size=1 << 28, maximum_pool_size=1 << 32)


@scene
def singlecell_pool():
    """What rapids-singlecell advises for speed, with a workload of its kind."""
    import rmm
    rmm.reinitialize(managed_memory=False, pool_allocator=True, devices=0, initial_pool_size=1 << 30)
    singlecell()


@scene
def singlecell_managed():
    """And for data larger than the device (here small, in what is free)."""
    import rmm
    rmm.reinitialize(managed_memory=True, pool_allocator=False, devices=0)
    singlecell()


def singlecell():
    """Cells by genes: normalise, logarithm, variable genes, scale, principal components."""
    import cupy
    import numpy
    from rmm.allocators.cupy import rmm_cupy_allocator
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    random = numpy.random.Generator(numpy.random.PCG64(5))
    counts = cupy.asarray(random.poisson(0.3, (3000, 2000)).astype(numpy.float32))
    counts = counts[counts.sum(axis=1) > 100]
    scaled = cupy.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4)
    variable = cupy.sort(cupy.argsort(scaled.var(axis=0))[-500:])
    scaled = scaled[:, variable]
    scaled = cupy.clip((scaled - scaled.mean(axis=0)) / scaled.std(axis=0), -10, 10)
    values = cupy.linalg.eigvalsh(scaled.T @ scaled / len(scaled))
    print("cells", len(scaled), "genes", int(variable.sum()), "variance %.3f" % float(values[-10:].sum()))


def pool_over(upstream):
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator
    pool = rmm.mr.PoolMemoryResource(upstream, initial_pool_size="256MiB", maximum_pool_size="2GiB")
    statistics = rmm.mr.StatisticsResourceAdaptor(pool)
    rmm.mr.set_current_device_resource(statistics)
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    print(work(cupy))
    counts = statistics.allocation_counts
    print("total", counts.total_bytes, "peak", counts.peak_bytes, "count", counts.total_count)
    try:
        rmm.DeviceBuffer(size=3 << 30)
        print("more than the maximum was served")
    except MemoryError as error:
        print("MemoryError", "maximum" in str(error).lower())


@scene
def pool_over_cuda():
    import rmm
    pool_over(rmm.mr.CudaMemoryResource())


@scene
def pool_over_managed():
    import rmm
    pool_over(rmm.mr.ManagedMemoryResource())


@scene
def rmm_async():
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator
    rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    print(work(cupy))


@scene
def rmm_torch():
    import torch
    from rmm.allocators.torch import rmm_torch_allocator
    import rmm
    rmm.reinitialize(pool_allocator=True, initial_pool_size=1 << 28)
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(2)).cuda()
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    print("loss %.9g" % float(loss), digest(*(p.detach().cpu().numpy() for p in model.parameters())))


@scene
def rmm_numba():
    """NUMBA_CUDA_MEMORY_MANAGER=rmm.allocators.numba, as RMM's guide says."""
    os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "rmm.allocators.numba"
    import numpy
    from numba import cuda

    @cuda.jit
    def scale(out, values, factor):
        i = cuda.grid(1)
        if i < values.size:
            out[i] = values[i] * factor

    values = numpy.arange(1 << 18, dtype=numpy.float32)
    device = cuda.to_device(values)
    out = cuda.device_array_like(device)
    for _ in range(10):
        scale[1024, 256](out, device, numpy.float32(1.5))
    print(digest(out.copy_to_host()))


# ---- CuPy ----


@scene
def cupy_pool():
    """used_bytes, total_bytes, free_all_blocks, n_free_blocks, and both kinds of limit, per device."""
    import cupy
    pool, pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
    a = cupy.zeros(1 << 20, dtype=cupy.float32)
    print("used", pool.used_bytes(), "total", pool.total_bytes(), "free blocks", pool.n_free_blocks())
    del a
    print("used", pool.used_bytes(), "total", pool.total_bytes(), "free blocks", pool.n_free_blocks())
    pool.free_all_blocks()
    pinned.free_all_blocks()
    print("total", pool.total_bytes(), "pinned", pinned.n_free_blocks())
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            pool.set_limit(size=64 << 20)
            print("limit", pool.get_limit())
            try:
                cupy.zeros(128 << 20, dtype=cupy.uint8)
                print("more than the limit was served")
            except cupy.cuda.memory.OutOfMemoryError:
                print("OutOfMemoryError")
            b = cupy.ones(32 << 20, dtype=cupy.uint8)
            print("sum", int(b.sum()))
            del b
            pool.free_all_blocks()
            pool.set_limit(fraction=0.001)
            total = cupy.cuda.Device().mem_info[1]
            print("fraction", abs(pool.get_limit() - total * 0.001) < 4096)
            try:
                cupy.zeros(total // 500, dtype=cupy.uint8)
                print("more than the limit was served")
            except cupy.cuda.memory.OutOfMemoryError:
                print("OutOfMemoryError")
            pool.set_limit(size=0)
    print(work(cupy))


@scene
def cupy_managed():
    import cupy
    pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    cupy.cuda.set_allocator(pool.malloc)
    print(work(cupy))
    pool.free_all_blocks()
    print("total", pool.total_bytes())


@scene
def cupy_async():
    import cupy
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    print(work(cupy))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        print(work(cupy))


@scene
def cupy_none():
    """Without any pool, and pinned memory too."""
    import cupy
    import numpy
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    print(work(cupy))
    for i in range(10):
        memory = cupy.cuda.alloc_pinned_memory(1 << 20)
        host = numpy.frombuffer(memory, numpy.uint8, 1 << 20)
        host[:] = i
        device = cupy.empty(1 << 20, dtype=cupy.uint8)
        device.set(host)
        assert int(device.sum()) == i << 20
        del memory, host


@scene
def cupy_using_allocator():
    import cupy
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        a = cupy.arange(1 << 20)
        print("inside", pool.used_bytes(), int(a.sum()))
    del a
    print("after", pool.used_bytes())
    stream = cupy.cuda.Stream()
    with stream:
        print(work(cupy))
    stream.synchronize()


sys.exit(main(__doc__))
