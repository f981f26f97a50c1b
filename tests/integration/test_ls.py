# SPDX-License-Identifier: Apache-2.0
"""`rmmshim ls` and `rmmshim stats`: what processes hold while they run.

Other processes may be served on the machine meanwhile, so these look for their own.  meson sets TOOL."""
import os
import pwd
import re
import shutil
import subprocess
import sys
import unittest

import json_schema
import prometheus_text
import served
import support
from served import Process, page, scene, tool
from test_steer import Steered

MIB = 1 << 20
UNSERVED = "is not served by rmmshim; `rmmshim doctor PID` says why"
CLOSED = ("process %d belongs to another user, or protects itself (PR_SET_DUMPABLE); `rmmshim doctor PID` says what "
          "to do")
HOSTILE = "\x1b]0;evil\x07\x1b[2J \u202egpj\"\\\n{}=\u00e9 " + 60 * "x"
PLAIN = "?]0;evil??[2J ?gpj\"\\?{}=\u00e9 " + 60 * "x"


def is_hostile(text):
    return any(character in text for character in "\x1b\x07\x9b\u202e\r")


class Test(support.Test):
    def expect(self, result, status, *lines):
        """The exit status, and the lines on stderr."""
        self.assertEqual((result.status, result.stderr), (status, "".join("rmmshim: %s\n" % line for line in lines)))
        return result

    def rows(self, *processes, command=("ls",)):
        """The rows of those processes, as they come."""
        rows = json_schema.check(tool(*command, "--json").stdout, "processes.json")
        pids = [process.pid for process in processes]
        return [row for row in rows if row["pid"] in pids]

    def table(self, *processes):
        """Title and lines of those processes, without the UUIDs that others' devices may make necessary."""
        result = tool("ls")
        self.assertEqual(result.status, 0)
        title, *lines = re.sub("(?m)^( *[0-9]+ .* [0-9]+) [0-9a-f]{8} ", r"\1 ", result.stdout).splitlines()
        pids = [str(process.pid) for process in processes]
        return title, [line for line in lines if line.split()[0] in pids]


