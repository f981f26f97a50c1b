# SPDX-License-Identifier: Apache-2.0
"""What observing costs a framework: PyTorch without its cache, with rmmshim alone and with statistics, a log,
tracking, a recording, and below `rmmshim run`, by turns on one core.  Prints one table of ratios to rmmshim alone.

    observed_speed.py [--only WORKLOAD,...] [--observers NAME,...] [--processes N] [--turns N] [--seconds N]
                      [--json FILE]

RMMSHIM_LIBRARY is the library, RMMSHIM the command.  Each observer has several processes, and a process counts as one
figure, as framework_speed.py says; the interval of `again`, once more rmmshim alone, shows what the processes' own
differences make.  Exit status: 1 when a program failed, or certainly cost more than the design allows (LIMITS); 77 where there is no GPU or no
framework."""
import argparse
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
import framework_speed
import gpu_common
from gpu_common import compare

TITLES = {"gpt2": "GPT-2 generation, 32 words", "resnet50": "ResNet-50 training, 16 images"}
SETTING = {"RMM_POOL_SIZE": "512MiB"}
OBSERVERS = {"alone": {}, "again": {}, "run": {}, "statistics": {"RMM_STATISTICS": "json:%s/statistics.json"},
             "log": {"RMM_LOG": "%s/log.csv"}, "tracking": {"RMM_TRACKING": "json:%s/tracking.json"},
             "record": {"RMM_RECORD": "%s/recording"},
             "record_sites": {"RMM_RECORD": "%s/recording", "RMM_RECORD_SITES": "all"}}
LIMITS = {"again": 1.01, "run": 1.01, "statistics": 1.01, "log": 1.03, "tracking": 1.15, "record": 1.05,
          "record_sites": 1.15}


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
        folder = os.path.join(folder, "%s-%s-%d" % (workload, observer, index))
        setting = dict(SETTING, **{name: text.replace("%s", folder) for name, text in OBSERVERS[observer].items()})
        env = compare.environment(setting, os.environ["RMMSHIM_LIBRARY"], "")
        if "RMM_STATISTICS" not in setting:
            del env["RMM_STATISTICS"]
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        command = [sys.executable, os.path.abspath(__file__), "--child", workload]
        if observer == "run":
            command = [os.environ["RMMSHIM"], "run", "--quiet", "--"] + command
        super().__init__(observer, folder, command, env, setting)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TITLES), metavar="WORKLOAD,...")
    parser.add_argument("--observers", default=",".join(list(OBSERVERS)[1:]), metavar="NAME,...")
    parser.add_argument("--processes", type=int, default=4, choices=framework_speed.STUDENT_T, metavar="N", help="of each observer")
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
            framework_speed.run_by_turns(workload, [(programs, args.turns, args.seconds)], core)
            absent += [program for program in programs if "absent" in program.result]
            wrong += ["%s, %s: %s" % (TITLES[workload], program.kind, program.problem) for program in programs
                      if program.problem and "absent" not in program.result]
            of_kinds = framework_speed.figures_of(framework_speed.turns_of(programs))
            rows.append([TITLES[workload], framework_speed.show_ms(programs[:1])])
            for name in observers[1:]:
                figure = framework_speed.ratio_and_interval(of_kinds, "alone", name)
                rows[-1].append(framework_speed.show_ratio(figure))
                if figure and figure[1] > LIMITS[name]:
                    wrong.append("%s, %s: %s times, at most %.2f" % (TITLES[workload], name, rows[-1][-1], LIMITS[name]))
            figures += [{"workload": workload, "observer": program.kind, "ms": program.ms} for program in programs]
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
