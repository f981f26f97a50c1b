# SPDX-License-Identifier: Apache-2.0
"""What test_python_module.py runs, under the preloaded library or without: python_scenes.py SCENE

Each scene checks for itself and prints nothing but what its test asks for."""
import ctypes
import errno
import importlib
import os
import sys

import rmmshim

MIB = 1 << 20
cuda = None


def ok(result):
    assert result == 0, result


def start():
    global cuda
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(cuda.cuCtxSetCurrent(context))


def try_allocate(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address


def allocate(size):
    result, address = try_allocate(size)
    ok(result)
    return address


def free(address):
    ok(cuda.cuMemFree_v2(address))


def fails(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        return error
    raise AssertionError("%s did not fail" % function)


def enter(context):
    with context:
        raise AssertionError("it began")


def inactive():
    """Every function but is_active raises RuntimeError with one sentence."""
    assert rmmshim.is_active() is False
    said = set()
    for function, *arguments in (
            (rmmshim.version,), (rmmshim.statistics,), (rmmshim.statistics_of_all,), (rmmshim.limit,), (rmmshim.limit, MIB),
            (rmmshim.limit, "50%"), (rmmshim.trim,), (enter, rmmshim.phase("x")), (rmmshim.phases,),
            (rmmshim.reset_phase_peaks,), (enter, rmmshim.resource("cuda")), (rmmshim.set_resource, None),
            (enter, rmmshim.counters()), (rmmshim.reset_peaks,), (rmmshim.report,), (rmmshim.mark, "x")):
        error = fails(RuntimeError, function, *arguments)
        assert isinstance(error, rmmshim.Error) and "\n" not in str(error), error
        said.add((error.errno, str(error)))
    assert len(said) == 1, said
    print(*said.pop())


def statistics():
    assert rmmshim.is_active() and rmmshim.version().count(".") == 2
    assert fails(rmmshim.Error, rmmshim.statistics).errno == errno.EAGAIN
    start()
    block = allocate(MIB)
    row = rmmshim.statistics()
    assert (row["device"], row["kind"], row["used_bytes"], row["used_blocks"]) == (0, "device", MIB, 1), row
    assert all(isinstance(value, int) for name, value in row.items() if name != "kind"), row
    assert [(row["device"], row["kind"], row["used_bytes"]) for row in rmmshim.statistics_of_all()] == [
        (device, kind, MIB if (device, kind) == (0, "device") else 0)
        for device in (0, 1) for kind in ("device", "pinned", "managed")]
    free(block)
    assert rmmshim.statistics()["peak_used_bytes"] == MIB
    rmmshim.reset_peaks()
    assert rmmshim.statistics()["peak_used_bytes"] == 0
    assert fails(rmmshim.Error, rmmshim.statistics, 2).errno == errno.ENODEV
    assert "no kind" not in str(fails(ValueError, rmmshim.statistics, 0, "host"))


def limits():
    assert rmmshim.limit("96MiB") == 96 * MIB and rmmshim.limit() == 96 * MIB
    start()
    assert try_allocate(100 * MIB)[0] == 2
    block = allocate(8 * MIB)
    assert rmmshim.limit(0) == 0
    free(block)
    held = rmmshim.statistics()["total_bytes"]
    assert held >= 8 * MIB and rmmshim.trim(keep="1GiB") == 0
    assert rmmshim.trim() == held and rmmshim.statistics()["total_bytes"] == 0
    total = ctypes.c_size_t()
    ok(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
    assert rmmshim.limit(" 50 %") == total.value // 2
    for size in ("8 apples", -1, True, 1.5, "", "0.5"):
        assert "is a number of bytes" in str(fails(ValueError, rmmshim.limit, size)), size
    rmmshim.limit("96MiB")
    for size in (1 << 64, "16777216T", "%d.5T" % (1 << 24), "9" * 400 + ".5K"):
        assert "less than 2**64" in str(fails(ValueError, rmmshim.limit, size)), size
        fails(ValueError, rmmshim.trim, 0, size)
    assert rmmshim.limit() == 96 * MIB and rmmshim.size_of((1 << 64) - 1) == (1 << 64) - 1
    for device in (1 << 32, 1 << 31, -1, "0", None):
        for function, *arguments in ((rmmshim.limit, "1MiB"), (rmmshim.limit, "50%"), (rmmshim.limit, None),
                                     (rmmshim.trim,), (rmmshim.statistics,), (rmmshim.phases,), (rmmshim.reset_peaks,),
                                     (rmmshim.reset_phase_peaks,), (rmmshim.set_resource, None)):
            if function in (rmmshim.limit, rmmshim.set_resource):
                arguments.append(device)
            else:
                arguments[:0] = [device]
            assert "a CUDA ordinal" in str(fails(ValueError, function, *arguments)), (function, device)
        assert "a CUDA ordinal" in str(fails(ValueError, enter, rmmshim.counters(device))), device
    assert rmmshim.limit() == 96 * MIB
    assert [rmmshim.size_of(size) for size in (7, "7", "7B", "2k", "1KiB", "4Gi", "1.5GB", "2T")] == [
        7, 7, 7, 2048, 1024, 4 << 30, 1500000000, 2 << 40]


def limits_of_all():
    """They are set before CUDA says how many devices there are."""
    for device in range(64):
        assert rmmshim.limit("96MiB", device) == 96 * MIB
    start()
    allocate(MIB)
    rmmshim.report()


def phases():
    with rmmshim.phase("load") as load:
        start()
        free(allocate(3000))

    @rmmshim.phase("step")
    def step(depth):
        free(allocate(1000))
        if depth:
            step(depth - 1)

    step(1)
    assert load.statistics()["peak_bytes"] == 3000
    rows = rmmshim.phases()
    assert [(row["name"], row["entries"], row["allocations"], row["kind"]) for row in rows] == [
        ("load", 1, 1, "device"), ("step", 2, 3, "device")], rows
    rmmshim.reset_phase_peaks()
    assert load.statistics()["peak_bytes"] == 0
    try:
        with rmmshim.phase("fails"):
            raise KeyError("as it was")
    except KeyError:
        pass
    assert rmmshim.phases()[-1]["open"] == 0
    for name in ("two" + "\u20ac" * 100, "to" + "\u20ac" * 100, "two\nlines", "cut\0here"):
        with rmmshim.phase(name) as odd:
            assert odd.statistics()["open"] == 1
    assert fails(rmmshim.Error, rmmshim.phase("never").statistics).errno == errno.ERANGE
    fails(ValueError, rmmshim.phase, "")
    with rmmshim.phase("over a fork"):
        child = os.fork()
        if child == 0:
            assert not rmmshim.is_active()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with rmmshim.counters() as counted:
        free(allocate(500))
    assert (counted["allocated_bytes"], counted["peak_used_bytes"], counted["used_bytes"]) == (500, 500, 0), counted


def early_counters():
    """They begin before CUDA does."""
    with rmmshim.counters() as counted:
        pass
    assert counted["allocations"] == 0
    with rmmshim.counters() as counted:
        start()
        allocate(700)
    assert (counted["allocated_bytes"], counted["used_bytes"]) == (700, 700), counted


class Shell:
    """As much of IPython's as the magic needs."""

    def __init__(self):
        self.user_ns = {}

    def register_magic_function(self, function, kind, name):
        assert (kind, name) == ("line_cell", "rmmshim")
        self.magic = function

    def run_cell(self, code):
        exec(code, self.user_ns)


def notebook():
    """Before CUDA starts, and after."""
    shell = Shell()
    importlib.import_module("rmmshim.notebook").load_ipython_extension(shell)
    shell.magic("")
    assert shell.user_ns["_rmmshim"] == []
    shell.magic("", "import python_scenes\npython_scenes.start()\npython_scenes.allocate(1000)")
    shell.magic("")
    print(fails(ValueError, shell.magic, "x", "cell"))


def resources():
    start()
    held = rmmshim.statistics()["total_bytes"]
    with rmmshim.resource("pool(cuda, initial_size=16MiB)"):
        block = allocate(1000)
    assert rmmshim.statistics()["total_bytes"] >= held + 16 * MIB
    free(block)
    assert ctypes.CDLL(None).rmmshim_pop_resource() == -errno.ERANGE
    error = fails(rmmshim.Error, enter, rmmshim.resource("pol(cuda)"))
    assert error.errno == errno.EINVAL and "did you mean 'pool'" in str(error), error
    rmmshim.set_resource("cuda")
    rmmshim.set_resource(None)
    rmmshim.report("text:/dev/null")
    assert "no event log" in str(fails(rmmshim.Error, rmmshim.mark, "x"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
