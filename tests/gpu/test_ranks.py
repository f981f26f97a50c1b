# SPDX-License-Identifier: Apache-2.0
"""Several processes with a device each, started by torchrun and, where it is installed, by mpirun: each
writes its own statistics report and event log, named by its rank.

RMMSHIM_LIBRARY is the library and RMMSHIM the command.  Exit status: 1 when a file is missing or says
something else; 77 where there are not two devices."""
import csv
import ctypes
import glob
import json
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
import gpu_common

SCRIPT = os.path.join(gpu_common.HERE, "rank_scenes.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, SCRIPT]
RANKS = 2
TOOL = os.environ.get("RMMSHIM", "rmmshim")


def device_count():
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    return count.value if driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def wrong_files(folder):
    """What the files of a run with one device a rank should not look like."""
    for rank in range(RANKS):
        reports = glob.glob(os.path.join(folder, "statistics.%d.json" % rank))
        if not reports:
            yield "rank %d wrote no report" % rank
            continue
        with open(reports[0], encoding="utf-8") as file:
            devices = json.load(file)["devices"]
        served = {entry["device"] for entry in devices for counter in entry["counters"]
                  if counter["name"] == "allocations" and counter["value"] > 0}
        if served != {rank}:
            yield "rank %d was served on devices %s" % (rank, sorted(served))
        # Its first device's log has the plain name, another's the device's number.
        logs = glob.glob(os.path.join(folder, "log.%d.*csv" % rank))
        rows = 0
        for path in logs:
            with open(path, encoding="utf-8", newline="") as file:
                rows += sum(1 for _ in csv.reader(file)) - 1
        if rows < 1:
            yield "rank %d logged nothing in %s" % (rank, [os.path.basename(path) for path in logs])
    names = sorted(os.listdir(folder))
    if any(not name.startswith(("statistics.", "log.")) for name in names):
        yield "the folder has %s" % names


def run_in_job(wrong):
    """NCCL under a limit over both ranks, and the processes seen by `run`."""
    command = TORCHRUN + ["training"]
    base = gpu_common.run(command, None, 120)
    result = gpu_common.run([TOOL, "run", "--quiet", "--limit-job", "8GiB", "--pool-size", "0", "--"] + command, None, 120)
    found = []
    if base.status != 0 or result.status != 0 or not result.same_as(base):
        found = ["another result:"] + gpu_common.compare.differences(base, result) + gpu_common.tail(result)
    wrong += ["torchrun under --limit-job: " + line for line in found]
    print("torchrun, training, under --limit-job: %s, %.1f s" % ("WRONG" if found else "ok", result.seconds))


def run(title, command, wrong):
    with tempfile.TemporaryDirectory(prefix="rmmshim-ranks-") as folder:
        setting = {"RMM_POOL_SIZE": "256MiB", "RMM_STATISTICS": "json:" + os.path.join(folder, "statistics.%r.json"),
                   "RMM_LOG": os.path.join(folder, "log.%r.%p.csv")}
        base = gpu_common.run(command, None, 120)
        if base.status != 0:
            wrong.append("%s without rmmshim: status %s" % (title, base.status))
            wrong += gpu_common.tail(base)
            return
        result = gpu_common.run(command, setting, 120)
        found = list(wrong_files(folder)) if result.status == 0 else []
        if not result.same_as(base):
            found += ["another result:"] + gpu_common.compare.differences(base, result)
        wrong += ["%s: %s" % (title, line) for line in found]
        print("%s: %s, %.1f s, files %s" % (title, "WRONG" if found else "ok", result.seconds,
                                            " ".join(sorted(os.listdir(folder)))))


def main():
    if not gpu_common.has_gpu() or device_count() < RANKS:
        print("there are not two devices")
        return 77
    wrong = []
    for scene in ("alone", "training"):
        run("torchrun, " + scene, TORCHRUN + [scene], wrong)
    run_in_job(wrong)
    if shutil.which("mpirun"):
        run("mpirun, alone", MPIRUN + ["alone"], wrong)
    else:
        print("no mpirun here")
    for line in wrong:
        print("FAILED: " + line)
    print("ranks: %s" % ("%d wrong" % len(wrong) if wrong else "all well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
