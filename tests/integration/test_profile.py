# SPDX-License-Identifier: Apache-2.0
"""Profiles: files of settings for `rmmshim run` and `rmmshim check`.  meson sets TOOL, PROFILES (the folder of the
shipped ones) and SOURCE_ROOT."""
import os
import re
import shutil
import subprocess
import unittest

import support

TOOL = os.environ["TOOL"]
SHIPPED = os.environ["PROFILES"]
NAMES = ["capped", "debug", "fast", "shared", "spill"]
CITED = re.compile(r"\b(rmmshim(?:-\w+)?)\((\d)\)|\b((?:tests/[\w/]+|README)\.md)")


def tool(*arguments, **how):
    return support.run([TOOL, *arguments], preload=[], driver=False,
                       more=dict({"RMMSHIM_LIBRARY": support.SHIM}, **how.pop("more", {})), **how)


class Test(support.Test):
    def profile(self, text, name="settings.env"):
        path = self.path(name)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return path

    def settings(self, *options, left_out=(), **environment):
        """The variables that the program finds.  Lines that are left out are told, each by the beginning of its text
        behind the file's name."""
        result = tool("run", "--quiet", *options, "env", more=environment)
        told = result.stderr.splitlines()
        self.assertEqual((result.status, len(told)), (0, len(left_out)), result)
        for line, text in zip(told, left_out):
            self.assertIn(".env:" + text, line)
        return dict(line.split("=", 1) for line in result.stdout.splitlines() if line.startswith("RMM_"))

    def refused(self, text, *lines, **environment):
        """Each line, behind the file's name; nothing is started."""
        path = self.profile(text)
        for command, status in (("run", 125), ("check", 1)):
            result = tool(command, "--profile", path, *["env"][:command == "run"], more=environment)
            self.assertEqual((result.status, result.stdout), (status, ""), result)
            self.assertEqual(result.stderr, "".join("rmmshim: %s:%s\n" % (path, line) for line in lines))


