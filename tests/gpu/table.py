# SPDX-License-Identifier: Apache-2.0
"""The README's table: programs with what a user would take otherwise beside it, in ms per iteration.

    table.py [--only ROW,...] [--rounds N] [--seconds N] [--json FILE]

Columns: with the framework's own pool; without a pool; with RMM's pool, which the program asks for; without a pool and
under rmmshim with RMM_POOL_SIZE=512MiB.  Each figure is the median of N processes (3), which run in turns; one process
warms up and then says what an iteration took.  What is not installed is printed as "not run".  RMMSHIM_LIBRARY is the
library, PROGRAMS a folder with the built bench_shared.  With RMMSHIM_DRY_RUN=1 the device in host memory will do, for
the rows that need no framework.  Exit status: 1 when a program failed, 77 where there is no GPU."""
import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import framework_speed
import gpu_common
import observed_speed
from gpu_common import HERE, compare

OWN, NONE, RMM, SHIM = COLUMNS = ("its own pool", "no pool", "RMM's pool", "rmmshim")
SETTING = {"RMM_POOL_SIZE": "512MiB"}
POOL_BYTES = 512 << 20
ENOUGH_SECONDS = 300
MIB = 1 << 20


class Row:
    def __init__(self, name, title, columns, needs=(), devices=1):
        """needs: modules of Python.  A column that is not among `columns` has no such thing ("-")."""
        self.name, self.title, self.columns, self.needs, self.devices = name, title, columns, needs, devices


# The README has these rows, in this order (check_parts.py).
ROWS = [
    Row("harmony", "rapids-singlecell, harmony_integrate of 100,000 cells", COLUMNS,
        ("rapids_singlecell", "anndata", "cupy")),
    Row("gpt2", "PyTorch, GPT-2 generation", COLUMNS, ("torch", "transformers")),
    Row("transformer", "PyTorch, a training step of a transformer", COLUMNS, ("torch",)),
    Row("ddp", "PyTorch, a training step on two GPUs (DDP)", (OWN, NONE, SHIM), ("torch",), devices=2),
    Row("expression", "CuPy, an expression of 16 MB arrays", COLUMNS, ("cupy",)),
    Row("xgboost", "XGBoost, small fits", (NONE, SHIM), ("xgboost",)),
    Row("thrust", "Thrust, a loop over 1 Mi numbers", (NONE, SHIM)),
    Row("pair", "CUDA, allocate and free 1 MiB", (NONE, RMM, SHIM)),
]
PACKAGES = {"rapids_singlecell": "rapids-singlecell", "torch": "PyTorch", "cupy": "CuPy", "xgboost": "XGBoost",
            "rmm": "RMM"}


# ---- in the child: each returns (step, synchronize, iterations before the clock runs, iterations) ----


def rmm_pool():
    import rmm
    rmm.reinitialize(pool_allocator=True, initial_pool_size=POOL_BYTES)


def torch_of(column):
    import torch
    if column == RMM:
        from rmm.allocators.torch import rmm_torch_allocator
        rmm_pool()
        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    return torch


def cupy_of(column):
    import cupy
    if column == RMM:
        from rmm.allocators.cupy import rmm_cupy_allocator
        rmm_pool()
        cupy.cuda.set_allocator(rmm_cupy_allocator)
    elif column != OWN:
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    return cupy


def harmony(column):
    cupy = cupy_of(column)
    import anndata
    import numpy
    import pandas
    import rapids_singlecell
    generator = numpy.random.default_rng(0)
    batch = generator.integers(4, size=100000)
    cells = anndata.AnnData(numpy.zeros((len(batch), 1), "float32"), obs=pandas.DataFrame(
        {"batch": pandas.Categorical(batch.astype(str))}, index=[str(i) for i in range(len(batch))]))
    cells.obsm["X_pca"] = generator.normal(0.1 * batch[:, None], size=(len(batch), 50)).astype("float32")
    return lambda _: rapids_singlecell.pp.harmony_integrate(cells, "batch"), cupy.cuda.Device().synchronize, 3, 5


def gpt2(column):
    torch = torch_of(column)
    return observed_speed.gpt2(torch)[0], torch.cuda.synchronize, 8, 10


def transformer(column):
    torch = torch_of(column)
    return framework_speed.torch_transformer(torch, [256])[0], torch.cuda.synchronize, 20, 60


def ddp(_):
    """Under torchrun."""
    import rank_scenes
    torch, _, rank = rank_scenes.joined()
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.randn(256, 512, device="cuda"), torch.randn(256, 512, device="cuda")

    def step(_):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step, torch.cuda.synchronize, 40, 200


def expression(column):
    cupy = cupy_of(column)
    a, b = (cupy.random.rand(4000000, dtype=cupy.float32) for _ in range(2))
    return (lambda _: (a * 2 + b) * (a - b) + a * b - cupy.sqrt(a)), cupy.cuda.Device().synchronize, 50, 500


def xgboost(_):
    import numpy
    import xgboost as module
    generator = numpy.random.default_rng(0)
    x, y = generator.random((10000, 20), "float32"), generator.random(10000, "float32")
    return (lambda _: module.XGBRegressor(device="cuda", tree_method="hist", n_estimators=50).fit(x, y)), (lambda: None), 3, 10


def child(name, column):
    step, synchronize, warm, count = globals()[name](column)
    for i in range(warm):
        step(i)
    synchronize()
    begin = time.perf_counter()
    for i in range(count):
        step(i)
    synchronize()
    if os.environ.get("RANK", "0") == "0":
        print("ms_per_iteration %.6f" % ((time.perf_counter() - begin) / count * 1e3), flush=True)
    return 0


