/* SPDX-License-Identifier: Apache-2.0 */
/* The host's memory, and what sanitizers are told of it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

/* Stores the host's physical memory in *total_bytes, and in *available_bytes the memory that can
 * still be taken without swapping (MemAvailable of /proc/meminfo; the total where the kernel
 * does not report it). */
void rs_host_memory(size_t *total_bytes, size_t *available_bytes);

/* Returns `bytes` zeroed bytes directly from the kernel, or NULL when out of memory; free with
 * munmap.  Not malloc, for two reasons: untouched pages take no memory, and a hook may run while
 * the program's own allocator holds its locks. */
static inline void *rs_map_zeroed(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* What the runtimes of sanitizers are told, in a program that was built with one; the library is
 * not.  Their functions are NULL, or empty, in all other programs.
 *
 * LeakSanitizer follows pointers from globals, stacks and the heap alone.  Mappings of ours that
 * hold the only pointers to what we have from the heap are told to it; otherwise all of that would
 * be reported as the program's leaks. */
__attribute__((weak)) void __lsan_register_root_region(const void *begin, size_t bytes);
__attribute__((weak)) void __lsan_unregister_root_region(const void *begin, size_t bytes);

static inline bool rs_leak_roots_matter(void)
{
    return __lsan_register_root_region && __lsan_unregister_root_region;
}

/* All of it must be readable while it is mapped. */
static inline void rs_leak_roots_add(const void *begin, size_t bytes)
{
    if (rs_leak_roots_matter())
        __lsan_register_root_region(begin, bytes);
}

/* ThreadSanitizer sees what functions of libc write for the library (memset, calloc), but not the
 * atomics by which other threads come to know of it: it would report a race when they take a lock
 * there.  What is written between begin and end it does not see. */
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char *file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char *file, int line);

static inline void rs_unseen_begin(void)
{
    if (AnnotateIgnoreWritesBegin && AnnotateIgnoreWritesEnd)
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

static inline void rs_unseen_end(void)
{
    if (AnnotateIgnoreWritesBegin && AnnotateIgnoreWritesEnd)
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}
