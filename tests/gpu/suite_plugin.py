# SPDX-License-Identifier: Apache-2.0
"""A plugin for pytest: writes what becomes of each test into the file of suite_outcomes.py, takes a share of
the tests, and passes over those that the file already names."""
import pytest

import suite_outcomes

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
    def __init__(self):
        self.file = suite_outcomes.File()
        self.current = {}  # by test: (outcome, the end of what was said of a failure)

    # Last, behind what the suite itself leaves out.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = self.file.choose(items, lambda item: item.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.file.write(begin=report.nodeid + " (collection)")
            self.file.write(end=report.nodeid + " (collection)", outcome="error", said=str(report.longrepr)[-2000:])

    def pytest_runtest_logstart(self, nodeid):
        self.current[nodeid] = (None, "")
        self.file.write(begin=nodeid)

    def pytest_runtest_logreport(self, report):
        outcome, said = self.current.get(report.nodeid, (None, ""))
        now = outcome_of(report)
        if now in ("failed", "error"):
            said = report.longreprtext[-2000:]
        self.current[report.nodeid] = (worse(outcome, now), said)

    def pytest_runtest_logfinish(self, nodeid):
        outcome, said = self.current.pop(nodeid, (None, ""))
        self.file.write(end=nodeid, outcome=outcome or "error", said=said)


def pytest_configure(config):
    config.pluginmanager.register(Outcomes(), "suite-outcomes")


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """What numba-cuda's tests ask of the configuration that its wheel does not have."""
    request.cls._dump_failed_filechecks = False
