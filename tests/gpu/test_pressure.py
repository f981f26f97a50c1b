# SPDX-License-Identifier: Apache-2.0
"""Memory that is nearly full: nothing is refused that a device of that size would have served.

    test_pressure.py [--seconds N] [--operations N] [--only TEXT]

- four_threads: each thread has at most one block, and there is room for all of them and a bit.
- path_mix: every way to the driver's memory in one process; a limit just above what is live.
- survivors: large blocks of three sizes one after the other, and of each phase a block that lives on, under a
  limit of 11 GiB: all are served, as alone.
- PyTorch and CuPy: a run with frees that wait tells how much the limit must be, and the same program then runs
  under it: it must end, and print what it prints alone.

A device of that size: all other memory is taken first, and what it refuses may be refused under a limit too.
A limit alone is what is live and a granule of the driver's stream-ordered pool; under a stack it is what the
stack promises: `pool` serves 80 % of it, `virtual` 95 %.  PROGRAMS is what tests/samples/build-real made,
RMMSHIM_LIBRARY the library.  With RMMSHIM_DRY_RUN the device in host memory will do.  Exits with 77 where there is
no GPU."""
import argparse
import math
import os
import re
import sys

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

MIB = 1 << 20
GRANULE = 32 * MIB  # of the driver's pools
VIRTUAL = {"RMM_RESOURCE": "virtual(granularity=2MiB)"}
# What is promised of the limit: name, setting, which part of it may be live, what is needed besides.
STACKS = [
    ("limit alone", {}, 1.0, GRANULE),
    ("pool", {"RMM_POOL_SIZE": "0"}, 0.8, GRANULE),
    ("virtual", VIRTUAL, 0.95, GRANULE),
    ("async", {"RMM_ASYNC": "1"}, 0.8, GRANULE),
]
FOUR = [
    ("no limit", {"RMM_POOL_SIZE": "0"}),
    ("limit", {"RMM_LIMIT": "34MiB"}),
    ("limit, pool", {"RMM_LIMIT": "34MiB", "RMM_POOL_SIZE": "0"}),
    ("limit, virtual", dict(VIRTUAL, RMM_LIMIT="34MiB")),
    ("arena", {"RMM_ARENA_SIZE": "32MiB"}),
    ("pool, maximum size", {"RMM_RESOURCE": "pool(cuda, maximum_size=32MiB)"}),
    ("virtual, maximum size", {"RMM_RESOURCE": "virtual(granularity=2MiB, maximum_size=32MiB)"}),
]
# Large blocks of changing sizes beside blocks that live on (tests/integration/survivors.c).
SURVIVORS = [
    ("limit alone", {}),
    ("pool of 10GiB", {"RMM_POOL_SIZE": "10GiB"}),
    ("pool of 1GiB", {"RMM_POOL_SIZE": "1GiB"}),
    ("pool to 100%", {"RMM_POOL_MAX_SIZE": "100%"}),
    ("arena", {"RMM_ARENA_SIZE": "10.5GiB"}),
    ("virtual", {"RMM_RESOURCE": "virtual"}),
]
SURVIVOR_BYTES = (1000, 3000000, 40000000)
THREADS = 4
SHARE = 256 * MIB
DRY_SHARE = 24 * MIB
NO_LIMIT = "90%"  # counts, and refuses nothing
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def script(name, *arguments):
    return [sys.executable, os.path.join(gpu_common.HERE, name), *arguments]


