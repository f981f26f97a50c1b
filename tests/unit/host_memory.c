/* SPDX-License-Identifier: Apache-2.0 */
#include "host_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>

enum { HELD_MAX = 1 << 14 };

_Atomic long host_left = -1;
_Atomic size_t host_refused;
_Atomic bool host_counts;
void (*host_on_mapping)(void *address, size_t bytes);

static struct {
    pthread_mutex_t lock; /* protects what follows */
    size_t count;
    void *blocks[HELD_MAX];
} held = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__real_mmap(void *, size_t, int, int, int, off_t);
void *__real_mmap64(void *, size_t, int, int, int, off_t);
int __real_munmap(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
void *__wrap_mmap(void *, size_t, int, int, int, off_t);
void *__wrap_mmap64(void *, size_t, int, int, int, off_t);
int __wrap_munmap(void *memory, size_t bytes);

static bool refuses(void)
{
    long left = atomic_load(&host_left);

    while (left > 0 && !atomic_compare_exchange_weak(&host_left, &left, left - 1))
        ;
    if (left != 0)
        return false;
    atomic_fetch_add(&host_refused, 1);
    errno = ENOMEM;
    return true;
}

static void *enter(void *memory)
{
    pthread_mutex_lock(&held.lock);
    if (atomic_load(&host_counts) && memory && held.count < HELD_MAX)
        held.blocks[held.count++] = memory;
    pthread_mutex_unlock(&held.lock);
    return memory;
}

static void leave(void *memory)
{
    pthread_mutex_lock(&held.lock);
    for (size_t i = held.count; i-- > 0;) {
        if (held.blocks[i] == memory) {
            held.blocks[i] = held.blocks[--held.count];
            break;
        }
    }
    pthread_mutex_unlock(&held.lock);
}

size_t host_held_count(void)
{
    size_t count;

    pthread_mutex_lock(&held.lock);
    count = held.count;
    pthread_mutex_unlock(&held.lock);
    return count;
}

void *__wrap_malloc(size_t bytes)
{
    return refuses() ? NULL : enter(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refuses() ? NULL : enter(__real_calloc(count, bytes));
}

/* As the C library does: memory that cannot grow stays as it was. */
void *__wrap_realloc(void *memory, size_t bytes)
{
    if (refuses())
        return NULL;
    leave(memory);
    return enter(__real_realloc(memory, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return refuses() ? NULL : enter(__real_aligned_alloc(alignment, bytes));
}

void __wrap_free(void *memory)
{
    leave(memory);
    __real_free(memory);
}

static void *mapped(void *address, size_t bytes)
{
    if (address == MAP_FAILED)
        return address;
    if (host_on_mapping)
        host_on_mapping(address, bytes);
    return enter(address);
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    return refuses() ? MAP_FAILED
                     : mapped(__real_mmap(at, bytes, access, flags, file, offset), bytes);
}

void *__wrap_mmap64(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    return refuses() ? MAP_FAILED
                     : mapped(__real_mmap64(at, bytes, access, flags, file, offset), bytes);
}

int __wrap_munmap(void *memory, size_t bytes)
{
    leave(memory);
    return __real_munmap(memory, bytes);
}
