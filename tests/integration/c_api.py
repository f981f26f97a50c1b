# SPDX-License-Identifier: Apache-2.0
"""rmmshim's functions (include/rmmshim/rmmshim.h) one by one, by ctypes, for the scenes that test them.

Programs use the module rmmshim (src/python)."""
import contextlib
import ctypes
import os


class Error(OSError):
    """errno and what the library says."""


class _Statistics(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "size", "used_bytes", "peak_used_bytes", "used_blocks", "peak_used_blocks", "allocations", "frees",
        "total_bytes", "peak_total_bytes", "free_bytes", "free_blocks", "charged_bytes", "limit_bytes",
        "refusals", "driver_allocations", "driver_frees", "allocated_bytes", "freed_bytes")]


class _Counters(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint64)] + [(name, ctypes.c_int64) for name in (
        "used_bytes", "peak_used_bytes", "allocated_bytes", "used_blocks", "peak_used_blocks", "allocations")]


class _Phase(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint64), ("name", ctypes.c_char_p)] + [(name, ctypes.c_uint64) for name in (
        "entries", "open", "unended", "peak_bytes", "peak_used_bytes", "allocated_bytes", "allocations",
        "thread_peak_bytes", "thread_allocated_bytes", "thread_allocations", "peak_charged_bytes")]


DEVICE, PINNED, MANAGED = range(3)  # enum rmmshim_kind


def _load():
    """The preloaded library, or None."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "rmmshim_version"):
        return None
    library.rmmshim_version.restype = ctypes.c_char_p
    library.rmmshim_last_error.restype = ctypes.c_char_p
    library.rmmshim_get_statistics.argtypes = [ctypes.c_int, ctypes.POINTER(_Statistics)]
    library.rmmshim_get_statistics_of.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Statistics)]
    library.rmmshim_get_counters.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Counters)]
    library.rmmshim_push_counters.argtypes = [ctypes.c_int, ctypes.c_int]
    library.rmmshim_pop_counters.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Counters)]
    library.rmmshim_reset_peaks.argtypes = [ctypes.c_int, ctypes.c_int]
    library.rmmshim_push_phase.argtypes = [ctypes.c_char_p]
    library.rmmshim_get_phase.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Phase)]
    library.rmmshim_reset_phase_peaks.argtypes = [ctypes.c_int, ctypes.c_int]
    library.rmmshim_trim.argtypes = [ctypes.c_int, ctypes.c_size_t]
    library.rmmshim_trim.restype = ctypes.c_size_t
    library.rmmshim_set_limit.argtypes = [ctypes.c_int, ctypes.c_size_t]
    library.rmmshim_set_limit_fraction.argtypes = [ctypes.c_int, ctypes.c_double]
    library.rmmshim_get_limit.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)]
    library.rmmshim_push_resource.argtypes = [ctypes.c_char_p]
    library.rmmshim_set_resource.argtypes = [ctypes.c_int, ctypes.c_char_p]
    library.rmmshim_prefetch.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.rmmshim_report.argtypes = [ctypes.c_char_p]
    library.rmmshim_mark.argtypes = [ctypes.c_char_p]
    library.rmmshim_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.rmmshim_torch_alloc.restype = ctypes.c_void_p
    library.rmmshim_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.rmmshim_torch_free.restype = None
    library.rmmshim_torch_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.rmmshim_torch_record_stream.restype = None
    return library


library = _load()


def available():
    return library is not None


def _check(result):
    if result:
        said = library.rmmshim_last_error().decode(errors="replace")
        raise Error(-result, said or os.strerror(-result))


def _dictionary(filled):
    return {name: getattr(filled, name) for name, _ in filled._fields_ if name != "size"}


def statistics(device=0, kind=DEVICE):
    """A dictionary: used_bytes, total_bytes, free_bytes, free_blocks and so on."""
    filled = _Statistics(size=ctypes.sizeof(_Statistics))
    _check(library.rmmshim_get_statistics_of(device, kind, filled))
    return _dictionary(filled)


def get_counters(device=0, kind=DEVICE):
    """Of the innermost level: used_bytes, peak_used_bytes, allocated_bytes, and the same of blocks."""
    filled = _Counters(size=ctypes.sizeof(_Counters))
    _check(library.rmmshim_get_counters(device, kind, filled))
    return _dictionary(filled)


def push_counters(device=0, kind=DEVICE):
    _check(library.rmmshim_push_counters(device, kind))


def pop_counters(device=0, kind=DEVICE):
    filled = _Counters(size=ctypes.sizeof(_Counters))
    _check(library.rmmshim_pop_counters(device, kind, filled))
    return _dictionary(filled)


@contextlib.contextmanager
def counters(device=0, kind=DEVICE):
    """A dictionary that is filled at the end of the block with what was counted in it."""
    counted = {}
    push_counters(device, kind)
    try:
        yield counted
    finally:
        counted.update(pop_counters(device, kind))


def reset_peaks(device=0, kind=DEVICE):
    _check(library.rmmshim_reset_peaks(device, kind))


def push_phase(name):
    _check(library.rmmshim_push_phase(name.encode()))


def pop_phase():
    _check(library.rmmshim_pop_phase())


@contextlib.contextmanager
def phase(name):
    """This thread is in a phase of that name inside the block."""
    push_phase(name)
    try:
        yield
    finally:
        pop_phase()


def phases(device=0, kind=DEVICE):
    """A dictionary for each name that was pushed, by name: entries, peak_bytes, allocated_bytes and so on."""
    filled, found = _Phase(size=ctypes.sizeof(_Phase)), {}
    while library.rmmshim_get_phase(device, kind, len(found), filled) == 0:
        of_phase = _dictionary(filled)
        found[of_phase.pop("name").decode(errors="replace")] = of_phase
    return found


def reset_phase_peaks(device=0, kind=DEVICE):
    _check(library.rmmshim_reset_phase_peaks(device, kind))


def trim(device=0, keep_bytes=0):
    return library.rmmshim_trim(device, keep_bytes)


def set_limit(device=0, size=None, fraction=None):
    if fraction is not None:
        _check(library.rmmshim_set_limit_fraction(device, fraction))
    else:
        _check(library.rmmshim_set_limit(device, size or 0))


def get_limit(device=0):
    limit = ctypes.c_size_t()
    _check(library.rmmshim_get_limit(device, limit))
    return limit.value


def push_resource(expression):
    _check(library.rmmshim_push_resource(expression.encode()))


def pop_resource():
    _check(library.rmmshim_pop_resource())


@contextlib.contextmanager
def using_resource(expression):
    """This thread's device memory comes from that resource inside the block."""
    push_resource(expression)
    try:
        yield
    finally:
        pop_resource()


def set_resource(expression, device=0):
    """The device memory of all threads comes from that resource; None: from what the settings give."""
    _check(library.rmmshim_set_resource(device, expression if expression is None else expression.encode()))


def prefetch(address, size=0, device=0, stream=None):
    """Moves a block that migrates to the device (-1: to the host), in the order of the stream."""
    _check(library.rmmshim_prefetch(address, size, device, stream))


def report(where=None):
    """The counters of all devices, now: "json:PATH", "prom:PATH", "text:PATH"; None: as text on stderr."""
    _check(library.rmmshim_report(where if where is None else where.encode()))


def mark(phase):
    _check(library.rmmshim_mark(phase.encode()))
