# SPDX-License-Identifier: Apache-2.0
"""For pytest: limits, and tests that take or keep too much GPU memory.

    rmmshim run --limit 2GiB python3 -m pytest -p rmmshim.pytest_plugin

`--rmmshim-limit SIZE` sets another limit on what the whole session may hold of each device.  A test with the marker
gpu_memory("500MiB") fails when more than that is live at once while it runs, above what was live when it began;
`device=` and `kind=` may follow.  Device memory that a test allocates and that is still live after its fixtures have
ended is listed at the end of the session (less what its fixtures had allocated before and have freed).  Where rmmshim
is not active, `--rmmshim-limit` is an error.  There, and where it serves no memory of that kind, a test with the marker
fails, as nothing was measured, and the session's header says so.  Under pytest-xdist each worker is a process with a
limit of its own, and the list is that of all."""
from __future__ import annotations

import errno
import gc
from typing import Any, Dict, Generator, List, Tuple

import pytest

import rmmshim

_LEAKS = pytest.StashKey[List[Tuple[str, int, int]]]()
_LOST = pytest.StashKey[List[str]]()  # workers that ended without their list
_LIVE = pytest.StashKey[Dict[str, List[int]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rmmshim").addoption("--rmmshim-limit", metavar="SIZE",
                                         help="the most memory that the session may hold on each GPU, as in 2GiB")


def _set_limit(size: str) -> None:
    device = 0
    try:
        while True:
            rmmshim.limit(rmmshim.size_of(size), device)
            device += 1
    except ValueError as error:
        raise pytest.UsageError("--rmmshim-limit: %s" % error) from None
    except rmmshim.Error as error:
        if device == 0 or error.errno not in (errno.EINVAL, errno.ENODEV):  # there is no such device
            raise pytest.UsageError("--rmmshim-limit: %s" % error) from None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu_memory(size, device=0, kind='device'): the test fails when it uses more "
                                       "GPU memory at once than `size`, as rmmshim counts it")
    config.stash[_LEAKS] = []
    config.stash[_LOST] = []
    size = config.getoption("rmmshim_limit")
    if size is not None:
        _set_limit(size)


def pytest_report_header() -> str:
    if not rmmshim.is_active():
        return "rmmshim: not active, so tests with gpu_memory markers fail, and leaks are not checked"
    with rmmshim.counters() as counted:
        pass
    if not counted:
        return ("rmmshim: it does not serve device memory here (set a limit or a pool), so tests with gpu_memory markers "
                "fail, and leaks are not checked")
    return "rmmshim: %s" % rmmshim.version()


def _live_bytes() -> List[int]:
    """Of each device; none before CUDA has started."""
    try:
        return [int(row["used_bytes"]) for row in rmmshim.statistics_of_all() if row["kind"] == "device"]
    except rmmshim.Error:
        return []


def _grown(before: List[int], after: List[int]) -> List[int]:
    return [now - (before[device] if device < len(before) else 0) for device, now in enumerate(after)]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    live: Dict[str, List[int]] = {}
    item.stash[_LIVE] = live
    yield
    if "after call" not in live:
        return  # its setup failed, or rmmshim is not active
    gc.collect()
    call = _grown(live["before call"], live["after call"])
    kept = _grown(live["before call"], _live_bytes())
    # What fixtures allocate was live before the call; what they free at their end was not, or is no longer.
    for device, size in enumerate(map(min, call, kept)):
        if size > 0:
            item.config.stash[_LEAKS].append((item.nodeid, device, size))


def _measurement(size: Any, device: int = 0, kind: str = "device") -> Tuple[int, Any]:
    """Of the marker's arguments."""
    return rmmshim.size_of(size), rmmshim.counters(device, kind)


def _fail(outcome: Any, why: str) -> None:
    failure = pytest.fail.Exception(why, pytrace=False)
    if outcome is None or not hasattr(outcome, "force_exception"):  # pluggy before 1.1
        raise failure
    outcome.force_exception(failure)


def _call_measured(marker: pytest.Mark) -> Generator[None, Any, None]:
    outcome, why = None, ""
    try:
        most, counting = _measurement(*marker.args, **marker.kwargs)
        with counting as counted:
            outcome = yield
        if not counted:
            why = "the marker gpu_memory: rmmshim does not serve this memory in this process, so nothing was measured"
        elif int(counted["peak_used_bytes"]) > most:
            why = ("the test took %d bytes of GPU memory at once, more than gpu_memory(%r) allows"
                   % (counted["peak_used_bytes"], marker.args[0] if marker.args else most))
    except (TypeError, ValueError, rmmshim.Error) as error:
        why = "the marker gpu_memory: %s" % error
    if why and (outcome is None or outcome.excinfo is None):
        _fail(outcome, why)


# The outermost: with pluggy before 1.1, where it raises, others behind it would not come to their end.
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    marker = item.get_closest_marker("gpu_memory")
    if not rmmshim.is_active():
        if marker is None:
            yield
        else:
            yield from _call_measured(marker)
        return
    live = item.stash[_LIVE]
    live["before call"] = _live_bytes()
    try:
        if marker is None:
            yield
        else:
            yield from _call_measured(marker)
    finally:
        gc.collect()
        live["after call"] = _live_bytes()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist gives the controller its list."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["rmmshim_leaks"] = session.config.stash[_LEAKS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, "workeroutput", None)
    if output is None:
        node.config.stash[_LOST].append(node.gateway.id)
    else:
        node.config.stash[_LEAKS].extend(tuple(leak) for leak in output.get("rmmshim_leaks", ()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    leaks, lost = config.stash[_LEAKS], config.stash[_LOST]
    if leaks or lost:
        terminalreporter.section("GPU memory that tests left behind")
        for name, device, size in leaks:
            terminalreporter.write_line("%s: %d bytes on device %d" % (name, size, device))
        for worker in lost:
            terminalreporter.write_line("worker %s ended before it could say what its tests left behind" % worker)
