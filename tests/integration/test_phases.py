# SPDX-License-Identifier: Apache-2.0
"""Named ranges of the program, in whole programs."""
import os
import sys

import json_schema
import support
from support import run

HERE = os.path.dirname(os.path.abspath(__file__))
SCENES = os.path.join(HERE, "phase_scenes.py")
PATH = {"PYTHONDONTWRITEBYTECODE": "1"}
POOLS = {"RMM_POOL_SIZE": "64MiB", "RMM_PINNED_POOL_SIZE": "16MiB"}


class Phases(support.Test):
    def scene(self, name, settings, *arguments):
        result = run([sys.executable, SCENES, name, *arguments], settings, more=PATH)
        self.assertEqual((result.status, result.stdout), (0, "done\n"), result)
        return result

    def quiet(self, name, settings, *arguments):
        result = self.scene(name, settings, *arguments)
        self.assertEqual(result.said, [], result)

    def test_sums(self):
        for settings in (POOLS, dict(POOLS, RMM_STATISTICS="json:/dev/null"),
                         {"RMM_RESOURCE": "cuda", "RMM_PINNED_RESOURCE": "pinned"}):
            with self.subTest(settings):
                self.quiet("sums", settings)

    def test_threads(self):
        self.quiet("threads", POOLS)

    def test_errors(self):
        self.quiet("errors", POOLS)

    def test_without_a_stack(self):
        for settings in ({"RMM_PINNED_POOL_SIZE": "16MiB"}, {"RMM_LIMIT": "1GiB", "RMM_HOOKS": "pinned"}):
            with self.subTest(settings):
                self.quiet("forwarded", settings)

    def test_peaks_begin_anew(self):
        self.quiet("peaks", {"RMM_POOL_SIZE": "0"})

    def check_document(self, path):
        document = json_schema.read(path, "statistics.json")
        phases = {phase["name"]: phase for phase in document["phases"]}
        self.assertEqual(list(phases), ["whole \"run\" ", "idle", "step"])
        step, = phases["step"]["memory"]
        self.assertEqual([(phase["entries"], phase["open"], phase["unended"]) for phase in phases.values()],
                         [(1, 1, 0), (1, 0, 0), (1, 0, 0)])
        self.assertEqual([step[name] for name in ("device", "kind", "peak_bytes", "peak_live_bytes", "allocated_bytes",
                                                  "allocations", "thread_allocations")],
                         [0, "device", 2 << 20, 3 << 20, 2 << 20, 1, 1])
        self.assertEqual(phases["idle"]["memory"], [])

    def test_reports(self):
        """At exit and on demand; other programs' reports stay as they were."""
        path = self.path("report.json")
        self.quiet("reported", dict(POOLS, RMM_STATISTICS="json:" + path))
        self.check_document(path)
        self.quiet("reported", POOLS, "json:" + path)
        self.check_document(path)
        said = self.scene("reported", dict(POOLS, RMM_STATISTICS="1")).said
        lines = [line for line in said if ", phase " in line]
        self.assertEqual(len(lines), 3, said)
        self.assertRegex(lines[0], r'^\S+, phase whole "run"  \(entered 1 time\), device 0: used up to 3.00 MiB \(up to 3.00 MiB more than when the phase began\); '
                                   r"allocated 3.00 MiB in 2 blocks, 3.00 MiB of it by the thread that began the phase; held up to \S+ MiB$")
        self.assertRegex(lines[1], r"^\S+, phase idle \(entered 1 time\): no GPU memory was allocated$")
        self.assertIn("phase step (entered 1 time), device 0: used up to 3.00 MiB (up to 2.00 MiB more than when the phase began)", lines[2])
        self.quiet("unphased", dict(POOLS, RMM_STATISTICS="json:" + path))
        self.assertNotIn("phases", json_schema.read(path, "statistics.json"))

    def test_marks(self):
        log = self.path("log.csv")
        self.quiet("marks", dict(POOLS, RMM_LOG=log))
        with open(log + ".marks", encoding="utf-8") as file:
            marks = [row.split(",")[2:] for row in file.read().splitlines()[1:]]
        self.assertEqual(marks, [["2", "begin one"], ["4", "begin two"], ["4", "end two"], ["4", "end one"]] +
                         64 * [["4", "begin deep"]] + 64 * [["4", "end deep"]])

    def test_forked(self):
        path = self.path("report.json")
        self.quiet("forked", POOLS, "json:" + path)
        phases = {phase["name"]: phase["memory"] for phase in json_schema.read(path, "statistics.json")["phases"]}
        self.assertEqual(phases["in the child"][0]["allocated_bytes"], 1000, phases)

    def test_unserved(self):
        self.quiet("unserved", {})


if __name__ == "__main__":
    support.main()
