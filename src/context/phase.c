/* SPDX-License-Identifier: Apache-2.0 */
#include "context/phase.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "context/block_counts.h"
#include "context/context.h"
#include "context/limit.h"
#include "ledger/account.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { BUCKETS = 256, OWNERS = 8 /* with phases too deep, of one thread */ };

/* Mapped, not allocated: only the pages of devices in use take memory. */
struct name {
    char text[RS_PHASE_NAME_BYTES];
    struct name *next_in_bucket;
    uint64_t entries, open, unended;
    struct rs_phase_memory ended[RS_DEVICES_MAX][RS_KINDS]; /* of the entries that have ended */
};

/* What was counted of one kind of memory on one device when a phase began, and the peaks since, up
 * to the last restart.  All zero is right for memory that nobody had used then. */
struct measure {
    size_t begin_live_bytes, peak_live_bytes;
    uint64_t begin_entered_bytes, begin_entered;
    int64_t thread_begin_live_bytes, thread_peak_live_bytes;
    uint64_t thread_begin_entered_bytes, thread_begin_entered;
};

struct open_phase {
    struct open_phase *next, *previous; /* of all threads */
    struct open_phase *around;          /* of the same thread */
    struct name *name;
    const void *owner;
    unsigned thread_index;
    size_t peak_charged_bytes[RS_DEVICES_MAX];
    struct measure measures[RS_DEVICES_MAX][RS_KINDS];
};

/* All under rs_peak_lock. */
static struct name *names[RS_PHASE_NAMES];
static unsigned name_count;
static struct name *buckets[BUCKETS];
static struct open_phase *open_phases;

/* The calling thread's phases. */
static __thread struct {
    struct open_phase *innermost;
    unsigned depth;
    struct too_deep {
        const void *owner;
        unsigned
            count; /* begun inside RS_PHASE_DEPTH others, so not measured; 0: the place is free */
    } too_deep[OWNERS];
} mine;

/* ---- what is counted; the caller holds the lock from here on ---- */

static struct measure *measure_of(struct open_phase *phase, enum rs_kind kind, int device)
{
    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    return &phase->measures[device][kind];
}

static void raise_to(size_t *peak, size_t value)
{
    *peak = rs_max(*peak, value);
}

/* Called by whoever restarts the peaks. */
static void raise_all(struct rs_peak_watch *watch, enum rs_kind kind, int device,
                      struct rs_block_peaks peaks)
{
    (void)watch;
    for (struct open_phase *phase = open_phases; phase; phase = phase->next)
        raise_to(&measure_of(phase, kind, device)->peak_live_bytes, peaks.live_bytes);
}

static struct rs_peak_watch watch = {.raise = raise_all};

static bool is_counted(enum rs_kind kind, int device)
{
    return rs_block_counts_devices(kind) >> device & 1;
}

static struct rs_account *charged_account(int device)
{
    struct rs_account *account = rs_limit_account(device);

    return account && atomic_load_explicit(&account->peak_charged_bytes, memory_order_relaxed)
               ? account
               : NULL;
}

static void restart_thread(enum rs_kind kind, int device, unsigned index)
{
    int64_t peak = rs_block_counts_restart_thread(kind, device, index).peak_live_bytes;

    for (struct open_phase *phase = open_phases; phase; phase = phase->next) {
        struct measure *measure = measure_of(phase, kind, device);
        if (phase->thread_index == index && measure->thread_peak_live_bytes < peak)
            measure->thread_peak_live_bytes = peak;
    }
}

static void restart_charged(int device)
{
    struct rs_account *account = charged_account(device);
    size_t peak = account ? rs_account_restart_peak(account) : 0;

    for (struct open_phase *phase = open_phases; account && phase; phase = phase->next)
        raise_to(&phase->peak_charged_bytes[device], peak);
}

/* Peaks are restarted, so that the phase's begin at what is live now. */
static void begin_measure(struct open_phase *phase, enum rs_kind kind, int device)
{
    struct rs_block_thread_counts thread;
    struct rs_block_counts all;

    rs_peaks_restart(kind, device);
    restart_thread(kind, device, phase->thread_index);
    all = rs_block_counts(kind, device);
    thread = rs_block_counts_thread(kind, device, phase->thread_index);
    *measure_of(phase, kind, device) = (struct measure){
        .begin_live_bytes = all.live_bytes,
        .peak_live_bytes = all.live_bytes,
        .begin_entered_bytes = all.entered_bytes,
        .begin_entered = all.entered,
        .thread_begin_live_bytes = thread.live_bytes,
        .thread_peak_live_bytes = thread.live_bytes,
        .thread_begin_entered_bytes = thread.entered_bytes,
        .thread_begin_entered = thread.entered,
    };
}

