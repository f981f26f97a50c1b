/* SPDX-License-Identifier: Apache-2.0 */
#include "recording/recorder.h"

#include "base/check.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/thread.h"
#include "recording/file.h"
#include "trace/call_site.h"
#include "trace/object.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    TEXT_BYTES_MAX = 4096, /* of a definition */
    THREAD_NAME_BYTES = 16,
    SITE_FRAMES_MAX = 64,
    SETS = 512, /* of pairs: 2,000 call sites in 32 KiB */
};

#define SIZE_MOST (((uint64_t)1 << RS_RECORDING_SIZE_BITS) - 1)
#define TIME_MOST (((uint64_t)1 << RS_RECORDING_TIME_BITS) - 1)

/* What threads with one index (base/thread.h) write to. Several threads may share index 0, and use
 * the lock. */
struct slot {
    _Alignas(2 * RS_CACHE_LINE) struct rs_recording_event *next,
        *end;          /* equal: the chunk is full, or not begun */
    uint64_t sequence; /* of the chunk */
    uint64_t last_ns;
    struct rs_recording_chunk *chunk; /* NULL: not begun */
    struct rs_spinlock lock;
};

/* The recorder is in memory that the kernel zeroes in a child after fork. */
struct recorder {
    _Atomic bool on;
    bool is_ended; /* no chunk begins any more */
    uint64_t begun_ns;
    struct rs_mutex lock; /* protects the file, and the fields below */
    struct rs_recording_file file;
    struct rs_hash_table numbers;                                 /* of definitions, by key */
    _Alignas(RS_CACHE_LINE) struct rs_pair found[SETS][RS_PAIRS]; /* a cache, without lock */
    uint32_t last_number;
    struct rs_recording_chunk *definitions; /* NULL: none, or full */
    size_t definitions_used;                /* bytes of its content */
    struct slot slots[RS_THREAD_INDEXES];
    char path[PATH_MAX];
};

static struct rs_mutex beginning = RS_MUTEX_INIT(RS_RANK_RESOURCE);
RS_RESET_IN_CHILD(recording, beginning);
static _Atomic(struct recorder *) the_recorder;

/* `inside` is true while the thread is in this file. A signal handler that interrupts it there sees
 * that, and does not wait for a lock that its own thread holds. */
static __thread struct {
    bool inside;
    uint32_t thread; /* its ID; 0: not defined yet */
} here;

/* Returns NULL when the process is not recorded. */
static struct recorder *recorder_now(void)
{
    struct recorder *recorder = atomic_load_explicit(&the_recorder, memory_order_acquire);

    return recorder && atomic_load_explicit(&recorder->on, memory_order_relaxed) ? recorder : NULL;
}

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

/* ---- definitions ---- */

static bool has_room(struct recorder *recorder, size_t bytes)
{
    size_t room = RS_RECORDING_CHUNK_BYTES - sizeof(struct rs_recording_chunk);

    if (recorder->definitions && bytes <= room - recorder->definitions_used)
        return true;
    if (recorder->is_ended)
        return false;
    if (recorder->definitions)
        rs_recording_file_changed(&recorder->file, recorder->definitions, RS_RECORDING_CHUNK_BYTES);
    recorder->definitions = rs_recording_file_begin(&recorder->file, RS_RECORDING_DEFINITIONS);
    recorder->definitions_used = 0;
    return recorder->definitions != NULL;
}

static uint32_t append_definition(struct recorder *recorder, enum rs_recording_definition_kind kind,
                                  uint64_t value, const void *text, size_t text_bytes)
{
    size_t bytes = sizeof(struct rs_recording_definition) + ((text_bytes + 7) & ~(size_t)7);
    struct rs_recording_definition *definition;

    RS_ASSERT(text_bytes <= TEXT_BYTES_MAX);
    if (!has_room(recorder, bytes)) {
        rs_recording_file_header(&recorder->file)->lost_definitions++;
        return 0;
    }
    definition = (struct rs_recording_definition *)(void *)((char *)(recorder->definitions + 1) +
                                                            recorder->definitions_used);
    definition->number = recorder->last_number + 1;
    definition->kind = (uint16_t)kind;
    definition->text_bytes = (uint16_t)text_bytes;
    definition->value = value;
    if (text_bytes)
        memcpy(definition + 1, text, text_bytes);
    rs_recording_commit(&definition->check,
                        rs_recording_definition_check(definition, recorder->definitions->sequence));
    rs_recording_file_changed(&recorder->file, definition, bytes);
    recorder->definitions_used += bytes;
    return ++recorder->last_number;
}