class Precedence(Test):
    def test_a_profile_s_settings_reach_the_program(self):
        path = self.profile("# text\n\nRMM_LIMIT=1GiB\n  RMM_POOL_SIZE_1=64MiB\nRMM_RESOURCE_2=pool(cuda, growth=rmm)")
        self.assertEqual(self.settings("--profile", path),
                         {"RMM_LIMIT": "1GiB", "RMM_POOL_SIZE_1": "64MiB", "RMM_RESOURCE_2": "pool(cuda, growth=rmm)"})

    def test_they_hold(self):
        path = self.profile("RMM_LIMIT=8MiB\n")
        for option, refused in (([], False), (["--profile", path], True)):
            result = support.run([TOOL, "run", *option, support.program("memory_steps"), "device", "16"], preload=[],
                                 more={"RMMSHIM_LIBRARY": support.SHIM})
            self.assertEqual("device 16: 2" in result.stdout, refused, result)

    def test_an_option_wins_wherever_it_stands(self):
        path = self.profile("RMM_LIMIT=1GiB\nRMM_POOL_SIZE=64MiB\n")
        for options in (["--limit", "2GiB", "--profile", path], ["--profile=" + path, "--limit=2GiB"]):
            self.assertEqual(self.settings(*options), {"RMM_LIMIT": "2GiB", "RMM_POOL_SIZE": "64MiB"})

    def test_the_environment_wins(self):
        path = self.profile("RMM_LIMIT=1GiB\nRMM_POOL_SIZE=64MiB\n")
        self.assertEqual(self.settings("--profile", path, RMM_LIMIT="2GiB"),
                         {"RMM_LIMIT": "2GiB", "RMM_POOL_SIZE": "64MiB"})
        self.assertEqual(self.settings("--profile", path, RMM_LIMIT=""), {"RMM_LIMIT": "", "RMM_POOL_SIZE": "64MiB"})

    def test_what_is_set_for_all_devices_wins_over_the_profile_s_device(self):
        path = self.profile("RMM_LIMIT_1=1GiB\nRMM_FREE=wait\n")
        self.assertEqual(self.settings("--profile", path, RMM_LIMIT="2GiB", RMM_FREE_1="deferred"),
                         {"RMM_LIMIT": "2GiB", "RMM_FREE": "wait", "RMM_FREE_1": "deferred"})

    def test_a_contradiction_with_what_is_set_starts_nothing(self):
        """The line says where the profile's part of it is, and a setting to nothing takes that part away."""
        for text, options, line in (
                ("RMM_FREE=wait\nRMM_POOL_SIZE=64MiB\n", ["--resource", "cuda"], "2: RMM_POOL_SIZE=64MiB: RMM_RESOURCE "
                                                                                 "already says which memory resources "
                                                                                 "are used: remove one of the two "
                                                                                 "settings"),
                ("RMM_LOG=a.csv\n", ["--resource", "logging(cuda, path=b.csv)"], "1: RMM_LOG=a.csv: RMM_RESOURCE "
                                                                                 "already writes a log: remove "
                                                                                 "'logging' from RMM_RESOURCE, or unset "
                                                                                 "RMM_LOG"),
                ("RMM_PREFETCH=1\nRMM_MANAGED=1\n", ["--managed", "0"], "1: RMM_PREFETCH=1: only managed")):
            with self.subTest(text):
                path = self.profile(text)
                result = tool("run", "--profile", path, *options, "env")
                self.assertEqual((result.status, result.stdout, result.stderr.count("\n")), (125, "", 1), result)
                self.assertTrue(result.stderr.startswith("rmmshim: %s:%s" % (path, line)), result)
                variable = line.split(":")[1].strip().split("=")[0]
                self.assertEqual(tool("run", "--quiet", "--profile", path, *options, "true", more={variable: ""}).outcome, (0, ""))

    def test_the_profile_s_limit_holds_for_what_is_set(self):
        path = self.profile("RMM_LIMIT=1GiB\nRMM_FREE=wait\n")
        result = tool("run", "--profile", path, "--pool-size", "2GiB", "true")
        self.assertEqual((result.status, result.stderr.splitlines()), (125, [
            "rmmshim: RMM_POOL_SIZE=2GiB: 'pool' has an initial size of 2GiB, which is above the limit of 1GiB (RMM_LIMIT)"]), result)

    def test_a_profile_may_need_what_is_set(self):
        path = self.profile("RMM_PREFETCH=1\n")
        self.assertEqual(self.settings("--profile", path, "--managed"), {"RMM_PREFETCH": "1", "RMM_MANAGED": "1"})

    def test_a_limit_of_hami_wins(self):
        path, every = self.profile("RMM_LIMIT=80%\nRMM_LIMIT_1=1GiB\nRMM_LIMIT_2=1GiB\n"), "CUDA_DEVICE_MEMORY_LIMIT"
        told = "%d: RMM_LIMIT%s is ignored, because the environment sets CUDA_DEVICE_MEMORY_LIMIT%s, which RMM_COMPAT has rmmshim obey: " \
               "unset CUDA_DEVICE_MEMORY_LIMIT%s to use the profile's limit"
        for given, left_out, expected in (
                ({every: "64m"}, [(1, "", ""), (2, "_1", ""), (3, "_2", "")], {}),
                ({every + "_1": "0x40m"}, [(1, "", "_1"), (2, "_1", "_1")], {"RMM_LIMIT_2": "1GiB"}),
                ({every: "0"}, [], {"RMM_LIMIT": "80%", "RMM_LIMIT_1": "1GiB", "RMM_LIMIT_2": "1GiB"})):
            with self.subTest(given):
                self.assertEqual(self.settings("--profile", path, RMM_COMPAT="hami", **given,
                                               left_out=[told % (*words, words[-1]) for words in left_out]),
                                 dict(expected, RMM_COMPAT="hami"))
        self.assertEqual(self.settings("--profile", path, **{every: "64m"})["RMM_LIMIT"], "80%")
        result = tool("run", "--profile", path, "true", more={every: "64MiB", "RMM_COMPAT": "hami"})
        self.assertEqual(result.status, 125, result)
        self.assertIn("rmmshim: CUDA_DEVICE_MEMORY_LIMIT=64M^iB: only one of the letters", result.stderr)

    def test_a_limit_of_hami_holds(self):
        path = self.profile("RMM_LIMIT=1GiB\n")
        result = support.run([TOOL, "run", "--compat", "hami", "--profile", path, support.program("memory_steps"), "device",
                              "16"], preload=[], more={"RMMSHIM_LIBRARY": support.SHIM, "CUDA_DEVICE_MEMORY_LIMIT": "8m"})
        self.assertIn("device 16: 2", result.stdout, result)

    def test_check_does_the_same(self):
        path = self.profile("RMM_LIMIT=1GiB\nRMM_POOL_SIZE=64MiB\n")
        for given, expected in (([], ["at most 1GiB", "initial_size=64MiB"]),
                                (["RMM_LIMIT=2GiB"], ["at most 2GiB", "initial_size=64MiB"]),
                                (["RMM_RESOURCE=managed", "RMM_POOL_SIZE="], ["at most 1GiB", "managed"])):
            for arguments in ([*given, "--profile", path], ["--profile=" + path, *given]):
                result = tool("check", *arguments, more={"RMM_LIMIT": "3GiB"})
                self.assertEqual((result.status, result.stderr), (0, ""))
                for text in expected:
                    self.assertIn(text, result.stdout)
        result = tool("check", "--profile", path, "RMM_RESOURCE=managed")
        self.assertEqual(result.status, 1)
        self.assertIn("%s:2: RMM_POOL_SIZE=64MiB: RMM_RESOURCE already says" % path, result.stderr)
        result = tool("check", "--profile", path, "pool(cuda)")
        self.assertEqual(result.status, 2)
        self.assertIn("RMM_RESOURCE='pool(cuda)'", result.stderr)


