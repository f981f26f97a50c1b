/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: 1GiB, 1Gi and 1G (all 2^30 bytes), 1GB (10^9 bytes), 1.5GiB, 4096,
 * 2**30 (as in RMM's guides), 80% (of the total memory of a device or of the host), 80%free (of
 * the memory that is free when the size is resolved). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rs_size_kind {
    RS_SIZE_BYTES,
    RS_SIZE_OF_TOTAL, /* parts per million of the total */
    RS_SIZE_OF_FREE   /* parts per million of the free memory */
};

struct rs_size {
    uint64_t number; /* bytes, or parts per million */
    enum rs_size_kind kind;
};

enum {
    RS_SIZE_WHOLE = 1000000, /* 100 % in parts per million */
    RS_SIZE_WHOLES_MAX = 100 /* 10000 %: managed memory may exceed the GPU's many times */
};

/* 2^47 bytes, the address space of an x86-64 process: the upper bound of options that are sizes. */
#define RS_SIZE_ADDRESSABLE (1ull << 47)

/* Parses [begin, end).  On failure returns false, with *at pointing to the place and *reason to
 * a static text. */
bool rs_size_parse(const char *begin, const char *end, struct rs_size *size, const char **at,
                   const char **reason);

/* Returns the bytes that a size stands for, given the totals.  Percentages are rounded down to a
 * multiple of 2 MiB, the driver's own granularity for large blocks. */
size_t rs_size_resolve(struct rs_size size, size_t total_bytes, size_t free_bytes);

enum { RS_SIZE_TEXT_BYTES = 32 };

/* Formats bytes exactly, in the largest binary unit that divides them: "4GiB", "1000B".
 * rs_size_parse reads the same number back.  Returns `text`. */
const char *rs_size_format(size_t bytes, char text[RS_SIZE_TEXT_BYTES]);

/* Formats a size exactly, also one that is a percentage: "80%". Returns `text`. */
const char *rs_size_write(struct rs_size size, char text[RS_SIZE_TEXT_BYTES]);

/* Formats bytes for people, rounded to three digits (1000 to 1023 have four): "1.25 GiB".  Returns
 * `text`. */
const char *rs_size_format_short(uint64_t bytes, char text[RS_SIZE_TEXT_BYTES]);
