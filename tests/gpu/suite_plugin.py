# SPDX-License-Identifier: Apache-2.0
"""A plugin for pytest: writes what becomes of each test to the file SUITE_OUTCOMES as it happens, a JSON
value a line, so that what a crash leaves behind can be read; takes a share of the tests; and passes over
those that the file already names, so that a run goes on behind a crash.

SUITE_SHARE is SHARD/SHARDS, counted from 0; SUITE_ONLY names a file with tests to run and no others."""
import json
import os

import pytest

# The worst that was seen of a test counts: it has a set-up, a call and a tear-down, and perhaps subtests.
ORDER = ["passed", "xpassed", "xfailed", "skipped", "failed", "error"]


def outcome_of(report):
    """What a report of one phase says, or None: a phase that passed says nothing but in the call."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else None


def worse(one, other):
    """None is what nothing is known of."""
    known = [outcome for outcome in (one, other) if outcome]
    return max(known, key=ORDER.index) if known else None


class Outcomes:
    def __init__(self, path, share, only):
        self.path, self.only = path, only
        self.shard, self.shards = (int(number) for number in share.split("/"))
        self.current = {}  # by test: (outcome, the end of what was said of a failure)

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

    # Last, behind what the suite itself leaves out.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        begun = self.begun()
        mine = [item for i, item in enumerate(items) if i % self.shards == self.shard
                and (self.only is None or item.nodeid in self.only)]
        self.write(collected=[item.nodeid for item in mine])
        items[:] = [item for item in mine if item.nodeid not in begun]

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(begin=report.nodeid + " (collection)")
            self.write(end=report.nodeid + " (collection)", outcome="error", said=str(report.longrepr)[-2000:])

    def pytest_runtest_logstart(self, nodeid):
        self.current[nodeid] = (None, "")
        self.write(begin=nodeid)

    def pytest_runtest_logreport(self, report):
        outcome, said = self.current.get(report.nodeid, (None, ""))
        now = outcome_of(report)
        if now in ("failed", "error"):
            said = report.longreprtext[-2000:]
        self.current[report.nodeid] = (worse(outcome, now), said)

    def pytest_runtest_logfinish(self, nodeid):
        outcome, said = self.current.pop(nodeid, (None, ""))
        self.write(end=nodeid, outcome=outcome or "error", said=said)


def pytest_configure(config):
    only = None
    if os.environ.get("SUITE_ONLY"):
        with open(os.environ["SUITE_ONLY"], encoding="utf-8") as file:
            only = set(file.read().splitlines())
    config.pluginmanager.register(
        Outcomes(os.environ["SUITE_OUTCOMES"], os.environ.get("SUITE_SHARE", "0/1"), only), "suite-outcomes")


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """What numba-cuda's tests ask of the configuration that its wheel does not have."""
    request.cls._dump_failed_filechecks = False
