/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that other processes may read: a sealed memory file in which the counters
 * themselves lie.  A process that holds the file can read the counters even after this process has
 * ended, in whatever way.  Unless rs_published_begin is called nothing is published, and all memory
 * comes from the heap. */
#pragma once

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

#define RS_PUBLISHED_NAME "rmmshim" /* the name of the file */

enum {
    RS_PUBLISHED_BYTES = 32 << 20, /* length of the file; memory is taken as it fills */
    RS_PUBLISHED_ALIGNMENT = 128,  /* the processor fetches cache lines in pairs */
};

/* Makes the file and keeps its first head_bytes for the caller.  Returns 0 or -errno.  Not
 * thread safe. */
int rs_published_begin(size_t head_bytes);

/* Called in a forked child, which must not count in its parent's file: from now on the heap serves.
 * The child does not inherit the mapping.  With LeakSanitizer it does, and this call makes it
 * read-only. */
void rs_published_forget(void);

/* Returns the file's first bytes, zeroed at first; NULL when nothing is published. */
void *rs_published_head(void);

/* Returns the descriptor of the file, valid while something is published. */
const struct rs_kept_descriptor *rs_published_file(void);

/* Returns zeroed memory, from the file while it has room, else from the heap; NULL when out of
 * memory.  alignment is at most RS_PUBLISHED_ALIGNMENT.  Thread safe, like rs_published_free. */
void *rs_published_allocate(size_t bytes, size_t alignment);
void rs_published_free(void *memory);

#define RS_PUBLISHED_NEW(type) ((type *)rs_published_allocate(sizeof(type), _Alignof(type)))

/* Returns the offset of `memory` in the file; 0 when it does not lie there. */
uint64_t rs_published_offset(const volatile void *memory);
