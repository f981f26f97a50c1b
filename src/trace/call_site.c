/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/call_site.h"

#include "base/file.h"
#include "base/lock.h"
#include "base/memory.h"
#include "trace/object.h"
#include "trace/python_frames.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

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

/* ---- what is stored once ---- */

enum { BUCKETS = 4096, ALIGNMENT = 16 };
enum { TABLE_BYTES = 16 << 20 }; /* of all sites and lines; reserved, pages are taken when used */

typedef _Atomic(const struct rs_once *) bucket;

/* Sites and lines are entered under the lock, and neither changed nor removed: readers take no
 * lock.  Their memory is never given back: they outlive the resources whose blocks they name. */
struct table {
    bucket buckets[BUCKETS];
    bool (*is_same)(const struct rs_once *one, const void *wanted);
    struct rs_once *(*make)(const void *wanted);
};

static struct rs_mutex table_lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(trace_call_site, table_lock);

/* Returns zeroed memory; NULL when there is no more. */
static void *take_memory(size_t bytes)
{
    static char *memory;
    static size_t used_bytes;
    char *taken = NULL;

    RS_ASSERT_HELD(&table_lock);
    if (!memory)
        memory = rs_map_zeroed(TABLE_BYTES);
    if (memory && rs_round_up(bytes, ALIGNMENT, &bytes) && bytes <= TABLE_BYTES - used_bytes) {
        taken = memory + used_bytes;
        used_bytes += bytes;
    }
    return taken;
}

RS_HOT_INLINE bucket *head_of(struct table *table, uint64_t hash)
{
    return &table->buckets[(hash ^ hash >> 32) % BUCKETS];
}

RS_HOT_INLINE const struct rs_once *find(struct table *table, uint64_t hash, const void *wanted)
{
    const struct rs_once *one = atomic_load_explicit(head_of(table, hash), memory_order_acquire);

    while (one && (one->hash != hash || !table->is_same(one, wanted)))
        one = one->next;
    return one;
}

static RS_COLD const struct rs_once *enter(struct table *table, uint64_t hash, const void *wanted)
{
    const struct rs_once *known;
    struct rs_once *made;

    rs_mutex_lock(&table_lock);
    known = find(table, hash, wanted); /* another thread may have entered it first */
    if (!known && (made = table->make(wanted))) {
        made->next = atomic_load_explicit(head_of(table, hash), memory_order_relaxed);
        made->hash = hash;
        atomic_store_explicit(head_of(table, hash), made, memory_order_release);
        known = made;
    }
    rs_mutex_unlock(&table_lock);
    return known;
}

/* ---- lines ---- */

struct wanted_line {
    const char *text;
    size_t length_bytes;
};

/* Not by memcmp: ThreadSanitizer, in a program that was built with it, sees that call, but not the
 * atomics by which this thread came to know the line. */
static bool is_same_line(const struct rs_once *one, const void *wanted_line)
{
    const struct rs_line *line = (const struct rs_line *)one;
    const struct wanted_line *wanted = wanted_line;
    size_t at = 0;

    while (at < line->length_bytes && at < wanted->length_bytes &&
           line->text[at] == wanted->text[at])
        at++;
    return at == line->length_bytes && at == wanted->length_bytes;
}

static struct rs_once *make_line(const void *wanted_line)
{
    const struct wanted_line *wanted = wanted_line;
    struct rs_line *line = take_memory(sizeof(*line) + wanted->length_bytes + 1);

    if (!line)
        return NULL;
    line->length_bytes = wanted->length_bytes;
    memcpy(line->text, wanted->text, wanted->length_bytes);
    return &line->once;
}

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

const struct rs_line *rs_line_of(const char *text, size_t length_bytes)
{
    static struct table lines = {.is_same = is_same_line, .make = make_line};
    const struct wanted_line wanted = {text, length_bytes};
    uint64_t hash = hash_text(text, length_bytes);
    const struct rs_once *line = find(&lines, hash, &wanted);

    RS_ASSERT(length_bytes <= RS_LINE_BYTES_MAX);
    return (const struct rs_line *)(line ? line : enter(&lines, hash, &wanted));
}