FRAMEWORKS = [
    ("PyTorch", script("torch_transformer.py"), CUBLAS),
    ("PyTorch, no cache", script("torch_transformer.py"), dict(CUBLAS, PYTORCH_NO_CUDA_MEMORY_CACHING="1")),
    ("PyTorch, expandable segments", script("torch_transformer.py"),
     dict(CUBLAS, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")),
    ("CuPy", script("cupy_expression.py", "pool"), {}),
    ("CuPy, no pool", script("cupy_expression.py", "nopool"), {}),
]


def built(name, *arguments):
    return [os.path.join(os.environ["PROGRAMS"], name), *arguments]


def limit_for(live, part, more):
    return "%dMiB" % math.ceil((live / part + more) / MIB)


class Pressure:
    def __init__(self, options):
        self.options = options
        self.wrong = []
        self.rows = [["program", "setting", "live", "limit", "allocations", "refused", "seconds", ""]]

    def row(self, program, label, result, live=None, limit="", allocations="", refused="", why=None):
        self.rows.append([program, label, compare.size(live) if live else "", limit, str(allocations), str(refused),
                          "%.1f" % result.seconds, "WRONG" if why else ""])
        if why:
            self.wrong.append("%s, %s (%s): %s" % (program, label, result.name, why))
            self.wrong += gpu_common.tail(result)

    def ended(self, result):
        if result.status is None:
            return "it hangs"
        return "status %d" % result.status if result.status else None

    # ---- four threads ----

    def four_threads(self):
        command = built("four_threads", str(self.options.seconds))
        for label, setting in [("alone", None)] + FOUR:
            result = gpu_common.run(command, setting, 100 + self.options.seconds)
            found = re.search(r"allocations (\d+) refused (\d+)", result.stdout.decode(errors="replace"))
            allocations, refused = found.groups() if found else ("", "")
            self.row("four_threads", label, result, 32 * MIB, (setting or {}).get("RMM_LIMIT", ""), allocations, refused,
                     self.ended(result))

    # ---- what lives on beside large blocks ----

    def survivors(self):
        for size in SURVIVOR_BYTES:
            for order in (0, 1, 2):
                command = built("survivors", "GB", str(size), str(order))
                alone = gpu_common.run(command, None, 240)
                self.row("survivors %d, order %d" % (size, order), "alone", alone, why=self.ended(alone))
                for label, setting in SURVIVORS:
                    result = gpu_common.run(command, dict(setting, RMM_LIMIT="11GiB"), 240)
                    why = self.ended(result) or (None if result.stdout == alone.stdout else "not all is served")
                    self.row("survivors %d, order %d" % (size, order), label, result, limit="11GiB", why=why)

    # ---- a mix of paths ----

    def path_mix(self):
        share = DRY_SHARE if os.environ.get("RMMSHIM_DRY_RUN") else SHARE
        live = THREADS * share
        for seed, paths in enumerate(("dsva", "d", "ds", "dv", "da", "sva")):
            command = built("path_mix", str(seed), str(self.options.operations), str(share), str(THREADS), paths)
            alone = gpu_common.run(command, None, 240)
            self.mixed(paths, "alone", alone, alone, live, "")
            for label, setting, part, more in STACKS:
                limit = limit_for(live, part, more)
                result = gpu_common.run(command, dict(setting, RMM_LIMIT=limit), 240, {"PATH_MIX_VERBOSE": "1"})
                self.mixed(paths, label, result, alone, live, limit, command)

    def mixed(self, paths, label, result, alone, live, limit, command=None):
        """command: what a device of the limit's size refuses too is not wrong."""
        found = re.search(r"allocations (\d+) refused (\d+)", result.stdout.decode(errors="replace"))
        allocations, refused = found.groups() if found else ("", "")
        why = self.ended(result)
        if not why and result.stdout != alone.stdout:
            why = result.stdout.decode(errors="replace").strip()
        if why and command and refused not in ("", "0") and not os.environ.get("RMMSHIM_DRY_RUN"):
            device = gpu_common.run(command + [str(int(limit[:-3]) * MIB)], None, 240)
            self.mixed(paths, "device of that size", device, device, live, limit)
            if self.rows[-1][5] != "0":
                why = None
        self.row("path_mix " + paths, label, result, live, limit, allocations, refused, why)

    # ---- frameworks ----

    def framework(self, name, command, environment):
        alone = gpu_common.run(command, None, 240, environment)
        if alone.status == 77 or b"ModuleNotFoundError" in alone.stderr:
            self.rows.append([name, "not there"] + [""] * 6)
            return
        self.row(name, "alone", alone, why=self.ended(alone))
        waits = gpu_common.run(command, {"RMM_LIMIT": NO_LIMIT, "RMM_FREE": "wait"}, 240, environment)
        live = waits.counter("account", "charged_peak")
        why = self.compared(waits, alone) or (None if live else "no peak in its report")
        self.row(name, "frees wait", waits, live, NO_LIMIT, why=why)
        if why:
            return
        for label, setting, part, more in STACKS:
            limit = limit_for(live, part, more)
            result = gpu_common.run(command, dict(setting, RMM_LIMIT=limit), 240, environment)
            self.row(name, label, result, live, limit, result.allocations or "",
                     result.counter("account", "internal_refusals"), self.compared(result, alone))

    def compared(self, result, alone):
        why = self.ended(result)
        return why or (None if result.stdout == alone.stdout else "prints something else than alone")

    def run(self):
        for name, what in [("four_threads", self.four_threads), ("survivors", self.survivors), ("path_mix", self.path_mix)] + [
                (name, lambda each=(name, command, environment): self.framework(*each))
                for name, command, environment in FRAMEWORKS]:
            if not self.options.only or self.options.only in name:
                what()
        print(compare.text_table(self.rows, right=range(2, 7)))
        for line in self.wrong:
            print(("  " if line.startswith(" ") else "FAILED: ") + line.strip())
        print("pressure: %s" % ("%d lines of what is wrong" % len(self.wrong) if self.wrong else "all well"))
        return 1 if self.wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2, help="of each four_threads")
    parser.add_argument("--operations", type=int, default=4000, help="of each thread of path_mix")
    parser.add_argument("--only", help="programs with this in their names")
    options = parser.parse_args()
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    return Pressure(options).run()


if __name__ == "__main__":
    sys.exit(main())
