/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a trace (trace.h says what one is). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACE_STREAMS_MAX = 64 };

struct trace_event {
    size_t bytes; /* 0: a free */
    uint32_t block;
    uint32_t stream;
};

struct trace {
    struct trace_event *events;
    size_t *block_bytes; /* 0 once it is freed */
    size_t event_count, block_count;
    size_t live_bytes, peak_live_bytes;
    uint32_t stream_count;
};

/* All zero at first.  False after a line on stderr. */
bool trace_read(struct trace *trace, const char *path);
void trace_free(struct trace *trace);
