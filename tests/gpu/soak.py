# SPDX-License-Identifier: Apache-2.0
"""Minutes of work on one GPU, in long-lived processes side by side, each with another stack; growth shows only there.

    soak.py [--seconds N] [--only WORK,...] [--seed N] [--interval S] [--json FILE]

- train, generate, graphs: soak_work.py, PyTorch with and without its cache.  Each round must print what the same seed
  printed in a process without rmmshim: to the bit where that process agrees with itself, else within its spread.
- paths: path_mix, four threads, blocks of every kind with a pattern each, half of them written by captured graphs.
- ipc: two processes, of which one opens, checks, changes and closes what the other exports, and frees before or after.
- short: programs that begin and end, with changing seeds and stacks; they must print what they print without rmmshim.

Every few seconds the resident memory, descriptors and threads of each process are noted, what `rmmshim ls` says of it,
and the device's memory in use.  Over the second half of the samples the line of least squares may rise by so much:
- resident memory: by a byte for each allocation made in that time (a leak of the smallest record has more), by what
  the same work without rmmshim rose, and by ROOM, which is what heaps of threads and lazy pages come to;
- descriptors and threads by 4 (16 with IPC): what leaks one in each round leaks hundreds.  `virtual` also has one for
  each piece of memory that it holds, 2 MiB or more.
Held memory may rise: the longer the run, the longer the longest wait of a freed block.  But the stacks of `paths` with a
limit have twice what is live and 64 MiB, and may not refuse anything: blocks that are lost now and then would fill that.
In the last reports all that pools hold is in use, waiting or free, and of C programs nothing is in use; PyTorch's idle
lines may rise by 4 blocks.  In the end the device's memory in use must be what it was before, within 16 MiB.

RMMSHIM_LIBRARY is the library, RMMSHIM the command, PROGRAMS what tests/samples/build-real made.  All ends 90 seconds
after --seconds at the latest.  Exit status: 0 all well, 1 not, 77 no GPU.  RMMSHIM_DRY_RUN=1 runs what needs no
framework on the device in host memory."""
import argparse
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import gpu_common
import test_reuse
from gpu_common import compare

sys.path.insert(0, os.path.join(gpu_common.HERE, "..", "integration"))
import ipc_scenes

MIB = 1 << 20
GRACE_S = 90  # to start, and to end what is under way
ROOM = {"train": 48 * MIB, "generate": 48 * MIB, "graphs": 48 * MIB, "paths": 8 * MIB, "ipc": 8 * MIB,
        "long": 8 * MIB}
FEW = {"ipc": 16}  # up to 12 blocks are open there
FEW_ELSE = 4
DEVICE_ROOM = 16 * MIB
FEWEST_SAMPLES = 8
THREADS = 4

POOL = {"RMM_POOL_SIZE": "256MiB"}
BINNING = {"RMM_POOL_SIZE": "256MiB", "RMM_BINNING": "256KiB-4MiB"}
VIRTUAL = {"RMM_RESOURCE": "virtual"}
LIMIT = {"RMM_POOL_SIZE": "0", "RMM_LIMIT": "LIMIT"}
ASYNC = {"RMM_ASYNC": "1"}
ASYNC_IPC = {"RMM_RESOURCE": "async(ipc=true)"}
STACKS = {"pool": POOL, "binning": BINNING, "virtual": VIRTUAL, "limit": LIMIT, "async": ASYNC, "async, IPC": ASYNC_IPC,
          "virtual, limit": dict(VIRTUAL, RMM_LIMIT="LIMIT"), "async, limit": dict(ASYNC, RMM_LIMIT="LIMIT")}
