# SPDX-License-Identifier: Apache-2.0
"""perfetto_events.py FILE: what a trace of Perfetto has, by Perfetto's published protos, as JSON: `processes` (name by
PID), `threads` (PID and name by thread), `counters` (points of time and value by process and name), `slices` and
`instants` (process, thread, time, name, and more).  Run by an interpreter that has the package perfetto (scripts/setup)."""
import json
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import CounterDescriptor, Trace, TrackEvent


def check_known(message):
    """All fields stand in the protos."""
    assert not len(unknown_fields.UnknownFieldSet(message)), message  # noqa: it has no truth value
    for field, value in message.ListFields():
        if field.message_type:
            for part in value if hasattr(value, "__len__") else [value]:
                check_known(part)


def main(path):
    trace = Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    check_known(trace)
    tracks, open_slices = {}, {}
    found = {"processes": {}, "threads": {}, "counters": {}, "slices": [], "instants": []}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks and packet.trusted_packet_sequence_id, track
            tracks[track.uuid] = track
            if track.HasField("process"):
                found["processes"][track.process.pid] = track.process.process_name
            if track.HasField("thread"):
                found["threads"][track.thread.tid] = [track.thread.pid, track.thread.thread_name]
            if track.HasField("counter"):
                assert track.counter.unit == CounterDescriptor.UNIT_SIZE_BYTES, track
            continue
        event, track = packet.track_event, tracks[packet.track_event.track_uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            name = "%s, %s" % (tracks[track.parent_uuid].process.process_name, track.name)
            found["counters"].setdefault(name, []).append([packet.timestamp, event.counter_value])
            continue
        where = [track.thread.pid, track.thread.tid, packet.timestamp]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices.setdefault(track.uuid, []).append(len(found["slices"]))
            found["slices"].append(where + [event.name, None])
        elif event.type == TrackEvent.TYPE_SLICE_END:
            found["slices"][open_slices[track.uuid].pop()][4] = packet.timestamp
        else:
            assert event.type == TrackEvent.TYPE_INSTANT, event
            found["instants"].append(where + [event.name, {note.name: note.uint_value for note in event.debug_annotations}])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
