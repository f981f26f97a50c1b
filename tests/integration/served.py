# SPDX-License-Identifier: Apache-2.0
"""Processes that the command can look at, for its tests: they say `ready` and stay until their stdin ends.

meson sets TOOL."""
import os
import subprocess
import sys

import support

FOLDER = os.path.dirname(os.path.abspath(__file__))
SCENES = os.path.join(FOLDER, "output_scenes.py")
PAGES = os.path.join(FOLDER, "page_scenes.py")
TOOL = os.environ["TOOL"]


def state_of(process):
    """The letter that /proc has for it: T where it is stopped."""
    with open("/proc/%d/stat" % process, encoding="utf-8") as file:
        return file.read().rpartition(") ")[2][0]


class Process:
    """A program that does what it is told by lines, one letter each, and then says `ready`."""

    def __init__(self, test, command, settings=None, **how):
        env = support.environment(settings)
        env["PYTHONHOME"] = sys.base_prefix  # also under another name
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        **{"executable": sys.executable, **how})
        self.pid = self.process.pid
        test.addCleanup(self.end)
        self.until_ready()

    def until_ready(self):
        line = self.process.stdout.readline()
        if line != b"ready\n":
            raise AssertionError("the process said %r" % line)

    def step(self):
        """Lets it take its next steps, up to the next `say`."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self.until_ready()

    def end(self):
        if self.process.stdin.closed:
            return
        self.process.communicate()


def scene(test, *steps, name="python3", **settings):
    """The steps of output_scenes.py, under the library."""
    return Process(test, [name, SCENES, *steps, "say", "wait"], settings or {"RMM_POOL_SIZE": "64MiB"})


def page(test, *words, name="python3"):
    """A process that has a page as page_scenes.py makes it, without the library."""
    process = Process.__new__(Process)
    process.process = subprocess.Popen([name, PAGES, *map(str, words)], executable=sys.executable,
                                       env=dict(os.environ, PYTHONHOME=sys.base_prefix), stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
    process.pid = process.process.pid
    test.addCleanup(process.end)
    process.until_ready()
    return process


def tool(*arguments, **how):
    """Runs the command: status, stdout, stderr."""
    result = subprocess.run([TOOL, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, timeout=support.ENOUGH_SECONDS, check=False,
                            **{"env": support.environment(preload=[], driver=False), **how})
    return support.Result(result.returncode, result.stdout, result.stderr)
