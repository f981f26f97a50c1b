# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered memory, captures and peer access: the scenes of tests/integration on a GPU, and with a
second GPU those about two.  Each prints "ok"; what the driver alone must pass too is played without the
library first.

PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library.  Exits with 77 where there
is no GPU."""
import os
import sys

sys.dont_write_bytecode = True
import gpu_common

POOL = {"RMM_POOL_SIZE": "256MiB"}
VIRTUAL = {"RMM_RESOURCE": "virtual"}
GROWING = {"RMM_RESOURCE": "pool(cuda)"}
ASYNC = {"RMM_ASYNC": "1"}
ALL = {"RMM_HOOKS": "all"}
POOL_OF_ASYNC = {"RMM_RESOURCE": "pool(async)"}
SERVED = [dict(setting, **ALL) for setting in (POOL, VIRTUAL, ASYNC, dict(POOL, RMM_BINNING="256KiB-4MiB"))]
STACKS = SERVED + [dict(POOL, RMM_FREE="wait", **ALL), {"RMM_RESOURCE": "statistics(cuda)"}, POOL]
PEERS = [{}, POOL, VIRTUAL, ASYNC, POOL_OF_ASYNC, {"RMM_ARENA_SIZE": "2GiB"}]

# program, scene, arguments; settings; whether the driver alone passes it.
CASES = [
    ("stream_ordered", ["order"], SERVED, False),
    ("stream_ordered", ["per_thread"], SERVED, False),
    ("stream_ordered", ["no_wait"], STACKS, False),
    ("stream_ordered", ["no_wait_async"], [{"RMM_RESOURCE": "cuda", **ALL}], True),
    ("stream_ordered", ["pools"], [SERVED[0]], False),
    ("stream_ordered", ["not_served"], [POOL, {"RMM_RESOURCE": "cuda", **ALL}], True),
] + [
    ("captures", [scene, mode], STACKS, mode == "2" and scene != "frees")
    for scene in ("allocations", "frees", "pools", "nodes") for mode in "012"
] + [
    ("captures", ["nodes_by_hand"], STACKS, True),
] + [
    ("captures", [scene, mode], [GROWING, VIRTUAL], False)
    for scene in ("growth", "contexts", "primary", "green_contexts", "last_green_context") for mode in "012"
]
OF_TWO = [
    ("stream_ordered", ["shared_pool"], SERVED, False),
] + [
    ("peers", [scene], PEERS, True) for scene in ("before", "after", "disabled", "threads")
]

wrong = []


def play(program, arguments, setting):
    command = [os.path.join(os.environ["PROGRAMS"], program)] + arguments
    result = gpu_common.run(command, setting, 120)
    text = result.stdout.decode(errors="replace").strip()
    return result, result.status == 0 and text.splitlines()[-1:] == ["ok"]


def run_case(program, arguments, settings, alone):
    label = " ".join([program] + arguments)
    if alone:
        result, good = play(program, arguments, None)
        if not good:
            wrong.append("%s: not even the driver alone passes it" % label)
            wrong.extend(gpu_common.tail(result))
            return
    for setting in settings:
        result, good = play(program, arguments, setting)
        if not good:
            wrong.append("%s under %s: status %s" % (label, result.name, result.status))
            wrong.extend(gpu_common.tail(result))
    print("%s: %d settings" % (label, len(settings)), flush=True)


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    for case in CASES:
        run_case(*case)
    if gpu_common.device_count() > 1:
        for case in OF_TWO:
            run_case(*case)
    else:
        print("one GPU: nothing about peers was played")
    for line in wrong:
        print(("  " if line.startswith(" ") else "FAILED: ") + line.strip())
    print("ordered: %s" % ("%d wrong" % len(wrong) if wrong else "all well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
