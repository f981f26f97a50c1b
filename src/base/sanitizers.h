/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtimes of sanitizers are told, in a program that was built with one; the library is
 * not.  Their functions are NULL, or empty, in all other programs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* ---- LeakSanitizer ---- */

/* It follows pointers from globals, stacks and the heap alone.  Mappings of ours that hold the only
 * pointers to what we have from the heap are told to it; otherwise all of that would be reported as
 * the program's leaks. */
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

/* Exactly what was added. */
static inline void rs_leak_roots_remove(const void *begin, size_t bytes)
{
    if (rs_leak_roots_matter())
        __lsan_unregister_root_region(begin, bytes);
}

/* ---- ThreadSanitizer ---- */

/* It sees what functions of libc write for the library (memset, calloc), but not the atomics by
 * which other threads come to know of it: it would report a race when they take a lock there.  What
 * is written between begin and end it does not see. */
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
