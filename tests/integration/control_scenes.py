# SPDX-License-Identifier: Apache-2.0
"""What test_control.py runs under the preloaded library: control_scenes.py SCENE [argument...]

Each scene checks for itself and prints nothing but what its test asks for."""
import ctypes
import errno
import os
import queue
import sys
import threading

import c_api as rmmshim

import support

MIB = 1 << 20
OUT_OF_MEMORY, NOT_READY = 2, 600
LATE = 3  # answers of the driver that a fence is not done yet
cuda = ctypes.CDLL("libcuda.so.1")


def ok(result):
    assert result == 0, result


def start(device=0):
    context = ctypes.c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    return context


def try_allocate(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address.value


def allocate(size):
    result, address = try_allocate(size)
    ok(result)
    return address


def free(address):
    ok(cuda.cuMemFree_v2(ctypes.c_uint64(address)))


def stream():
    made = ctypes.c_void_p()
    ok(cuda.cuStreamCreate(ctypes.byref(made), 1))
    return made


def destroy(made):
    ok(cuda.cuStreamDestroy_v2(made))


def torch_allocate(size, on=None, device=0):
    return rmmshim.library.rmmshim_torch_alloc(size, device, on)


def torch_free(address, size, on=None, device=0):
    rmmshim.library.rmmshim_torch_free(address, size, device, on)


def fails(number, function, *arguments):
    try:
        function(*arguments)
    except rmmshim.Error as error:
        assert error.errno == number, error
        return error.strerror
    raise AssertionError("%s did not fail" % function.__name__)


def now():
    return rmmshim.statistics(0)


def until_trimmed(is_so):
    """A trim waits for the fences of freed memory for a bounded time, and on a busy machine they may be later."""
    support.until(lambda: (rmmshim.trim(), is_so())[1], "freed memory")


def statistics():
    start()
    assert not any(now()[name] for name in ("used_bytes", "used_blocks", "allocations", "total_bytes"))
    sizes = [1, 1000, 512, 70000, 3 * MIB, 2 * MIB + 1]
    blocks = [allocate(size) for size in sizes]
    s = now()
    assert s["used_bytes"] == s["peak_used_bytes"] == sum(sizes), s
    assert s["used_blocks"] == s["peak_used_blocks"] == s["allocations"] == len(sizes), s
    # Sizes are rounded up to 512 bytes at least, and bins to twice the size at most.
    rounded = s["total_bytes"] - s["free_bytes"] - s["used_bytes"]
    assert 0 <= rounded <= s["used_bytes"] + 512 * len(sizes), s
    assert s["peak_total_bytes"] >= s["total_bytes"], s
    for block in blocks[::2]:
        free(block)
    s = now()
    assert s["used_bytes"] == sum(sizes[1::2]) and s["peak_used_bytes"] == sum(sizes), s
    assert s["used_blocks"] == 3 and s["frees"] == 3, s
    for block in blocks[1::2]:
        free(block)
    s = now()
    assert s["used_bytes"] == s["used_blocks"] == 0 and s["peak_used_blocks"] == len(sizes), s
    assert s["free_bytes"] <= s["total_bytes"] <= 2 * s["free_bytes"] + 512 * len(sizes), s
    assert bool(s["free_blocks"]) == bool(s["free_bytes"]), s
    ok(cuda.cuCtxSynchronize())
    before = s["total_bytes"]
    given_back = rmmshim.trim()
    s = now()
    assert s["total_bytes"] == before - given_back, (s, given_back)
    until_trimmed(lambda: now()["total_bytes"] == now()["free_bytes"])


def spilled():
    """What a fallback spills is in the total, and not against the limit."""
    start()
    rmmshim.set_limit(0, 16 * MIB)
    blocks = [allocate(8 * MIB) for _ in range(4)]
    s = now()
    assert s["used_bytes"] == 32 * MIB and s["charged_bytes"] == 16 * MIB, s
    assert s["total_bytes"] == s["used_bytes"] + s["free_bytes"] == 32 * MIB, s
    for block in blocks:
        free(block)


class Array(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR: floats."""
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint)]


def make_array(size):
    array, floats = ctypes.c_void_p(), 0x20
    ok(cuda.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(Array(size // 4096, 1024, floats, 1))))
    return array


def allocate_managed(size):
    address = ctypes.c_uint64()
    ok(cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(size), 1))
    return address.value


def allocate_async(size, on):
    address = ctypes.c_uint64()
    ok(cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), on))
    return address.value


def the_programs_own():
    """What the driver serves itself is the program's: no part of what the library holds, though it counts against
    a limit.  The argument is what the stack holds of a small block."""
    start()
    block = allocate(1000)
    before, held = now(), int(sys.argv[2])
    assert before["total_bytes"] == before["peak_total_bytes"] == held, before
    own = [allocate_async(8 * MIB, stream()), allocate_managed(8 * MIB)]
    array = make_array(8 * MIB)
    s = now()
    for name in ("used_bytes", "total_bytes", "peak_total_bytes", "free_bytes", "driver_allocations", "driver_frees"):
        assert s[name] == before[name], (name, s, before)
    assert s["charged_bytes"] >= before["charged_bytes"] + 16 * MIB, (s, before)
    for address in own + [block]:
        free(address)
    ok(cuda.cuArrayDestroy(array))
    s = now()
    assert s["used_bytes"] == 0 and s["peak_total_bytes"] == held, s
    assert 0 <= s["total_bytes"] - s["free_bytes"] < 512, s
    # A device without settings, where all is the driver's.
    start(1)
    block = allocate(1)
    s = rmmshim.statistics(1)
    s.pop("limit_bytes")
    assert s.pop("charged_bytes") == 2 * MIB and not any(s.values()), s
    free(block)


def peaks_of_contexts():
    """The most that was held at once: by contexts at the same time, or by one after the other."""
    start()
    for expected in (16, 16):
        context = ctypes.c_void_p()
        ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
        block = allocate(16 * MIB)
        assert now()["total_bytes"] == 16 * MIB
        ok(cuda.cuCtxDestroy_v2(context))
        s = now()
        assert s["total_bytes"] == 0 and s["peak_total_bytes"] == expected * MIB, s
    start()
    block = allocate(8 * MIB)
    assert now()["peak_total_bytes"] == 16 * MIB, now()
    ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    allocate(16 * MIB)
    s = now()
    assert s["total_bytes"] == s["peak_total_bytes"] == 24 * MIB, s
    ok(cuda.cuCtxDestroy_v2(context))
    start()
    free(block)
    rmmshim.trim()
    s = now()
    assert s["total_bytes"] == 0 and s["peak_total_bytes"] == 24 * MIB, s
    assert s["driver_allocations"] >= 4 and s["driver_frees"] >= 1, s  # of a virtual one granules


def pools_that_shrink():
    """The driver's pools give memory back by themselves: it is counted as long as they have it."""
    start()
    on = stream()
    cuda.hostcuda_used_bytes.restype = ctypes.c_size_t
    before = cuda.hostcuda_used_bytes(0)
    for how in ("synchronised", "trimmed"):
        block = allocate_async(64 * MIB, on)
        assert now()["charged_bytes"] >= 64 * MIB, now()
        ok(cuda.cuMemFreeAsync(ctypes.c_uint64(block), on))
        ok(cuda.cuStreamSynchronize(on))
        if how == "trimmed":
            rmmshim.trim()
        assert cuda.hostcuda_used_bytes(0) == before
        s = now()
        assert s["total_bytes"] == s["charged_bytes"] == 0, (how, s)
    pool, most = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
    release_threshold = 4
    ok(cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0))
    ok(cuda.cuMemPoolSetAttribute(pool, release_threshold, ctypes.byref(most)))
    ok(cuda.cuMemFreeAsync(ctypes.c_uint64(allocate_async(64 * MIB, on)), on))
    ok(cuda.cuStreamSynchronize(on))
    assert now()["charged_bytes"] == 64 * MIB, now()
    ok(cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))
    assert now()["charged_bytes"] == 0, now()
    if "limited" in sys.argv:
        rmmshim.set_limit(0, 32 * MIB)
    assert now()["charged_bytes"] == 0, now()


