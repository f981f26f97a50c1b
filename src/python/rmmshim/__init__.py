# SPDX-License-Identifier: Apache-2.0
"""rmmshim from inside a Python program: what the process holds of the GPU, limits, phases, resources.

    import rmmshim

    with rmmshim.phase("forward"):
        run()
    if rmmshim.is_active():
        print(rmmshim.statistics()["used_bytes"], rmmshim.phases())

The module needs no build and no other package: it calls the library that is preloaded into this process
(`rmmshim run python3 ...`, or LD_PRELOAD=librmmshim.so).  Where no library is loaded, or where it serves nothing,
is_active() returns False, and these functions do nothing, so that a program may always call them: phase(), counters(),
mark(), reset_peaks(), reset_phase_peaks(); phases() returns an empty list.  Every other function raises RuntimeError.
rmmshim(3) describes the C functions that this module calls.

Functions that return counts return flat dictionaries of integers and names, and lists of them, so that
pandas.DataFrame([rmmshim.statistics()]) and pandas.DataFrame(rmmshim.phases()) are tables.  `device` is a CUDA
ordinal, `kind` is "device", "pinned" or "managed", sizes are in bytes.  A size that is passed in may also be text:
"500MiB", "2G" (2**31), "1.5GB" (decimal).  All functions are thread safe."""
from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import inspect
import os
import re
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

__all__ = ["Error", "is_active", "version", "statistics", "statistics_of_all", "limit", "trim", "phase", "phases",
           "reset_phase_peaks", "resource", "set_resource", "counters", "reset_peaks", "report", "mark", "size_of"]

Row = Dict[str, Union[int, str]]
Size = Union[int, str]

_KINDS = ("device", "pinned", "managed")  # by enum rmmshim_kind
_NOT_LOADED = "rmmshim is not preloaded into this process: start the program with `rmmshim run` or with LD_PRELOAD=librmmshim.so"


