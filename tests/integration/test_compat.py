# SPDX-License-Identifier: Apache-2.0
"""RMM_COMPAT=hami: the variables of HAMi-core's memory limit, and %q{VAR} in sizes.  A limit of 8 MiB refuses 16 MiB.
TOOL is the command."""
import os

import support
from support import run

TOOL = os.environ["TOOL"]
STEPS = support.program("memory_steps")
REFUSED = "device 16: 2\n"
ALL = "CUDA_DEVICE_MEMORY_LIMIT"


def allocate(settings):
    return run([STEPS, "device", "16"], settings)


class Compat(support.Test):
    def test_values_are_read_as_hami_core_reads_them(self):
        for text in ("15m", "15M", "16383k", "16383K", "16777215", "0xfm", "017m"):
            self.assertEqual(allocate({"RMM_COMPAT": "hami", ALL: text}).outcome, (0, REFUSED), text)
        for text in ("1g", "1G", "16m", "16M", "16384k", "16384K", "16777216", "0x10m", "020m", "0", "0g", ""):
            self.assertEqual(allocate({"RMM_COMPAT": "hami", ALL: text}).outcome, (0, ""), text)

    def test_without_rmm_compat_they_are_another_s(self):
        result = allocate({ALL: "8m", ALL + "_0": "nonsense"})
        self.assertEqual((result.outcome, result.stderr), ((0, ""), ""))

    def test_a_device_has_its_own(self):
        for settings, refused in (({ALL + "_0": "8m"}, True), ({ALL + "_1": "8m"}, False),
                                  ({ALL: "1g", ALL + "_0": "8m"}, True), ({ALL: "8m", ALL + "_0": "1g"}, False),
                                  ({ALL: "8m", ALL + "_0": "0"}, True), ({ALL + "_00": "8m"}, False),
                                  ({ALL + "_64": "8m"}, False), ({ALL + "S": "8m"}, False)):
            result = allocate(dict(settings, RMM_COMPAT="hami"))
            self.assertEqual(result.outcome, (0, REFUSED if refused else ""), settings)

    def test_rmm_limit_wins_and_rmm_verbose_says_so(self):
        for own in ("RMM_LIMIT", "RMM_LIMIT_0"):
            result = allocate({"RMM_COMPAT": "hami", own: "1GiB", ALL + "_0": "8m", "RMM_VERBOSE": "1"})
            self.assertEqual(result.outcome, (0, ""))
            self.assertIn("RMM_COMPAT: %s_0=8m is ignored, because %s is set" % (ALL, own), result.said)

    def test_rmm_verbose_names_what_was_taken(self):
        result = allocate({"RMM_COMPAT": "hami", ALL: "8m", ALL + "_0": "0", ALL + "_1": "1g", ALL + "_10": "1g",
                           ALL + "_101": "1g", "RMM_VERBOSE": "1"})
        for line in ("%s=8m is read as RMM_LIMIT" % ALL, "%s_0=0 is ignored, because 0 means no limit" % ALL,
                     "%s_1=1g is read as RMM_LIMIT_1" % ALL, "%s_10=1g is read as RMM_LIMIT_10" % ALL):
            line = "RMM_COMPAT: " + line
            self.assertIn(line, result.said)
        self.assertEqual(len([line for line in result.said if " is read as " in line]), 3, result.said)
        result = allocate({"RMM_COMPAT": "hami", ALL: "0", "RMM_POOL_SIZE": "64MiB", "RMM_VERBOSE": "1"})
        self.assertIn("RMM_COMPAT: %s=0 is ignored, because 0 means no limit" % ALL, result.said)
        self.assertEqual(allocate({"RMM_COMPAT": "hami", ALL: "8m"}).said, [])

    def test_a_malformed_value_is_a_bad_setting(self):
        for text, place in (("8GiB", "8G^iB"), ("8x", "8^x"), ("x", "^x"), ("-1", "^-1"), ("1.5g", "1^.5g"), ("8 g", "8^ g"),
                            ("99999999999g", "^99999999999g"), ("999999999999999999999", "^9")):
            result = allocate({"RMM_COMPAT": "hami", ALL + "_0": text})
            self.assertEqual((result.status, len(result.said)), (78, 1), result)
            self.assertIn("%s_0=%s" % (ALL, place), result.said[0])
        self.assertEqual(allocate({"RMM_COMPAT": "hamy", ALL: "8m"}).status, 78)

    def test_run_has_the_option(self):
        for option in ([], ["--compat", "hami"]):
            result = run([TOOL, "run"] + option + [STEPS, "device", "16"], {ALL: "8m"}, preload=[],
                         more={"RMMSHIM_LIBRARY": support.SHIM})
            self.assertEqual(result.stdout, REFUSED if option else "", result)
        result = run([TOOL, "run", "--compat", "hami", STEPS], {ALL: "8GiB"}, preload=[])
        self.assertEqual((result.status, result.stdout), (125, ""))


class Expanded(support.Test):
    def test_a_size_may_be_another_variable_s(self):
        for text, value in (("%q{MINE}", "8MiB"), ("%q{MINE}MiB", "8"), ("%q{MINE}", "0.1%")):
            result = allocate({"MINE_TOO": "1GiB", "RMM_LIMIT": text, "MINE": value})
            self.assertEqual(result.outcome, (0, REFUSED), (text, value))

    def test_what_is_wrong_with_it_is_one_line(self):
        for text, value, line in (("%q{NOBODYS}", "", "RMM_LIMIT=^%q{NOBODYS}: %q{...} names an environment variable that is not set"),
                                  ("%q", "", "RMM_LIMIT=^%q: expected %q{VARIABLE}"),
                                  ("1%q{MINE", "", "RMM_LIMIT=1^%q{MINE: expected %q{VARIABLE}"),
                                  ("%q{MINE}", "10Q", "RMM_LIMIT=10^Q: unknown unit"),
                                  ("%q{MINE}", "8", "RMM_LIMIT=^8: ")):
            result = allocate({"RMM_LIMIT": text, "MINE": value})
            self.assertEqual((result.status, len(result.said)), (78, 1), result)
            self.assertTrue(result.said[0].startswith(line), result.said)


if __name__ == "__main__":
    support.main()
