# SPDX-License-Identifier: Apache-2.0
"""Validates JSON against the part of JSON Schema that tests/schema uses; another word is an error."""
import json
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "schema")
KNOWN = {"title", "type", "required", "additionalProperties", "properties", "const", "enum", "minimum", "pattern",
         "items", "minItems"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def is_of_type(value, name):
    return isinstance(value, TYPES[name]) and not (name in ("integer", "number") and isinstance(value, bool))


def errors(value, schema, at="$"):
    """What is wrong, as lines that name the place."""
    if not set(schema) <= KNOWN:
        raise ValueError("%s: unknown words %s" % (at, set(schema) - KNOWN))
    if "type" in schema and not is_of_type(value, schema["type"]):
        return ["%s: %r is not of type %s" % (at, value, schema["type"])]
    found = []
    if "const" in schema and value != schema["const"]:
        found.append("%s: %r is not %r" % (at, value, schema["const"]))
    if "enum" in schema and value not in schema["enum"]:
        found.append("%s: %r is none of %r" % (at, value, schema["enum"]))
    if "minimum" in schema and value < schema["minimum"]:
        found.append("%s: %r is less than %r" % (at, value, schema["minimum"]))
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append("%s: %r is not as %r" % (at, value, schema["pattern"]))
    if len(value) < schema.get("minItems", 0) if isinstance(value, list) else False:
        found.append("%s: has %d items" % (at, len(value)))
    for name in schema.get("required", []):
        if name not in value:
            found.append("%s: lacks %s" % (at, name))
    properties = schema.get("properties", {})
    for name in value if isinstance(value, dict) else []:
        if name in properties:
            found += errors(value[name], properties[name], "%s.%s" % (at, name))
        elif not schema.get("additionalProperties", True):
            found.append("%s: has %s" % (at, name))
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            found += errors(item, schema["items"], "%s[%d]" % (at, i))
    return found


def refuse_twice(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a name comes twice in %s" % names)
    return dict(pairs)


def read(path, schema_name):
    """The document at path; ValueError says what is wrong with it."""
    with open(path, encoding="utf-8", errors="strict") as file:
        return check(file.read(), schema_name)


def check(text, schema_name):
    """The document that the text is; the same."""
    with open(os.path.join(FOLDER, schema_name), encoding="utf-8") as file:
        schema = json.load(file)
    document = json.loads(text, object_pairs_hook=refuse_twice)
    found = errors(document, schema)
    if found:
        raise ValueError("; ".join(found[:5]))
    return document