def device_held():
    cuda.hostcuda_used_bytes.restype = ctypes.c_size_t
    return cuda.hostcuda_used_bytes(0)


def ways_to_synchronise():
    """What the manual calls a synchronisation, with the event behind the work where it is one."""
    on, event = stream(), ctypes.c_void_p()
    ok(cuda.cuEventCreate(ctypes.byref(event), 0))
    return {
        "context": lambda: ok(cuda.cuCtxSynchronize()),
        "context_v2": lambda: ok(cuda.cuCtxSynchronize_v2(None)),
        "stream": lambda: ok(cuda.cuStreamSynchronize(on)),
        "default": lambda: ok(cuda.cuStreamSynchronize(None)),
        "per_thread": lambda: ok(cuda.cuStreamSynchronize_ptsz(None)),
        "event": lambda: (ok(cuda.cuEventRecord(event, on)), ok(cuda.cuEventSynchronize(event))),
    }


def until(condition, synchronise):
    """The fences that say what is done may be late, and come with one of the next synchronisations."""
    support.until(lambda: (synchronise(), condition())[1], "memory above the threshold")


def released():
    """What is free above a pool's release threshold goes back to the driver when the program synchronises.  The
    arguments are the threshold in MiB and what counts its memory: the device, or the library alone."""
    start()
    kept, by_device = int(sys.argv[2]) * MIB, sys.argv[3] == "device"
    for block in [allocate(64 * MIB) for _ in range(8)]:
        free(block)
    rmmshim.trim()
    assert now()["total_bytes"] == 0
    base = device_held() if by_device else 0

    def held():
        return device_held() - base if by_device else now()["total_bytes"]

    for name, synchronise in ways_to_synchronise().items():
        blocks = [allocate(64 * MIB) for _ in range(8)]
        for block in blocks[1:]:
            free(block)
        until(lambda: held() == max(kept, 64 * MIB), synchronise)
        s = now()
        assert held() == s["total_bytes"] == s["charged_bytes"], (name, held(), s)
        assert s["peak_total_bytes"] >= 512 * MIB and s["used_bytes"] == 64 * MIB, (name, s)
        free(blocks[0])
        until(lambda: held() <= kept, synchronise)
        s = now()
        assert held() == s["total_bytes"] == s["charged_bytes"] <= kept, (name, held(), s)


def released_in_order():
    """What a stream still works on stays, and no synchronisation of another one waits for it."""
    start()
    one, two = stream(), stream()
    first, second = allocate(256 * MIB), allocate(256 * MIB)
    done = threading.Event()
    work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: done.wait())
    ok(cuda.cuLaunchHostFunc(one, work, None))
    free(first)
    for _ in range(20):
        ok(cuda.cuStreamSynchronize(two))
        assert now()["total_bytes"] == 512 * MIB, now()
    done.set()
    until(lambda: now()["total_bytes"] == 256 * MIB, lambda: ok(cuda.cuStreamSynchronize(one)))
    free(second)
    until(lambda: now()["total_bytes"] == 0, lambda: ok(cuda.cuStreamSynchronize(two)))


def not_released():
    """Without a threshold, and in a pool that keeps what it has, nothing goes back."""
    start()
    blocks = [allocate(16 * MIB) for _ in range(8)]
    held = now()["total_bytes"]
    for block in blocks:
        free(block)
    for synchronise in ways_to_synchronise().values():
        synchronise()
    s = now()
    assert s["total_bytes"] == s["charged_bytes"] == held, (s, held)
    blocks = [allocate(16 * MIB) for _ in range(8)]
    assert now()["total_bytes"] == held


def followed_to_the_end():
    """The report at exit asks the driver nothing: what its pools gave back was seen when the program synchronised."""
    start()
    on = stream()
    for size in (64 * MIB, 8 * MIB):
        block = allocate_async(size, on)
        ok(cuda.cuMemFreeAsync(ctypes.c_uint64(block), on))
    ok(cuda.cuStreamSynchronize(on))


def followed_on_demand():
    """A report while the program runs asks the pools, as nobody has synchronised since they gave something back."""
    start()
    on, pool, most, release_threshold = stream(), ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1), 4
    ok(cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0))
    ok(cuda.cuMemPoolSetAttribute(pool, release_threshold, ctypes.byref(most)))
    ok(cuda.cuMemFreeAsync(ctypes.c_uint64(allocate_async(64 * MIB, on)), on))
    ok(cuda.cuStreamSynchronize(on))
    ok(cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))
    rmmshim.report(sys.argv[2])


