#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a trace (trace.h) of an event log that RMM_LOG or RMM itself has written.

    trace_from_log.py LOG TRACE [--note TEXT]...

Each note becomes a line at the trace's top: what was recorded, and how.  Rows of all threads are taken in
the log's order; streams are numbered as they come, the default one is 0.  Failed allocations, and frees of
what the log has no allocation of, are left out and counted."""
import argparse
import csv
import sys

HEADER = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
STREAMS_MAX = 64


class BadLog(Exception):
    pass


class Writer:
    """Turns allocations and frees, named by any key, into a trace's lines."""

    def __init__(self):
        self.lines = []
        self.allocations = 0
        self.live = {}  # key -> (number of its allocation, bytes)
        self.live_bytes = self.peak_bytes = 0

    @staticmethod
    def line(letter, number, stream):
        return "%s%d %d" % (letter, number, stream) if stream else "%s%d" % (letter, number)

    def allocate(self, key, size, stream=0):
        self.live[key] = (self.allocations, size)
        self.allocations += 1
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.lines.append(self.line("a", size, stream))

    def free(self, key, stream=0):
        number, size = self.live.pop(key)
        self.live_bytes -= size
        self.lines.append(self.line("f", self.allocations - 1 - number, stream))

    def write(self, path, notes):
        with open(path, "w", encoding="utf-8") as file:
            for note in notes:
                file.write("# %s\n" % note)
            file.write("# %d allocations, at most %d bytes live\n" % (self.allocations, self.peak_bytes))
            file.writelines(line + "\n" for line in self.lines)


def convert(rows):
    """rows of the log without its header -> (Writer, how many rows were left out)"""
    trace, streams, left_out = Writer(), {"0": 0, "0x1": 0}, 0  # 1 is cudaStreamLegacy
    for number, row in enumerate(rows, 2):
        if len(row) != len(HEADER):
            raise BadLog("line %d has %d fields" % (number, len(row)))
        action, pointer, size, stream = row[2], row[3], row[4], row[5]
        if action not in ("allocate", "free", "allocate failure"):
            raise BadLog("line %d: no action: %r" % (number, action))
        if not size.isdigit():
            raise BadLog("line %d: no size: %r" % (number, size))
        stream = streams.setdefault(stream, len(streams) - 1)
        if stream >= STREAMS_MAX:
            raise BadLog("line %d: more than %d streams" % (number, STREAMS_MAX))
        if action == "allocate" and int(size) > 0:
            if pointer in trace.live:
                raise BadLog("line %d: %s is allocated already" % (number, pointer))
            trace.allocate(pointer, int(size), stream)
        elif action == "free" and pointer in trace.live:
            trace.free(pointer, stream)
        else:
            left_out += 1
    return trace, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("trace")
    parser.add_argument("--note", action="append", default=[], metavar="TEXT")
    args = parser.parse_args()
    with open(args.log, encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        try:
            if next(rows, None) != HEADER:
                raise BadLog("it does not begin with " + ",".join(HEADER))
            trace, left_out = convert(rows)
        except BadLog as error:
            print("%s: %s" % (args.log, error), file=sys.stderr)
            return 1
    trace.write(args.trace, args.note)
    print("%s: %d allocations, %d lines, %d rows left out" % (args.trace, trace.allocations, len(trace.lines), left_out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
