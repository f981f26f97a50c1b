/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files that processes share, and futexes in them.  Thread safe, but for the
 * search; no cancellation points. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes a file of zeroes whose length nobody can change any more, and maps it.  Returns its
 * descriptor, which is close-on-exec, or -errno. */
int rs_memory_file_make(const char *name, size_t bytes, void **memory);

/* Maps the first bytes of the file that another process of the same user has under that descriptor.
 * NULL where that is another file by now, a shorter one, or one that may shrink. */
void *rs_memory_file_map(int process, int fd, uint64_t inode, size_t bytes);

/* What is looked for among the files that another process of the same user has open. */
struct rs_memory_file_search {
    const char *process;  /* its directory in /proc: "/proc/4711" */
    const char *name;     /* as it was made with */
    bool to_change;       /* it is opened for writing too */
    int first;            /* the descriptor at which the search begins */
    uint64_t deadline_ns; /* of rs_clock_ns(), when the search ends; 0: never */
    bool (*accepts)(int fd, const void *data);
    const void *data;
};

/* Opens the first memory file of that name that is accepted.  A descriptor; -ENODATA where the
 * process has none; -EACCES or -EPERM where it is another user's; or another -errno.  Uses no
 * malloc.  Not thread safe. */
int rs_memory_file_find(const struct rs_memory_file_search *search);

/* Returns when the word is not `seen`, after a wake, after a signal, or after wait_ns at most. */
void rs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns);

/* Wakes all that wait for the word. */
void rs_futex_wake(_Atomic uint32_t *word);
