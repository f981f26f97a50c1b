# SPDX-License-Identifier: Apache-2.0
"""Pairs of cudaMalloc and cudaFree below deep stacks of Python and C, as a framework's are: what it costs to
observe them.

    observed.py LIBRARY [--quick]

LIBRARY is made of observed.c.  Prints `observed/PYTHON_FRAMES+C_FRAMES_LOCK VALUE ns`: the median time of a
pair that Python asks for one at a time, from eight lines in turn.  Every other Python frame is that of a
__call__, which the interpreter reaches through C, as with PyTorch's modules.  `locked`: the binding keeps
Python's lock during the call; `free`: it lets go of it, as PyTorch does."""
import ctypes
import statistics
import sys
import time

STACKS = [(20, 20), (60, 20), (20, 40)]
BYTES = 4096


class Module:
    def __init__(self, inner):
        self.inner = inner

    def __call__(self):
        return self.forward()

    def forward(self):
        return self.inner()


def eight_pairs(pairs, frames):
    wrong = pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    wrong |= pairs(frames, 1, BYTES)
    return wrong


def measure(pairs, frames, turns, rounds):
    times = []
    for _ in range(turns):
        begin = time.perf_counter_ns()
        for _ in range(rounds):
            if eight_pairs(pairs, frames):
                sys.exit("a call failed")
        times.append((time.perf_counter_ns() - begin) / (8 * rounds))
    return statistics.median(times[1:])


def main():
    quick = "--quick" in sys.argv
    turns, rounds = (3, 20) if quick else (9, 500)
    for lock, binding in (("locked", ctypes.PyDLL), ("free", ctypes.CDLL)):
        pairs = binding(sys.argv[1]).observed_pairs
        pairs.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t]
        for python, native in STACKS:
            def innermost():
                return measure(pairs, native, turns, rounds)

            call = innermost
            for _ in range(python // 2):
                call = Module(call)
            print("observed/%d+%d_%s %.1f ns" % (python, native, lock, call()), flush=True)


main()
