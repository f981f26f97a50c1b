# SPDX-License-Identifier: Apache-2.0
"""The scenes of run-failures in which the calls of the command fail: what is played, and what is wrong with an outcome.

TOOL is the command.  A scene's output is compared with that of a run without failures; numbers that differ from one run
to the next are left out of it, and what is said of other processes of the machine."""
import atexit
import contextlib
import functools
import json
import os
import re
import subprocess
import tempfile

ENOUGH_SECONDS = 60
OF_MEMORY = ("malloc", "calloc", "realloc", "aligned_alloc", "strdup", "strndup", "mmap", "vasprintf", "asprintf",
             "open_memstream")
OUT_OF_MEMORY = re.compile("host memory|memory of this machine|Cannot allocate memory")

# Name: the words after `rmmshim`, where PID is a process that is served, %f has files for all runs, and %s is a folder for
# the files of one run.
SCENES = {
    "ls": "ls",
    "ls --json": "ls --json",
    "top": "top --once --interval 0.1",
    "top --json": "top --json --interval 0.1",
    "stats": "stats PID",
    "stats --json": "stats PID --json",
    "stats --prom": "stats PID --prom --all-metrics",
    "limit": "limit PID 1GiB",
    "trim": "trim PID",
    "leaks": "leaks PID",
    "leaks --json": "leaks PID --json",
    "run": "run --limit 64MiB %p/scenes limit",
    "run --json": "run --json %s/end --limit 64MiB %p/scenes limit",
    "run --limit-job": "run --limit-job 64MiB %p/scenes limit",
    "run --profile": "run --profile %f/profile printenv RMM_POOL_SIZE RMM_LIMIT LD_PRELOAD",
    "check": "check statistics(pool(cuda,initial_size=1GiB,maximum_size=80%))",
    "check variables": "check --profile %f/profile RMM_LIMIT=80%",
    "resources": "resources",
    "report": "report %f/a.rec %f/b.rec",
    "report -o": "report %f/a.rec -o %s/page.html --svg %s/picture.svg",
    "export csv": "export --format csv %f/a.rec",
    "export perfetto": "export --format perfetto %f/a.rec -o %s/trace",
    "export pytorch": "export --format pytorch %f/a.rec",
    "export folded": "export --format folded %f/a.rec",
    "export a log": "export --format folded %f/log.csv",
    "replay": "replay %f/a.rec --resource pool(cuda) --resource virtual",
    "tune": "tune %f/b.rec --json",
    "tune --run": "tune %f/b.rec --run 6 true",
    "doctor": "doctor",
    "doctor PROGRAM": "doctor %p/scenes",
    "doctor PID": "doctor --json PID",
    "help": "help",
    "help TOPIC": "help stacks",
    "path": "path",
}


def environment(folder, more):
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RMM_", "HOSTCUDA_", "LD_", "FAILING"))}
    env.update({"LD_LIBRARY_PATH": os.environ["HOSTCUDA_DIRECTORY"], "TMPDIR": folder, "MANPAGER": "cat", **more})
    return env


def program(name):
    return os.path.join(os.environ["PROGRAMS"], name)


@functools.lru_cache(maxsize=None)
def the_files():
    """The folder of what all scenes read, until the process ends."""
    holder = tempfile.TemporaryDirectory(prefix="rmmshim-test-")
    atexit.register(holder.cleanup)
    folder = holder.name
    for name, of, settings in (("a.rec", "all", {}), ("b.rec", "limit", {"RMM_LIMIT": "64MiB"})):
        subprocess.run([program("scenes"), of], stdout=subprocess.DEVNULL, check=True, env=environment(folder, {
            "LD_PRELOAD": os.environ["RMMSHIM_LIBRARY"], "RMM_POOL_SIZE": "0", "RMM_RECORD": os.path.join(folder, name),
            "RMM_LOG": os.path.join(folder, "log.csv"), **settings}))
    with open(os.path.join(folder, "profile"), "w", encoding="utf-8") as file:
        file.write("# A profile\nRMM_POOL_SIZE=64MiB\nRMM_LIMIT=1GiB\n")
    return folder


