# SPDX-License-Identifier: Apache-2.0
"""Ten programs with one memory mistake each, which the settings name that rmmshim-reports(7) says: the right words, block
and call site.  TOOL is the command."""
import os
import re

import planted_rows
import support
from support import run

TOOL = os.environ["TOOL"]
POOL = {"RMM_POOL_SIZE": "64MiB"}
LINES = re.compile(r"^rmmshim\[\d+\]: ", re.MULTILINE)


class Planted(support.Test):
    def scene(self, row, settings):
        result = run([support.program("planted_bugs"), row.scene], settings, cwd=self.folder)
        self.assertEqual(result.status, 0, result)
        self.assertTrue(result.stdout.endswith(row.scene + " is done\n"), result)
        return result

    def check(self, row):
        result = self.scene(row, row.settings)
        for command in row.commands:
            printed = run([TOOL if command[0] == "rmmshim" else command[0], *command[1:]], preload=[], cwd=self.folder)
            self.assertEqual((printed.status, printed.stderr), (0, ""), printed)
            result.stdout += printed.stdout
        self.assertEqual(row.missed(result.stdout, result.stderr), [], "%s\n%s" % (row.mistake, result))
        if row.place == "block" or row.place.startswith("- "):
            self.assertEqual(len(LINES.findall(result.stderr)), int(row.place == "block"), result)

    def test_without_the_settings_none_is_named(self):
        """But for memory that runs out."""
        for row in planted_rows.rows():
            with self.subTest(row.mistake):
                result = self.scene(row, dict(POOL, RMM_ON_OOM="none"))
                self.assertEqual(result.stderr, "", result)

    def test_freed_memory_reads_as_no_number(self):
        row = next(row for row in planted_rows.rows() if row.scene == "used_after_free")
        self.assertIn("the result is not a number\n", self.scene(row, row.settings).stdout)
        self.assertIn("the result is a number\n", self.scene(row, POOL).stdout)

    def test_what_the_peer_reads(self):
        """A block that another process has open is not handed out again."""
        row = next(row for row in planted_rows.rows() if row.scene == "freed_while_a_peer_reads")
        for settings in row.settings, POOL:
            self.assertIn("the peer read 0 other words\n", self.scene(row, settings).stdout)

    def test_there_are_ten(self):
        self.assertEqual(len({row.scene for row in planted_rows.rows()}), 10)


for one in planted_rows.rows():
    setattr(Planted, "test_" + one.scene, lambda self, row=one: self.check(row))


if __name__ == "__main__":
    support.main()
