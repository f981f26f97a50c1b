/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/call_site.h"

#include "base/check.h"
#include "base/lock.h"
#include "trace/object.h"
#include "trace/python_frames.h"
#include "trace/unwind.h"

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

enum { BUCKETS = 4096 };

typedef _Atomic(const struct rs_call_site *) bucket;

/* Sites are entered under the lock, and neither changed nor removed: readers take no lock. */
static bucket buckets[BUCKETS];
static struct rs_mutex table_lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(trace_call_site, table_lock);

/* ---- our own frames, which stand at the top of every stack ---- */

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool is_in(struct rs_unwind_skipped code, const void *address)
{
    return (uintptr_t)address - code.begin < code.bytes;
}

/* In unit tests this code is linked into the program, whose frames are wanted, so nothing counts as
 * ours there. */
static struct rs_unwind_skipped ours(void)
{
    static _Atomic int linked_into_program; /* 1: no, 2: yes */
    int answer = atomic_load_explicit(&linked_into_program, memory_order_relaxed);
    struct rs_unwind_skipped code = {(uintptr_t)__ehdr_start,
                                     (uintptr_t)_end - (uintptr_t)__ehdr_start};

    if (RS_UNLIKELY(!answer)) {
        answer = is_in(code, (const void *)getauxval(AT_PHDR)) ? 2 : 1;
        atomic_store_explicit(&linked_into_program, answer, memory_order_relaxed);
    }
    return answer == 1 ? code : (struct rs_unwind_skipped){0, 0};
}

/* ---- the table ---- */

struct capture {
    void *frames[RS_CALL_SITE_FRAMES_MAX];
    unsigned frame_count, line_count;
    const struct rs_line *lines[RS_PYTHON_FRAMES_MAX];
    uint64_t hash;
};

static uint64_t hash_words(uint64_t hash, const void *words, unsigned count)
{
    const uintptr_t *at = words;

    for (; count >= 2; at += 2, count -= 2)
        hash = rs_line_mix(hash, at[0], at[1]);
    return count ? rs_line_mix(hash, at[0], 0) : hash;
}

static uint64_t hash_of(const struct capture *capture)
{
    return hash_words(hash_words(capture->frame_count, capture->frames, capture->frame_count),
                      capture->lines, capture->line_count);
}

/* Not by memcmp: ThreadSanitizer, in a program that was built with it, sees that call, but not the
 * atomics by which this thread came to know the site. */
static bool are_same(const void *one, const void *other, unsigned count)
{
    const uintptr_t *at = one, *with = other;

    while (count > 0 && *at == *with)
        at++, with++, count--;
    return count == 0;
}

static bool is_same(const struct rs_call_site *site, const struct capture *capture)
{
    return site->hash == capture->hash && site->frame_count == capture->frame_count &&
           site->line_count == capture->line_count &&
           are_same(site->frames, capture->frames, capture->frame_count) &&
           are_same(site->lines, capture->lines, capture->line_count);
}

static const struct rs_call_site *find(const bucket *head, const struct capture *capture)
{
    const struct rs_call_site *site = atomic_load_explicit(head, memory_order_acquire);

    while (site && !is_same(site, capture))
        site = site->next;
    return site;
}

static bucket *head_of(const struct capture *capture)
{
    return &buckets[(capture->hash ^ capture->hash >> 32) % BUCKETS];
}

/* A site's memory is never given back: it outlives the resources whose blocks it names. */
static const struct rs_call_site *make_site(const struct rs_call_site *next,
                                            const struct capture *capture)
{
    size_t frame_bytes = capture->frame_count * sizeof(void *);
    size_t line_bytes = capture->line_count * sizeof(void *);
    struct rs_call_site *site = rs_line_memory(sizeof(*site) + frame_bytes + line_bytes);
    char *frames = (char *)(site + 1);

    RS_ASSERT_HELD(&table_lock);
    RS_ASSERT(capture->frame_count <= RS_CALL_SITE_FRAMES_MAX &&
              capture->line_count <= RS_PYTHON_FRAMES_MAX);
    if (!site)
        return NULL;
    memcpy(frames, capture->frames, frame_bytes);
    memcpy(frames + frame_bytes, capture->lines, line_bytes);
    *site = (struct rs_call_site){
        .next = next,
        .hash = capture->hash,
        .frame_count = capture->frame_count,
        .line_count = capture->line_count,
        .frames = (const void *const *)(void *)frames,
        .lines = (const struct rs_line *const *)(void *)(frames + frame_bytes),
    };
    return site;
}

