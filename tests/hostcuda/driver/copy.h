/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, as work for a stream. */
#pragma once

#include "driver/op.h"

/* Rows of bytes; a plain copy is one row. */
struct hc_copy {
    char *to;
    const char *from;
    size_t width, height, to_pitch, from_pitch;
};

struct hc_work hc_copy_work(const struct hc_copy *copy);

struct hc_fill {
    char *to;
    unsigned value;
    unsigned element_bytes; /* 1, 2 or 4 */
    size_t width;           /* in elements */
    size_t height, pitch;
};

struct hc_work hc_fill_work(const struct hc_fill *fill);
