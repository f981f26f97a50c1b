# SPDX-License-Identifier: Apache-2.0
"""Programs with one memory mistake each on a GPU: what tests/conformance/planted_bugs.txt promises is said of each.

PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library.  Exit status: 1 when a mistake was not
named, 77 where there is no GPU.  RMMSHIM_DRY_RUN=1 runs on the device in host memory."""
import os
import sys

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

sys.path.insert(0, os.path.join(gpu_common.HERE, "..", "integration"))
import planted_rows


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    table, wrong = [["mistake", "result", "seconds"]], []
    for row in planted_rows.rows():
        if row.commands:  # what a command says of a recording, no GPU changes
            continue
        result = gpu_common.run([os.path.join(os.environ["PROGRAMS"], "planted_bugs"), row.scene], row.settings, 120)
        missed = row.missed(result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace"))
        good = result.status == 0 and not missed
        table.append([row.scene, "ok" if good else "FAILED", "%.1f" % result.seconds])
        if not good:
            wrong += ["%s, status %s: not said: %s" % (row.scene, result.status, "; ".join(missed))] + gpu_common.tail(result)
    print("\n".join(wrong), end="\n" if wrong else "")
    print(compare.text_table(table, right=(2,)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