static void begin_measures(struct open_phase *phase)
{
    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        restart_charged(device);
        for (enum rs_kind kind = 0; kind < RS_KINDS; kind++)
            if (is_counted(kind, device))
                begin_measure(phase, kind, device);
    }
}

static void count_thread(const struct open_phase *phase, const struct measure *measure,
                         struct rs_block_thread_counts now, struct rs_phase_memory *counted)
{
    int64_t peak = measure->thread_peak_live_bytes;

    RS_ASSERT(phase->thread_index < RS_THREAD_INDEXES);
    if (now.peak_live_bytes > peak)
        peak = now.peak_live_bytes;
    if (peak > measure->thread_begin_live_bytes)
        counted->thread_peak_bytes = (size_t)(peak - measure->thread_begin_live_bytes);
    counted->thread_entered_bytes = now.entered_bytes - measure->thread_begin_entered_bytes;
    counted->thread_entered_blocks = now.entered - measure->thread_begin_entered;
}

static struct rs_phase_memory measured(struct open_phase *phase, enum rs_kind kind, int device)
{
    const struct measure *measure = measure_of(phase, kind, device);
    struct rs_account *account = kind == RS_KIND_DEVICE ? charged_account(device) : NULL;
    struct rs_phase_memory counted = {.peak_bytes = 0};

    if (is_counted(kind, device)) {
        struct rs_block_counts now = rs_block_counts(kind, device);
        size_t most = rs_max(measure->peak_live_bytes, now.recent_peak_live_bytes);
        counted.peak_live_bytes = most;
        counted.peak_bytes = most - rs_min(measure->begin_live_bytes, most);
        counted.entered_bytes = now.entered_bytes - measure->begin_entered_bytes;
        counted.entered_blocks = now.entered - measure->begin_entered;
        count_thread(phase, measure, rs_block_counts_thread(kind, device, phase->thread_index),
                     &counted);
    }
    if (account)
        counted.peak_charged_bytes =
            rs_max(phase->peak_charged_bytes[device], atomic_load(&account->recent_peak_bytes));
    return counted;
}

static void add(struct rs_phase_memory *sum, struct rs_phase_memory one)
{
    raise_to(&sum->peak_bytes, one.peak_bytes);
    raise_to(&sum->peak_live_bytes, one.peak_live_bytes);
    raise_to(&sum->thread_peak_bytes, one.thread_peak_bytes);
    raise_to(&sum->peak_charged_bytes, one.peak_charged_bytes);
    sum->entered_bytes += one.entered_bytes;
    sum->entered_blocks += one.entered_blocks;
    sum->thread_entered_bytes += one.thread_entered_bytes;
    sum->thread_entered_blocks += one.thread_entered_blocks;
}

static void end_measures(struct open_phase *phase)
{
    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (enum rs_kind kind = 0; kind < RS_KINDS; kind++)
            if (is_counted(kind, device) || (kind == RS_KIND_DEVICE && charged_account(device)))
                add(&phase->name->ended[device][kind], measured(phase, kind, device));
}

/* ---- names ---- */

static unsigned bucket_of(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash % BUCKETS;
}

static struct name *find_name(const char *text)
{
    struct name *name = buckets[bucket_of(text)];

    while (name && strcmp(name->text, text) != 0)
        name = name->next_in_bucket;
    return name;
}

static void add_name(struct name *name)
{
    unsigned bucket = bucket_of(name->text);

    RS_ASSERT(name_count < RS_PHASE_NAMES);
    name->next_in_bucket = buckets[bucket];
    buckets[bucket] = name;
    names[name_count++] = name;
}

static struct name *make_name(const char *text)
{
    struct name *name = rs_map_zeroed(sizeof(*name));

    RS_ASSERT(strlen(text) < sizeof(name->text));
    if (!name)
        return NULL;
    memcpy(name->text, text, strlen(text) + 1);
    add_name(name);
    return name;
}

static struct name *get_name(const char *text)
{
    struct name *name = find_name(text);

    if (!name && name_count >= RS_PHASE_NAMES - 1) {
        text = RS_PHASE_OTHERS;
        name = find_name(text);
    }
    return name ? name : make_name(text);
}

/* Cuts no character of UTF-8 in two. */
static void copy_name(char text[RS_PHASE_NAME_BYTES], const char *name)
{
    size_t length = strnlen(name, RS_PHASE_NAME_BYTES);

    if (length == RS_PHASE_NAME_BYTES) {
        length--;
        while (length > 0 && ((unsigned char)name[length] & 0xc0) == 0x80)
            length--;
    }
    for (size_t i = 0; i < length; i++)
        text[i] = (unsigned char)name[i] < ' ' || name[i] == 0x7f ? ' ' : name[i];
    text[length] = '\0';
}

