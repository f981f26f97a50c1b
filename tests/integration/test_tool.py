# SPDX-License-Identifier: Apache-2.0
"""The rmmshim command as users meet it: help, listings, errors, exit codes, what `run` starts.

meson sets TOOL, RMMSHIM_LIBRARY, PRELOAD_FIRST, VERSION and COMMANDS (the list of src/tool/meson.build)."""
import atexit
import importlib.util
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

TOOL = os.environ["TOOL"]
SHIM = os.environ["RMMSHIM_LIBRARY"]
VERSION = os.environ["VERSION"]
COMMANDS = os.environ["COMMANDS"].split()


def harmless_library():
    """Stands in for ours where ours cannot be preloaded alone: built with gcc's sanitizers.  What follows the end of a
    library is not loaded: here the mark by which `run` knows ours (shared/job.h)."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split()[-1]
            if "/libc.so" in path or "/libc-" in path:
                copy = shutil.copy(path, folder)
                with open(copy, "ab") as file:
                    file.write(b"@(#)rmmshim %s\0" % VERSION.encode())
                return copy
    raise unittest.SkipTest("no library found")


SANITIZED = bool(os.environ.get("PRELOAD_FIRST"))
LIBRARY = harmless_library() if SANITIZED else SHIM


def environment(**settings):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RMM_", "LD_"))}
    env["RMMSHIM_LIBRARY"] = LIBRARY
    env.update({name: value for name, value in settings.items() if value is not None})
    return {name: value for name, value in env.items() if settings.get(name, "") is not None}


def rmmshim(*arguments, tool=TOOL, **settings):
    """`run` says nothing at the end (test_run_end.py has that), so that errors are all of stderr."""
    if arguments[:1] == ("run",):
        arguments = ("run", "--quiet") + arguments[1:]
    return subprocess.run([tool, *arguments], env=environment(**settings), capture_output=True,
                          text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)


class Test(unittest.TestCase):
    longMessage = True

    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)

    def file(self, name, content, mode=0o755):
        path = os.path.join(self.directory, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        os.chmod(path, mode)
        return path

    def expect(self, result, code, line=None):
        """The exit code, and either the one line on stderr or none at all."""
        self.assertEqual(code, result.returncode, result)
        if line is None:
            self.assertEqual("", result.stderr)
        else:
            self.assertEqual(1, result.stderr.count("\n"), result.stderr)
            self.assertTrue(result.stderr.startswith("rmmshim: "), result.stderr)
            self.assertIn(line, result.stderr)


class Help(Test):
    def test_help_names_every_command(self):
        for arguments in (["--help"], ["-h"], ["help"]):
            result = rmmshim(*arguments)
            self.expect(result, 0)
            self.assertEqual(COMMANDS, re.findall(r"^  rmmshim (?!help)([a-z]+)(?: |$)", result.stdout, re.MULTILINE))

    def test_each_command_has_help(self):
        for command in COMMANDS:
            behind = [[command, "4711", "1GiB", "--help"]] if command != "run" else []  # the program's own there
            for arguments in ([command, "--help"], [command, "-h"], ["help", command], *behind):
                result = rmmshim(*arguments)
                self.expect(result, 0)
                self.assertTrue(result.stdout.startswith("usage: rmmshim " + command), result.stdout)

    def test_run_help_fits_a_terminal_and_shows_what_is_used_most(self):
        short, whole = (rmmshim("run", option).stdout for option in ("--help", "--help-all"))
        options = {name: re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE) for name, text in
                   (("short", short), ("whole", whole))}
        self.assertEqual(options["short"], ["--limit", "--limit-job", "--pool-size", "--fallback", "--statistics",
                                            "--tracking", "--help-all"])
        self.assertEqual(4, len(re.findall("^  rmmshim run ", short, re.MULTILINE)))
        self.assertEqual(sorted(set(options["whole"])), sorted(options["whole"]), "an option twice")
        for option in options["short"] + ["--resource", "--json", "--framework-pools", "--help"]:
            self.assertIn(option, options["whole"])
        for option in ("--pool-size SIZE", "--managed[=0|1]", "125"):
            self.assertIn(option, whole)
        for line in short.splitlines() + whole.splitlines():
            self.assertLessEqual(len(line), 80, line)

    def test_help_shows_a_page_of_the_manual(self):
        viewer = self.file("man", "#!/bin/sh\nexec cat \"$1\"\n")
        for topic, name in (("commands", "RMMSHIM"), ("variables", "RMM_POOL_SIZE"), ("stacks", "initial_size"),
                            ("reports", "rmmshim_used_bytes"), ("api", "rmmshim_trim"), ("limits", "IPC")):
            result = rmmshim("help", topic, PATH=os.path.dirname(viewer) + ":" + os.environ["PATH"])
            self.expect(result, 0)
            self.assertIn(name, result.stdout.replace("\\", ""))
            self.expect(rmmshim("help", topic, PATH="/nowhere"), 1, "the page is ")
        self.assertIn("commands, variables, stacks, reports, recipes, api, limits", rmmshim("--help").stdout)

    def test_the_manual_describes_every_command(self):
        viewer = self.file("man", "#!/bin/sh\nexec cat \"$1\"\n")
        page = rmmshim("help", "commands", PATH=os.path.dirname(viewer) + ":" + os.environ["PATH"]).stdout
        description = page.partition(".SH COMMANDS")[2].partition(".SH")[0]
        for command in COMMANDS:
            self.assertIn("rmmshim " + command, description)

    def test_version(self):
        result = rmmshim("--version")
        self.expect(result, 0)
        self.assertEqual(f"rmmshim {VERSION}\n", result.stdout)

    def test_wrong_usage_is_one_line_with_the_nearest_word(self):
        for arguments, code, line in (
            ([], 2, "no command"),
            (["chekc"], 2, "did you mean 'check'"),
            (["resource"], 2, "did you mean 'resources'"),
            (["something"], 2, "unknown command 'something'"),
            (["pause", "1"], 2, "unknown command 'pause'; NVIDIA's `cuda-checkpoint --toggle --pid PID` pauses and resumes a process"),
            (["--limit", "4GiB", "./app", "--epochs"], 2,
             "unknown option '--limit'; did you mean 'rmmshim run --limit 4GiB ./app --epochs'?"),
            (["--pool-size-1=1GiB", "app"], 2, "did you mean 'rmmshim run --pool-size-1=1GiB app'?"),
            (["--framework-pools", "off", "app\x1b[2J"], 2, "did you mean 'rmmshim run --framework-pools off app?[2J'?"),
            (["--quiet", "app"], 2, "did you mean 'rmmshim run --quiet app'?"),
            (["/bin/sh", "-c", "true"], 2, "unknown command '/bin/sh'; did you mean 'rmmshim run /bin/sh -c true'?"),
            (["./no-such-program"], 2, "unknown command './no-such-program'"),
            (["--versoin"], 2, "did you mean '--version'"),
            (["help", "limitz"], 2, "did you mean 'limit'"),
            (["help", "sh"], 2, "unknown command 'sh'"),
            (["help", "rnu"], 2, "unknown command 'rnu'; did you mean 'run'"),
            (["check"], 2, "one expression"),
            (["check", "cuda", "cuda"], 2, "one expression"),
            (["check", "RMM_LIMIT=1GiB", "pool(cuda)"], 2, "RMM_RESOURCE='pool(cuda)'"),
            (["check", "pool(cuda)", "RMM_LIMIT=1GiB"], 2, "RMM_RESOURCE='pool(cuda)'"),
            (["resources", "pol"], 2, "did you mean 'pool'"),
            (["resources", "nothing"], 2, "unknown memory resource 'nothing'"),
            (["resources", "pool", "cuda"], 2, "at most one name of a memory resource"),
        ):
            with self.subTest(arguments):
                self.expect(rmmshim(*arguments), code, line)

    def test_what_it_says_is_plain(self):
        """Words of the command line, paths and names may hold anything."""
        hostile = "a\x1b]0;b\x07\x1b[2J\u202e\x9b\u00e9"
        plain = "a?]0;b??[2J??\u00e9"
        for arguments, code, line in ((["run", hostile], 127, plain + ": not found"), (["run", "--" + hostile], 125, plain),
                                      ([hostile], 2, plain), (["doctor", "--" + hostile], 2, plain), (["limit", hostile, "1GiB"], 2, plain),
                                      (["check", "pool(" + hostile + ")"], 1, plain), (["stats", hostile], 2, plain)):
            with self.subTest(arguments[0]):
                self.expect(rmmshim(*arguments), code, line)

    def test_a_full_disk_is_no_success(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([TOOL, "--help"], stdout=full, stderr=subprocess.PIPE, text=True,
                                    check=False, env=environment())
        self.assertEqual(1, result.returncode)
        self.assertIn("write error", result.stderr)


class Listings(Test):
    def test_all_resources_are_listed(self):
        result = rmmshim("resources")
        self.expect(result, 0)
        names = [line.split()[0] for line in result.stdout.splitlines()[1:]]
        for name in ("cuda", "managed", "pool", "fixed_size", "binning", "limiting", "statistics", "logging", "reuse"):
            self.assertIn(name, names)

    def test_one_resource_shows_its_options_and_rmms_names(self):
        result = rmmshim("resources", "pool")
        self.expect(result, 0)
        self.assertTrue(result.stdout.startswith("pool: "))
        for text in ("initial_size", "maximum_size", "initial_pool_size", "SIZE|none"):
            self.assertIn(text, result.stdout)

    def test_whether_a_free_waits(self):
        for name, said in (("cuda", "each free waits for all earlier GPU work"), ("pool", "a free does not wait for the GPU"),
                           ("statistics", "each free is passed on"), ("reuse", "says whether the free itself waits for that")):
            with self.subTest(name):
                self.assertRegex(rmmshim("resources", name).stdout, "(?m)^freeing: .*%s" % said)

    def test_a_leaf_without_options_has_no_table(self):
        result = rmmshim("resources", "cuda")
        self.expect(result, 0)
        self.assertNotIn("OPTION", result.stdout)

    def test_examples_pass_the_check(self):
        names = [line.split()[0] for line in rmmshim("resources").stdout.splitlines()[1:]]
        for name in names:
            for line in rmmshim("resources", name).stdout.splitlines():
                if line.startswith("written:") and "..." not in line:
                    text = line.split(None, 1)[1]
                    with self.subTest(line):
                        if name == "pinned":
                            self.assertEqual(0, rmmshim("check", "RMM_PINNED_RESOURCE=" + text).returncode)
                        else:
                            self.assertEqual(1 if name == "simulated" else 0, rmmshim("check", text).returncode)


class Check(Test):
    def test_prints_the_tree_with_every_value(self):
        result = rmmshim("check", "statistics(pool(cuda, initial_size=1GiB, maximum_size=12.5%))")
        self.expect(result, 0)
        lines = result.stdout.splitlines()
        self.assertEqual("statistics", lines[0])
        self.assertIn("reuse", lines[1])
        self.assertIn("<-", lines[1])
        self.assertRegex(lines[2], r"^    pool initial_size=1GiB maximum_size=12\.5% growth=")
        self.assertEqual("      cuda", lines[3])
        self.assertEqual(4, len(lines))

    def test_reuse_is_not_put_twice(self):
        result = rmmshim("check", "reuse(pool(cuda))")
        self.expect(result, 0)
        self.assertEqual(1, result.stdout.count("reuse"))
        self.assertNotIn("<-", result.stdout)

    def test_what_waits_by_itself_needs_no_reuse(self):
        result = rmmshim("check", "cuda")
        self.expect(result, 0)
        self.assertEqual("cuda\n", result.stdout)

    def test_wrong_expressions_show_the_place(self):
        for text, line in (
            ("pol(cuda)", "EXPRESSION=^pol(cuda): "),
            ("pool(", "EXPRESSION=pool(^: "),
            ("pool(cuda, initial=1GiB)", "did you mean 'initial_size'"),
            ("pool(cuda, initial_size=10Q)", "initial_size=10^Q"),
            ("pool", "needs a memory resource inside its parentheses"),
            ("", "EXPRESSION=^: "),
            ("pool(" * 10000, "levels deep"),
            ("cuda)", "EXPRESSION=cuda^)"),
        ):
            with self.subTest(text[:40]):
                result = rmmshim("check", text)
                self.expect(result, 1, line)
                self.assertEqual("", result.stdout)

    def test_what_rmm_resource_refuses_is_wrong_here_too(self):
        for text, line in (
            ("pinned", "EXPRESSION=^pinned: device memory cannot come from 'pinned'; for pinned memory use RMM_PINNED_RESOURCE"),
            ("pool(pinned)", "EXPRESSION=pool(^pinned): "),
            ("simulated", "EXPRESSION=^simulated: "),
            ("fallback(cuda, pool(simulated))", "EXPRESSION=fallback(cuda, pool(^simulated)): "),
        ):
            with self.subTest(text):
                result = rmmshim("check", text)
                self.expect(result, 1, line)
                self.assertEqual("", result.stdout)
                self.assertEqual(125, rmmshim("run", "--resource", text, "true").returncode)
        for text in ("cuda", "system", "fallback(cuda, pinned)", "pool(async)", "fallback(virtual, managed)"):
            with self.subTest(text):
                self.assertEqual(0, rmmshim("check", text).returncode)
                self.assertEqual(0, rmmshim("run", "--resource", text, "true").returncode)

    def test_variables_show_what_they_amount_to(self):
        for variables, lines in (
            (["RMM_POOL_SIZE=1GiB", "RMM_LIMIT=80%"],
             ["every device, at most 80%", "  reuse free=deferred", "    pool initial_size=1GiB", "      cuda"]),
            (["RMM_RESOURCE=statistics(pool(cuda))"],
             ["every device", "  statistics", "    reuse", "      pool", "        cuda"]),
            (["RMM_LIMIT=8GiB", "RMM_LIMIT_1=4GiB", "RMM_MANAGED_3=1"],
             ["every other device, at most 8GiB", "  cuda", "device 1, at most 4GiB", "  cuda",
              "device 3, at most 8GiB", "  managed"]),
            (["RMM_PINNED_POOL_SIZE=1GiB"], ["every device, pinned memory", "  reuse", "    pool", "      pinned"]),
            (["RMM_MANAGED_RESOURCE=managed", "RMM_POOL_SIZE=1GiB", "RMM_LIMIT=2GiB"],
             ["every device, at most 2GiB", "  reuse", "    pool", "      cuda", "every device, managed memory",
              "  managed"]),
            (["RMM_POOL_SIZE=200%", "RMM_MANAGED=1", "RMM_LIMIT=250%"],
             ["every device, at most 250%", "  reuse", "    pool initial_size=200%", "      managed"]),
            (["RMM_VERBOSE=1", "RMM_POOL_SIZE="], ["these variables set no limit and no memory resource: every "
                                                   "call goes to the driver"]),
        ):
            with self.subTest(variables):
                result = rmmshim("check", *variables, RMM_POOL_SIZE="10Q")  # its own settings are not meant
                self.expect(result, 0)
                printed = result.stdout.splitlines()
                self.assertEqual(len(lines), len(printed), result.stdout)
                for line, got in zip(lines, printed):
                    self.assertTrue(got.startswith(line), "%s: %s" % (line, got))
                    if not line.startswith(" "):
                        self.assertEqual(line, got)

    def test_wrong_variables_are_one_line_each(self):
        for variables, line in (
            (["RMM_POOL_SIZE=10Q"], "RMM_POOL_SIZE=10^Q: unknown unit"),
            (["RMM_LIMIT=1GiB", "RMM_POOL_SIZE=2GiB"], "'pool' has an initial size of 2GiB, which is above the limit of 1GiB (RMM_LIMIT)"),
            (["RMM_LIMIT=1GiB", "RMM_MANAGED_POOL_SIZE=2GiB"], "'pool' has an initial size of 2GiB, which is above the limit of 1GiB (RMM_LIMIT)"),
            (["RMM_POOL_SIZE=200%"], "RMM_POOL_SIZE=^200%: more than 100%"),
            (["RMM_PINNED_RESOURCE=pool(pinned, initial_size=200%)"], "initial_size of 'pool' is more than 100%"),
            (["RMM_POOLSIZE=1GiB"], "did you mean RMM_POOL_SIZE?"),
            (["rmm_limit=1GiB"], "did you mean RMM_LIMIT?"),
            (["RMM_MANAGED_MEMORY=1"], "RMM_MANAGED_MEMORY=1: this is not a variable of rmmshim"),
            (["RMM_INITIAL_POOL_SIZE=1GiB"], "did you mean RMM_POOL_SIZE?"),
            (["RMM_PINNED_RESOURCE=pool(cuda)"], "RMM_PINNED_RESOURCE=pool(^cuda)"),
            (["RMM_FOO=1"], "RMM_FOO=1: this is not a variable of rmmshim"),
            (["RMM_POOL_SIZE=1GiB", "RMM_LOG_FILE=x"], "RMM_LOG_FILE=x: this variable belongs to RAPIDS RMM and is "
                                                       "ignored; rmmshim writes a log when RMM_LOG is set"),
        ):
            with self.subTest(variables):
                result = rmmshim("check", *variables)
                self.expect(result, 1, line)
                self.assertEqual("", result.stdout)
        result = rmmshim("check", "RMM_POOL_SIZE=10Q", "RMM_FREE=x")
        self.assertEqual((1, 2), (result.returncode, result.stderr.count("\n")), result)

    def test_options_that_contradict_each_other_are_found(self):
        result = rmmshim("check", "pool(cuda, initial_size=2GiB, maximum_size=1GiB)")
        self.assertEqual(1, result.returncode)
        self.assertEqual("", result.stdout)
        self.assertIn("rmmshim: ", result.stderr)


CUPY = """
import sys
print("cupy is executed by", type(__spec__.loader).__name__, type(__loader__).__name__)

