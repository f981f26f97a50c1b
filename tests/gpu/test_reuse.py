# SPDX-License-Identifier: Apache-2.0
"""Runs reuse_safety: nothing is overwritten by work on a freed block, though blocks are reused while
work is in flight; and with RMM_FREE=immediate the same program shows corruption, so it can.

    test_reuse.py [--rounds N]

PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library.  Exits with 77 where there
is no GPU."""
import argparse
import os
import re
import sys

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

SMALL_POOL = {"RMM_POOL_SIZE": "32MiB", "RMM_POOL_MAX_SIZE": "32MiB"}
MANAGED = {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "4MiB", "RMM_POOL_MAX_SIZE": "4MiB"}
MANAGED_SCENES = ["blocking", "non_blocking", "null", "mem_free", "runtime_free"]
# Nothing is cached for these by the settings above, so nothing is reused.
NOT_CACHED = {"managed", "pinned"}


def scenes_of(result):
    rows = {}
    for line in result.stdout.decode(errors="replace").splitlines():
        words = line.split()
        if len(words) > 2 and words[1] == "rounds":
            rows[words[0]] = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)(?= |$)", line)}
        elif words[1:] == ["skipped"]:
            rows[words[0]] = None
    return rows


class Reuse:
    def __init__(self, rounds):
        self.rounds = rounds
        self.wrong = []
        self.table = [["setting", "scene", "rounds", "corrupted", "early", "reused", "spoilt", "retried", "seconds"]]

    def run(self, setting, rounds, arguments, dangerous=False):
        command = [os.path.join(os.environ["PROGRAMS"], "reuse_safety"), "--rounds", str(rounds)] + arguments
        result = gpu_common.run(command, setting, 60 + rounds)
        scenes = scenes_of(result)
        name = result.name
        for scene, row in scenes.items():
            if row is None:
                self.table.append([name, scene, "skipped"] + [""] * 6)
                continue
            self.table.append([name, scene] + ["%d" % row[key] for key in (
                "rounds", "corrupted", "early", "reused", "spoilt", "failed_first")] + ["%.1f" % row["seconds"]])
            if row["rounds"] != rounds:
                self.wrong.append("%s, %s: %d rounds" % (name, scene, row["rounds"]))
            if row["spoilt"]:
                self.wrong.append("%s, %s: %d captures spoilt" % (name, scene, row["spoilt"]))
            if dangerous:
                if scene not in NOT_CACHED and not row["corrupted"]:
                    self.wrong.append("%s, %s: no corruption seen, so this scene proves nothing" % (name, scene))
                continue
            if row["corrupted"] or row["early"]:
                self.wrong.append("%s, %s: %d rounds corrupted, %d blocks handed out early" % (
                    name, scene, row["corrupted"], row["early"]))
            if setting and scene not in NOT_CACHED and row["reused"] < rounds / 20:
                self.wrong.append("%s, %s: hardly anything was reused (%d)" % (name, scene, row["reused"]))
        expected = 1 if dangerous else 0
        if result.status != expected or not scenes:
            self.wrong.append("%s: status %s, expected %d" % (
                name, "TIMEOUT" if result.status is None else result.status, expected))
            self.wrong += gpu_common.tail(result)
        if setting:
            self.show_counters(result)

    def show_counters(self, result):
        words = ["%s %s" % (name, compare.number(result.counter("reuse", name))) for name in (
            "epochs_sealed", "epochs_retired", "waits", "waits_in_vain", "full_waits")]
        peak, held = result.counter("statistics", "peak"), result.counter("pool", "held_peak")
        print("%s: %s; peak live %s, held %s" % (result.name, ", ".join(words), compare.size(peak), compare.size(held)))
        if result.report_error:
            self.wrong.append("%s: %s" % (result.name, result.report_error))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    args = parser.parse_args()
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    few = max(20, args.rounds // 20)
    some = max(20, args.rounds // 2)
    small = ["--log2-limit", "18"]
    reuse = Reuse(args.rounds)
    reuse.run(None, few, ["--relaxed"])
    reuse.run(SMALL_POOL, args.rounds, [])
    reuse.run(dict(SMALL_POOL, RMM_FREE="immediate"), few, [], dangerous=True)
    reuse.run(dict(SMALL_POOL, RMM_FREE="wait"), few, [])
    reuse.run(MANAGED, some, small + MANAGED_SCENES)
    reuse.run(dict(MANAGED, RMM_FREE="immediate"), few, small + MANAGED_SCENES, dangerous=True)
    print("\n" + compare.text_table(reuse.table, right=range(2, 9)))
    for line in reuse.wrong:
        print(("  " if line.startswith(" ") else "FAILED: ") + line.strip())
    print("reuse: %s" % ("%d wrong" % len(reuse.wrong) if reuse.wrong else "all well"))
    return 1 if reuse.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
