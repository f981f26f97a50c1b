# SPDX-License-Identifier: Apache-2.0
"""Writes recordings (src/recording/format.h) of programs that tests make up."""
import struct

MASK = (1 << 64) - 1
ALLOCATE, DEALLOCATE, REFUSED, SLOW, STACK, STACK_GONE, HELD, TRIM, PHASE_BEGIN, PHASE_END, MARK = range(1, 12)
PROGRAM, COMMAND, HOST, THREAD, RESOURCE, NAME, FRAME, SITE, RANK, SAMPLE = range(1, 11)
EVENT_BYTES, HEADER_BYTES, CHUNK_BYTES = 40, 4096, 16 << 10
MULTIPLIER = 0x9e3779b97f4a7c15


def sum_of(data, seed):
    total = seed
    for (word,) in struct.iter_unpack("<Q", data):
        total = (total ^ word) * MULTIPLIER & MASK
        total ^= total >> 29
    return total or 1


def rotated(word, by):
    return (word << by | word >> (64 - by)) & MASK


class Recording:
    """Collects events; write() makes the file."""

    def __init__(self, program="made-up", process=4711, lost=0):
        self.process, self.lost = process, lost
        self.events, self.definitions, self.numbers = [], [], {}
        self.define(PROGRAM, program, process)

    def define(self, kind, text, value=0):
        """Returns the number of a definition, which it gets once."""
        data = text if isinstance(text, bytes) else text.encode()
        key = (kind, data, value)
        if key not in self.numbers:
            self.definitions.append(key)
            self.numbers[key] = len(self.definitions)
        return self.numbers[key]

    def site(self, *frames, lines=()):
        """A call site by its frames of C and its lines of Python, both innermost first."""
        numbers = [self.define(FRAME, line, 1) for line in lines] + [self.define(FRAME, frame) for frame in frames]
        return self.define(SITE, struct.pack("<%dI" % len(numbers), *numbers))

    def add(self, kind, ns, address=0, size=0, definition=0, device=0, memory=0, thread=1, stack=0):
        self.events.append((kind, ns, address, size, definition, device, memory | stack << 2, thread))

    def allocate(self, ns, address, size, **more):
        self.add(ALLOCATE, ns, address, size, **more)

    def free(self, ns, address, size, **more):
        self.add(DEALLOCATE, ns, address, size, **more)

    def held(self, ns, size, limit=0, **more):
        self.add(HELD, ns, limit, size, **more)

    def begin(self, ns, name, **more):
        self.add(PHASE_BEGIN, ns, definition=self.define(NAME, name), **more)

    def end(self, ns, name, **more):
        self.add(PHASE_END, ns, definition=self.define(NAME, name), **more)

    # ---- the file ----

    def header(self):
        head = b"RMMREC\r\n" + struct.pack("<IHHIIIIQQQQ", 0x01020304, 1, 0, HEADER_BYTES, CHUNK_BYTES, EVENT_BYTES,
                                           self.process, 77, 0, 10**9, 1_700_000_000 * 10**9)
        end = max([event[1] for event in self.events], default=0)
        head += struct.pack("<QQQQQ", sum_of(head, 0), end, self.lost, 0, 0)
        return head.ljust(HEADER_BYTES, b"\0")

    @staticmethod
    def event(fields, sequence):
        kind, ns, address, size, definition, device, memory, thread = fields
        words = [ns | kind << 56, address, size, thread | definition << 32, device << 48 | memory << 56]
        total = sequence
        for word, by in zip(words, (0, 13, 26, 39, 52)):
            total ^= rotated(word, by) if by else word
        words[2] |= (total * MULTIPLIER & MASK) >> 48 << 48
        return struct.pack("<5Q", *words)

    @staticmethod
    def definition(number, fields, sequence):
        kind, text, value = fields
        head = struct.pack("<IHHQ", number, kind, len(text), value)
        padded = text.ljust((len(text) + 7) // 8 * 8, b"\0")
        return head + struct.pack("<Q", sum_of(padded, sum_of(head, sequence))) + padded

    def chunks(self):
        """Each as (kind, content), from parts that fit."""
        sequence, content = 1, b""
        for number, fields in enumerate(self.definitions, 1):
            part = self.definition(number, fields, sequence)
            if len(content) + len(part) > CHUNK_BYTES - 32:
                yield sequence, 2, content
                sequence, content = sequence + 1, b""
                part = self.definition(number, fields, sequence)
            content += part
        yield sequence, 2, content
        each = (CHUNK_BYTES - 32) // EVENT_BYTES
        for at in range(0, len(self.events), each):
            sequence += 1
            yield sequence, 1, b"".join(self.event(fields, sequence) for fields in self.events[at:at + each])

    def bytes(self):
        made = [self.header()]
        for sequence, kind, content in self.chunks():
            head = struct.pack("<IIQQ", 0x434d4d52, kind, 77, sequence)
            made.append((head + struct.pack("<Q", sum_of(head, 0)) + content).ljust(CHUNK_BYTES, b"\0"))
        return b"".join(made)

    def write(self, path):
        with open(path, "wb") as file:
            file.write(self.bytes())
        return path
