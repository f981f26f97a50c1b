# SPDX-License-Identifier: Apache-2.0
"""For notebooks: how much GPU memory a cell takes.

    %load_ext rmmshim.notebook

    %%rmmshim [--device N] [--kind KIND] [--plot]     measures the cell
    %rmmshim  [--device N] [--kind KIND] STATEMENT    measures the statement; without one, says what is used now

Both print one line, and leave the counts in the variable _rmmshim.  What fails inside fails as it would without them.
Where rmmshim is not active, or does not serve that memory, they say so, and run the cell.  --plot draws the used
memory while the cell runs, looked at every 10 ms, where matplotlib is installed; the peak in the line is exact."""
from __future__ import annotations

import errno
import importlib
import io
import threading
import time
from typing import Any, List, Optional, Tuple

import rmmshim

_PERIOD_S = 0.01
_USAGE = "%rmmshim [--device N] [--kind KIND] [--plot] STATEMENT"


def _text(size: Any) -> str:
    """Three digits and a binary unit; four from 1000 on."""
    number, unit = float(size), 0
    while abs(number) >= 1024 and unit < 4:
        number, unit = number / 1024, unit + 1
    digits = "%.0f" if unit == 0 or abs(number) >= 1000 else "%.3g"
    return (digits + " %s") % (number, ("B", "KiB", "MiB", "GiB", "TiB")[unit])


def _options(line: str) -> Tuple[int, str, bool, str]:
    """Device, kind, whether to plot, and the statement, whose own words are left alone."""
    device, kind, plots, rest = 0, "device", False, line.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        if word == "--plot":
            plots = True
            continue
        value, _, rest = rest.partition(" ")
        rest = rest.strip()
        if word == "--device" and value.isdigit():
            device = int(value)
        elif word == "--kind":
            kind = value
        else:
            raise ValueError("%s: usage: %s" % (word, _USAGE))
    return device, kind, plots, rest


def _used(device: int, kind: str) -> int:
    """0 before CUDA has started, and where rmmshim is not active."""
    try:
        return int(rmmshim.statistics(device, kind)["used_bytes"])
    except rmmshim.Error as error:
        if error.errno != errno.EAGAIN and rmmshim.is_active():
            raise
        return 0


class _Watch:
    """Looks at the used memory from a thread of its own."""

    def __init__(self, device: int, kind: str) -> None:
        self.samples: List[Tuple[float, int]] = []
        self._of = device, kind
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            self.samples.append((time.perf_counter(), _used(*self._of)))
            if self._end.wait(_PERIOD_S):
                self.samples.append((time.perf_counter(), _used(*self._of)))
                return

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        self._thread.join()


def _plot(watch: _Watch, device: int, kind: str) -> None:
    try:
        matplotlib: Any = importlib.import_module("matplotlib.figure")
    except ImportError:
        print("rmmshim: no plot, as matplotlib is not installed")
        return
    display: Any = importlib.import_module("IPython.display")
    begin = watch.samples[0][0]
    figure = matplotlib.Figure(figsize=(7, 2.5), layout="constrained")
    axes = figure.add_subplot()
    axes.step([at - begin for at, _ in watch.samples], [used / (1 << 20) for _, used in watch.samples], where="post")
    axes.set_xlabel("s")
    axes.set_ylabel("MiB")
    axes.set_title("%s memory in use, device %d" % (kind, device))
    axes.set_ylim(bottom=0)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    display.display(display.Image(data=png.getvalue()))


def _run_cell(shell: Any, code: str) -> Optional[BaseException]:
    """What it raised, and has not shown: the cell around it raises that, and shows it once."""
    shows = "showtraceback", "showsyntaxerror"
    patched = {name: shell.__dict__[name] for name in shows if name in shell.__dict__}
    shell.__dict__.update(dict.fromkeys(shows, lambda *_, **__: None))
    try:
        result = shell.run_cell(code)
    finally:
        for name in shows:
            del shell.__dict__[name]
        shell.__dict__.update(patched)
    error: Optional[BaseException] = result.error_before_exec or result.error_in_exec
    return error


def _run(shell: Any, code: str, device: int, kind: str, watch: Optional[_Watch]) -> Optional[BaseException]:
    before = _used(device, kind)
    with rmmshim.counters(device, kind) as counted:
        if watch is None:
            error = _run_cell(shell, code)
        else:
            with watch:
                error = _run_cell(shell, code)
    shell.user_ns["_rmmshim"] = dict(counted, before_bytes=before)
    if not counted:
        print("rmmshim: %s, so nothing was measured" % (
            "%s memory of device %d is not served" % (kind, device) if rmmshim.is_active() else "not active"))
        return error
    print("rmmshim: device %d%s: %s in use before, up to %s more inside, %s after; allocated %s in %d block%s" % (
        device, "" if kind == "device" else ", %s memory" % kind, _text(before), _text(counted["peak_used_bytes"]),
        _text(before + counted["used_bytes"]), _text(counted["allocated_bytes"]), int(counted["allocations"]),
        "" if counted["allocations"] == 1 else "s"))
    return error


def _rows() -> List[rmmshim.Row]:
    """None before CUDA has started."""
    try:
        return rmmshim.statistics_of_all()
    except rmmshim.Error as error:
        if error.errno != errno.EAGAIN:
            raise
        return []


def _say_now(shell: Any) -> None:
    if not rmmshim.is_active():
        shell.user_ns["_rmmshim"] = []
        print("rmmshim: not active")
        return
    rows = shell.user_ns["_rmmshim"] = [row for row in _rows() if row["total_bytes"]]
    for row in rows:
        print("rmmshim: device %s, %s memory: used %s, peak %s, held %s" % (
            row["device"], row["kind"], _text(row["used_bytes"]), _text(row["peak_used_bytes"]),
            _text(row["total_bytes"])))
    if not rows:
        print("rmmshim: this process holds no GPU memory")


def load_ipython_extension(shell: Any) -> None:
    """Called by %load_ext."""

    def magic(line: str, cell: Optional[str] = None) -> None:
        device, kind, plots, statement = _options(line)
        if cell is not None and statement:
            raise ValueError("%s: usage: %%%%rmmshim [--device N] [--kind KIND] [--plot]" % statement)
        if cell is None and not statement:
            _say_now(shell)
            return
        watch = _Watch(device, kind) if plots else None
        error = _run(shell, statement if cell is None else cell, device, kind, watch)
        if watch is not None:
            _plot(watch, device, kind)
        if error is not None:
            raise error

    magic.__doc__ = __doc__
    shell.register_magic_function(magic, "line_cell", "rmmshim")