static uint32_t number_of(const struct recorder *recorder, const void *key)
{
    return (uint32_t)(uintptr_t)rs_hash_get(&recorder->numbers, (uintptr_t)key);
}

static uint32_t define_inside(struct recorder *recorder, enum rs_recording_definition_kind kind,
                              const void *key, uint64_t value, const void *text, size_t text_bytes)
{
    uint32_t number;

    RS_ASSERT(here.inside);
    rs_mutex_lock(&recorder->lock);
    number = key ? number_of(recorder, key) : 0;
    if (!number && (!key || rs_hash_reserve(&recorder->numbers, 1))) {
        number = append_definition(recorder, kind, value, text, rs_min(text_bytes, TEXT_BYTES_MAX));
        if (key && number)
            (void)rs_hash_put(&recorder->numbers, (uintptr_t)key, (void *)(uintptr_t)number);
    }
    rs_mutex_unlock(&recorder->lock);
    return number;
}

uint32_t rs_recorder_define(enum rs_recording_definition_kind kind, const void *key, uint64_t value,
                            const void *text, size_t text_bytes)
{
    struct recorder *recorder = recorder_now();
    uint32_t number;

    if (!recorder || !enter())
        return 0;
    number = define_inside(recorder, kind, key, value, text, text_bytes);
    leave();
    return number;
}

/* ---- call sites ---- */

static uint32_t known(const void *key)
{
    struct recorder *recorder = recorder_now();
    uint64_t word = (uintptr_t)key, mixed = word * 0x9e3779b97f4a7c15u >> 32;
    struct rs_pair *set;
    uint32_t number;

    if (!recorder)
        return 0;
    set = recorder->found[mixed % SETS];
    number = (uint32_t)rs_pair_find(set, word);
    if (RS_LIKELY(number))
        return number;
    if (!enter())
        return 0;
    rs_mutex_lock(&recorder->lock);
    number = number_of(recorder, key);
    rs_mutex_unlock(&recorder->lock);
    leave();
    if (number)
        rs_pair_enter(set, (unsigned)(mixed / SETS), word, number);
    return number;
}

/* Returns the number of the address's definition. Symbols are read without the recorder's lock,
 * since that takes some 10 to 100 us. */
static uint32_t frame_of_address(const void *address)
{
    uint32_t number = known(address);
    struct rs_symbol symbol;
    char text[2 * RS_SYMBOL_NAME_BYTES + 64];

    if (number)
        return number;
    rs_symbol_describe(address, false, &symbol);
    if (symbol.function[0])
        snprintf(text, sizeof(text), "%s+%#zx (%s+%#zx)", symbol.function,
                 (size_t)symbol.function_offset, symbol.object, (size_t)symbol.object_offset);
    else
        snprintf(text, sizeof(text), "%s+%#zx", symbol.object, (size_t)symbol.object_offset);
    return rs_recorder_define(RS_RECORDING_FRAME, address, 0, text, strlen(text));
}

uint32_t rs_recorder_site(const struct rs_call_site *site)
{
    uint32_t frames[SITE_FRAMES_MAX], number;
    unsigned count = 0;

    if (!site || !recorder_now())
        return 0;
    number = known(site);
    if (number)
        return number;
    for (unsigned i = 0; i < site->line_count && count < SITE_FRAMES_MAX; i++) {
        const struct rs_line *line = rs_site_line(site, i);
        frames[count++] =
            rs_recorder_define(RS_RECORDING_FRAME, line, 1, line->text, line->once.bytes);
    }
    for (unsigned i = 0; i < site->frame_count && count < SITE_FRAMES_MAX; i++)
        frames[count++] = frame_of_address(site->frames[i]);
    return rs_recorder_define(RS_RECORDING_SITE, site, 0, frames, count * sizeof(*frames));
}

/* ---- events ---- */

RS_COLD static void define_thread(struct recorder *recorder)
{
    char name[THREAD_NAME_BYTES + 1] = "";

    here.thread = (uint32_t)rs_process_thread();
    (void)prctl(PR_GET_NAME, name);
    (void)define_inside(recorder, RS_RECORDING_THREAD, NULL, here.thread, name, strlen(name));
}

