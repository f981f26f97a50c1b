/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/line.h"

#include "base/check.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { BUCKETS = 2048, ALIGNMENT = 16 };

typedef _Atomic(const struct rs_line *) bucket;

/* Lines are entered under the lock, and neither changed nor removed: readers take no lock. */
static bucket buckets[BUCKETS];
static struct rs_mutex lines_lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(trace_line, lines_lock);

/* ---- memory ---- */

static _Atomic(char *) memory;
static _Atomic size_t used_bytes;

/* Directly from the kernel.  Where two threads map it, the second's mapping is dropped. */
static char *map(void)
{
    char *expected = NULL, *mapped = mmap(NULL, RS_CALL_SITE_TABLE_BYTES, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (mapped == MAP_FAILED)
        return NULL;
    if (atomic_compare_exchange_strong(&memory, &expected, mapped))
        return mapped;
    munmap(mapped, RS_CALL_SITE_TABLE_BYTES);
    return expected;
}

void *rs_line_memory(size_t bytes)
{
    char *begin = atomic_load_explicit(&memory, memory_order_acquire);
    size_t used = atomic_load_explicit(&used_bytes, memory_order_relaxed);

    if ((!begin && !(begin = map())) || !rs_round_up(bytes, ALIGNMENT, &bytes))
        return NULL;
    do {
        RS_ASSERT(used <= RS_CALL_SITE_TABLE_BYTES && used % ALIGNMENT == 0);
        if (bytes > RS_CALL_SITE_TABLE_BYTES - used)
            return NULL;
    } while (!atomic_compare_exchange_weak_explicit(&used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return begin + used;
}

/* ---- lines ---- */

static uint64_t hash_text(const char *text, size_t length_bytes)
{
    uint64_t hash = length_bytes, word;

    for (; length_bytes >= sizeof(word); text += sizeof(word), length_bytes -= sizeof(word)) {
        memcpy(&word, text, sizeof(word));
        hash = rs_line_mix(hash, word, 1);
    }
    word = 0;
    memcpy(&word, text, length_bytes);
    return rs_line_mix(hash, word, 2);
}

/* Not by memcmp, as in call_site.c. */
static bool is_text(const struct rs_line *line, const char *text)
{
    size_t at = 0;

    while (at < line->length_bytes && line->text[at] == text[at])
        at++;
    return at == line->length_bytes;
}

static const struct rs_line *find(const bucket *head, uint64_t hash, const char *text,
                                  size_t length_bytes)
{
    const struct rs_line *line = atomic_load_explicit(head, memory_order_acquire);

    while (line &&
           (line->hash != hash || line->length_bytes != length_bytes || !is_text(line, text)))
        line = line->next;
    return line;
}

static const struct rs_line *enter(bucket *head, uint64_t hash, const char *text,
                                   size_t length_bytes)
{
    struct rs_line *line = rs_line_memory(sizeof(*line) + length_bytes + 1);

    RS_ASSERT_HELD(&lines_lock);
    if (!line)
        return NULL;
    line->next = atomic_load_explicit(head, memory_order_relaxed);
    line->hash = hash;
    line->length_bytes = length_bytes;
    memcpy(line->text, text, length_bytes);
    atomic_store_explicit(head, line, memory_order_release);
    return line;
}

const struct rs_line *rs_line_of(const char *text, size_t length_bytes)
{
    uint64_t hash = hash_text(text, length_bytes);
    bucket *head = &buckets[(hash ^ hash >> 32) % BUCKETS];
    const struct rs_line *line = find(head, hash, text, length_bytes);

    RS_ASSERT(length_bytes <= RS_LINE_BYTES_MAX);
    if (line)
        return line;
    rs_mutex_lock(&lines_lock);
    line = find(head, hash, text, length_bytes); /* another thread may have entered it first */
    if (!line)
        line = enter(head, hash, text, length_bytes);
    rs_mutex_unlock(&lines_lock);
    return line;
}
