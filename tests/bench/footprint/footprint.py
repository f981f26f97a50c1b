#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays the recorded traces (tests/bench/traces) through our stacks and other allocators, on the CUDA device
in host memory, and prints for each how much it took from the driver at most over how much was live at most.

    footprint.py BUILD [--peers DIRECTORY] [--record] [--ours] [--json FILE] [TRACE]...

Ours start empty, and freed blocks wait for a fence, as for every user; peers reuse them at once.  Arenas
have a fixed size: the figure is the smallest that serves the trace, found by halving, which nobody knows
beforehand (RMM's default is half of what is free).  Peers are RMM and PyTorch themselves, built by
tests/bench/footprint/build-peers; --record keeps their figures in traces/peers.txt, and where they are not built, or with
--ours, the recorded ones stand for them.

A second table has the same for fences that are done at once, and for a busy GPU whose fences are done up to 1
and 10 ms late (`rmmshim replay`, whose GPU and clock are numbers): beside each figure how often an allocation
waited, and by how much the run got longer for it.  Traces have no times: each line takes the program
10 us, and a busy GPU 20 us.

A third has how many fences and driver calls 1000 allocations take with an initial size, 1 ms late: what
makes an iteration longer, where the driver's calls take longer than ours.

A fourth has how many of 10,000 allocations are refused that the driver alone would serve, on devices whose
memory forty random sequences fill to 60 to 80 % (full_device).

Exit status 1: pool is not below a peer, and EXCEPTIONS does not name the trace with the reason; or with late
fences it is not below RMM's pool and PyTorch by LATE_PEERS; or a run got longer by more than LONGER; or
1000 allocations took more driver calls than CALLS; or more than REFUSED were refused."""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TRACES = os.path.join(HERE, "..", "traces")
RECORDED = os.path.join(TRACES, "peers.txt")
MIB = 1 << 20
ARENA_MOST = 16  # times what is live

# Ours: name in the table -> expression.  %d is an arena's size.
STACKS = {
    "pool": "pool(cuda)",
    "pool, bins": "binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)",
    "arena": "arena(cuda, arena_size=%d)",
    "virtual": "virtual",
    "virtual, 2MiB": "virtual(granularity=2MiB)",
}
# Theirs: name -> command and its arguments.
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
# A full device: stacks (ALL and HALF are the device's size and half of it), its sizes for 96 MiB live at most.
FULL = {
    "cuda": "cuda",
    "pool": "pool(cuda)",
    "pool, initial half": "pool(cuda, initial_size=HALF)",
    "pool, initial all": "pool(cuda, initial_size=ALL)",
    "arena": "arena(cuda, arena_size=ALL)",
    "pool, bins": "binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)",
    "virtual, 2MiB": "virtual(granularity=2MiB)",
}
FULL_LIVE_MIB = 96
FULL_MIB = [120, 136, 160]
FULL_SEEDS = 40  # with 4 the figure at 60 % was 0.5 to 3.5 by chance; 1000 give 2.4
REFUSED = {("cuda", 120): 0, ("pool", 120): 200, ("pool", 136): 20, ("pool", 160): 4}
# Trace -> {peer: why pool does not have to be below it there}.
EXCEPTIONS = {}


class Failed(Exception):
    pass


class Player:
    def __init__(self, build, peers, logs):
        """logs: path of a trace -> that of the same as RMM's log"""
        self.build, self.peers, self.logs = build, peers, logs

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

    def replay(self, expression, lag_us, path):
        """What `rmmshim replay` says of the trace."""
        done = subprocess.run([os.path.join(self.build, "src", "tool", "rmmshim"), "replay", self.logs[path], "--json",
                               "--resource", expression, "--lag", "%dus" % lag_us, "--operation", "%dus" % OPERATION_US],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Failed("%s %s: status %d: %s" % (expression, path, done.returncode, done.stderr.decode().strip()[-300:]))
        result, = json.loads(done.stdout)["results"]
        if result["refusals"]:
            raise Failed("%s %s: %d refused" % (expression, path, result["refusals"]))
        return result

    def deferred(self, expression, lag_us, path):
        """(ratio, waits, longer by that share)"""
        result = self.replay(expression, lag_us, path)
        return result["peak_held"] / result["peak_live"], result["waits"], result["longer_ppm"] / 1e6

    def calls(self, path):
        """(fences, driver calls) of 1000 allocations"""
        result = self.replay(INITIAL, 1000, path)
        each = 1000 / result["allocations"]
        return each * result["fences"], each * (result["upstream_allocations"] + result["upstream_frees"])

    def refused(self, expression, device_mib):
        """Of 10,000 allocations, without those that the driver would refuse."""
        expression = expression.replace("ALL", "%dMiB" % (device_mib - 2)).replace("HALF", "%dMiB" % (device_mib // 2))
        done = subprocess.run([os.path.join(self.build, "tests", "bench", "footprint", "full_device"), str(device_mib),
                               "0", expression, str(FULL_SEEDS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        figures = re.search(r"allocations (\d+) refused (\d+) by the driver (\d+)", done.stdout.decode())
        if done.returncode != 0 or not figures:
            raise Failed("%s: status %d: %s" % (expression, done.returncode, done.stderr.decode().strip()[-300:]))
        return 10000 * (int(figures[2]) - int(figures[3])) / int(figures[1])

    def peer(self, arguments, path):
        return self.play([os.path.join(self.peers, arguments[0])] + arguments[1:], path, {})

    def driver(self, path):
        return self.play([os.path.join(self.build, "tests", "bench", "footprint", "trace_replay")], path, {})


def write_log(trace, path):
    """A trace as RMM's log, which has addresses and times: any that differ will do."""
    allocated = []
    with open(trace, encoding="utf-8") as lines, open(path, "w", encoding="utf-8") as log:
        log.write("Thread,Time,Action,Pointer,Size,Stream\n")
        for line in lines:
            if line[0] not in "af":
                continue
            number = int(line[1:].split()[0])
            if line[0] == "a":
                allocated.append(number)
            index = len(allocated) - 1 - (number if line[0] == "f" else 0)
            log.write("1,00:00:00.000000,%s,%#x,%d,0\n" % ("allocate" if line[0] == "a" else "free", (index + 1) << 9,
                                                          allocated[index]))


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
    elif kind == "stack" and "%d" in STACKS[name]:
        live, _ = player.driver(path)
        reserved = smallest(live, lambda size: player.stack(STACKS[name] % size, path))
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
    rows = [["fences, waits, run longer by"] + ["%s, %s" % (name, lag_name(lag_us)) for name, lag_us in columns]]
    for trace in traces:
        cells = [deferred[(trace,) + column] for column in columns]
        rows.append([trace] + ["%.3f %5d %4.1f%%" % (figure, waits, 100 * longer) for figure, waits, longer in cells])
    print_rows(rows)


def check_deferred(traces, figures, deferred):
    wrong = []
    for trace in traces:
        for lag_us in LAGS_US:
            figure, _, longer = deferred[trace, "pool", lag_us]
            if longer > LONGER[lag_us]:
                wrong.append("%s, %s: the run is longer by %.4f" % (trace, lag_name(lag_us), longer))
            for peer, times in LATE_PEERS.items():
                if not figure <= times * figures.get((trace, peer), 0):
                    wrong.append("%s, %s: pool has %s, %s %s" % (trace, lag_name(lag_us), show(figure), peer,
                                                                show(figures.get((trace, peer)))))
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
    paths = args.traces or sorted(glob.glob(os.path.join(TRACES, "*.trace")))
    with tempfile.TemporaryDirectory() as folder:
        logs = {path: os.path.join(folder, "%d.csv" % i) for i, path in enumerate(paths)}
        for path, log in logs.items():
            write_log(path, log)
        player = Player(os.path.abspath(args.build), os.path.abspath(args.peers or os.path.join(args.build, "peers")), logs)
        return measure(parser, args, player, paths)


def measure(parser, args, player, paths):
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
                for path in paths for name in DEFERRED for lag_us in LAGS_US}
        calls = {trace_of(path): pool.submit(player.calls, path) for path in paths}
        full = {(name, size): pool.submit(player.refused, FULL[name], size) for name in FULL for size in FULL_MIB}
        try:
            refused = {key: job.result() for key, job in full.items()}
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
               [[trace, "%.0f" % calls[trace][0], "%.1f" % calls[trace][1]] for trace in traces])
    print_rows([["refused of 10,000, the device filled to"] + ["%d %%" % (100 * FULL_LIVE_MIB // size) for size in FULL_MIB]] +
               [[name] + ["%.1f" % refused[name, size] for size in FULL_MIB] for name in FULL])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({trace: dict({name: figures.get((trace, name)) for name in names},
                                   **{"%s, %s" % (name, lag_name(lag_us)): deferred[trace, name, lag_us][0]
                                      for name in DEFERRED for lag_us in LAGS_US if lag_us}) for trace in traces}, file, indent=1)
    if not built:
        print("RMM's and PyTorch's figures are recorded ones")
    wrong = ["%s: pool has %s, %s %s" % (trace, show(figures[trace, "pool"]), peer, show(figures.get((trace, peer))))
             for trace in traces for peer in PEERS
             if peer not in EXCEPTIONS.get(trace, {}) and
             not (figures[trace, "pool"] and figures[trace, "pool"] < figures.get((trace, peer), 0))]
    wrong += ["%s on %d MiB: %.1f refused" % (key + (refused[key],)) for key, most in REFUSED.items() if refused[key] > most]
    wrong += ["%s: 1000 allocations took %.1f driver calls" % (trace, calls[trace][1]) for trace in traces
              if calls[trace][1] > CALLS]
    wrong += check_deferred(traces, figures, deferred)
    for trace in traces:
        for peer, reason in EXCEPTIONS.get(trace, {}).items():
            print("%s, %s: %s" % (trace, peer, reason))
    for line in wrong:
        print("FAILED: " + line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
