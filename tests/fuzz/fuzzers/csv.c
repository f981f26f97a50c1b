/* SPDX-License-Identifier: Apache-2.0 */
/* A log in RMM's CSV format. */
#include "fuzzer.h"
#include "recording/format.h"
#include "tool/csv_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    char *text = copy_of(input, length);
    struct tool_recording_facts facts = {.events = 0};
    struct tool_recording_event *events;

    (void)csv_log_is(text, length);
    events = csv_log_read(text, length, &facts);
    must(events, "no memory");
    must(facts.events <= length, "more events than bytes");
    for (size_t i = 0; i < facts.events; i++) {
        must(events[i].kind > 0 && events[i].kind < RS_RECORDING_EVENT_KINDS, "no kind");
        must(i == 0 || events[i].time_ns >= events[i - 1].time_ns, "times that go back");
    }
    free(events);
    free(text);
    return 0;
}
