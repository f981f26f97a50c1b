/* SPDX-License-Identifier: Apache-2.0 */
#include "recording/recorder.h"

#include "base/arithmetic.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/map_zeroed.h"
#include "base/thread_index.h"
#include "recording/clock.h"
#include "recording/definitions.h"
#include "trace/call_site.h"
#include "trace/symbol.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    SHARDS = RS_RECORDING_PART_CHUNKS - 1,
    TIMES_EVERY = 64 * sizeof(struct rs_recording_event), /* content bytes: the time is noted in the
                                                             header, which takes 50 ns; at first by
                                                             each event, since few may follow */
    THREAD_NAME_BYTES = 16,
};

#define SIZE_BYTES_MAX (SIZE_MAX >> RS_RECORDING_THREAD_BITS)

bool rs_recording_has_counter;

struct shard {
    _Alignas(2 * RS_CACHE_LINE) struct rs_spinlock lock; /* protects the shard */
    struct rs_recording_chunk chunk;
};

/* In memory that is all zero in a child after fork, which so has no owner and finds no path. */
struct rs_recorder {
    struct rs_recorder *next;
    struct rs_mutex lock; /* protects ring, definitions and is_ending; taken under a shard's too */
    bool is_ending;       /* no chunk begins any more */
    struct rs_recording_ring ring;
    struct rs_definitions definitions;
    struct shard shards[SHARDS];
    char path[PATH_MAX];
};

static struct rs_mutex list_lock = RS_MUTEX_INIT(RS_RANK_RESOURCE);
static _Atomic(struct rs_recorder *) recorders; /* only grows */

/* What the calling thread has numbers for; `inside` while it is in this file with a lock, so that a
 * handler of a signal that arrives there does not wait for its own thread. */
static _Thread_local struct {
    const struct rs_recorder *recorder; /* the numbers are this one's */
    const void *stream;
    uint16_t thread_number, stream_number;
    bool inside;
} here;

static bool enter(void)
{
    if (RS_UNLIKELY(here.inside))
        return false;
    here.inside = true;
    atomic_signal_fence(memory_order_seq_cst);
    return true;
}

static void leave(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    here.inside = false;
}

bool rs_recorder_is_on(const struct rs_recorder *recorder)
{
    return recorder->ring.owner && atomic_load_explicit(&recorder->ring.on, memory_order_relaxed);
}

/* ---- definitions ---- */

static uint32_t define_locked(struct rs_recorder *recorder, enum rs_recording_definition_kind kind,
                              uint64_t key, uint64_t value, const void *text, size_t text_bytes)
{
    uint32_t number = key ? rs_definitions_find(&recorder->definitions, kind, key) : 0;

    RS_ASSERT_HELD(&recorder->lock);
    if (number || recorder->is_ending || !rs_recorder_is_on(recorder))
        return number;
    return rs_definitions_enter(&recorder->definitions, &recorder->ring, kind, key, value, text,
                                text_bytes);
}

/* The caller has entered. */
static uint32_t define_inside(struct rs_recorder *recorder, enum rs_recording_definition_kind kind,
                              uint64_t key, uint64_t value, const void *text, size_t text_bytes)
{
    uint32_t number;

    RS_ASSERT(here.inside);
    rs_mutex_lock(&recorder->lock);
    number = define_locked(recorder, kind, key, value, text, text_bytes);
    rs_mutex_unlock(&recorder->lock);
    return number;
}

static uint32_t define(struct rs_recorder *recorder, enum rs_recording_definition_kind kind,
                       uint64_t key, uint64_t value, const void *text, size_t text_bytes)
{
    uint32_t number;

    if (!enter())
        return 0;
    number = define_inside(recorder, kind, key, value, text, text_bytes);
    leave();
    return number;
}

static uint32_t find(struct rs_recorder *recorder, enum rs_recording_definition_kind kind,
                     const void *key)
{
    uint32_t number;

    if (!enter())
        return 0;
    rs_mutex_lock(&recorder->lock);
    number = rs_definitions_find(&recorder->definitions, kind, (uintptr_t)key);
    rs_mutex_unlock(&recorder->lock);
    leave();
    return number;
}

