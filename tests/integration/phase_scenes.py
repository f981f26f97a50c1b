# SPDX-License-Identifier: Apache-2.0
"""What test_phases.py runs under the preloaded library: phase_scenes.py SCENE [argument...]

Each scene checks for itself and prints nothing but what its test asks for."""
import ctypes
import errno
import os
import sys
import threading

import c_api as rmmshim
from control_scenes import MIB, allocate, allocate_pinned, fails, free, free_pinned, ok, start


def totals(name, kind=rmmshim.DEVICE):
    of_phase = rmmshim.phases(0, kind)[name]
    return tuple(of_phase[member] for member in ("peak_bytes", "peak_used_bytes", "allocated_bytes", "allocations"))


def beside():
    """Another thread, which never pops."""
    rmmshim.push_phase("beside")
    free(allocate(4 * MIB))


def sums():
    """Phases nest, begin before CUDA does, and are summed up by name."""
    rmmshim.push_phase("all")
    start()
    before = allocate(5000)
    for size in (100, 300, 200):
        with rmmshim.phase("step"):
            free(allocate(size))
            with rmmshim.phase("inner"):
                free_pinned(allocate_pinned(7000))
    free(before)
    assert totals("step") == (300, 5300, 600, 3), totals("step")
    assert totals("inner", rmmshim.PINNED) == (7000, 7000, 21000, 3), totals("inner", rmmshim.PINNED)
    assert totals("inner") == (0, 5000, 0, 0), totals("inner")
    assert totals("all") == (5300, 5300, 5600, 4), totals("all")
    found = rmmshim.phases()
    assert [(name, of["entries"], of["open"]) for name, of in found.items()] == [
        ("all", 1, 1), ("step", 3, 0), ("inner", 3, 0)], found
    assert found["all"]["peak_charged_bytes"] > 5000 and found["all"]["thread_allocations"] == 4, found
    assert rmmshim.phases(0, rmmshim.PINNED)["all"]["peak_charged_bytes"] == 0
    rmmshim.pop_phase()
    assert rmmshim.phases()["all"]["open"] == 0


def threads():
    start()
    with rmmshim.phase("both"):
        kept = allocate(1000)
        context = ctypes.c_void_p()
        cuda = ctypes.CDLL("libcuda.so.1")
        ok(cuda.cuCtxGetCurrent(ctypes.byref(context)))

        def other():
            ok(cuda.cuCtxSetCurrent(context))
            beside()

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        while os.path.exists("/proc/self/task/%d" % thread.native_id):
            pass  # what a thread does at its end comes after Python has joined it
    free(kept)
    both, ended = rmmshim.phases()["both"], rmmshim.phases()["beside"]
    assert (both["allocated_bytes"], both["thread_allocated_bytes"]) == (4 * MIB + 1000, 1000), both
    assert (both["peak_bytes"], both["thread_peak_bytes"]) == (4 * MIB + 1000, 1000), both
    assert (ended["thread_peak_bytes"], ended["peak_used_bytes"]) == (4 * MIB, 4 * MIB + 1000), ended
    assert (both["unended"], ended["unended"], ended["open"]) == (0, 1, 0), ended


def errors():
    """Wrong calls are answered, and change nothing."""
    fails(errno.ERANGE, rmmshim.pop_phase)
    assert rmmshim.library.rmmshim_push_phase(None) == -errno.EINVAL
    fails(errno.EINVAL, rmmshim.push_phase, "")
    assert rmmshim.phases() == {}
    rmmshim.push_phase("one")
    filled = rmmshim._Phase(size=ctypes.sizeof(rmmshim._Phase))
    get = rmmshim.library.rmmshim_get_phase
    assert get(0, 0, 0, filled) == 0 and filled.name == b"one"
    assert get(0, 0, 1, filled) == -errno.ERANGE
    assert get(0, 3, 0, filled) == get(0, -1, 0, filled) == -errno.EINVAL
    assert get(-1, 0, 0, filled) == get(64, 0, 0, filled) == -errno.ENODEV
    assert get(0, 0, 0, None) == -errno.EINVAL
    filled.size = 8
    assert get(0, 0, 0, filled) == -errno.EINVAL
    small = (ctypes.c_uint64 * 4)(24, 7, 7, 7)
    assert get(0, 0, 0, ctypes.cast(small, ctypes.POINTER(rmmshim._Phase))) == 0
    assert (small[0], small[2], small[3]) == (24, 1, 7), list(small)
    fails(errno.EINVAL, rmmshim.reset_phase_peaks, 0, 3)
    rmmshim.pop_phase()
    fails(errno.ERANGE, rmmshim.pop_phase)
    start()
    filled.size = ctypes.sizeof(filled)
    assert get(1, 0, 0, filled) == -errno.ENODEV