def smallest_limit():
    """A share of which no byte is left is a limit all the same."""
    start()
    rmmshim.set_limit(0, None, 1e-11)
    assert rmmshim.get_limit() == 1, rmmshim.get_limit()
    assert try_allocate(1000)[0] == OUT_OF_MEMORY
    rmmshim.set_limit(0, None, 0)
    assert rmmshim.get_limit() == 0
    rmmshim.set_limit(0, None, 1.0)
    total = ctypes.c_size_t()
    ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
    assert rmmshim.get_limit() == total.value


def given_back_late():
    """After a context's end, a driver call of which failed, nothing stays: the fault and whether the driver
    refuses device memory of its own (then a fallback's second serves) are the arguments."""
    cuda.hostcuda_used_bytes.restype = ctypes.c_size_t
    cuda.hostcuda_fault_hits.restype = ctypes.c_ulonglong
    start()
    used = cuda.hostcuda_used_bytes(0)
    context = ctypes.c_void_p()
    ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    if "refused" in sys.argv:
        ok(cuda.hostcuda_fault_add(b"cuMemAlloc_v2:nth=2:code=2"))  # after one for waits
    for _ in range(8):
        allocate(4 * MIB)
    cuda.hostcuda_fault_clear()
    ok(cuda.hostcuda_fault_add(sys.argv[2].encode()))
    hits = cuda.hostcuda_fault_hits()
    ok(cuda.cuCtxDestroy_v2(context))
    assert cuda.hostcuda_fault_hits() == hits + 1
    assert cuda.hostcuda_used_bytes(0) > used
    assert now()["total_bytes"] == 0, now()
    rmmshim.trim()
    assert cuda.hostcuda_used_bytes(0) == used, (cuda.hostcuda_used_bytes(0), used)
    assert now()["total_bytes"] == 0, now()


def trimmed_at_once():
    """Right after the work is done a trim gives back all, though the driver says so late: in each round only when it
    has been asked some times.  A trim asks for a bounded time, which a busy machine may exceed, but not in each round."""
    start()
    cuda.hostcuda_fault_hits.restype = ctypes.c_ulonglong

    def round_of_one_trim():
        until_trimmed(lambda: now()["total_bytes"] == 0)  # of the round before
        for block in [allocate((1 + i) * MIB) for i in range(4)]:
            free(block)
        ok(cuda.hostcuda_fault_add(b"cuEventQuery:count=%d:code=%d" % (LATE, NOT_READY)))
        rmmshim.trim()
        asked = cuda.hostcuda_fault_hits()
        cuda.hostcuda_fault_clear()
        return asked == LATE and now()["total_bytes"] == 0

    support.until(round_of_one_trim, "a trim that gives back all")


def freed_is_unknown():
    """As after cudaFree, at once.  A free that does not wait for the program's work waits for its own stream for a
    bounded time, which a busy machine may exceed: then it is so soon."""
    start()
    base, size = ctypes.c_uint64(), ctypes.c_size_t()

    def is_unknown(block):
        return cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(block)) == 500

    def round_is_at_once():
        block = allocate(MIB)
        free(block)
        at_once = is_unknown(block)
        assert at_once or "soon" in sys.argv
        support.until(lambda: is_unknown(block))
        return at_once

    for _ in range(100):
        support.until(round_is_at_once, "a free that is done at once")


def grown_struct():
    """A program built with a smaller or larger struct."""
    start()
    allocate(1000)
    small = (ctypes.c_uint64 * 4)(16, 7, 7, 7)
    ok(rmmshim.library.rmmshim_get_statistics(0, ctypes.cast(small, ctypes.POINTER(rmmshim._Statistics))))
    assert list(small) == [16, 1000, 7, 7], list(small)
    large = (ctypes.c_uint64 * 40)(320, *[7] * 39)
    ok(rmmshim.library.rmmshim_get_statistics(0, ctypes.cast(large, ctypes.POINTER(rmmshim._Statistics))))
    assert list(large)[:2] == [8 * 18, 1000] and large[18] == 7, list(large)
    assert list(large)[16:18] == [1000, 0], list(large)
    small[0] = 8
    assert rmmshim.library.rmmshim_get_statistics(
        0, ctypes.cast(small, ctypes.POINTER(rmmshim._Statistics))) == -errno.EINVAL
    assert rmmshim.library.rmmshim_get_statistics(0, None) == -errno.EINVAL


def allocate_pinned(size, flags=0):
    address = ctypes.c_void_p()
    ok(cuda.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(size), flags))
    return address.value


def free_pinned(address):
    ok(cuda.cuMemFreeHost(ctypes.c_void_p(address)))


def allocate_managed(size):
    address = ctypes.c_uint64()
    ok(cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(size), 1))
    return address.value


KINDS = ((rmmshim.DEVICE, allocate, free, 64 * MIB), (rmmshim.PINNED, allocate_pinned, free_pinned, 16 * MIB),
         (rmmshim.MANAGED, allocate_managed, free, 8 * MIB))


def statistics_of_kinds():
    """Each kind has counters and memory of its own; a trim is for all of a device."""
    start()
    for kind, take, give, pool_bytes in KINDS:
        assert not any(rmmshim.statistics(0, kind)[name] for name in ("used_bytes", "allocations", "total_bytes"))
        others = {other[0]: rmmshim.statistics(0, other[0]) for other in KINDS if other[0] != kind}
        blocks = [take(size) for size in (400, 100000, 1)]
        s = rmmshim.statistics(0, kind)
        assert s["used_bytes"] == s["peak_used_bytes"] == s["allocated_bytes"] == 100401, s
        assert s["used_blocks"] == s["peak_used_blocks"] == s["allocations"] == 3, s
        assert s["total_bytes"] == s["peak_total_bytes"] == pool_bytes and s["free_bytes"] < pool_bytes, s
        assert s["driver_allocations"] == 1 and s["driver_frees"] == 0, s
        for block in blocks[1:]:
            give(block)
        s = rmmshim.statistics(0, kind)
        assert s["used_bytes"] == 400 and s["freed_bytes"] == 100001 and s["frees"] == 2, s
        assert s["allocated_bytes"] == 100401 and s["peak_used_bytes"] == 100401, s
        assert s["free_blocks"] >= 1 and s["total_bytes"] == pool_bytes, s
        for other, before in others.items():
            after = rmmshim.statistics(0, other)
            assert all(after[name] == before[name] for name in ("used_bytes", "total_bytes", "allocations")), after
        give(blocks[0])
    extra = [take(pool_bytes) for _, take, _, pool_bytes in KINDS]
    extra += [take(pool_bytes) for _, take, _, pool_bytes in KINDS]
    assert all(rmmshim.statistics(0, kind)["total_bytes"] > pool_bytes for kind, _, _, pool_bytes in KINDS)
    for i, block in enumerate(extra):
        KINDS[i % len(KINDS)][2](block)
    ok(cuda.cuCtxSynchronize())
    rmmshim.trim()
    for kind, _, _, pool_bytes in KINDS:
        until_trimmed(lambda: rmmshim.statistics(0, kind)["total_bytes"] == pool_bytes)
        assert rmmshim.statistics(0, kind)["free_bytes"] == pool_bytes, rmmshim.statistics(0, kind)
    for call in (rmmshim.statistics, rmmshim.get_counters, rmmshim.push_counters, rmmshim.pop_counters,
                 rmmshim.reset_peaks):
        for kind in (-1, 3):
            fails(errno.EINVAL, call, 0, kind)
        fails(errno.ENODEV, call, 7, rmmshim.PINNED)


