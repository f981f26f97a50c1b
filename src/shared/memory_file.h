/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files that processes share, and futexes in them.  Thread safe; no cancellation points. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Makes a file of zeroes whose length nobody can change any more, and maps it.  Returns its
 * descriptor, which is close-on-exec, or -errno. */
int rs_memory_file_make(const char *name, size_t bytes, void **memory);

/* Maps the first bytes of the file that another process of the same user has under that descriptor.
 * NULL where that is another file by now, a shorter one, or one that may shrink. */
void *rs_memory_file_map(int process, int fd, uint64_t inode, size_t bytes);

/* Returns when the word is not `seen`, after a wake, after a signal, or after wait_ns at most. */
void rs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns);

/* Wakes all that wait for the word. */
void rs_futex_wake(_Atomic uint32_t *word);