ALONE = "alone"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# Work, stack, environment.  Captures of PyTorch need its cache.
PROCESSES = [
    ("train", ALONE, {}), ("train", "pool", NO_CACHE), ("train", "binning", NO_CACHE), ("train", "virtual", {}),
    ("train", "async", NO_CACHE),
    ("generate", ALONE, {}), ("generate", "limit", NO_CACHE), ("generate", "virtual", NO_CACHE),
    ("generate", "pool", {}),
    ("graphs", ALONE, {}), ("graphs", "pool", {}), ("graphs", "async", {}),
    ("paths", ALONE, {}), ("paths", "pool", {}), ("paths", "binning", {}), ("paths", "limit", {}),
    ("paths", "virtual, limit", {}), ("paths", "async, limit", {}),
    ("ipc", "pool", {}), ("ipc", "virtual", {}), ("ipc", "async, IPC", {}),
    ("short", "changing", {}),
]
FRAMEWORKS = ("train", "generate", "graphs")
PLAYED = ("ipc", "short")  # by this script, in processes of their own
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "2"}


def is_dry():
    return bool(os.environ.get("RMMSHIM_DRY_RUN"))


def built(name, *arguments):
    return [os.path.join(os.environ["PROGRAMS"], name), *(str(word) for word in arguments)]


def script(name, *arguments):
    return [sys.executable, os.path.join(gpu_common.HERE, name), *(str(word) for word in arguments)]


def share_bytes():
    """Of each thread of `paths`."""
    return (8 if is_dry() else 32) * MIB


def of_limit(setting, work="paths"):
    limit = 2 * THREADS * share_bytes() + 64 * MIB if work == "paths" else 8 << 30
    return {name: value.replace("LIMIT", str(limit)) for name, value in setting.items()}


# ---- what is noted of a process ----


def of_proc(pid):
    """Resident bytes, descriptors and threads; None when it has ended."""
    try:
        with open("/proc/%d/status" % pid, encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file)
        if "VmRSS" not in fields:  # it waits to be reaped
            return None
        return {"rss": int(fields["VmRSS"].split()[0]) * 1024, "threads": int(fields["Threads"]),
                "descriptors": len(os.listdir("/proc/%d/fd" % pid))}
    except (OSError, KeyError):
        return None


def of_rmmshim():
    """By process: used and held bytes, and allocations since it began."""
    done = subprocess.run([os.environ["RMMSHIM"], "ls", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          timeout=60, check=True)
    found = {}
    for entry in json.loads(done.stdout):
        sums = found.setdefault(entry["pid"], {"used": 0, "held": 0, "allocations": 0})
        for name in sums:
            sums[name] += entry[name]
    return found


def device_used():
    """Bytes in use on the device, by all of it; None where nobody says."""
    if is_dry() or not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], timeout=60,
                          stdout=subprocess.PIPE, check=True, text=True)
    return int(done.stdout.split()[0]) * MIB


def growth(points):
    """Of (time, value): by how much the line of least squares rises over the second half of the time."""
    middle = (points[0][0] + points[-1][0]) / 2
    half = [point for point in points if point[0] >= middle]
    if len(half) < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / len(half) for values in zip(*half))
    square = sum((x - mean_x) ** 2 for x, _ in half)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in half) / square if square else 0.0
    return slope * (half[-1][0] - half[0][0])


def range_of_second_half(points):
    middle = (points[0][0] + points[-1][0]) / 2
    values = [value for at, value in points if at >= middle]
    return max(values) - min(values)


class Watched:
    """A process, and its samples."""

    def __init__(self, pid, label):
        self.pid, self.label = pid, label
        self.samples = []

    def note(self, at, served):
        now = of_proc(self.pid)
        if now:
            self.samples.append(dict(now, at=round(at, 2), **served.get(self.pid, {})))

    def points(self, name):
        return [(sample["at"], sample[name]) for sample in self.samples if name in sample]

    def grown(self, name):
        points = self.points(name)
        return growth(points) if points else 0.0

    def bounds(self, work, alone):
        """Name: how much it may grow."""
        ranges = {name: range_of_second_half(self.points(name)) if self.points(name) else 0
                  for name in ("allocations", "held")}
        pieces = ranges["held"] // (2 * MIB) if "virtual" in self.label else 0
        bounds = {"descriptors": FEW.get(work, FEW_ELSE) + pieces, "threads": FEW_ELSE}
        if not is_dry():  # where the device's memory is the process's
            bounds["rss"] = ROOM[work] + max(0, alone.grown("rss") if alone else 0) + ranges["allocations"]
        return bounds

    def wrong(self, work, alone, is_served):
        if len(self.samples) < FEWEST_SAMPLES:
            return ["%s: only %d samples of it" % (self.label, len(self.samples))]
        found = ["%s: %s grew by %.1f, at most %.1f" % (self.label, name, self.grown(name), bound)
                 for name, bound in self.bounds(work, alone).items() if self.grown(name) > bound]
        if is_served and not self.points("held"):
            found.append("%s: `rmmshim ls` never named it" % self.label)
        return found


