/* SPDX-License-Identifier: Apache-2.0 */
/* Memory files that processes share, and futexes in them. All functions except rs_memory_file_find
 * are thread safe, and none is a cancellation point. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes a file of zeroes, seals its length, and maps it.  Returns its descriptor, which is
 * close-on-exec, or -errno. */
int rs_memory_file_make(const char *name, size_t bytes, void **memory);

/* Maps the first `bytes` bytes of the memory file that `process`, a process of the same user, has
 * open as descriptor `fd`, for reading and writing. Returns NULL if the file cannot be opened, is
 * shorter or may shrink, or is now another file than `inode`. */
void *rs_memory_file_map(int process, int fd, uint64_t inode, size_t bytes);

/* The arguments of rs_memory_file_find, which searches the files that another process of the same
 * user has open. */
struct rs_memory_file_search {
    const char *process;  /* its directory in /proc: "/proc/4711" */
    const char *name;     /* the name with which the file was made */
    bool to_change;       /* the file is opened for writing too */
    int first;            /* the number of the descriptor at which the search begins */
    uint64_t deadline_ns; /* when the search ends, as rs_clock_ns; 0: never */
    bool (*accepts)(int fd, const void *data);
    const void *data;
};

/* Opens the first memory file that has the name search->name and for which search->accepts returns
 * true. Returns a descriptor, or -ENODATA if no such file was found by the deadline, -EACCES or
 * -EPERM if the process is another user's, or another -errno. Uses no malloc. Not thread safe. */
int rs_memory_file_find(const struct rs_memory_file_search *search);

/* Waits while the word is `seen`, for wait_ns at most. It also returns after rs_futex_wake and
 * after a signal. */
void rs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns);

/* Wakes all threads that wait for the word. */
void rs_futex_wake(_Atomic uint32_t *word);
