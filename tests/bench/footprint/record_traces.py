#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records traces (trace.h) of programs on a GPU: each runs under rmmshim with the driver's own
memory and an event log, which becomes DIRECTORY/NAME.trace, to be committed to tests/bench/traces.

    record_traces.py DIRECTORY [--only NAME,...] [--jobs N]

RMMSHIM_LIBRARY is the library.  Exit status: 1 when a program failed, 77 where none could run."""
import argparse
import concurrent.futures
import importlib.metadata
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
GPU = os.path.join(HERE, "..", "..", "gpu")
BYTES_MAX = 208 << 10  # of a file; what is longer is cut

NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# Trace -> what it is, the program, its environment.  At most eight.  Not JAX: since 0.11 it maps each buffer
# itself (cuMemCreate), XLA_PYTHON_CLIENT_ALLOCATOR=platform's too; the log has its libraries' dozen workspaces.
PROGRAMS = {
    "transformer": ("PyTorch trains a transformer in bfloat16, lengths and batches changing",
                    ["trace_programs.py", "transformer"], NO_CACHE),
    "inference": ("PyTorch generates text, caches of keys and values growing", ["trace_programs.py", "inference"],
                  NO_CACHE),
    "mlp": ("PyTorch trains a wide network on changing batches", ["trace_programs.py", "mlp"], NO_CACHE),
    "small_transformer": ("PyTorch trains a small transformer, lengths changing",
                          [os.path.join(GPU, "torch_transformer.py")], NO_CACHE),
    "expression": ("CuPy array expressions, lengths changing", ["trace_programs.py", "expression"], {}),
    "columns": ("CuPy: tables of columns filtered, sorted, joined, grouped and concatenated",
                ["trace_programs.py", "columns"], {}),
}
MODULES = {"expression": "cupy", "columns": "cupy"}  # the others: torch


def output_of(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return ""
    return done.stdout.decode(errors="replace").strip()


def device_name():
    names = output_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return names.splitlines()[0] if names else "unknown GPU"


def version_of(module):
    for name in (module, module + "-cuda13x", module + "-cuda12x"):
        try:
            return "%s %s" % (module, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            pass
    return module


def cut(path):
    """A long trace loses its end: what is live then is live to the end."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if len(text) > BYTES_MAX:
        notes = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
        body = text[len(notes):][:BYTES_MAX - len(notes) - 100]
        with open(path, "w", encoding="utf-8") as file:
            file.write(notes + "# cut off here: the beginning alone\n" + body[:body.rindex("\n") + 1])


def record(name, directory, folder, device):
    """None, or what went wrong; "absent: ..." where a framework is not there."""
    what, command, environment = PROGRAMS[name]
    log = os.path.join(folder, name + ".csv")
    env = {key: value for key, value in os.environ.items() if not key.startswith("RMM_")}
    env.update(environment, RMM_RESOURCE="cuda", RMM_LOG=log, LD_PRELOAD=os.environ["RMMSHIM_LIBRARY"])
    script = [sys.executable, os.path.join(HERE, command[0])] + command[1:]
    try:
        done = subprocess.run(script, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "no end after 120 s"
    said = done.stderr.decode(errors="replace").strip()[-300:]
    if done.returncode == 77:
        return "absent: " + said
    if done.returncode != 0 or not os.path.exists(log):
        return "status %d: %s" % (done.returncode, said)
    path = os.path.join(directory, name + ".trace")
    what += " (%s)" % " ".join([os.path.basename(command[0])] + command[1:])
    convert = [sys.executable, os.path.join(HERE, "trace_from_log.py"), log, path, "--note", what, "--note",
               "made on %s with %s: every allocation the driver's own" % (device, version_of(MODULES.get(name, "torch")))]
    done = subprocess.run(convert, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(done.stdout.decode().strip(), flush=True)
    if done.returncode != 0:
        return "the log is no trace"
    cut(path)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--only", default=",".join(PROGRAMS), metavar="NAME,...")
    parser.add_argument("--jobs", type=int, default=4, metavar="N")
    args = parser.parse_args()
    names = args.only.split(",")
    for name in names:
        if name not in PROGRAMS:
            parser.error("unknown trace %s" % name)
    os.makedirs(args.directory, exist_ok=True)
    device = device_name()
    with tempfile.TemporaryDirectory(prefix="traces-") as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        problems = dict(zip(names, pool.map(lambda name: record(name, args.directory, folder, device), names)))
    for name, problem in problems.items():
        if problem:
            print("%s%s: %s" % ("" if problem.startswith("absent") else "FAILED: ", name, problem))
    if any(problem and not problem.startswith("absent") for problem in problems.values()):
        return 1
    return 77 if all(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