class Ls(Test):
    def test_numbers(self):
        process = scene(self, "hold:%d" % (3 * MIB), "hold:%d" % MIB, "drop", RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB",
                        RANK="3", LOCAL_RANK="3")
        row, = self.rows(process)
        self.assertEqual({name: row[name] for name in ("program", "script", "device", "kind", "used", "held", "cached", "waiting",
                                                       "used_peak", "held_peak", "limit", "job_limit", "refused", "allocations",
                                                       "spilled", "rank", "expression")},
                         {"program": "python3", "script": "output_scenes.py", "device": 0, "kind": "device", "used": 3 * MIB,
                          "held": 64 * MIB, "cached": 60 * MIB, "waiting": MIB, "used_peak": 4 * MIB, "held_peak": 64 * MIB,
                          "limit": 1 << 30, "job_limit": 0, "refused": 0, "allocations": 2, "spilled": 0, "rank": "3",
                          "expression": "reuse(pool(cuda, initial_size=64MiB))"})
        title, lines = self.table(process)
        self.assertEqual(title.split()[:4], ["PID", "USER", "PROGRAM", "RANK"])
        self.assertEqual([word for word in title.split()[4:] if word not in ("JOB", "LIMIT", "SPILLED")],
                         ["DEVICE", "USED", "HELD", "PEAK", "REFUSED", "EXPRESSION"])
        self.assertEqual([word for word in lines[0].split()[1:] if word != "-"],
                         [pwd.getpwuid(os.geteuid()).pw_name, "output_scenes.py", "3", "0", "3.00", "MiB", "64.0", "MiB", "4.00",
                          "MiB", "1.00", "GiB", "0", "reuse(pool(cuda,", "initial_size=64MiB))"])

    def test_program_and_user(self):
        """What an interpreter runs; a module is one too."""
        process = scene(self, "use:1")
        module = Process(self, ["python3", "-u", "-m", "output_scenes", "use:1", "say", "wait"],
                         {"RMM_POOL_SIZE": "64MiB", "PYTHONPATH": served.FOLDER})
        other = scene(self, "use:1", name="my program")
        for of, script, shown in ((process, "output_scenes.py", "output_scenes.py"),
                                  (module, "-m output_scenes", "-m output_scenes"), (other, "", "my program")):
            with self.subTest(script):
                row, = self.rows(of)
                self.assertEqual((row["script"], row["user"]), (script, pwd.getpwuid(os.geteuid()).pw_name))
                self.assertIn("  %s " % shown, self.table(of)[1][0])

    def test_the_limit_of_a_job(self):
        process = Process(self, [served.TOOL, "run", "--quiet", "--limit-job", "2GiB", "--pool-size", "64MiB", sys.executable,
                                 served.SCENES, "use:1", "say", "wait"], executable=served.TOOL)
        child = Process.__new__(Process)
        child.pid = int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout)
        row, = self.rows(child)
        self.assertEqual((row["limit"], row["job_limit"]), (0, 2 << 30))
        title, lines = self.table(child)
        self.assertIn("  JOB LIMIT  ", title)
        self.assertIn(" 2.00 GiB ", lines[0])
        metrics = prometheus_text.read(tool("stats", child.pid, "--prom").stdout)
        self.assertEqual(list(metrics["rmmshim_job_limit_bytes"].samples.values()), [2 << 30])
        self.assertNotIn("rmmshim_limit_bytes", metrics)

    def test_kinds_of_memory(self):
        """A row for each; no account counts that of the host, so it is what the stack took from the driver."""
        process = scene(self, "hold:%d" % MIB, "pin:%d" % (2 * MIB), RMM_POOL_SIZE="64MiB", RMM_PINNED_POOL_SIZE="16MiB")
        rows = {row["kind"]: row for row in self.rows(process)}
        self.assertEqual({kind: (row["used"], row["held"]) for kind, row in rows.items()},
                         {"device": (MIB, 64 * MIB), "pinned": (2 * MIB, 16 * MIB)})
        self.assertEqual([line.split()[3:5] for line in self.table(process)[1]], [["0", "1.00"], ["0", "pinned"]])

    def test_what_no_stack_serves_is_held(self):
        process = scene(self, "hold:%d" % MIB, "array:1024", RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB")
        row, = self.rows(process)
        self.assertEqual((row["used"], row["held"]), (5 * MIB, 68 * MIB))

    def test_without_a_limit(self):
        process = scene(self, "hold:%d" % (3 * MIB), RMM_RESOURCE="pool(cuda, initial_size=32MiB)")
        row, = self.rows(process)
        self.assertEqual((row["held"], row["used"], row["limit"]), (32 * MIB, 3 * MIB, 0))
        self.assertIn(" - ", self.table(process)[1][0])

    def test_refusals_and_spilling(self):
        refused = scene(self, "hold:%d" % (80 * MIB), "use:1", RMM_POOL_SIZE="0", RMM_LIMIT="64MiB")
        spilled = scene(self, *["hold:%d" % (30 * MIB)] * 3, RMM_RESOURCE="fallback(limiting(cuda, limit=64MiB), managed)")
        self.assertGreater(self.rows(refused)[0]["refused"], 0)
        self.assertEqual(self.rows(spilled)[0]["spilled"], 30 * MIB)

    def test_most_held_first(self):
        small, large = (scene(self, "use:1", RMM_POOL_SIZE=size) for size in ("16MiB", "256MiB"))
        self.assertEqual([row["pid"] for row in self.rows(small, large)], [large.pid, small.pid])
        self.assertEqual([int(line.split()[0]) for line in self.table(small, large)[1]], [large.pid, small.pid])

    def test_it_is_as_it_is_now(self):
        process = scene(self, "hold:%d" % MIB, "say", "wait", "drop", "use:5")
        self.assertEqual([(row["used"], row["allocations"]) for row in self.rows(process)], [(MIB, 1)])
        process.step()
        self.assertEqual([(row["used"], row["allocations"]) for row in self.rows(process)], [(0, 6)])
        process.end()
        self.assertEqual(self.rows(process), [])

    def test_children_are_processes_of_their_own(self):
        """A forked child has no page, though it may have its parent's open."""
        process = scene(self, "use:3", "stayer")
        self.assertEqual(len(self.rows(process)), 1)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
        for child in children.split():
            self.expect(tool("stats", child), 1, "process %s %s" % (child, UNSERVED))

    def test_without_memory_yet(self):
        process = scene(self)
        self.assertEqual(self.rows(process), [])
        self.assertIn(tool("stats", process.pid).stderr, [
            "rmmshim: process %d %s\n" % (process.pid, text)
            for text in (UNSERVED, "is served by rmmshim, but has allocated no memory yet")])

    def test_hostile_names(self):
        process = scene(self, "use:1", name=HOSTILE)
        row, = self.rows(process)
        self.assertEqual(row["program"], PLAIN)
        for arguments in (["ls"], ["ls", "--json"], ["stats", process.pid], ["stats", process.pid, "--json"],
                          ["stats", "all", "--prom"]):
            for locale in ("C.UTF-8", "C"):
                with self.subTest(arguments, locale=locale):
                    result = tool(*arguments, env=dict(os.environ, LC_ALL=locale))
                    self.assertFalse(is_hostile(result.stdout), result)
                    self.assertIn("evil", result.stdout)
        self.assertEqual(len(self.table(process)[1][0].split("evil")[0].split()), 3)

    def test_hostile_scripts(self):
        script = self.path("\x1b[2J\u202e\x9b\u00e9.py")
        shutil.copy(served.SCENES, script)
        process = Process(self, ["python3", script, "use:1", "say", "wait"], {"RMM_POOL_SIZE": "64MiB"})
        row, = self.rows(process)
        self.assertEqual(row["script"], "?[2J??\u00e9.py")
        for arguments in (["ls"], ["top"], ["ls", "--json"], ["stats", "all", "--prom"]):
            for locale in ("C.UTF-8", "C"):
                with self.subTest(arguments, locale=locale):
                    result = tool(*arguments, env=dict(os.environ, LC_ALL=locale, LINES="200"))
                    self.assertFalse(is_hostile(result.stdout), result)
                    self.assertIn("[2J", result.stdout)

    def test_nobody_is_served(self):
        """As seen by a user of whom there is none."""
        if os.geteuid() != 0 or subprocess.run(["true"], user=65534, check=False).returncode != 0:
            self.skipTest("another user is needed")
        process = scene(self, "use:1")
        command = self.command_for_all()
        for arguments, text in ((["ls"], ""), (["ls", "--json"], "[]\n"), (["stats", "all"], ""),
                                (["stats", "all", "--json"], "[]\n"), (["stats", "all", "--prom"], "")):
            with self.subTest(arguments):
                result = subprocess.run([command, *arguments], user=65534, capture_output=True, text=True, check=False)
                self.assertEqual((result.returncode, result.stdout, result.stderr),
                                 (0, text, "rmmshim: no process of this user has GPU memory served by rmmshim\n"))
        result = subprocess.run([command, "stats", str(process.pid)], user=65534, capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (1, "", "rmmshim: %s\n" % CLOSED % process.pid))

    def command_for_all(self):
        """The command where another user may execute it."""
        os.chmod(self.folder, 0o755)
        return shutil.copy(served.TOOL, self.path("rmmshim"))


class TwoUsers(Test):
    """Two users who each have a process that is served.  No name need be known for their numbers, and a run of these
    tests beside this one has others."""
    USERS = (20000 + os.getpid() % 20000 * 2, 20001 + os.getpid() % 20000 * 2)

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or subprocess.run(["true"], user=self.USERS[0], check=False).returncode != 0:
            self.skipTest("other users are needed")
        os.chmod(self.folder, 0o755)
        self.command = self.copy(served.TOOL)
        files = {"LD_PRELOAD": self.copy(support.SHIM), "LD_LIBRARY_PATH": self.folder}
        self.copy(os.path.join(support.HOSTCUDA, "libcuda.so.1"))
        program = self.copy(support.program("memory_steps"))
        self.processes = [Steered(self, {"RMM_POOL_SIZE": "64MiB", **files}, [program], **self.rights_of(user))
                          for user in self.USERS]
        for process in self.processes:
            self.assertEqual(process.step("device", 1), [])
        self.processes.append(scene(self, "use:3"))  # and one of root's

    def copy(self, path):
        """Where every user may read and execute it."""
        return shutil.copy(path, self.folder)

    @staticmethod
    def rights_of(user):
        return {"user": user, "group": user, "extra_groups": []}

    def as_user(self, user, *arguments):
        result = subprocess.run([self.command, *map(str, arguments)], capture_output=True, check=False, timeout=support.ENOUGH_SECONDS,
                                env=support.environment(preload=[], driver=False), **self.rights_of(user))
        return support.Result(result.returncode, result.stdout, result.stderr)

    def test_each_sees_their_own(self):
        """Nothing is said of the others' processes: they are nobody's business."""
        for user, own in zip(self.USERS, self.processes):
            for arguments in (["ls", "--json"], ["top", "--json"]):
                with self.subTest(arguments, user=user):
                    rows = json_schema.check(self.expect(self.as_user(user, *arguments), 0).stdout, "processes.json")
                    self.assertEqual([(row["pid"], row["program"], row["used"]) for row in rows],
                                     [(own.pid, "memory_steps", MIB)])
            with self.subTest("a table", user=user):
                lines = self.expect(self.as_user(user, "ls"), 0).stdout.splitlines()
                self.assertEqual([line.split()[0] for line in lines], ["PID", str(own.pid)])
            with self.subTest("stats all", user=user):
                text = self.expect(self.as_user(user, "stats", "all", "--json"), 0).stdout
                documents = json_schema.check(text, "statistics_of_all.json")
                self.assertEqual([document["pid"] for document in documents], [own.pid])
                metrics = prometheus_text.read(self.expect(self.as_user(user, "stats", "all", "--prom"), 0).stdout)
                self.assertEqual({dict(labels)["pid"] for metric in metrics.values() for labels in metric.samples},
                                 {str(own.pid)})

    def test_the_others_are_another_user_s(self):
        for user in self.USERS:
            for process, owner in zip(self.processes, self.USERS + (0,)):
                if owner == user:
                    self.assertEqual(self.as_user(user, "stats", process.pid).status, 0)
                    continue
                for arguments in (["stats", process.pid], ["stats", process.pid, "--prom"], ["limit", process.pid, "1GiB"],
                                  ["trim", process.pid]):
                    with self.subTest(arguments, user=user, owner=owner):
                        result = self.expect(self.as_user(user, *arguments), 1,
                                             CLOSED % process.pid)
                        self.assertEqual(result.stdout, "")

    def test_a_process_that_is_protected_from_its_user(self):
        """The kernel protects a process whose file its user may execute but not read."""
        program = self.copy(shutil.which("cat"))
        os.chmod(program, 0o711)
        with subprocess.Popen([program], stdin=subprocess.PIPE, **self.rights_of(self.USERS[0])) as process:
            self.expect(self.as_user(self.USERS[0], "stats", process.pid), 1, CLOSED % process.pid)
            doctor = self.as_user(self.USERS[0], "doctor", process.pid)
            self.assertIn("cannot be examined: it runs with elevated privileges, or protects itself", doctor.stdout)
            self.assertEqual(doctor.status, 1, doctor)

    def test_the_kernel_keeps_them_apart(self):
        """The page is open in its process, whose descriptors another user cannot even list."""
        process = self.processes[0]
        for user, listed in zip(self.USERS, (0, 2)):
            result = subprocess.run(["ls", "/proc/%d/fd" % process.pid], capture_output=True, check=False,
                                    **self.rights_of(user))
            self.assertEqual(result.returncode, listed, result)

    def test_when_the_other_s_process_has_ended(self):
        first, second = self.processes[:2]
        second.process.kill()
        second.process.wait()
        self.expect(self.as_user(self.USERS[1], "ls"), 0, "no process of this user has GPU memory served by rmmshim")
        self.expect(self.as_user(self.USERS[0], "stats", second.pid), 1, "process %d does not exist" % second.pid)
        self.assertEqual(len(self.expect(self.as_user(self.USERS[0], "ls"), 0).stdout.splitlines()), 2)
        self.assertEqual([row["pid"] for row in self.rows(self.processes[2])], [self.processes[2].pid])
        self.assertEqual(first.step("device", 1), [])


class Stats(Test):
    def test_as_the_report_at_exit(self):
        process = scene(self, "hold:1000", "use:9", RMM_RESOURCE="statistics(pool(cuda, initial_size=64MiB))")
        text = self.expect(tool("stats", process.pid), 0).stdout
        self.assertTrue(text.startswith("rmmshim[%d]: python3, device 0: memory resource statistics(" % process.pid), text)
        self.assertIn("\n  program     live 1000 B, live_allocations 1, allocations 10,", text)
        document = json_schema.check(self.expect(tool("stats", process.pid, "--json"), 0).stdout, "statistics.json")
        self.assertEqual(document["pid"], process.pid)
        counters = {(counter["resource"], counter["name"]): counter["value"]
                    for counter in document["devices"][0]["counters"]}
        self.assertEqual((counters["program", "allocations"], counters["statistics", "allocations"]), (10, 10))

    def test_all(self):
        processes = [scene(self, "use:%d" % count) for count in (3, 4)]
        text = tool("stats", "all", "--json").stdout
        documents = {document["pid"]: document for document in json_schema.check(text, "statistics_of_all.json")}
        for process, count in zip(processes, (3, 4)):
            self.assertIn({"resource": "program", "name": "allocations", "unit": "count", "value": count},
                          documents[process.pid]["devices"][0]["counters"])
        text = tool("stats", "all").stdout
        for process in processes:
            self.assertIn("rmmshim[%d]: " % process.pid, text)

    def test_prometheus(self):
        """One head for each metric, whatever processes have it."""
        processes = [scene(self, "use:3", RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB"),
                     scene(self, "use:4", RMM_ARENA_SIZE="64MiB"),
                     scene(self, "use:5", name="a\"b\\c\nd")]
        ranked = scene(self, "use:1", RMM_POOL_SIZE="64MiB", OMPI_COMM_WORLD_RANK="7")
        scripts = ("output_scenes.py", "output_scenes.py", "")
        for words, name, more in (([], "rmmshim_allocations_total", {}),
                                  (["--all-metrics"], "rmmshim_program_allocations_total", {"resource": "program"})):
            text = tool("stats", "all", "--prom", *words).stdout
            metrics = prometheus_text.read(text)
            uuids = {row["uuid"] for row in self.rows(*processes)}
            for process, count, program, script in zip(processes, (3, 4, 5), ("python3", "python3", "a\\\"b\\\\c?d"), scripts):
                labels = {"device": "0", "kind": "device", "program": program, "pid": str(process.pid), "uuid": uuids.copy().pop(),
                          "user": pwd.getpwuid(os.geteuid()).pw_name, **({"script": script} if script else {}), **more}
                self.assertEqual(metrics[name].samples[tuple(sorted(labels.items()))], count)
            self.assertEqual(bool(words), "rmmshim_account_limit_bytes" in metrics)
            self.assertEqual(bool(words), len(metrics) > 20)
        self.assertEqual([value for labels, value in metrics["rmmshim_limit_bytes"].samples.items()
                          if ("pid", str(processes[0].pid)) in labels], [1 << 30])
        rank, = (dict(labels)["rank"] for labels in metrics["rmmshim_used_bytes"].samples if ("pid", str(ranked.pid)) in labels)
        self.assertEqual(rank, "7")
        promtool = shutil.which("promtool")
        if promtool:
            result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def test_it_fails_when_it_cannot_write(self):
        process = scene(self, "use:3")
        for arguments in (["ls"], ["stats", process.pid], ["stats", "all", "--prom"]):
            with self.subTest(arguments), open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([served.TOOL, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, check=False)
                self.assertEqual(result.returncode, 1, result)
                self.assertRegex(result.stderr, rb"(?m)^rmmshim(\[\d+\])?: standard output: (No space left on device|write error)$")


class BadInput(Test):
    def test_wrong_usage(self):
        for arguments, line in (
            (["ls", "--jsn"], "unknown option '--jsn'; did you mean '--json'?"),
            (["ls", "4711"], "unknown option '4711'"),
            (["stats"], "no process ID given; `rmmshim ls` lists the processes, and 'all' means all of them"),
            (["stats", "--json"], "no process ID given; `rmmshim ls` lists the processes, and 'all' means all of them"),
            (["stats", "x"], "'x' is neither a process ID nor 'all'; `rmmshim ls` lists the processes"),
            (["stats", "0"], "'0' is neither a process ID nor 'all'; `rmmshim ls` lists the processes"),
            (["stats", "-1"], "unknown option '-1'"),
            (["stats", "1x"], "'1x' is neither a process ID nor 'all'; `rmmshim ls` lists the processes"),
            (["stats", "99999999999"], "'99999999999' is neither a process ID nor 'all'; `rmmshim ls` lists the processes"),
            (["stats", "1", "2"], "expected one process ID, or 'all'"),
            (["stats", "1", "--json", "--prom"], "use only one of --json and --prom"),
            (["stats", "1", "--all-metrics"], "--all-metrics needs --prom; text and JSON have all counters anyway"),
            (["stats", "1", "--prm"], "unknown option '--prm'; did you mean '--prom'?"),
        ):
            with self.subTest(arguments):
                result = self.expect(tool(*arguments), 2, line)
                self.assertEqual(result.stdout, "")

    def test_processes_that_have_no_page(self):
        gone = subprocess.Popen(["true"])
        zombie = subprocess.Popen(["true"], stdout=subprocess.PIPE)
        gone.wait()
        zombie.stdout.read()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        for pid, text in ((os.getpid(), UNSERVED), (gone.pid, "does not exist"),
                          (zombie.pid, "does not exist"), (2 ** 31 - 1, "does not exist")):
            with self.subTest(text):
                self.expect(tool("stats", pid), 1, "process %d %s" % (pid, text))
        zombie.wait()

    def test_pages_that_lie(self):
        real = scene(self, "use:3")
        for change, text in (("version", "uses another version of rmmshim, whose counters this command cannot read: use the command of that version"),
                             ("directory:8", "is served by rmmshim, but its counters are damaged and cannot be shown; start it again to have new ones"),
                             ("directory:33554400", "is served by rmmshim, but its counters are damaged and cannot be shown; start it again to have new ones"),
                             ("directory:18446744073709551600", "is served by rmmshim, but its counters are damaged and cannot be shown; start it again to have new ones"),
                             ("empty", "is served by rmmshim, but its counters are damaged and cannot be shown; start it again to have new ones"),
                             ("directory:0", "is served by rmmshim, but has allocated no memory yet"),
                             ("truncated", UNSERVED),
                             ("unsealed", UNSERVED),
                             ("ordinary", UNSERVED),
                             ("mine", UNSERVED)):
            with self.subTest(change):
                if change == "ordinary" and not os.access("/", os.W_OK):
                    continue
                process = page(self, real.pid, change)
                self.expect(tool("stats", process.pid), 1, "process %d %s" % (process.pid, text))
                self.assertEqual((self.rows(process), len(self.rows(real))), ([], 1))
                if "version" in text or "sense" in text:
                    for arguments in (["ls"], ["ls", "--json"], ["stats", "all"]):
                        self.assertIn("rmmshim: left out: ", tool(*arguments).stderr)
                if "version" in text:
                    self.assertRegex(tool("doctor", process.pid).stdout, "^it is not known whether GPU memory is served: process")
                process.end()
        process = page(self, real.pid, "same")
        self.assertEqual(self.rows(process)[0]["expression"], self.rows(real)[0]["expression"])

    def test_counters_of_another_name(self):
        """Nobody's metrics become invalid or are left out by a process whose counters have names that make other
        metrics' names, types or units."""
        real = scene(self, "hold:%d" % MIB, "use:3", RMM_POOL_SIZE="64MiB", RMM_LIMIT="1GiB")
        before = prometheus_text.read(tool("stats", real.pid, "--prom", "--all-metrics").stdout)
        usual = prometheus_text.read(tool("stats", real.pid, "--prom").stdout)
        for names in ("growths:held_bytes", "chunks:held_bytes", "live_allocations:allocations_total", "growths:held_gauge",
                      "limit:limit_seconds", "pool:pool_held", "program:limit"):
            with self.subTest(names):
                liar = page(self, real.pid, "rename:" + names)
                for words in ([], ["--all-metrics"]):
                    metrics = prometheus_text.read(tool("stats", "all", "--prom", *words).stdout)
                    told = {name: {labels: value for labels, value in metric.samples.items() if ("pid", str(real.pid)) in labels}
                            for name, metric in metrics.items()}
                    for name, metric in before.items():
                        if words or name in usual:
                            self.assertEqual(told[name], metric.samples, name)
                liar.end()

    def test_pages_spoilt_at_random(self):
        """What is printed is sound, whatever the numbers are."""
        real = scene(self, "hold:1000", "use:3", RMM_RESOURCE="statistics(pool(cuda))", RMM_LIMIT="1GiB")
        processes = [page(self, real.pid, "random:%d" % seed) for seed in range(30)]
        self.assertGreater(len(self.rows(*processes)), 5)
        json_schema.check(tool("top", "--json", "--interval", "0.1").stdout, "processes.json")
        json_schema.check(tool("stats", "all", "--json").stdout, "statistics_of_all.json")
        for words in ([], ["--all-metrics"]):
            prometheus_text.read(tool("stats", "all", "--prom", *words).stdout)
        for arguments in (["ls"], ["top"], ["top", "--by", "device"], ["stats", "all"]):
            self.assertEqual(tool(*arguments).status, 0)
        for process in processes:
            self.assertIn(tool("stats", process.pid).status, (0, 1))

    def test_a_name_that_is_no_utf8(self):
        process = scene(self, "use:1", name=b"a\xffb\xc3")
        self.assertEqual(self.rows(process)[0]["program"], "a?b?")


if __name__ == "__main__":
    support.main()
