# SPDX-License-Identifier: Apache-2.0
"""Tools beside us on a GPU: compute-sanitizer, Nsight Systems and Nsight Compute, CUPTI in PyTorch's profiler,
heaptrack, other preloaded libraries, AddressSanitizer.  A program prints under a tool what it prints without, and
the tool sees with us what it sees without us.  Prints one table.

PROGRAMS is what tests/samples/build-real made, RMMSHIM_LIBRARY the library, HEAPTRACK_PRELOAD
libheaptrack_preload.so where no heaptrack is installed.  A tool that is not there is left out; one that does not
work without rmmshim either is said and does not count.  Exit status: 1 when something went wrong, 77 where there is
no GPU.  RMMSHIM_DRY_RUN=1 runs on the device in host memory, with what tools there are."""
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import compare

POOL = {"RMM_POOL_SIZE": "256MiB"}
WAIT = dict(POOL, RMM_FREE="wait")
OWN = {"RMM_RESOURCE": "cuda"}  # what rmmshim(7) advises under compute-sanitizer
VIRTUAL = {"RMM_RESOURCE": "virtual"}
POISON = {"RMM_RESOURCE": "poison(pool(cuda))", "RMM_FREE": "wait"}
TIMEOUT = 45

MIX = ["memory_mix_static", "--rounds", "60", "mix", "reuse"]
MIX_SHARED = ["memory_mix_shared"] + MIX[1:]
VECTORS = [[name, "10"] for name in ("vector_runtime_static", "vector_runtime_shared", "vector_driver")]


def find(name, *patterns):
    """A tool: on PATH, beside the toolkit, or where NVIDIA's packages put it."""
    toolkit = subprocess.run([os.path.join(gpu_common.HERE, "..", "..", "scripts", "find-cuda"), "home"],
                             stdout=subprocess.PIPE, check=False).stdout.decode().strip()
    places = [os.path.join(toolkit, "bin", name)] if toolkit else []
    for pattern in ("/usr/local/cuda*/bin/" + name,) + patterns:
        places += sorted(glob.glob(pattern), reverse=True)
    return shutil.which(name) or next((place for place in places if os.access(place, os.X_OK)), None)


class Tool:
    """How a program is run under it, and what it saw: equal texts say that it saw the same, None that it
    saw nothing."""
    name = ""
    path = None

    def command(self, program, folder):
        return program

    def environment(self, setting, folder):
        return {}

    def saw(self, result, folder):
        return ""

    def misses(self, result, setting):
        """What should have been said, or None."""
        return None


class ComputeSanitizer(Tool):
    def __init__(self, *options, pattern="ERROR SUMMARY: .*|LEAK SUMMARY: .*"):
        self.name = " ".join(("compute-sanitizer",) + options)
        self.path = find("compute-sanitizer", "/usr/local/cuda*/compute-sanitizer/compute-sanitizer")
        self.options, self.pattern = list(options), pattern

    def command(self, program, folder):
        return [self.path] + self.options + ["--log-file", os.path.join(folder, "log")] + program

    def saw(self, result, folder):
        found = re.findall(self.pattern, read(os.path.join(folder, "log")))
        return "; ".join(sorted(found)) if found else None

    def misses(self, result, setting):
        said = result.stderr.count(b"compute-sanitizer sees a pool as one allocation")
        wanted = 0 if setting == OWN else 1
        if said != wanted:
            return "its line was said %d times, not %d" % (said, wanted)
        return "poison" if setting == POISON and b"wrote past the block's end" not in result.stderr else None


class LeakCheck(ComputeSanitizer):
    """Of what it saw with us, less what we keep in each context (rmmshim(7)): two blocks of 512 bytes."""

    def __init__(self):
        super().__init__("--tool", "memcheck", "--leak-check", "full")

    def saw(self, result, folder):
        seen = super().saw(result, folder)
        ours = "ERROR SUMMARY: 2 errors; LEAK SUMMARY: 1024 bytes leaked in 2 allocations"
        return "ERROR SUMMARY: 0 errors; LEAK SUMMARY: 0 bytes leaked in 0 allocations" if seen == ours and result.setting \
            else seen


