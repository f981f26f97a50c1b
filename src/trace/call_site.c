/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/call_site.h"

#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "trace/object.h"
#include "trace/python_frames.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

/* ---- this library's own frames, which are at the top of every stack ---- */

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool is_in(struct rs_unwind_skipped code, const void *address)
{
    return (uintptr_t)address - code.begin < code.bytes;
}

/* Returns the range of the library's own code, whose frames are skipped.  In unit tests this code
 * is linked into the program, whose frames are wanted, so nothing is skipped there. */
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
/* The room for all sites and lines. The addresses are reserved at once, and pages take memory when
 * they are used. */
enum { TABLE_BYTES = 16 << 20 };

typedef _Atomic(const struct rs_once *) bucket;

/* Sites and lines are entered under the lock, and neither changed nor removed: readers take no
 * lock.  Their memory is never given back: they outlive the resources whose blocks they name. */
struct table {
    bucket buckets[BUCKETS];
};

static struct rs_mutex table_lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(trace_call_site, table_lock);

/* Returns zeroed memory for a site or a line; NULL when the room is used up. */
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

/* Reads a word at an address that need not be aligned, since a text may begin anywhere. */
RS_HOT_INLINE uint64_t loose_word_at(const char *address)
{
    typedef uint64_t loose_word __attribute__((aligned(1), may_alias));

    return *(const loose_word *)address;
}

RS_HOT_INLINE bucket *head_of(struct table *table, uint64_t hash)
{
    return &table->buckets[(hash ^ hash >> 32) % BUCKETS];
}

/* Hashes two words at a time; zeroes are added to fill up the last two. */
RS_HOT_INLINE uint64_t hash_contents(const char *contents, size_t bytes)
{
    uint64_t hash = bytes, words[2] = {0, 0};

    for (; bytes >= sizeof(words); contents += sizeof(words), bytes -= sizeof(words))
        hash =
            rs_line_mix(hash, loose_word_at(contents), loose_word_at(contents + sizeof(words[0])));
    if (bytes == 0)
        return hash;
    memcpy(words, contents, bytes);
    return rs_line_mix(hash, words[0], words[1]);
}

/* Compares without memcmp: in a program that was built with ThreadSanitizer, the sanitizer sees
 * memcmp's reads, but not the atomics by which this thread got the pointer, and would report a
 * race. */
RS_HOT_INLINE bool has_contents(const struct rs_once *one, const char *contents, size_t bytes)
{
    const char *with = (const char *)(one + 1);

    if (one->bytes != bytes)
        return false;
    for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t)) {
        if (loose_word_at(with) != loose_word_at(contents))
            return false;
        with += sizeof(uint64_t);
        contents += sizeof(uint64_t);
    }
    while (bytes > 0 && *with++ == *contents++)
        bytes--;
    return bytes == 0;
}

RS_HOT_INLINE const struct rs_once *find_once(struct table *table, uint64_t hash,
                                              const char *contents, size_t bytes)
{
    const struct rs_once *one = atomic_load_explicit(head_of(table, hash), memory_order_acquire);

    while (one && (one->hash != hash || !has_contents(one, contents, bytes)))
        one = one->next;
    return one;
}

static RS_COLD const struct rs_once *enter_once(struct table *table, uint64_t hash,
                                                const char *contents, size_t bytes)
{
    const struct rs_once *known;
    struct rs_once *made;

    rs_mutex_lock(&table_lock);
    /* Another thread may have entered the same contents first. */
    known = find_once(table, hash, contents, bytes);
    /* One byte more, for the zero byte that ends a text. */
    if (!known && (made = take_memory(sizeof(*made) + bytes + 1))) {
        made->next = atomic_load_explicit(head_of(table, hash), memory_order_relaxed);
        made->hash = hash;
        made->bytes = bytes;
        memcpy(made + 1, contents, bytes);
        atomic_store_explicit(head_of(table, hash), made, memory_order_release);
        known = made;
    }
    rs_mutex_unlock(&table_lock);
    return known;
}

/* Returns the stored copy of these contents, and stores one if there is none. Returns NULL when the
 * memory is used up. */