def counted(level, used, peak, allocated):
    bytes_of = level["used_bytes"], level["peak_used_bytes"], level["allocated_bytes"]
    assert bytes_of == (used, peak, allocated), level


def counters():
    """Levels nest; what was there before may go; other kinds and devices do not see it."""
    start()
    before = allocate(5000)
    counted(rmmshim.get_counters(), 5000, 5000, 5000)
    with rmmshim.counters() as outer:
        a = allocate(10)
        with rmmshim.counters() as inner:
            free(allocate(20))
            b = allocate(30)
            free(before)
            assert rmmshim.get_counters()["used_bytes"] == 30 - 5000
        counted(inner, 30 - 5000, 30, 50)
        assert inner["used_blocks"] == 0 and inner["allocations"] == 2 and inner["peak_used_blocks"] == 1, inner
        free(a)
        with rmmshim.counters(0, rmmshim.PINNED) as pinned:
            free_pinned(allocate_pinned(7000))
    counted(outer, 30 - 5000, 40, 60)
    counted(pinned, 0, 7000, 7000)
    counted(rmmshim.get_counters(), 30, 5040, 5060)
    assert now()["peak_used_bytes"] == 5040 and now()["allocated_bytes"] == 5060
    free(b)
    fails(errno.ERANGE, rmmshim.pop_counters)
    rmmshim.push_counters()
    assert rmmshim.library.rmmshim_pop_counters(0, 0, None) == 0
    fails(errno.ERANGE, rmmshim.pop_counters)


def counters_of_another_size():
    """A program built with a smaller or larger struct; a wrong one ends no level."""
    start()
    allocate(1000)
    small = (ctypes.c_int64 * 3)(16, 7, 7)
    as_counters = ctypes.POINTER(rmmshim._Counters)
    ok(rmmshim.library.rmmshim_get_counters(0, 0, ctypes.cast(small, as_counters)))
    assert list(small) == [16, 1000, 7], list(small)
    large = (ctypes.c_int64 * 9)(72, *[7] * 8)
    ok(rmmshim.library.rmmshim_get_counters(0, 0, ctypes.cast(large, as_counters)))
    assert list(large) == [56, 1000, 1000, 1000, 1, 1, 1, 7, 7], list(large)
    rmmshim.push_counters()
    small[0] = 8
    for function in (rmmshim.library.rmmshim_get_counters, rmmshim.library.rmmshim_pop_counters):
        assert function(0, 0, ctypes.cast(small, as_counters)) == -errno.EINVAL
    assert rmmshim.library.rmmshim_get_counters(0, 0, None) == -errno.EINVAL
    rmmshim.pop_counters()


def peaks():
    start()
    a, b = allocate(3 * MIB), allocate(5 * MIB)
    free(b)
    s = now()
    assert s["peak_used_bytes"] == 8 * MIB and s["peak_used_blocks"] == 2, s
    rmmshim.push_counters()
    rmmshim.reset_peaks()
    s = now()
    assert s["peak_used_bytes"] == 3 * MIB and s["peak_used_blocks"] == 1, s
    assert s["allocated_bytes"] == 8 * MIB and s["allocations"] == 2, s
    free(allocate(MIB))
    s = now()
    assert s["peak_used_bytes"] == 4 * MIB and s["peak_used_blocks"] == 2, s
    assert rmmshim.pop_counters()["peak_used_bytes"] == MIB
    free(a)


def reports(folder):
    """On demand, as often as it is wanted, in each format; the one at exit is as it would be without."""
    paths = [os.path.join(folder, name) for name in ("one.json", "two.json", "three.prom", "four.txt")]
    assert rmmshim.report("json:" + paths[0]) is None  # before anything was allocated
    assert not os.path.exists(paths[0])
    start()
    blocks = [allocate(3 * MIB), allocate(1000)]
    rmmshim.report("json:" + paths[0])
    free(blocks[0])
    for _ in range(3):
        rmmshim.report("json:" + paths[1])
    rmmshim.report("prom-all:" + paths[2])
    rmmshim.report("text:" + paths[3])
    rmmshim.report("text")  # on stderr
    rmmshim.report(None)
    assert "did you mean 'json'" in fails(errno.EINVAL, rmmshim.report, "jsn:" + paths[0])
    assert "a path is missing" in fails(errno.EINVAL, rmmshim.report, "json:")
    assert fails(errno.EINVAL, rmmshim.report, "0")
    fails(errno.ENOENT, rmmshim.report, "json:" + os.path.join(folder, "no such folder", "report"))
    fails(errno.ENOSPC, rmmshim.report, "text:/dev/full")
    assert rmmshim.library.rmmshim_report(b"") == -errno.EINVAL
    free(blocks[1])


def reports_by_threads(folder):
    """Each is whole, while stacks come and go."""
    context = start()
    failures, go_on = [], threading.Event()

    def work(number):
        try:
            ok(cuda.cuCtxSetCurrent(context))
            for round_number in range(100):
                rmmshim.report("json:%s" % os.path.join(folder, "%d.%d.json" % (number, round_number % 5)))
                free(allocate(1000))
        except BaseException as error:
            failures.append(error)

    def churn():
        while not go_on.is_set():
            made = ctypes.c_void_p()
            ok(cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0))
            free(allocate(MIB))
            ok(cuda.cuCtxDestroy_v2(made))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    churning = threading.Thread(target=churn)
    allocate(1000)
    for thread in threads + [churning]:
        thread.start()
    for thread in threads:
        thread.join()
    go_on.set()
    churning.join()
    assert not failures, failures


