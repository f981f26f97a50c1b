# SPDX-License-Identifier: Apache-2.0
"""What rmmshim-recipes(7) and the manual of the Python module show, on the GPU, with the rmmshim that is installed: run,
torchrun, Dask, the plug-in of pytest, the magic of notebooks.

RMMSHIM is the command, by default the one on PATH; `import rmmshim` must find the module.  Exit status: 1 when something is
wrong, 77 where there is no GPU.  A recipe whose packages are not installed is printed as not run.  RMMSHIM_DRY_RUN=1 runs on
the device in host memory, without PyTorch."""
import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import gpu_common
from gpu_common import HERE

ROOT = os.path.join(HERE, "..", "..")
TOOL = os.environ.get("RMMSHIM", "rmmshim")
PAGE = os.path.join(ROOT, "src", "tool", "man", "rmmshim-recipes.7.md")
TRAIN = os.path.join(ROOT, "tests", "integration", "recipe_train.py")
PATIENCE_SECONDS = 120

# Four workers of 100 MiB each.
CLIENT = """
import sys
import recipe_train
from distributed import Client
with Client(sys.argv[1]) as client:
    client.wait_for_workers(4)
    print(*sorted(client.run(recipe_train.take, sys.argv[2], 4).values()))
"""
CLUSTER = """
import sys
import recipe_train
from dask_workers import limited_cluster
from distributed import Client
if __name__ == "__main__":
    with limited_cluster(sys.argv[1], 4) as cluster, Client(cluster) as client:
        print(*sorted(client.run(recipe_train.take, sys.argv[2], 4).values()))
"""

TESTS = """
import pytest, torch
MIB = 1 << 20
KEPT = []

@pytest.mark.gpu_memory("64MiB")
def test_within():
    torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")

@pytest.mark.gpu_memory("64MiB")
def test_above():
    torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")

def test_leaks():
    KEPT.append(torch.empty(24 * MIB, dtype=torch.uint8, device="cuda"))

def test_limit():
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
"""

CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "rmmshim.notebook")
shell.run_cell("import torch")
shell.run_cell("%%rmmshim\\nx = torch.empty(300 << 20, dtype=torch.uint8, device='cuda')")
"""


class Wrong(Exception):
    pass


class Absent(Exception):
    pass


def expect(condition, said):
    if not condition:
        raise Wrong(repr(said))


def needs(*modules):
    for module in modules:
        if not importlib.util.find_spec(module):
            raise Absent("no " + module)


def command_of_the_page(*parts):
    """The one command of the page that begins with the first part and has the others."""
    with open(PAGE, encoding="utf-8") as file:
        found = sorted({line for line in file.read().replace("\\\n", "").splitlines()
                 if line.startswith(parts[0]) and all(part in line for part in parts)})
    expect(len(found) == 1, (parts, found))
    return found[0]


class Recipes:
    def __init__(self, folder):
        self.folder = folder
        shutil.copy(TRAIN, folder)
        shutil.copy(os.path.join(ROOT, "scripts", "packaging", "recipes", "dask_workers.py"), folder)
        os.mkdir(self.path("bin"))
        os.symlink(shutil.which(TOOL), self.path("bin/rmmshim"))
        for name, module in (("dask", "dask"), ("torchrun", "torch.distributed.run")):
            self.write("bin/" + name, "#!/bin/sh\nexec %s -m %s \"$@\"\n" % (sys.executable, module))
            os.chmod(self.path("bin/" + name), 0o755)
        self.write("bin/python3", "#!/bin/sh\nexec %s \"$@\"\n" % sys.executable)
        os.chmod(self.path("bin/python3"), 0o755)
        self.environment = dict(os.environ, PATH=self.path("bin") + ":" + os.environ["PATH"], HOME=folder, COLUMNS="200",
                                PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="2", PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def said_folder(self):
        """An empty one, where the processes of a recipe tell each other what they got."""
        shutil.rmtree(self.path("said"), ignore_errors=True)
        os.mkdir(self.path("said"))
        return self.path("said")

    def shell(self, line):
        done = subprocess.run(["sh", "-c", line], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              timeout=PATIENCE_SECONDS, check=False)
        return done.returncode, done.stdout, done.stderr

    @contextlib.contextmanager
    def started(self, line):
        with open(self.path("output"), "ab") as output:
            process = subprocess.Popen(["sh", "-c", "exec " + line], env=self.environment, cwd=self.folder,
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # ---- recipes ----

    def run(self):
        train = "recipe_train.py %s 1" % self.said_folder()
        line = command_of_the_page("rmmshim run --limit 8GiB python3").replace("train.py", train)
        self.answers(line, ["allocated"])
        self.answers(line.replace("8GiB", "64MiB"), ["refused"])

    def torchrun(self):
        needs("torch")
        train = "--no-python python3 recipe_train.py %s 4" % self.said_folder()
        line = command_of_the_page("rmmshim ", "--limit-job 16GiB torchrun").replace("train.py", train)
        self.answers(line, ["allocated"] * 4)
        self.said_folder()
        self.answers(line.replace("16GiB", "250MiB"), ["allocated"] * 2 + ["refused"] * 2)
        each = command_of_the_page("torchrun ", "--no-python")
        self.said_folder()
        self.answers(each.replace("train.py", "recipe_train.py %s 4" % self.path("said")).replace("8GiB", "64MiB"), ["refused"] * 4)

    def answers(self, line, expected):
        status, said, complained = self.shell(line)
        words = sorted(word for word in said.split() if word in ("allocated", "refused"))
        expect((status, words) == (0, expected), (line, status, said[-500:], complained[-1000:]))

    def dask(self):
        needs("dask", "distributed")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        address = "tcp://127.0.0.1:%d" % port
        line = command_of_the_page("rmmshim ", "dask worker").replace("16GiB", "250MiB").replace("tcp://scheduler:8786", address)
        self.write("client.py", CLIENT)
        self.write("cluster.py", CLUSTER)
        with self.started("dask scheduler --no-dashboard --host 127.0.0.1 --port %d" % port), \
                self.started(line + " --no-dashboard"):
            self.answers("python3 client.py %s %s" % (address, self.said_folder()), ["allocated"] * 2 + ["refused"] * 2)
        for limit, answer in (("120MiB", "allocated"), ("64MiB", "refused")):
            self.answers("python3 cluster.py %s %s" % (limit, self.said_folder()), [answer] * 4)

    def pytest(self):
        needs("pytest", "torch")
        self.write("test_memory.py", TESTS)
        status, said, complained = self.shell(
            "rmmshim run --quiet --pool-size 0 -- python3 -m pytest -p rmmshim.pytest_plugin -p no:cacheprovider "
            "--strict-markers -rA --rmmshim-limit 512MiB test_memory.py")
        expect(status == 1, (status, said[-1500:], complained[-500:]))
        for text in ("PASSED test_memory.py::test_within", "PASSED test_memory.py::test_leaks", "PASSED test_memory.py::test_limit",
                     "FAILED test_memory.py::test_above", "100663296 bytes of GPU memory at once, more than gpu_memory('64MiB')",
                     "test_memory.py::test_leaks: 25165824 bytes on device 0"):
            expect(text in said, (text, said[-1500:]))

    def notebook(self):
        needs("IPython", "torch")
        self.write("cells.py", CELLS)
        status, said, complained = self.shell("rmmshim run --quiet --pool-size 0 -- python3 cells.py")
        expect(status == 0 and re.search(r"rmmshim: device 0: \S+ \S+ in use before, up to 300 MiB more inside", said), (status, said, complained[-500:]))


NAMES = ("run", "torchrun", "dask", "pytest", "notebook")


def main():
    if not gpu_common.has_gpu():
        print("no GPU")
        return 77
    print("%s, %s" % (shutil.which(TOOL), subprocess.run([TOOL, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()))
    wrong = 0
    for name in NAMES:
        with tempfile.TemporaryDirectory(prefix="recipes-") as folder:
            recipes = Recipes(folder)
            try:
                getattr(recipes, name)()
                print("%s: as the page says" % name, flush=True)
            except Absent as reason:
                print("%s: not run: %s" % (name, reason), flush=True)
            except (Wrong, OSError, subprocess.TimeoutExpired) as error:
                wrong += 1
                print("FAILED: %s: %s" % (name, error), flush=True)
                if os.path.exists(os.path.join(folder, "output")):
                    with open(os.path.join(folder, "output"), encoding="utf-8", errors="replace") as file:
                        print(file.read()[-1500:])
    print("recipes: %s" % ("%d wrong" % wrong if wrong else "all well"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
