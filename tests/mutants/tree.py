# SPDX-License-Identifier: Apache-2.0
"""A copy of the tree, into which a mutant is written, and its build."""
import os
import pathlib
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]


def call(*command, timeout=600, **more):
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout,
                          text=True, errors="replace", check=False, **more)


def must(*command, **more):
    done = call(*command, **more)
    if done.returncode:
        sys.exit("%s\n%s" % (" ".join(str(word) for word in command), done.stdout[-3000:]))
    return done.stdout


def leave_out(folder, names):
    """What is no source: builds lie only at the top."""
    if pathlib.Path(folder) != TREE:
        return [name for name in names if name == "__pycache__"]
    return [name for name in names
            if name in (".git", ".venv", "shared") or name.startswith("build")]


class Copy:
    def __init__(self, root, *settings):
        self.tree = root / "tree"
        self.build = self.tree / "build"
        # So that ccache finds what was compiled in the tree itself, or in another copy.
        os.environ.update(CCACHE_BASEDIR=str(root), CCACHE_NOHASHDIR="1")
        shutil.copytree(TREE, self.tree, ignore=leave_out)
        must("meson", "setup", self.build, self.tree, "-Dgpu_tests=disabled", *settings)

    def ninja(self, *targets, timeout=3600):
        """The result of a build that may fail."""
        return call("ninja", "-C", self.build, *targets, timeout=timeout)

    def make(self, *targets):
        must("ninja", "-C", self.build, *targets, timeout=3600)

    def write(self, sources):
        for path, text in sources.items():
            (self.tree / path).write_text(text, encoding="utf-8")

    def restore(self, sources):
        self.write({path: (TREE / path).read_text(encoding="utf-8") for path in sources})
