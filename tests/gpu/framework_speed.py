# SPDX-License-Identifier: Apache-2.0
"""PyTorch and CuPy with their own allocators, without them, and without them but with rmmshim: time of
an iteration and memory taken.  Prints one table.

    framework_speed.py [--only WORKLOAD,...] [--processes N] [--chunks N] [--seconds N] [--json FILE]

A machine's speed drifts by more than what is to be seen here, and one core may be 1.5 times as fast as
the next for seconds (what its neighbours do).  So the programs with their own allocator and those with
rmmshim are alive at the same time, on the same core, and take turns: a few iterations of the one, then
of the other, while the others wait.  Two processes of the same program differ by up to 4 % for as long
as they live (where their memory lies, how Python hashes), so each kind has several processes, and a
process counts as one figure: by how much its turns differ from the others' of the same round.  The
ratio of two kinds is that of the means of these figures, with its 95 % interval by Student's t.  A last
run under rmmshim counts memory.
Two more kinds may take their turns beside these: with --floor one under a door with no allocator behind
it (what is slower with that is the framework's own way to cudaMalloc), with --both the framework's own
allocator with rmmshim beneath.  RMMSHIM_LIBRARY is the library, which is told RMM_POOL_SIZE=512MiB and
nothing else (RMM_PINNED_POOL_SIZE too for the workload that lives on pinned memory; the last run:
RMM_STATISTICS too).  Exit status: 1 when a run failed, was certainly slower than with the framework's
own allocator, or took more memory than it may; 77 where there is neither framework nor GPU."""
import argparse
import itertools
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

TORCH = ["mlp", "transformer", "changing"]
CUPY = ["expression", "small", "pinned"]
TITLES = {"mlp": "PyTorch MLP 12x512, Adam", "transformer": "PyTorch transformer, 6 layers bf16, AdamW",
          "changing": "PyTorch transformer, changing lengths", "expression": "CuPy expression, 16 MB arrays",
          "small": "CuPy small arrays", "pinned": "CuPy, 4 MiB to the device from pinned memory"}
POOL_BYTES = 512 << 20
SETTING = {"RMM_POOL_SIZE": "512MiB"}
PINNED_SETTING = {"RMM_POOL_SIZE": "512MiB", "RMM_PINNED_POOL_SIZE": "64MiB"}
SLOWER = 1.01  # a ratio that certainly lies above this is slower
APART = ("none", "counted")  # kinds that take no turns beside the others
# 97.5 %, by N: with 2 N - 2 degrees of freedom
STUDENT_T = {2: 4.303, 3: 2.776, 4: 2.447, 5: 2.306, 6: 2.228, 7: 2.179, 8: 2.145}
MIB = 1 << 20


# ---- in the child ----


def take_turns(step, synchronize, warm, chunk):
    """Warms up, and then at each line that comes in runs a few iterations and says how long one took."""
    for i in range(warm):
        step(i)
    synchronize()
    print("warm", flush=True)
    while sys.stdin.readline() == "turn\n":
        begin = time.perf_counter()
        for i in range(chunk):
            step(i)
        synchronize()
        print(json.dumps((time.perf_counter() - begin) / chunk * 1e3), flush=True)


def torch_mlp(torch):
    layers = []
    for _ in range(12):
        layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.randn(256, 512, device="cuda"), torch.randn(256, 512, device="cuda")

    def step(_):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step, 40, 25


