#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs driver_facts and compares its lines with the hardware's table: a difference that is not listed
with a reason fails, and so does a listed one that no longer is."""
import argparse
import subprocess
import sys

LEAST_LINES = 150


def lines_of(text):
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(None, 1) for line in rows)


def read(path):
    with open(path, encoding="utf-8") as file:
        return lines_of(file.read())


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
    for name in sorted(set(table) - set(here)):
        yield "%s: not printed here, %s on hardware" % (name, table[name])
    for name in sorted(set(here) - set(table)) if table else []:
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
    print("%d lines, %d on hardware, %d faults" % (len(here), len(table), len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