RS_HOT_INLINE const struct rs_once *find_or_enter(struct table *table, const void *contents,
                                                  size_t bytes)
{
    uint64_t hash = hash_contents(contents, bytes);
    const struct rs_once *known = find_once(table, hash, contents, bytes);

    return RS_LIKELY(known) ? known : enter_once(table, hash, contents, bytes);
}

const struct rs_line *rs_line_of(const char *text, size_t length_bytes)
{
    static struct table lines;

    RS_ASSERT(length_bytes <= RS_LINE_BYTES_MAX);
    return (const struct rs_line *)find_or_enter(&lines, text, length_bytes);
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

/* The contents of a site. A zero word is added at the end if the length is no multiple of the two
 * words that hash_contents reads at a time. */
struct capture {
    unsigned frame_count, line_count;
    void *words[RS_CALL_SITE_FRAMES_MAX + RS_PYTHON_FRAMES_MAX + 1];
};

_Static_assert(offsetof(struct capture, words) == offsetof(struct rs_call_site, frames) -
                                                      offsetof(struct rs_call_site, frame_count),
               "a site is an rs_once and its contents");

__attribute__((noinline)) const struct rs_call_site *rs_call_site_here(void)
{
    struct rs_unwind_start start = RS_UNWIND_START();
    static struct table sites;
    const struct rs_line *lines[RS_PYTHON_FRAMES_MAX];
    struct capture capture;
    enum rs_unwind_end end;
    unsigned words;

    words = capture.frame_count =
        rs_unwind(start, ours(), capture.words, RS_CALL_SITE_FRAMES_MAX, &end);
    capture.line_count = rs_python_lines(end, lines);
    RS_ASSERT(words <= RS_CALL_SITE_FRAMES_MAX && capture.line_count <= RS_PYTHON_FRAMES_MAX);
    for (unsigned i = 0; i < capture.line_count; i++)
        capture.words[words++] = (void *)(uintptr_t)lines[i];
    if (RS_UNLIKELY(words == 0))
        return NULL;
    capture.words[words] = NULL;
    /* The two counts take one word, so with an odd number of words the length is even. */
    words += words % 2 == 0;
    return (const struct rs_call_site *)find_or_enter(
        &sites, &capture, offsetof(struct capture, words) + words * sizeof(capture.words[0]));
}

/* ---- texts ---- */

enum { CALLERS_MAX = 4 };

/* True for a frame of the CUDA runtime or of this library, which stand between the program and the
 * driver. */
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

/* Returns the file name of the object that holds the address; NULL if no object does. Callers may
 * compare the pointers: an object's name is always the same pointer. */
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
            /* Not a frame of the C library, nor the program's _start, which is the last frame and
             * called the C library. */
            frames[count++] = site->frames[i];
    }
    RS_ASSERT(count <= site->frame_count);
    return count;
}

static void add_caller(char *text, size_t room, const char *caller)
{
    rs_text_add(text, room, "%s%s", text[0] ? ", from " : "; the block was allocated at ", caller);
}

void rs_site_describe(const struct rs_call_site *site, char *text, size_t room)
{
    const void *frames[RS_CALL_SITE_FRAMES_MAX];
    char caller[2 * RS_SYMBOL_NAME_BYTES + 32];
    struct rs_symbol symbol;
    unsigned count, said = 0;

    text[0] = '\0';
    if (!site)
        return;
    for (; said < site->line_count && said < CALLERS_MAX; said++)
        add_caller(text, room, rs_site_line(site, said)->text);
    if (said)
        return;
    count = rs_site_frames_to_say(site, rs_site_frames_outside(site), frames);
    for (; said < count && said < CALLERS_MAX; said++) {
        rs_symbol_describe(frames[said], false, &symbol);
        snprintf(caller, sizeof(caller), "%s%s%s+%#zx%s", symbol.function,
                 symbol.function[0] ? " (" : "", symbol.object, (size_t)symbol.object_offset,
                 symbol.function[0] ? ")" : "");
        add_caller(text, room, caller);
    }
}
