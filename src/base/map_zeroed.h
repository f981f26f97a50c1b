/* SPDX-License-Identifier: Apache-2.0 */
/* Zeroed memory directly from the kernel. */
#pragma once

#include <stddef.h>
#include <sys/mman.h>

/* Returns `bytes` zeroed bytes, or NULL when out of memory; free with munmap.  Not malloc, for
 * two reasons: untouched pages take no memory, and a hook may run while the program's own
 * allocator holds its locks. */
static inline void *rs_map_zeroed(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}
