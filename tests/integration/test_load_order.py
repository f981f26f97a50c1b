# SPDX-License-Identifier: Apache-2.0
"""Objects that do not stand where they should: the driver in front of the library, and behind it libraries with
variables that have names of the driver's functions.  TOOL is the command."""
import json
import os
import subprocess
import sys

import support

TOOL = os.environ["TOOL"]
POOL = {"RMM_POOL_SIZE": "0"}
WAITS = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline()"


def library(name):
    return os.path.join(support.PROGRAMS, "lib%s.so" % name)


class LoadOrder(support.Test):
    def tool(self, *words, settings=None, preload=()):
        return support.run([TOOL, *words], settings, preload=preload, more={"RMMSHIM_LIBRARY": support.SHIM})

    def start(self, command, preload, settings=None):
        """A process that waits until the test is over; its number."""
        process = subprocess.Popen(command, env=support.environment(settings, preload=preload), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (process.stdin.close(), process.stdout.close(), process.wait()))
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return str(process.pid)


class Variables(LoadOrder):
    def test_names_that_nobody_binds(self):
        """They are not exported, and found by look-ups all the same."""
        for command in ([support.program("wrangler_old")], [support.program("wrangler_opened"), library("wrangler_old")]):
            result = self.assert_same(command, POOL)
            self.assertEqual(result.outcome, (0, "found 1\n"), result)
        self.assertNotIn("names:", self.tool("doctor", support.program("wrangler_old")).stdout)

    def test_variables_that_are_not_redirected(self):
        program = support.program("wrangler_protected")
        self.assert_same([program], POOL)
        self.assertNotIn("names:", self.tool("doctor", program).stdout)
        self.assertEqual(self.tool("run", "--quiet", program, settings=POOL).stderr, "")

    def test_run_loads_it_first(self):
        """It is served then, and so it is by hand, as a plug-in too."""
        report = self.path("report.json")
        settings = dict(POOL, RMM_STATISTICS="json:" + report)
        plain = support.run_plain([support.program("wrangler")])
        self.assertEqual(plain.outcome, (0, "allocated with 0\n"), plain)
        first = [library("wrangler"), support.SHIM]
        for run in (lambda: self.tool("run", "--quiet", support.program("wrangler"), settings=settings),
                    lambda: support.run([support.program("wrangler")], settings, preload=first),
                    lambda: support.run([support.program("wrangler_opened"), library("wrangler")], settings, preload=first)):
            result = run()
            self.assertEqual(result.outcome, plain.outcome, result)
            with open(report, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["devices"][0]["kind"], "device")
            os.unlink(report)
        said = self.tool("run", "--quiet", support.program("wrangler"), settings=POOL).stderr.splitlines()
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"libwrangler\.so defines 5 global variables with the names of driver functions \(.*\bcuMemAlloc_v2\b.*\): "
                                  "`rmmshim run` has put that file first in LD_PRELOAD, so the program does not crash; nothing else needs to be done$")

    def test_an_object_that_only_this_program_can_load(self):
        """What it needs is found by the program's run path alone: a child would not start."""
        needed, wrangler = self.path("libneeded.so"), self.path("libwrangler.so")
        source, program = self.path("source.c"), self.path("program")
        with open(source, "w", encoding="utf-8") as file:
            file.write("void (*cuMemAlloc_v2)(void);\nvoid set(void) { cuMemAlloc_v2 = set; }\n")
        with open(self.path("needed.c"), "w", encoding="utf-8") as file:
            file.write("int needed;\n")
        with open(self.path("program.c"), "w", encoding="utf-8") as file:
            file.write("int main(void) { return 0; }\n")
        for command in (["-shared", "-fPIC", self.path("needed.c"), "-Wl,-soname,libneeded.so", "-o", needed],
                        ["-shared", "-fPIC", source, "-Wl,--no-as-needed", needed, "-Wl,-soname,libwrangler.so", "-o", wrangler],
                        [self.path("program.c"), "-Wl,--no-as-needed", wrangler, "-Wl,--disable-new-dtags",
                         "-Wl,-rpath," + self.folder, "-o", program]):
            subprocess.run(["cc"] + command, check=True)
        result = self.tool("run", "--quiet", program, settings=POOL)
        self.assertEqual(result.status, 0, result)
        self.assertRegex(result.stderr, "defines 1 global variable with the names of driver functions .*: functions of librmmshim.so take their place, and the program will crash: run it without rmmshim\n$")

    def test_doctor(self):
        for what in (support.program("wrangler"), library("wrangler")):
            result = self.tool("doctor", what)
            self.assertRegex(result.stdout, r"(?m)^  - names: .*libwrangler\.so defines 5 global variables with the names of driver functions "
                                            r"\(.*\bcuMemAlloc_v2\b.*\): .*crashes -> load that file first: LD_PRELOAD=THAT-FILE:librmmshim.so ")
        by_hand = self.tool("doctor", support.program("wrangler"), preload=[library("wrangler"), support.SHIM])
        self.assertNotIn("names:", by_hand.stdout)

    def test_doctor_of_a_process(self):
        opens = "import ctypes; ctypes.CDLL(%r); " % library("wrangler") + WAITS
        result = self.tool("doctor", self.start([sys.executable, "-c", opens], [support.SHIM], POOL))
        self.assertEqual(result.status, 1)
        self.assertRegex(result.stdout, r"(?m)^  ! names: .*libwrangler\.so defines 5 global variables .*\bcuMemAlloc_v2\b")
        first = [library("wrangler"), support.SHIM]
        self.assertNotIn("names:", self.tool("doctor", self.start([sys.executable, "-c", opens], first, POOL)).stdout)


