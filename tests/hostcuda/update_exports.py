#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites exports.txt from a CUDA toolkit, or with --check says where the list and the toolkit differ.

A row is: exported symbol, name that cuGetProcAddress knows it by, first version, default stream.
"""
import argparse
import collections
import re
import subprocess
import sys

# Where the header's table of versions does not follow the order of the suffixes.
BY_HAND = {
    "cuGraphInstantiateWithFlags": [("cuGraphInstantiateWithFlags", 11040), ("cuGraphInstantiate", 12000)],
}

# What came after the toolkit of which the list is.
LATER = [("cuGraphAddNode_v3", "cuGraphAddNode", 13040, "legacy")]

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# The driver's exported functions: symbol, base name and first version for cuGetProcAddress
# (0: found by dlsym only), default stream when the stream argument is NULL.
# Written by update_exports.py.
"""


def stub_symbols(stub):
    out = subprocess.run(["nm", "-D", "--defined-only", stub], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in out.splitlines()}
    return sorted(name for name in names if name.startswith("cu"))


def versions_of(typedefs):
    """Base name and stream kind to the sorted versions of the header's function types."""
    found = collections.defaultdict(set)
    with open(typedefs, encoding="utf-8") as file:
        for base, version, kind in re.findall(r"\*PFN_(cu\w+?)_v(\d+)(?:_(ptsz|ptds))?\)", file.read()):
            found[base, kind or "legacy"].add(int(version))
    return {key: sorted(value) for key, value in found.items()}


def split(symbol):
    """cuMemcpyHtoD_v2_ptds to (cuMemcpyHtoD, 2, ptds)."""
    base, version, kind = re.fullmatch(r"(cu\w+?)(?:_v(\d+))?(?:_(ptsz|ptds))?", symbol).groups()
    return base, int(version or 1), kind or "legacy"


def rows_of(symbols, versions):
    groups = collections.defaultdict(list)
    for symbol in symbols:
        base, number, kind = split(symbol)
        groups[base, kind].append((number, symbol))
    rows = []
    for (base, kind), members in groups.items():
        known = versions.get((base, kind), [])
        members.sort()
        # The newest symbol has the newest version; symbols older than every known version have none.
        padded = [0] * (len(members) - len(known)) + known[-len(members):]
        for (_, symbol), version in zip(members, padded):
            if symbol not in BY_HAND:
                rows.append((symbol, base, version, kind))
    for symbol, names in BY_HAND.items():
        rows += [(symbol, base, version, "legacy") for base, version in names]
    rows += [row for row in LATER if row[0] not in symbols]
    return sorted(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stub", required=True, help="the toolkit's stub libcuda.so")
    parser.add_argument("--typedefs", required=True, help="the toolkit's cudaTypedefs.h")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("list", help="exports.txt")
    args = parser.parse_args()
    rows = rows_of(stub_symbols(args.stub), versions_of(args.typedefs))
    text = HEADER + "".join("%s %s %d %s\n" % row for row in rows)
    if not args.check:
        with open(args.list, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    with open(args.list, encoding="utf-8") as file:
        committed = file.read()
    if committed == text:
        return 0
    for line in sorted(set(text.splitlines()) ^ set(committed.splitlines())):
        print(("missing: " if line in text else "not in the toolkit: ") + line)
    return 1


if __name__ == "__main__":
    sys.exit(main())