class Lines(Test):
    def test_a_bad_value_says_file_and_line(self):
        self.refused("#\nRMM_POOL_SIZE=1GiB\nRMM_LIMIT=4Q\n", "3: RMM_LIMIT=4^Q: unknown unit; the possible units are "
                     "B K KB KiB M MB MiB G GB GiB T TB TiB %")
        self.refused("RMM_FREE=later\n", "1: RMM_FREE=^later: unknown value; the possible values are deferred, wait, "
                                         "immediate")

    def test_a_contradiction_says_file_and_line(self):
        self.refused("RMM_RESOURCE=cuda\nRMM_POOL_SIZE=1GiB\n",
                     "2: RMM_POOL_SIZE=1GiB: RMM_RESOURCE already says which memory resources are used: remove one of "
                     "the two settings")
        self.refused("RMM_PREFETCH=1\n", "1: RMM_PREFETCH=1: only managed memory can be prefetched: also set RMM_MANAGED=1 "
                     "or RMM_FALLBACK=managed")

    def test_what_the_profile_does_not_set_is_not_its_line(self):
        path = self.profile("RMM_LIMIT=1GiB\n")
        result = tool("run", "--profile", path, "--limit", "4Q", "true")
        self.assertTrue(result.stderr.startswith("rmmshim: RMM_LIMIT=4^Q: "), result)

    def test_a_misspelt_name_gets_the_nearest(self):
        self.refused("RMM_POOLSIZE=1GiB\nMM_LIMIT=1GiB\nRMM_LIMIT_GPU0=1\n",
                     "1: RMM_POOLSIZE: unknown variable; did you mean RMM_POOL_SIZE?",
                     "2: MM_LIMIT is not a variable of rmmshim, and a profile (a file of settings) may contain "
                     "only those; did you mean RMM_LIMIT?",
                     "3: RMM_LIMIT_GPU0: 'GPU0' is not the number of a device; did you mean RMM_LIMIT_0?")

    def test_other_programs_variables_are_refused(self):
        for name in ("PATH", "LD_PRELOAD", "RMMSHIM_LIBRARY", "RMM_LOG_FILE", "RMM_", "R" * 200):
            self.refused(name + "=1\n", "1: " + (
                name + " is not a variable of rmmshim, and a profile (a file of settings) may contain only "
                       "those" if len(name) < 128
                else "expected VARIABLE=value, or a comment after #"))

    def test_what_is_no_assignment_is_refused(self):
        for line in ("RMM_LIMIT", "export RMM_LIMIT=1GiB", "RMM_LIMIT =1GiB", "=1GiB", "; text", "RMM_LIMIT: 1GiB",
                     "\N{BYTE ORDER MARK}RMM_LIMIT 1"):
            self.refused(line + "\n", "1: expected VARIABLE=value, or a comment after #")

    def test_what_systemd_and_docker_read_differently_is_refused(self):
        for line in ("RMM_LIMIT='1GiB'", 'RMM_LIMIT="1GiB"', "RMM_LIMIT= 1GiB", "RMM_LIMIT=1GiB ", "RMM_LIMIT=1GiB\r",
                     "RMM_LOG=a\\b"):
            self.refused("RMM_FREE=wait\n" + line + "\n", "2: remove backslashes and carriage returns, and quotes and blanks "
                         "around the value: systemd and docker read them differently")

    def test_a_variable_stands_there_once(self):
        self.refused("RMM_LIMIT=1GiB\nRMM_LIMIT_1=1GiB\nRMM_LIMIT=2GiB\n", "3: line 1 sets the same variable: remove one of the two lines")

    def test_files_that_are_none(self):
        os.mkdir(self.path("folder"))
        for path, reason in ((self.path("nothing"), "No such file or directory"), (self.path("folder"), "Is a directory"),
                             (self.profile("RMM_LIMIT=1GiB\0\n", "zero"), "the file is not a text file"),
                             (self.profile("#" * 65536 + "\n", "large"), "the file is larger than 64 KiB")):
            result = tool("run", "--profile", path, "true")
            self.assertEqual((result.status, result.stderr), (125, "rmmshim: --profile: %s: %s\n" % (path, reason)))
        self.assertEqual(self.settings("--profile", self.profile("#" * 65535 + "\n")), {})
        self.assertEqual(self.settings("--profile", "/dev/null"), {})