def torch_transformer(torch, lengths):
    words, width, batch = 8000, 512, 16

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(words, width)
            layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = torch.nn.Linear(width, words)

        def forward(self, tokens):
            return self.head(self.layers(self.words(tokens)))

    model = Model().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(i):
        tokens = torch.randint(words, (batch, lengths[i % len(lengths)] + 1), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(scores.float().reshape(-1, words), tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()

    return step, 2 * len(lengths) + 8, len(lengths) if len(lengths) > 1 else 6


def run_torch(torch, workload):
    if workload == "mlp":
        step, *amounts = torch_mlp(torch)
    else:
        step, *amounts = torch_transformer(
            torch, [256] if workload == "transformer" else [128, 320, 192, 448, 256, 384, 160, 512])
    take_turns(step, torch.cuda.synchronize, *amounts)
    return {"reserved": torch.cuda.max_memory_reserved(), "live": torch.cuda.max_memory_allocated()}


def run_cupy(cupy, workload, own):
    import numpy
    if not own:
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    n = 4000000 if workload == "expression" else 1000
    a, b = (cupy.asarray(numpy.random.rand(n).astype(numpy.float32)) for _ in range(2))

    def expression(_):
        return (a * 2 + b) * (a - b) + a * b - cupy.sqrt(a)

    def small(_):
        c = a + b
        d = c * a
        return d - b

    values = numpy.random.rand(1 << 20).astype(numpy.float32)

    def pinned(_):
        memory = cupy.cuda.alloc_pinned_memory(values.nbytes)
        host = numpy.frombuffer(memory, values.dtype, values.size)
        host[:] = values
        device = cupy.empty(values.size, dtype=values.dtype)
        device.set(host)
        cupy.cuda.get_current_stream().synchronize()

    synchronize = cupy.cuda.Device().synchronize
    if workload == "pinned":
        take_turns(pinned, synchronize, 20, 40)
    elif workload == "expression":
        take_turns(expression, synchronize, 50, 100)
    else:
        take_turns(small, synchronize, 200, 1000)
    return {"reserved": cupy.get_default_memory_pool().total_bytes() if own else 0, "live": 0}


def child(workload, own):
    """Says ready, waits for a line, takes its turns, and says what came of it."""
    try:
        if workload in TORCH:
            import torch as framework
        else:
            import cupy as framework
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), flush=True)
        return 77
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    if workload in TORCH:
        if not framework.cuda.is_available():
            print(json.dumps({"absent": "no CUDA device for PyTorch"}), flush=True)
            return 77
        result = run_torch(framework, workload)
    else:
        result = run_cupy(framework, workload, own)
    print(json.dumps(result), flush=True)
    return 0


# ---- in the parent ----


class TurnTaker:
    """A child process that says ready, warms up at a first line, and takes a turn at each further one."""

    def __init__(self, kind, folder, command, env, setting):
        self.kind, self.folder = kind, folder
        os.mkdir(folder)
        self.error_file = open(os.path.join(folder, "stderr"), "w+b")
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.error_file, start_new_session=True, bufsize=0)
        self.counts = compare.Run(setting)
        self.result = {}
        self.ms = []
        self.problem = None

    def read_line(self, timeout):
        """Passes over what a framework may say.  None: time is up; empty: it has ended."""
        end = time.monotonic() + timeout
        while select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            line = self.process.stdout.readline().decode(errors="replace")
            if not line or line in ("ready\n", "warm\n") or line[0] in "{0123456789":
                return line.strip()
        return None

    def tell(self, line):
        if self.problem:
            return
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            self.problem = str(error)

    def answer(self, timeout=45):
        """The answer to what it was told; a problem from then on where there is none."""
        if self.problem:
            return None
        try:
            answer = self.read_line(timeout)
        except OSError as error:
            answer, self.problem = "", str(error)
        if answer and answer.startswith("{"):
            self.result = json.loads(answer)
            self.problem = self.result.get("absent")
        elif not answer:
            self.problem = self.error("TIMEOUT" if answer is None else "failed")
        return answer

    def settle_on(self, core):
        """All its threads and children; those to come inherit it."""
        processes = [self.process.pid]
        try:
            for process in processes:
                for thread in os.listdir("/proc/%d/task" % process):
                    os.sched_setaffinity(int(thread), {core})
                    with open("/proc/%d/task/%s/children" % (process, thread), encoding="ascii") as file:
                        processes += [int(child) for child in file.read().split()]
        except OSError as error:
            self.problem = self.problem or str(error)

    def wait_ready(self, until):
        line = self.read_line(max(0.0, until - time.monotonic()))
        if line == "ready":
            return
        if line and line.startswith("{"):
            self.result = json.loads(line)
        self.problem = self.result.get("absent") or self.error("did not start")

    def turn(self):
        self.tell("turn")
        answer = self.answer()
        if answer and not self.problem:
            self.ms.append(float(answer))

    def finish(self):
        """After it was told to end."""
        self.answer()
        self.end()
        if self.process.returncode != 0 and not self.problem:
            self.problem = self.error("status %s" % self.process.returncode)
        self.counts.read_reports(self.folder)

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(120 if not self.problem else 2)  # many at once end slowly on one core
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def error(self, what):
        self.error_file.flush()
        self.error_file.seek(0)
        last = self.error_file.read().decode(errors="replace").strip().splitlines()[-3:]
        return what + "".join("; " + line for line in last)


