# SPDX-License-Identifier: Apache-2.0
"""Device memory shared by several processes on a GPU: the scenes of tests/integration/ipc_scenes.py, also under
`virtual` and `async`, and PyTorch and CuPy with a pool, with RMM_IPC=dedicated, with these two and without rmmshim.
Prints one table.  `async` without `ipc=true` needs a driver for CUDA 13.0 or newer.

RMMSHIM_LIBRARY is the library, PROGRAMS what tests/samples/build-real made.  Exit status: 1 when
something went wrong, 77 where there is no GPU.  RMMSHIM_DRY_RUN=1 runs on the device in host memory."""
import os
import sys
import time

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

sys.path.insert(0, os.path.join(gpu_common.HERE, "..", "integration"))
import ipc_scenes

POOL = {"RMM_POOL_SIZE": "1GiB"}
DEDICATED = {"RMM_POOL_SIZE": "1GiB", "RMM_IPC": "dedicated"}
FRAMEWORKS = {"PyTorch": "torch_ipc.py", "CuPy": "cupy_ipc.py"}
PEERS = ["ipc_peer", "ipc_peer_static", "ipc_peer_shared"]
RUNTIME_SCENES = ["sizes", "counts", "handles", "without_shim", "dedicated"]
# What the device in host memory answers and hardware may answer otherwise: any refusal will do; and a
# reset takes its time here.
ARGUMENTS = {"without_shim": {"refusal": None}, "resets": {"rounds": 4}, "mapped_without_shim": {"refusal": None},
             "pool_without_shim": {"refusal": None}}
ALL_SCENES = {**ipc_scenes.SCENES, **ipc_scenes.MAPPED_SCENES, **ipc_scenes.POOLED_SCENES}
STACKS = [*ipc_scenes.MAPPED.values(), *ipc_scenes.POOLED.values(), {"RMM_RESOURCE": "async"}]
NOT_HERE = ["descriptors", "pool_descriptors"]  # nobody knows how many descriptors a driver's calls take for a moment


def play(name, program, stack):
    """What went wrong, or None."""
    peers = []
    arguments = dict(ARGUMENTS.get(name, {}))

    def start(settings, shim=True):
        env = {key: value for key, value in os.environ.items() if not key.startswith("RMM_") and key != "LD_PRELOAD"}
        if shim:
            preload = [os.environ.get("PRELOAD_FIRST"), os.environ["RMMSHIM_LIBRARY"]]
            env["LD_PRELOAD"] = ":".join(filter(None, preload))
        env.update(settings)
        peers.append(ipc_scenes.Peer([os.path.join(os.environ["PROGRAMS"], program)], env))
        return peers[-1]

    try:
        if stack:
            arguments.update(ipc_scenes.arguments_under(name, stack))
        ALL_SCENES[name](ipc_scenes.under(start, stack) if stack else start, **arguments)
        return None
    except (AssertionError, OSError, ValueError, ipc_scenes.Failure) as error:
        said = [line for peer in peers for line in peer.lines]
        return "%s: %s%s" % (type(error).__name__, str(error)[:200], "".join("\n    " + line for line in said))
    finally:
        for peer in peers:
            peer.clean_up()


def run_framework(name, script):
    """Rows of the table."""
    command = [sys.executable, os.path.join(gpu_common.HERE, script)]
    base = gpu_common.run(command, None, 150)
    if base.status == 77:
        return [[name, "without rmmshim", "not there", "%.1f" % base.seconds]]
    rows = [[name, "without rmmshim", "ok" if base.status == 0 else "FAILED", "%.1f" % base.seconds]]
    for setting in ({}, POOL, DEDICATED, dict(POOL, RMM_FREE="wait"), *STACKS):
        result = gpu_common.run(command, setting, 150)
        same = result.status == 0 and result.stdout == base.stdout
        rows.append([name, result.name, "ok" if same else "FAILED", "%.1f" % result.seconds])
        if not same:
            print("%s, %s: status %s" % (name, result.name, result.status))
            print("\n".join(gpu_common.tail(result, 12)))
    return rows


def scenes():
    """Program, scene, and the stack in place of the scene's pool, or None."""
    yield from (("ipc_peer", name, None) for name in ALL_SCENES if name not in NOT_HERE)
    yield from ((program, name, None) for program in PEERS[1:] for name in RUNTIME_SCENES)
    yield from (("ipc_peer", name, stack) for stack in (STACKS[0], STACKS[2]) for name in ipc_scenes.FOR_ANY_STACK)
    yield from ((program, name, stack) for program in PEERS for name in ("sizes", "counts", "handles")
                for stack in STACKS)


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    rows = [["program", "scene or setting", "result", "seconds"]]
    for program, name, stack in scenes():
        begin = time.monotonic()
        wrong = play(name, program, stack)
        label = "%s, %s" % (name, ", ".join(stack.values())) if stack else name
        rows.append([program, label, "FAILED" if wrong else "ok", "%.1f" % (time.monotonic() - begin)])
        if wrong:
            print("%s, %s: %s" % (program, label, wrong), flush=True)
    if not os.environ.get("RMMSHIM_DRY_RUN"):
        for name, script in FRAMEWORKS.items():
            rows += run_framework(name, script)
    print(compare.text_table(rows, right=(3,)))
    return 1 if any(row[2] == "FAILED" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