static uint16_t narrow(uint32_t number)
{
    return (uint16_t)rs_min(number, RS_RECORDING_NUMBERS_MAX);
}

/* A thread's ID may come again; the thread is then one with the earlier one, as for RMM's log. */
static void know_thread(struct rs_recorder *recorder)
{
    char name[THREAD_NAME_BYTES + 1] = "";
    pid_t thread = gettid();

    (void)prctl(PR_GET_NAME, name);
    here.thread_number = narrow(define_inside(recorder, RS_RECORDING_THREAD, (uint64_t)thread,
                                              (uint64_t)thread, name, strlen(name)));
    here.recorder = recorder;
    here.stream = NULL;
    here.stream_number = 0;
}

static uint16_t number_of_stream(struct rs_recorder *recorder, const void *stream)
{
    uint32_t number;

    if ((uintptr_t)stream < RS_RECORDING_STREAMS_FIXED)
        return (uint16_t)(uintptr_t)stream;
    if (stream != here.stream) {
        number = define_inside(recorder, RS_RECORDING_STREAM, (uintptr_t)stream, (uintptr_t)stream,
                               NULL, 0);
        here.stream_number = number ? narrow(number + RS_RECORDING_STREAMS_FIXED - 1)
                                    : (uint16_t)RS_RECORDING_NUMBERS_MAX;
        here.stream = stream;
    }
    return here.stream_number;
}

unsigned rs_recorder_stack(struct rs_recorder *recorder, int device, unsigned memory,
                           const char *text)
{
    uint64_t value = (uint32_t)device | (uint64_t)memory << 32;

    return narrow(define(recorder, RS_RECORDING_STACK, 0, value, text, strlen(text)));
}

/* ---- call sites ---- */

static uint32_t frame_of_line(struct rs_recorder *recorder, const struct rs_line *line)
{
    uint32_t number = find(recorder, RS_RECORDING_FRAME, line);

    return number ? number
                  : define(recorder, RS_RECORDING_FRAME, (uintptr_t)line, 1, line->text,
                           line->length_bytes);
}

/* An address's name is looked up once, without a lock: reading an object's symbols takes some 10 to
 * 100 us. */
static uint32_t frame_of_address(struct rs_recorder *recorder, const void *address)
{
    uint32_t number = find(recorder, RS_RECORDING_FRAME, address);
    struct rs_symbol symbol;
    char text[2 * RS_SYMBOL_NAME_BYTES + 64];

    if (number)
        return number;
    rs_symbol_describe(address, &symbol);
    if (symbol.function[0])
        snprintf(text, sizeof(text), "%s+%#zx (%s+%#zx)", symbol.function,
                 (size_t)symbol.function_offset, symbol.object, (size_t)symbol.object_offset);
    else
        snprintf(text, sizeof(text), "%s+%#zx", symbol.object, (size_t)symbol.object_offset);
    return define(recorder, RS_RECORDING_FRAME, (uintptr_t)address, 0, text, strlen(text));
}

unsigned rs_recorder_site(struct rs_recorder *recorder, const struct rs_call_site *site)
{
    uint32_t frames[128], count = 0, number;

    if (!site || !rs_recorder_is_on(recorder))
        return 0;
    number = find(recorder, RS_RECORDING_SITE, site);
    if (number || rs_definitions_are_full(&recorder->definitions))
        return number; /* to name the frames takes up to 1 ms */
    for (unsigned i = 0; i < site->line_count && count < RS_ARRAY_LENGTH(frames); i++)
        frames[count++] = frame_of_line(recorder, site->lines[i]);
    for (unsigned i = 0; i < site->frame_count && count < RS_ARRAY_LENGTH(frames); i++)
        frames[count++] = frame_of_address(recorder, site->frames[i]);
    return define(recorder, RS_RECORDING_SITE, (uintptr_t)site, 0, frames, count * sizeof(*frames));
}

