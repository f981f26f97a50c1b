# SPDX-License-Identifier: Apache-2.0
"""Two CUDA runtimes in one process on a GPU (two_runtimes.c): the same text with and without rmmshim, and all
allocations of both are served.  Prints one table.

The runtimes are CUDART_LIBRARIES, paths with colons between, or one of each version that Python's packages and the
toolkit have.  PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library.  Exit status: 1 when
something went wrong, 77 where there is no GPU or only one runtime.  RMMSHIM_DRY_RUN=1 runs on the device in host
memory."""
import glob
import itertools
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

POOL = {"RMM_POOL_SIZE": "256MiB"}
ALL_POOLS = dict(POOL, RMM_MANAGED_POOL_SIZE="64MiB", RMM_PINNED_POOL_SIZE="64MiB")
SETTINGS = [{}, POOL, dict(POOL, RMM_FREE="wait"), dict(POOL, RMM_HOOKS="device"), {"RMM_RESOURCE": "cuda"},
            {"RMM_ASYNC": "1"}, {"RMM_RESOURCE": "virtual"}, {"RMM_MANAGED": "1"}, ALL_POOLS]


def found_runtimes():
    """One of each version."""
    given = os.environ.get("CUDART_LIBRARIES")
    if given:
        return given.split(":")
    home = subprocess.run([os.path.join(gpu_common.HERE, "..", "..", "scripts", "find-cuda"), "home"],
                          stdout=subprocess.PIPE, check=False).stdout.decode().strip()
    folders = [os.path.join(place, "nvidia", "*", "lib") for place in sys.path if place]
    folders += [os.path.join(home, *words) for words in (["lib64"], ["targets", "*", "lib"], ["lib"]) if home]
    versions = {}
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(folder, "libcudart.so.*"))):
            number = re.search(r"\.so\.(\d+)", path).group(1)
            versions.setdefault(number, path)
    return [versions[number] for number in sorted(versions)]


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    runtimes = found_runtimes()
    print("runtimes: " + " ".join(runtimes))
    if len(runtimes) < 2:
        print("left out: one runtime is not two")
        return 77
    rows = [["runtimes", "setting", "result", "allocations", "seconds"]]
    for pair in itertools.permutations(runtimes, 2):
        names = ", ".join(os.path.basename(path) for path in pair)
        command = [os.path.join(os.environ["PROGRAMS"], "two_runtimes")] + list(pair)
        base = gpu_common.run(command, None, 60)
        rows.append([names, base.name, "ok" if base.status == 0 else "FAILED", "", "%.1f" % base.seconds])
        if base.status != 0:
            print("\n".join([names + " without rmmshim:"] + gpu_common.tail(base)))
            continue
        if pair == tuple(runtimes[:2]):
            print(base.stdout.decode())
        device, managed, pinned = map(int, re.findall(r"\d+", base.stdout.decode().splitlines()[-1]))
        for setting in SETTINGS:
            result = gpu_common.run(command, setting, 60)
            wanted = (device + managed + pinned if setting == ALL_POOLS else device) if setting else None
            good = result.same_as(base) and result.allocations == wanted
            rows.append([names, result.name, "ok" if good else "FAILED", compare.number(result.allocations),
                         "%.1f" % result.seconds])
            if not good:
                print("\n".join(["%s, %s: %s allocations, not %s" % (names, result.name, result.allocations, wanted)]
                                + compare.differences(base, result)))
    print(compare.text_table(rows, right=(3, 4)))
    return 1 if any(row[2] == "FAILED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
