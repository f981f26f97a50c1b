# SPDX-License-Identifier: Apache-2.0
"""One process with two devices: copies between them, and kernels of one that read and write memory of the
other, where peer access was enabled before there was any memory, or after.  Deterministic; prints digests.

    peer_scenes.py NAME        one of those below; `peer_scenes.py list` names them"""
import sys

from scenes import Absent, digest, main, scene

SIZES = (10, 1000, 65536, 300000, 5000000)
ROUNDS = 6

KERNEL = r"""
extern "C" __global__ void exchange(const float *theirs, float *ours, float *back, unsigned long long n)
{
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) {
        ours[i] = theirs[i] * 2 + ours[i];
        back[i] = ours[i] - 1;
    }
}
"""


def prepared():
    """CuPy without its own pool: every array is an allocation."""
    import cupy
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Absent(str(error)) from error
    if count < 2:
        raise Absent("one device only")
    if not (cupy.cuda.runtime.deviceCanAccessPeer(0, 1) and cupy.cuda.runtime.deviceCanAccessPeer(1, 0)):
        raise Absent("the devices have no peer access")
    cupy.cuda.set_allocator(None)
    return cupy


def enable_access(cupy):
    for device, peer in ((0, 1), (1, 0)):
        with cupy.cuda.Device(device):
            try:
                cupy.cuda.runtime.deviceEnablePeerAccess(peer)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error):
                    raise


def take_some(cupy):
    """So that each device's stack holds memory."""
    kept = []
    for device in (0, 1):
        with cupy.cuda.Device(device):
            kept += [cupy.ones(n, dtype=cupy.float32) for n in SIZES]
    return kept


def synchronize(cupy):
    for device in (0, 1):
        cupy.cuda.Device(device).synchronize()


def copies(cupy):
    """By cudaMemcpyPeerAsync and by plain copies between addresses, there and back."""
    import numpy
    random = numpy.random.Generator(numpy.random.PCG64(21))
    runtime = cupy.cuda.runtime
    results = []
    for round_ in range(ROUNDS):
        for n in SIZES:
            host = random.standard_normal(n + round_, dtype=numpy.float32)
            with cupy.cuda.Device(0):
                first = cupy.asarray(host)
                back = cupy.zeros_like(first)
            with cupy.cuda.Device(1):
                second = cupy.zeros(host.size, dtype=cupy.float32)
            synchronize(cupy)
            with cupy.cuda.Device(0):
                runtime.memcpyPeerAsync(second.data.ptr, 1, first.data.ptr, 0, host.nbytes, 0)
            synchronize(cupy)
            with cupy.cuda.Device(1):
                second *= 3
            synchronize(cupy)
            with cupy.cuda.Device(round_ % 2):
                runtime.memcpy(back.data.ptr, second.data.ptr, host.nbytes, runtime.memcpyDefault)
            synchronize(cupy)
            with cupy.cuda.Device(1):
                third = cupy.array(first)  # CuPy's own way
            assert third.device.id == 1
            results += [cupy.asnumpy(array) for array in (second, back, third)]
    print("copies", digest(*results))


def kernels(cupy):
    """A kernel on each device in turn reads and writes memory of the other directly."""
    import numpy
    random = numpy.random.Generator(numpy.random.PCG64(22))
    results = []
    for round_ in range(ROUNDS):
        for n in SIZES:
            device = round_ % 2
            with cupy.cuda.Device(1 - device):
                theirs = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
                back = cupy.zeros_like(theirs)
            with cupy.cuda.Device(device):
                ours = cupy.asarray(random.standard_normal(n, dtype=numpy.float32))
            synchronize(cupy)
            with cupy.cuda.Device(device):
                # Addresses, so that CuPy does not look whose they are.
                cupy.RawKernel(KERNEL, "exchange")(((n + 255) // 256,), (256,), (
                    numpy.uint64(theirs.data.ptr), ours, numpy.uint64(back.data.ptr), numpy.uint64(n)))
            synchronize(cupy)
            results += [cupy.asnumpy(array) for array in (ours, back)]
    print("kernels", digest(*results))


@scene
def copies_access_first():
    cupy = prepared()
    enable_access(cupy)
    copies(cupy)


@scene
def copies_memory_first():
    cupy = prepared()
    kept = take_some(cupy)
    copies(cupy)  # before access is enabled
    enable_access(cupy)
    copies(cupy)
    print(digest(*(cupy.asnumpy(array) for array in kept)))


@scene
def kernels_access_first():
    cupy = prepared()
    enable_access(cupy)
    kernels(cupy)


@scene
def kernels_memory_first():
    cupy = prepared()
    kept = take_some(cupy)
    enable_access(cupy)
    kernels(cupy)
    print(digest(*(cupy.asnumpy(array) for array in kept)))


@scene
def addresses():
    """Right after a device is chosen it allocates; each block knows its device, and is freed while the
    other is chosen."""
    cupy = prepared()
    runtime = cupy.cuda.runtime
    held = []
    for i in range(200):
        device = i * 7 % 2
        runtime.setDevice(device)
        held.append((runtime.malloc(1 << (9 + i % 14)), device))
        if len(held) > 20:
            address, device = held.pop(i % 20)
            attributes = runtime.pointerGetAttributes(address)
            assert attributes.device == device, (i, attributes.device, device)
            runtime.setDevice(1 - device)
            runtime.free(address)
    assert len({address for address, _ in held}) == len(held)
    print("held", len(held), [runtime.pointerGetAttributes(address).device for address, _ in held])
    for address, _ in held:
        runtime.free(address)


@scene
def torch_copies():
    """Tensors go back and forth on side streams, while their neighbours come and go."""
    import torch
    if torch.cuda.device_count() < 2:
        raise Absent("one device only")
    generator = torch.Generator().manual_seed(23)
    streams = [torch.cuda.Stream(device) for device in (0, 1)]
    results = []
    for round_ in range(20):
        for n in SIZES:
            host = torch.randn(n, generator=generator)
            first = host.to("cuda:%d" % (round_ % 2))
            other = 1 - round_ % 2
            second = first.to("cuda:%d" % other) * 2
            streams[other].wait_stream(torch.cuda.current_stream(other))
            with torch.cuda.stream(streams[other]):
                third = second + 1
                third.record_stream(streams[other])
                fourth = third.to("cuda:%d" % (1 - other), non_blocking=True)
            streams[other].synchronize()
            torch.cuda.synchronize(1 - other)
            results.append((first + fourth).cpu().numpy())
        if round_ % 7 == 6:
            torch.cuda.empty_cache()
    print(digest(*results))


if __name__ == "__main__":
    sys.exit(main(__doc__))
