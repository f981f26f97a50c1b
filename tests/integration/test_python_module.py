# SPDX-License-Identifier: Apache-2.0
"""The Python module (src/python), in programs with and without the library."""
import importlib.util
import json
import os
import re
import sys
import unittest

import support
from support import run

HERE = os.path.dirname(os.path.abspath(__file__))
SCENES = os.path.join(HERE, "python_scenes.py")
MORE = {"PYTHONPATH": os.environ.get("PYTHON_MODULE", os.path.join(HERE, "..", "..", "src", "python")),
        "PYTHONDONTWRITEBYTECODE": "1"}
POOL = {"RMM_POOL_SIZE": "64MiB"}

TESTS = '''
import pytest, python_scenes
python_scenes.start()
from python_scenes import MIB, allocate, free

@pytest.fixture(scope="module")
def wide():
    yield allocate(2 * MIB)

@pytest.fixture
def freed():
    blocks = []
    yield blocks
    for block in blocks:
        free(block)

@pytest.mark.gpu_memory("1MiB")
def test_within(wide, freed):
    freed.append(allocate(MIB))

@pytest.mark.gpu_memory("1MiB")
def test_above():
    free(allocate(MIB + 1))

@pytest.mark.gpu_memory("1MiB")
def test_fails_itself():
    free(allocate(2 * MIB))
    assert False, "its own reason"

def test_leaks():
    allocate(5000)

@pytest.mark.gpu_memory("5 potatoes")
def test_no_size():
    pass

@pytest.mark.gpu_memory
def test_no_argument():
    pass

@pytest.mark.gpu_memory("1MiB", device=7)
def test_no_device():
    pass

def test_limit():
    assert python_scenes.try_allocate(100 * MIB)[0] == 2
'''


WORKERS = '''
import os, pytest, python_scenes
python_scenes.start()

@pytest.mark.parametrize("size", [5000, 6000])
def test_leaks(size):
    python_scenes.allocate(size)

@pytest.mark.skipif("END" not in os.environ, reason="it ends its worker")
def test_ends():
    os._exit(1)
'''


NOTEBOOK = """
import json, sys, nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(source) for source in json.loads(sys.argv[1])]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
for cell in notebook.cells:
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            print(output.text, end="")
        elif output.output_type == "display_data":
            print(*output.data)
        elif output.output_type == "error":
            print(output.ename, output.evalue)
"""
CELLS = [
    "%load_ext rmmshim.notebook\nimport python_scenes\nfrom python_scenes import MIB, allocate, free",
    "%%rmmshim\npython_scenes.start()\nfree(allocate(3 * MIB))\nkept = allocate(MIB)",
    "%rmmshim free(allocate(2 * MIB))",
    "print(_rmmshim['peak_used_bytes'], _rmmshim['before_bytes'])",
    "%%rmmshim --plot\nfree(kept)\nfree(allocate(1500))",
    "%rmmshim",
    "%%rmmshim --kind pinned\nraise KeyError('its own')",
    "%rmmshim --devise 1 x",
]
SAID = """rmmshim: device 0: 0 B in use before, up to 3 MiB more inside, 1 MiB after; allocated 4 MiB in 2 blocks
rmmshim: device 0: 1 MiB in use before, up to 2 MiB more inside, 1 MiB after; allocated 2 MiB in 1 block
2097152 1048576
rmmshim: device 0: 1 MiB in use before, up to 0 B more inside, 0 B after; allocated 1.46 KiB in 1 block
image/png text/plain
rmmshim: device 0, device memory: used 0 B, peak 3 MiB, held 64 MiB
rmmshim: pinned memory of device 0 is not served, so nothing was measured
KeyError 'its own'
ValueError --devise: usage: %rmmshim [--device N] [--kind KIND] [--plot] STATEMENT
"""


def has_modules(*names):
    return all(importlib.util.find_spec(name) for name in names)