/* ---- pairs ---- */

void rs_pair_enter(struct rs_pair set[RS_PAIRS], unsigned replaced, uint64_t key, uint64_t value)
{
    struct rs_pair *place = &set[replaced % RS_PAIRS];

    RS_ASSERT(value);
    for (unsigned i = 0; i < RS_PAIRS; i++)
        if (atomic_load_explicit(&set[i].value, memory_order_relaxed) == 0)
            place = &set[i];
    atomic_store_explicit(&place->value, value, memory_order_release);
    atomic_store_explicit(&place->key_xor_value, key ^ value, memory_order_relaxed);
}

/* ---- sites ---- */

struct capture {
    void *frames[RS_CALL_SITE_FRAMES_MAX];
    unsigned frame_count, line_count;
    const struct rs_line *lines[RS_PYTHON_FRAMES_MAX];
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

/* Not by memcmp, as in is_same_line. */
static bool are_same(const void *one, const void *other, unsigned count)
{
    const uintptr_t *at = one, *with = other;

    while (count > 0 && *at == *with)
        at++, with++, count--;
    return count == 0;
}

static bool is_same_site(const struct rs_once *one, const void *wanted)
{
    const struct rs_call_site *site = (const struct rs_call_site *)one;
    const struct capture *capture = wanted;

    return site->frame_count == capture->frame_count && site->line_count == capture->line_count &&
           are_same(site->frames, capture->frames, capture->frame_count) &&
           are_same(site->lines, capture->lines, capture->line_count);
}

static struct rs_once *make_site(const void *wanted)
{
    const struct capture *capture = wanted;
    size_t frame_bytes = capture->frame_count * sizeof(void *);
    size_t line_bytes = capture->line_count * sizeof(void *);
    struct rs_call_site *site = take_memory(sizeof(*site) + frame_bytes + line_bytes);
    char *frames = (char *)(site + 1);

    RS_ASSERT(capture->frame_count <= RS_CALL_SITE_FRAMES_MAX &&
              capture->line_count <= RS_PYTHON_FRAMES_MAX);
    if (!site)
        return NULL;
    memcpy(frames, capture->frames, frame_bytes);
    memcpy(frames + frame_bytes, capture->lines, line_bytes);
    *site = (struct rs_call_site){
        .frame_count = capture->frame_count,
        .line_count = capture->line_count,
        .frames = (const void *const *)(void *)frames,
        .lines = (const struct rs_line *const *)(void *)(frames + frame_bytes),
    };
    return &site->once;
}

__attribute__((noinline)) const struct rs_call_site *rs_call_site_here(void)
{
    struct rs_unwind_start start = RS_UNWIND_START();
    static struct table sites = {.is_same = is_same_site, .make = make_site};
    const struct rs_once *site;
    struct capture capture;
    enum rs_unwind_end end;
    uint64_t hash;

    capture.frame_count = rs_unwind(start, ours(), capture.frames, RS_CALL_SITE_FRAMES_MAX, &end);
    capture.line_count = rs_python_lines(end, capture.lines);
    if (RS_UNLIKELY(capture.frame_count == 0 && capture.line_count == 0))
        return NULL;
    hash = hash_of(&capture);
    site = find(&sites, hash, &capture);
    return (const struct rs_call_site *)(RS_LIKELY(site) ? site : enter(&sites, hash, &capture));
}

/* ---- texts ---- */

enum { CALLERS_MAX = 4 };

/* The CUDA runtime, and this library, whose functions the runtime's callers go through. */
static bool is_between(const void *frame)
{
    const char *path;
    uintptr_t base;

    if (is_in(ours(), frame))
        return true;
    return rs_object_origin((const char *)frame - 1, &path, &base) &&
           strncmp(rs_file_base_name(path), "libcudart", 9) == 0;
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
        rs_symbol_describe(frames[said], false, &symbol);
        snprintf(caller, sizeof(caller), "%s%s%s+%#zx%s", symbol.function,
                 symbol.function[0] ? " (" : "", symbol.object, (size_t)symbol.object_offset,
                 symbol.function[0] ? ")" : "");
        used = add(text, room, used, caller);
    }
}