class Served:
    """A process for the command to look at, until the block ends."""

    def __init__(self, folder):
        env = environment(folder, {"LD_PRELOAD": os.environ["RMMSHIM_LIBRARY"], "RMM_POOL_SIZE": "0", "RMM_CONTROL": "thread"})
        self.process = subprocess.Popen([program("scenes"), "served"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, env=env)

    def __enter__(self):
        assert self.process.stdout.readline() == b"ready\n"
        return self.process.pid

    def __exit__(self, *_):
        self.process.communicate()


def of_interest(scene, text, pid):
    """The output without what is said of other processes."""
    if scene in ("ls --json", "top --json"):
        try:
            return json.dumps([row for row in json.loads(text) if row["pid"] == pid], indent=1)
        except ValueError:
            return text
    if scene in ("ls", "top"):
        rows = [line.split()[:6] if scene == "ls" else line.split()[:1] for line in text.splitlines()]
        return "".join(" ".join(row) + "\n" for row in rows if str(pid) in row[:1])
    if scene == "tune --run":  # times decide which rows there are, and what is chosen
        return "".join(title + "\n" for title in re.findall("HELD/USED|MEDIAN|for [a-z]+:", text))
    if scene.startswith("doctor"):  # in the order of addresses
        return "\n".join(sorted(re.split(",?\n", text)))
    if scene.startswith("run"):
        return re.sub("state (files|threads) .*\n", "", text)
    return text


class Scene:
    def __init__(self, name):
        self.name = name
        self.words = SCENES[name].split()

    def play(self, start, more):
        """`start` is that of run-failures, which runs a process and reads what it left."""
        files = the_files()
        with tempfile.TemporaryDirectory(prefix="rmmshim-test-") as folder, contextlib.ExitStack() as stack:
            pid = stack.enter_context(Served(folder)) if "PID" in self.words else 0
            if not pid and self.name.startswith(("ls", "top")):
                pid = stack.enter_context(Served(folder))
            place = {"PID": str(pid), "%s": folder, "%f": files, "%p": os.environ["PROGRAMS"]}
            words = [re.sub("PID|%[sfp]", lambda match: place[match.group()], word) for word in self.words]
            preload = os.path.join(os.environ["PROGRAMS"], "libfailing.so")
            outcome = start([os.environ["TOOL"], *words], environment(folder, {
                "LD_PRELOAD": preload, "LD_BIND_NOW": "1", "FAILING_COMMAND": "1", "FAILING_COUNTS": folder + "/counts",
                **more}), folder, ENOUGH_SECONDS)
            outcome.stdout = of_interest(self.name, outcome.stdout, pid)
            for word in words:
                if word.startswith(folder) and os.path.exists(word):
                    with open(word, encoding="latin-1") as file:
                        outcome.stdout += "%s:\n%s" % (word, file.read())
            for text, by in ((folder, "FOLDER"), (str(pid or folder), "PID")):
                outcome.stdout = outcome.stdout.replace(text, by)
                outcome.stderr = outcome.stderr.replace(text, by)
        return outcome


def masked(text):
    return re.sub(r"\d[\d.]*", "0", text)


def differs(text, whole, other):
    """Whether it is not the text of two runs without failures, but for numbers in which these differ."""
    return masked(text) != masked(whole) if whole != other else text != whole


def findings(scene, point, outcome, wholes):
    """What is wrong with a run, where `wholes` are two without failures."""
    whole, other = wholes
    says_in_answer = scene.startswith("command: doctor") and outcome.stdout
    if outcome.status is None:
        return ["it hangs"]
    bad = []
    if outcome.status < 0:
        bad.append("it ends by signal %d" % -outcome.status)
    says = differs(outcome.stderr, whole.stderr, other.stderr)
    is_whole = outcome.status == whole.status and not differs(outcome.stdout, whole.stdout, other.stdout)
    if outcome.status == whole.status and not is_whole and not says:
        bad.append("status %d, and nothing says why the output is another one" % outcome.status)
    if outcome.status != whole.status and not says and not says_in_answer and point.function != "write":
        bad.append("status %d, and nothing says why" % outcome.status)
    said = outcome.stderr.replace(whole.stderr, "") + (outcome.stdout if says_in_answer else "")
    if not bad and not is_whole and point.function in OF_MEMORY and not OUT_OF_MEMORY.search(said):
        bad.append("nothing says that memory ran out")
    return bad
