/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/call_site.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/lock.h"
#include "trace/python_frames.h"

#include <execinfo.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

enum { BUCKETS = 4096, OWN_FRAMES_MAX = 32, SITE_ALIGNMENT = 16 };

typedef _Atomic(const struct rs_call_site *) bucket;

/* Sites are entered under the lock, and neither changed nor removed: readers take no lock. */
static bucket buckets[BUCKETS];
static struct rs_mutex table_lock = RS_MUTEX_INIT(RS_RANK_TABLE); /* protects the fields below */
static char *table;
static size_t table_used_bytes;
static bool table_failed;

/* ---- our own frames, which stand at the top of every stack ---- */

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool is_in_our_object(const void *address)
{
    return (uintptr_t)address >= (uintptr_t)__ehdr_start && (uintptr_t)address < (uintptr_t)_end;
}

/* True for an address in the preloaded library.  In unit tests this code is linked into the
 * program, whose frames are wanted, so nothing counts as ours there. */
static bool is_our_frame(const void *address)
{
    static _Atomic int linked_into_program; /* 1: no, 2: yes */
    int answer = atomic_load_explicit(&linked_into_program, memory_order_relaxed);

    if (RS_UNLIKELY(!answer)) {
        answer = is_in_our_object((const void *)getauxval(AT_PHDR)) ? 2 : 1;
        atomic_store_explicit(&linked_into_program, answer, memory_order_relaxed);
    }
    return answer == 1 && is_in_our_object(address);
}

/* ---- the table ---- */

struct capture {
    void *addresses[OWN_FRAMES_MAX + RS_CALL_SITE_FRAMES_MAX];
    void **frames;
    size_t frame_bytes;
    char python[RS_CALL_SITE_PYTHON_BYTES];
    size_t python_bytes;
    uint64_t hash;
};

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ at[i]) * 1099511628211u; /* FNV-1a */
    return hash;
}

static const char *text_of(const struct rs_call_site *site)
{
    return (const char *)(site->frames + site->frame_count);
}

static bool is_same(const struct rs_call_site *site, const struct capture *capture)
{
    return site->hash == capture->hash &&
           site->frame_count * sizeof(void *) == capture->frame_bytes &&
           site->python_bytes == capture->python_bytes &&
           memcmp(site->frames, capture->frames, capture->frame_bytes) == 0 &&
           memcmp(text_of(site), capture->python, capture->python_bytes) == 0;
}

static const struct rs_call_site *find(const bucket *head, const struct capture *capture)
{
    const struct rs_call_site *site = atomic_load_explicit(head, memory_order_acquire);

    while (site && !is_same(site, capture))
        site = site->next;
    return site;
}

/* Memory directly from the kernel, never given back: a site outlives the resources whose blocks
 * it names. */
static void *take_from_table(size_t bytes)
{
    void *taken;

    RS_ASSERT_HELD(&table_lock);
    RS_ASSERT(table_used_bytes <= RS_CALL_SITE_TABLE_BYTES);
    if (!table && !table_failed) {
        table = mmap(NULL, RS_CALL_SITE_TABLE_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        table_failed = table == MAP_FAILED;
        table = table_failed ? NULL : table;
    }
    if (!table || !rs_round_up(bytes, SITE_ALIGNMENT, &bytes) ||
        bytes > RS_CALL_SITE_TABLE_BYTES - table_used_bytes)
        return NULL;
    RS_ASSERT(table_used_bytes % SITE_ALIGNMENT == 0);
    taken = table + table_used_bytes;
    table_used_bytes += bytes;
    return taken;
}

static const struct rs_call_site *enter(bucket *head, const struct capture *capture)
{
    const struct rs_call_site *known;
    struct rs_call_site *site;

    RS_ASSERT(capture->python_bytes <= RS_CALL_SITE_PYTHON_BYTES);
    rs_mutex_lock(&table_lock);
    known = find(head, capture); /* another thread may have entered it first */
    site = known
               ? NULL
               : take_from_table(sizeof(*site) + capture->frame_bytes + capture->python_bytes + 1);
    if (site) {
        site->next = atomic_load_explicit(head, memory_order_relaxed);
        site->hash = capture->hash;
        site->frame_count = (unsigned)(capture->frame_bytes / sizeof(void *));
        site->python_bytes = (unsigned)capture->python_bytes;
        memcpy(site->frames, capture->frames, capture->frame_bytes);
        memcpy((char *)(site->frames + site->frame_count), capture->python,
               capture->python_bytes); /* its terminating zero is a byte that the kernel zeroed */
        atomic_store_explicit(head, site, memory_order_release);
        known = site;
    }
    rs_mutex_unlock(&table_lock);
    return known;
}

/* ---- capture ---- */

enum { INTERCEPTORS_MAX = 2 };

static void unwind(struct capture *capture)
{
    int count = backtrace(capture->addresses, (int)RS_ARRAY_LENGTH(capture->addresses));
    int own = 0;

    /* A sanitizer intercepts backtrace, so its frame may come before ours. */
    while (own < count && own < INTERCEPTORS_MAX && !is_our_frame(capture->addresses[own]))
        own++;
    while (own < count && is_our_frame(capture->addresses[own]))
        own++;
    capture->frames = capture->addresses + own;
    capture->frame_bytes =
        rs_min(count > own ? (size_t)(count - own) : 0, RS_CALL_SITE_FRAMES_MAX) * sizeof(void *);
}

const struct rs_call_site *rs_call_site_here(void)
{
    struct capture capture;
    const struct rs_call_site *site;
    bucket *head;

    unwind(&capture);
    capture.python_bytes = rs_python_frames(capture.python, sizeof(capture.python));
    if (capture.frame_bytes == 0 && capture.python_bytes == 0)
        return NULL;
    capture.hash = hash_bytes(14695981039346656037u, capture.frames, capture.frame_bytes);
    capture.hash = hash_bytes(capture.hash, capture.python, capture.python_bytes);
    head = &buckets[(capture.hash ^ capture.hash >> 32) % BUCKETS];
    site = find(head, &capture);
    return site ? site : enter(head, &capture);
}

const char *rs_call_site_python(const struct rs_call_site *site)
{
    return text_of(site);
}