# ---- what rounds print ----


def of_rounds(text):
    """Seed: what its rounds printed, as lists of words."""
    rounds = {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["round"]:
            rounds.setdefault(words[1], []).append(words[2:])
    return rounds


def compare_rounds(ours, alone):
    """How many were compared, whether all of these to the bit, and what is wrong."""
    agrees = all(words == rounds[0] for rounds in alone.values() for words in rounds)
    compared, wrong = 0, []
    for seed in sorted(set(ours) & set(alone)):
        numbers = list(zip(*(map(float, words[:-1]) for words in alone[seed])))
        for words in ours[seed]:
            compared += 1
            if agrees:
                good = words == alone[seed][0]
            else:
                good = all(2 * min(of) - max(of) <= x <= 2 * max(of) - min(of)
                           for of, x in zip(numbers, map(float, words[:-1])))
            if not good:
                wrong.append("seed %s: %s, alone %s" % (seed, " ".join(words), " ".join(alone[seed][0])))
    return compared, agrees, wrong


def idle_wrong(text):
    """What stays in use between rounds may not grow."""
    idles = [line.split()[1:] for line in text.splitlines() if line.startswith("idle ")]
    if len(idles) < 2:
        return ["only %d rounds" % len(idles)]
    grown = growth([(turn, int(blocks)) for turn, (_, blocks) in enumerate(idles)])
    if grown <= FEW_ELSE:
        return []
    return ["between rounds %s blocks were in use, at last %s" % (idles[len(idles) // 2][1], idles[-1][1])]


def lost_bytes(counters):
    """Of what a pool holds when its program ends; blocks are rounded up, by less than 512 bytes each, but more in bins.
    How many blocks are kept nobody counts."""
    of = lambda resource, name: counters.get((resource, name), 0)
    lost = of("pool", "held") - of("pool", "live") - of("pool", "free")
    known = of("statistics", "live") + of("reuse", "quarantined") + of("reuse", "kept")
    rounding = 512 * (of("statistics", "live_allocations") + of("reuse", "quarantined_blocks")) + (64 << 10)
    beyond = of("pool", "live") - known
    return lost or (beyond if beyond > rounding and ("binning", "bins") not in counters else 0)


def wrong_of_reports(paths, is_empty=True):
    """What the last reports of processes say that is wrong; is_empty: nothing may be in use."""
    counters = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if not text:
            return ["the report of a process is empty"]
        counters += [{(counter["resource"], counter["name"]): counter["value"] for counter in device["counters"]}
                     for device in json.loads(text)["devices"]]
    lost = sum(map(lost_bytes, counters))
    left = sum(of.get(("statistics", "live"), 0) for of in counters)
    return ([] if counters else ["it wrote no report"]) + (
        ["%d bytes that a pool holds are nowhere" % lost] if lost else []) + (
        ["%d bytes are in use at the end" % left] if left and is_empty else [])


# ---- the processes ----


class Process:
    def __init__(self, work, stack, environment, options, folder):
        self.work, self.stack = work, stack
        self.title = "%s, %s%s" % (work, stack, ", own cache" if work in FRAMEWORKS and not environment else "")
        self.base = os.path.join(folder, self.title.replace(" ", "_").replace(",", ""))
        self.setting = None if work in PLAYED or stack == ALONE else of_limit(STACKS[stack], work)
        env = compare.environment(self.setting, os.environ["RMMSHIM_LIBRARY"], self.base + ".%p.json",
                                  os.environ.get("PRELOAD_FIRST", ""))
        env.update(CUBLAS if work in FRAMEWORKS else {}, **environment)
        seconds = options.seconds
        if work in PLAYED:
            command = script("soak.py", "--play", work, "--stack", stack, "--seconds", seconds, "--seed", options.seed,
                             "--reports", self.base + ".%p.json")
        elif work == "paths":
            command = built("path_mix", options.seed, "%ds" % seconds, share_bytes(), THREADS, "dddddsvag")
        else:
            command = script("soak_work.py", work, seconds, options.seed)
        with open(self.base + ".out", "wb") as out, open(self.base + ".err", "wb") as err:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            start_new_session=True)
        self.watched = [] if work in PLAYED else [Watched(self.process.pid, self.title)]
        self.was_killed = False

    def text(self, suffix=".out"):
        with open(self.base + suffix, encoding="utf-8", errors="replace") as file:
            return file.read()

    def note(self, at, served):
        if self.process.poll() is not None:
            return
        for line in self.text().splitlines() if self.work == "ipc" else ():
            words = line.split()
            if words[0] == "watch" and int(words[1]) not in [one.pid for one in self.watched]:
                self.watched.append(Watched(int(words[1]), "%s, %s" % (self.title, words[2])))
        for one in self.watched:
            one.note(at, served)

    def kill(self):
        """What a player has started has groups of its own."""
        if self.process.poll() is not None:
            return
        self.was_killed = True
        kill_with_children(self.process)

    def wrong_reports(self):
        return wrong_of_reports(glob.glob(glob.escape(self.base) + ".*.json"), self.work not in FRAMEWORKS)

    def rounds(self):
        return sum(line.startswith("round ") for line in self.text().splitlines())

    def wrong(self, alone):
        """alone: the same work without rmmshim, or None.  Returns what was compared in words, and what is wrong."""
        found, words = [], ""
        if self.process.returncode != 0:
            found.append("it did not end" if self.was_killed else "status %s" % self.process.returncode)
            found += ["    " + line for line in (self.text() + self.text(".err")).splitlines()[-6:]]
        if self.work in FRAMEWORKS and self.setting:
            compared, agrees, differ = compare_rounds(of_rounds(self.text()), of_rounds(alone.text()) if alone else {})
            words = "%d %s" % (compared, "bit-equal" if agrees else "within spread")
            found += differ[:3] + ([] if compared else ["nothing was compared"])
        elif self.work == "paths":
            words = self.text().strip()
            if " refused 0 " not in words:
                found.append(words or "it printed nothing")
        if self.work in FRAMEWORKS:
            found += idle_wrong(self.text())
        if self.process.returncode == 0 and (self.work == "ipc" or self.setting):
            found += self.wrong_reports()
        if self.work != "paths" and not self.rounds():
            found.append("it played no round")
        found = [text if text.startswith(" ") else "%s: %s" % (self.title, text) for text in found]
        for one in self.watched if self.stack != ALONE else ():
            found += one.wrong(self.work, alone.watched[0] if alone else None, not one.label.endswith("importer"))
        return words, found


def kill_with_children(process):
    if process.poll() is not None:
        return
    for pid in descendants(process.pid) + [process.pid]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid):
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task), encoding="utf-8") as file:
                for child in file.read().split():
                    found += [int(child)] + descendants(int(child))
    return found


