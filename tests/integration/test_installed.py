# SPDX-License-Identifier: Apache-2.0
"""What an installation has and where, and that the command finds the rest of it.

usage: test_installed.py BUILD; meson sets SOURCE_ROOT, CUDA_INCLUDE and VERSION.  Wheels and Debian packages are made by
scripts/package and tried by scripts/packaging/try; here are their metadata, and where Meson puts the files."""
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
share/doc/rmmshim: report.png rmmshim-recipes.7.md rmmshim-reports.7.md rmmshim-resources.7.md rmmshim-variables.7.md rmmshim.1.md rmmshim.3.md rmmshim.7.md
share/doc/rmmshim/recipes: dask_workers.py grafana.json inference-metrics.service inference.env inference.service jupyterhub_config.py kubernetes.yaml ray_workers.py slurm-epilog slurm-task-prolog
share/fish/vendor_completions.d: rmmshim.fish
share/man/man1: rmmshim.1
share/man/man3: rmmshim.3
share/man/man7: rmmshim-recipes.7 rmmshim-reports.7 rmmshim-resources.7 rmmshim-variables.7 rmmshim.7
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


class Folder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Resolved, as the command prints paths.
        cls.folder = os.path.realpath(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)

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
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        do("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", cls.folder + "/installed")
        cls.command, = glob.glob(cls.folder + "/installed/**/bin/rmmshim", recursive=True)
        cls.prefix = cls.command[:-len("/bin/rmmshim")]
        cls.library, = glob.glob(cls.prefix + "/lib*/**/librmmshim.so", recursive=True)

    def test_everything_is_there_and_nothing_else(self):
        lib = os.path.dirname(os.path.relpath(self.library, self.prefix))
        found = {os.path.relpath(os.path.join(where, name), self.prefix) for where, _, names in os.walk(self.folder + "/installed") for name in names
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
        self.assertEqual("rmmshim: x: `rmmshim path` takes no argument\n", do(self.command, "path", "x", code=2))
        os.rename(self.library, self.library + ".away")
        self.addCleanup(os.rename, self.library + ".away", self.library)
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
        os.rename(page, self.folder + "/page")
        self.addCleanup(os.rename, self.folder + "/page", page)
        self.addCleanup(os.remove, page + ".gz")
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
        expected = [folder for folder in looks if folder.startswith("/usr/local/lib/")][:1]
        if expected:
            self.assertEqual(expected, [self.module_folder("--prefix=/usr/local", python="/usr/bin/python3")])


class Wheel(Folder):
    def words(self, name):
        """A list of texts in pyproject.toml; tomllib is there since Python 3.11 alone."""
        listed = re.search(r"(?ms)^%s = \[(.*?)\]$" % name, text_of("pyproject.toml")).group(1)
        return re.findall('"(.*?)"', re.sub("(?m)#.*$", "", listed))

    def test_it_has_what_an_installation_has_to_run_programs(self):
        """In folders that meson-python knows."""
        left_out = tuple(pattern.replace("**", "") for pattern in self.words("exclude"))
        self.assertEqual(
            sorted([re.sub("^bin", "{bindir}", re.sub("^(?=share/|lib/)", "{datadir}/", name)) for name in installed("lib")
                    if not name.startswith(("include/", "lib/pkgconfig/", "share/doc/"))] +
                   ["{py_purelib}/rmmshim/" + name for name in MODULES]),
            [name for name in self.plan(*self.words("setup")) if not name.startswith(left_out)])

    def test_what_it_is_built_with_is_what_setup_fetches(self):
        fetched = re.search("CUDA_PACKAGES='(.*)'", text_of("scripts", "setup")).group(1).split()
        self.assertEqual(fetched, [name.replace(" ", "") for name in self.words("requires") if "nvidia" in name])


class Version(unittest.TestCase):
    def test_it_stands_in_one_place(self):
        version = os.environ["VERSION"]
        self.assertEqual([version], re.findall(r"(?m)^  version: '(.*)',$", text_of("meson.build")))
        self.assertEqual("rmmshim %s\n" % version, do(os.environ["TOOL"], "--version"))
        self.assertIn(version, re.search("(?m)^## .*$", text_of("CHANGELOG.md")).group())
        for where, _, names in os.walk(os.path.join(SOURCE, "scripts/packaging")):
            for name in names:
                self.assertNotIn(version, text_of(where, name), name)
        self.assertNotRegex(text_of("pyproject.toml"), r"(?m)^version")

    def test_notes_of_a_release_are_those_of_the_changelog(self):
        notes = do(os.path.join(SOURCE, "scripts/package"), "notes")
        self.assertIn(notes.strip(), text_of("CHANGELOG.md"))
        self.assertRegex(notes, r"\A\n### ")


if __name__ == "__main__":
    unittest.main()
