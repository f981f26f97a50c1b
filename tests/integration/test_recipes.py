# SPDX-License-Identifier: Apache-2.0
"""rmmshim-recipes(7): its commands and files are accepted, and what can be run here is run, as the page has it.

Left out is what needs a program that is not installed: mpirun, systemd-analyze, shellcheck.  Dask, Ray, PyTorch,
JupyterHub and kubernetes-validate are taken from the Python environment RECIPES_ENVIRONMENT, which
scripts/packaging/try-recipes makes; without it their recipes are left out, with it none is.

meson sets TOOL and SOURCE_ROOT."""
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import support

TOOL = os.environ["TOOL"]
ROOT = pathlib.Path(os.environ["SOURCE_ROOT"])
HERE = pathlib.Path(__file__).resolve().parent
FOLDER = ROOT / "scripts" / "packaging" / "recipes"
FILES = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir()) if path.is_file()}
PAGE = (ROOT / "src" / "tool" / "man" / "rmmshim-recipes.7.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:])
CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENVIRONMENT = os.environ.get("RECIPES_ENVIRONMENT", "")
DASHBOARD = "grafana.json"  # too long to be shown
PATIENCE_SECONDS = 120
SWITCHES = ("--quiet", "--exec")
# They refuse root, more ranks than cores, and clients without a token, unless told otherwise.
ALLOWED = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def code(*kinds, text=PAGE):
    return [match.group(2) for match in CODE.finditer(text) if match.group(1) in kinds]


def lines_of(section):
    """Each command of a section, on one line."""
    return [line for block in code("sh", text=SECTIONS[section])
            for line in block.replace("\\\n", "").splitlines() if line.strip()]


def command(section, *parts):
    """The one command of a section that has all parts."""
    found = [line for line in lines_of(section) if all(part in line for part in parts)]
    if len(found) != 1:
        raise AssertionError("%s: %d commands have %s" % (section, len(found), parts))
    return found[0]


def substituted(text, **replacements):
    """Text of a recipe with words replaced, each of which must be there."""
    for old, new in replacements.items():
        if old not in text:
            raise AssertionError("%r is not in %r" % (old, text))
        text = text.replace(old, new)
    return text


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def installed(name):
    return shutil.which(name, path=os.path.join(ENVIRONMENT, "bin") + ":" + os.environ["PATH"] if ENVIRONMENT else None)


def needs(name):
    return unittest.skipUnless(installed(name), "there is no %s here" % name)


needs_environment = unittest.skipUnless(ENVIRONMENT, "scripts/packaging/try-recipes runs it")


class Recipe(support.Test):
    """Runs commands of the page by a shell that finds the built command as rmmshim."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("bin"))
        os.symlink(TOOL, self.path("bin/rmmshim"))
        os.mkdir(self.path("said"))
        shutil.copy(HERE / "recipe_train.py", self.path("train.py"))

    def environment(self, **more):
        path = [self.path("bin")] + ([os.path.join(ENVIRONMENT, "bin")] if ENVIRONMENT else []) + [os.environ["PATH"]]
        return dict(ALLOWED, PATH=":".join(path), RMMSHIM_LIBRARY=support.SHIM, PYTHONDONTWRITEBYTECODE="1",
                    PYTHONPATH=":".join([str(FOLDER), self.folder]), HOME=self.folder,
                    RAY_TMPDIR=self.folder, **more)

    def shell(self, line, **more):
        return support.run(["sh", "-c", line], preload=[], cwd=self.folder, timeout=PATIENCE_SECONDS,
                           more=self.environment(**more))

    @contextlib.contextmanager
    def started(self, line, **more):
        """A command in the background; it gets SIGTERM in the end, which must end it."""
        with open(self.path("output"), "ab") as output:
            process = subprocess.Popen(["sh", "-c", "exec " + line], cwd=self.folder, stdin=subprocess.DEVNULL,
                                       env=support.environment(preload=[], more=self.environment(**more)),
                                       stdout=output, stderr=output, start_new_session=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def output(self):
        with open(self.path("output"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for(self, is_there, process):
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            self.assertIsNone(process.poll(), self.output())
            self.assertLess(time.monotonic(), end, self.output())
            time.sleep(0.05)

    def said(self):
        """What the processes were answered, in order; the next ones begin anew."""
        answers = sorted(path.read_text(encoding="ascii") for path in pathlib.Path(self.path("said")).glob("*.said"))
        shutil.rmtree(self.path("said"))
        os.mkdir(self.path("said"))
        return answers

    def train(self, count):
        return "train.py %s %d" % (shlex.quote(self.path("said")), count)


class Page(unittest.TestCase):
    def test_it_shows_every_file(self):
        page = support.run([str(ROOT / "scripts" / "man-page"), str(ROOT / "src/tool/man/rmmshim-recipes.7.md"),
                            "/dev/stdout"], preload=[], driver=False)
        self.assertEqual(page.status, 0, page)
        shown = page.stdout
        for escaped, plain in (("\\-", "-"), ("\\(ga", "`"), ("\\(aq", "'"), ("\\&", ""), ("\\e", "\\")):
            shown = shown.replace(escaped, plain)
        for name, text in FILES.items():
            with self.subTest(name):
                if name == DASHBOARD:
                    self.assertIn("`%s`" % name, PAGE)
                    continue
                rows = [row for row in text.splitlines() if not row.startswith("# SPDX-")]
                self.assertTrue("\n.EX\n" + "\n".join(rows) + "\n.EE\n" in shown, "the page does not show it")
        self.assertGreaterEqual(len(FILES), 9)

    def test_every_recipe_says_what_was_run(self):
        for title, text in SECTIONS.items():
            if title != "See also":
                with self.subTest(title):
                    self.assertTrue(re.search(r"^\*\*(Run|Not run):\*\* ", text, re.MULTILINE), "nothing is said")

    def test_its_variables_exist(self):
        table = (ROOT / "src/config/variables.def").read_text(encoding="utf-8")
        known = set(re.findall(r"^VARIABLE(?:_\w+)?\(\s*(\w+)", table, re.MULTILINE))
        self.assertIn("LIMIT", known)
        for name, text in [("the page", PAGE), *FILES.items()]:
            with self.subTest(name):
                self.assertEqual(set(re.findall(r"\bRMM_([A-Z_]+)\b", text)) - known, set())

    @staticmethod
    def options(line):
        """The options behind `run`, with their values, up to the program."""
        words, taken = [word for word in re.split(r"""[\s,"'\[\]]+""", line) if word], []
        while words and words[0].startswith("--") and words[0] != "--":
            taken.append(words.pop(0))
            if taken[-1] not in SWITCHES and words:
                taken.append(words.pop(0))
        return taken

    def test_its_options_are_accepted(self):
        seen = 0
        for text in [*code("", "sh"), *FILES.values()]:
            for match in re.finditer(r"""rmmshim["']?[ ,]+["']?run\b["']?(.*)$""", text, re.MULTILINE):
                if text[:match.start()].rsplit("\n", 1)[-1].lstrip().startswith("#"):
                    continue
                seen += 1
                with self.subTest(match.group(0)):
                    result = support.run([TOOL, "run", *self.options(match.group(1)), "--", "true"], preload=[])
                    self.assertEqual(result.status, 0, result)
        self.assertGreaterEqual(seen, 12)

    def test_its_settings_are_a_profile(self):
        result = support.run([TOOL, "check", "--profile", str(FOLDER / "inference.env")], preload=[])
        self.assertEqual(result.status, 0, result)
        self.assertIn("initial_size=1GiB", result.stdout)

    def test_its_python_compiles(self):
        for name, text in [*enumerate(code("python")), *FILES.items()]:
            if not isinstance(name, str) or name.endswith(".py"):
                compile(text, str(name), "exec")

    @needs("shellcheck")
    def test_its_shell_code_is_sound(self):
        for text in [*code("sh"), *(text for text in FILES.values() if text.startswith("#!/bin/sh"))]:
            result = subprocess.run(["shellcheck", "-s", "sh", "-"], input=text, capture_output=True, text=True, check=False)
            self.assertEqual(result.stdout + result.stderr, "")


