# SPDX-License-Identifier: Apache-2.0
"""What `rmmshim run` says of processes that begin and end in many ways: the truth, or that it is incomplete.  TOOL is
the command."""
import json
import os
import re

import json_schema
import support
from support import FEWER, run

TOOL = os.environ["TOOL"]
WAYS = support.program("run_ways")
TAKEN_BYTES = 8 << 20
INCOMPLETE = "rmmshim: NOT co"  # covered, or counted
NOT_HERE = 77
MANY = 1000 // FEWER ** 2
IMAGES = 300 // FEWER ** 2

# Name: the steps of run_ways (one child, of whose steps the last ends it), how many reports are due, and whether
# nothing may be missing.
ENDS = ("exit", "_exit", "kill")
PLACES = {
    "plain": (["init", "take"], True),
    "another user": (["init", "uid", "take"], True),
    "no capabilities": (["no-capabilities", "init", "take"], True),
    "a user namespace": (["userns", "init", "take"], True),
    "a PID namespace": (["pidns", "init", "take"], True),
    "user and PID namespaces": (["userns", "pidns", "init", "take"], True),
    "no /proc": (["no-proc", "init", "take"], True),
    "a root of its own": (["init", "chroot:%s", "take"], True),
    "a root of its own, later": (["init", "take", "chroot:%s"], True),
    "descriptors closed": (["init", "take", "close"], True),
    "files small": (["init", "fsize:20000", "take"], False),
    "no memory files": (["init", "no-memfd", "take"], False),
    "no sockets": (["init", "no-socket", "take"], False),
    "a network namespace": (["netns", "init", "take"], False),
}


class Sweep(support.Test):
    def under(self, options, steps):
        words = [TOOL, "run", "--pool-size", "0", "--statistics", "json:" + self.path("%p")] + options + [WAYS, "fork:1"]
        result = run(words + [step.replace("%s", self.folder) for step in steps], preload=[])
        if result.status == NOT_HERE:
            self.skipTest("this machine does not allow it: " + result.stderr.splitlines()[0])
        return result

    def reports(self):
        """Those that were written.  Who is killed and not held leaves the file that it had made."""
        found = []
        for name in os.listdir(self.folder):
            path = self.path(name)
            if name != "end" and os.path.getsize(path):
                with open(path, encoding="utf-8") as file:
                    found.append(json.load(file))
            os.unlink(path)
        return found

    def judge(self, steps, count, is_whole):
        """All three views of it agree with what happened, or say that they are incomplete."""
        result = self.under(["--fail-over", "1MiB", "--json", self.path("end")], steps)
        end = json_schema.read(self.path("end"), "run.json")
        reports = self.reports()
        self.assertEqual(result.status, 1, result)  # each took more, and what was not seen is not well
        self.assertEqual(end["incomplete"], INCOMPLETE in result.stderr, result)
        if is_whole:
            self.assertFalse(end["incomplete"], result)
        if not end["incomplete"]:
            self.assertEqual(len(end["processes"]), count, result)
            self.assertEqual({sum(device["unfreed_bytes"] for device in process["devices"]) for process in end["processes"]},
                             {TAKEN_BYTES}, result)
            self.assertEqual(len(reports) + result.stderr.count(": no report is written\n"), count, result)
        result = self.under(["--fail-on-leak"], steps)
        self.assertEqual(result.status, 1, result)
        self.reports()

    def test_places(self):
        for place, (steps, is_whole) in PLACES.items():
            for end in ENDS:
                with self.subTest("%s, %s" % (place, end)):
                    self.judge(steps + [end], 1, is_whole)

    def test_a_file_that_only_the_process_sees(self):
        """In its root directory there is a directory of that name; the line says where the report is."""
        os.makedirs(os.path.join(self.folder, "root" + self.folder))
        words = [TOOL, "run", "--quiet", "--pool-size", "0", "--statistics", "json:" + self.path("report")]
        for before in ("", "the user's own\n"):
            with self.subTest(before):
                with open(self.path("report"), "w", encoding="utf-8") as file:
                    file.write(before)
                result = run(words + [WAYS, "fork:1", "init", "chroot:" + self.path("root"), "take", "kill"], preload=[])
                if result.status == NOT_HERE:
                    self.skipTest(result.stderr)
                place = re.search(r"the report (?:of process \d+ )?(?:is in|to) ([^\s;,]+)", result.stderr).group(1)
                with open(self.path("report"), encoding="utf-8") as file:
                    self.assertTrue(not before or file.read() == before)
                with open(place, encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["devices"][0]["counters"] != [], True)

    def test_many_at_once(self):
        self.judge(["fork:%d" % MANY, "init", "take", "kill"], MANY, True)

    def test_many_with_few_descriptors(self):
        self.judge(["files:20", "fork:40", "init", "take", "kill"], 40, True)

    def test_each_image_of_a_process(self):
        self.judge(["init", "take", "exec:%d" % IMAGES, "kill"], IMAGES, True)


if __name__ == "__main__":
    support.main()