/* ---- begin and end ---- */

static void link_phase(struct open_phase *phase)
{
    RS_ASSERT_HELD(&rs_peak_lock);
    if (!open_phases)
        rs_peak_watch_begin(&watch);
    phase->previous = NULL;
    phase->next = open_phases;
    if (open_phases)
        open_phases->previous = phase;
    open_phases = phase;
    phase->name->open++;
}

static void unlink_phase(struct open_phase *phase)
{
    RS_ASSERT_HELD(&rs_peak_lock);
    RS_ASSERT(phase->name->open > 0);
    RS_ASSERT((phase->previous ? phase->previous->next : open_phases) == phase);
    *(phase->previous ? &phase->previous->next : &open_phases) = phase->next;
    if (phase->next)
        phase->next->previous = phase->previous;
    phase->name->open--;
    if (!open_phases)
        rs_peak_watch_end(&watch);
}

/* Takes the phase at *place out of the thread's. */
static void end_phase(struct open_phase **place, bool is_unended)
{
    struct open_phase *phase = *place;

    RS_ASSERT(mine.depth > 0);
    *place = phase->around;
    mine.depth--;
    rs_mutex_lock(&rs_peak_lock);
    end_measures(phase);
    phase->name->unended += is_unended;
    unlink_phase(phase);
    rs_mutex_unlock(&rs_peak_lock);
    free(phase);
}

/* ---- the end of a thread ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;
static pid_t
    process; /* a child of a raw clone() is another one: there the lock may be held for ever
              */

/* Does nothing the second time: it is called while the thread still has its index, and, where the
 * thread has none of its own, by the key. */
static void end_of_thread(void)
{
    while (mine.innermost && getpid() == process)
        end_phase(&mine.innermost, true);
    memset(mine.too_deep, 0, sizeof(mine.too_deep));
}

static void end_by_key(void *data)
{
    (void)data;
    end_of_thread();
}

static void make_key(void)
{
    process = getpid();
    has_key = pthread_key_create(&key, end_by_key) == 0;
    rs_thread_index_at_end(end_of_thread);
}

/* False when the end of the thread would not be noticed. */
static bool is_end_noticed(void)
{
    pthread_once(&once, make_key);
    return has_key && pthread_setspecific(key, &mine) == 0;
}

/* ---- for others ---- */

/* The caller holds the lock.  NULL: no memory for a new name. */
static struct name *enter_name(const char *text)
{
    struct name *name;

    RS_ASSERT_HELD(&rs_peak_lock);
    name = get_name(text);
    if (name)
        name->entries++;
    return name;
}

/* NULL: the owner has none that are too deep. */
static struct too_deep *too_deep_of(const void *owner)
{
    for (int i = 0; i < OWNERS; i++)
        if (mine.too_deep[i].count > 0 && mine.too_deep[i].owner == owner)
            return &mine.too_deep[i];
    return NULL;
}

static struct too_deep *make_too_deep(const void *owner)
{
    for (int i = 0; i < OWNERS; i++)
        if (mine.too_deep[i].count == 0) {
            mine.too_deep[i].owner = owner;
            return &mine.too_deep[i];
        }
    return NULL;
}

static int push_too_deep(const char *text, const void *owner)
{
    struct too_deep *too_deep = too_deep_of(owner);
    struct name *name;

    if (!too_deep)
        too_deep = make_too_deep(owner);
    if (!too_deep)
        return -ENOMEM;
    rs_mutex_lock(&rs_peak_lock);
    name = enter_name(text);
    rs_mutex_unlock(&rs_peak_lock);
    too_deep->count += name != NULL;
    return name ? 0 : -ENOMEM;
}

static bool enter_phase(struct open_phase *phase, const char *text)
{
    rs_mutex_lock(&rs_peak_lock);
    phase->name = enter_name(text);
    if (phase->name) {
        begin_measures(phase);
        link_phase(phase);
    }
    rs_mutex_unlock(&rs_peak_lock);
    return phase->name != NULL;
}

int rs_phase_push(const char *name, const void *owner, const char **entered)
{
    char text[RS_PHASE_NAME_BYTES];
    struct open_phase *phase;

    *entered = NULL;
    copy_name(text, name);
    /* Inside one that is too deep, as a pop ends the latest one. */
    if (mine.depth == RS_PHASE_DEPTH || too_deep_of(owner))
        return push_too_deep(text, owner);
    phase = is_end_noticed() ? calloc(1, sizeof(*phase)) : NULL;
    if (!phase)
        return -ENOMEM;
    phase->owner = owner;
    phase->thread_index = rs_thread_index();
    if (!enter_phase(phase, text)) {
        free(phase);
        return -ENOMEM;
    }
    phase->around = mine.innermost;
    mine.innermost = phase;
    mine.depth++;
    *entered = phase->name->text;
    return 0;
}