/* ---- events ---- */

static void finish_shard(struct rs_recorder *recorder, struct shard *shard)
{
    if (shard->chunk.bytes)
        rs_recording_ring_finish(&recorder->ring, &shard->chunk);
}

/* The chunk is full, or has not begun. */
__attribute__((noinline)) static bool renew(struct rs_recorder *recorder, struct shard *shard)
{
    char *memory =
        recorder->ring.memory + (size_t)(shard - recorder->shards + 1) * RS_RECORDING_CHUNK_BYTES;
    bool has_chunk = false;

    rs_mutex_lock(&recorder->lock);
    finish_shard(recorder, shard);
    if (!recorder->is_ending && rs_recorder_is_on(recorder))
        has_chunk =
            rs_recording_ring_begin(&recorder->ring, &shard->chunk, memory, RS_RECORDING_EVENTS);
    rs_mutex_unlock(&recorder->lock);
    return has_chunk;
}

/* The kind is stored last. */
static void append(struct rs_recorder *recorder, struct shard *shard,
                   const struct rs_recorder_event *event, uint16_t stream)
{
    struct rs_recording_chunk *chunk = &shard->chunk;
    struct rs_recording_event *place =
        (struct rs_recording_event *)(void *)(chunk->bytes + sizeof(struct rs_recording_header) +
                                              chunk->used_bytes);
    uint64_t ticks = rs_recording_clock_ticks(recorder->ring.first.begun_ticks);

    place->address = event->address;
    place->thread_and_size =
        here.thread_number | (uint64_t)rs_min(event->size_bytes, SIZE_BYTES_MAX)
                                 << RS_RECORDING_THREAD_BITS;
    place->site_or_name = event->site;
    place->stack = (uint16_t)event->stack;
    place->stream = stream;
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile uint64_t *)&place->kind_and_ticks =
        (uint64_t)event->kind | ticks << RS_RECORDING_KIND_BITS;
    rs_recording_ring_grew(&recorder->ring, chunk, chunk->used_bytes, sizeof(*place));
    chunk->used_bytes += sizeof(*place);
    if (chunk->used_bytes <= TIMES_EVERY || chunk->used_bytes % TIMES_EVERY == 0)
        rs_recording_ring_note_time(&recorder->ring, chunk);
}

void rs_recorder_put(struct rs_recorder *recorder, const struct rs_recorder_event *event)
{
    struct shard *shard = &recorder->shards[rs_thread_index() % SHARDS];
    uint16_t stream;

    if (!rs_recorder_is_on(recorder))
        return;
    if (!enter()) {
        atomic_fetch_add_explicit(&recorder->ring.missed_events, 1, memory_order_relaxed);
        return;
    }
    if (RS_UNLIKELY(here.recorder != recorder))
        know_thread(recorder);
    stream = number_of_stream(recorder, event->stream);
    rs_spinlock_lock(&shard->lock);
    if ((RS_LIKELY(shard->chunk.bytes &&
                   shard->chunk.used_bytes + sizeof(struct rs_recording_event) <=
                       RS_RECORDING_CONTENT_BYTES)) ||
        renew(recorder, shard))
        append(recorder, shard, event, stream);
    rs_spinlock_unlock(&shard->lock);
    leave();
}

/* FNV-1a: a name's definition is found by its text. */
static uint64_t hash_of(const char *text, size_t length_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < length_bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    return hash;
}

/* As lines of call sites: one line of at most so many bytes. */
static size_t printable(const char *name, char text[RS_LINE_BYTES_MAX])
{
    size_t length_bytes = rs_min(strlen(name), RS_LINE_BYTES_MAX);

    for (size_t i = 0; i < length_bytes; i++)
        text[i] = (unsigned char)name[i] < ' ' ? '?' : name[i];
    return length_bytes;
}

