#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the built libraries: the driver exports exactly the list, and calls none of it through the
PLT; the runtime looks for the driver through the PLT, and its exports carry its version."""
import argparse
import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exports(library):
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1] for line in lines if line.split()[-2] in "TDBRW"}


def relocations(library):
    return set(re.findall(r"\s((?:cu|hostcuda)\w+)(?:@\S+)? \+ 0", run("readelf", "-rW", library)))


def undefined(library):
    return {line.split()[-1].split("@")[0] for line in run("nm", "-D", "-u", library).splitlines()}


def faults(args):
    with open(args.list, encoding="utf-8") as file:
        listed = {line.split()[0] for line in file if line.strip() and not line.startswith("#")}
    found = exports(args.driver)
    for name in sorted(listed - found):
        yield "the driver does not export " + name
    for name in sorted(found - listed):
        if not name.startswith("hostcuda_"):
            yield "the driver exports %s, which is not in the list" % name
    for name in sorted(relocations(args.driver)):
        yield "the driver reaches its own %s through the PLT or GOT" % name
    for name in ("dlopen", "dlsym"):
        if name not in undefined(args.runtime):
            yield "the runtime does not call %s through the PLT" % name
    for name in sorted(exports(args.runtime)):
        if not name.endswith("@@libcudart.so.13") and name != "libcudart.so.13":
            yield "the runtime's %s has no version" % name


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", required=True)
    parser.add_argument("driver")
    parser.add_argument("runtime")
    args = parser.parse_args()
    found = list(faults(args))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