class Dashboard(unittest.TestCase):
    """Grafana's dashboard asks for what `rmmshim serve` gives: the manual's table of metrics is made from the code."""
    REPORTS = (ROOT / "src/tool/man/rmmshim-reports.7.md").read_text(encoding="utf-8")
    METRICS = set(re.findall(r"^\| `(rmmshim_\w+)` \|", REPORTS, re.MULTILINE))
    LABELS = set(re.findall(r"`(\w+)`", re.search(r"with the labels (.*?) of those", REPORTS, re.DOTALL).group(1)))
    BOARD = json.loads(FILES[DASHBOARD])
    QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}

    def test_every_metric_is_asked_for_and_no_other(self):
        self.assertEqual(len(self.METRICS), 13)
        self.assertEqual({name for query in self.QUERIES for name in re.findall(r"\brmmshim_\w+", query)}, self.METRICS)

    def test_its_labels_exist(self):
        asked = set(re.findall(r"{{(\w+)}}", FILES[DASHBOARD]))
        for query in self.QUERIES:
            for group in re.findall(r"\b(?:by|on) \(([^()]*)\)", query):
                asked.update(group.split(", "))
            asked.update(re.findall(r"(\w+)=~?\"", query))
        self.assertEqual(asked - self.LABELS, set())
        self.assertLessEqual({"device", "pid", "program"}, asked)

    def test_its_variables_exist(self):
        for variable in self.VARIABLES.values():
            for metric, label in re.findall(r"label_values\((\w+), (\w+)\)", variable.get("definition", "")):
                self.assertIn(metric, self.METRICS)
                self.assertEqual(label, variable["name"])
        names = set(re.findall(r"\$\{?(\w+)", FILES[DASHBOARD])) - {"__range", "__rate_interval", "__all"}
        self.assertEqual(names, set(self.VARIABLES))

    def test_counters_are_asked_for_their_increase(self):
        for query in self.QUERIES:
            for before, name in re.findall(r"(\w*)\(?\b(rmmshim_\w+_total)\b", query):
                self.assertIn(before, ("rate", "increase") if "$__" in query else ("",), (query, name))

    def test_panels_do_not_overlap(self):
        cells = [(panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y) for panel in self.BOARD["panels"]
                 for x in range(panel["gridPos"]["w"]) for y in range(panel["gridPos"]["h"])]
        self.assertEqual(len(cells), len(set(cells)))
        self.assertLess(max(x for x, _ in cells), 24)

    @needs("promtool")
    def test_its_queries_are_understood(self):
        rules = [{"record": "query:%d" % number, "expr": re.sub(r"\$__\w+", "5m", query)}
                 for number, query in enumerate(self.QUERIES)]
        with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            result = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("%d rules found" % len(rules), result.stdout)