def limit_before_start(size):
    """A share is not known before CUDA tells of what; a limit of the program's own is."""
    said = fails(errno.EAGAIN, rmmshim.get_limit)
    assert "percent" in said, said
    if "set" in sys.argv:
        rmmshim.set_limit(0, 64 * MIB)
        assert rmmshim.get_limit() == 64 * MIB
    start()
    assert rmmshim.get_limit() == int(size), rmmshim.get_limit()
    assert rmmshim.library.rmmshim_get_limit(0, None) == -errno.EINVAL


def known_limit_before_start(size):
    assert rmmshim.get_limit() == int(size), rmmshim.get_limit()


def before_start():
    """Before cuInit nothing crashes, and what needs no CUDA works."""
    fails(errno.EAGAIN, rmmshim.statistics, 0)
    fails(errno.EAGAIN, rmmshim.statistics, 0, rmmshim.PINNED)
    fails(errno.EAGAIN, rmmshim.push_counters)
    fails(errno.EAGAIN, rmmshim.prefetch, 0x1000)
    fails(errno.EAGAIN, rmmshim.set_limit, 0, None, 0.5)
    fails(errno.ERANGE, rmmshim.pop_resource)
    fails(errno.ENOENT, rmmshim.mark, "a phase")
    fails(errno.ENODEV, rmmshim.set_limit, 64, 1)
    assert rmmshim.trim() == 0
    assert torch_allocate(1000) is None
    torch_free(0x1000, 1000)
    rmmshim.push_resource("pool(cuda, initial_size=8MiB)")
    rmmshim.set_limit(0, 64 * MIB)
    assert rmmshim.get_limit() == 64 * MIB
    start()
    block = allocate(MIB)
    assert now()["total_bytes"] == 8 * MIB
    rmmshim.pop_resource()
    assert try_allocate(80 * MIB)[0] == OUT_OF_MEMORY
    free(block)
    fails(errno.ENODEV, rmmshim.statistics, 7)
    fails(errno.ENODEV, rmmshim.statistics, -1)


def expect_nothing_served():
    for function, arguments in ((rmmshim.statistics, (0,)), (rmmshim.set_limit, (0, 1)), (rmmshim.get_limit, (0,)),
                                (rmmshim.set_limit, (0, None, 0.5)), (rmmshim.push_resource, ("cuda",)),
                                (rmmshim.pop_resource, ()), (rmmshim.mark, ("a phase",)),
                                (rmmshim.get_counters, ()), (rmmshim.push_counters, ()), (rmmshim.pop_counters, ()),
                                (rmmshim.reset_peaks, ()), (rmmshim.set_resource, ("cuda",)),
                                (rmmshim.set_resource, (None,)), (rmmshim.prefetch, (0x1000,)),
                                (rmmshim.report, ("text",)), (rmmshim.report, (None,))):
        said = fails(errno.ENOTSUP, function, *arguments)
        assert said == "rmmshim does not serve this process: `rmmshim doctor %d` says why" % os.getpid(), said
    assert rmmshim.trim() == 0
    rmmshim.library.rmmshim_torch_record_stream(0x1000, None)


def nothing_served():
    """No settings: clear errors, and PyTorch's functions are the driver's."""
    expect_nothing_served()
    assert torch_allocate(1000) is None
    start()
    expect_nothing_served()
    before = free_memory()
    block = torch_allocate(64 * MIB)
    assert before - free_memory() == 64 * MIB
    torch_free(block, 64 * MIB)
    assert free_memory() == before


def free_memory():
    free_bytes, total_bytes = ctypes.c_size_t(), ctypes.c_size_t()
    ok(cuda.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total_bytes)))
    return free_bytes.value


def forked():
    start()
    block = allocate(1000)
    rmmshim.push_resource("pool(cuda)")
    child = os.fork()
    if child == 0:
        try:
            expect_nothing_served()
            assert torch_allocate(1000) is None
            torch_free(block, 1000)
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    rmmshim.pop_resource()
    assert now()["used_blocks"] == 1


def limits():
    start()
    held = [allocate(8 * MIB) for _ in range(4)]
    assert now()["total_bytes"] == 32 * MIB
    for block in held[2:]:
        free(block)
    ok(cuda.cuCtxSynchronize())
    # Below what is held: trims, keeps what is live.
    support.until(lambda: (rmmshim.set_limit(0, 8 * MIB), now()["total_bytes"] == 16 * MIB)[1], "freed memory")
    s = now()
    assert s["used_bytes"] == s["total_bytes"] == 16 * MIB and s["limit_bytes"] == 8 * MIB, s
    assert try_allocate(MIB)[0] == OUT_OF_MEMORY
    assert now()["refusals"] > 0
    free(held[0])
    block = allocate(8 * MIB)  # from what is free
    assert block == held[0]
    rmmshim.set_limit(0, 0)
    free(allocate(MIB))
    total = ctypes.c_size_t()
    ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
    rmmshim.set_limit(0, None, 0.25)  # of the real total, whatever the program is told from now on
    rmmshim.set_limit(0, None, 0.25)
    assert rmmshim.get_limit() == total.value // 4
    real = total.value
    ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
    assert total.value == real // 4
    fails(errno.EINVAL, rmmshim.set_limit, 0, None, 1.5)
    fails(errno.EINVAL, rmmshim.set_limit, 0, None, float("nan"))


def pushed():
    start()
    base = allocate(1000)
    total = now()["total_bytes"]
    with rmmshim.using_resource("pool(cuda, initial_size=16MiB, maximum_size=16MiB)"):
        a = allocate(4 * MIB)
        assert now()["total_bytes"] == total + 16 * MIB
        assert try_allocate(16 * MIB)[0] == OUT_OF_MEMORY  # its own maximum
        with rmmshim.using_resource("cuda"):
            b = allocate(64 * MIB)
            assert now()["total_bytes"] == total + 80 * MIB
        c = allocate(4 * MIB)
    d = allocate(1000)
    assert a < c < a + 16 * MIB
    assert abs(d - base) < 16 * MIB
    total = now()["total_bytes"]
    free(b)  # the driver's own: back at once
    assert now()["total_bytes"] == total - 64 * MIB
    # The same text again is the same memory.
    rmmshim.push_resource("pool(cuda, initial_size=16MiB, maximum_size=16MiB)")
    e = allocate(4 * MIB)
    assert a < e < a + 16 * MIB and e != c
    rmmshim.pop_resource()
    for block in (a, c, d, e, base):
        free(block)
    fails(errno.ERANGE, rmmshim.pop_resource)
    assert now()["used_blocks"] == 0


