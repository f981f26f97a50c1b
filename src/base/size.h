/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: 1GiB and 1G (both 2^30), 1GB (10^9), 1.5GiB, 4096, 2**30 (as RMM's
 * guides have it), 80% of the total memory of a device or of the host, 80%free of what is free of
 * it when it is asked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rs_size_kind {
    RS_SIZE_BYTES,
    RS_SIZE_OF_TOTAL, /* parts per million of the total */
    RS_SIZE_OF_FREE   /* parts per million of what is free */
};

struct rs_size {
    uint64_t number;
    enum rs_size_kind kind;
};

enum {
    RS_SIZE_WHOLE = 1000000, /* 100 % */
    RS_SIZE_WHOLES_MAX = 100 /* the largest percentage: managed memory may be more than there is */
};

/* Bytes: no process has more addresses, so no memory is larger. */
#define RS_SIZE_ADDRESSABLE (1ull << 47)

/* Parses [begin, end).  On failure returns false, sets *at to the place and *reason to what is
 * wrong there. */
bool rs_size_parse(const char *begin, const char *end, struct rs_size *size, const char **at,
                   const char **reason);

/* Bytes that a size stands for where these are the totals; percentages are rounded down to a
 * multiple of 2 MiB, the driver's own granularity for large blocks. */
size_t rs_size_resolve(struct rs_size size, size_t total_bytes, size_t free_bytes);

enum { RS_SIZE_TEXT_BYTES = 32 };

/* Exact, in the largest binary unit that divides it: "4GiB", "1000B".  Parses back to the same. */
const char *rs_size_format(size_t bytes, char text[RS_SIZE_TEXT_BYTES]);

/* For people: three digits and a unit, "1.25 GiB". */
const char *rs_size_format_short(uint64_t bytes, char text[RS_SIZE_TEXT_BYTES]);
