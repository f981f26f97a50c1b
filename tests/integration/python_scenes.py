# SPDX-License-Identifier: Apache-2.0
"""What test_python_module.py runs, under the preloaded library or without: python_scenes.py SCENE

Each scene checks for itself and prints nothing but what its test asks for."""
import asyncio
import ctypes
import errno
import functools
import importlib
import os
import sys
import types
import warnings

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


def fail_inside(context):
    with context:
        raise KeyError("its own")


def inactive():
    """What only watches does nothing; every other function but is_active raises RuntimeError with one sentence."""
    assert rmmshim.is_active() is False
    watched = []
    with rmmshim.phase("x") as phase, rmmshim.counters() as counted, rmmshim.counters(1, "pinned"):
        rmmshim.phase("y")(watched.append)(1)
        rmmshim.mark("x")
    rmmshim.reset_phase_peaks()
    rmmshim.reset_peaks()
    assert watched == [1] and rmmshim.phases() == []
    assert counted == {} and counted["peak_used_bytes"] is None and counted.get("allocations") is None
    for context in (rmmshim.phase("x"), rmmshim.counters()):
        assert str(fails(KeyError, fail_inside, context)) == "'its own'"
    fails(ValueError, rmmshim.phase, "")
    fails(ValueError, enter, rmmshim.counters(0, "host"))
    said = set()
    for function, *arguments in (
            (rmmshim.version,), (rmmshim.statistics,), (rmmshim.statistics_of_all,), (rmmshim.limit,), (rmmshim.limit, MIB),
            (rmmshim.limit, "50%"), (rmmshim.trim,), (phase.statistics,), (enter, rmmshim.resource("cuda")),
            (rmmshim.set_resource, None), (rmmshim.report,)):
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
    for size in ("0%", " 0.00 %"):  # which is no request for no limit
        assert "would allow no memory" in str(fails(ValueError, rmmshim.limit, size)), size
    assert rmmshim.limit() == total.value // 2
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
    with rmmshim.phase("over a fork"), rmmshim.resource("cuda"), rmmshim.counters() as counted:
        child = os.fork()
        if child == 0:
            assert not rmmshim.is_active()
            with rmmshim.phase("in the child"):
                pass
    if child == 0:
        assert not counted
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with rmmshim.counters() as counted:
        free(allocate(500))
    assert (counted["allocated_bytes"], counted["peak_used_bytes"], counted["used_bytes"]) == (500, 500, 0), counted


def suspended():
    """What is suspended inside a range: it is measured, or said."""
    start()

    async def task():
        pass

    class Task:
        async def __call__(self):
            pass

    def generator():
        yield

    async def both():
        yield

    for make in (lambda: rmmshim.phase("x"), lambda: rmmshim.resource("cuda")):
        for function in (task, functools.partial(task), Task(), generator, both):
            assert "suspended" in str(fails(TypeError, make(), function)), function
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            asyncio.run(make()(lambda: task())())  # pylint: disable=unnecessary-lambda
        assert len(said) == 1 and "ended before the coroutine" in str(said[0].message), said

    async def measured():
        with rmmshim.phase("measured"):
            block = allocate(1000)
            await asyncio.sleep(0)
            free(block)
            free(allocate(2000))

    asyncio.run(measured())
    assert [(row["name"], row["allocations"], row["peak_bytes"]) for row in rmmshim.phases() if row["name"] != "x"] == [
        ("measured", 2, 2000)], rmmshim.phases()

    async def overlapping(make, turn, other):
        with make:
            turn.set()
            await other.wait()

    async def two(first, second):
        one, other = asyncio.Event(), asyncio.Event()
        await asyncio.gather(overlapping(first, one, other), overlapping(second, other, one))

    for ranges in ([rmmshim.phase("a"), rmmshim.phase("b")], [rmmshim.resource("cuda"), rmmshim.resource("pool(cuda)")]):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            asyncio.run(two(*ranges))
        assert [item.category for item in said] in ([], [RuntimeWarning]), said
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with ranges[0]:
                ranges[1].__enter__()
            ranges[1].__exit__()
        assert [item.category for item in said] == [RuntimeWarning] and "ends inside" in str(said[0].message), said
    assert [row["open"] for row in rmmshim.phases()] == [0] * len(rmmshim.phases()), rmmshim.phases()
    assert ctypes.CDLL(None).rmmshim_pop_resource() == -errno.ERANGE
    assert fails(rmmshim.Error, rmmshim.phase("never").__exit__).errno == errno.ERANGE


def early_counters():
    """They begin before CUDA does."""
    with rmmshim.counters() as counted:
        pass
    assert counted["allocations"] == 0
    with rmmshim.counters() as counted:
        start()
        allocate(700)
    assert (counted["allocated_bytes"], counted["used_bytes"]) == (700, 700), counted
    with rmmshim.counters(kind="pinned") as unserved, rmmshim.counters() as counted:
        allocate(800)
    assert not unserved and counted["allocated_bytes"] == 800, (unserved, counted)


class Shell:
    """As much of IPython's as the magic needs."""

    def __init__(self):
        self.user_ns = {}
        self.shown = []

    def register_magic_function(self, function, kind, name):
        assert (kind, name) == ("line_cell", "rmmshim")
        self.magic = function

    def showtraceback(self, *_, **__):
        self.shown.append(sys.exc_info()[1])

    showsyntaxerror = showtraceback

    def run_cell(self, code):
        """Shows what fails, and returns it."""
        result = types.SimpleNamespace(error_before_exec=None, error_in_exec=None)
        try:
            compiled = compile(code, "<cell>", "exec")
        except SyntaxError as error:
            self.showsyntaxerror()
            result.error_before_exec = error
            return result
        try:
            exec(compiled, self.user_ns)
        except BaseException as error:
            self.showtraceback()
            result.error_in_exec = error
        return result


def notebook():
    """Before CUDA starts, and after."""
    shell = Shell()
    importlib.import_module("rmmshim.notebook").load_ipython_extension(shell)
    shell.magic("")
    assert shell.user_ns["_rmmshim"] == []
    shell.magic("", "import python_scenes\npython_scenes.start()\npython_scenes.allocate(1000)")
    shell.magic("")
    print(fails(ValueError, shell.magic, "x", "cell"))
    fail_in_cells(shell)


def fail_in_cells(shell):
    """A cell that fails under the magic fails, and is shown once, by the cell around it."""
    for kind, line, code in ((ZeroDivisionError, "", "1/0"), (ZeroDivisionError, "1/0", None), (SyntaxError, "", "x=("),
                             (KeyboardInterrupt, "", "raise KeyboardInterrupt"), (ZeroDivisionError, "--plot", "1/0")):
        fails(kind, shell.magic, line, code)
    assert shell.shown == [] and "showtraceback" not in shell.__dict__
    shell.run_cell("1/0")
    assert len(shell.shown) == 1


def inactive_notebook():
    """The cells run."""
    shell = Shell()
    importlib.import_module("rmmshim.notebook").load_ipython_extension(shell)
    shell.magic("")
    shell.magic("--kind pinned", "x = 5")
    shell.magic("y = x")
    assert (shell.user_ns["y"], shell.user_ns["_rmmshim"]) == (5, {"before_bytes": 0})
    fails(ZeroDivisionError, shell.magic, "", "1/0")


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
    assert "there is no file for the mark" in str(fails(rmmshim.Error, rmmshim.mark, "x"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