# ---- in the parent ----


def built_thrust(folder):
    """Whether the program could be built."""
    home = subprocess.run([os.path.join(compare.HERE, "scripts", "find-cuda"), "home"], stdout=subprocess.PIPE,
                          check=False).stdout.decode().strip()
    command = [os.path.join(home, "bin", "nvcc"), "-O2", "-arch=native", "-o", os.path.join(folder, "thrust_loop"),
               os.path.join(HERE, "thrust_loop.cu")]
    return bool(home) and subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         check=False).returncode == 0


def missing(row, column, folder):
    """Why it cannot be run here, or None."""
    modules = row.needs + (("rmm",) if column == RMM and row.needs else ())
    for module in modules:
        if not importlib.util.find_spec(module):
            return "no " + PACKAGES.get(module, module)
    if gpu_common.device_count() < row.devices:
        return "one GPU"
    if row.name == "thrust":
        if os.environ.get("RMMSHIM_DRY_RUN"):
            return "no GPU"
        if not os.path.exists(os.path.join(folder, "thrust_loop")) and not built_thrust(folder):
            return "no nvcc"
    program = os.path.join(os.environ["PROGRAMS"], "bench_rmm" if column == RMM else "bench_shared")
    if row.name == "pair" and not os.path.exists(program):
        return "no " + os.path.basename(program)
    return None


def command_of(row, column, folder):
    if row.name == "thrust":
        return [os.path.join(folder, "thrust_loop"), "1048576"]
    if row.name == "pair":
        program = [os.path.join(os.environ["PROGRAMS"], "bench_rmm"), "--memory", "rmm_pool,%d" % POOL_BYTES] \
            if column == RMM else [os.path.join(os.environ["PROGRAMS"], "bench_shared")]
        return program + ["pairs", str(MIB), "500"]
    this = [os.path.abspath(__file__), "--child", row.name, column]
    if row.devices > 1:
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(row.devices)] + this
    return [sys.executable] + this


def environment_of(column):
    env = compare.environment(SETTING if column == SHIM else None, os.environ["RMMSHIM_LIBRARY"], "")
    env.pop("RMM_STATISTICS", None)
    if column != OWN:
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    if column == RMM:
        del env["PYTORCH_NO_CUDA_MEMORY_CACHING"]  # its cache is not asked then, and without it PyTorch takes no other
    return dict(env, OMP_NUM_THREADS="2")


def ms_of(text):
    """Of a child, or of a pair as the benchmark prints it."""
    match = re.search(r"^ms_per_iteration (\S+)", text, re.MULTILINE)
    if match:
        return float(match.group(1))
    match = re.search(r"^pairs/\S+ (\S+) ns", text, re.MULTILINE)
    return float(match.group(1)) / 1e6 if match else None


class Table:
    """figures: by row and column a list of ms, or why it was not run."""

    def __init__(self, rows, folder):
        self.rows, self.folder, self.wrong = rows, folder, []
        self.figures = {row.name: {column: missing(row, column, folder) or [] for column in row.columns} for row in rows}

    def measure(self, row, column):
        figures = self.figures[row.name]
        if not isinstance(figures[column], list):
            return
        try:
            done = subprocess.run(command_of(row, column, self.folder), env=environment_of(column), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                  timeout=ENOUGH_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            figures[column] = "failed"
            self.wrong.append("%s, %s: it took more than %d s" % (row.title, column, ENOUGH_SECONDS))
            return
        ms = ms_of(done.stdout)
        if done.returncode != 0 or ms is None:
            said = done.stderr.strip().splitlines()[-1:] or ["nothing printed"]
            self.wrong.append("%s, %s: status %d: %s" % (row.title, column, done.returncode, said[0][:200]))
            figures[column] = "failed"
        else:
            figures[column].append(ms)
            print("%s, %s: %s" % (row.title, column, shown([ms])), flush=True)  # a run may be cut short

    def round(self, backwards):
        for row in self.rows:
            for column in reversed(row.columns) if backwards else row.columns:
                self.measure(row, column)


def shown(figure):
    if figure is None:
        return "-"
    if isinstance(figure, str):
        return figure if figure == "failed" else "not run: " + figure
    ms = statistics.median(figure)
    return "%#.3g ms" % ms if ms >= 0.1 else "%#.3g us" % (1000 * ms)


def cells_of(row, figures):
    """Of one column, where none could be run for the same reason."""
    cells = [shown(figures.get(column)) for column in COLUMNS]
    reasons = {cell for cell in cells if cell != "-"}
    if len(reasons) == 1 and min(reasons).startswith("not run"):
        cells = [min(reasons)] + [""] * (len(COLUMNS) - 1)
    return [row.title] + cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(row.name for row in ROWS), metavar="ROW,...")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=450, metavar="N", help="no round begins that would end later")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child)
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="table-") as folder:
        table = Table([row for row in ROWS if row.name in args.only.split(",")], folder)
        rounds = 0
        while rounds < args.rounds and (rounds == 0 or time.monotonic() < begin + args.seconds * rounds / (rounds + 1)):
            table.round(rounds % 2 == 1)
            rounds += 1
    print("\nmedians of %d, in %.0f s\n\n| Program | %s |\n|---|%s" % (
        rounds, time.monotonic() - begin, " | ".join(COLUMNS), "---|" * len(COLUMNS)))
    for row in table.rows:
        print("| %s |" % " | ".join(cells_of(row, table.figures[row.name])))
    for line in table.wrong:
        print("FAILED: " + line)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(table.figures, file, indent=1)
    return 1 if table.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