class NsightSystems(Tool):
    name = "nsys"

    def __init__(self):
        self.path = find("nsys", "/opt/nvidia/nsight-*/*/host/target-linux-*/nsys", "/opt/nvidia/nsight-*/*/bin/nsys")

    def command(self, program, folder):
        return [self.path, "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "-o",
                os.path.join(folder, "report")] + program

    def saw(self, result, folder):
        # The part of it that Nsight Compute brings makes no .nsys-rep of its .qdstrm.
        files = [path for path in glob.glob(os.path.join(folder, "report.*")) if os.path.getsize(path)]
        return "a report" if files else None


class NsightCompute(Tool):
    name = "ncu"

    def __init__(self):
        self.path = find("ncu", "/usr/local/cuda*/nsight-compute*/ncu", "/opt/nvidia/nsight-compute/*/ncu")

    def command(self, program, folder):
        return [self.path, "--clock-control", "none", "--launch-count", "8", "--log-file",
                os.path.join(folder, "log")] + program

    def saw(self, result, folder):
        kernels = re.findall(r'Profiling "([^"]*)"', read(os.path.join(folder, "log")))
        return "kernels " + " ".join(kernels) if kernels else None


class Profiler(Tool):
    """It is in the program, which prints what it saw."""
    name, path = "CUPTI (torch.profiler)", sys.executable

    def saw(self, result, folder):
        lines = result.stdout.decode(errors="replace").splitlines()
        return "%d names" % sum(not line.startswith("loss") for line in lines)


class Preloaded(Tool):
    """Another library, before us or after."""

    def __init__(self, name, path, first):
        self.name = "%s, %s us" % (name, "before" if first else "after")
        self.path, self.first = path, first

    def environment(self, setting, folder):
        both = [self.path] + ([] if setting is None else [os.environ["RMMSHIM_LIBRARY"]])
        return {"LD_PRELOAD": ":".join(both if self.first else both[::-1]),
                "BESIDE_COUNTS": os.path.join(folder, "counts")}

    def saw(self, result, folder):
        return "it was loaded" if read(os.path.join(folder, "counts")) else None


class Heaptrack(Preloaded):
    def __init__(self, first):
        path = os.environ.get("HEAPTRACK_PRELOAD")
        if not path and shutil.which("heaptrack"):
            beside = os.path.join(os.path.dirname(os.path.realpath(shutil.which("heaptrack"))), "..", "lib*")
            path = next(iter(glob.glob(os.path.join(beside, "heaptrack", "libheaptrack_preload.so"))), None)
        super().__init__("heaptrack", path, first)

    def environment(self, setting, folder):
        return dict(super().environment(setting, folder), DUMP_HEAPTRACK_OUTPUT=os.path.join(folder, "heap"))

    def saw(self, result, folder):
        # Lines of "+" are allocations; a library that could not be loaded writes none.
        return "allocations" if re.search(r"^\+ ", read(os.path.join(folder, "heap")), re.M) else None


class AddressSanitizer(Tool):
    """It is the program's other build.  Its runtime comes before us, or is told that it does not."""

    def __init__(self, first):
        built = os.path.join(os.environ["PROGRAMS"], "vector_runtime_asan")
        self.name, self.first = "AddressSanitizer, %s us" % ("before" if first else "after"), first
        self.path = built if os.path.exists(built) else None

    def command(self, program, folder):
        return [self.path] + program[1:]

    def environment(self, setting, folder):
        runtime = subprocess.run([os.environ.get("CC", "cc"), "-print-file-name=libasan.so"], stdout=subprocess.PIPE,
                                 check=False).stdout.decode().strip()
        preload = [] if setting is None else [runtime] * self.first + [os.environ["RMMSHIM_LIBRARY"]]
        # CUDA maps what lies in the gap of its shadow memory; and keeps memory to its end.
        return {"LD_PRELOAD": ":".join(preload),
                "ASAN_OPTIONS": "protect_shadow_gap=0:detect_leaks=0:verify_asan_link_order=%d" % self.first}


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def sanitizer_cases():
    memcheck = ComputeSanitizer("--tool", "memcheck")
    for program in [MIX, MIX_SHARED] + VECTORS:
        yield Case(memcheck, program, [POOL, WAIT, OWN, VIRTUAL])
    for tool in ("initcheck", "racecheck"):
        yield Case(ComputeSanitizer("--tool", tool), VECTORS[0], [POOL, OWN])
    # A pool keeps what it has to the end: that is not the program's.
    yield Case(LeakCheck(), VECTORS[2], [OWN], blind=[POOL])
    # Not the summary: calls that fail after it count in that too.
    yield Case(ComputeSanitizer("--tool", "memcheck", pattern="Invalid __global__ write of size .*"),
               ["out_of_bounds"], [OWN], blind=[POOL, POISON])


