/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory with a limit and a count.  The linker leads malloc, calloc, realloc, aligned_alloc,
 * free, mmap and munmap of the whole test program here (unit_fake_wraps in meson.build). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Number of requests that still succeed; later ones fail with ENOMEM. Negative: all succeed. */
extern _Atomic long host_left;

extern _Atomic size_t host_refused; /* requests that failed because of host_left */

/* While set, memory that is taken counts as held until it is given back. */
extern _Atomic bool host_counts;

size_t host_held_count(void);

/* Called after each successful mmap; NULL: no call. */
extern void (*host_on_mapping)(void *address, size_t bytes);
