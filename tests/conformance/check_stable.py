#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that all that stable.txt promises for the releases 1.x is there: commands, options, variables and their values,
metrics, fields of JSON outputs, and functions.

    check_stable.py [--add]     --add: writes what is there and not in the list, before a release

TOOL and TABLES are the built command and rmmshim-tables."""
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..", "..")
LIST = os.path.join(HERE, "stable.txt")


def said(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def rows(name):
    """The cells of a table, without quotes."""
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in said(os.environ["TABLES"], name).splitlines()[2:]]


def fields(schema, definitions, at=""):
    """The paths of a schema's properties; [] is an array's element."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for name, inner in schema.get("properties", {}).items():
        path = "%s.%s" % (at, name) if at else name
        yield path
        yield from fields(inner, definitions, path)
    if isinstance(schema.get("items"), dict):
        yield from fields(schema["items"], definitions, at + "[]")
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(word, []):
            yield from fields(inner, definitions, at)


def there():
    tool = os.environ["TOOL"]
    found = {"command " + name for name in re.findall(r"(?m)^  rmmshim ([a-z]+)\b", said(tool, "--help"))}
    found |= {"option " + name for name in re.findall(r"(?m)^  (--[a-z-]+)", said(tool, "run", "--help-all"))}
    for name, option, value, _ in rows("variables"):
        if "option " + option in found:
            found |= {"variable %s %s" % (name, word) for word in value.split("|")}
    found |= {"metric " + name for name, _ in rows("metrics")}
    with open(os.path.join(TOP, "include", "rmmshim", "rmmshim.h"), encoding="utf-8") as header:
        found |= {"function " + name for name in re.findall(r"\b(rmmshim_\w+)\(", header.read())}
    folder = os.path.join(TOP, "tests", "schema")
    for name in filter(lambda name: name.endswith(".json"), os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            schema = json.load(file)
        found |= {"field %s %s" % (name, path) for path in fields(schema, schema.get("definitions", {}))}
    return found


def main():
    found = there()
    with open(LIST, encoding="utf-8") as file:
        lines = file.read().splitlines()
    promised = {line for line in lines if line and not line.startswith("#")}
    for line in sorted(promised - found):
        print("stable.txt: %s: is promised for 1.x, and not there" % line)
    if "--add" in sys.argv[1:]:
        with open(LIST, "w", encoding="utf-8") as file:
            file.write("\n".join([line for line in lines if line.startswith("#")] + sorted(promised | found)) + "\n")
    print("%d promised, %d there" % (len(promised), len(found)))
    return 1 if promised - found or not promised else 0


if __name__ == "__main__":
    sys.exit(main())
