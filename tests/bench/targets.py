# SPDX-License-Identifier: Apache-2.0
"""The design's targets, row by row, beside what was measured: rmmshim, the floor, the driver, cudaMallocAsync
and RMM in the same run, and whether the target is met or by how much it is missed.

    targets.py [--bench FILE] [--speed FILE] [--footprint FILE] [--json FILE]

The files are what run_bench.py, framework_speed.py and footprint.py write with --json; a row whose
file is missing says so.  Where a row stands for several sizes it shows the one that is furthest from its
target.  Differences from the floor, and ratios to it, are medians of those within a turn.  Exit status: 0,
whatever the figures are."""
import argparse
import json
import os
import statistics
import sys

sys.dont_write_bytecode = True
from contenders import Figures, compare, show_ns
import framework_speed
import instruction_budget
import run_bench

PEERS = ["driver", "cudaMallocAsync", "RMM pool", "RMM arena", "RMM binning", "RMM async"]
COLUMNS = ["rmmshim", "floor"] + PEERS + ["PyTorch"]
FOOTPRINT_PEERS = ["RMM pool", "RMM arena", "RMM binning", "PyTorch"]
PRELOAD_NS = 300e3


class Row:
    def __init__(self, what, target):
        self.what, self.target = what, target
        self.cells = {}
        self.excess = None  # what is above the target, in `unit`; None: not measured
        self.unit = "ns"
        self.details = []

    @property
    def verdict(self):
        if self.excess is None:
            return "not measured"
        if self.excess <= 0:
            return "met"
        return "missed by " + (show_ns(self.excess) if self.unit == "ns" else "%.3f %s" % (self.excess, self.unit))

    def words(self, columns):
        return [self.what, self.target] + [self.cells.get(column, "-") for column in columns] + [self.verdict]

    def to_json(self):
        return {"what": self.what, "target": self.target, "cells": self.cells, "excess": self.excess, "unit": self.unit,
                "verdict": self.verdict, "details": self.details}


def show_size(size):
    return compare.size(size).replace(".0 ", " ")


def fill(row, figures, name, flavour):
    """What everybody has in that figure."""
    for column, contender in [("rmmshim", flavour + " rmmshim"), ("floor", flavour + " floor"),
                              ("driver", flavour + " driver")] + [(peer, peer) for peer in PEERS[1:]]:
        value = figures.median(name, contender)
        if value is None and column == "driver":
            contender = "static driver"
            value = figures.median(name, contender)
        if value is not None:
            partial = "> " if figures.field(name, contender, "finished") == 0 else ""
            row.cells[column] = partial + show_ns(value)


def judge(row, figures, flavour, measured, unit="ns"):
    """measured: (name, what it is, excess or None) for each figure that the row stands for."""
    known = [entry for entry in measured if entry[2] is not None]
    if not known:
        return row
    name, label, row.excess = max(known, key=lambda entry: entry[2])
    row.unit = unit
    if len(measured) > 1:
        row.what += ", the worst: %s" % label
    fill(row, figures, name, flavour)
    if row.excess > 0:
        for name, label, excess in known:
            ours, floor = figures.median(name, flavour + " rmmshim"), figures.median(name, flavour + " floor")
            row.details.append("%s: %s%s" % (label, show_ns(ours), "" if floor is None else
                                             ", of which the floor has %s" % show_ns(floor)))
    return row


def fence_note(figures):
    """Where the time of large and of pinned blocks goes, or None."""
    record, query, pending = (figures.median("fence/" + name, "static driver") for name in ("record", "query", "query_pending"))
    if record is None or query is None:
        return None
    return ("a fence costs %s here and the answer that it is done %s%s: a pair of 256 MiB, or of pinned memory, makes a fence, and four "
            "such share an answer; of 16 MiB as many share a fence as are a sixteenth of the pool (of 4 GiB: 16), of smaller ones 128, "
            "and two fences an answer" % (
                show_ns(record), show_ns(query), "" if pending is None else " (that it is not: %s)" % show_ns(pending)))