class Systemd(support.Test):
    @needs("systemd-analyze")
    def test_its_units_are_accepted(self):
        for name in FILES:
            if not name.endswith(".service"):
                continue
            with open(self.path(name), "w", encoding="utf-8") as file:  # it looks for the program too
                file.write(substituted(FILES[name], **{"/usr/bin/rmmshim": TOOL}))
            result = support.run(["systemd-analyze", "verify", "--man=no", self.path(name)], preload=[], driver=False)
            said = [line for line in result.stderr.splitlines() if name in line]
            self.assertEqual(said, [])
            if result.status:
                self.skipTest("systemd-analyze does not work here: " + result.stderr.strip())

    def test_the_settings_hold_for_the_program(self):
        """What ExecStart= runs, with the settings of EnvironmentFile= in the environment."""
        text = substituted(FILES["inference.env"], **{"16GiB": "250MiB", "=1GiB": "=0"})
        settings = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
        words = re.search(r"^ExecStart=/usr/bin/rmmshim (run) (\S+) (\S+)$", FILES["inference.service"], re.MULTILINE)
        self.assertEqual(words.groups(), ("run", "/usr/bin/python3", "/srv/inference/serve.py"))
        os.mkdir(self.path("said"))
        line = 'for i in 1 2 3; do "$0" "$1" "$2" 3 & done; wait'
        result = support.run([TOOL, words.group(1), "sh", "-c", line, sys.executable, str(HERE / "recipe_train.py"),
                              self.path("said")], settings, preload=[])
        self.assertEqual(sorted(result.stdout.split()), ["allocated", "allocated", "refused"], result)