/* Called when the slot's chunk is full, or has not begun. Returns false, and counts the event as
 * lost, when there is no chunk for it. */
RS_COLD static bool renew(struct recorder *recorder, struct slot *slot)
{
    struct rs_recording_chunk *chunk = NULL;

    rs_mutex_lock(&recorder->lock);
    if (!recorder->is_ended) {
        if (slot->chunk)
            rs_recording_file_renew(&recorder->file, slot->chunk);
        else
            slot->chunk = rs_recording_file_begin(&recorder->file, RS_RECORDING_EVENTS);
        chunk = slot->chunk;
    }
    if (!chunk)
        rs_recording_file_header(&recorder->file)->lost_events++;
    rs_mutex_unlock(&recorder->lock);
    if (!chunk)
        return false;
    slot->sequence = chunk->sequence;
    slot->next = (struct rs_recording_event *)(void *)(chunk + 1);
    slot->end = slot->next + RS_RECORDING_EVENTS_EACH;
    return true;
}

/* Returns the time since the recording began, by the program's clock itself: rs_clock_ns takes
 * longer, and may be ahead of it by another time in each thread. */
static uint64_t now_of(const struct recorder *recorder)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - recorder->begun_ns;
}

/* Returns now_ns, or least_ns if the clock has gone back. */
RS_HOT_INLINE uint64_t at_least(uint64_t now_ns, uint64_t least_ns)
{
    return RS_UNLIKELY(now_ns > TIME_MOST || now_ns < least_ns) ? least_ns : now_ns;
}

/* Puts an event into the slot, with its check and the time, which is at most `most_ns`. `append`
 * and `put` are inlined into rs_record. The clock is read when most values are stored, so that few
 * of them must be kept during that call. */
RS_HOT_INLINE void append(const struct recorder *recorder, struct slot *slot,
                          struct rs_recording_event event, uint64_t most_ns)
{
    struct rs_recording_event *place = slot->next;
    uint64_t sum = rs_recording_event_sum(&event, slot->sequence);

    place->address = event.address;
    place->thread = event.thread;
    place->definition = event.definition;
    place->place = event.place;
    slot->last_ns = at_least(rs_min(now_of(recorder), most_ns), slot->last_ns);
    place->size_and_check = event.size_and_check | rs_recording_check_of_sum(sum ^ slot->last_ns)
                                                       << RS_RECORDING_SIZE_BITS;
    rs_recording_commit(&place->time_and_kind, event.time_and_kind | slot->last_ns);
    slot->next = place + 1;
}

RS_HOT_INLINE void put(struct recorder *recorder, struct slot *slot,
                       struct rs_recording_event event)
{
    uint64_t most_ns = UINT64_MAX;

    if (RS_UNLIKELY(slot->next == slot->end)) {
        most_ns = now_of(recorder); /* before the full chunk is copied, which may take long */
        if (!renew(recorder, slot))
            return;
    }
    append(recorder, slot, event, most_ns);
}

/* Has the event itself and no pointer to it, so that rs_record may keep it in registers. */
RS_COLD static void put_shared(struct recorder *recorder, struct rs_recording_event event)
{
    struct slot *slot = &recorder->slots[RS_THREAD_INDEX_SHARED];

    rs_spinlock_lock(&slot->lock);
    put(recorder, slot, event);
    rs_spinlock_unlock(&slot->lock);
}

RS_COLD static void count_missed(struct recorder *recorder)
{
    __atomic_fetch_add(&rs_recording_file_header(&recorder->file)->missed_events, 1,
                       __ATOMIC_RELAXED);
}

void rs_record(enum rs_recording_event_kind kind, uint64_t address, size_t size_bytes,
               uint64_t place, uint32_t definition)
{
    struct recorder *recorder = recorder_now();
    struct rs_recording_event event;
    unsigned index;

    if (!recorder)
        return;
    if (!enter()) {
        count_missed(recorder);
        return;
    }
    if (RS_UNLIKELY(!here.thread))
        define_thread(recorder);
    index = rs_thread_index();
    event = (struct rs_recording_event){
        .time_and_kind = (uint64_t)kind << RS_RECORDING_TIME_BITS,
        .address = address,
        .size_and_check = rs_min(size_bytes, SIZE_MOST),
        .thread = here.thread,
        .definition = definition,
        .place = place,
    };
    if (RS_LIKELY(index != RS_THREAD_INDEX_SHARED))
        put(recorder, &recorder->slots[index], event);
    else
        put_shared(recorder, event);
    leave();
}

