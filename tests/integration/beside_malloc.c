/* SPDX-License-Identifier: Apache-2.0 */
/* Another preloaded library that takes malloc and its kin, as heap profilers do: it finds the real
 * ones with dlsym at the first call, from a static pool meanwhile, and counts.  Writes its counts
 * to the file BESIDE_COUNTS. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

static _Atomic unsigned allocations, frees;
static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);

static char pool[1 << 16];
static _Atomic size_t pool_used;
static __thread bool inside;

static void *from_pool(size_t bytes)
{
    size_t at = atomic_fetch_add(&pool_used, (bytes + 15) / 16 * 16);

    return at + bytes <= sizeof(pool) ? pool + at : NULL;
}

static bool is_of_pool(const void *block)
{
    return (uintptr_t)block - (uintptr_t)pool < sizeof(pool);
}

static bool prepare(void)
{
    if (real_free)
        return true;
    if (inside)
        return false;
    inside = true;
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
    *(void **)&real_calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    inside = false;
    return true;
}

PUBLIC void *malloc(size_t bytes)
{
    if (!prepare())
        return from_pool(bytes);
    allocations++;
    return real_malloc(bytes);
}

PUBLIC void *calloc(size_t count, size_t bytes)
{
    if (!prepare())
        return from_pool(count * bytes);
    allocations++;
    return real_calloc(count, bytes);
}

PUBLIC void *realloc(void *block, size_t bytes)
{
    void *moved;

    if (!is_of_pool(block) && prepare())
        return real_realloc(block, bytes);
    moved = malloc(bytes);
    if (moved)
        memcpy(moved, block, bytes); /* reads on within the pool at most */
    return moved;
}

PUBLIC void free(void *block)
{
    if (!block || is_of_pool(block) || !prepare())
        return;
    frees++;
    real_free(block);
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *path = getenv("BESIDE_COUNTS");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file, "malloc %u %u\n", allocations, frees);
    fclose(file);
}
