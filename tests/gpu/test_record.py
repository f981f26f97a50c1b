# SPDX-License-Identifier: Apache-2.0
"""Recordings of programs on the GPU: each program runs without rmmshim and under `rmmshim run --record`, prints the same,
and what report and export make of its recording agrees with the statistics of the same process.

    test_record.py [--keep FOLDER]     keeps recordings, pages and exports in FOLDER/recordings.tar.gz

Two programs without a cache are measured by `tune --run` as well.  RMMSHIM is the command.  With RMMSHIM_DRY_RUN=1 the
device in host memory will do, for one program in PROGRAMS that needs no framework.  Exit status: 1 when something is
wrong, 77 where there is no GPU."""
import argparse
import csv
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True
import gpu_common
import table
from gpu_common import HERE, compare

TOOL = os.environ.get("RMMSHIM", "rmmshim")
FORMATS = ("perfetto", "pytorch", "csv", "folded")
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
POOL = ["--pool-size", "512MiB"]


def script(name, *words):
    return [sys.executable, os.path.join(HERE, name), *words]


def programs(folder):
    """(name, command, environment, options of run, how often tune runs it)"""
    if os.environ.get("RMMSHIM_DRY_RUN"):
        return [("pair", [os.path.join(os.environ["PROGRAMS"], "bench_shared"), "pairs", "1048576", "500"], {}, POOL, 6)]
    thrust = os.path.join(folder, "thrust_loop")
    built = [("thrust", [thrust, "1048576"], {}, POOL, 6)] if os.path.exists(thrust) or table.built_thrust(folder) else []
    return built + [
        ("torch", script("torch_transformer.py"), CUBLAS, ["--resource", "cuda"], 0),
        ("torch-no-cache", script("torch_transformer.py"), dict(CUBLAS, **NO_CACHE), POOL, 0),
        ("cupy", script("cupy_expression.py", "pool"), {}, ["--resource", "cuda"], 0),
        ("cupy-no-pool", script("cupy_expression.py", "nopool"), {}, POOL, 6),
        ("rmm", script("guides.py", "reinitialize_pool"), CUBLAS, ["--resource", "cuda"], 0),
    ]


class Wrong(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Wrong(text)


class Recordings:
    def __init__(self, scratch):
        self.scratch, self.rows = scratch, []

    @staticmethod
    def command(words, environment=None, timeout=300):
        done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=timeout, check=False)
        return done.returncode, done.stdout, done.stderr

    def tool(self, *words):
        status, said, complained = self.command([TOOL, *words])
        expect(status == 0, "rmmshim %s: status %d: %s" % (words[0], status, complained.strip()[-300:]))
        return said, complained

    def one(self, name, command, environment, options):
        """Returns the recording, or None where the program is not there."""
        base = dict(os.environ, OMP_NUM_THREADS="2", **environment)
        status, plain, complained = self.command(command, base)
        if status == 77:
            self.rows.append([name, "not there: " + complained.strip()[-80:]])
            return None
        expect(status == 0, "status %d without rmmshim: %s" % (status, complained.strip()[-300:]))
        recording, statistics = ("%s/%s.%s" % (self.scratch, name, suffix) for suffix in ("rmmrec", "json"))
        run = [TOOL, "run", "--quiet", "--record", recording, "--record-sites", "all", "--statistics", "json:" + statistics]
        status, printed, complained = self.command(run + options + ["--"] + command, base)
        expect(status == 0, "status %d under run: %s" % (status, complained.strip()[-300:]))
        expect(self.results(printed) == self.results(plain), "it prints %r, and without rmmshim %r" % (printed, plain))
        self.compare(name, recording, statistics)
        return recording

    @staticmethod
    def results(text):
        """What is no time."""
        return [line for line in text.splitlines() if not re.search(r" ns|ms_per|seconds", line)]

    def compare(self, name, recording, statistics):
        path = os.path.join(self.scratch, name)
        summary, complained = self.tool("report", recording, "-o", path + ".html", "--svg", path + ".svg")
        expect(not complained, "report says: " + complained)
        summary, _ = self.tool("report", recording)
        expect(max(map(len, summary.splitlines())) <= 80, "the summary is wider than 80 columns")
        for form in FORMATS:
            self.tool("export", "--format", form, "-o", path + "." + form, recording)
        self.read_by_pytorch(path + ".pytorch")
        counted = self.agreed(path + ".csv", statistics)
        self.rows.append([name, *counted] + [compare.size(os.path.getsize(path + suffix))
                                             for suffix in (".rmmrec", ".html", ".svg", *("." + form for form in FORMATS))])

    @staticmethod
    def agreed(path, statistics):
        """The recorded requests, counted here, and the same process's own counters."""
        with open(statistics, encoding="utf-8") as file:
            counters = {counter["name"]: counter["value"] for counter in json.load(file)["devices"][0]["counters"]
                        if counter["resource"] == "statistics"}
        count = total = live = peak = 0
        with open(path, encoding="utf-8") as file:
            for row in csv.DictReader(file):
                size = int(row["Size"])
                if row["Action"] == "allocate":
                    count, total, live = count + 1, total + size, live + size
                    peak = max(peak, live)
                elif row["Action"] == "free":
                    live -= size
        expect(count > 0, "nothing was recorded")
        expect((count, total, live) == (counters["allocations"], counters["total"], counters["live"]),
               "recorded: %d allocations, %d bytes, %d left; counted: %s" % (count, total, live, counters))
        # Threads that allocate at the same time may be recorded in another order than they were counted in.
        expect(abs(peak - counters["peak"]) <= counters["peak"] / 100, "peak: recorded %d, counted %d" % (peak, counters["peak"]))
        return [str(count), compare.size(peak), compare.size(counters["peak"])]

    @staticmethod
    def read_by_pytorch(path):
        """PyTorch's own reader, where there is one."""
        try:
            from torch.cuda import _memory_viz
        except ImportError:
            return
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        expect(snapshot["device_traces"][0], "PyTorch's snapshot has no events")
        for read in (_memory_viz.trace, _memory_viz.segsum, _memory_viz.trace_plot):
            expect(read(snapshot), "PyTorch's %s says nothing" % read.__name__)

    def tuned(self, name, recording, count, command, environment):
        base = dict(os.environ, OMP_NUM_THREADS="2", **environment)
        status, said, complained = self.command([TOOL, "tune", recording, "--run", str(count), "--"] + command, base)
        expect(status == 0, "tune: status %d: %s" % (status, complained.strip()[-300:]))
        print("== tune %s --run %d\n%s" % (name, count, said.strip()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="FOLDER")
    keep = parser.parse_args().keep
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    failures = []
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        recordings = Recordings(scratch)
        for name, command, environment, options, tune_count in programs(scratch):
            try:
                recording = recordings.one(name, command, environment, options)
                if recording and tune_count:
                    recordings.tuned(name, recording, tune_count, command, environment)
            except (Wrong, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                failures.append("%s: %s" % (name, error))
                print("FAILED: " + failures[-1], flush=True)
        rows = [["program", "allocations", "peak recorded", "peak counted", "recording", "page", "plot", *FORMATS]]
        print(compare.text_table(rows + [row + [""] * (len(rows[0]) - len(row)) for row in recordings.rows],
                                 right=range(1, len(rows[0]))))
        if keep:
            os.makedirs(keep, exist_ok=True)
            with tarfile.open(os.path.join(keep, "recordings.tar.gz"), "w:gz") as archive:
                archive.add(scratch, "recordings", filter=lambda member: None if member.name.endswith("/thrust_loop") else member)
    print("record: %s" % ("%d wrong" % len(failures) if failures else "all well"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
