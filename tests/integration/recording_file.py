# SPDX-License-Identifier: Apache-2.0
"""Reads a recording as src/recording/format.h describes it, without the code of the library."""
import struct

MASK = (1 << 64) - 1
HEADER = struct.Struct("<8sIHHIIIIQQQQQ4Q")
CHUNK = struct.Struct("<IIQQQ")
EVENT = struct.Struct("<QQQIIQ")
DEFINITION = struct.Struct("<IHHQQ")
FACTOR = 0x9E3779B97F4A7C15
KINDS = [None, "allocate", "deallocate", "refused", "slow", "stack", "stack_gone", "held", "trim", "phase_begin",
         "phase_end", "mark"]
DEFINITIONS = [None, "program", "command", "host", "thread", "resource", "name", "frame", "site", "rank", "sample"]
MEMORIES = ["device", "pinned", "managed"]


class Event:
    def __init__(self, words):
        stamp, self.address, size, self.thread, self.definition, place = words
        self.time_ns, self.kind = stamp & (1 << 56) - 1, KINDS[stamp >> 56]
        self.size, self.check = size & (1 << 48) - 1, size >> 48
        self.stream, self.device, self.memory = place & (1 << 48) - 1, place >> 48 & 0xFF, MEMORIES[place >> 56 & 3]
        self.stack = place >> 58


def total(content, seed):
    """rs_recording_sum of the words in these bytes."""
    for (word,) in struct.iter_unpack("<Q", content):
        seed = (seed ^ word) * FACTOR & MASK
        seed ^= seed >> 29
    return seed or 1


def event_check(words, sequence):
    stamp, address, size, thread, definition, place = words
    mixed = sequence
    for word, by in ((stamp, 0), (address, 13), (size & (1 << 48) - 1, 26), (thread | definition << 32, 39), (place, 52)):
        mixed ^= (word << by | word >> 64 - by) & MASK
    return (mixed * FACTOR & MASK) >> 48


class Recording:
    """A file that must be whole; `events` are in the order of their times."""

    def __init__(self, path):
        with open(path, "rb") as file:
            content = file.read()
        (magic, order, self.major, self.minor, self.header_bytes, self.chunk_bytes, self.event_bytes, self.process,
         self.recording, self.job, self.begun_ns, self.begun_real_ns, check, self.ended_ns, self.lost_events,
         self.missed_events, self.lost_definitions) = HEADER.unpack_from(content)
        assert magic == b"RMMREC\r\n" and order == 0x01020304, magic
        assert check == total(content[:HEADER.size - 40], 0)
        self.events_each = (self.chunk_bytes - CHUNK.size) // self.event_bytes
        self.length, self.chunks, self.definitions, events = len(content), 0, {}, []
        for at in range(self.header_bytes, len(content), self.chunk_bytes):
            events += self.read_chunk(content[at:at + self.chunk_bytes])
        self.events = [event for _, _, event in sorted(events, key=lambda event: event[:2])]

    def read_chunk(self, chunk):
        magic, kind, recording, sequence, check = CHUNK.unpack_from(chunk)
        if not any(chunk):
            return []
        assert (magic, recording) == (0x434D4D52, self.recording)
        assert check == total(chunk[:CHUNK.size - 8], 0)
        self.chunks += 1
        if kind == 2:
            self.read_definitions(chunk, sequence)
            return []
        assert kind == 1, kind
        return self.read_events(chunk, sequence)

    def read_events(self, chunk, sequence):
        found, ended = [], False
        for at in range(CHUNK.size, len(chunk) - EVENT.size + 1, self.event_bytes):
            words = EVENT.unpack_from(chunk, at)
            ended = ended or words[0] == 0
            if ended:
                assert words[0] == 0
                continue
            event = Event(words)
            assert event.check == event_check(words, sequence)
            found.append((event.time_ns, (sequence, at), event))
        return found

    def read_definitions(self, chunk, sequence):
        at = CHUNK.size
        while at + DEFINITION.size <= len(chunk):
            number, kind, length, value, check = DEFINITION.unpack_from(chunk, at)
            if check == 0:
                return
            end = at + DEFINITION.size + (length + 7) // 8 * 8
            head = total(chunk[at:at + 16], sequence)
            assert check == total(chunk[at + DEFINITION.size:end], head)
            assert number not in self.definitions
            text = chunk[at + DEFINITION.size:at + DEFINITION.size + length]
            self.definitions[number] = (DEFINITIONS[kind], value, text)
            at = end

    def texts(self, kind):
        return [text.decode() for of, _, text in self.definitions.values() if of == kind]

    def text(self, event):
        return self.definitions[event.definition][2].decode()

    def of(self, *kinds):
        return [event for event in self.events if event.kind in kinds]

    def frames(self, event):
        """The lines of an event's call site, innermost first."""
        kind, _, numbers = self.definitions[event.definition]
        assert kind == "site", kind
        return [self.definitions[number][2].decode() for (number,) in struct.iter_unpack("<I", numbers)]

    def live(self):
        """The sizes of the blocks that were not freed, by address; asserts that the events make sense."""
        live = {}
        for event in self.of("allocate", "deallocate"):
            if event.kind == "allocate":
                assert event.address not in live, hex(event.address)
                live[event.address] = event.size
            else:
                assert live.pop(event.address) == event.size
        return live