static const struct rs_call_site *enter(bucket *head, const struct capture *capture)
{
    const struct rs_call_site *known;

    RS_ASSERT_SLOW(capture->hash == hash_of(capture));
    rs_mutex_lock(&table_lock);
    known = find(head, capture); /* another thread may have entered it first */
    if (!known) {
        known = make_site(atomic_load_explicit(head, memory_order_relaxed), capture);
        if (known)
            atomic_store_explicit(head, known, memory_order_release);
    }
    rs_mutex_unlock(&table_lock);
    return known;
}

/* ---- capture ---- */

__attribute__((noinline)) const struct rs_call_site *rs_call_site_here(void)
{
    struct rs_unwind_start start = RS_UNWIND_START();
    struct capture capture;
    const struct rs_call_site *site;
    enum rs_unwind_end end;

    capture.frame_count = rs_unwind(start, ours(), capture.frames, RS_CALL_SITE_FRAMES_MAX, &end);
    capture.line_count = rs_python_lines(end, capture.lines);
    if (RS_UNLIKELY(capture.frame_count == 0 && capture.line_count == 0))
        return NULL;
    capture.hash = hash_of(&capture);
    site = find(head_of(&capture), &capture);
    return RS_LIKELY(site) ? site : enter(head_of(&capture), &capture);
}

/* ---- texts ---- */

enum { CALLERS_MAX = 4 };

/* The CUDA runtime, and this library, whose functions the runtime's callers go through. */
static bool is_between(const void *frame)
{
    const char *path, *slash;
    uintptr_t base;

    if (is_in(ours(), frame))
        return true;
    if (!rs_object_origin((const char *)frame - 1, &path, &base))
        return false;
    slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, "libcudart", 9) == 0;
}

unsigned rs_site_frames_outside(const struct rs_call_site *site)
{
    unsigned outside = 0;

    while (outside < site->frame_count && is_between(site->frames[outside]))
        outside++;
    return outside < site->frame_count ? outside : 0;
}

/* The file of the object that holds the address, as one text for each object; NULL where none does.
 */
static const char *object_at(const void *address)
{
    const char *path;
    uintptr_t base;

    return address && rs_object_origin(address, &path, &base) ? path : NULL;
}

unsigned rs_site_frames_to_say(const struct rs_call_site *site, unsigned outside,
                               const void *frames[RS_CALL_SITE_FRAMES_MAX])
{
    const char *interpreter = site->line_count ? object_at(rs_python_address()) : NULL;
    const char *c_library = object_at((const void *)(uintptr_t)&snprintf);
    const char *object = NULL, *above;
    bool is_below = false;
    unsigned count = 0;

    for (unsigned i = outside; i < site->frame_count; i++) {
        above = object;
        object = interpreter ? object_at(site->frames[i]) : NULL;
        if (interpreter && object == interpreter)
            is_below = true;
        else if (!is_below)
            frames[count++] = site->frames[i];
        else if (object != c_library && !(above == c_library && i + 1 == site->frame_count))
            frames[count++] = site->frames[i]; /* not the program's _start */
    }
    return count;
}

static size_t add(char *text, size_t room, size_t used, const char *caller)
{
    int added =
        snprintf(text + used, room - used, "%s%s", used ? ", from " : ", allocated at ", caller);

    return added < 0 || used + (size_t)added >= room ? room - 1 : used + (size_t)added;
}

void rs_site_describe(const struct rs_call_site *site, char *text, size_t room)
{
    const void *frames[RS_CALL_SITE_FRAMES_MAX];
    char caller[2 * RS_SYMBOL_NAME_BYTES + 32];
    struct rs_symbol symbol;
    unsigned count, said = 0;
    size_t used = 0;

    text[0] = '\0';
    if (!site)
        return;
    for (; said < site->line_count && said < CALLERS_MAX; said++)
        used = add(text, room, used, site->lines[said]->text);
    if (said)
        return;
    count = rs_site_frames_to_say(site, rs_site_frames_outside(site), frames);
    for (; said < count && said < CALLERS_MAX; said++) {
        rs_symbol_describe_by_file(frames[said], &symbol);
        snprintf(caller, sizeof(caller), "%s%s%s+%#zx%s", symbol.function,
                 symbol.function[0] ? " (" : "", symbol.object, (size_t)symbol.object_offset,
                 symbol.function[0] ? ")" : "");
        used = add(text, room, used, caller);
    }
}