# ---- players ----


def play_ipc(args):
    """a exports, b opens; up to 12 blocks at a time."""
    peers = []
    draw = random.Random(args.seed)
    end = time.monotonic() + args.seconds
    setting = STACKS[args.stack]

    def check_last(a, b):
        name, seed, is_freed = shared.pop(draw.randrange(len(shared)))
        b.ask("check", name, seed)
        b.ask("fill", name, seed + 1)
        b.ask("synchronize")
        if not is_freed:
            a.ask("check", name, seed + 1)
        b.ask("check", name, seed + 1)
        b.ask("close", name)
        if not is_freed:
            a.ask("free", name)

    try:
        for name in ("exporter", "importer"):
            env = compare.environment(setting, os.environ["RMMSHIM_LIBRARY"], args.reports, os.environ.get("PRELOAD_FIRST", ""))
            peers.append(ipc_scenes.Peer(built("ipc_peer"), env))
            print("watch", peers[-1].process.pid, name, flush=True)
        a, b = peers
        shared, turn = [], 0
        while time.monotonic() < end or shared:
            if time.monotonic() < end and (not shared or len(shared) < 12 and draw.random() < 0.5):
                name, size, seed = "x%d" % (turn % 1000), int(2 ** draw.uniform(8, 23)), draw.randrange(1 << 20)
                b.ask("open", name, size, a.share(name, size, seed))
                shared.append((name, seed, draw.random() < 0.5))
                if shared[-1][2]:
                    a.ask("free", name)
                turn += 1
            else:
                check_last(a, b)
                print("round", turn, flush=True)
        for peer in peers:
            ipc_scenes.settle(peer)
        statuses = [peer.end() for peer in peers]
        said = [line for peer in peers for line in peer.lines]
        print("ended with", statuses, said)
        return 1 if any(statuses) or said else 0
    finally:
        for peer in peers:
            peer.clean_up()