class Program(TurnTaker):
    def __init__(self, workload, variant, folder, index, floor=None):
        folder = os.path.join(folder, str(index))
        setting = dict(PINNED_SETTING if workload == "pinned" else SETTING) if variant in ("shim", "both", "counted") else None
        # With a setting there is a report, but the timed runs are to do without.
        env = compare.environment(setting, os.environ.get("RMMSHIM_LIBRARY", ""), os.path.join(folder, "report.%p.json"))
        if variant in ("shim", "both"):
            del env["RMM_STATISTICS"]
        if variant == "floor":
            env["LD_PRELOAD"] = ":".join(filter(None, [floor, env.get("LD_PRELOAD")]))
        if variant not in ("own", "both") and workload in TORCH:
            env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        command = [sys.executable, os.path.abspath(__file__), "--child", workload] + (
            ["--own"] if variant in ("own", "both") else [])
        super().__init__(variant, folder, command, env, setting)


def end_all(programs):
    """Also those that an error left running."""
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()
        program.error_file.close()


def take_turns_between(programs, turns, core, seconds=math.inf):
    """They warm up side by side, and then take turns on the same core, in each place equally often: who comes first
    finds the GPU and the caches as the last one left them.  No round begins after so many seconds of turns."""
    for program in programs:
        program.tell("go")
    for program in programs:
        program.answer()
        program.settle_on(core)
    begin = time.monotonic()
    for i in range(turns):
        if time.monotonic() > begin + seconds:
            break
        first = i // 2 % len(programs)
        order = programs[first:] + programs[:first]
        for program in order if i % 2 == 0 else reversed(order):
            program.turn()
    for program in programs:
        program.tell("end")
    for program in programs:
        program.finish()


def run_by_turns(title, groups, core):
    """groups: of programs, with their turns and the seconds of turns.  All are started; each group takes its turns when
    the one before has ended."""
    programs = [program for group, _, _ in groups for program in group]
    begin = time.monotonic()
    try:
        for program in programs:
            program.wait_ready(begin + 150)
        ready = time.monotonic()
        for group, turns, seconds in groups:
            take_turns_between(group, turns, core, seconds)
    finally:
        end_all(programs)
    print("%s: %d processes are ready after %.0f s; %d turns of each after %.0f s" % (
        title, len(programs), ready - begin, min(len(program.ms) for program in groups[0][0]), time.monotonic() - begin),
        flush=True)


def figures_of(processes):
    """processes: the kind of each, and its turns' times.  Returns, by kind, a figure of each process: the median of what
    its turns differ by from those of the others in the same round, as logarithms.  The machine may get half as fast from
    one round to the next."""
    rounds = range(min((len(ms) for _, ms in processes), default=0))
    middles = [statistics.median(math.log(ms[i]) for _, ms in processes) for i in rounds]
    figures = {}
    for kind, ms in processes if rounds else []:
        figures.setdefault(kind, []).append(statistics.median(math.log(ms[i]) - middles[i] for i in rounds))
    return figures


def turns_of(programs):
    return [(program.kind, program.ms) for program in programs if program.ms and not program.problem]


def ratio_and_interval(figures, one, other):
    """Of the means of the figures of two kinds, and its 95 % interval; None with fewer than two processes of each."""
    one, other = figures.get(one, []), figures.get(other, [])
    count = min(len(one), len(other))
    if count < 2:
        return None
    middle = statistics.mean(other) - statistics.mean(one)
    reach = STUDENT_T[count] * math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))
    return tuple(math.exp(value) for value in (middle, middle - reach, middle + reach))


def show_ratio(figure):
    return "%.3f (%.3f to %.3f)" % figure if figure else "-"