class Kubernetes(Recipe):
    def manifest(self):
        if not ENVIRONMENT and not importlib.util.find_spec("yaml"):
            self.skipTest("there is no PyYAML here")
        script = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)"
        result = self.shell("python3 -c %s %s" % (shlex.quote(script), FOLDER / "kubernetes.yaml"))
        self.assertEqual(result.status, 0, result)
        return json.loads(result.stdout)

    def test_the_manifest_agrees_with_itself(self):
        deployment, = self.manifest()
        pod = deployment["spec"]["template"]["spec"]
        self.assertEqual(deployment["spec"]["selector"]["matchLabels"], deployment["spec"]["template"]["metadata"]["labels"])
        self.assertTrue(pod["shareProcessNamespace"] and pod["securityContext"]["runAsUser"])
        volumes = {volume["name"] for volume in pod["volumes"]}
        containers = {container["name"]: container for container in pod["initContainers"] + pod["containers"]}
        for container in containers.values():
            self.assertLessEqual({mount["name"] for mount in container.get("volumeMounts", [])}, volumes)
        port = containers["metrics"]["ports"][0]["containerPort"]
        self.assertTrue(containers["metrics"]["args"][-1].endswith(":%d" % port))
        said = deployment["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(said["prometheus.io/port"], str(port))
        copied_to = containers["rmmshim"]["command"][-1]
        self.assertEqual(containers["inference"]["command"][0], copied_to + "/bin/rmmshim")

    def test_the_entrypoint_of_the_copied_files_limits_a_job(self):
        """What the init container copies is an installation; the command beside its library runs the program."""
        deployment, = self.manifest()
        pod = deployment["spec"]["template"]["spec"]
        copy, program = pod["initContainers"][0], pod["containers"][0]
        image, volume = self.path("image"), self.path("volume")
        for folder in ("bin", "lib"):
            os.makedirs(os.path.join(image, "opt/rmmshim", folder))
        os.mkdir(volume)
        shutil.copy(TOOL, os.path.join(image, "opt/rmmshim/bin/rmmshim"))
        shutil.copy(support.SHIM, os.path.join(image, "opt/rmmshim/lib/librmmshim.so"))
        words = [word.replace("/opt/rmmshim", image + "/opt/rmmshim") if word.startswith("/opt") else
                 word.replace("/rmmshim", volume) for word in copy["command"]]
        self.assertEqual(support.run(words, preload=[]).status, 0)
        words = [word.replace("/rmmshim", volume, 1).replace("16GiB", "250MiB") for word in program["command"]]
        line = 'for i in 1 2 3; do "$0" train.py "$1" 3 & done; wait'
        result = support.run(words + ["sh", "-c", line, sys.executable, self.path("said")], preload=[], cwd=self.folder)
        self.assertEqual(sorted(result.stdout.split()), ["allocated", "allocated", "refused"], result)

    @needs_environment
    def test_the_schema_of_kubernetes_accepts_the_manifest(self):
        result = self.shell("kubernetes-validate --strict %s" % (FOLDER / "kubernetes.yaml"))
        self.assertEqual(result.status, 0, result)


@unittest.skipUnless(os.environ.get("RECIPES_ROOT"), "scripts/packaging/try-recipes runs it where there is podman")
class Container(Recipe):
    """The image is built and used by podman, with storage of its own, and the machine's network and certificates.
    RECIPES_ROOT is an archive of a Debian 12 with Python and ca-certificates: it stands for the images that the page and
    the Containerfile name."""
    PODMAN = """#!/bin/sh
command=$1
shift
case $command in
build) set -- --isolation chroot --network host -v /etc/ssl/certs:/etc/ssl/certs:ro "$@" ;;
run) set -- --network host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@" ;;
esac
exec %(podman)s --root %(folder)s/storage --runroot %(folder)s/state --runtime runc "$command" "$@"
"""
    TIMEOUT_SECONDS = 400

    def setUp(self):
        super().setUp()
        with open(self.path("bin/podman"), "w", encoding="utf-8") as file:
            file.write(self.PODMAN % {"podman": shutil.which("podman"), "folder": self.folder})
        os.chmod(file.name, 0o755)
        self.addCleanup(self.shell, "podman rm --all --force; podman volume rm --all --force; podman rmi --all --force; "
                        "umount storage/overlay")
        for name in ("debian:12-slim", "inference"):
            self.must("podman import %s %s" % (os.environ["RECIPES_ROOT"], name))

    def must(self, line):
        result = support.run(["sh", "-c", line], preload=[], cwd=ROOT, timeout=self.TIMEOUT_SECONDS,
                             driver=False, more=self.environment())
        self.assertEqual(result.status, 0, "%s\n%s" % (line, result))
        return result.stdout

    def test_an_image_is_built_and_copied_from(self):
        self.must(command("Container image", "podman build"))
        self.assertIn("at most 8GiB", self.must(command("Container image", "check")))
        self.must(command("Container image", "--entrypoint cp"))
        for limit, answer in (("120MiB", "allocated"), ("64MiB", "refused")):
            mounts = " ".join("-v {0}:{0}".format(folder) for folder in (self.folder, support.HOSTCUDA))
            line = substituted(command("Container image", "python3 train.py"), **{
                "--device nvidia.com/gpu=all": "--rm %s -e LD_LIBRARY_PATH=%s" % (mounts, support.HOSTCUDA),
                "8GiB": limit, "train.py": self.path("") + self.train(1)})
            self.assertEqual(self.must(line).split(), [answer])
            self.assertEqual(self.said(), [answer])
        manual = self.must("podman run --rm -v rmmshim:/rmmshim inference find /rmmshim/share/man -type f")
        self.assertIn("/rmmshim/share/man/man7/rmmshim-recipes.7", manual)


class OneMachine(Recipe):
    def test_a_limit_for_each_process(self):
        line = substituted(command("One machine", "--limit "), **{"8GiB": "64MiB", "train.py": self.train(1)})
        result = self.shell(line)
        self.assertEqual((result.status, self.said()), (0, ["refused"]), result)


@needs("mpirun")
class Mpirun(Recipe):
    def is_open_mpi(self):
        return "Open MPI" in self.shell("mpirun --version").stdout

    def rank_count(self, line):
        return int(re.search(r"-n (\d+)", line).group(1))

    def ranks(self, line, limit):
        """Four ranks by a command of the page, under another limit."""
        line = re.sub(r"-n \d+", "-n 4", re.sub(r"\d+GiB", limit, line))
        return self.shell(substituted(line, **{"./app": "python3 " + self.train(4)}), TAG=os.path.basename(self.folder))

    def test_a_job_of_all_ranks(self):
        result = self.ranks(command("mpirun", "--limit-job", "run"), "250MiB")
        self.assertEqual((result.status, self.said()), (0, ["allocated"] * 2 + ["refused"] * 2), result)
        self.assertEqual(result.stderr.count("out-of-memory error"), 4, result)
        self.assertNotIn("NOT served", result.stderr)

    def test_a_limit_for_each_rank(self):
        for limit, answer in (("120MiB", "allocated"), ("64MiB", "refused")):
            result = self.ranks(command("mpirun", "--quiet"), limit)
            self.assertEqual((result.status, self.said()), (0, [answer] * 4), result)

    def test_a_job_of_the_ranks_of_each_node(self):
        if not self.is_open_mpi():
            self.skipTest("-x is Open MPI's")
        line = substituted(command("mpirun", "RMM_JOB"), **{"/dev/shm/rmmshim-": self.path("job-")})
        result = self.ranks(line, "250MiB")
        self.assertEqual((result.status, self.said()), (0, ["allocated"] * 2 + ["refused"] * 2), result)
        self.assertEqual(sum(name.startswith("job-") for name in os.listdir(self.folder)), 1)

    def test_a_rank_s_failure_is_the_status_of_run(self):
        result = self.shell("rmmshim run --quiet --limit-job 1GiB mpirun -n 2 sh -c 'exit 7'")
        self.assertEqual(result.status, 7, result)


class Slurm(Recipe):
    """A shell in place of Slurm: it puts what the prolog prints into the environment of each task."""

    def tasks(self, limit):
        prolog = self.path("slurm-task-prolog")
        with open(prolog, "w", encoding="utf-8") as file:
            file.write(substituted(FILES["slurm-task-prolog"], **{"/usr/bin/rmmshim": "rmmshim"}))
        more = {"SLURM_JOB_ID": "test-%d" % os.getpid()}
        job = "/dev/shm/rmmshim-" + more["SLURM_JOB_ID"]
        if limit:
            more["RMM_LIMIT_JOB"] = limit
        task = '(eval "$(sh %s)"; exec python3 %s) &' % (prolog, self.train(3))
        result = self.shell("\n".join([task] * 3 + ["wait"]), **more)
        made = os.path.exists(job)
        self.assertEqual(self.shell("sh %s" % (FOLDER / "slurm-epilog"), **more).status, 0)
        self.assertFalse(os.path.exists(job))
        return result, made

    def test_a_limit_over_the_tasks_of_a_job(self):
        result, made = self.tasks("250MiB")
        self.assertEqual((self.said(), made), (["allocated"] * 2 + ["refused"], True), result)

    def test_without_a_limit_nothing_is_preloaded(self):
        result, made = self.tasks(None)
        self.assertEqual((self.said(), made), (["allocated"] * 3, False), result)
        result = self.shell("sh " + self.path("slurm-task-prolog"), SLURM_JOB_ID="1")
        self.assertEqual(result.outcome, (0, ""))

    def test_without_the_library_the_prolog_fails(self):
        result = self.shell("RMMSHIM_LIBRARY=/nowhere sh %s" % (FOLDER / "slurm-task-prolog"), RMM_LIMIT_JOB="1GiB")
        self.assertNotEqual(result.status, 0, result)
        self.assertEqual(result.stdout, "")


@needs_environment
@unittest.skipUnless(os.getuid() == 0 and all(map(installed, ("munged", "slurmctld", "slurmd", "srun"))),
                     "not root, or there is no Slurm here")
class SlurmDaemons(Recipe):
    """Slurm itself, of one node, with the prolog and the epilog of the page."""
    SETTINGS = """
ClusterName=test
SlurmctldHost=%(host)s(127.0.0.1)
SlurmctldPort=%(controller)d
SlurmdPort=%(daemon)d
SlurmUser=root
AuthInfo=socket=%(folder)s/munge
StateSaveLocation=%(folder)s
SlurmdSpoolDir=%(folder)s
SlurmctldPidFile=%(folder)s/slurmctld.pid
SlurmdPidFile=%(folder)s/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
SlurmdParameters=config_overrides
TaskProlog=%(folder)s/slurm-task-prolog
Epilog=%(folder)s/slurm-epilog
NodeName=%(host)s NodeAddr=127.0.0.1 CPUs=4 RealMemory=1000
PartitionName=test Nodes=ALL Default=YES
"""

    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o755)  # munged's clients look for its socket there
        for name in ("slurm-task-prolog", "slurm-epilog"):
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(FILES[name].replace("/usr/bin/rmmshim path", "RMMSHIM_LIBRARY=%s %s path" % (support.SHIM, TOOL)))
            os.chmod(self.path(name), 0o755)
        with open(self.path("slurm.conf"), "w", encoding="utf-8") as file:
            file.write(self.SETTINGS % {"host": socket.gethostname().partition(".")[0], "folder": self.folder,
                                        "controller": free_port(), "daemon": free_port()})
        key = self.path("key")
        with open(key, "wb") as file:
            file.write(os.urandom(64))
        os.chmod(key, 0o600)
        own = {name: self.path("munge" + end) for name, end in
               (("socket", ""), ("key-file", ".key"), ("pid-file", ".pid"), ("log-file", ".log"), ("seed-file", ".seed"))}
        own["key-file"] = key
        daemons = contextlib.ExitStack()
        self.addCleanup(daemons.close)
        self.more = {"SLURM_CONF": self.path("slurm.conf")}
        for line in ("munged --foreground --force " + " ".join("--%s=%s" % option for option in own.items()),
                     "slurmctld -D", "slurmd -D"):
            daemon = daemons.enter_context(self.started(line, **self.more))
            if "munged" in line:
                self.wait_for(lambda: os.path.exists(own["socket"]), daemon)
        self.wait_for(lambda: "idle" in self.shell("sinfo --noheader", **self.more).stdout, daemon)

    def tasks(self, line, limit):
        line = substituted(re.sub(r"\d+GiB", limit, line), **{"./app": "python3 " + self.train(4)})
        result = self.shell(line.replace("srun", "srun --ntasks 4"), **self.more)
        self.assertEqual(result.status, 0, "%s\n%s" % (result, self.output()))
        return self.said()

    def test_both_commands(self):
        self.assertEqual(self.tasks(command("Slurm", "rmmshim run"), "64MiB"), ["refused"] * 4)
        self.assertEqual(self.tasks(command("Slurm", "RMM_LIMIT_JOB"), "250MiB"), ["allocated"] * 2 + ["refused"] * 2)
        left = [os.path.join("/dev/shm", "rmmshim-%d" % job) for job in (1, 2)]
        node = "sinfo --noheader --format %T"
        self.assertIn("idle", self.shell("until %s | grep -q idle; do sleep 0.1; done; %s" % (node, node), **self.more).stdout)
        self.assertFalse(any(map(os.path.exists, left)), left)


