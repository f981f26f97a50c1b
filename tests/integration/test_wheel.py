# SPDX-License-Identifier: Apache-2.0
"""The wheel that pip makes of this tree: what is in it, and that it works in a fresh virtual environment.

meson sets PACKAGE_PYTHON (of the environment with meson-python that scripts/setup makes), COMPILER, CUDA_INCLUDE,
SOURCE_ROOT and VERSION.  The wheels of a release are made for an older C library, and tried, by scripts/packaging/try."""
import os
import platform
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import support

PYTHON = os.environ["PACKAGE_PYTHON"]
VERSION = os.environ["VERSION"]
EXPECTED = [
    ("data/lib/librmmshim.so", "the library"), ("scripts/rmmshim", "the command"),
    ("data/lib/rmmshim/framework-pools/sitecustomize.py", "what --framework-pools needs"),
    ("data/share/man/man1/rmmshim.1", "a manual page"), ("data/share/man/man7/rmmshim-variables.7", "another"),
    ("data/share/rmmshim/profiles/capped.env", "a profile"), ("data/share/doc/rmmshim/recipes/kubernetes.yaml", "a recipe"), ("purelib/rmmshim/__init__.py", "the module"),
    ("purelib/rmmshim/py.typed", "its types"), ("data/share/zsh/site-functions/_rmmshim", "completion"),
]


def do(*command, **more):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("RMM", "LD_", "MALLOC_", "PYTHON", "PIP_", "VIRTUAL_ENV"))}
    env.update(more, PIP_CONFIG_FILE=os.devnull)
    result = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode:
        raise AssertionError("%s: exit status %d\n%s" % (" ".join(command), result.returncode, result.stdout[-8000:]))
    return result.stdout


def files_below(folder):
    """pip leaves empty folders, and Python its compiled modules of pip itself."""
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names
                  if not (name.endswith(".pyc") and "/pip/" in where))


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        # Unoptimised, as that takes half as long to build.
        do(PYTHON, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", folder.name,
           "-Cbuild-dir=" + os.path.join(folder.name, "build"), "-Csetup-args=-Doptimization=0",
           "-Csetup-args=-Dtoolkit_include=" + os.environ["CUDA_INCLUDE"],
           os.environ["SOURCE_ROOT"], CC=os.environ["COMPILER"],
           PATH=os.path.dirname(PYTHON) + ":" + os.environ["PATH"])
        cls.wheel, = [os.path.join(folder.name, name) for name in os.listdir(folder.name) if name.endswith(".whl")]
        cls.environment = os.path.join(folder.name, "environment")
        do(sys.executable, "-m", "venv", cls.environment)
        cls.before = files_below(cls.environment)
        cls.pip("install", "--no-index", cls.wheel)

    @classmethod
    def pip(cls, *arguments):
        do(cls.bin("python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)

    @classmethod
    def bin(cls, name):
        return os.path.join(cls.environment, "bin", name)

    def rmmshim(self, *arguments, **more):
        path = os.path.dirname(self.bin("")) + ":" + os.environ["PATH"]
        return do(self.bin("rmmshim"), *arguments, **{"PATH": path, **more})

    def test_it_is_for_any_python_3_of_this_machine(self):
        self.assertEqual("rmmshim-%s-py3-none-linux_%s.whl" % (VERSION, platform.machine()),
                         os.path.basename(self.wheel))

    def test_it_has_what_an_installation_has_to_run_programs(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            self.assertIn('rmmshim.pytest_plugin = rmmshim.pytest_plugin', re.sub(
                '"', "", wheel.read("rmmshim-%s.dist-info/entry_points.txt" % VERSION).decode()))
        for name, what in EXPECTED:
            self.assertIn("rmmshim-%s.data/%s" % (VERSION, name), names, what)
        self.assertEqual([], [name for name in names if re.search(r"\.(h|pc|a|md)$|tables", name)])

    def test_the_command_finds_the_library_and_its_files(self):
        library = os.path.realpath(os.path.join(self.environment, "lib/librmmshim.so"))
        self.assertEqual(library + "\n", self.rmmshim("path"))
        self.assertEqual(library + "\n", self.rmmshim("run", "--quiet", "--profile", "capped", "--framework-pools",
                                                      "off", "printenv", "LD_PRELOAD"))
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "man"), "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho \"$1\"\n")
            os.chmod(file.name, 0o755)
            page = os.path.realpath(os.path.join(self.environment, "share/man/man1/rmmshim.1"))
            self.assertEqual(page + "\n", self.rmmshim("help", "commands", PATH=folder + ":/usr/bin:/bin"))

    def test_python_runs_under_it_with_the_module(self):
        text = "import rmmshim; print(rmmshim.is_active(), rmmshim.version(), rmmshim.__file__)"
        active, version, path = self.rmmshim("run", "--quiet", "--pool-size", "1GiB", "python", "-c", text).split()
        self.assertEqual(("True", VERSION), (active, version))
        self.assertTrue(os.path.realpath(path).startswith(os.path.realpath(self.environment)), path)

    def test_a_cuda_program_prints_the_same_under_it(self):
        program = support.program("sample_vector_driver")
        served = self.rmmshim("run", "--quiet", "--pool-size", "1GiB", program, LD_LIBRARY_PATH=support.HOSTCUDA)
        self.assertEqual(do(program, LD_LIBRARY_PATH=support.HOSTCUDA), served)

    def test_uninstalled_it_leaves_no_file(self):
        self.addCleanup(self.pip, "install", "--no-index", self.wheel)
        self.pip("uninstall", "--yes", "rmmshim")
        self.assertEqual(self.before, files_below(self.environment))


if __name__ == "__main__":
    unittest.main()
