# SPDX-License-Identifier: Apache-2.0
"""RMM_ONLY: of a tree of programs only some are served.  A limit shows which: it refuses 16 MiB.  TOOL is the command."""
import os
import shutil
import sys

import support
from support import run

TOOL = os.environ["TOOL"]
LIMIT = {"RMM_LIMIT": "8MiB"}
REFUSED = "device 16: 2\n"

SCRIPT = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(16 << 20)))
"""


class Only(support.Test):
    def copy(self, name):
        return shutil.copy(support.program("memory_steps"), self.path(name))

    def script(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def tree(self):
        """A shell script that starts three programs."""
        return self.script("tree.sh", "".join("echo %s\n%s device 16\n" % (name, self.copy(name))
                                              for name in ("worker", "helper", "work")))

    def test_programs_of_a_tree_are_chosen_by_name(self):
        tree = self.tree()
        for only, served in (("worker", ["worker"]), ("work*", ["worker", "work"]), ("help??,work", ["helper", "work"]),
                             ("nobody", []), ("tree.sh", []), ("", ["worker", "helper", "work"])):
            result = run(["sh", tree], dict(LIMIT, RMM_ONLY=only))
            expected = "".join(name + "\n" + (REFUSED if name in served else "")
                               for name in ("worker", "helper", "work"))
            self.assertEqual(result.outcome, (0, expected), only)
            self.assertEqual(result.said, [], only)

    def test_run_has_the_option(self):
        result = run([TOOL, "run", "--only", "worker", "--limit", "8MiB", "sh", self.tree()],
                     preload=[], more={"RMMSHIM_LIBRARY": support.SHIM})
        self.assertEqual(result.stdout, "worker\n" + REFUSED + "helper\nwork\n")

    def test_the_others_are_as_if_nothing_were_set(self):
        log, bad = self.path("log.csv"), {"RMM_LIMIT": "8MiX", "RMM_LIMTI": "1"}
        result = run([self.copy("other"), "device", "16"],
                     dict(LIMIT, RMM_ONLY="worker", RMM_VERBOSE="1", RMM_LOG=log, RMM_STATISTICS="1", RMM_CONTROL="calls"))
        self.assertEqual((result.outcome, result.stderr), ((0, ""), ""))
        self.assertFalse(os.path.exists(log))
        self.assertEqual(run([self.copy("other"), "device", "16"], dict(bad, RMM_ONLY="worker")).status, 0)
        self.assertEqual(run([self.copy("worker"), "device", "16"], dict(bad, RMM_ONLY="worker")).status, 78)

    def test_a_program_has_the_names_of_its_words(self):
        script = self.script("train.py", SCRIPT)
        for only, words, served in (("train.py", [script], True), ("train*", ["-u", "-W", "ignore", script], True),
                                    ("train", ["-m", "train"], True), ("-*", ["-u", script], False),
                                    ("train", [script], False), ("train.py", ["-c", SCRIPT], False),
                                    ("python*", ["-c", SCRIPT], True), ("other.py", [script, "a/other.py"], True)):
            result = run([sys.executable] + words, dict(LIMIT, RMM_ONLY=only), cwd=self.folder)
            self.assertEqual(result.outcome, (0, "2\n" if served else "0\n"), "%s %s\n%s" % (only, words[:2], result))

    def test_a_shell_script_has_its_name(self):
        program = self.copy("worker")
        script = self.script("run.sh", "exec -a other %s device 16\n" % program)
        for only, printed in (("run.sh", ""), ("other", REFUSED), ("worker", REFUSED)):
            self.assertEqual(run(["bash", script], dict(LIMIT, RMM_ONLY=only)).outcome, (0, printed), only)

    def test_a_forked_child_is_what_its_parent_is(self):
        script = self.script("fork.py", "import os\nif os.fork():\n    os.wait()\n    raise SystemExit\n" + SCRIPT)
        for only, printed in (("fork.py", "2\n"), ("other.py", "0\n")):
            self.assertEqual(run([sys.executable, script], dict(LIMIT, RMM_ONLY=only)).outcome, (0, printed), only)


if __name__ == "__main__":
    support.main()