def pushed_without_device_memory():
    """RMM_HOOKS leaves it out."""
    start()
    for function in (rmmshim.push_resource, rmmshim.set_resource):
        assert "RMM_HOOKS" in fails(errno.ENOTSUP, function, "cuda")


def pushed_wrongly():
    start()
    total = now()["total_bytes"]
    assert "did you mean 'pool'" in fails(errno.EINVAL, rmmshim.push_resource, "pol(cuda)")
    assert fails(errno.EINVAL, rmmshim.push_resource, "")
    assert "cannot come from" in fails(errno.EINVAL, rmmshim.push_resource, "pool(pinned)")
    assert fails(errno.EINVAL, rmmshim.push_resource, "pool(cuda, initial_size=90000GiB)")
    assert rmmshim.library.rmmshim_push_resource(None) == -errno.EINVAL
    assert rmmshim.library.rmmshim_mark(None) == -errno.EINVAL
    fails(errno.ERANGE, rmmshim.pop_resource)
    for _ in range(15):
        rmmshim.push_resource("cuda")
    fails(errno.ENOSPC, rmmshim.push_resource, "cuda")
    for _ in range(15):
        rmmshim.pop_resource()
    for number in range(62):  # two that could be parsed are known already
        with rmmshim.using_resource("pool(cuda, maximum_size=%dMiB)" % (2 * number + 2)):
            pass
    fails(errno.ENOSPC, rmmshim.push_resource, "pool(cuda, maximum_size=1GiB)")
    free(allocate(1000))
    assert now()["total_bytes"] >= total


def denied_late():
    """Pushed before CUDA starts, and too large for the device: out of memory, not a crash."""
    rmmshim.push_resource("pool(cuda, initial_size=90000GiB)")
    start()
    assert try_allocate(1000)[0] == OUT_OF_MEMORY
    assert try_allocate(1000)[0] == OUT_OF_MEMORY
    rmmshim.pop_resource()
    free(allocate(1000))


def pushed_again():
    """A driver that does not tell once how much memory there is costs a pushed resource one call, not its stack."""
    start()
    free(allocate(1000))
    total = now()["total_bytes"]
    ok(cuda.hostcuda_fault_add(b"cuMemGetInfo_v2:count=1:code=%d" % OUT_OF_MEMORY))
    with rmmshim.using_resource("pool(cuda, initial_size=16MiB)"):
        assert now()["total_bytes"] == total
        free(allocate(1000))
        assert now()["total_bytes"] == total + 16 * MIB


