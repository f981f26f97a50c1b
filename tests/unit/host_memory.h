/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that runs out and is counted.  The linker leads the calls of the whole test program
 * here (unit_fake_wraps in meson.build): malloc, calloc, realloc, aligned_alloc, free, mmap and
 * munmap. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* So many requests succeed yet, and those after them fail with ENOMEM; negative: all succeed. */
extern _Atomic long host_left;

extern _Atomic size_t host_refused; /* requests that failed for it */

/* While it is set, what is taken counts as held until it is given back. */
extern _Atomic bool host_counts;

size_t host_held_count(void);

/* Called for each mapping that was made; NULL: nothing is. */
extern void (*host_on_mapping)(void *address, size_t bytes);
