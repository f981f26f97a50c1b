# SPDX-License-Identifier: Apache-2.0
"""The file in which what becomes of each test is written as it happens, a JSON value a line, so that what a
crash leaves behind can be read, and a run goes on behind it.

SUITE_OUTCOMES is its path; SUITE_SHARE is SHARD/SHARDS, counted from 0; SUITE_ONLY names a file with tests to
run and no others."""
import json
import os


class File:
    def __init__(self):
        self.path = os.environ["SUITE_OUTCOMES"]
        self.shard, self.shards = (int(number) for number in os.environ.get("SUITE_SHARE", "0/1").split("/"))
        self.only = None
        if os.environ.get("SUITE_ONLY"):
            with open(os.environ["SUITE_ONLY"], encoding="utf-8") as file:
                self.only = set(file.read().splitlines())

    def write(self, **value):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def begun(self):
        names = set()
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                for line in file:
                    try:
                        names.add(json.loads(line).get("begin"))
                    except ValueError:
                        pass  # cut off by a crash
        return names

    def choose(self, tests, name_of):
        """Writes which of the tests are this share's; returns those of them that have not begun before."""
        begun = self.begun()
        mine = [test for i, test in enumerate(tests) if i % self.shards == self.shard
                and (self.only is None or name_of(test) in self.only)]
        self.write(collected=[name_of(test) for test in mine])
        return [test for test in mine if name_of(test) not in begun]
