/* SPDX-License-Identifier: Apache-2.0 */
/* A log in RMM's CSV format. */
#include "fuzzer.h"
#include "recording/format.h"
#include "tool/csv_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    char *text = copy_of(input, length);
    struct csv_log log = {.count = 0};

    (void)csv_log_is(text, length);
    must(csv_log_read(text, length, &log), "no memory");
    must(log.count <= length, "more events than bytes");
    for (size_t i = 0; i < log.count; i++) {
        must(log.events[i].kind > 0 && log.events[i].kind < RS_RECORDING_EVENT_KINDS, "no kind");
        must(i == 0 || log.events[i].time_ns >= log.events[i - 1].time_ns, "times that go back");
    }
    free(log.events);
    free(text);
    return 0;
}
