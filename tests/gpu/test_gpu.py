# SPDX-License-Identifier: Apache-2.0
"""Programs on a real GPU, with and without the library: what they print and how they end is the same.
Exits with 77 where there is no GPU.  PROGRAMS is what tests/samples/build-real made."""
import concurrent.futures
import ctypes
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def load_compare():
    path = os.path.join(HERE, "..", "..", "scripts", "compare")
    loader = importlib.machinery.SourceFileLoader("compare", path)
    spec = importlib.util.spec_from_loader("compare", loader)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


compare = load_compare()

POOL = {"RMM_POOL_SIZE": "4GiB"}
MANAGED = {"RMM_MANAGED": "1"}
BOTH = {"RMM_POOL_SIZE": "1GiB", "RMM_MANAGED": "1"}
BINNING = {"RMM_POOL_SIZE": "4GiB", "RMM_BINNING": "256KiB-4MiB"}
GROWING = {"RMM_POOL_MAX_SIZE": "50%"}
LIMITING = {"RMM_RESOURCE": "statistics(limiting(pool(cuda), limit=8GiB))"}

ALL = [{}, POOL, MANAGED, BOTH, BINNING]
NOT_MANAGED = [{}, POOL, BINNING, GROWING]
FEW = [{}, POOL, BOTH]

# program, arguments, settings.  Sizes that no device has are not asked for in managed memory.
CASES = [
    ("vector_dlopen", [], ALL),
    ("memory_mix_static", [], ALL + [GROWING, LIMITING]),
    ("memory_mix_shared", [], ALL + [GROWING]),
    ("memory_mix_static", ["--threads", "8", "--seed", "5", "--log2-limit", "22", "mix"], ALL),
    ("memory_mix_static", ["huge"], NOT_MANAGED),
    ("memory_mix_shared", ["huge"], NOT_MANAGED),
] + [
    (program, scene, FEW)
    for program in ("life_runtime_static", "life_runtime_shared")
    for scene in (["plain", "live"], ["fork_before"], ["fork_after"], ["exec_child"], ["leave"], ["leave", "_exit"],
                  ["leave_in_thread"], ["free_late"], ["free_late", "early_handler"], ["reset"], ["threads"], ["threads_that_kept"],
                  ["clone_after"], ["spawn"], ["exec_in_thread"])
] + [
    ("life_driver", scene, FEW)
    for scene in (["destroyed_contexts", "4"], ["two_contexts"], ["no_context"], ["primary_context"],
                  ["two_references"], ["other_thread"], ["cloned"], ["green_contexts"], ["live_at_exit"])
]
# Memory information changes with what other processes do: alone.
ALONE = [
    ("memory_mix_static", ["information"], NOT_MANAGED),
    ("memory_mix_shared", ["information"], NOT_MANAGED),
]
# What differs where a pool serves, as rmmshim(7) says under Limits: program and scene -> the line with rmmshim, and
# without.  The child of a raw clone() cannot free its parent's block; all else that it calls answers as without.
KNOWN = {
    ("life_runtime_static", "clone_after"): (b"child exits with 1\n", b"child exits with 0\n"),
    ("life_runtime_shared", "clone_after"): (b"child exits with 1\n", b"child exits with 0\n"),
    ("life_driver", "cloned"): (b"of its calls failed: 256\n", b"of its calls failed: 0\n"),
}


def has_gpu():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if hasattr(driver, "hostcuda_call_count"):
        return False
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def run_case(case):
    """Lines about what went wrong."""
    name, arguments, settings = case
    command = [os.path.join(os.environ["PROGRAMS"], name)] + arguments
    shim = os.environ["RMMSHIM_LIBRARY"]
    first = os.environ.get("PRELOAD_FIRST", "")
    wrong = []
    try:
        base = compare.run(command, None, shim, 90, preload_first=first)
        for setting in settings:
            result = compare.run(command, setting, shim, 90, preload_first=first)
            if setting and tuple([name] + arguments) in KNOWN:
                known, plain = KNOWN[tuple([name] + arguments)]
                if known not in result.stdout:
                    wrong.append("%s under %s: no longer differs as KNOWN says" % (name, result.name))
                result.stdout = result.stdout.replace(known, plain)
            if base.status is None or not result.same_as(base):
                wrong.append("%s under %s:" % (" ".join([name] + arguments), result.name))
                wrong += compare.differences(base, result)
    except OSError as error:
        wrong.append("%s: %s" % (name, error))
    return wrong


def main():
    if not has_gpu():
        print("no GPU")
        return 77
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, min(6, (os.cpu_count() or 2) // 2))) as pool:
        outcomes = list(pool.map(run_case, CASES))
    outcomes += [run_case(case) for case in ALONE]
    for case, wrong in zip(CASES + ALONE, outcomes):
        failed += bool(wrong)
        print("%s %s" % ("FAILED" if wrong else "ok", " ".join([case[0]] + case[1])))
        for line in wrong:
            print("  " + line)
    print("%d of %d failed" % (failed, len(outcomes)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
