/* SPDX-License-Identifier: Apache-2.0 */
/* What a process remembers of call sites until it ends: memory for it, and lines of text, of which
 * each is stored once, so that equal lines are one address. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    RS_LINE_BYTES_MAX = 1024,            /* of one line */
    RS_CALL_SITE_TABLE_BYTES = 16 << 20, /* of all sites and lines; reserved, pages are taken when
                                            used */
};

struct rs_line {
    const struct rs_line *next; /* the next line with the same hash */
    uint64_t hash;
    size_t length_bytes;
    char text[]; /* ended by a zero byte */
};

/* Returns the line with this text, at most RS_LINE_BYTES_MAX long; NULL when the memory is used up.
 * Thread safe. */
const struct rs_line *rs_line_of(const char *text, size_t length_bytes);

/* Returns zeroed memory that is never given back; NULL when there is no more.  Thread safe, takes
 * no lock. */
void *rs_line_memory(size_t bytes);

/* Mixes two numbers into a hash. */
static inline uint64_t rs_line_mix(uint64_t hash, uint64_t one, uint64_t other)
{
    unsigned __int128 product = (unsigned __int128)(one ^ hash) * (other ^ 11400714819323198485u);

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}