def forwarded():
    """No stack serves device memory: what the driver gives is charged."""
    start()
    held = allocate(2 * MIB)
    with rmmshim.phase("outer"):
        free(allocate(8 * MIB))
        with rmmshim.phase("inner"):
            free(allocate(4 * MIB))
    outer, inner = rmmshim.phases()["outer"], rmmshim.phases()["inner"]
    assert outer["allocations"] == outer["peak_bytes"] == 0, outer
    assert outer["peak_charged_bytes"] - inner["peak_charged_bytes"] == 4 * MIB, (outer, inner)
    assert inner["peak_charged_bytes"] >= 6 * MIB, inner
    rmmshim.reset_phase_peaks()
    assert rmmshim.phases()["outer"]["peak_charged_bytes"] == 0
    free(held)


def peaks():
    start()
    with rmmshim.phase("outer"):
        free(allocate(3000))
        with rmmshim.phase("inner"):
            free(allocate(2000))
        kept = allocate(100)
        rmmshim.reset_phase_peaks()
        assert totals("inner") == (0, 0, 2000, 1) and totals("outer") == (100, 100, 5100, 3)
        free(allocate(500))
    assert totals("outer") == (600, 600, 5600, 4), totals("outer")
    assert rmmshim.statistics()["peak_used_bytes"] == 3000
    free(kept)


def reported(*where):
    """For the report at exit: an open phase, one that ended, one without memory."""
    start()
    rmmshim.push_phase("whole \"run\"\n")
    with rmmshim.phase("idle"):
        pass
    kept = allocate(1 << 20)
    with rmmshim.phase("step"):
        free(allocate(2 << 20))
    if where:
        rmmshim.report(*where)
    free(kept)


def unphased():
    start()
    free(allocate(1000))


def marks():
    start()
    free(allocate(1000))
    with rmmshim.phase("one"):
        free(allocate(1000))
        with rmmshim.phase("two"):
            pass
    for _ in range(70): # more than are kept open
        rmmshim.push_phase("deep")
    assert rmmshim.phases()["deep"]["entries"] == 70
    for _ in range(70):
        rmmshim.pop_phase()


def forked(where):
    """A child that begins anew keeps the phases that its thread had open, and only these."""
    rmmshim.push_phase("before")
    with rmmshim.phase("ended"):
        pass
    holder, stop = threading.Event(), threading.Event()

    def hold():
        rmmshim.push_phase("of another thread")
        holder.set()
        stop.wait()
        rmmshim.pop_phase()

    thread = threading.Thread(target=hold)
    thread.start()
    holder.wait()
    child = os.fork()
    if child == 0:
        start()
        with rmmshim.phase("in the child"):
            free(allocate(1000))
        found = rmmshim.phases()
        assert list(found) == ["before", "in the child"], found
        assert (found["before"]["open"], found["before"]["entries"]) == (1, 1), found
        assert totals("before") == totals("in the child") == (1000, 1000, 1000, 1), found
        rmmshim.pop_phase()
        fails(errno.ERANGE, rmmshim.pop_phase)
        rmmshim.report(where)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    start()
    free(allocate(500))
    assert totals("before") == (500, 500, 500, 1), rmmshim.phases()
    child = os.fork()  # which only forwards
    if child == 0:
        fails(errno.ENOTSUP, rmmshim.push_phase, "too late")
        fails(errno.ENOTSUP, rmmshim.pop_phase)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    rmmshim.pop_phase()


def unserved():
    fails(errno.ENOTSUP, rmmshim.push_phase, "one")
    fails(errno.ENOTSUP, rmmshim.pop_phase)
    fails(errno.ENOTSUP, rmmshim.reset_phase_peaks)
    assert rmmshim.phases() == {}


if __name__ == "__main__":
    assert rmmshim.available()
    globals()[sys.argv[1]](*sys.argv[2:])
    print("done")