def above_floor(figures, what, flavour, entries, allowed_ns):
    """entries: (name of the figure, what it is)."""
    measured = []
    for name, label in entries:
        difference = figures.difference(name, flavour + " rmmshim", flavour + " floor")
        measured.append((name, label, None if difference is None else difference - allowed_ns))
    return judge(Row("%s, %s" % (what, flavour), "floor + %.0f ns" % allowed_ns), figures, flavour, measured)


def at_most(figures, what, flavour, entries, limit_ns):
    measured = []
    for name, label in entries:
        value = figures.median(name, flavour + " rmmshim")
        measured.append((name, label, None if value is None else value - limit_ns))
    return judge(Row("%s, %s" % (what, flavour), "<= " + show_ns(limit_ns)), figures, flavour, measured)


def threads(figures, flavour, count):
    measured = []
    for size in run_bench.THREAD_SIZES:
        name = "threads/%d/%d" % (count, size)
        ratio = figures.ratio(name, flavour + " rmmshim", flavour + " floor")
        measured.append((name, show_size(size), None if ratio is None else ratio - 1.5))
    row = Row("%d thread%s at once, a round, %s" % (count, "" if count == 1 else "s", flavour), "1.5 x floor")
    return judge(row, figures, flavour, measured, "x the floor")


def preload(figures):
    row = Row("preloading a process without CUDA", "<= 0.3 ms")
    more = figures.field("process/true", "rmmshim", "more")
    if more is not None:
        row.cells = {"rmmshim": "+ " + show_ns(more), "driver": show_ns(figures.median("process/true", "without"))}
        row.excess = more - PRELOAD_NS
    return row


def bench_rows(figures):
    small = [size for size in run_bench.PAIR_SIZES if size <= 16 << 20]
    large = [size for size in run_bench.PAIR_SIZES if size > 16 << 20]
    pairs = lambda sizes: [("pairs/%d" % size, show_size(size)) for size in sizes]
    rows = [above_floor(figures, "allocate + free to 16 MiB", "static", pairs(small), 50),
            above_floor(figures, "allocate + free 256 MiB", "static", pairs(large), 350),
            above_floor(figures, "allocate + free to 16 MiB", "shared", pairs(small), 50),
            above_floor(figures, "allocate + free 256 MiB", "shared", pairs(large), 50)]
    for flavour in run_bench.FLAVOURS:
        rows += [threads(figures, flavour, count) for count in run_bench.THREADS]
    for flavour in run_bench.FLAVOURS:
        rows += [above_floor(figures, "random sizes to %s" % show_size(size), flavour,
                             [("random_log/%d" % size, show_size(size))], 30) for size in run_bench.LOG_SIZES]
    for flavour in run_bench.FLAVOURS:
        rows.append(at_most(figures, "RMM's random benchmark, 100,000", flavour,
                            [("random_rmm/100000/%d" % mib, "to %d MiB" % mib) for mib in run_bench.RMM_MIB], 150))
    for flavour in run_bench.FLAVOURS:
        rows.append(at_most(figures, "free while the GPU is busy", flavour,
                            [("busy/%d" % run_bench.BUSY_BYTES, "1 MiB")], 1000))
    for flavour in run_bench.FLAVOURS:
        for size in run_bench.PINNED_SIZES:
            name = "pinned_pairs/%d" % size
            row = at_most(figures, "pinned %s" % show_size(size), flavour, [(name, show_size(size))], 1000)
            pool = figures.median(name, "RMM pinned pool")
            if pool is not None:
                row.cells["RMM pool"] = show_ns(pool)
            rows.append(row)
    return rows + [preload(figures)]


# ---- frameworks ----


def speed_row(what, target, ratio):
    row = Row(what, target)
    if ratio:
        row.cells["rmmshim"] = "%.3f x (%.3f to %.3f)" % ratio
        # What the interval does not exclude is noise.
        row.excess, row.unit = max(0.0, ratio[1] - 1), "x"
    return row


