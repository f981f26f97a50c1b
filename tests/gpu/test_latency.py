# SPDX-License-Identifier: Apache-2.0
"""Runs free_latency and judges its figures: a free takes at most 1 us (median) while the device is busy,
streams that ran side by side still do, captures survive, and nothing waits for a kernel that waits for us.

PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library.  Exits with 77 where there
is no GPU."""
import os
import re
import sys

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

POOL = {"RMM_POOL_SIZE": "1GiB"}
GROWING = {"RMM_POOL_MAX_SIZE": "8GiB"}
FULL = {"RMM_POOL_SIZE": "64MiB", "RMM_POOL_MAX_SIZE": "64MiB"}
FREE_MEDIAN_NS = 1000
SLOWED = 1.15  # by frees between launches
SLOWED_BY_PAIRS = 1.5  # an allocation may wait for the oldest epoch
FLAG_MS = 1000

wrong = []
latencies = [["bytes"]]
others = [["what", "setting", "figure"]]


def fields(line):
    return dict(re.findall(r"(\w+) (-?\d[\d.]*)(?= |$)", line))


def microseconds(ns):
    return "%.2f us" % (float(ns) / 1e3)


def read_latency(label, line, judged):
    row = fields(line)
    size = int(row["bytes"])
    if label not in latencies[0]:
        latencies[0].append(label)
    column = latencies[0].index(label)
    for other in latencies[1:]:
        if other[0] == compare.size(size):
            break
    else:
        other = [compare.size(size)]
        latencies.append(other)
    other += [""] * (column + 1 - len(other))
    other[column] = " ".join(microseconds(row[name]) + ("," if name != "malloc_p99" else "") for name in (
        "free_median", "free_p99", "malloc_median", "malloc_p99"))
    if not judged:
        return
    if int(row["free_median"]) > FREE_MEDIAN_NS:
        wrong.append("%s: a free of %s takes %s (median)" % (label, compare.size(size), microseconds(row["free_median"])))
    if int(row["idle_after"]) > int(row["samples"]) / 10:
        wrong.append("%s: after %s of %s frees of %s a busy stream was idle" % (
            label, row["idle_after"], row["samples"], compare.size(size)))


def read_side_by_side(label, line, judged):
    row = {name: float(value) for name, value in fields(line).items() if name.endswith("_ms")}
    others.append(["one chain, two side by side, with frees, with pairs", label, "%.1f, %.1f, %.1f, %.1f ms" % (
        row["one_ms"], row["both_ms"], row["with_frees_ms"], row["with_pairs_ms"])])
    if not judged:
        return
    if row["both_ms"] > 1.5 * row["one_ms"]:
        wrong.append("%s: two streams do not run side by side here, so nothing is shown" % label)
    if row["with_frees_ms"] > SLOWED * row["both_ms"]:
        wrong.append("%s: frees slow streams down: %.1f ms became %.1f" % (label, row["both_ms"], row["with_frees_ms"]))
    if row["with_pairs_ms"] > SLOWED_BY_PAIRS * row["both_ms"]:
        wrong.append("%s: allocations and frees slow streams down: %.1f ms became %.1f" % (
            label, row["both_ms"], row["with_pairs_ms"]))


def read_flags(label, lines):
    slowest = max(float(fields(line)["malloc_ms"]) for line in lines)
    failures = [line for line in lines if fields(line)["result"] != "0"]
    what = "flag_full" if lines[0].startswith("flag_full") else "flag"
    others.append([what + ": slowest allocation before the flag", label, "%.2f ms%s" % (
        slowest, ", %d of %d failed" % (len(failures), len(lines)) if failures else "")])
    if slowest > FLAG_MS:
        wrong.append("%s, %s: an allocation waited %.0f ms for a kernel launched after the free" % (label, what, slowest))
    if failures:
        wrong.append("%s, %s: an allocation failed though the block was free: %s" % (label, what, failures[0]))


def read_captures(label, lines):
    good = [line for line in lines if fields(line)["end"] == "0" and fields(line)["nodes"] == "2"]
    slowest = max(int(fields(line)["ns_per_call"]) for line in lines)
    others.append(["captures that survive 10,000 allocations and frees", label, "%d of %d; slowest %d ns a call" % (
        len(good), len(lines), slowest)])
    wrong.extend("%s: spoilt: %s" % (label, line) for line in lines if line not in good)


def run(label, program, setting, arguments, judged=True):
    command = [os.path.join(os.environ["PROGRAMS"], program)] + arguments
    result = gpu_common.run(command, setting, 300)
    lines = result.stdout.decode(errors="replace").splitlines()
    by_kind = {}
    for line in lines:
        if line.startswith("flag_full blocks"):
            if not line.endswith(": full"):
                wrong.append("%s: %s" % (label, line))
            continue
        by_kind.setdefault(line.split(" ")[0], []).append(line)
    for line in by_kind.get("latency", []):
        read_latency(label, line, judged)
    for line in by_kind.get("side_by_side", []):
        read_side_by_side(label, line, judged)
    for kind in ("flag", "flag_full"):
        if kind in by_kind:
            read_flags(label, by_kind[kind])
    if "capture" in by_kind:
        read_captures(label, by_kind["capture"])
    print("%s: %s, %.1f s" % (label, result.name, result.seconds), flush=True)
    if result.status != 0:
        wrong.append("%s: status %s" % (label, "TIMEOUT" if result.status is None else result.status))
        wrong.extend(gpu_common.tail(result))


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    run("driver alone", "free_latency_static", None, ["--samples", "40", "latency", "side_by_side", "flag"], judged=False)
    run("static cudart", "free_latency_static", POOL, [])
    run("shared cudart", "free_latency_shared", POOL, [])
    run("growing pool", "free_latency_static", GROWING, ["captures", "flag"])
    run("full pool", "free_latency_static", FULL, ["flag_full"])
    if len(latencies) > 1:
        width = len(latencies[0])
        rows = [row + [""] * (width - len(row)) for row in latencies]
        print("\nfree median, p99, malloc median, p99; 2 streams busy, 32 idle\n" +
              compare.text_table(rows, right=range(1, width)))
    print("\n" + compare.text_table(others))
    for line in wrong:
        print(("  " if line.startswith(" ") else "FAILED: ") + line.strip())
    print("latency: %s" % ("%d wrong" % len(wrong) if wrong else "all well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