bool rs_recorder_mark(enum rs_recording_event_kind kind, const char *name, bool is_kept)
{
    if (!recorder_now())
        return false;
    rs_record(kind, 0, 0, 0,
              rs_recorder_define(RS_RECORDING_NAME, is_kept ? name : NULL, 0, name, strlen(name)));
    return true;
}

uint64_t rs_recorder_new_stack(void)
{
    static _Atomic uint64_t stacks;

    return atomic_fetch_add(&stacks, 1) % RS_RECORDING_STACKS << RS_RECORDING_STACK_SHIFT;
}

/* ---- beginning and end ---- */

static void define_process(void)
{
    char text[RS_PROCESS_TEXT_BYTES];
    const char *name = program_invocation_short_name, *rank = rs_process_rank();
    ssize_t length;

    (void)rs_recorder_define(RS_RECORDING_PROGRAM, NULL, (uint64_t)getpid(), name, strlen(name));
    if (gethostname(text, sizeof(text)) == 0)
        (void)rs_recorder_define(RS_RECORDING_HOST, NULL, 0, text, strnlen(text, sizeof(text)));
    if (*rank)
        (void)rs_recorder_define(RS_RECORDING_RANK, NULL, 0, rank, strlen(rank));
    length = rs_file_text("/proc/self/cmdline", text, sizeof(text));
    if (length > 1)
        (void)rs_recorder_define(RS_RECORDING_COMMAND, NULL, 0, text, (size_t)length - 1);
}

static struct recorder *make(const char *path, size_t size_bytes)
{
    struct recorder *recorder = rs_map_zeroed(sizeof(*recorder));
    int result;

    if (!recorder)
        return NULL;
    snprintf(recorder->path, sizeof(recorder->path), "%s", path);
    rs_mutex_init(&recorder->lock, RS_RANK_RESOURCE_PART);
    for (unsigned i = 0; i < RS_THREAD_INDEXES; i++)
        rs_spinlock_init(&recorder->slots[i].lock, RS_RANK_RESOURCE);
    result = rs_recording_file_open(&recorder->file, path, size_bytes);
    if (result != 0) {
        rs_log("RMM_RECORD: %s: the file cannot be opened: %s; nothing is recorded", path,
               strerror(-result));
        return recorder;
    }
    if (strcmp(recorder->file.output.path, path) != 0)
        rs_log("RMM_RECORD: %s is another process's recording, so this process writes to %s", path,
               recorder->file.output.path);
    recorder->begun_ns = rs_recording_file_header(&recorder->file)->begun_ns;
    rs_leak_roots_add(recorder, sizeof(*recorder)); /* the table of numbers is from the heap */
    if (madvise(recorder, sizeof(*recorder), MADV_WIPEONFORK) == 0)
        (void)madvise(recorder->file.bytes, recorder->file.mapped_bytes, MADV_DONTFORK);
    atomic_store(&recorder->on, true);
    return recorder;
}

bool rs_recorder_begin(const char *path, size_t size_bytes)
{
    struct recorder *recorder;
    bool is_begun = false, is_this;

    rs_mutex_lock(&beginning);
    recorder = atomic_load(&the_recorder);
    if (!recorder) {
        recorder = make(path, size_bytes);
        is_begun = recorder && recorder->on;
        atomic_store_explicit(&the_recorder, recorder, memory_order_release);
    }
    is_this = recorder && strcmp(recorder->path, path) == 0;
    rs_mutex_unlock(&beginning);
    if (is_begun)
        define_process();
    else if (recorder && recorder->path[0] && !is_this)
        rs_log(
            "RMM_RECORD: a process writes only one recording, here %s: nothing is recorded in %s",
            recorder->path, path);
    return is_this && recorder->on;
}

void rs_recorder_end(void)
{
    struct recorder *recorder = recorder_now();

    /* If enter() fails, the signal handler that ends the process has interrupted this code. */
    if (!recorder || !enter())
        return;
    if (rs_mutex_lock_bounded(&recorder->lock, "recording")) {
        if (!recorder->is_ended) {
            recorder->is_ended = true;
            rs_recording_file_end(&recorder->file, at_least(now_of(recorder), 0));
        }
        rs_mutex_unlock(&recorder->lock);
    }
    leave();
}
