/* SPDX-License-Identifier: Apache-2.0 */
/* The host's memory, and what the library tells sanitizers about memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

/* Stores the host's physical memory in *total_bytes, and in *available_bytes the memory that can
 * still be taken without swapping (MemAvailable of /proc/meminfo; the total where the kernel
 * does not report it). */
void rs_host_memory(size_t *total_bytes, size_t *available_bytes);

/* Returns `bytes` zeroed bytes directly from the kernel, or NULL when out of memory; free with
 * munmap.  It does not call malloc, for two reasons: untouched pages take no memory, and a hook may
 * run while the program's own allocator holds its locks. */
static inline void *rs_map_zeroed(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* Calls into the runtimes of sanitizers, for programs that were built with one (the library itself
 * is not).  In all other programs the weak functions are NULL, and the inline ones do nothing.
 *
 * LeakSanitizer follows pointers from globals, stacks and the heap alone.  Some heap blocks of the
 * library are only pointed to from the library's own mappings.  So the library registers these
 * mappings, or LeakSanitizer would report the blocks as leaks of the program. */
__attribute__((weak)) void __lsan_register_root_region(const void *begin, size_t bytes);
__attribute__((weak)) void __lsan_unregister_root_region(const void *begin, size_t bytes);

static inline bool rs_leak_roots_matter(void)
{
    return __lsan_register_root_region && __lsan_unregister_root_region;
}

/* Registers a mapping that contains pointers to heap blocks.  All of it must be readable as long as
 * it is registered. */
static inline void rs_leak_roots_add(const void *begin, size_t bytes)
{
    if (rs_leak_roots_matter())
        __lsan_register_root_region(begin, bytes);
}

/* ThreadSanitizer sees what libc's functions write for the library (memset, calloc), but not the
 * atomics by which the library then publishes that memory.  So it would report a race when another
 * thread takes a lock in that memory.  It ignores what the calling thread writes between
 * rs_unseen_begin and rs_unseen_end. */
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
