# SPDX-License-Identifier: Apache-2.0
"""What observing costs a framework: PyTorch without its cache, with rmmshim alone and with statistics, a log,
tracking, a recording, and below `rmmshim run`, by turns on one core.  Prints one table of ratios to rmmshim alone.

    observed_speed.py [--only WORKLOAD,...] [--observers NAME,...] [--processes N] [--turns N] [--seconds N]
                      [--json FILE]

RMMSHIM_LIBRARY is the library, RMMSHIM the command.  Two processes of the same program differ by up to 3 % for as long
as they live (where their memory lies, how Python hashes), so each observer has several processes, and a process counts
as one figure: by how much its turns differ from the others' of the same round.  The ratio is that of the means of these
figures, with its 95 % interval by Student's t; the interval of `again`, once more rmmshim alone, shows what the processes' own differences make.  Exit
status: 1 when a program failed, or certainly cost more than the design allows (LIMITS); 77 where there is no GPU or no
framework."""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import framework_speed
import gpu_common
from gpu_common import compare

TITLES = {"gpt2": "GPT-2 generation, 32 words", "resnet50": "ResNet-50 training, 16 images"}
SETTING = {"RMM_POOL_SIZE": "512MiB"}
OBSERVERS = {"alone": {}, "again": {}, "run": {}, "statistics": {"RMM_STATISTICS": "json:%s/statistics.json"},
             "log": {"RMM_LOG": "%s/log.csv"}, "tracking": {"RMM_TRACKING": "json:%s/tracking.json"}, "record": {"RMM_RECORD": "%s/recording"},
             "record_sites": {"RMM_RECORD": "%s/recording", "RMM_RECORD_SITES": "all"}}
LIMITS = {"again": 1.01, "run": 1.01, "statistics": 1.01, "log": 1.03, "tracking": 1.15, "record": 1.05,
          "record_sites": 1.15}
# 97.5 %, by N: with 2 N - 2 degrees of freedom
STUDENT_T = {2: 4.303, 3: 2.776, 4: 2.447, 5: 2.306, 6: 2.228, 7: 2.179, 8: 2.145}


def gpt2(torch):
    import transformers
    config = transformers.GPT2Config(n_layer=12, n_embd=768, n_head=12)
    model = transformers.GPT2LMHeadModel(config).cuda().eval()
    words = torch.randint(config.vocab_size - 1, (1, 16), device="cuda")

    def step(_):
        with torch.no_grad():
            model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=32, min_new_tokens=32,
                           do_sample=False, pad_token_id=0)

    return step, 8, 1


def resnet50(torch):
    import torchvision
    model = torchvision.models.resnet50(weights=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images, labels = torch.randn(16, 3, 224, 224, device="cuda"), torch.randint(1000, (16,), device="cuda")

    def step(_):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step, 20, 4


def child(workload):
    try:
        import torch
        print("ready", flush=True)
        if not sys.stdin.readline():
            return 1
        if not torch.cuda.is_available():
            raise ImportError("no CUDA device for PyTorch")
        step, *amounts = {"gpt2": gpt2, "resnet50": resnet50}[workload](torch)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}), flush=True)
        return 77
    framework_speed.take_turns(step, torch.cuda.synchronize, *amounts)
    print(json.dumps({}), flush=True)
    return 0


class Program(framework_speed.TurnTaker):
    def __init__(self, workload, observer, index, folder):
        self.workload, self.observer = workload, observer
        folder = os.path.join(folder, "%s-%s-%d" % (workload, observer, index))
        setting = dict(SETTING, **{name: text.replace("%s", folder) for name, text in OBSERVERS[observer].items()})
        env = compare.environment(setting, os.environ["RMMSHIM_LIBRARY"], "")
        if "RMM_STATISTICS" not in setting:
            del env["RMM_STATISTICS"]
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        command = [sys.executable, os.path.abspath(__file__), "--child", workload]
        if observer == "run":
            command = [os.environ["RMMSHIM"], "run", "--quiet", "--"] + command
        super().__init__(folder, command, env, setting, workload)


def figures_of(programs):
    """By observer, one of each process that went well: the median of what its turns differ by from those of the others
    in the same round, as logarithms.  The machine may get half as fast from one round to the next."""
    well = [program for program in programs if program.ms and not program.problem]
    rounds = range(min((len(program.ms) for program in well), default=0))
    middles = [statistics.median(math.log(program.ms[i]) for program in well) for i in rounds]
    figures = {}
    for program in well:
        figures.setdefault(program.observer, []).append(
            statistics.median(math.log(program.ms[i]) - middles[i] for i in rounds))
    return figures


def ratio_and_interval(one, other):
    """Of as many processes each; None with fewer than two."""
    count = min(len(one), len(other))
    if count < 2:
        return None
    middle = statistics.mean(other) - statistics.mean(one)
    reach = STUDENT_T[count] * math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))
    return tuple(math.exp(value) for value in (middle, middle - reach, middle + reach))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TITLES), metavar="WORKLOAD,...")
    parser.add_argument("--observers", default=",".join(list(OBSERVERS)[1:]), metavar="NAME,...")
    parser.add_argument("--processes", type=int, default=4, choices=STUDENT_T, metavar="N", help="of each observer")
    parser.add_argument("--turns", type=int, default=16, metavar="N", help="turns of each process, at most")
    parser.add_argument("--seconds", type=float, default=45, metavar="N", help="of turns for each workload, at most")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child)
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77

    wrong, absent = [], []
    observers = ["alone"] + args.observers.split(",")
    rows = [["ms/iteration"] + observers]
    figures = []
    core = sorted(os.sched_getaffinity(0))[-1]
    with tempfile.TemporaryDirectory(prefix="observed-speed-") as folder:
        for workload in args.only.split(","):
            programs = [Program(workload, observer, index, folder)
                        for index in range(args.processes) for observer in observers]
            begin = time.monotonic()
            try:
                for program in programs:
                    program.wait_ready(begin + 120)
                ready = time.monotonic()
                framework_speed.take_turns_between(programs, args.turns, core, args.seconds)
                print("%s: %d processes are ready after %.0f s; %d turns of each after %.0f s" % (
                    workload, len(programs), ready - begin, min(len(program.ms) for program in programs),
                    time.monotonic() - begin), flush=True)
            finally:
                framework_speed.end_all(programs)
            absent += [program for program in programs if "absent" in program.result]
            wrong += ["%s, %s: %s" % (TITLES[workload], program.observer, program.problem) for program in programs
                      if program.problem and "absent" not in program.result]
            by_observer = figures_of(programs)
            rows.append([TITLES[workload], framework_speed.show_ms(programs[:1])])
            for name in observers[1:]:
                figure = ratio_and_interval(by_observer.get("alone", []), by_observer.get(name, []))
                rows[-1].append("%.3f (%.3f to %.3f)" % figure if figure else "-")
                if figure and figure[1] > LIMITS[name]:
                    wrong.append("%s, %s: %s times, at most %.2f" % (TITLES[workload], name, rows[-1][-1], LIMITS[name]))
            figures += [{"workload": workload, "observer": program.observer, "ms": program.ms} for program in programs]
    print(compare.text_table(rows, right=range(1, len(rows[0]))))
    for line in wrong:
        print("FAILED: " + line)
    print("observed: %s" % ("%d wrong" % len(wrong) if wrong else "%s not there" % len(absent) if absent else "all well"))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 1 if wrong else 77 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