@needs_environment
class Torchrun(Recipe):
    def ranks(self, line, limit):
        line = substituted(re.sub(r"\d+GiB", limit, line), **{"torchrun": "torchrun --standalone"})
        return self.shell(substituted(line, **{"train.py": self.train(4)}))

    def test_a_job_of_all_ranks(self):
        result = self.ranks(command("torchrun", "--limit-job"), "250MiB")
        self.assertEqual((result.status, self.said()), (0, ["allocated"] * 2 + ["refused"] * 2), result)
        self.assertEqual(result.stderr.count("out-of-memory error"), 4, result)
        self.assertNotIn("NOT served", result.stderr)

    def test_a_limit_for_each_rank(self):
        for limit, answer in (("120MiB", "allocated"), ("64MiB", "refused")):
            result = self.ranks(command("torchrun", "--no-python"), limit)
            self.assertEqual((result.status, self.said()), (0, [answer] * 4), result)


@needs_environment
class Dask(Recipe):
    CLIENT = """
import sys, train
from distributed import Client
with Client(sys.argv[1]) as client:
    client.wait_for_workers(4)
    print(*sorted(client.run(train.take, sys.argv[2], 4).values()))
"""
    CLUSTER = """
import sys, train
from dask_workers import limited_cluster
from distributed import Client
if __name__ == "__main__":
    with limited_cluster(sys.argv[1], 4) as cluster, Client(cluster) as client:
        print(*sorted(client.run(train.take, sys.argv[2], 4).values()))
"""

    def test_workers_below_a_run_are_a_job(self):
        address = "tcp://127.0.0.1:%d" % free_port()
        line = substituted(command("Dask", "--nworkers"), **{"16GiB": "250MiB", "tcp://scheduler:8786": address})
        self.assertIn("--nworkers 4", line)
        with self.started("dask scheduler --no-dashboard --host 127.0.0.1 --port " + address.rpartition(":")[2]) as scheduler:
            self.wait_for(lambda: address in self.output(), scheduler)
            with self.started(line + " --no-dashboard"):
                with open(self.path("client.py"), "w", encoding="utf-8") as file:
                    file.write(self.CLIENT)
                result = self.shell("python3 client.py %s %s" % (address, self.path("said")))
                self.assertEqual(result.stdout.split(), ["allocated"] * 2 + ["refused"] * 2, result)

    def test_workers_of_a_local_cluster_have_a_limit_each(self):
        with open(self.path("cluster.py"), "w", encoding="utf-8") as file:
            file.write(self.CLUSTER)
        for limit, answer in (("120MiB", "allocated"), ("64MiB", "refused")):
            result = self.shell("python3 cluster.py %s %s" % (limit, self.path("said")))
            self.assertEqual((result.stdout.split(), self.said()), ([answer] * 4, [answer] * 4), result)