class cuda:
    def set_allocator(self):
        print("device", self)
    def set_pinned_memory_allocator(self):
        print("pinned", self)
"""
SHOWS_POOLS = """
import os, sys
print([name for name in sys.path if "framework-pools" in name])
print(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"), os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR"))
import cupy.more
import cupy
print(cupy.__spec__.loader is cupy.__loader__, getattr(sys.modules.get("sitecustomize"), "mine", None))
"""


class FrameworkPools(Test):
    """run --framework-pools, with a package that stands in for CuPy."""

    def setUp(self):
        super().setUp()
        self.file("show.py", SHOWS_POOLS)
        os.mkdir(os.path.join(self.directory, "cupy"))
        self.file("cupy/__init__.py", CUPY)
        self.file("cupy/more.py", "")

    def shown(self, *options, program="show.py", python=(), **settings):
        result = rmmshim("run", *options, sys.executable, *python, os.path.join(self.directory, program),
                         **dict({"PYTHONPATH": self.directory, "PYTORCH_NO_CUDA_MEMORY_CACHING": None,
                                 "XLA_PYTHON_CLIENT_ALLOCATOR": None, "PYTHONDONTWRITEBYTECODE": "1"}, **settings))
        self.expect(result, 0)
        return result.stdout.splitlines()

    def test_off_switches_all_pools_off(self):
        for options in (["--framework-pools", "off"], ["--framework-pools=off"],
                        ["--framework-pools=on", "--pool-size", "0", "--framework-pools=off"]):
            with self.subTest(options):
                lines = self.shown(*options)
                self.assertEqual(["[]", "1 platform"], lines[:2])
                self.assertEqual(["device None", "pinned None", "True None"], lines[3:])
                self.assertEqual("cupy is executed by SourceFileLoader SourceFileLoader", lines[2])

    def test_on_changes_nothing(self):
        for options in ([], ["--framework-pools", "on"]):
            lines = self.shown(*options)
            self.assertEqual(["[]", "None None"], lines[:2])
            self.assertEqual(["True None"], lines[3:])

    def test_what_is_set_stays(self):
        lines = self.shown("--framework-pools=off", PYTORCH_NO_CUDA_MEMORY_CACHING="0",
                           XLA_PYTHON_CLIENT_ALLOCATOR="bfc")
        self.assertEqual("0 bfc", lines[1])

    def test_the_hidden_sitecustomize_runs(self):
        self.file("sitecustomize.py", "import os, sys\nmine = 'mine'\nprint('mine runs', 'cupy' in sys.modules)\n")
        lines = self.shown("--framework-pools=off")
        self.assertEqual(["mine runs False", "[]"], lines[:2])
        self.assertEqual(["device None", "pinned None", "True mine"], lines[-3:])
        self.file("sitecustomize.py", "import no_such_module\n")
        result = rmmshim("run", "--framework-pools=off", sys.executable, "-c", "print('goes on')",
                         PYTHONPATH=self.directory)
        plain = subprocess.run([sys.executable, "-c", "print('goes on')"], capture_output=True, text=True,
                               env=environment(PYTHONPATH=self.directory), check=False)
        self.assertEqual((plain.returncode, plain.stdout), (result.returncode, result.stdout))
        self.assertIn("no_such_module", result.stderr)
        self.assertIn("no_such_module", plain.stderr)

    @unittest.skipIf(importlib.util.find_spec("cupy"), "CuPy is installed")
    def test_children_and_programs_without_cupy(self):
        self.file("child.py", "import subprocess, sys\n"
                  "subprocess.run([sys.executable, %r], check=True)\n" % os.path.join(self.directory, "show.py"))
        self.assertIn("device None", self.shown("--framework-pools=off", program="child.py"))
        self.file("without.py", "import sys\ntry:\n    import cupy\nexcept ImportError as error:\n"
                  "    print(error.name, sys.path[0] == '')\n")
        shutil.rmtree(os.path.join(self.directory, "cupy"))
        self.assertEqual(["cupy False"], self.shown("--framework-pools=off", program="without.py"))

    def test_an_unknown_cupy_is_said_and_used(self):
        self.file("cupy/__init__.py", "print('loaded')\n")
        result = rmmshim("run", "--framework-pools=off", sys.executable, "-c", "import cupy; print('used')",
                         PYTHONPATH=self.directory, PYTHONDONTWRITEBYTECODE="1")
        self.assertEqual((0, "loaded\nused\n"), (result.returncode, result.stdout))
        self.expect(result, 0, "CuPy's memory pools stay on: AttributeError: ")

    def test_a_broken_cupy_fails_as_it_does(self):
        self.file("cupy/__init__.py", "raise ImportError('no driver')\n")
        self.file("broken.py", "for i in range(2):\n    try:\n        import cupy\n    except ImportError as error:\n"
                  "        print(error)\n")
        self.assertEqual(["no driver", "no driver"], self.shown("--framework-pools=off", program="broken.py"))

    def test_the_folder_comes_first_once(self):
        folder = os.path.join(os.path.dirname(os.path.realpath(TOOL)), "framework-pools")
        for before, after in ((None, folder), ("", folder), ("/a:/b", folder + ":/a:/b"),
                              (folder + ":/a", folder + ":/a")):
            with self.subTest(before):
                result = rmmshim("run", "--framework-pools=off", "printenv", "PYTHONPATH", PYTHONPATH=before)
                self.assertEqual(after + "\n", result.stdout)

    def test_it_is_found_in_an_installation(self):
        for folder in ("lib/rmmshim", "lib64/rmmshim", "bin"):
            root = tempfile.mkdtemp(dir=self.directory)
            os.makedirs(os.path.join(root, "bin"))
            place = os.path.join(root, folder, "framework-pools")
            os.makedirs(place)
            tool = shutil.copy(TOOL, os.path.join(root, "bin", "rmmshim"))
            result = rmmshim("run", "--framework-pools=off", "printenv", "PYTHONPATH", tool=tool, PYTHONPATH=None)
            self.assertEqual(os.path.realpath(place) + "\n", result.stdout)
        alone = shutil.copy(TOOL, os.path.join(self.directory, "rmmshim"))
        self.expect(rmmshim("run", "--framework-pools=off", "true", tool=alone), 125, "framework-pools")

    def test_wrong_words_are_one_line(self):
        for words, said in ((["--framework-pools=of"], "expected on or off"), (["--framework-pools"], "on or off"),
                            (["--framework-pools="], "expected on or off"),
                            (["--framework-pols", "off", "true"], "did you mean '--framework-pools'?")):
            with self.subTest(words):
                self.expect(rmmshim("run", *words), 125, said)
        self.assertIn("--framework-pools on|off", rmmshim("run", "--help-all").stdout)


class Run(Test):
    def seen_by(self, *arguments, **settings):
        """The environment that a program sees."""
        result = rmmshim("run", *arguments, "env", "-0", **settings)
        self.expect(result, 0)
        return dict(entry.split("=", 1) for entry in result.stdout.split("\0") if entry)

    def test_options_become_variables(self):
        env = self.seen_by("--pool-size", "4GiB", "--pool-max-size=8GiB", "--managed", "--verbose=0",
                           "--pool-size-1", "1GiB", "--pool-size-12=2GiB", "--statistics", "1")
        self.assertEqual("4GiB", env["RMM_POOL_SIZE"])
        self.assertEqual("8GiB", env["RMM_POOL_MAX_SIZE"])
        self.assertEqual("1", env["RMM_MANAGED"])
        self.assertEqual("0", env["RMM_VERBOSE"])
        self.assertEqual("1GiB", env["RMM_POOL_SIZE_1"])
        self.assertEqual("2GiB", env["RMM_POOL_SIZE_12"])
        self.assertEqual("1", env["RMM_STATISTICS"])

    def test_a_switch_takes_the_word_behind_it(self):
        for word, value in (("1", "1"), ("0", "0"), ("yes", "yes"), ("OFF", "OFF"), ("True", "True")):
            with self.subTest(word):
                env = self.seen_by("--managed", word, "--verbose", "--managed-1", word)
                self.assertEqual(value, env["RMM_MANAGED"])
                self.assertEqual(value, env["RMM_MANAGED_1"])
                self.assertEqual("1", env["RMM_VERBOSE"])
        env = self.seen_by("--managed", "0", "--")
        self.assertEqual("0", env["RMM_MANAGED"])

    def test_a_switch_leaves_other_words_to_the_program(self):
        one = self.file("1", "#!/bin/sh\necho one $RMM_MANAGED\n")
        path = os.path.dirname(one) + ":" + os.environ["PATH"]
        for arguments, output in (
            (["--managed", "--", "1"], "one 1\n"),
            (["--managed=0", "--", "1"], "one 0\n"),
            (["--managed", "1", "1"], "one 1\n"),
            (["--managed=0", "1"], "one 0\n"),
            (["--managed", one], "one 1\n"),
            (["--managed", "echo", "1"], "1\n"),
            (["--managed", "true"], ""),  # nothing follows: it is the program
        ):
            with self.subTest(arguments):
                result = rmmshim("run", *arguments, PATH=path)
                self.expect(result, 0)
                self.assertEqual(output, result.stdout)
        self.expect(rmmshim("run", "--managed", "1", PATH=path), 125, "no program")
        self.expect(rmmshim("run", "--managed", "2", "true", PATH=path), 127, "2: ")

    def test_a_report_s_format_may_be_left_out(self):
        """What stands behind the option is its value only where it is one."""
        app = self.file("app", "#!/bin/sh\necho app $RMM_STATISTICS $RMM_TRACKING $RMM_ON_OOM $*\n")
        for arguments, output in (
            (["--statistics", app], "app 1\n"),
            (["--statistics", app, "json"], "app 1 json\n"),
            (["--statistics", "0", app], "app 0\n"),
            (["--statistics", "json:" + self.directory + "/%p", app], "app json:" + self.directory + "/%p\n"),
            (["--tracking", "--statistics", "--on-oom", app], "app 1 1 1\n"),
            (["--on-oom", "none", app], "app none\n"),
            (["--statistics", "on", "--", app], "app on\n"),
        ):
            with self.subTest(arguments):
                result = rmmshim("run", "--quiet", *arguments)
                self.expect(result, 0)
                self.assertEqual(output, result.stdout)
        for option in ("--statistics", "--tracking", "--on-oom"):
            self.expect(rmmshim("run", option, "no-such-program"), 127, "no-such-program: not found")
            self.expect(rmmshim("run", option, "jsno:x", "true"), 127, "jsno:x: not found")
            self.expect(rmmshim("run", option, "json:", "true"), 125, "a path is missing")

    def test_options_win_over_the_environment(self):
        env = self.seen_by("--pool-size", "4GiB", RMM_POOL_SIZE="1GiB", RMM_FREE="wait")
        self.assertEqual("4GiB", env["RMM_POOL_SIZE"])
        self.assertEqual("wait", env["RMM_FREE"])

    def test_nothing_else_is_set(self):
        before = environment()
        for option, set_by_run in (("--exec", {"LD_PRELOAD"}), ("--", {"LD_PRELOAD", "RMMSHIM_JOB"})):
            after = self.seen_by(option)
            self.assertEqual(set_by_run, {name for name in after.keys() | before.keys()
                                          if after.get(name) != before.get(name) and name != "_"})

    def test_the_library_comes_first_in_ld_preload(self):
        library = os.path.realpath(LIBRARY)
        self.assertEqual(library, self.seen_by()["LD_PRELOAD"])
        self.assertEqual(library, self.seen_by(LD_PRELOAD="")["LD_PRELOAD"])

    @unittest.skipIf(SANITIZED, "a sanitizer does not start behind another library")
    def test_what_was_in_ld_preload_stays_behind_it(self):
        library = os.path.realpath(LIBRARY)
        other = harmless_library()
        self.assertEqual(f"{library}:{other}", self.seen_by(LD_PRELOAD=other)["LD_PRELOAD"])
        self.assertEqual(f"{library}:{other} {other}",
                         self.seen_by(LD_PRELOAD=f"{other} {other}")["LD_PRELOAD"])
        self.assertEqual(library, self.seen_by(LD_PRELOAD=library)["LD_PRELOAD"])

    @unittest.skipIf(SANITIZED, "a sanitizer does not start behind another library")
    def test_run_inside_run_names_the_library_once(self):
        env = self.seen_by(TOOL, "run", "--quiet", "--managed")
        self.assertEqual(os.path.realpath(LIBRARY), env["LD_PRELOAD"])
        self.assertEqual("1", env["RMM_MANAGED"])

    def test_what_follows_the_program_is_the_programs(self):
        result = rmmshim("run", "echo", "--pool-size", "--help", "--")
        self.expect(result, 0)
        self.assertEqual("--pool-size --help --\n", result.stdout)
        odd = self.file("--odd", "#!/bin/sh\necho odd\n")
        result = rmmshim("run", "--", "--odd", PATH=os.path.dirname(odd) + ":" + os.environ["PATH"])
        self.expect(result, 0)
        self.assertEqual("odd\n", result.stdout)

    def test_exit_codes_are_the_programs_own(self):
        for code in (0, 1, 42, 125, 255):
            self.assertEqual(code, rmmshim("run", "sh", "-c", f"exit {code}").returncode)
        self.assertEqual(-15, rmmshim("run", "sh", "-c", "kill -TERM $$").returncode)

    def test_the_program_keeps_the_standard_streams(self):
        result = subprocess.run([TOOL, "run", "cat"], env=environment(), input="through", text=True,
                                capture_output=True, check=False)
        self.assertEqual("through", result.stdout)

    def test_bad_settings_stop_it_before_anything_starts(self):
        marker = os.path.join(self.directory, "started")
        for arguments, settings, line in (
            (["--pool-size", "10Q"], {}, "RMM_POOL_SIZE=10^Q: unknown unit"),
            (["--pool-size=-1"], {}, "RMM_POOL_SIZE=^-1: a size cannot be negative"),
            ([], {"RMM_POOL_SIZE": "200%"}, "RMM_POOL_SIZE=^200%"),
            ([], {"RMM_POOLSIZE": "1GiB"}, "did you mean RMM_POOL_SIZE"),
            ([], {"RMM_INITIAL_POOL_SIZE": "1GiB"}, "did you mean RMM_POOL_SIZE?"),
            ([], {"RMM_POOL": "1GiB"}, "did you mean RMM_POOL_SIZE or RMM_POOL_MAX_SIZE?"),
            (["--resource", "pol(cuda)"], {}, "RMM_RESOURCE=^pol(cuda)"),
            (["--resource", "pool("], {}, "RMM_RESOURCE=pool(^"),
            (["--resource", "cuda", "--pool-size", "1GiB"], {}, "RMM_POOL_SIZE"),
            (["--managed=perhaps"], {}, "RMM_MANAGED=^perhaps"),
            (["--pool-size-99", "1GiB"], {}, "RMM_POOL_SIZE_99"),
            (["--verbose-1"], {}, "RMM_VERBOSE_1"),
            (["--limit", "8GiB", "--pool-size", "9GiB"], {}, "which is above the limit of 8GiB (RMM_LIMIT)"),
            (["--log", "%x"], {}, "unknown placeholder"),
            (["--limit", "8"], {}, "did you mean 8GiB?"),
            (["--limit", "0%"], {}, "the value must be more than 0"),
            (["--pool-size", "0.5"], {}, "did you mean 50%?"),
        ):
            with self.subTest(arguments + list(settings)):
                self.expect(rmmshim("run", *arguments, "touch", marker, **settings), 125, line)
                self.assertFalse(os.path.exists(marker))

    def test_two_bad_settings_are_two_lines(self):
        result = rmmshim("run", "--pool-size", "10Q", "--managed=perhaps", "true")
        self.assertEqual(125, result.returncode)
        self.assertEqual(2, result.stderr.count("\n"), result.stderr)

    def test_wrong_options_are_one_line(self):
        for arguments, line in (
            ([], "no program"),
            (["--"], "no program"),
            (["--pool-size"], "--pool-size needs a value"),
            *(([*option, "true"], name + " needs a value")
              for name in ["--pool-size", "--limit", "--limit-1", "--limit-job", "--resource", "--only", "--log", "--statistics",
                           "--on-error", "--free", "--managed", "--verbose", "--fail-over", "--json", "--profile"]
              for option in ([name, ""], [name + "="])),
            (["--framework-pools", "", "true"], "expected on or off"),
            (["--pol-size", "1GiB", "true"], "unknown option '--pol-size'; did you mean '--pool-size'"),
            (["--something", "true"], "unknown option '--something'"),
            (["--managed-memory", "true"], "unknown option '--managed-memory'; did you mean '--managed'?"),
            (["--initial-pool-size=1GiB", "true"],
             "unknown option '--initial-pool-size'; did you mean '--pool-size'?"),
            (["--maximum-pool-size", "1GiB", "true"],
             "unknown option '--maximum-pool-size'; did you mean '--pool-max-size'?"),
            (["--devices", "0", "true"], "unknown option '--devices'; did you mean '--pool-size-0'?"),
            (["--pool-size-x=1", "true"], "unknown option '--pool-size-x'"),
            (["--pool-size-" + "1" * 40, "1GiB", "true"], "unknown option '--pool-size-1111"),
            (["-v", "true"], "unknown option '-v'"),
            (["-", "true"], "unknown option '-'"),
        ):
            with self.subTest(arguments):
                self.expect(rmmshim("run", *arguments), 125, line)

    def test_programs_that_cannot_be_started(self):
        plain = self.file("plain", "no program", mode=0o644)
        broken = self.file("broken", "#!/no/such/interpreter\n")
        self.expect(rmmshim("run", "no-such-program"), 127, "no-such-program: not found")
        self.expect(rmmshim("run", "/no/such/program"), 127, "not found")
        self.expect(rmmshim("run", ""), 127, "not found")
        self.expect(rmmshim("run", plain), 126, "Permission denied")
        self.expect(rmmshim("run", self.directory), 126, "Permission denied")
        self.expect(rmmshim("run", broken), 127, "No such file")

    def elf(self, name, bits=64, machine=None, kind=2, interpreter=None):
        """The beginning of a program: enough to see for whom it is."""
        with open(sys.executable, "rb") as own:
            header = bytearray(own.read(64))
        header[4] = {32: 1, 64: 2}[bits]
        struct.pack_into("<H", header, 16, kind)
        if machine:
            struct.pack_into("<H", header, 18, machine)
        struct.pack_into("<H", header, 56, 0)  # no program headers: nobody links it
        if interpreter:
            text = interpreter.encode() + b"\0"
            segment = struct.pack("<IIQQQQQQ", 3, 4, 64 + 56, 0, 0, len(text), len(text), 1)  # PT_INTERP
            struct.pack_into("<Q", header, 32, 64)
            struct.pack_into("<HH", header, 54, 56, 1)
            header += segment + text
        return self.file(name, bytes(header))

    def test_programs_that_cannot_load_the_library(self):
        self.expect(rmmshim("run", self.elf("small", bits=32)), 125, "32-bit program")
        self.expect(rmmshim("run", self.elf("foreign", machine=0x1234)), 125, "another processor")
        self.expect(rmmshim("run", self.elf("static")), 125, "linked statically")
        suid = self.file("suid", "#!/bin/sh\n")
        if os.geteuid() == 0:
            os.chown(suid, 12345, 12345)
            os.chmod(suid, 0o755 | stat.S_ISUID)
            self.expect(rmmshim("run", suid), 125, "another user")

    def test_programs_of_another_libc_are_refused(self):
        """The dynamic linker of musl ends them with 127 where it finds the library in LD_PRELOAD."""
        for interpreter, libc in (("/lib/ld-musl-x86_64.so.1", "musl"), ("/opt/x/ld-musl-aarch64.so.1", "musl"),
                                  ("/lib/ld64-uClibc.so.0", "uClibc"), ("/system/bin/linker64", "Bionic")):
            for kind in (2, 3):
                with self.subTest(interpreter, kind=kind):
                    program = self.elf("other", kind=kind, interpreter=interpreter)
                    self.expect(rmmshim("run", program), 125, f"{program} is linked with {libc}: librmmshim.so needs glibc")
        for interpreter in ("/lib64/ld-linux-x86-64.so.2", "/opt/ld-musl-x/ld-linux-x86-64.so.2", "/opt/own-linker.so"):
            with self.subTest(interpreter):  # started, and not found or not loaded then
                self.assertNotIn("linked", rmmshim("run", self.elf("known", interpreter=interpreter)).stderr)

    def test_scripts_of_programs_of_another_libc_are_refused(self):
        musl = self.elf("musl-sh", interpreter="/lib/ld-musl-x86_64.so.1")
        script = self.file("script", f"#!{musl}\n")
        path = self.directory + ":" + os.environ["PATH"]
        for first_line in (f"#!{musl}", f"#! \t{musl} -e", f"#!{script}", "#!/usr/bin/env musl-sh",
                           "#!/usr/bin/env -S A=1 -i musl-sh -e", f"#!{script} {musl}"):
            with self.subTest(first_line):
                program = self.file("program", first_line + "\necho started\n")
                self.expect(rmmshim("run", program, PATH=path), 125,
                            f"{program} is run by {musl}, which is linked with musl: librmmshim.so needs glibc")
        for first_line in ("#!/bin/sh", f"#!/bin/sh {musl}", "#!/usr/bin/env sh", "#!/usr/bin/env -S sh -e", f"echo {musl}"):
            with self.subTest(first_line):
                program = self.file("program", first_line + "\necho started\n")
                self.assertNotIn("linked", rmmshim("run", program, PATH=path).stderr)
        os.mkfifo(os.path.join(self.directory, "pipe"))
        self.assertEqual(126, rmmshim("run", self.file("program", f"#!{self.directory}/pipe\n")).returncode)
        self.file("round", f"#!{self.directory}/round\n")
        self.assertIn(rmmshim("run", "round", PATH=path).returncode, (126, 127))

    def test_scripts_are_started(self):
        script = self.file("script", "#!/bin/sh\necho \"$1\"\n")
        plain = self.file("plain-script", "echo \"$1\"\n")
        for path in (script, plain):
            result = rmmshim("run", path, "argument")
            self.expect(result, 0)
            self.assertEqual("argument\n", result.stdout)

    def test_a_program_is_found_by_path_as_the_shell_does(self):
        self.file("tool-a", "no program", mode=0o644)
        self.expect(rmmshim("run", "tool-a", PATH=self.directory), 126, "Permission denied")
        other = os.path.join(self.directory, "other")
        os.mkdir(other)
        with open(os.path.join(other, "tool-a"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho found\n")
        os.chmod(os.path.join(other, "tool-a"), 0o755)
        result = rmmshim("run", "tool-a", PATH=self.directory + ":" + other + ":/bin:/usr/bin")
        self.expect(result, 0)
        self.assertEqual("found\n", result.stdout)
        self.expect(rmmshim("run", "true", PATH=None), 0)


class Library(Test):
    def test_a_wrong_rmmshim_library_is_said(self):
        self.expect(rmmshim("run", "true", RMMSHIM_LIBRARY="/no/such/library.so"), 125,
                    "RMMSHIM_LIBRARY=/no/such/library.so: ")
        text = self.file("text.so", "no library")
        self.expect(rmmshim("run", sys.executable, "-c", "", RMMSHIM_LIBRARY=text), 125, "is not a library")

    def test_a_path_that_ld_preload_cannot_hold_is_said(self):
        odd = os.path.join(self.directory, "with blank.so")
        shutil.copy(LIBRARY, odd)
        self.expect(rmmshim("run", "true", RMMSHIM_LIBRARY=odd), 125, "blank or a colon")

    def test_a_relative_path_becomes_absolute(self):
        result = subprocess.run([TOOL, "run", "printenv", "LD_PRELOAD"], capture_output=True, text=True,
                                cwd=os.path.dirname(LIBRARY), check=False,
                                env=environment(RMMSHIM_LIBRARY=os.path.basename(LIBRARY)))
        self.assertEqual(os.path.realpath(LIBRARY) + "\n", result.stdout)

    def test_it_is_found_beside_the_command_and_in_an_installation(self):
        for tool, library in (("bin/rmmshim", "lib/librmmshim.so"), ("bin/rmmshim", "bin/librmmshim.so"),
                              ("tool/rmmshim", "hook/librmmshim.so")):
            with self.subTest(library):
                root = tempfile.mkdtemp(dir=self.directory)
                for name, source in ((tool, TOOL), (library, LIBRARY)):
                    os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                    shutil.copy(source, os.path.join(root, name))
                result = rmmshim("run", "printenv", "LD_PRELOAD", tool=os.path.join(root, tool),
                                 RMMSHIM_LIBRARY=None)
                self.expect(result, 0)
                self.assertEqual(os.path.realpath(os.path.join(root, library)) + "\n", result.stdout)

    def test_without_a_library_nothing_starts(self):
        alone = shutil.copy(TOOL, os.path.join(self.directory, "rmmshim"))
        self.expect(rmmshim("run", "true", tool=alone, RMMSHIM_LIBRARY=None), 125, "set RMMSHIM_LIBRARY")


if __name__ == "__main__":
    unittest.main()