class Module(support.Test):
    def scene(self, name, settings, **how):
        result = run([sys.executable, SCENES, name], settings, more=dict(MORE, HOSTCUDA_DEVICES="2"), **how)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.said, [], result)
        return result.stdout

    def test_inactive(self):
        """Not preloaded; preloaded and without settings."""
        said = self.scene("inactive", {}, preload=[])
        self.assertRegex(said, r"^0 rmmshim is not preloaded into this process: start the program with .*\ndone\n$")
        self.assertRegex(self.scene("inactive", {}), r"^\d+ rmmshim does not serve this process: "
                                                     r"`rmmshim doctor \d+` says why\ndone\n$")
        self.assertIn("not preloaded", self.scene("inactive", POOL, preload=[]))

    def test_a_notebook_without_the_library(self):
        for preload in ([], None):
            said = self.scene("inactive_notebook", {}, preload=preload)
            self.assertEqual(said, "rmmshim: not active\n" + 3 * "rmmshim: not active, so nothing was measured\n" + "done\n")

    def active(self, name, settings=None):
        self.assertEqual(self.scene(name, settings or POOL), "done\n")

    def test_statistics(self):
        self.active("statistics")

    def test_limits(self):
        self.active("limits", {"RMM_POOL_SIZE": "0"})

    def test_a_report_has_only_devices_that_there_are(self):
        result = run([sys.executable, SCENES, "limits_of_all"], POOL, more=dict(MORE, HOSTCUDA_DEVICES="2"))
        self.assertEqual((result.status, result.stdout), (0, "done\n"), result)
        self.assertEqual(sorted(set(re.findall(r"device (\d+)", "\n".join(result.said)))), ["0", "1"], result)

    def test_phases(self):
        self.active("phases")
        self.active("early_counters")

    def test_a_suspended_function_is_no_phase(self):
        self.active("suspended")

    def test_resources(self):
        self.active("resources")

    def test_notebook_without_jupyter(self):
        said = self.scene("notebook", POOL).splitlines()
        self.assertEqual(said[0], "rmmshim: this process holds no GPU memory")
        self.assertTrue(said[1].startswith("rmmshim: device 0: 0 B in use before, up to 1000 B more inside, "), said)
        self.assertTrue(said[2].startswith("rmmshim: device 0, device memory: used 1000 B"), said)
        self.assertEqual(said[3], "x: usage: %%rmmshim [--device N] [--kind KIND] [--plot]")

    @unittest.skipUnless(has_modules("ipykernel", "nbclient", "matplotlib"), "there is no Jupyter")
    def test_notebook(self):
        """In a real kernel, which is started by its own Python and inherits the library."""
        more = dict(MORE, PYTHONPATH=MORE["PYTHONPATH"] + ":" + HERE, HOME=self.folder, IPYTHONDIR=self.folder)
        result = run([sys.executable, "-c", NOTEBOOK, json.dumps(CELLS)], POOL, more=more)
        self.assertEqual(result.outcome, (0, SAID), result)

    @unittest.skipUnless(has_modules("pytest"), "pytest is not installed")
    def test_pytest(self):
        path = self.path("test_memory.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(TESTS)
        more = dict(MORE, PYTHONPATH=MORE["PYTHONPATH"] + ":" + HERE, COLUMNS="200")
        command = [sys.executable, "-m", "pytest", "-p", "rmmshim.pytest_plugin", "-p", "no:cacheprovider",
                   "--rootdir", self.folder, "--strict-markers", "-rA", path]
        limited = run(command + ["--rmmshim-limit", "96MiB"], {"RMM_POOL_SIZE": "0"}, more=more, cwd=self.folder)
        self.assertEqual(limited.status, 1, limited)
        for line in ("PASSED test_memory.py::test_within", "PASSED test_memory.py::test_leaks",
                     "PASSED test_memory.py::test_limit", "FAILED test_memory.py::test_above - Failed: the test took "
                     "1048577 bytes of GPU memory at once, more than gpu_memory('1MiB') allows",
                     "FAILED test_memory.py::test_fails_itself - AssertionError: its own reason",
                     "FAILED test_memory.py::test_no_size - Failed: the marker gpu_memory: a size is a number",
                     "FAILED test_memory.py::test_no_argument - Failed: the marker gpu_memory: ",
                     "FAILED test_memory.py::test_no_device - Failed: the marker gpu_memory: ",
                     "GPU memory that tests left behind", "test_memory.py::test_leaks: 5000 bytes on device 0"):
            for part in line.split(" - Failed: "):  # pytest before 7.3 has no reason in its summary
                self.assertIn(part, limited.stdout)
        self.assertEqual(limited.stdout.count(" bytes on device "), 1, limited)
        self.assertEqual(run(command + ["--rmmshim-limit", "8 apples"], POOL, more=more, cwd=self.folder).status, 4)
        inactive = run(command, preload=[], more=more, cwd=self.folder)
        for line in ("PASSED test_memory.py::test_leaks", "FAILED test_memory.py::test_within", "rmmshim: not active",
                     "FAILED test_memory.py::test_above", "so nothing was measured",
                     "FAILED test_memory.py::test_fails_itself - AssertionError: its own reason"):
            self.assertIn(line, inactive.stdout)
        self.assertEqual(run(command + ["--rmmshim-limit", "1MiB"], preload=[], more=more, cwd=self.folder).status, 4)
        # Active, but device memory is the driver's: nothing is measured, though the limit holds.
        unserved = run(command + ["--rmmshim-limit", "96MiB"], {"RMM_PINNED_POOL_SIZE": "0"}, more=more, cwd=self.folder)
        for line in ("PASSED test_memory.py::test_limit", "PASSED test_memory.py::test_leaks",
                     "FAILED test_memory.py::test_within", "FAILED test_memory.py::test_above",
                     "so nothing was measured", "rmmshim: it does not serve device memory here"):
            self.assertIn(line, unserved.stdout)
        self.assertNotIn(" bytes on device ", unserved.stdout)

    @unittest.skipUnless(has_modules("pytest", "xdist"), "pytest-xdist is not installed")
    def test_pytest_workers(self):
        path = self.path("test_workers.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(WORKERS)
        more = dict(MORE, PYTHONPATH=MORE["PYTHONPATH"] + ":" + HERE, COLUMNS="200")
        command = [sys.executable, "-m", "pytest", "-p", "rmmshim.pytest_plugin", "-p", "no:cacheprovider", "-n", "2",
                   "--rootdir", self.folder, path]
        result = run(command, POOL, more=more, cwd=self.folder)
        for size in (5000, 6000):
            self.assertIn("test_workers.py::test_leaks[%d]: %d bytes on device 0" % (size, size), result.stdout, result)
        result = run(command + ["--max-worker-restart=0"], POOL, more=dict(more, END="1"), cwd=self.folder)
        self.assertRegex(result.stdout, r"worker gw\d ended before it could say what its tests left behind", result)


if __name__ == "__main__":
    support.main()