@needs_environment
class Ray(Recipe):
    WORKERS = """
import sys, ray, train
if len(sys.argv) == 3:
    from ray_workers import init_limited
    init_limited(sys.argv[2], num_cpus=4, include_dashboard=False)
else:
    ray.init(address=sys.argv[3])
@ray.remote(num_cpus=1)
class Worker:
    def take(self, folder):
        return train.take(folder, 4)
workers = [Worker.remote() for _ in range(4)]
print(*sorted(ray.get([worker.take.remote(sys.argv[1]) for worker in workers])))
"""

    def setUp(self):
        super().setUp()
        with open(self.path("workers.py"), "w", encoding="utf-8") as file:
            file.write(self.WORKERS)

    def test_a_node_below_a_run_is_a_job(self):
        port = free_port()
        line = substituted(command("Ray", "ray start"), **{"16GiB": "250MiB"})
        line += " --port=%d --num-cpus=4 --include-dashboard=false --node-ip-address=127.0.0.1" % port
        with self.started(line) as node:
            self.wait_for(lambda: "--block" in self.output(), node)
            result = self.shell("python3 workers.py %s by 127.0.0.1:%d" % (self.path("said"), port))
            self.assertEqual(result.stdout.split(), ["allocated"] * 2 + ["refused"] * 2, result)

    def test_workers_of_a_program_have_a_limit_each(self):
        for limit, answer in (("120MiB", "allocated"), ("64MiB", "refused")):
            result = self.shell("python3 workers.py %s %s" % (self.path("said"), limit))
            self.assertEqual((result.stdout.split(), self.said()), ([answer] * 4, [answer] * 4), result)


