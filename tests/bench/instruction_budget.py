# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions that the library spends on an allocation and a free, with callgrind on the
host-memory device, and compares them with instruction_budget.txt.  Instructions, not time: the count is
the same on a busy machine.  What the program, its runtime and the driver spend is not counted.

Fails when a path got longer than its budget by more than TOLERANCE, and also when it got shorter by more:
then the budget is lowered, so that it goes on noticing what is 10 % longer (--write does it).

Counts depend on the compiler, so the table has rows for each one; for others: exit 77."""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

TOLERANCE = 0.05
FEW, MANY = 20000, 60000 # so often; the difference is free of what a start costs
SKIPPED = 77
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "instruction_budget.txt")

# Name in the table: program, its arguments, and what the count is for.
PATHS = {
    "runtime_pair": ("budget_work_shared", ["pairs", "4096"]),
    "driver_pair": ("budget_work_static", ["pairs", "4096"]),
    "driver_pair_16MiB": ("budget_work_static", ["pairs", str(16 << 20)]),
    "driver_mixture_1MiB": ("budget_work_static", ["mixture", str(1 << 20)]),
    "runtime_sites": ("budget_sites_runtime", ["4096"]),
    "driver_sites": ("budget_sites_driver", ["4096"]),
    "logged_pair": ("budget_work_static", ["pairs", "4096"]),
    "tracked_pair": ("budget_work_static", ["pairs", "4096"]),
    "recorded_pair": ("budget_work_static", ["pairs", "4096"]),
}
# More than the pool.
SETTINGS = {"logged_pair": {"RMM_LOG": "log.csv"}, "tracked_pair": {"RMM_TRACKING": "json:leaks.json"},
            "recorded_pair": {"RMM_RECORD": "a.rec"}}


def own_cost(path, library):
    """The instructions in one object, without what it calls."""
    names, total, inside, skip = {}, 0, False, False
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            match = re.match(r"ob=\((\d+)\)(?: (.*))?", line)
            if match:
                if match.group(2):
                    names[match.group(1)] = match.group(2).strip()
                inside = os.path.basename(names[match.group(1)]) == library
            elif re.match(r"cob=\((\d+)\) ", line):
                number, name = re.match(r"cob=\((\d+)\) (.*)", line).groups()
                names[number] = name.strip()
            elif line.startswith("calls="):
                skip = True # the next line is what the callee spent
            elif re.match(r"[+*\-\d]", line):
                if inside and not skip:
                    total += int(line.split()[1])
                skip = False
    return total


def count(path, often):
    program, arguments = PATHS[path]
    library = os.environ["RMMSHIM_LIBRARY"]
    with tempfile.TemporaryDirectory() as directory:
        out = os.path.join(directory, "out")
        environment = dict(os.environ, LD_PRELOAD=library, RMM_POOL_SIZE="1GiB", HOSTCUDA_MEMORY="2GiB",
                           **SETTINGS.get(path, {}))
        done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out,
                               os.path.join(os.environ["PROGRAMS"], program), *arguments, str(often)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, timeout=120,
                              check=False, text=True, errors="replace", cwd=directory)
        if done.returncode or "done\n" not in done.stdout:
            sys.exit("%s: status %d\n%s" % (path, done.returncode, done.stdout[-2000:]))
        return own_cost(out, os.path.basename(library))


def measure(path):
    return (count(path, MANY) - count(path, FEW)) / (MANY - FEW)


def read_table():
    table = {}
    with open(TABLE, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                compiler, path, budget = line.split()
                table[compiler, path] = int(budget)
    return table


def write_table(compiler, counts):
    with open(TABLE, encoding="utf-8") as lines:
        kept = [line for line in lines if not line.startswith(compiler + " ")]
    with open(TABLE, "w", encoding="utf-8") as out:
        out.writelines(kept)
        out.writelines("%s %s %d\n" % (compiler, path, round(counts[path])) for path in PATHS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="set this compiler's budgets to what is counted")
    arguments = parser.parse_args()
    compiler, table = os.environ["COMPILER"], read_table()
    if not arguments.write and (compiler, next(iter(PATHS))) not in table:
        print("no budget for " + compiler)
        return SKIPPED
    try:
        subprocess.run(["valgrind", "--version"], stdout=subprocess.DEVNULL, check=True)
    except FileNotFoundError:
        print("no valgrind: scripts/setup --lint installs it")
        return SKIPPED
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        counts = dict(zip(PATHS, pool.map(measure, PATHS)))
    if arguments.write:
        write_table(compiler, counts)
        return 0
    wrong = 0
    for path, counted in counts.items():
        budget = table[compiler, path]
        verdict = "ok"
        if counted > budget * (1 + TOLERANCE):
            verdict = "LONGER"
        elif counted < budget * (1 - TOLERANCE):
            verdict = "SHORTER: lower the budget (--write)"
        wrong += verdict != "ok"
        print("%-22s %6.1f instructions, budget %d: %s" % (path, counted, budget, verdict))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