def speed_rows(programs):
    rows, held_rows = [], []
    for workload, title in framework_speed.TITLES.items():
        by_variant = {}
        for program in programs:
            if program["workload"] == workload and not program["problem"]:
                by_variant.setdefault(program["variant"], []).append(program)
        figures = framework_speed.figures_of([(variant, program["ms"]) for variant, of in by_variant.items()
                                              for program in of if variant not in framework_speed.APART])
        shim, floor, both = (framework_speed.ratio_and_interval(figures, "own", name) for name in ("shim", "floor", "both"))
        rows.append(speed_row("without its cache: " + title, "<= its own cache", shim))
        if floor:
            rows[-1].cells["floor"] = "%.3f x" % floor[0]
        own, none = ([ms for program in by_variant.get(name, []) for ms in program["ms"]] for name in ("own", "none"))
        if own and none:
            rows[-1].cells["driver"] = "%.2f x" % (statistics.median(none) / statistics.median(own))
        rows.append(speed_row("beneath its own cache: " + title, "no slower", both))
        held_rows += [held_row(title, program) for program in by_variant.get("counted", [])]
    return rows + held_rows


def held_row(title, program):
    row = Row("held, RMM_POOL_SIZE=512MiB: " + title, "")
    run = compare.Run(None)
    run.report = program["report"]
    peak, held = run.counter("statistics", "peak"), run.counter("pool", "held_peak")
    if peak is not None and held is not None:
        may = peak + framework_speed.POOL_BYTES + framework_speed.growth_step(held)
        row.target = "<= " + compare.size(may)
        row.cells["rmmshim"] = compare.size(held)
        row.excess, row.unit = max(0.0, (held - may) / (1 << 20)), "MiB"
    return row


# ---- footprints ----


def footprint_rows(traces):
    """traces: {NAME: {"pool": PEAK RESERVED / PEAK LIVE, "RMM pool": ..., "PyTorch": ...}}; None: not served."""
    rows = []
    for trace, ratios in traces.items():
        row = Row("reserved / live, replay: " + trace, "< RMM's, PyTorch's")
        ours = ratios.get("pool")
        others = {name: ratios[name] for name in FOOTPRINT_PEERS if ratios.get(name)}
        row.cells = {name: "%.3f" % ratio for name, ratio in others.items()}
        if ours is not None and others:
            best = min(others, key=others.get)
            row.cells["rmmshim"] = "%.3f" % ours
            row.excess, row.unit = ours - others[best], "x"
            row.details.append("the lowest other one is %s: %.3f" % (best, others[best]))
        rows.append(row)
    return rows


def budget_note():
    """What the path of every pair is."""
    counts = {path: count for (_, path), count in instruction_budget.read_table().items()}
    return "our instructions in a pair (%s): %s" % (os.path.basename(instruction_budget.TABLE), ", ".join(
        "%s %d" % (path, count) for path, count in counts.items()))


def read(path):
    if not path or not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def all_rows(bench, speed, footprint):
    rows = bench_rows(Figures.from_json(bench["figures"] if bench else {}))
    rows += speed_rows(speed) if speed else [Row("PyTorch and CuPy, speed and memory held (part speed)", "")]
    rows += footprint_rows(footprint) if footprint else [Row("reserved / live, replay of traces", "< RMM's, PyTorch's")]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bench", "speed", "footprint", "json"):
        parser.add_argument("--" + name, metavar="FILE")
    args = parser.parse_args()
    bench = read(args.bench)
    rows = all_rows(bench, read(args.speed), read(args.footprint))
    columns = [column for column in COLUMNS if any(column in row.cells for row in rows)]
    missed = [row for row in rows if row.excess is not None and row.excess > 0]
    for row in missed:
        print("%s: target %s, %s" % (row.what, row.target, row.verdict))
        for line in row.details:
            print("  " + line)
    if bench and missed:
        notes = [fence_note(Figures.from_json(bench["figures"])), budget_note()]
        print("Where the time goes:" + "".join("\n  " + note for note in notes if note))
    # Last, as only the end of a long output may be kept.
    table = compare.text_table([["what", "target"] + columns + ["verdict"]] + [row.words(columns) for row in rows],
                               right=range(2, 2 + len(columns)))
    print("\n" + "\n".join(line.rstrip() for line in table.splitlines()))
    print("\ntargets: %d met, %d missed, %d not measured" % (
        sum(row.excess is not None and row.excess <= 0 for row in rows), len(missed),
        sum(row.excess is None for row in rows)))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([row.to_json() for row in rows], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