int rs_phase_pop(const void *owner, const char **name)
{
    struct open_phase **place = &mine.innermost;
    struct too_deep *too_deep = too_deep_of(owner);

    *name = NULL;
    if (too_deep) {
        too_deep->count--;
        return 0;
    }
    while (*place && (*place)->owner != owner)
        place = &(*place)->around;
    if (!*place)
        return -ERANGE;
    *name = (*place)->name->text;
    end_phase(place, false);
    return 0;
}

/* The caller holds the lock. */
static struct rs_phase_memory sum_of(const struct name *name, enum rs_kind kind, int device)
{
    struct rs_phase_memory sum = name->ended[device][kind];

    for (struct open_phase *phase = open_phases; phase; phase = phase->next)
        if (phase->name == name)
            add(&sum, measured(phase, kind, device));
    return sum;
}

bool rs_phase_get(unsigned index, enum rs_kind kind, int device, struct rs_phase *phase,
                  struct rs_phase_memory *memory)
{
    bool is_there;

    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    if (!rs_mutex_lock_bounded(&rs_peak_lock, "phases"))
        return false;
    is_there = index < name_count;
    if (is_there) {
        const struct name *name = names[index];
        *phase = (struct rs_phase){name->text, name->entries, name->open, name->unended};
        if (memory)
            *memory = sum_of(name, kind, device);
    }
    rs_mutex_unlock(&rs_peak_lock);
    return is_there;
}

static void forget_ended_peaks(enum rs_kind kind, int device)
{
    for (unsigned i = 0; i < name_count; i++) {
        struct rs_phase_memory *ended = &names[i]->ended[device][kind];
        ended->peak_bytes = ended->peak_live_bytes = 0;
        ended->thread_peak_bytes = ended->peak_charged_bytes = 0;
    }
}

/* Each thread's peak is restarted before the process's, as rs_block_counts_thread asks for. */
static void forget_open_peaks(enum rs_kind kind, int device)
{
    for (struct open_phase *phase = open_phases; phase; phase = phase->next)
        restart_thread(kind, device, phase->thread_index);
    rs_peaks_restart(kind, device);
    for (struct open_phase *phase = open_phases; phase; phase = phase->next) {
        struct measure *measure = measure_of(phase, kind, device);
        measure->peak_live_bytes = rs_block_counts(kind, device).live_bytes;
        measure->thread_peak_live_bytes =
            rs_block_counts_thread(kind, device, phase->thread_index).live_bytes;
    }
}

void rs_phase_reset_peaks(enum rs_kind kind, int device)
{
    rs_mutex_lock(&rs_peak_lock);
    forget_ended_peaks(kind, device);
    if (is_counted(kind, device))
        forget_open_peaks(kind, device);
    if (kind == RS_KIND_DEVICE) {
        restart_charged(device);
        for (struct open_phase *phase = open_phases; phase; phase = phase->next)
            phase->peak_charged_bytes[device] = 0;
    }
    rs_mutex_unlock(&rs_peak_lock);
}

static void begin_name_anew(struct name *name)
{
    if (!find_name(name->text)) {
        name->entries = name->open = name->unended = 0;
        memset(name->ended, 0, sizeof(name->ended));
        add_name(name);
    }
    name->entries++;
}

static void begin_phase_anew(struct open_phase *phase)
{
    memset(phase->measures, 0, sizeof(phase->measures));
    memset(phase->peak_charged_bytes, 0, sizeof(phase->peak_charged_bytes));
    begin_name_anew(phase->name);
    link_phase(phase);
}

/* The other threads are not in the child, and the lock, the links and the table of names may be as
 * one of them had left them.  The counters begin anew, so the phases and their names do.  Names
 * that nobody enters any more stay mapped: somebody may have been told of them. */
void rs_phase_forked(void)
{
    struct open_phase *own[RS_PHASE_DEPTH];
    unsigned count = 0;

    rs_peak_watches_forget();
    process = getpid();
    open_phases = NULL;
    name_count = 0;
    memset(buckets, 0, sizeof(buckets));
    for (struct open_phase *phase = mine.innermost; phase; phase = phase->around)
        own[count++] = phase;
    RS_ASSERT(count == mine.depth);
    rs_mutex_lock(&rs_peak_lock);
    while (count > 0) /* the outermost first, as they were entered */
        begin_phase_anew(own[--count]);
    rs_mutex_unlock(&rs_peak_lock);
}
