# SPDX-License-Identifier: Apache-2.0
"""For pytest: limits, and tests that take or keep too much GPU memory.

    rmmshim run python3 -m pytest -p rmmshim.pytest_plugin --rmmshim-limit 2GiB

`--rmmshim-limit SIZE` limits what the whole session may hold of each device.  A test with the marker
gpu_memory("500MiB") fails when more than that is live at once while it runs, above what was live when it began;
`device=` and `kind=` may follow.  Device memory that a test allocates and that is still live after its fixtures have
ended is listed at the end of the session (less what its fixtures had allocated before and have freed).  Where rmmshim is not active, `--rmmshim-limit` is an error and markers do
nothing, as the session's header says."""
from __future__ import annotations

import gc
from typing import Any, Dict, Generator, List, Tuple

import pytest

import rmmshim

_LEAKS = pytest.StashKey[List[Tuple[str, int, int]]]()
_LIVE = pytest.StashKey[Dict[str, List[int]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rmmshim").addoption("--rmmshim-limit", metavar="SIZE",
                                         help="most memory that the session may hold of each GPU: 2GiB")


def _set_limit(size: str) -> None:
    try:
        rmmshim.limit(rmmshim.size_of(size))
        device = 1
        while True:
            rmmshim.limit(rmmshim.size_of(size), device)
            device += 1
    except ValueError as error:
        raise pytest.UsageError("--rmmshim-limit: %s" % error) from None
    except rmmshim.Error as error:
        if not rmmshim.is_active():
            raise pytest.UsageError("--rmmshim-limit: %s" % error) from None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu_memory(size, device=0, kind='device'): the test fails when it takes more "
                                       "GPU memory than that, by rmmshim")
    config.stash[_LEAKS] = []
    size = config.getoption("rmmshim_limit")
    if size is not None:
        _set_limit(size)


def pytest_report_header() -> str:
    if not rmmshim.is_active():
        return "rmmshim: not active, gpu_memory markers and leaks are not looked at"
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
    if "before call" not in live:
        return  # its setup failed
    gc.collect()
    call = _grown(live["before call"], live["after call"])
    kept = _grown(live["before call"], _live_bytes())
    # What fixtures allocate was live before the call; what they free at their end was not, or is no longer.
    for device, size in enumerate(map(min, call, kept)):
        if size > 0:
            item.config.stash[_LEAKS].append((item.nodeid, device, size))


def _fail_above(size: Any, device: int = 0, kind: str = "device") -> Tuple[int, Any]:
    return rmmshim.size_of(size), rmmshim.counters(device, kind)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    marker = item.get_closest_marker("gpu_memory")
    live = item.stash[_LIVE]
    live["before call"] = _live_bytes()
    if marker is None or not rmmshim.is_active():
        yield
    else:
        most, counting = _fail_above(*marker.args, **marker.kwargs)
        with counting as counted:
            outcome = yield
        peak = int(counted["peak_used_bytes"])
        if peak > most and outcome.excinfo is None:
            outcome.force_exception(pytest.fail.Exception(
                "the test took %d bytes of GPU memory at once, more than gpu_memory(%r) allows"
                % (peak, marker.args[0] if marker.args else most), pytrace=False))
    gc.collect()
    live["after call"] = _live_bytes()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    leaks = config.stash[_LEAKS]
    if leaks:
        terminalreporter.section("GPU memory that tests left behind")
        for name, device, size in leaks:
            terminalreporter.write_line("%s: %d bytes on device %d" % (name, size, device))
