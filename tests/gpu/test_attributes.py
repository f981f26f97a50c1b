# SPDX-License-Identifier: Apache-2.0
"""Attribute by attribute, blocks of every stack beside what the driver of this GPU allocates by itself
(tests/integration/attributes.c); differences must be in tests/conformance/attribute_differences.txt.
Listed ones are told, and those that do not show: another driver may know better.  So is all that the driver
answered by itself, for tests/hostcuda to answer alike.  Exits with 77 without a GPU.
PROGRAMS is what tests/samples/build-real made."""
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "conformance"))
import attribute_list  # noqa: E402  (found by the path above)
import test_gpu  # noqa: E402


def run(command, settings):
    return test_gpu.compare.run(command, settings, os.environ["RMMSHIM_LIBRARY"], 120,
                                preload_first=os.environ.get("PRELOAD_FIRST", ""))


def main():
    if not test_gpu.has_gpu():
        print("no GPU")
        return 77
    command = [os.path.join(os.environ["PROGRAMS"], "attributes")]
    rows = attribute_list.read_list("gpu")
    plain = run(command, None)
    failed = 0 if plain.status == 0 else 1
    print("without the library: status %s, %d answers" % (plain.status, plain.stdout.count(b"\n")))
    for name, settings in attribute_list.STACKS.items():
        served = run(command, settings)
        wrong, listed = ["status %s" % served.status], []
        if served.status == 0:
            wrong, listed = attribute_list.differences(rows, name, plain.stdout.decode(), served.stdout.decode())
        failed += bool(wrong)
        print("%s %s" % ("FAILED" if wrong else "ok", name))
        for line in wrong + ["listed: " + line for line in listed]:
            print("  " + line)
    for line in attribute_list.unseen(rows, attribute_list.STACKS):
        print("note: " + line)
    for line in attribute_list.told(plain.stdout.decode()):
        print("  " + line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