bool rs_recorder_mark(enum rs_recording_event_kind kind, const char *name)
{
    char text[RS_LINE_BYTES_MAX];
    size_t length_bytes = 0;
    bool any = false;

    for (struct rs_recorder *at = atomic_load(&recorders); at && at->ring.owner; at = at->next) {
        if (!rs_recorder_is_on(at))
            continue;
        if (!any)
            length_bytes = printable(name, text);
        rs_recorder_put(at, &(struct rs_recorder_event){.kind = kind,
                                                        .site = define(at, RS_RECORDING_NAME,
                                                                       hash_of(text, length_bytes),
                                                                       0, text, length_bytes)});
        any = true;
    }
    return any;
}

/* ---- beginning and end ---- */

static struct rs_recorder *make(const char *path, size_t size_bytes)
{
    struct rs_recorder *recorder = rs_map_zeroed(sizeof(*recorder));
    int result;

    if (!recorder)
        return NULL;
    (void)madvise(recorder, sizeof(*recorder), MADV_WIPEONFORK);
    recorder->ring.owner = getpid();
    snprintf(recorder->path, sizeof(recorder->path), "%s", path);
    rs_mutex_init(&recorder->lock, RS_RANK_RESOURCE_PART);
    for (unsigned i = 0; i < SHARDS; i++)
        rs_spinlock_init(&recorder->shards[i].lock, RS_RANK_RESOURCE);
    result = rs_definitions_make(&recorder->definitions)
                 ? rs_recording_ring_open(&recorder->ring, recorder->path, size_bytes)
                 : -ENOMEM;
    if (result != 0) {
        rs_log("recording: %s: cannot be opened: %s; nothing is recorded", path, strerror(-result));
        return recorder;
    }
    (void)define(recorder, RS_RECORDING_PROCESS, 0, (uint64_t)getpid(),
                 program_invocation_short_name, strlen(program_invocation_short_name));
    return recorder;
}

static struct rs_recorder *find_path(const char *path)
{
    struct rs_recorder *recorder = atomic_load(&recorders);

    while (recorder && strcmp(recorder->path, path) != 0)
        recorder = recorder->next;
    return recorder;
}

struct rs_recorder *rs_recorder_get(const char *path, size_t size_bytes)
{
    struct rs_recorder *recorder;

    rs_mutex_lock(&list_lock);
    recorder = find_path(path);
    if (!recorder) {
        recorder = make(path, size_bytes);
        if (recorder) {
            recorder->next = atomic_load(&recorders);
            atomic_store(&recorders, recorder);
        }
    }
    rs_mutex_unlock(&list_lock);
    return recorder;
}

/* Other threads go on to record meanwhile.  A shard whose lock is not to be had stays in the part,
 * with the whole part, for readers. */
static bool finish(struct rs_recorder *recorder)
{
    bool is_whole = true;

    if (!rs_mutex_lock_bounded(&recorder->lock, recorder->path))
        return false;
    recorder->is_ending = true;
    rs_mutex_unlock(&recorder->lock);
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &recorder->shards[i];
        if (!rs_spinlock_lock_bounded(&shard->lock, recorder->path)) {
            is_whole = false;
            continue;
        }
        if (rs_mutex_lock_bounded(&recorder->lock, recorder->path)) {
            finish_shard(recorder, shard);
            rs_mutex_unlock(&recorder->lock);
        } else {
            is_whole = false;
        }
        rs_spinlock_unlock(&shard->lock);
    }
    return is_whole;
}

static void end(struct rs_recorder *recorder)
{
    if (!finish(recorder) || !rs_mutex_lock_bounded(&recorder->lock, recorder->path))
        return;
    if (rs_recorder_is_on(recorder)) {
        if (recorder->definitions.chunk.bytes)
            rs_recording_ring_finish(&recorder->ring, &recorder->definitions.chunk);
        rs_recording_ring_close(&recorder->ring);
    }
    rs_mutex_unlock(&recorder->lock);
}

void rs_recorder_end(void)
{
    for (struct rs_recorder *at = atomic_load(&recorders); at && at->ring.owner; at = at->next) {
        if (!enter())
            continue; /* the signal's handler that ends the process interrupted this code */
        end(at);
        leave();
    }
}
