#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays the recorded traces (tests/bench/traces) through our stacks and other allocators, on the CUDA device
in host memory, and prints for each how much it took from the driver at most over how much was live at most.

    footprint.py BUILD [--peers DIRECTORY] [--record] [--ours] [--json FILE] [TRACE]...

Ours start empty, and freed blocks wait for a fence, as for every user; peers reuse them at once.  An arena of RMM's
has a fixed size: the figure is the smallest that serves the trace, found by halving, which nobody knows
beforehand (RMM's default is half of what is free).  Peers are RMM and PyTorch themselves, built by
tests/bench/footprint/build-peers; --record keeps their figures in traces/peers.txt, and where they are not built, or with
--ours, the recorded ones stand for them.

A second table has the same for fences that are done at once, and for a busy GPU whose fences are done up to 1
and 10 ms late (deferred_replay, whose GPU and clock are numbers): beside each figure how often an allocation
waited, by how much the run got longer for it, and how many driver calls 1000 allocations took.  Traces have
no times: each line takes the program 10 us, and a busy GPU 20 us.

A third has how many fences and driver calls 1000 allocations take with an initial size, 1 ms late: what
makes an iteration longer, where the driver's calls take longer than ours.

A fourth has random sequences (random_replay): how many of 10,000 allocations are refused that the driver
alone would serve, peak reserved over peak live, and driver calls of 1000 allocations.  There are devices
whose memory forty sequences fill to 60 to 80 %, blocks of up to 2 GiB, and several threads.

A fifth has equal blocks, and two or three sizes in turn, until the device is full (equal_blocks): of all
sizes the least share of the driver's bytes that was served.

A last line has sums of pool's columns; late is the mean of lags of 0.5 to 10 ms.

Exit status 1: pool is not below a peer, and EXCEPTIONS does not name the trace with the reason; or with late
fences it is not below RMM's pool and PyTorch by LATE_PEERS; or a run got longer by more than LONGER; or
1000 allocations took more driver calls than CALLS; or a random sequence or a sum is past its bound; or of
equal blocks a pool serves more than one of each size less than the driver."""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TRACES = os.path.join(HERE, "..", "traces")
RECORDED = os.path.join(TRACES, "peers.txt")
MIB = 1 << 20
ARENA_MOST = 16  # times what is live

# Ours: name in the table -> expression.
STACKS = {
    "pool": "pool(cuda)",
    "pool, bins": "binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)",
    "virtual": "virtual",
    "virtual, 2MiB": "virtual(granularity=2MiB)",
}
# Theirs: name -> command and its arguments.  %d is an arena's size.
PEERS = {
    "RMM pool": ["replay_rmm", "pool"],
    "RMM arena": ["replay_rmm", "arena=%d"],
    "RMM binning": ["replay_rmm", "binning"],
    "PyTorch": ["replay_torch"],
}
# With late fences: those of ours, by how many microseconds, and what one line of a trace takes the program.
DEFERRED = ["pool", "virtual, 2MiB"]
LAGS_US = [0, 1000, 10000]
OPERATION_US = 10
LATE_PEERS = {"RMM pool": 1.02, "PyTorch": 1.02}  # at most so many times theirs
LONGER = {0: 0.0001, 1000: 0.05, 10000: 0.05}
INITIAL = "pool(cuda, initial_size=512MiB)"
CALLS = 20  # of 1000 allocations; the transformer took 30 while it gave chunks back in each of its steps
# Random sequences and equal blocks: stacks.  ALL and HALF are the device's size and half of it.
FULL = {
    "cuda": "cuda",
    "pool": "pool(cuda)",
    "pool, initial half": "pool(cuda, initial_size=HALF)",
    "pool, initial all": "pool(cuda, initial_size=ALL)",
    "pool, bins": "binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)",
    "virtual, 2MiB": "virtual(granularity=2MiB)",
}
# Name -> the device's MiB, further options of random_replay.  With 4 seeds in place of 40 the figure at 60 %
# was 0.5 to 3.5 by chance; 1000 give 2.4.
ROOMY_MIB = 80 << 10
RANDOM = {
    "filled to 80 %": (120, "-s 40"),
    "filled to 70 %": (136, "-s 40"),
    "filled to 60 %": (160, "-s 40"),
    "4 MiB to 2 GiB, 80 %": (20 << 10, "-m 8192 -b 4096 -o 9 -s 40"),
    "4 MiB to 2 GiB": (ROOMY_MIB, "-m 8192 -b 4096 -o 9 -s 40"),
    "4 threads": (ROOMY_MIB, "-t -n 4 -k 8000 -s 10"),
    "16 threads": (ROOMY_MIB, "-t -n 16 -k 16000 -s 10"),
    "16 threads, 1 ms late": (ROOMY_MIB, "-t -n 16 -k 16000 -s 10 -l 1000"),
}
# Of pool: the most refused, reserved/live and driver calls; fb801d4's, and 1 to 2 % for the last five, which go
# by chance.
RANDOM_MOST = {
    "filled to 80 %": (120.0, 1.251, 423),
    "filled to 70 %": (11.1, 1.418, 427),
    "filled to 60 %": (2.3, 1.660, 228),
    "4 MiB to 2 GiB, 80 %": (12.5, 1.263, 1747),
    "4 MiB to 2 GiB": (0.0, 1.673, 151),
    "4 threads": (0.0, 1.535, 54.1),
    "16 threads": (0.0, 1.401, 70.0),
    "16 threads, 1 ms late": (0.0, 1.420, 32.0),
}
# An initial size says nothing on a roomy device, virtual's GiB in 512 pieces takes the fake device minutes, and
# handing over between threads takes seconds.
NOT_PLAYED = {(name, of) for of, (mib, sequence) in RANDOM.items() for name, expression in FULL.items()
              if (mib == ROOMY_MIB and ("HALF" in expression or "ALL" in expression)) or
              ("-b 4096" in sequence and "virtual" in expression) or ("-t" in sequence and name != "pool")}
EQUAL_DEVICE_MIB = 8192
EQUAL_MIB = "1 1.5 2 3 5 7 10 16 20 20.5 25 32 33 50 64 100 128 150 200 250 256 300 333 400 500".split()
EQUAL_MIB += "20,32 3,20,200 100,20 300,7 1.5,500".split()
# Name -> its expression in FULL, the device's and the limit's MiB; and of which the pool is to serve them all.
EQUAL = {name: (name, EQUAL_DEVICE_MIB, 0) for name in FULL if name != "cuda"}
EQUAL["pool, RMM_LIMIT"] = ("pool", 10 * EQUAL_DEVICE_MIB, EQUAL_DEVICE_MIB)
EQUAL["pool, initial half, RMM_LIMIT"] = ("pool, initial half", 10 * EQUAL_DEVICE_MIB, EQUAL_DEVICE_MIB)
EQUAL_GATED = ["pool", "pool, initial half", "pool, initial all", "pool, RMM_LIMIT", "pool, initial half, RMM_LIMIT"]
# Of pool over all traces: what fb801d4 had, and as much again as the mean of seven lags goes by chance (1.156 there).
SUMS = {"prompt, mean": 1.120, "late, mean": 1.159, "driver calls, sum": 28.9}
SUM_LAGS_US = [500, 800, 1000, 1300, 2000, 4000, 10000]
# Trace -> {peer: why pool does not have to be below it there}.
EXCEPTIONS = {}


class Failed(Exception):
    pass


class Player:
    def __init__(self, build, peers):
        self.build, self.peers = build, peers

    def play(self, command, path, more):
        """(live, reserved); reserved None when out of memory."""
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("RMM_", "HOSTCUDA_", "LD_", "PYTORCH_"))}
        env.update({"LD_LIBRARY_PATH": os.path.join(self.build, "tests", "hostcuda"), "HOSTCUDA_MEMORY": "256GiB"}, **more)
        done = subprocess.run(command + [path], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        text = done.stdout.decode()
        figures = re.search(r"live (\d+)(?: reserved (\d+))?", text)
        if done.returncode not in (0, 2) or not figures:
            raise Failed("%s %s: status %d: %s" % (command[0], path, done.returncode, done.stderr.decode().strip()[-300:]))
        return int(figures[1]), int(figures[2]) if done.returncode == 0 else None

    def stack(self, expression, path):
        return self.play([os.path.join(self.build, "tests", "bench", "footprint", "trace_replay")], path,
                         {"LD_PRELOAD": os.path.join(self.build, "src", "hook", "librmmshim.so"),
                          "RMM_RESOURCE": expression})

    def figures(self, program, arguments):
        """[{name: number}], one for each line that a program on the fake device prints"""
        done = subprocess.run([os.path.join(self.build, "tests", "bench", "footprint", program)] + arguments,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0 or not done.stdout:
            raise Failed("%s %s: status %d: %s" % (program, " ".join(arguments), done.returncode, done.stderr.decode().strip()[-300:]))
        return [{name: float(number) for name, number in re.findall(r"([a-z]+) ([\d.]+)(?= |$)", line)}
                for line in done.stdout.decode().splitlines()]

    def deferred(self, expression, lag_us, path):
        """{ratio, waits, longer (a share), fences and calls (of 1000 allocations)}"""
        figures, = self.figures("deferred_replay", [str(lag_us), str(OPERATION_US), expression, path])
        with open(path, encoding="utf-8") as file:
            allocations = sum(line.startswith("a") for line in file)
        figures["calls"] = 1000 * (figures["allocations"] + figures["frees"]) / allocations
        figures["fences"] *= 1000 / allocations
        return figures

    def random(self, expression, device_mib, options):
        """(refused of 10,000 allocations, without those that the driver would refuse; reserved/live; driver
        calls of 1000 allocations)"""
        figures, = self.figures("random_replay", ["-d", str(device_mib)] + options.split() + [sized(expression, device_mib)])
        return (10000 * (figures["refused"] - figures["driver"]) / figures["allocations"],
                figures["reserved"] / figures["live"], 1000 * figures["calls"] / figures["allocations"])

    def equal(self, expression, device_mib, limit_mib):
        """Bytes served, in the order of EQUAL_MIB."""
        return [figures["served"] for figures in
                self.figures("equal_blocks", [str(device_mib), str(limit_mib), sized(expression, limit_mib or device_mib)] + EQUAL_MIB)]

    def peer(self, arguments, path):
        return self.play([os.path.join(self.peers, arguments[0])] + arguments[1:], path, {})

    def driver(self, path):
        return self.play([os.path.join(self.build, "tests", "bench", "footprint", "trace_replay")], path, {})


def sized(expression, device_mib):
    return expression.replace("ALL", "%dMiB" % (device_mib - 2)).replace("HALF", "%dMiB" % (device_mib // 2))


def smallest(live, play):
    """The smallest size that play() succeeds with, in steps of 2 MiB, as far as halving finds it."""
    low, high = live // (2 * MIB), ARENA_MOST * live // (2 * MIB)
    if play(high * 2 * MIB)[1] is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if play(middle * 2 * MIB)[1] is None:
            low = middle
        else:
            high = middle
    return high * 2 * MIB


def ratio(player, kind, name, path):
    """Peak reserved over peak live, or None when the trace was not served."""
    if kind == "driver":
        live, reserved = player.driver(path)
    elif kind == "stack":
        live, reserved = player.stack(STACKS[name], path)
    elif "%d" in PEERS[name][-1]:
        live, _ = player.driver(path)
        reserved = smallest(live, lambda size: player.peer(PEERS[name][:-1] + [PEERS[name][-1] % size], path))
    else:
        live, reserved = player.peer(PEERS[name], path)
    return reserved / live if reserved else None


def read_recorded():
    """{(trace, peer): ratio}"""
    recorded = {}
    if os.path.exists(RECORDED):
        with open(RECORDED, encoding="utf-8") as file:
            for line in file:
                if not line.startswith("#"):
                    trace, figure, peer = line.split(None, 2)
                    recorded[trace, peer.strip()] = float(figure)
    return recorded


def write_recorded(figures):
    with open(RECORDED, "w", encoding="utf-8") as file:
        file.write("# Peak reserved over peak live of other allocators, by footprint.py --record: RMM 26.10, PyTorch 2.15\n")
        for (trace, peer), figure in sorted(figures.items()):
            if figure:
                file.write("%s %.4f %s\n" % (trace, figure, peer))


def trace_of(path):
    return os.path.splitext(os.path.basename(path))[0]


def show(figure):
    return "%.3f" % figure if figure else "-"


def print_rows(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]))


def lag_name(lag_us):
    return "%d ms late" % (lag_us // 1000) if lag_us else "prompt"


def print_deferred(traces, deferred):
    columns = [(name, lag_us) for name in DEFERRED for lag_us in LAGS_US]
    rows = [["fences, waits, run longer by, calls"] + ["%s, %s" % (name, lag_name(lag_us)) for name, lag_us in columns]]
    for trace in traces:
        cells = [deferred[(trace,) + column] for column in columns]
        rows.append([trace] + ["%.3f %5d %4.1f%% %5.1f" % (cell["ratio"], cell["waits"], 100 * cell["longer"], cell["calls"])
                               for cell in cells])
    print_rows(rows)


def check_deferred(traces, figures, deferred):
    wrong = []
    for trace in traces:
        for lag_us in LAGS_US:
            figure, longer = (deferred[trace, "pool", lag_us][name] for name in ("ratio", "longer"))
            if longer > LONGER[lag_us]:
                wrong.append("%s, %s: the run is longer by %.4f" % (trace, lag_name(lag_us), longer))
            for peer, times in LATE_PEERS.items():
                if not figure <= times * figures.get((trace, peer), 0):
                    wrong.append("%s, %s: pool has %s, %s %s" % (trace, lag_name(lag_us), show(figure), peer,
                                                                show(figures.get((trace, peer)))))
    return wrong


def print_random(random):
    columns = list(RANDOM)
    print_rows([["refused, reserved/live, calls"] + columns] +
               [[name] + ["%.1f %.3f %6.1f" % random[name, column] if (name, column) in random else "-" for column in columns] for name in FULL])


def check_random(random):
    return ["pool, %s: %s is %.3f" % (name, what, figure) for name, most in RANDOM_MOST.items()
            for what, figure, bound in zip(("refused", "reserved/live", "driver calls"), random["pool", name], most)
            if figure > bound]


def print_equal(equal, driver):
    shares = {name: min((served / most, size) for served, most, size in zip(equal[name], driver[name], EQUAL_MIB)) for name in EQUAL}
    print_rows([["equal blocks until full", "least of the driver's", "MiB"]] +
               [[name, "%.1f %%" % (100 * share), size] for name, (share, size) in shares.items()])


def check_equal(equal, driver):
    wrong = []
    for name in EQUAL_GATED:
        for served, most, sizes in zip(equal[name], driver[name], EQUAL_MIB):
            if served < most - MIB * sum(map(float, sizes.split(","))):
                wrong.append("%s, blocks of %s MiB: %d MiB served, %d by the driver" % (name, sizes, served // MIB, most // MIB))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD")
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="default: all of tests/bench/traces")
    parser.add_argument("--peers", metavar="DIRECTORY", help="default: BUILD/peers")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="gets {trace: {name in the table: ratio or null}}")
    parser.add_argument("--ours", action="store_true", help="play no trace through the peers")
    args = parser.parse_args()
    player = Player(os.path.abspath(args.build), os.path.abspath(args.peers or os.path.join(args.build, "peers")))
    paths = args.traces or sorted(glob.glob(os.path.join(TRACES, "*.trace")))
    built = not args.ours and all(os.path.exists(os.path.join(player.peers, peer[0])) for peer in PEERS.values())
    if args.record and not built:
        parser.error("the peers are not in %s: tests/bench/footprint/build-peers builds them" % player.peers)
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in paths:
            trace = trace_of(path)
            wanted = [("driver", "driver")] + [("stack", name) for name in STACKS]
            for kind, name in wanted + ([("peer", name) for name in PEERS] if built else []):
                jobs[trace, name] = pool.submit(ratio, player, kind, name, path)
        late = {(trace_of(path), name, lag_us): pool.submit(player.deferred, STACKS[name], lag_us, path)
                for path in paths for name in DEFERRED for lag_us in LAGS_US + SUM_LAGS_US if name == "pool" or lag_us in LAGS_US}
        calls = {trace_of(path): pool.submit(player.deferred, INITIAL, 1000, path) for path in paths}
        random = {(name, of): pool.submit(player.random, FULL[name], *RANDOM[of]) for name in FULL for of in RANDOM
                  if (name, of) not in NOT_PLAYED}
        equal = {name: pool.submit(player.equal, FULL[of], *sizes) for name, (of, *sizes) in EQUAL.items()}
        driver = {name: pool.submit(player.equal, "cuda", *sizes) for name, (_, *sizes) in EQUAL.items()}
        try:
            random, equal, driver = ({key: job.result() for key, job in jobs.items()} for jobs in (random, equal, driver))
            figures = {key: job.result() for key, job in jobs.items()}
            deferred = {key: job.result() for key, job in late.items()}
            calls = {key: job.result() for key, job in calls.items()}
        except (Failed, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    traces = sorted({trace for trace, _ in figures})
    if not built:
        figures.update({key: figure for key, figure in read_recorded().items() if key[0] in traces})
    if args.record:
        write_recorded({key: figure for key, figure in figures.items() if key[1] in PEERS})
    names = ["driver"] + list(STACKS) + list(PEERS)
    rows = [["peak reserved/live"] + names]
    rows += [[trace] + [show(figures.get((trace, name))) for name in names] for trace in traces]
    print_rows(rows)
    print_deferred(traces, deferred)
    print_rows([["1000 allocations of " + INITIAL, "fences", "driver calls"]] +
               [[trace, "%.0f" % calls[trace]["fences"], "%.1f" % calls[trace]["calls"]] for trace in traces])
    print_random(random)
    print_equal(equal, driver)
    sums = {"prompt, mean": sum(figures[trace, "pool"] or 99 for trace in traces) / len(traces),
            "late, mean": sum(deferred[trace, "pool", lag_us]["ratio"] for trace in traces for lag_us in SUM_LAGS_US) /
                          (len(traces) * len(SUM_LAGS_US)),
            "driver calls, sum": sum(calls[trace]["calls"] for trace in traces)}
    print("pool: " + "; ".join("%s %.4f" % item for item in sums.items()))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({trace: dict({name: figures.get((trace, name)) for name in names},
                                   **{"%s, %s" % (name, lag_name(lag_us)): deferred[trace, name, lag_us]["ratio"]
                                      for name in DEFERRED for lag_us in LAGS_US if lag_us}) for trace in traces}, file, indent=1)
    if not built:
        print("RMM's and PyTorch's figures are recorded ones")
    wrong = ["%s: pool has %s, %s %s" % (trace, show(figures[trace, "pool"]), peer, show(figures.get((trace, peer))))
             for trace in traces for peer in PEERS
             if peer not in EXCEPTIONS.get(trace, {}) and
             not (figures[trace, "pool"] and figures[trace, "pool"] < figures.get((trace, peer), 0))]
    wrong += check_random(random) + check_equal(equal, driver)
    wrong += ["%s: 1000 allocations took %.1f driver calls" % (trace, calls[trace]["calls"]) for trace in traces
              if calls[trace]["calls"] > CALLS]
    if not args.traces:
        wrong += ["pool, %s: %.4f" % (name, sums[name]) for name, most in SUMS.items() if sums[name] >= most + 0.0005]
    wrong += check_deferred(traces, figures, deferred)
    for trace in traces:
        for peer, reason in EXCEPTIONS.get(trace, {}).items():
            print("%s, %s: %s" % (trace, peer, reason))
    for line in wrong:
        print("FAILED: " + line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