class Names(Test):
    def test_an_unknown_one_gets_the_nearest(self):
        for command, status in (("run", 125), ("check", 1)):
            result = tool(command, "--profile", "cappd", *["true"][:command == "run"])
            self.assertEqual((result.status, result.stderr),
                             (status, "rmmshim: unknown profile 'cappd'; did you mean 'capped'?\n"))

    def test_a_file_here_needs_no_slash(self):
        self.profile("RMM_LIMIT=3GiB\n", "mine.env")
        self.profile("RMM_LIMIT=3GiB\n", "capped")
        for name, limit in (("mine.env", "3GiB"), ("./capped", "3GiB"), ("capped", "80%")):
            result = tool("run", "--quiet", "--profile", name, "printenv", "RMM_LIMIT", cwd=self.folder)
            self.assertEqual((result.stdout, result.stderr), (limit + "\n", ""))

    def test_wrong_usage(self):
        for arguments, line in ((["--profile"], "--profile needs a value"), (["--profile="], "--profile needs a value"),
                                (["--profile=capped", "--profile", "fast"], "--profile")):
            for command in ("run", "check"):
                result = tool(command, *arguments)
                self.assertIn(result.status, (125, 2))
                self.assertIn(line, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)

    def test_they_are_found_in_an_installation(self):
        os.makedirs(self.path("bin"))
        copy = shutil.copy(TOOL, self.path("bin/rmmshim"))
        self.assertEqual(support.run([copy, "check", "--profile", "mine"], preload=[]).status, 1)
        os.makedirs(self.path("share/rmmshim/profiles"))
        shutil.copy(self.profile("RMM_LIMIT=1GiB\n"), self.path("share/rmmshim/profiles/mine.env"))
        self.assertIn("at most 1GiB", support.run([copy, "check", "--profile", "mine"], preload=[]).stdout)


class Shipped(Test):
    def test_each_is_good_and_listed(self):
        self.assertEqual(sorted(name for name in os.listdir(SHIPPED) if name.endswith(".env")),
                         [name + ".env" for name in NAMES])
        text = tool("run", "--help-all").stdout
        for name in NAMES:
            result = tool("check", "--profile", name)
            self.assertEqual((result.status, result.stderr), (0, ""))
            self.assertRegex(result.stdout, "^every device")
            self.assertRegex(text, "(?m)^  %s +[a-z]" % name)

    def test_each_cites_figures_that_stand_where_it_says(self):
        """Numbers with a unit of a paragraph of comments stand in a file that the paragraph names."""
        root = os.environ["SOURCE_ROOT"]
        for name in NAMES:
            with open(os.path.join(SHIPPED, name + ".env"), encoding="utf-8") as file:
                paragraphs = re.split(r"(?m)^(?:#|RMM_.*)$", file.read())
            text = ""
            for paragraph in paragraphs[1:]:
                paragraph = " ".join(line.lstrip("# ") for line in paragraph.splitlines())
                cited = ""
                for page, section, path in CITED.findall(paragraph):
                    path = path or "src/tool/man/%s.%s.md" % (page, section)
                    with open(os.path.join(root, path), encoding="utf-8") as file:
                        cited += file.read()
                for number in re.findall(r"(?<![\w.])(\d+\.\d+|\d+(?= (?:us|ns|ms)\b))", paragraph):
                    with self.subTest("%s: %s" % (name, number)):
                        self.assertRegex(cited, r"(?<![\d.])%s(?![\d])" % re.escape(number))
                text += cited
            self.assertNotEqual(text, "", name)

    def test_each_serves(self):
        plain = support.run_plain([support.program("sample_vector_runtime_shared")])
        for name in NAMES:
            result = support.run([TOOL, "run", "--quiet", "--profile", name, support.program("sample_vector_runtime_shared")],
                                 preload=[], more={"RMMSHIM_LIBRARY": support.SHIM})
            self.assertEqual(result.outcome, plain.outcome, result)

    @unittest.skipUnless(shutil.which("systemd-run") and os.path.exists("/run/systemd/system"), "no systemd runs here")
    def test_systemd_reads_them_alike(self):
        for name in NAMES:
            result = subprocess.run(["systemd-run", "--pipe", "--wait", "--quiet", "-p", "EnvironmentFile=%s/%s.env" %
                                     (SHIPPED, name), "env"], capture_output=True, text=True, check=True)
            self.assertEqual({line for line in result.stdout.splitlines() if line.startswith("RMM_")},
                             {"%s=%s" % pair for pair in self.settings("--profile", name).items()})


if __name__ == "__main__":
    support.main()