class Error(RuntimeError):
    """A call that failed; `errno` says why, as include/rmmshim/rmmshim.h lists it (0: the library is not loaded)."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.errno = number


def _struct(name: str, members: str, of: Any, *first: Any) -> Any:
    return type(name, (ctypes.Structure,), {
        "_fields_": [("size", ctypes.c_uint64), *first, *((member, of) for member in members.split())]})


_Statistics = _struct("_Statistics", """used_bytes peak_used_bytes used_blocks peak_used_blocks allocations frees
    total_bytes peak_total_bytes free_bytes free_blocks charged_bytes limit_bytes refusals driver_allocations
    driver_frees allocated_bytes freed_bytes""", ctypes.c_uint64)
_Counters = _struct("_Counters", """used_bytes peak_used_bytes allocated_bytes used_blocks peak_used_blocks
    allocations""", ctypes.c_int64)


_Phase = _struct("_Phase", """entries open unended peak_bytes peak_used_bytes allocated_bytes allocations
    thread_peak_bytes thread_allocated_bytes thread_allocations peak_charged_bytes""", ctypes.c_uint64,
                 ("name", ctypes.c_char_p))


_SIGNATURES: Dict[str, List[Any]] = {
    "version": [], "last_error": [],
    "get_statistics_of": [ctypes.c_int, ctypes.c_int, ctypes.c_void_p],
    "get_counters": [ctypes.c_int, ctypes.c_int, ctypes.c_void_p],
    "push_counters": [ctypes.c_int, ctypes.c_int],
    "pop_counters": [ctypes.c_int, ctypes.c_int, ctypes.c_void_p],
    "reset_peaks": [ctypes.c_int, ctypes.c_int],
    "push_phase": [ctypes.c_char_p], "pop_phase": [],
    "get_phase": [ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p],
    "reset_phase_peaks": [ctypes.c_int, ctypes.c_int],
    "trim": [ctypes.c_int, ctypes.c_size_t],
    "get_limit": [ctypes.c_int, ctypes.c_void_p],
    "set_limit": [ctypes.c_int, ctypes.c_size_t],
    "set_limit_fraction": [ctypes.c_int, ctypes.c_double],
    "push_resource": [ctypes.c_char_p], "pop_resource": [],
    "set_resource": [ctypes.c_int, ctypes.c_char_p],
    "report": [ctypes.c_char_p], "mark": [ctypes.c_char_p],
}
_RESULTS: Dict[str, Any] = {"version": ctypes.c_char_p, "last_error": ctypes.c_char_p, "trim": ctypes.c_size_t}

_process = ctypes.CDLL(None)  # symbols of all that is loaded, what was preloaded included


def _function(name: str) -> Any:
    function = getattr(_process, "rmmshim_" + name, None)
    if function is None:
        if getattr(_process, "rmmshim_version", None) is None:
            raise Error(_NOT_LOADED)
        raise Error("the preloaded rmmshim %s has no rmmshim_%s: it is older than this module"
                    % (_library_version(), name), errno.ENOSYS)
    function.argtypes = _SIGNATURES[name]
    function.restype = _RESULTS.get(name, ctypes.c_int)
    return function


def _call(name: str, *arguments: Any) -> None:
    result = _function(name)(*arguments)
    if result:
        said = _function("last_error")().decode(errors="replace")
        raise Error(said or os.strerror(-result), -result)


def _is_inactive(error: Error) -> bool:
    return error.errno in (0, errno.ENOTSUP)


def _watch(name: str, *arguments: Any) -> None:
    """A call that only watches the program, which does nothing where nothing is served."""
    try:
        _call(name, *arguments)
    except Error as error:
        if not _is_inactive(error):
            raise


def _need_service() -> None:
    """Raises where the library serves nothing, for functions whose result would not tell."""
    try:
        _call("get_limit", 0, ctypes.byref(ctypes.c_size_t()))
    except Error as error:
        if _is_inactive(error):
            raise


def _library_version() -> str:
    said: bytes = _function("version")()
    return said.decode()


def _device(device: int) -> int:
    """ctypes would cut off the bits that a C int has no room for."""
    if not isinstance(device, int) or not 0 <= device < 1 << 31:
        raise ValueError("a device is a CUDA ordinal, not %r" % (device,))
    return device


def _kind(kind: str) -> int:
    if kind not in _KINDS:
        raise ValueError("kind is 'device', 'pinned' or 'managed', not %r" % (kind,))
    return _KINDS.index(kind)


def _row(filled: ctypes.Structure, first: Row) -> Row:
    return dict(first, **{field[0]: getattr(filled, field[0]) for field in filled._fields_
                          if field[0] not in ("size", "name")})


def _bytes(size: Size) -> int:
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(iB?|B)?|B)?\s*", size, re.I) if isinstance(size, str) else None
    if not found or ("." in found.group(1) and not found.group(2)):
        raise ValueError("a size is a number of bytes or text such as '500MiB', not %r" % (size,))
    number, letter, tail = found.groups()
    unit = (1000 if (tail or "").upper() == "B" else 1024) ** ("KMGT".index(letter.upper()) + 1 if letter else 0)
    return int(number) * unit if number.isdigit() else int(min(float(number) * unit, 2.0 ** 64))


def size_of(size: Size) -> int:
    """A size in bytes: 500, "500MiB", "2G" (2**31), "1.5GB" (decimal); below 2**64."""
    number = _bytes(size)
    if number >= 1 << 64:
        raise ValueError("a size is less than 2**64 bytes, not %r" % (size,))
    return number


def is_active() -> bool:
    """True where the library is preloaded and serves this process: it has settings, which are valid, and the process was
    not forked from one that had used CUDA.  Never raises, and starts no CUDA."""
    try:
        _need_service()
    except Error:
        return False
    return True


def version() -> str:
    """The version of the preloaded library."""
    _need_service()
    return _library_version()


def statistics(device: int = 0, kind: str = "device") -> Row:
    """Used, total, free and peak bytes, blocks and calls of one kind of memory on a device: the members of struct
    rmmshim_statistics.  Needs CUDA to have started."""
    filled = _Statistics(size=ctypes.sizeof(_Statistics))
    _call("get_statistics_of", _device(device), _kind(kind), ctypes.byref(filled))
    return _row(filled, {"device": device, "kind": kind})


def statistics_of_all() -> List[Row]:
    """statistics() of every device and kind, a row each."""
    rows: List[Row] = []
    while True:
        try:
            rows += [statistics(len(rows) // len(_KINDS), kind) for kind in _KINDS]
        except Error as error:
            if error.errno == errno.ENODEV and rows:
                return rows
            raise


def limit(size: Optional[Size] = None, device: int = 0) -> int:
    """Sets the most bytes that this process may hold of the device from now on (0: no limit; "80%": of the device's
    memory, once CUDA has started), unless `size` is None.  Returns the limit in force, 0 for none."""
    if isinstance(size, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*%\s*", size):
        fraction = float(size.strip().rstrip("% ")) / 100
        if fraction == 0:
            raise ValueError("%r would allow no memory; 0 means no limit" % (size,))
        _call("set_limit_fraction", _device(device), fraction)
    elif size is not None:
        _call("set_limit", _device(device), size_of(size))
    now = ctypes.c_size_t()
    _call("get_limit", _device(device), ctypes.byref(now))
    return now.value


def trim(device: int = 0, keep: Size = 0) -> int:
    """Gives unused memory back to the driver, all but `keep` bytes.  Returns how many bytes less the process holds now.
    Waits up to 1 s for GPU work that may still use such memory."""
    _need_service()
    given_back: int = _function("trim")(_device(device), size_of(keep))
    return given_back


def _kept_name(name: str) -> str:
    """As the library keeps it: 127 bytes of whole characters, with blanks for control characters."""
    kept = name.split("\0")[0].encode(errors="replace")[:127].decode(errors="ignore")
    return re.sub("[\x01-\x1f\x7f]", " ", kept)


class _Range:
    """What a thread begins and ends, by a `with` block or around a function, the innermost first: the library pops what
    the thread pushed last.  A coroutine or generator that is suspended inside leaves it to whatever the thread does
    then, so such a function is refused, and ranges that end in another order are said."""

    _what = ""  # push_<what>, pop_<what>
    _begun = threading.local()  # of each kind, the ranges of the thread that are open in the library, outermost first

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, function: Callable[..., Any]) -> Any:
        for code in (function, getattr(function, "__call__", None)):
            if inspect.iscoroutinefunction(code) or inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
                raise TypeError("a %s belongs to a thread, which runs other code while %r is suspended: use `with` around "
                                "code that neither awaits nor yields" % (self._what, function))

        @functools.wraps(function)
        def inside(*arguments: Any, **named: Any) -> Any:
            with self:
                result = function(*arguments, **named)
            if inspect.iscoroutine(result):
                warnings.warn("the %s %r ended before the coroutine that %r returned began" % (
                    self._what, self._text, function), RuntimeWarning, stacklevel=2)
            return result

        return inside

    def __enter__(self) -> Any:
        raise NotImplementedError

    def _open(self) -> List[List[Any]]:
        ranges: List[List[Any]] = self._begun.__dict__.setdefault(self._what, [])
        return ranges

    def _push(self) -> None:
        _call("push_" + self._what, self._text.encode(errors="replace"))
        self._open().append([self, False])

    def __exit__(self, *raised: object) -> None:
        ranges = self._open()
        mine = [entry for entry in ranges if entry[0] is self and not entry[1]]
        if not mine:  # where nothing is served, nothing was pushed
            if not is_active():
                return
            raise Error("the %s %r was not begun in this thread" % (self._what, self._text), errno.ERANGE)
        mine[-1][1] = True
        if mine[-1] is not ranges[-1]:
            warnings.warn("the %s %r ends inside the %s %r, and so lasts until that one ends: tasks of one thread must not "
                          "wait inside a %s" % (self._what, self._text, self._what, ranges[-1][0]._text, self._what),
                          RuntimeWarning, stacklevel=2)
        while ranges and ranges[-1][1]:
            ranges.pop()
            _watch("pop_" + self._what)  # a child after fork() has not pushed it


class phase(_Range):
    """A named range of the calling thread, as a `with` block or around a function:

        with rmmshim.phase("load") as load:
            read()
        print(load.statistics()["peak_bytes"])

        @rmmshim.phase("step")
        def step(): ...

    Phases nest, and entries of one name are summed up.  Around a coroutine function or a generator function it raises
    TypeError; tasks of one thread whose phases overlap are a RuntimeWarning."""

    _what = "phase"

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError("the name of a phase is text, not %r" % (name,))
        super().__init__(name)
        self.name = name

    def __enter__(self) -> phase:
        try:
            self._push()
        except Error as error:
            if not _is_inactive(error):
                raise
        return self

    def statistics(self, device: int = 0, kind: str = "device") -> Row:
        """The row of phases() for this name.  Raises where rmmshim is not active."""
        _need_service()
        rows = {row["name"]: row for row in phases(device, kind)}
        row = rows.get(_kept_name(self.name), rows.get("(others)"))
        if row is not None:
            return row
        raise Error("no phase %r has begun" % self.name, errno.ERANGE)


def phases(device: int = 0, kind: str = "device") -> List[Row]:
    """A row for each name, in the order of their first entries: entries, peaks and totals, the members of struct
    rmmshim_phase.  An empty list where rmmshim is not active."""
    rows: List[Row] = []
    filled = _Phase(size=ctypes.sizeof(_Phase))
    while True:
        try:
            _call("get_phase", _device(device), _kind(kind), len(rows), ctypes.byref(filled))
        except Error as error:
            if error.errno == errno.ERANGE or _is_inactive(error):
                return rows
            raise
        name = filled.name.decode(errors="replace")
        rows.append(_row(filled, {"name": name, "device": device, "kind": kind}))


def reset_phase_peaks(device: int = 0, kind: str = "device") -> None:
    """Restarts the peaks of all phases."""
    _watch("reset_phase_peaks", _device(device), _kind(kind))


class resource(_Range):
    """Inside the `with` block or the function, this thread's device memory comes from the memory resources of the
    expression (the syntax of RMM_RESOURCE).  Raises and warns as phase() does, and raises where rmmshim is not active."""

    _what = "resource"

    def __enter__(self) -> None:
        self._push()


def set_resource(expression: Optional[str], device: int = 0) -> None:
    """From now on the device memory of all threads comes from the memory resources of the expression; None: from those of
    the settings."""
    _call("set_resource", _device(device), None if expression is None else expression.encode())


class _Counted(Dict[str, Any]):
    """Answers None for what was not counted."""

    def __missing__(self, name: str) -> None:
        return None


@contextlib.contextmanager
def counters(device: int = 0, kind: str = "device") -> Iterator[Dict[str, Any]]:
    """Counts what all threads allocate inside the `with` block.  The dictionary is filled when the block ends: used_bytes
    (may be negative), peak_used_bytes above what was used before, allocated_bytes, and the same counts of memory blocks.
    CUDA may start inside the `with` block.  Where rmmshim is not active, or serves no memory of that kind on the device,
    the dictionary stays empty, and each count in it reads None.

    All threads share one stack of counters for each device and kind: the `with` blocks of several threads must nest in
    time, as the first to end takes the counts of the last that began.  Where they do not nest, use phase() instead."""
    counted = _Counted()
    filled = _Counters(size=ctypes.sizeof(_Counters))
    number = _kind(kind)
    pop: Optional[str] = "pop_counters"
    try:
        _call("push_counters", _device(device), number)
    except Error as error:
        if error.errno == errno.EAGAIN:
            pop = "get_counters"  # nothing is allocated before CUDA has started: the whole process is the block
        elif not _is_inactive(error):
            raise
        else:
            pop = None
    try:
        yield counted
    finally:
        served = pop is not None
        try:
            if pop:
                _call(pop, device, number, ctypes.byref(filled))
        except Error as error:
            served = not _is_inactive(error)
            if served and error.errno != errno.EAGAIN:
                raise
        if served:
            counted.update(_row(filled, {"device": device, "kind": kind}))


def reset_peaks(device: int = 0, kind: str = "device") -> None:
    """Restarts the peaks of statistics() at what is used now."""
    _watch("reset_peaks", _device(device), _kind(kind))


def report(where: Optional[str] = None) -> None:
    """Writes the report of RMM_STATISTICS now: "text:PATH", "json:PATH", "prom:PATH" or "prom-all:PATH"; None: as text to stderr."""
    _call("report", None if where is None else where.encode())


def mark(text: str) -> None:
    """Notes the time and the text in the recording, where there is one, and in LOG.marks beside each open event log."""
    _watch("mark", text.encode(errors="replace"))
