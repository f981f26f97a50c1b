/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that others may read: one sealed memory file, in which the counters
 * themselves lie.  Who holds the file reads what they are, also when the process is gone, however
 * it went.  Nothing is published unless rs_published_begin is called: then this is the heap. */
#pragma once

#include "base/descriptor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RS_PUBLISHED_BYTES = 32 << 20, /* the file's length; it takes memory for what is allocated */
    RS_PUBLISHED_ALIGNMENT = 128,  /* pairs of cache lines are fetched together */
};

/* Makes the file; its first head_bytes are kept for the caller.  0 or -errno.  Not thread safe. */
int rs_published_begin(size_t head_bytes);

/* Nobody needs it after all: before anything was allocated from it. */
void rs_published_end(void);

/* In a forked child, which has no copy of it: nothing is published from here on. */
void rs_published_forget(void);

/* The beginning of the file, zeroed at first; NULL when nothing is published. */
void *rs_published_head(void);

const struct rs_kept_descriptor *rs_published_file(void);

/* Zeroed memory, from the file where there is room, from the heap otherwise; NULL without memory.
 * Thread safe. */
void *rs_published_allocate(size_t bytes, size_t alignment);
void rs_published_free(void *memory);

#define RS_PUBLISHED_NEW(type) ((type *)rs_published_allocate(sizeof(type), _Alignof(type)))

/* Where in the file it lies; 0 when it does not. */
uint64_t rs_published_offset(const volatile void *memory);