def pushed_by_threads():
    """A push is the thread's own; the stack is everybody's."""
    context = start()
    blocks, failures = [], []

    def work(number):
        try:
            ok(cuda.cuCtxSetCurrent(context))
            for _ in range(200):
                with rmmshim.using_resource("pool(cuda, maximum_size=%dMiB)" % (64 + number % 2)):
                    mine = [allocate(1000 + number) for _ in range(3)]
                other = allocate(5000)
                for block in mine[1:] + [other]:
                    free(block)
                blocks.append(mine[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(set(blocks)) == 1200 and now()["used_blocks"] == 1200
    for block in blocks:
        free(block)
    assert now()["used_bytes"] == 0


def pushed_in_contexts():
    """A context's end takes its pushed stacks along, with what the driver would keep."""
    start()
    before = free_memory()
    for _ in range(100):
        context = ctypes.c_void_p()
        ok(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
        with rmmshim.using_resource("pool(cuda, initial_size=4MiB)"):
            allocate(MIB)
        with rmmshim.using_resource("pool(cuda, initial_size=2MiB)"):
            free(allocate(MIB))
        assert now()["total_bytes"] == 6 * MIB and now()["used_blocks"] == 1
        with rmmshim.using_resource("virtual"):  # whose memory outlives contexts
            free(allocate(MIB))
        ok(cuda.cuCtxDestroy_v2(context))
        assert now()["total_bytes"] == 0 and now()["used_blocks"] == 0
    assert now()["allocations"] == now()["frees"] == 300
    assert free_memory() == before, (free_memory(), before)


def side_by_side():
    """Stacks of one kind at once: blocks with three sets of flags, a pushed pool beside the device's own, and
    contexts that come after one another, or not."""
    start()
    pinned = [allocate_pinned(MIB, flags) for flags in (0, 1, 2)]
    held = allocate(40 * MIB)
    with rmmshim.using_resource("pool(cuda, initial_size=64MiB)"):
        pushed = allocate(40 * MIB)
    contexts = []
    for _ in range(3):
        contexts.append(ctypes.c_void_p())
        ok(cuda.cuCtxCreate_v2(ctypes.byref(contexts[-1]), 0, 0))
        free(allocate(40 * MIB))
        if "after" in sys.argv:
            ok(cuda.cuCtxDestroy_v2(contexts.pop()))
    for context in contexts:
        ok(cuda.cuCtxDestroy_v2(context))
    start()
    if "free" in sys.argv:
        for block in pinned:
            free_pinned(block)
        for block in (held, pushed):
            free(block)
    if "reset" in sys.argv:
        ok(cuda.cuDevicePrimaryCtxReset(0))


def two_pools():
    """Both of a fallback's are called the same."""
    start()
    for block in [allocate(8 * MIB) for _ in range(4)]:
        free(block)


class Worker:
    """A thread that allocates when it is told to, in the context that was current when it was made."""

    def __init__(self, context):
        self.context, self.orders, self.answers = context, queue.Queue(), queue.Queue()
        self.thread = threading.Thread(target=self.work, daemon=True)  # a failed scene ends at once
        self.thread.start()

    def work(self):
        ok(cuda.cuCtxSetCurrent(self.context))
        for function, arguments in iter(self.orders.get, None):
            self.answers.put(function(*arguments))

    def do(self, function, *arguments):
        self.orders.put((function, arguments))
        return self.answers.get()

    def end(self):
        self.orders.put(None)
        self.thread.join()


OTHER_POOL = "pool(cuda, initial_size=16MiB, maximum_size=16MiB)"


def in_other_pool():
    """True when this thread's memory comes from OTHER_POOL, which no block of 20 MiB fits in."""
    result, address = try_allocate(20 * MIB)
    if result == 0:
        free(address)
    return result == OUT_OF_MEMORY


def set_resource():
    """The resource of a device is all threads', those too that have allocated before; a thread's own comes first;
    blocks go back to where they came from."""
    context = start()
    worker = Worker(context)
    blocks = [allocate(1000), worker.do(allocate, 1000)]
    total = now()["total_bytes"]
    rmmshim.set_resource(OTHER_POOL)
    a, b = allocate(4 * MIB), worker.do(allocate, 4 * MIB)
    assert abs(a - b) < 16 * MIB and now()["total_bytes"] == total + 16 * MIB, (a, b, now())
    assert in_other_pool() and worker.do(in_other_pool)
    with rmmshim.using_resource("cuda"):
        assert not in_other_pool() and worker.do(in_other_pool)  # the thread's own, and not the other's
        c, d = allocate(64 * MIB), worker.do(allocate, 1000)
        assert now()["total_bytes"] == total + 80 * MIB and abs(d - a) < 16 * MIB, now()
    e = allocate(2 * MIB)
    assert abs(e - a) < 16 * MIB
    free(c)
    for block in blocks:  # to the stack that the settings gave
        free(block)
    assert "did you mean 'pool'" in fails(errno.EINVAL, rmmshim.set_resource, "pol(cuda)")
    assert fails(errno.EINVAL, rmmshim.set_resource, "pool(cuda, initial_size=90000GiB)")
    fails(errno.ENODEV, rmmshim.set_resource, "cuda", 7)
    assert in_other_pool() and worker.do(in_other_pool)  # what was wrong has changed nothing
    f = worker.do(allocate, MIB)
    total = now()["total_bytes"]
    rmmshim.set_resource("cuda")
    g = worker.do(allocate, 32 * MIB)
    assert now()["total_bytes"] == total + 32 * MIB, now()
    worker.do(free, g)
    assert now()["total_bytes"] == total, now()
    rmmshim.set_resource(None)
    assert not in_other_pool() and not worker.do(in_other_pool)
    h, i = allocate(1000), worker.do(allocate, 1000)
    rmmshim.set_resource(OTHER_POOL)  # the same memory again
    total = now()["total_bytes"]
    j = allocate(1000)
    assert abs(j - a) < 16 * MIB and now()["total_bytes"] == total, now()
    for block in (a, d, e, f, h, j):
        worker.do(free, block)
    for block in (b, i):
        free(block)
    worker.end()
    assert now()["used_blocks"] == 0
    ok(cuda.cuCtxSynchronize())
    rmmshim.set_resource(None)
    until_trimmed(lambda: now()["free_bytes"] == now()["total_bytes"])


def set_resource_before_start():
    rmmshim.set_resource(OTHER_POOL)
    context = start()
    worker = Worker(context)
    a, b = worker.do(allocate, MIB), allocate(MIB)
    assert abs(a - b) < 16 * MIB and now()["total_bytes"] == 16 * MIB, now()
    for block in (a, b):
        free(block)
    worker.end()
    rmmshim.set_resource("pool(cuda, initial_size=90000GiB)", 1)
    ok(cuda.cuCtxSetCurrent(start(1)))
    assert try_allocate(1000)[0] == OUT_OF_MEMORY  # as it shows only there
    rmmshim.set_resource(None, 1)
    free(allocate(1000))


def runtime():
    return ctypes.CDLL("libcudart.so.13")


def set_resource_runtime():
    """Through the runtime, whose cudaMalloc is served at once."""
    cudart = runtime()
    address = ctypes.c_void_p()

    def malloc(size):
        ok(cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)))
        return address.value

    first = [malloc(1000) for _ in range(3)]
    total = now()["total_bytes"]
    rmmshim.set_resource(OTHER_POOL)
    second = [malloc(1000) for _ in range(3)]
    assert now()["total_bytes"] == total + 16 * MIB, now()
    assert max(second) - min(second) < 16 * MIB
    rmmshim.set_resource(None)
    third = [malloc(1000) for _ in range(3)]
    assert not any(min(second) <= block <= max(second) for block in third)
    for block in first + second + third:
        ok(cudart.cudaFree(ctypes.c_void_p(block)))
    assert now()["used_blocks"] == 0


def set_resource_of_devices():
    """Of this device alone, whatever a thread did on another one before; green contexts are their primary's."""
    first, second = start(0), start(1)

    def on(context, size=1000):
        ok(cuda.cuCtxSetCurrent(context))
        return allocate(size)

    blocks = [on(first), on(second)]
    totals = [rmmshim.statistics(device)["total_bytes"] for device in (0, 1)]
    rmmshim.set_resource(OTHER_POOL, 1)
    greens = [green(device) for device in (0, 1)]
    mine = {0: [], 1: []}
    for _ in range(5):
        for device, context in ((0, first), (1, greens[1]), (0, first), (1, second), (0, greens[0]), (1, second)):
            mine[device].append(on(context))
    assert [rmmshim.statistics(device)["total_bytes"] for device in (0, 1)] == [totals[0], totals[1] + 16 * MIB]
    assert max(mine[1]) - min(mine[1]) < 16 * MIB
    with rmmshim.using_resource("cuda"):
        for context in (first, second, greens[1]):
            free(on(context))
    blocks.append(on(first))
    assert rmmshim.statistics(0)["used_blocks"] == 2 + len(mine[0]), rmmshim.statistics(0)
    for block in blocks + mine[0] + mine[1]:
        free(block)
    assert [rmmshim.statistics(device)["used_blocks"] for device in (0, 1)] == [0, 0]


def green(device):
    """A green context of all of a device, as a context."""
    resource = ctypes.create_string_buffer(144)
    description, made, context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    ok(cuda.cuDeviceGetDevResource(device, resource, 1))
    ok(cuda.cuDevResourceGenerateDesc(ctypes.byref(description), resource, 1))
    ok(cuda.cuGreenCtxCreate(ctypes.byref(made), description, device, 1))
    ok(cuda.cuCtxFromGreenCtx(ctypes.byref(context), made))
    return context


def set_resource_by_threads():
    """It changes while threads allocate: nothing is lost, and in the end all know the last."""
    context = start()
    blocks, failures, go_on = [], [], threading.Event()

    def work(number):
        try:
            ok(cuda.cuCtxSetCurrent(context))
            while not go_on.is_set():
                mine = [allocate(1000 + number) for _ in range(8)]
                for block in mine[1:]:
                    free(block)
                blocks.append(mine[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        for resource in (OTHER_POOL, "virtual", None, "pool(cuda)"):
            rmmshim.set_resource(resource)
    go_on.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(set(blocks)) == len(blocks) == now()["used_blocks"], (len(blocks), now())
    for block in blocks:
        free(block)
    assert now()["used_bytes"] == 0


def prefetch():
    """Of a block, or a part of it, to the device and to the host; never of its neighbours."""
    start()
    one = stream()
    block, other = allocate(3 * MIB), allocate(3 * MIB)
    for where, on in ((0, one), (-1, one), (0, None), (-1, None)):
        rmmshim.prefetch(block, 0, where, on)
        assert prefetched_to(block, 3 * MIB) == where, (where, prefetched_to(block, 3 * MIB))
    assert prefetched_to(other, 3 * MIB) == NOWHERE
    rmmshim.prefetch(block + MIB, 2 * MIB, 0, one)  # a part
    assert prefetched_to(block + MIB, 2 * MIB) == 0 and prefetched_to(block, MIB) == -1
    rmmshim.prefetch(block + 2 * MIB, 0, -1)
    assert prefetched_to(block + 2 * MIB, MIB) == -1 and prefetched_to(block + MIB, MIB) == 0
    assert prefetched_to(other, 3 * MIB) == NOWHERE  # its neighbour
    for address, size in ((block, 3 * MIB + 1), (block + 1, 3 * MIB), (block, 1 << 63), (0, 0), (0x1000, 1)):
        fails(errno.EINVAL, rmmshim.prefetch, address, size)
    fails(errno.ENODEV, rmmshim.prefetch, block, 0, 7)
    fails(errno.ENODEV, rmmshim.prefetch, block, 0, -2)
    free(block)
    fails(errno.EINVAL, rmmshim.prefetch, block)
    free(other)
    ok(cuda.cuCtxSynchronize())


NOWHERE = -2  # CU_DEVICE_INVALID


def prefetched_to(address, size):
    """The last place that the driver was told to move all of the range to."""
    place = ctypes.c_int()
    ok(cuda.cuMemRangeGetAttribute(ctypes.byref(place), ctypes.c_size_t(4), 4, ctypes.c_uint64(address),
                                   ctypes.c_size_t(size)))
    return place.value


def prefetch_other():
    """Memory that does not migrate: nothing happens, and that is no error."""
    start()
    for block, give in ((allocate(MIB), free), (allocate_pinned(MIB), free_pinned)):
        for where in (0, -1):
            rmmshim.prefetch(block, 0, where)
        fails(errno.EINVAL, rmmshim.prefetch, block, MIB + 1)
        give(block)


def marks():
    start()
    block = allocate(1000)
    rmmshim.mark("setup")
    free(block)
    free(allocate(2000))
    rmmshim.mark("a phase,\nwith two lines and %s" % ("x" * 300))


def busy(block, size, on=None):
    """Work that is not done before somebody waits for it (HOSTCUDA_SCHEDULE=stepped)."""
    ok(cuda.cuMemsetD8Async(ctypes.c_uint64(block), 0, ctypes.c_size_t(size), on))


def torch_order():
    start()
    one, two = stream(), stream()
    block = torch_allocate(MIB, one)
    for _ in range(50):
        busy(block, MIB, one)
        torch_free(block, MIB, one)
        assert torch_allocate(MIB, one) == block
    busy(block, MIB, one)
    torch_free(block, MIB, one)
    other = torch_allocate(MIB, two)
    assert other != block
    again = torch_allocate(MIB, one)
    assert again == block
    # Used elsewhere too: the free waits for all.
    rmmshim.library.rmmshim_torch_record_stream(again, two)
    busy(again, MIB, two)
    torch_free(again, MIB, one)
    block = torch_allocate(MIB, one)
    assert block != again
    torch_free(block, MIB, one)
    torch_free(other, MIB, two)
    # The legacy stream, and zero sizes.
    block = torch_allocate(5000)
    busy(block, 5000)
    torch_free(block, 5000)
    assert torch_allocate(5000) == block
    torch_free(block, 5000)
    assert torch_allocate(0) is None and torch_allocate(-1) is None
    torch_free(None, 0)
    # A destroyed stream's handle comes back for a new one, which is another.
    for _ in range(20):
        made = stream()
        block = torch_allocate(3 * MIB, made)
        busy(block, 3 * MIB, made)
        torch_free(block, 3 * MIB, made)
        late = torch_allocate(3 * MIB, made)
        assert late == block
        destroy(made)
        torch_free(late, 3 * MIB, made)
        renewed = stream()
        assert torch_allocate(3 * MIB, renewed) != block
        destroy(renewed)
    assert now()["used_blocks"] == 20
    ok(cuda.cuCtxSynchronize())


def torch_devices():
    """The block is the device's, whatever is current; torch frees from anywhere."""
    first = start(0)
    second = start(1)
    ok(cuda.cuCtxSetCurrent(first))
    blocks = [torch_allocate(MIB, None, device) for device in (0, 1, 0, 1)]
    for device in (0, 1):
        assert rmmshim.statistics(device)["used_bytes"] == 2 * MIB
    current = ctypes.c_void_p()
    ok(cuda.cuCtxGetCurrent(ctypes.byref(current)))
    assert current.value == first.value
    ok(cuda.cuCtxSetCurrent(second))
    for block, device in zip(blocks, (0, 1, 0, 1)):
        torch_free(block, MIB, None, device)
    ok(cuda.cuCtxSetCurrent(None))
    again = torch_allocate(MIB, None, 1)
    assert again in (blocks[1], blocks[3])
    torch_free(again, MIB, None, 1)
    assert torch_allocate(MIB, None, 99) is None
    for device in (0, 1):
        assert rmmshim.statistics(device)["used_blocks"] == 0


def torch_inactive():
    """It starts the device's primary context where nobody has."""
    ok(cuda.cuInit(0))
    block = torch_allocate(MIB)
    assert block and now()["used_blocks"] == 1
    torch_free(block, MIB)
    assert now()["used_blocks"] == 0


if __name__ == "__main__":
    assert rmmshim.available()
    scene = globals()[sys.argv[1]]
    scene(*sys.argv[2:][:scene.__code__.co_argcount])
    print("done")