def nsys_cases():
    for program in VECTORS[1:] + [MIX_SHARED]:
        yield Case(NsightSystems(), program, [POOL, OWN])


def ncu_cases():
    for program in VECTORS[1:]:
        yield Case(NsightCompute(), program, [POOL, VIRTUAL])


def cases_inside():
    """Tools that are in the program itself."""
    yield Case(Profiler(), [sys.executable, os.path.join(gpu_common.HERE, "torch_profile.py")], [POOL, WAIT])
    for first in (True, False):
        for program in VECTORS + [MIX]:
            yield Case(Heaptrack(first), program, [{}, POOL, WAIT])
        for name in ("malloc", "dlsym", "saver"):
            library = os.path.join(os.environ["PROGRAMS"], "libbeside_%s.so" % name)
            # One that hooks dlsym before us hides us (rmmshim(7), limits).
            settings = [{}] if name == "dlsym" and first else [{}, POOL]
            yield Case(Preloaded("beside_" + name, library, first), VECTORS[1], settings)
        yield Case(AddressSanitizer(first), VECTORS[1], [{}, POOL, WAIT])


class Case:
    """A program under a tool: without us, then under each setting.  Under the blind ones the tool cannot see the
    same; what it saw is shown."""

    def __init__(self, tool, program, settings, blind=()):
        self.tool, self.settings, self.blind = tool, settings + list(blind), blind
        self.name = os.path.basename(program[-1 if program[0] == sys.executable else 0])
        self.program = program if program[0] == sys.executable else [
            os.path.join(os.environ["PROGRAMS"], program[0])] + program[1:]
        self.rows, self.said = [], []

    def one(self, setting):
        with tempfile.TemporaryDirectory(prefix="rmmshim-tool-") as folder:
            result = gpu_common.run(self.tool.command(self.program, folder), setting, TIMEOUT,
                                    self.tool.environment(setting, folder))
            return result, self.tool.saw(result, folder)

    def row(self, result, verdict, note):
        self.rows.append([self.tool.name, self.name, result.name, verdict, "%.1f" % result.seconds, note or ""])
        if verdict not in ("ok", "left out"):
            self.said += ["%s, %s, %s: %s, status %s" % (self.tool.name, self.name, result.name, verdict,
                                                         result.status)]
            self.said += gpu_common.tail(result, 8)

    def play(self):
        alone = gpu_common.run(self.program, None, TIMEOUT)
        if not self.tool.path or alone.status == 77:
            self.row(alone, "left out", "not there")
            return self
        if alone.status != 0:
            self.row(alone, "FAILED: without a tool", None)
            return self
        base, seen = self.one(None)
        if base.status is None or alone.stdout not in base.stdout or seen is None:
            self.row(base, "not even without rmmshim", seen)
            return self
        self.row(base, "ok", seen)
        for setting in self.settings:
            result, seen_with_us = self.one(setting)
            wrong = [text for good, text in (
                (result.status == base.status, "status"),
                (alone.stdout in result.stdout, "output"),
                (seen_with_us == seen or setting in self.blind, "saw"),
                (result.allocations or not setting, "served nothing"),
            ) if not good] + list(filter(None, [self.tool.misses(result, setting)]))
            self.row(result, "FAILED: " + ", ".join(wrong) if wrong else "ok", seen_with_us)
        return self


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    rows = [["tool", "program", "setting", "result", "seconds", "what it saw"]]
    sanitizer = list(sanitizer_cases())
    # Two that profile kernels cannot run at a time.
    lanes = [sanitizer[0::3], sanitizer[1::3], sanitizer[2::3], nsys_cases(), ncu_cases(), cases_inside()]
    with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
        for cases in pool.map(lambda lane: [case.play() for case in lane], lanes):
            for case in cases:
                rows += case.rows
                print("\n".join(case.said), end="\n" if case.said else "", flush=True)
    print(compare.text_table(rows, right=(4,)))
    return 1 if any(row[3].startswith("FAILED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