def growth_step(held_bytes):
    return max(2 * MIB, (held_bytes // 8 + 2 * MIB - 1) // (2 * MIB) * 2 * MIB)


def median_ms(programs):
    """Of all turns of all these programs."""
    times = sorted(ms for program in programs for ms in program.ms)
    return times[len(times) // 2] if times else None


def show_ms(programs):
    ms = median_ms(programs)
    return "%.3f" % ms if ms else "-"


def calls_text(run):
    """What a thousand allocations cost beside their own instructions: fences, the driver's calls for memory, waits."""
    allocations = run.counter("statistics", "allocations")
    if not allocations:
        return "-"
    calls = (run.counter("reuse", "epochs_sealed"),
             (run.driver_allocations or 0) + (run.counter(None, "driver_frees") or 0), run.counter("reuse", "waits"))
    return ", ".join("%.1f" % (1000 * (count or 0) / allocations) for count in calls)


def judge(workload, programs, rows, wrong):
    own, none, shim, counted = ([program for program in programs if program.kind == kind]
                                for kind in ("own", "none", "shim", "counted"))
    for program in programs:
        if program.problem:
            wrong.append("%s, %s: %s" % (TITLES[workload], program.kind, program.problem))
    figures = figures_of(turns_of(program for program in programs if program.kind not in APART))
    against_none = "%.2f" % (median_ms(none) / median_ms(own)) if median_ms(none) and median_ms(own) else "-"
    rows.append([TITLES[workload], show_ms(own), show_ms(none), show_ms(shim), against_none])
    for kind, slow in (("shim", "slower than with its own allocator"), ("floor", None),
                       ("both", "its own allocator is slower with rmmshim beneath")):
        ratio = ratio_and_interval(figures, "own", kind)
        rows[-1].append(show_ratio(ratio))
        if slow and ratio and ratio[1] > SLOWER:
            wrong.append("%s: %s: %s times" % (TITLES[workload], slow, rows[-1][-1]))
    peak = held = None
    if counted and not counted[0].problem:
        run = counted[0].counts
        peak, held = run.counter("statistics", "peak"), run.counter("pool", "held_peak")
        if peak is None or held is None:
            wrong.append("%s: %s" % (TITLES[workload], run.report_error or "the report lacks peak or held_peak"))
        elif held > peak + POOL_BYTES + growth_step(held):
            wrong.append("%s: holds %s for a peak of %s live" % (TITLES[workload], compare.size(held), compare.size(peak)))
        rows[-1] += [compare.size(peak), compare.size(held),
                     compare.size(peak + POOL_BYTES + growth_step(held)) if peak and held else "-"]
    else:
        rows[-1] += ["-"] * 3
    rows[-1].append(calls_text(counted[0].counts) if counted and not counted[0].problem else "-")
    first = own[0].result if own else {}
    rows[-1] += [compare.size(first.get("live") or None), compare.size(first.get("reserved") or None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TORCH + CUPY), metavar="WORKLOAD,...")
    parser.add_argument("--processes", type=int, default=4, choices=STUDENT_T, metavar="N", help="of each kind")
    parser.add_argument("--chunks", type=int, default=24, metavar="N", help="turns of each process, at most")
    parser.add_argument("--seconds", type=float, default=30, metavar="N", help="of turns for each workload, at most")
    parser.add_argument("--floor", metavar="LIBRARY", help="built of tests/bench/floor.c: runs take turns with it too")
    parser.add_argument("--both", action="store_true", help="also the framework's own allocator with rmmshim beneath")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.own)
    workloads = args.only.split(",")
    for workload in workloads:
        if workload not in TITLES:
            parser.error("unknown workload %s" % workload)
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77

    kinds = ["own", "shim"] + (["floor"] if args.floor else []) + (["both"] if args.both else [])
    programs, absent, wrong = [], set(), []
    rows = [["ms/iteration", "own allocator", "without", "without, rmmshim", "without/own", "rmmshim/own (95 %)", "floor/own",
             "own and rmmshim/own",
             "peak live", "held", "may hold", "fences, driver calls, waits of 1000", "own: peak live", "own: reserved"]]
    begin = time.monotonic()
    cores = itertools.cycle(sorted(os.sched_getaffinity(0))[1:] or [0])
    with tempfile.TemporaryDirectory(prefix="framework-speed-") as folder:
        for workload in workloads:
            compared, apart = ([Program(workload, kind, folder, "%s-%s-%d" % (workload, kind, index), args.floor)
                                for index in range(count) for kind in of]
                               for of, count in ((kinds, args.processes), (APART, 1)))
            # Those apart are for figures that need no more than a few turns.
            run_by_turns(TITLES[workload], [(compared, args.chunks, args.seconds),
                                            (apart, max(3, args.chunks // 4), args.seconds)], next(cores))
            programs += [(workload, program) for program in compared + apart]
            if any("absent" in program.result for program in compared):
                absent.add(workload)
                print("%s: not there" % TITLES[workload])
            else:
                judge(workload, compared + apart, rows, wrong)
    print("\nmedians of all turns; each of %d processes is one figure of a ratio\n" % args.processes +
          compare.text_table(rows, right=range(1, len(rows[0]))))
    for line in wrong:
        print("FAILED: " + line)
    print("speed: %s, %.0f s" % ("%d wrong" % len(wrong) if wrong else "all well", time.monotonic() - begin))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([{"workload": workload, "variant": program.kind, "ms": program.ms, "result": program.result,
                        "problem": program.problem, "report": program.counts.report} for workload, program in programs],
                      file, indent=1)
    if absent == set(workloads):
        return 77
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