CAPTURES = [("allocations", 2), ("frees", 0), ("frees", 1), ("frees", 2), ("nodes", 2), ("nodes_by_hand", 0)]
SCRIPTS = [("torch_ipc.py",), ("cupy_ipc.py",), ("cupy_scenes.py", "streams"), ("cupy_scenes.py", "graph"),
           ("torch_scenes.py", "private_pools")]


def short_command(draw):
    """A command, and what it must print: None for what it prints alone, or whatever it likes ('')."""
    kind = draw.randrange(3 if is_dry() else 6)
    if kind == 0:
        letters = draw.choice(("dg", "dsva", "dsvag"))
        return built("path_mix", draw.randrange(1 << 20), 200, share_bytes(), draw.randrange(1, THREADS + 1), letters), None
    if kind < 3:
        return built("captures", *draw.choice(CAPTURES)), None
    if kind == 3:
        return built("reuse_safety_static", "--rounds", 40, "--log2-limit", 18, draw.choice(test_reuse.SCENES)), ""
    return script(*draw.choice(SCRIPTS)), None


def play_short(args):
    draw = random.Random(args.seed)
    end = time.monotonic() + args.seconds
    alone, absent = {}, set()
    stacks = [setting for setting in STACKS.values() if "RMM_ASYNC" not in setting]  # which has no IPC
    while time.monotonic() < end:
        command, wanted = short_command(draw)
        if tuple(command) in absent:
            continue
        longest = max(10, end + GRACE_S / 2 - time.monotonic())
        if wanted is None and tuple(command) not in alone:
            base = gpu_common.run(command, None, longest)
            if base.status == 77:
                absent.add(tuple(command))
                print("absent", *command[1:], flush=True)
                continue
            if base.status != 0:
                print("\n".join(["alone: status %s: %s" % (base.status, " ".join(command))] + gpu_common.tail(base)))
                return 1
            alone[tuple(command)] = base.stdout
        result = gpu_common.run(command, of_limit(draw.choice(stacks), "short"), longest)
        if result.status != 0 or wanted is None and result.stdout != alone[tuple(command)]:
            print("\n".join(["%s: status %s: %s" % (result.name, result.status, " ".join(command))] + gpu_common.tail(result)))
            return 1
        if command[0] != sys.executable and result.counter("statistics", "live"):
            print("%s: %d bytes are in use at the end: %s" % (result.name, result.counter("statistics", "live"), " ".join(command)))
            return 1
        print("round", os.path.basename(command[0]), result.name, flush=True)
    return 0


# ---- all ----


