# SPDX-License-Identifier: Apache-2.0
"""Programs that were built with sanitizers, by gcc and clang: they start, find what they find without us, and
report nothing of ours.  TOOL is the command."""
import os
import shutil
import subprocess
import tempfile

import support

TOOL = os.environ["TOOL"]
SOURCE = os.path.join(os.environ["SOURCE_ROOT"], "tests/integration/sanitized.c")

# What each finds.
WORDS = {"address": ["use", "fork", "leak", "overrun"], "leak": ["use", "fork", "leak"],
         "thread": ["use", "fork", "race"], "undefined": ["use", "fork"]}
MOST = {"RMM_POOL_SIZE": "64MiB", "RMM_PINNED_POOL_SIZE": "0", "RMM_MANAGED_POOL_SIZE": "0", "RMM_HOOKS": "all",
        "RMM_TRACKING": "text:/dev/null", "RMM_STATISTICS": "json:/dev/null"}
SETTINGS = [{"RMM_POOL_SIZE": "0"}, MOST,
            {"RMM_RESOURCE": "virtual", "RMM_LIMIT": "1GiB", "RMM_LOG": "/dev/null", "RMM_CONTROL": "thread"}]

OF_THE_HOST = ("RMM_PINNED_POOL_SIZE", "RMM_MANAGED_POOL_SIZE")


def without_randomisation():
    """gcc 12's ThreadSanitizer cannot place its memory where a kernel randomises addresses by more than 28 bits."""
    words = ["setarch", os.uname().machine, "-R"]
    switches = shutil.which("setarch") and subprocess.run(words + ["true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return words if switches else []


class Sanitizers(support.Test):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="rmmshim-test-")
        cls.addClassCleanup(folder.cleanup)
        cls.built = folder.name
        cls.around = without_randomisation()

    def build(self, compiler, sanitizer, *flags):
        """The program's path; skips where the compiler or the sanitizer's runtime is missing, or where the program
        does not run without us."""
        if not shutil.which(compiler):
            self.skipTest("no %s" % compiler)
        program = os.path.join(self.built, "-".join((compiler, sanitizer) + flags[:1]))
        if os.path.exists(program):
            return program
        done = subprocess.run([compiler, "-g", "-O1", "-fsanitize=" + sanitizer, *flags, SOURCE, "-o", program,
                               "-isystem", os.environ["CUDA_INCLUDE"], "-L" + support.HOSTCUDA, "-l:libcuda.so.1",
                               "-pthread", "-Wl,--allow-shlib-undefined"], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            self.skipTest("%s has no such runtime: %s" % (compiler, done.stderr.strip()[-200:]))
        alone = self.alone(program, "use")
        if alone.status or alone.stderr:
            os.unlink(program)
            self.skipTest("it does not run without us either: %s" % alone)
        return program

    def options(self):
        return {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=1:abort_on_error=0",
                "TSAN_OPTIONS": "atexit_sleep_ms=0", "HOSTCUDA_WAITS": "0"}

    def alone(self, program, word):
        return support.run([*self.around, program, word], preload=[], more=self.options())

    def found(self, result):
        """Kinds of what the sanitizer reported; pools and addresses aside."""
        return [line.split(":", 1)[1].split()[:3] for line in result.stderr.splitlines()
                if line.startswith("SUMMARY: ")]

    def check(self, program, sanitizer, settings=None):
        """Under all settings it does its work; what it is to find, it finds under those that have most.  A detector of races
        does not see when freed memory of the host is handed to another thread (rmmshim(7))."""
        settings = settings or SETTINGS
        if sanitizer == "thread":
            settings = [{name: value for name, value in setting.items() if name not in OF_THE_HOST} for setting in settings]
        for word in WORDS[sanitizer]:
            alone = self.alone(program, word)
            for setting in settings if word == "use" else settings[1:2] or settings:
                self.compare(alone, support.run([*self.around, program, word], setting, more=self.options()), setting)
        self.compare(self.alone(program, "use"), self.by_run(settings[0], program, "use"), "run")

    def by_run(self, settings, *command, **more):
        return support.run([*self.around, TOOL, "run", "--quiet", *command], settings, preload=[],
                           more=dict(self.options(), RMMSHIM_LIBRARY=support.SHIM, **more))

    def compare(self, alone, result, what):
        self.assertEqual(result.outcome, alone.outcome, "%s\n%s" % (what, result))
        self.assertEqual(self.found(result), self.found(alone), "%s\n%s" % (what, result))
        self.assertEqual(result.said, [], what)
        if not alone.stderr:
            self.assertEqual(result.stderr, "", what)

    def test_gcc_address(self):
        self.check(self.build("gcc", "address"), "address")

    def test_gcc_leak(self):
        self.check(self.build("gcc", "leak"), "leak")

    def test_gcc_thread(self):
        self.check(self.build("gcc", "thread"), "thread")

    def test_gcc_undefined(self):
        self.check(self.build("gcc", "undefined"), "undefined")

    def test_clang_address(self):
        self.check(self.build("clang", "address"), "address")

    def test_clang_leak(self):
        self.check(self.build("clang", "leak"), "leak")

    def test_clang_thread(self):
        self.check(self.build("clang", "thread"), "thread")

    def test_clang_undefined(self):
        self.check(self.build("clang", "undefined"), "undefined")

    def test_clang_shared_runtime(self):
        runtime = subprocess.run(["clang", "-print-file-name=libclang_rt.asan-x86_64.so"], stdout=subprocess.PIPE, text=True,
                                 check=False).stdout.strip() if shutil.which("clang") else ""
        program = self.build("clang", "address", "-shared-libsan", "-Wl,-rpath," + os.path.dirname(runtime))
        self.check(program, "address", settings=SETTINGS[:1])

    def test_below_a_shell(self):
        """What `run` starts is not what is built with the sanitizer."""
        program = self.build("gcc", "address")
        for word in ("use", "leak"):
            result = self.by_run(SETTINGS[0], "sh", "-c", '"$0" "$1"; exit $?', program, word)
            self.compare(self.alone(program, word), result, word)

    def test_options_of_the_program(self):
        """They hold, and do not keep it from starting under `run`, but for what the user asks for."""
        program = self.build("gcc", "address", "-DOWN_OPTIONS")
        for word, status in (("use", 0), ("leak", 21), ("overrun", 21)):
            self.assertEqual(self.by_run(SETTINGS[0], program, word).status, status, word)
        result = support.run([TOOL, "run", "--quiet", program], SETTINGS[0], preload=[],
                             more={"RMMSHIM_LIBRARY": support.SHIM, "ASAN_OPTIONS": "verify_asan_link_order=1"})
        self.assertIn("does not come first", result.stderr)

    def test_runtime_that_is_preloaded(self):
        """For a library that was built with it, as an extension module of Python, in either order."""
        runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], stdout=subprocess.PIPE, text=True,
                                 check=False).stdout.strip() if shutil.which("gcc") else ""
        if not os.path.isabs(runtime):
            self.skipTest("gcc has no such runtime")
        command = [support.program("memory_steps")]
        plain = support.run_plain(command)
        for preload in ([runtime, support.SHIM], [support.SHIM, runtime]):
            result = support.run(command, SETTINGS[0], preload=preload)
            self.assertEqual(result.outcome, plain.outcome, result)
        result = support.run([TOOL, "run", "--quiet"] + command, SETTINGS[0], preload=[runtime],
                             more={"RMMSHIM_LIBRARY": support.SHIM})
        self.assertEqual(result.outcome, plain.outcome, result)


if __name__ == "__main__":
    support.main()
