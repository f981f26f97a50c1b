/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of bytes in device memory, for `poison`: written through the context's own stream, and
 * compared. */
#pragma once

#include "resource/resource.h"

#include <stdbool.h>
#include <stddef.h>

/* Between rs_fill_visit_begin and rs_fill_visit_end the context is current, and no capture of the
 * program is invalidated. */
struct rs_fill_visit {
    CUstreamCaptureMode mode;
    bool entered;
    CUstream stream;
    bool is_pending; /* work was begun and is not waited for yet */
    CUresult result;
};

struct rs_fill_visit rs_fill_visit_begin(const struct rs_environment *environment);

/* Waits for the own stream for a bounded time, as it may share a channel with work that waits for
 * this thread. */
void rs_fill_visit_wait(struct rs_fill_visit *visit);

/* Waits for the work that was begun, also after an error.  Returns the first error, if any. */
CUresult rs_fill_visit_end(struct rs_fill_visit *visit);

void rs_fill_bytes(struct rs_fill_visit *visit, CUdeviceptr address, unsigned char value,
                   size_t bytes);

/* Fills with a pattern of 32 bits, which begins at the address. */
void rs_fill_words(struct rs_fill_visit *visit, CUdeviceptr address, unsigned pattern,
                   size_t bytes);

struct rs_fill_difference {
    bool found;
    size_t at;
    unsigned char value;
};

/* Finds the first byte that differs from the pattern, in a copy of the memory. */
struct rs_fill_difference rs_fill_compare(const unsigned char *bytes, unsigned pattern,
                                          size_t length);