def table_of(processes, alone_of):
    mib = lambda value: "%.1f" % (value / MIB)
    rows = [["work, stack", "rounds", "compared", "RSS MiB", "grew", "at most", "descriptors", "threads", "held MiB"]]
    for process in processes:
        words = process.compared
        if process.work == "paths":
            words = words.replace("allocations", "").split("(")[0].strip()
        if not process.watched:
            rows.append([process.title, str(process.rounds()), words] + [""] * 6)
        for one in process.watched:
            alone = alone_of.get(process.work)
            row = [one.label, str(process.rounds()), words]
            if one.samples:
                bounds = one.bounds(process.work, alone.watched[0] if alone and alone is not process else None)
                last, held = one.samples[-1], one.points("held")
                row += [mib(last["rss"]), mib(one.grown("rss")), mib(bounds["rss"]) if "rss" in bounds else "", str(last["descriptors"]),
                        str(last["threads"])]
                row.append(mib(held[-1][1]) if held else "")
            rows.append(row + [""] * (len(rows[0]) - len(row)))
    return compare.text_table(rows, right=(1, 3, 4, 5, 6, 7, 8))


def watch(processes, options, begin):
    """Until all have ended, or must."""
    devices, turn = [], 0
    while any(process.process.poll() is None for process in processes):
        now = time.monotonic() - begin
        if now > options.seconds + GRACE_S:
            for process in processes:
                process.kill()
            break
        if now < options.seconds and now >= turn * options.interval:
            served = of_rmmshim()
            for process in processes:
                process.note(time.monotonic() - begin, served)
            devices.append((round(now, 2), device_used()))
            turn += 1
        time.sleep(0.2)
    return devices


def soak(options, folder):
    chosen = [row for row in PROCESSES if row[0] in options.only.split(",") and not (is_dry() and row[0] in FRAMEWORKS)]
    before = None
    if not is_dry():  # what the driver keeps for good after its first context is there before
        gpu_common.run(built("path_mix", 1, 10, 8 * MIB), None, 60)
        before = device_used()
    begin = time.monotonic()
    processes, wrong = [], []
    try:
        for work, stack, environment in chosen:
            processes.append(Process(work, stack, environment, options, folder))
        devices = watch(processes, options, begin)
    finally:
        for process in processes:
            process.kill()
    alone_of = {process.work: process for process in processes if process.stack == ALONE}
    for process in processes:
        process.compared, found = process.wrong(alone_of.get(process.work))
        wrong += found
    remaining = set(of_rmmshim()) & {one.pid for process in processes for one in process.watched}
    if remaining:
        wrong.append("`rmmshim ls` still names %s" % sorted(remaining))
    after = device_used()
    for _ in range(100):
        if after is None or after <= before + DEVICE_ROOM:
            break
        time.sleep(0.2)
        after = device_used()
    if after is not None and after > before + DEVICE_ROOM:
        wrong.append("the device had %d MiB in use before, and %d after" % (before / MIB, after / MIB))
    print(table_of(processes, alone_of))
    if after is not None:
        print("\nMiB in use on the device: before %d, at most %d, after %d" % (
            before / MIB, max([used for _, used in devices if used is not None] or [0]) / MIB, after / MIB))
    print("%d samples in %.0f s, seed %d" % (len(devices), time.monotonic() - begin, options.seed))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"seconds": options.seconds, "seed": options.seed, "device_used": devices, "before": before,
                       "after": after, "wrong": wrong, "processes": [
                           {"process": one.label, "status": process.process.returncode, "rounds": process.rounds(),
                            "compared": process.compared, "samples": one.samples}
                           for process in processes for one in process.watched or [Watched(0, process.title)]]}, file, indent=1)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=420)
    parser.add_argument("--only", default="train,generate,graphs,paths,ipc,short", metavar="WORK,...")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--interval", type=float, default=10, metavar="S")
    parser.add_argument("--json", metavar="FILE")
    for name in ("--play", "--stack", "--reports"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        return {"ipc": play_ipc, "short": play_short}[options.play](options)
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        wrong = soak(options, folder)
    for line in wrong:
        print(line if line.startswith(" ") else "FAILED: " + line)
    print("soak: %s" % ("%d wrong" % sum(not line.startswith(" ") for line in wrong) if wrong else "all well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
