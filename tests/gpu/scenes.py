# SPDX-License-Identifier: Apache-2.0
"""What programs with several scenes share: a register of scenes by name, and digests of results.

A scene prints what it computed, the same in every run.  `PROGRAM list` names the scenes; what a scene
cannot do here ends it with exit status 77 and the reason."""
import hashlib
import sys

SCENES = {}


class Absent(Exception):
    """What the scene needs is not there."""


def scene(function):
    SCENES[function.__name__] = function
    return function


def digest(*arrays):
    """Of arrays on the host."""
    result = hashlib.sha256()
    for array in arrays:
        result.update(array.tobytes())
    return result.hexdigest()[:32]


def main(usage):
    if sys.argv[1:] == ["list"]:
        print("\n".join(SCENES))
        return 0
    if len(sys.argv) != 2 or sys.argv[1] not in SCENES:
        print(usage, file=sys.stderr)
        return 2
    try:
        SCENES[sys.argv[1]]()
    except (ImportError, Absent) as error:
        print("%s: %s" % (type(error).__name__, error), file=sys.stderr)
        return 77
    return 0