@needs_environment
class JupyterHub(Recipe):
    SETTINGS = """
c.JupyterHub.authenticator_class, c.Authenticator.allow_all = "dummy", True
c.JupyterHub.spawner_class, c.SimpleLocalProcessSpawner.home_dir_template = "simple", %(folder)r
c.JupyterHub.bind_url, c.JupyterHub.hub_bind_url = "http://127.0.0.1:%(port)d", "http://127.0.0.1:%(hub)d"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:%(api)d"
c.JupyterHub.services = [{"name": "test", "api_token": "%(token)s"}]
c.JupyterHub.load_roles = [{"name": "test", "services": ["test"],
                            "scopes": ["admin:users", "admin:servers", "access:servers"]}]
c.Spawner.environment = {"LD_LIBRARY_PATH": %(driver)r, "PYTHONPATH": %(folder)r, "JUPYTER_RUNTIME_DIR": %(runtime)r,
                         "RMMSHIM_LIBRARY": %(library)r}
c.Spawner.args = ["--allow-root"]
"""
    # Starts the user's server and four kernels by the hub's proxy, and runs the program in each of them.
    CLIENT = """
import glob, json, os, sys, time, urllib.request
from jupyter_client import BlockingKernelClient
top, token, runtime, said = sys.argv[1:]
open_directly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
def ask(method, path, body=None):
    request = urllib.request.Request(top + path, method=method, data=json.dumps(body or {}).encode(),
                                     headers={"Authorization": "token " + token, "Content-Type": "application/json"})
    with open_directly(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")
ask("POST", "/hub/api/users/user")
ask("POST", "/hub/api/users/user/server")
end = time.monotonic() + 60
while not ask("GET", "/hub/api/users/user")["servers"].get("", {}).get("ready"):
    assert time.monotonic() < end
    time.sleep(0.1)
clients = []
for _ in range(4):
    kernel = ask("POST", "/user/user/api/kernels")["id"]
    client = BlockingKernelClient(connection_file=os.path.join(runtime, "kernel-%s.json" % kernel))
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(60)
    clients.append(client)
for client in clients:
    client.execute("import train; print(train.take(%r, 4))" % said)
answers = []
for client in clients:
    while len(answers) < clients.index(client) + 1:
        message = client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            answers.append(message["content"]["text"].strip())
        assert message["msg_type"] != "error", message["content"]
print(*sorted(answers))
ask("DELETE", "/hub/api/users/user/server")
"""

    def test_the_kernels_of_a_user_are_a_job(self):
        values = {"folder": self.folder, "port": free_port(), "hub": free_port(), "api": free_port(),
                  "token": os.urandom(16).hex(), "driver": support.HOSTCUDA, "library": support.SHIM,
                  "runtime": self.path("runtime")}
        with open(self.path("config.py"), "w", encoding="utf-8") as file:
            file.write(substituted(FILES["jupyterhub_config.py"], **{"/usr/bin/rmmshim": TOOL, "8GiB": "250MiB"}) +
                       self.SETTINGS % values)
        with open(self.path("client.py"), "w", encoding="utf-8") as file:
            file.write(self.CLIENT)
        with self.started("jupyterhub -f config.py") as hub:
            self.wait_for(lambda: "JupyterHub is now running" in self.output(), hub)
            result = self.shell("python3 client.py http://127.0.0.1:%(port)d %(token)s %(runtime)s " % values +
                                self.path("said"))
            self.assertEqual(result.stdout.split(), ["allocated"] * 2 + ["refused"] * 2, "%s\n%s" % (result, self.output()))


if __name__ == "__main__":
    support.main()
