# SPDX-License-Identifier: Apache-2.0
"""Reads suites.txt, which says what of other projects' test suites is run, and suite_differences.txt,
which explains what comes out differently with the library."""
import os
import shlex

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "suites.txt")
DIFFERENCES = os.path.join(HERE, "suite_differences.txt")
SUITES = ("torch", "cupy", "numba", "rmm", "cuda-core", "thrust", "cub")
FETCHED = tuple(suite for suite in SUITES if suite != "numba") + ("catch2",)  # which CUB's tests need
IMPORTED = {"cuda-core": ("cuda_core/tests", "cuda_python_test_helpers")}  # folders that its tests import from
COMPILED = {"thrust": "thrust/testing", "cub": "cub/test"}  # where their tests are


class Bad(Exception):
    """A line that cannot be read; says where."""


class Unit:
    """One file of tests, or one of the equal shares of it that processes of their own run."""

    def __init__(self, suite, file, shard=0, shards=1, expression="", environment=None):
        self.suite, self.file = suite, file
        self.shard, self.shards = shard, shards
        self.expression = expression  # pytest's -k
        self.environment = environment or {}

    @property
    def name(self):
        share = " %d/%d" % (self.shard + 1, self.shards) if self.shards > 1 else ""
        return self.name_of(self.file) + share

    def name_of(self, test):
        """Unique among all units; pytest's own name of it is not."""
        return "%s:%s%s" % (self.suite, test, "".join("@%s=%s" % item for item in sorted(self.environment.items())))

    def alone(self):
        """The whole file, for tests of it that are named."""
        return Unit(self.suite, self.file, 0, 1, self.expression, self.environment)


def program(unit):
    """What a file of a suite of COMPILED is compiled to; nvcc cannot read a name with a comma or equals sign."""
    name = os.path.splitext(os.path.relpath(unit.file, COMPILED[unit.suite]))[0].replace("/", ".")
    return name + "".join(".%s_%s" % item for item in sorted(unit.environment.items()))


def has_catch2(path):
    """Whether this is one of CUB's tests, or its program, that has Catch2's main(); others have their own."""
    return os.path.basename(path).startswith("catch2_")


def lines_of(path):
    """(place, words) of each line that is not empty."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            place = "%s:%d" % (os.path.basename(path), number)
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise Bad("%s: %s" % (place, error)) from error
            if words:
                yield place, words


def read_list(path=LIST):
    """(units, files): what is run, and by suite what must lie there: those files and those they need."""
    units, files, seen = [], {suite: [] for suite in SUITES + ("catch2",)}, set()
    for place, words in lines_of(path):
        if len(words) < 3 or words[0] not in ("run", "needs"):
            raise Bad("%s: a line is 'run SUITE FILE [shards=N] [k=EXPRESSION] [VARIABLE=VALUE]' or 'needs SUITE PATH'"
                      % place)
        kind, suite, file = words[:3]
        if suite not in (SUITES if kind == "run" else files):
            raise Bad("%s: unknown suite %s; known are %s" % (place, suite, " ".join(SUITES)))
        if os.path.isabs(file) or ".." in file.split("/"):
            raise Bad("%s: %s leads out of the suite" % (place, file))
        if kind == "needs":
            if len(words) > 3:
                raise Bad("%s: 'needs SUITE PATH' takes no more words" % place)
            files[suite].append(file)
            continue
        shards, expression, environment = 1, "", {}
        for word in words[3:]:
            name, equals, value = word.partition("=")
            if name == "shards" and value.isdigit() and int(value) > 0:
                shards = int(value)
            elif name == "k" and value:
                expression = value
            elif equals and name.isupper():
                environment[name] = value
            else:
                raise Bad("%s: %s is none of shards=N, k=EXPRESSION, VARIABLE=VALUE" % (place, word))
        key = (suite, file, tuple(sorted(environment.items())))
        if key in seen:
            raise Bad("%s: %s %s again" % (place, suite, file))
        seen.add(key)
        files[suite].append(file)
        units += [Unit(suite, file, shard, shards, expression, environment) for shard in range(shards)]
    return units, files


def read_differences(path=DIFFERENCES):
    """By test: (outcome without, outcome with)."""
    explained = {}
    for place, words in lines_of(path):
        if len(words) != 4 or words[2] != "->":
            raise Bad("%s: a line is 'TEST OUTCOME -> OUTCOME  # reason'" % place)
        explained[words[0]] = (words[1], words[3])
    return explained
