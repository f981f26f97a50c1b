#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs driver_facts and compares its lines with the hardware's table: a difference that is not listed
with a reason fails, and so does a listed one that no longer is. A line that the table lacks must be
listed too, unless the hardware could not get to it: its group stopped, or needs a second GPU."""
import argparse
import subprocess
import sys

LEAST_LINES = 150
PEER = "peer"  # the group that one GPU says nothing about


def lines_of(text):
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(None, 1) for line in rows)


def read(path):
    with open(path, encoding="utf-8") as file:
        return lines_of(file.read())


def group_of(name):
    return name.split(".")[0]


def incomplete_groups(table):
    found = {group_of(name) for name in table if name.endswith(".stopped")}
    if not any(group_of(name) == PEER for name in table):
        found.add(PEER)
    return found


def faults(here, table, reasons):
    if len(here) < LEAST_LINES:
        yield "only %d lines" % len(here)
    for name in here:
        if name.endswith(".stopped") or here[name] == "missing":
            yield "%s: %s" % (name, here[name])
    for name in sorted(set(here) & set(table)):
        if here[name] != table[name] and name not in reasons:
            yield "%s: %s here, %s on hardware" % (name, here[name], table[name])
        if here[name] == table[name] and name in reasons:
            yield "%s: listed as different, but both say %s" % (name, here[name])
    for name in sorted(set(reasons) - set(here)):
        yield "%s: listed as different, but not printed here" % name
    for name in sorted(set(table) - set(here)):
        if name.endswith(".stopped"):
            continue
        yield "%s: not printed here, %s on hardware" % (name, table[name])
    incomplete = incomplete_groups(table)
    for name in sorted(set(here) - set(table) - set(reasons)):
        if group_of(name) not in incomplete:
            yield "%s: not in the hardware's table" % name


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--differences", required=True)
    parser.add_argument("program", help="driver_facts")
    args = parser.parse_args()
    out = subprocess.run([args.program], capture_output=True, text=True, check=True).stdout
    here, table = lines_of(out), read(args.table)
    found = list(faults(here, table, read(args.differences)))
    print("\n".join(found))
    agree = sum(1 for name in here if table.get(name) == here[name])
    print("%d lines, %d on hardware, %d agree, %d faults"
          % (len(here), len(table), agree, len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
