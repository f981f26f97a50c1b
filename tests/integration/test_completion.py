# SPDX-License-Identifier: Apache-2.0
"""Completion in a shell, bash, zsh or fish: its name is the argument.  What is expected comes from the tables, as the files do.

meson sets TOOL, TABLES (rmmshim-tables), COMMANDS (the list of src/tool/meson.build), PROFILES and FILES."""
import os
import re
import shutil
import subprocess
import sys

import served
import support
from completion_shells import SHELLS

TOOL = os.environ["TOOL"]
COMMANDS = os.environ["COMMANDS"].split()
OPTION = re.compile(r"--[a-z][a-z-]*")
PROGRAM = "rmmshim-test-of-completion"
SHELL = sys.argv.pop(1)


def rows(name):
    """The cells of a table, without quotes; those with alternatives are lists."""
    text = subprocess.run([os.environ["TABLES"], name], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in text.splitlines()[2:]]


def bare(word):
    """Without the sign that a value follows, which some shells add only when they write the word."""
    return re.sub("^(--[a-z-]+|RMM_[A-Z_]+)=$", r"\1", word)


def help_of(command):
    option = "--help-all" if command == "run" else "--help"
    return subprocess.run([TOOL, command, option], stdout=subprocess.PIPE, text=True, check=True).stdout


RESOURCES = [name for name, *_ in rows("resources")]
VARIABLES = {name: (option, value) for name, option, value, _ in rows("variables")}


class Completion(support.Test):
    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        os.symlink(TOOL, self.path("bin/rmmshim"))
        self.program("bin/" + PROGRAM, "")
        environment = dict(support.environment(preload=[], driver=False), HOME=self.folder,
                           PATH=self.path("bin") + ":" + os.environ["PATH"])
        self.shell = SHELLS[SHELL](environment, self.folder)

    def program(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(self.path(name), 0o755)

    def offered(self, *lines):
        return self.shell.offered(["rmmshim " + line for line in lines])

    def expect(self, expected):
        """Line -> what is offered there."""
        for line, offered in zip(expected, self.offered(*expected)):
            with self.subTest(line):
                self.assertEqual(set(map(bare, offered)), set(map(bare, expected[line])))

    def test_every_command(self):
        self.expect({"": {"help", *COMMANDS}, "--": ["--help", "--version"], "nothing ": []})

    def test_every_option_of_every_command(self):
        expected = {}
        for command in COMMANDS:
            text = help_of(command)
            options = OPTION.findall(text.splitlines()[0])
            if command == "run":  # [OPTIONS]
                options = re.findall("(?m)^  (%s)" % OPTION.pattern, text)
                self.assertLessEqual({option for option, _ in VARIABLES.values()}, set(options))
            expected[command + " --"] = {"--help", *options}
        self.expect(expected)

    def test_every_value_that_is_a_word(self):
        expected = {}
        for name, (option, value) in VARIABLES.items():
            words = value.split("|") if re.fullmatch(r"[a-z0-9|]+", value) else []
            if words:
                expected["check %s=" % name] = ["%s=%s" % (name, word) for word in words]
                expected["run %s=" % option] = ["%s=%s" % (option, word) for word in words]
                if words != ["0", "1"]:
                    expected["run --quiet %s " % option] = words
        self.assertIn("run --free=", expected)
        self.expect(expected)

    def test_words_of_a_usage_line(self):
        sorts = re.search(r"--sort ([a-z|]+)", help_of("top")).group(1).split("|")
        self.expect({"top --sort ": sorts, "top --sort=": ["--sort=" + word for word in sorts],
                     "limit 1 no": ["none"], "stats al": ["all"], "run --framework-pools ": ["on", "off"]})

    def test_every_variable_and_resource(self):
        resources = set(RESOURCES)
        variables = {name + "=" for name in VARIABLES}
        self.expect({"check ": resources | variables, "check RMM_LIMIT=1GiB ": resources | variables, "check RMM_": variables,
                     "run --resource ": resources, "run --quiet --pinned-resource=": {
                         "--pinned-resource=" + resource for resource in resources},
                     "check RMM_MANAGED_RESOURCE=": {"RMM_MANAGED_RESOURCE=" + resource for resource in resources},
                     "resources ": RESOURCES})

    def test_served_processes(self):
        process = str(served.scene(self, "hold:%d" % (1 << 20)).pid)
        for offered in self.offered("limit ", "trim ", "trim --wait 1 ", "leaks ", "stats ", "doctor "):
            self.assertIn(process, offered)
        for offered in self.offered("limit 1 ", "ls ", "run --pid "):
            self.assertNotIn(process, offered)

    def test_profiles(self):
        names = {name[:-4] for name in os.listdir(os.environ["PROFILES"]) if name.endswith(".env")}
        self.program("mine.env", "")
        for offered in self.offered("run --profile ", "check --profile "):
            self.assertLessEqual(names | {"mine.env"}, offered)
        self.expect({"run --profile=cap": ["--profile=capped"]})

    def test_programs_and_their_words(self):
        self.program("a-file-of-its-own", "")
        for offered in self.offered(*(line + PROGRAM[:-2] for line in (
                "run ", "run --limit 1GiB ", "run --managed ", "run --managed=1 --free=wait ", "run -- ", "doctor ",
                *["run --managed 1 --free=wait "] * (SHELL != "zsh")))):  # which takes the 1 for the program
            self.assertEqual(offered, {PROGRAM})
        for offered in self.offered("run --quiet %s a-file" % PROGRAM, "run %s --limit a-file" % PROGRAM):
            self.assertEqual(offered, {"a-file-of-its-own"})

    def test_files(self):
        self.program("a-file-of-its-own", "")
        for offered in self.offered("run --json a-file", "run --log a-file", "report a-file", "report x -o a-file",
                                     "report x y --svg a-file", "export --format csv a-file"):
            self.assertEqual(offered, {"a-file-of-its-own"})
        offered, = self.offered("run --json=a-file")
        self.assertLessEqual(offered, {"a-file-of-its-own", "--json=a-file-of-its-own"})
        self.assertNotEqual(offered, set())

    def test_what_is_written(self):
        if not self.shell.written:
            self.skipTest("this shell writes nothing here")
        lines = {"ru": "run ", "run --free=w": "run --free=wait ", "run --free w": "run --free wait ",
                 "check poo": "check pool ", "check RMM_FRE": "check RMM_FREE=", "check RMM_FREE=w": "check RMM_FREE=wait ",
                 "top --sort pe": "top --sort peak ", "run --profile=cap": "run --profile=capped "}
        written = self.shell.written(["rmmshim " + line for line in lines])
        expected = ["rmmshim " + line for line in lines.values()]
        self.assertEqual(written, expected)


if __name__ == "__main__":
    if not shutil.which(SHELL):
        print("%s is not installed" % SHELL)
        sys.exit(77)
    support.main()
