/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/published.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/memory.h"
#include "shared/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* since Linux 5.1 */
#endif

enum { STEP_BYTES = 64 << 10 }; /* the step by which the file's memory grows */

/* Precedes each allocation. `next` links freed ones; in a live one it points to the header itself.
 */
union header {
    struct {
        size_t bytes; /* the size of the allocation, this header included */
        union header *next;
    } piece;
    unsigned char alignment[RS_PUBLISHED_ALIGNMENT];
};

static struct {
    struct rs_mutex lock;
    unsigned char *memory; /* NULL: nothing is published */
    size_t used_bytes, backed_bytes;
    union header *freed;
    struct rs_kept_descriptor file;
} published = {.lock = RS_MUTEX_INIT(RS_RANK_TABLE)};

/* Allocates the file's memory before it is used, since a store without memory would raise SIGBUS.
 */
static bool back(size_t bytes)
{
    size_t before = published.backed_bytes, steps = (bytes + STEP_BYTES - 1) / STEP_BYTES;
    size_t more = steps * STEP_BYTES - rs_min(before, steps * STEP_BYTES);
    RS_UNCANCELLED_GUARD(); /* fallocate is a cancellation point */

    if (more == 0 || bytes > RS_PUBLISHED_BYTES)
        return more == 0;
    if (fallocate(published.file.fd, 0, (off_t)before, (off_t)more) != 0)
        return false;
    if (published.memory)
        rs_leak_roots_add(published.memory + before, more);
    published.backed_bytes += more;
    return true;
}

int rs_published_begin(size_t head_bytes)
{
    void *memory;
    int fd = rs_memory_file_make(RS_PUBLISHED_NAME, RS_PUBLISHED_BYTES, &memory);

    RS_ASSERT(!published.memory);
    if (fd < 0)
        return fd;
    published.backed_bytes = 0;
    (void)rs_round_up(head_bytes, RS_PUBLISHED_ALIGNMENT, &published.used_bytes);
    if (!rs_descriptor_keep(&published.file, fd) || !back(published.used_bytes)) {
        rs_descriptor_close(&published.file);
        munmap(memory, RS_PUBLISHED_BYTES);
        return -ENOMEM;
    }
    /* A forked child does not inherit the mapping, since two processes must never count in one
     * file; the child serves nothing. With LeakSanitizer it inherits the mapping, read-only:
     * without the pointers in it the sanitizer would report leaks. */
    if (!rs_leak_roots_matter())
        (void)madvise(memory, RS_PUBLISHED_BYTES, MADV_DONTFORK);
    (void)madvise(memory, RS_PUBLISHED_BYTES, MADV_DONTDUMP);
    /* From now on no process can map the file writable; the mapping that exists stays writable. On
     * Linux before 5.1 this fails, and only the length is sealed. */
    (void)fcntl(published.file.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    published.freed = NULL;
    published.memory = memory;
    rs_leak_roots_add(published.memory, published.backed_bytes);
    return 0;
}

void rs_published_forget(void)
{
    if (published.memory)
        rs_descriptor_close(&published.file);
    if (published.memory && rs_leak_roots_matter())
        (void)mprotect(published.memory, RS_PUBLISHED_BYTES, PROT_READ);
    published.memory = NULL;
    /* Another thread of the parent may have held the lock. */
    rs_mutex_init(&published.lock, RS_RANK_TABLE);
}

void *rs_published_head(void)
{
    return published.memory;
}

const struct rs_kept_descriptor *rs_published_file(void)
{
    return &published.file;
}

static union header *take_freed(size_t bytes)
{
    union header **at = &published.freed, *found;

    RS_ASSERT_HELD(&published.lock);
    while (*at && (*at)->piece.bytes != bytes)
        at = &(*at)->piece.next;
    found = *at;
    if (!found)
        return NULL;
    *at = found->piece.next;
    return memset(found, 0, bytes);
}

/* Extends the used part of the file, whose bytes are zero already. The file stops growing if the
 * program has closed the descriptor, since its number may then stand for a file of the program. */
static union header *take_new(size_t bytes)
{
    union header *taken = (union header *)(void *)(published.memory + published.used_bytes);

    RS_ASSERT_HELD(&published.lock);
    RS_ASSERT(published.used_bytes <= published.backed_bytes);
    if (published.used_bytes + bytes > published.backed_bytes &&
        (!rs_descriptor_is_kept(&published.file) || !back(published.used_bytes + bytes)))
        return NULL;
    published.used_bytes += bytes;
    return taken;
}

static void *take_piece(size_t bytes)
{
    RS_MUTEX_GUARD(&published.lock);
    union header *header = take_freed(bytes);

    if (!header)
        header = take_new(bytes);
    if (!header)
        return NULL;
    RS_ASSERT((uintptr_t)header % RS_PUBLISHED_ALIGNMENT == 0);
    RS_ASSERT_SLOW(header->piece.bytes == 0 && !header->piece.next);
    header->piece.bytes = bytes;
    header->piece.next = header;
    return header + 1;
}

static void *take_from_heap(size_t bytes, size_t alignment)
{
    void *memory;

    if (alignment <= _Alignof(max_align_t))
        return calloc(1, bytes);
    memory = rs_round_up(bytes, alignment, &bytes) ? aligned_alloc(alignment, bytes) : NULL;
    return memory ? memset(memory, 0, bytes) : NULL;
}

void *rs_published_allocate(size_t bytes, size_t alignment)
{
    void *memory = NULL;
    size_t rounded;

    RS_ASSERT(alignment <= RS_PUBLISHED_ALIGNMENT);
    if (published.memory && rs_round_up(bytes, RS_PUBLISHED_ALIGNMENT, &rounded) &&
        rounded < RS_PUBLISHED_BYTES)
        memory = take_piece(rounded + sizeof(union header));
    return memory ? memory : take_from_heap(bytes, alignment);
}

void rs_published_free(void *memory)
{
    union header *header = memory;

    if (!rs_published_offset(memory)) {
        free(memory);
        return;
    }
    header--;
    RS_MUTEX_GUARD(&published.lock);
    RS_ASSERT(header->piece.bytes > sizeof(*header));
    RS_ASSERT(header->piece.next == header); /* else it was freed before */
    header->piece.next = published.freed;
    published.freed = header;
}

uint64_t rs_published_offset(const volatile void *memory)
{
    uintptr_t offset = (uintptr_t)memory - (uintptr_t)published.memory;

    return published.memory && offset < RS_PUBLISHED_BYTES ? offset : 0;
}
