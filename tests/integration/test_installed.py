# SPDX-License-Identifier: Apache-2.0
"""What an installation has and where, and that the command finds the rest of it.

usage: test_installed.py BUILD; meson sets SOURCE_ROOT and HOSTCUDA_DIRECTORY."""
import glob
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import support

SOURCE = os.environ["SOURCE_ROOT"]
BUILD = sys.argv.pop()

# Folders below the prefix, and what is in each; LIB is the folder of libraries.
INSTALLED = """
bin: rmmshim
include/rmmshim: rmmshim.h
LIB: librmmshim.so
LIB/pkgconfig: rmmshim.pc
LIB/rmmshim/framework-pools: sitecustomize.py
share/bash-completion/completions: rmmshim
share/doc/rmmshim: rmmshim-resources.7.md rmmshim-variables.7.md rmmshim.1.md rmmshim.3.md rmmshim.7.md
share/fish/vendor_completions.d: rmmshim.fish
share/man/man1: rmmshim.1
share/man/man3: rmmshim.3
share/man/man7: rmmshim-resources.7 rmmshim-variables.7 rmmshim.7
share/rmmshim/profiles: capped.env debug.env fast.env shared.env spill.env
share/zsh/site-functions: _rmmshim
"""
MODULES = ["__init__.py", "notebook.py", "py.typed", "pytest_plugin.py"]


def do(*command, code=0, cwd=None, **more):
    """What a command prints; `more` are environment variables."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("RMM", "LD_", "MALLOC_", "PYTHON", "VIRTUAL_ENV"))}
    env.update(more)
    result = subprocess.run(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=support.ENOUGH_SECONDS, check=False)
    if result.returncode != code:
        raise AssertionError("%s: exit status %d\n%s" % (" ".join(command), result.returncode, result.stdout[-8000:]))
    return result.stdout


def text_of(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def installed(lib):
    rows = [row.split(":") for row in INSTALLED.replace("LIB", lib).split("\n") if row]
    return {"%s/%s" % (folder, name) for folder, names in rows for name in names.split()}


def version():
    return re.search(r"(?m)^  version: '(.*)',$", text_of("meson.build")).group(1)


class Folder(unittest.TestCase):
    def setUp(self):
        # Resolved, as the command prints paths.
        self.folder = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def plan(self, *options, python=sys.executable):
        """Where an installation with these options would have its files."""
        build = tempfile.mkdtemp(dir=self.folder)
        do(shutil.which("meson"), "setup", build, SOURCE, "-Dtoolkit_include=" + os.environ["CUDA_INCLUDE"],
           "-Dtests=false", "-Dpython=enabled", *options, PATH=os.path.dirname(python) + ":" + os.environ["PATH"])
        with open(build + "/meson-info/intro-install_plan.json", encoding="utf-8") as file:
            plan = json.load(file)
        return sorted(file["destination"] for kind in plan.values() for file in kind.values())

    def module_folder(self, *options, python):
        name, = [name for name in self.plan(*options, python=python) if name.endswith("/__init__.py")]
        return name[:-len("/rmmshim/__init__.py")]


class Installed(Folder):
    def setUp(self):
        super().setUp()
        do("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", self.folder)
        self.command, = glob.glob(self.folder + "/**/bin/rmmshim", recursive=True)
        self.prefix = self.command[:-len("/bin/rmmshim")]
        self.library, = glob.glob(self.prefix + "/lib*/**/librmmshim.so", recursive=True)

    def test_everything_is_there_and_nothing_else(self):
        lib = os.path.dirname(os.path.relpath(self.library, self.prefix))
        found = {os.path.relpath(os.path.join(where, name), self.prefix) for where, _, names in os.walk(self.folder) for name in names
                 if not name.endswith(".pyc")}
        modules = {name for name in found if re.search(r"/(site|dist)-packages/rmmshim/", name)}
        self.assertEqual(sorted(installed(lib)), sorted(found - modules))
        if modules:  # a build without a Python has none
            self.assertEqual(MODULES, sorted(map(os.path.basename, modules)))

    def test_path_prints_the_library(self):
        self.assertEqual(self.library + "\n", do(self.command, "path"))
        os.symlink(self.command, self.folder + "/link")  # as pipx makes them
        self.assertEqual(self.library + "\n", do(self.folder + "/link", "path"))
        self.assertEqual(self.library + "\n", do(self.command, "run", "--quiet", "printenv", "LD_PRELOAD"))

    def test_path_goes_by_the_variable_that_run_goes_by(self):
        other = shutil.copy(self.library, self.folder + "/other.so")
        self.assertEqual(other + "\n", do(self.command, "path", RMMSHIM_LIBRARY=other))
        self.assertIn("No such file", do(self.command, "path", code=1, RMMSHIM_LIBRARY=other + ".none"))

    def test_path_says_what_is_wrong(self):
        self.assertEqual("rmmshim: x: path takes no argument\n", do(self.command, "path", "x", code=2))
        os.rename(self.library, self.library + ".away")
        self.assertIn("librmmshim.so is not beside this command", do(self.command, "path", code=1))

    def test_a_program_runs_under_what_was_installed(self):
        program = support.program("sample_vector_driver")
        self.assertEqual(
            do(program, LD_LIBRARY_PATH=support.HOSTCUDA),
            do(self.command, "run", "--quiet", "--profile", "capped", "--framework-pools", "off", program,
               LD_LIBRARY_PATH=support.HOSTCUDA))

    def test_help_shows_pages_that_a_distribution_has_compressed(self):
        with open(self.folder + "/man", "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho \"$1\"\n")
        os.chmod(file.name, 0o755)
        page = self.prefix + "/share/man/man1/rmmshim.1"
        path = self.folder + ":/usr/bin:/bin"
        self.assertEqual(page + "\n", do(self.command, "help", "commands", PATH=path))
        with open(page, "rb") as plain, gzip.open(page + ".gz", "wb") as compressed:
            compressed.write(plain.read())
        os.remove(page)
        self.assertEqual(page + ".gz\n", do(self.command, "help", "commands", PATH=path))


class Module(Folder):
    """It lands where the Python that was found looks for modules, if that is below the prefix."""

    def test_in_a_virtual_environment(self):
        environment = self.folder + "/environment"
        do(sys.executable, "-m", "venv", "--without-pip", environment)
        python = environment + "/bin/python3"
        looks = do(python, "-c", "import site; print(*site.getsitepackages())").split()
        self.assertEqual(looks[0], self.module_folder("--prefix=" + environment, python=python))

    def test_in_the_python_of_the_system(self):
        if not os.path.exists("/usr/bin/python3"):
            self.skipTest("there is none")
        looks = do("/usr/bin/python3", "-c", "import site; print(*site.getsitepackages())").split()
        for prefix in "/usr", "/usr/local":
            expected = [folder for folder in looks if folder.startswith(prefix + "/lib/")][:1]
            if expected:
                self.assertEqual(expected, [self.module_folder("--prefix=" + prefix, python="/usr/bin/python3")])


if __name__ == "__main__":
    unittest.main()