class DriverFirst(LoadOrder):
    FIRST = ["libcuda.so.1", support.SHIM]
    SAID = "libcuda.so.1 was loaded before librmmshim.so, so rmmshim does not see the calls of code that is " \
           "linked with the driver%s; put librmmshim.so first in LD_PRELOAD"
    LIMIT = ", and no limit applies to them"

    def test_a_look_up_says_it_once(self):
        looks = ("import ctypes\n"
                 "driver = ctypes.CDLL('libcuda.so.1')\n"
                 "print(driver.cuInit(0), bool(driver.cuMemAlloc_v2), bool(driver.cuMemFree_v2))\n")
        for command in ([sys.executable, "-c", looks], [support.program("sample_vector_runtime_static")]):
            plain = support.run_plain(command)
            for settings, more in ((POOL, ""), ({"RMM_LIMIT": "1GiB"}, self.LIMIT)):
                result = support.run(command, settings, preload=self.FIRST)
                self.assertEqual(result.outcome, plain.outcome, result)
                self.assertEqual([line[line.index("libcuda"):] for line in result.said], [self.SAID % more], result)
            for settings, preload in (({}, self.FIRST), (dict(POOL, RMM_ONLY="other"), self.FIRST),
                                      (POOL, self.FIRST[::-1]), (POOL, [support.SHIM])):
                self.assertEqual(support.run(command, settings, preload=preload).stderr, "", (settings, preload))

    def test_run_puts_the_library_first(self):
        """A limit holds there."""
        command = ["run", "--quiet", "--limit", "64MiB", support.program("memory_steps"), "device", "128"]
        expected = self.tool(*command)
        for preload in (["libcuda.so.1"], self.FIRST):
            result = self.tool(*command, preload=preload)
            self.assertEqual(result.outcome, expected.outcome, result)
        self.assertNotEqual(expected.outcome, self.tool(*command[:2], "--limit", "1GiB", *command[4:]).outcome)

    def test_doctor(self):
        result = self.tool("doctor", support.program("sample_vector_driver"), preload=self.FIRST)
        self.assertEqual(result.status, 1, result)
        self.assertRegex(result.stdout, r"^GPU memory is not served: .*libcuda\.so\.1 comes before librmmshim\.so: what the program allocates by "
                                        "calling the driver directly is neither served nor limited\n")
        for preload in (self.FIRST[::-1], ["libcuda.so.1"], []):
            self.assertNotIn("comes before librmmshim.so:",
                             self.tool("doctor", support.program("sample_vector_driver"), preload=preload).stdout)

    def test_doctor_of_a_process(self):
        for preload, wrong in ((self.FIRST, True), (self.FIRST[::-1], False)):
            for settings in (POOL, {"RMM_LIMIT": "1GiB"}):
                result = self.tool("doctor", self.start([sys.executable, "-c", WAITS], preload, settings))
                self.assertEqual("comes before librmmshim.so: what" in result.stdout.splitlines()[0], wrong, result)
                self.assertEqual(result.status, 1)


if __name__ == "__main__":
    support.main()
