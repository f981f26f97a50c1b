# SPDX-License-Identifier: Apache-2.0
"""Runs reuse_safety: nothing is overwritten by work on a freed block, though blocks are reused while
work is in flight; and with RMM_FREE=immediate the same program shows corruption, so it can.

    test_reuse.py [--rounds N]

PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library.  Exits with 77 where there
is no GPU."""
import argparse
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

SMALL_POOL = {"RMM_POOL_SIZE": "32MiB", "RMM_POOL_MAX_SIZE": "32MiB"}
MANAGED = {"RMM_MANAGED": "1", "RMM_POOL_SIZE": "4MiB", "RMM_POOL_MAX_SIZE": "4MiB"}
MANAGED_SCENES = ["blocking", "non_blocking", "null", "mem_free", "runtime_free"]
# Other stacks: setting, scenes, whether so little memory is there that blocks must come back.
SCENES = ["blocking", "non_blocking", "null", "green_null", "graph", "mem_free", "runtime_free"]
OTHERS = {
    "arena": ({"RMM_ARENA_SIZE": "32MiB"}, SCENES, True),
    "virtual": ({"RMM_RESOURCE": "virtual(granularity=2MiB, maximum_size=32MiB)"}, SCENES, True),
    "async": ({"RMM_ASYNC": "1"}, SCENES, False),
    "async_managed": ({"RMM_ASYNC": "1", "RMM_MANAGED": "1"}, MANAGED_SCENES, False),
    "managed pool": ({"RMM_MANAGED_POOL_SIZE": "4MiB"}, ["managed"], False),
    "pinned pool": ({"RMM_PINNED_POOL_SIZE": "4MiB"}, ["pinned"], False),
}
# Nothing is cached for these by the settings above, so nothing is reused.
NOT_CACHED = {"managed", "pinned"}
# What the driver by itself does with such blocks is its own business.
NOT_JUDGED_ALONE = {"free_async"}


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
    def __init__(self):
        self.wrong = []
        self.labels = []
        self.cells = {}  # by scene, then label

    def run(self, label, setting, rounds, arguments, names, **judgement):
        """A scene in which the program ends is noted, and those after it run all the same."""
        program = os.path.join(os.environ["PROGRAMS"], "reuse_safety_static")
        if not names:
            names = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
        self.labels.append(label)
        while names:
            command = [program, "--rounds", str(rounds)] + arguments + names
            result = gpu_common.run(command, setting, min(60 + rounds, 240))
            scenes = scenes_of(result)
            self.judge(label, setting, rounds, result, scenes, **judgement)
            while names and names[0] in scenes:
                del names[0]
            if names:
                self.cells.setdefault(names[0], {})[label] = "ENDED"
                self.wrong.append("%s, %s: the program ended in it" % (label, names[0]))
                self.wrong += gpu_common.tail(result)
                names = [] if result.status is None else names[1:]

    def judge(self, label, setting, rounds, result, scenes, dangerous=False, reuses=True):
        bad = False
        for scene, row in scenes.items():
            if row is None:
                self.cells.setdefault(scene, {})[label] = "skipped"
                continue
            overwritten = max(row["corrupted"], row["early"]) if setting else row["corrupted"]
            self.cells.setdefault(scene, {})[label] = "%d/%d, %d reused" % (
                overwritten, row["rounds"], row["reused"])
            if row["spoilt"]:
                self.wrong.append("%s, %s: %d captures spoilt" % (label, scene, row["spoilt"]))
                bad = True
            if dangerous:
                if scene not in NOT_CACHED and not row["corrupted"]:
                    self.wrong.append("%s, %s: no corruption seen, so this scene proves nothing" % (label, scene))
                continue
            if overwritten and (setting or scene not in NOT_JUDGED_ALONE):
                self.wrong.append("%s, %s: %d rounds corrupted, %d blocks handed out early" % (
                    label, scene, row["corrupted"], row["early"]))
                bad = True
            if reuses and setting and scene not in NOT_CACHED and row["reused"] < rounds / 20:
                self.wrong.append("%s, %s: hardly anything was reused (%d)" % (label, scene, row["reused"]))
        # Without the library a stream-ordered free may well give the block to the next at once.
        expected = (0, 1) if not setting else (1,) if dangerous or bad else (0,)
        if result.status not in expected:
            self.wrong.append("%s: status %s" % (label, "TIMEOUT" if result.status is None else result.status))
        print("%s: %s, %.1f s" % (label, result.name, result.seconds), flush=True)
        if setting:
            self.show_counters(label, result)

    def show_counters(self, label, result):
        words = ["%s %s" % (name, compare.number(result.counter("reuse", name))) for name in (
            "epochs_sealed", "epochs_retired", "waits", "waits_in_vain", "full_waits")
                 if result.counter("reuse", name) is not None]
        peak, held = result.counter("statistics", "peak"), result.counter("pool", "held_peak")
        words += ["peak live " + compare.size(peak), "pool held " + compare.size(held)]
        print("  " + ", ".join(words), flush=True)
        if result.report_error:
            self.wrong.append("%s: %s" % (label, result.report_error))

    def table(self):
        rows = [["overwritten or early / rounds"] + self.labels]
        rows += [[scene] + [cells.get(label, "") for label in self.labels] for scene, cells in self.cells.items()]
        return compare.text_table(rows, right=range(1, len(rows[0])))


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
    managed = lambda: list(MANAGED_SCENES)
    reuse = Reuse()
    reuse.run("driver alone", None, few, ["--relaxed"], [])
    reuse.run("pool", SMALL_POOL, args.rounds, [], [])
    reuse.run("pool, immediate", dict(SMALL_POOL, RMM_FREE="immediate"), few, [], [], dangerous=True)
    reuse.run("pool, wait", dict(SMALL_POOL, RMM_FREE="wait"), few, [], [], reuses=False)
    reuse.run("managed", MANAGED, some, small, managed())
    reuse.run("managed, immediate", dict(MANAGED, RMM_FREE="immediate"), few, small, managed(),
              dangerous=True)
    for label, (setting, scenes, reuses) in OTHERS.items():
        reuse.run(label, setting, some, small if "managed" in label or "pinned" in label else [], list(scenes),
                  reuses=reuses)
    print("\n" + reuse.table())
    for line in reuse.wrong:
        print(("  " if line.startswith(" ") else "FAILED: ") + line.strip())
    print("reuse: %s" % ("%d wrong" % len(reuse.wrong) if reuse.wrong else "all well"))
    return 1 if reuse.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
