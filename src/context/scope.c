/* SPDX-License-Identifier: Apache-2.0 */
#include "context/scope.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "ledger/account.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Phases that are begun inside RS_PHASE_DEPTH others are only counted, by owner. Each thread can
 * count them for this many owners. */
enum { OWNERS = 8 };

/* What was counted of one kind of memory on one device when a level or phase began, and the peaks
 * from then until the last restart of the block counts. All zero is right for memory that nobody
 * had used then. */
struct scope {
    size_t begin_live_bytes, begin_live_blocks;
    uint64_t begin_entered_bytes, begin_entered;
    struct rs_block_peaks peaks;
};

struct level {
    struct scope scope;
    struct level *around;
};

/* What a phase notes of one kind of memory on one device: for the whole process (scope), and for
 * the thread that began the phase. */
struct measure {
    struct scope scope;
    int64_t thread_begin_live_bytes, thread_peak_live_bytes;
    uint64_t thread_begin_entered_bytes, thread_begin_entered;
};

/* A name of phases, with what they counted. It is mapped and not allocated, so that only the pages
 * for devices in use take memory. */
struct name {
    char text[RS_PHASE_NAME_BYTES];
    uint64_t entries, open, unended;
    struct rmmshim_phase ended[RS_DEVICES_MAX]
                              [RS_KINDS]; /* sums over the phases of this name that have ended */
};

struct open_phase {
    struct open_phase *next;   /* the next open phase, of any thread */
    struct open_phase *around; /* the phase of the same thread inside which this one was begun */
    struct name *name;
    const void *owner;
    unsigned thread_index;
    size_t peak_charged_bytes[RS_DEVICES_MAX];
    struct measure measures[RS_DEVICES_MAX][RS_KINDS];
};

/* Protects everything below, except for each thread's own `mine`. No counter is made under it
 * (rs_block_counter). */
static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(context_scope, lock);

static struct level *innermost[RS_KINDS][RS_DEVICES_MAX];
static struct name *names[RS_PHASE_NAMES];
static uint32_t name_hashes[RS_PHASE_NAMES]; /* so that a search compares few of the names */
static unsigned name_count;
static struct open_phase *open_phases;

/* The calling thread's phases. */
static __thread struct {
    struct open_phase *innermost;
    unsigned depth;
    struct too_deep {
        const void *owner;
        /* Phases begun inside RS_PHASE_DEPTH others, and so not measured; 0: the place is free. */
        unsigned count;
    } too_deep[OWNERS];
} mine;

/* ---- what is counted; the caller holds the lock ---- */

static struct measure *measure_of(struct open_phase *phase, enum rs_kind kind, int device)
{
    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    return &phase->measures[device][kind];
}

static void raise_size(size_t *peak, size_t value)
{
    *peak = rs_max(*peak, value);
}

static void raise_scope(struct scope *scope, struct rs_block_peaks peaks)
{
    raise_size(&scope->peaks.live_bytes, peaks.live_bytes);
    raise_size(&scope->peaks.live_blocks, peaks.live_blocks);
}

/* Restarts the peaks of the block counts, and notes the old ones in all levels and open phases. */
static void restart_peaks(enum rs_kind kind, int device, bool forgets)
{
    struct rs_block_peaks peaks = rs_block_counts_restart(kind, device, forgets);

    RS_ASSERT_HELD(&lock);
    for (struct level *level = innermost[kind][device]; level; level = level->around)
        raise_scope(&level->scope, peaks);
    for (struct open_phase *phase = open_phases; phase; phase = phase->next)
        raise_scope(&measure_of(phase, kind, device)->scope, peaks);
}

/* Begins a scope. Restarts the peaks, so that the scope's own peaks begin at what is live now. */
static struct scope begin_scope(enum rs_kind kind, int device)
{
    struct rs_block_counts now;

    restart_peaks(kind, device, false);
    now = rs_block_counts(kind, device);
    return (struct scope){now.live_bytes,
                          now.live_blocks,
                          now.entered_bytes,
                          now.entered,
                          {now.live_bytes, now.live_blocks}};
}

/* ---- levels ---- */

/* Makes the counter, which must not be made under the lock, and returns the lock. */
static struct rs_mutex *lock_of(enum rs_kind kind, int device)
{
    (void)rs_block_counter(kind, device);
    return &lock;
}

/* Returns by how much the peak exceeds what was live when the scope began; at least 0, as in RMM.
 * `now` counts as a peak too, since more may be live than when the peak was read. */
static uint64_t above(size_t begin, size_t peak, size_t now)
{
    size_t most = rs_max(peak, now);

    return most - rs_min(begin, most);
}

static struct rmmshim_counters count_level(const struct scope *scope, struct rs_block_counts now)
{
    return (struct rmmshim_counters){
        .used_bytes = (int64_t)(now.live_bytes - scope->begin_live_bytes),
        .peak_used_bytes =
            (int64_t)above(scope->begin_live_bytes, scope->peaks.live_bytes, now.live_bytes),
        .allocated_bytes = (int64_t)(now.entered_bytes - scope->begin_entered_bytes),
        .used_blocks = (int64_t)(now.live_blocks - scope->begin_live_blocks),
        .peak_used_blocks =
            (int64_t)above(scope->begin_live_blocks, scope->peaks.live_blocks, now.live_blocks),
        .allocations = (int64_t)(now.entered - scope->begin_entered),
    };
}

/* Returns the counts of the innermost level; without a level, those since the process began. */
static struct rmmshim_counters count_innermost(enum rs_kind kind, int device)
{
    const struct level *level = innermost[kind][device];
    struct rs_block_counts now;

    if (level)
        restart_peaks(kind, device, false);
    now = rs_block_counts(kind, device);
    return count_level(level
                           ? &level->scope
                           : &(struct scope){.peaks = {now.peak_live_bytes, now.peak_live_blocks}},
                       now);
}

void rs_count_levels_get(enum rs_kind kind, int device, struct rmmshim_counters *counters)
{
    RS_MUTEX_GUARD(lock_of(kind, device));

    *counters = count_innermost(kind, device);
}

int rs_count_levels_push(enum rs_kind kind, int device)
{
    struct level *pushed = malloc(sizeof(*pushed));

    if (!pushed)
        return -ENOMEM;
    RS_MUTEX_GUARD(lock_of(kind, device));
    *pushed = (struct level){begin_scope(kind, device), innermost[kind][device]};
    innermost[kind][device] = pushed;
    return 0;
}

int rs_count_levels_pop(enum rs_kind kind, int device, struct rmmshim_counters *counters)
{
    RS_MUTEX_GUARD(lock_of(kind, device));
    struct level *popped = innermost[kind][device];

    if (!popped)
        return -ERANGE;
    *counters = count_innermost(kind, device);
    innermost[kind][device] = popped->around;
    free(popped);
    return 0;
}

void rs_count_levels_reset_peaks(enum rs_kind kind, int device)
{
    RS_MUTEX_GUARD(lock_of(kind, device));

    restart_peaks(kind, device, true);
}

/* ---- what a phase counts; the caller holds the lock ---- */

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
        raise_size(&phase->peak_charged_bytes[device], peak);
}

static void begin_measure(struct open_phase *phase, enum rs_kind kind, int device)
{
    struct measure *measure = measure_of(phase, kind, device);
    struct rs_block_thread_counts thread;

    measure->scope = begin_scope(kind, device);
    restart_thread(kind, device, phase->thread_index);
    thread = rs_block_counts_thread(kind, device, phase->thread_index);
    measure->thread_begin_live_bytes = measure->thread_peak_live_bytes = thread.live_bytes;
    measure->thread_begin_entered_bytes = thread.entered_bytes;
    measure->thread_begin_entered = thread.entered;
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

static void count_thread(struct rmmshim_phase *counted, const struct measure *measure,
                         struct rs_block_thread_counts now)
{
    int64_t peak = measure->thread_peak_live_bytes;

    if (now.peak_live_bytes > peak)
        peak = now.peak_live_bytes;
    if (peak > measure->thread_begin_live_bytes)
        counted->thread_peak_bytes = (uint64_t)(peak - measure->thread_begin_live_bytes);
    counted->thread_allocated_bytes = now.entered_bytes - measure->thread_begin_entered_bytes;
    counted->thread_allocations = now.entered - measure->thread_begin_entered;
}

static struct rmmshim_phase measured(struct open_phase *phase, enum rs_kind kind, int device)
{
    const struct measure *measure = measure_of(phase, kind, device);
    const struct scope *scope = &measure->scope;
    struct rs_account *account = kind == RS_KIND_DEVICE ? charged_account(device) : NULL;
    struct rmmshim_phase counted = {.peak_bytes = 0};

    if (is_counted(kind, device)) {
        struct rs_block_counts now = rs_block_counts(kind, device);
        counted.peak_used_bytes = rs_max(scope->peaks.live_bytes, now.recent_peak_live_bytes);
        counted.peak_bytes = above(scope->begin_live_bytes, counted.peak_used_bytes, 0);
        counted.allocated_bytes = now.entered_bytes - scope->begin_entered_bytes;
        counted.allocations = now.entered - scope->begin_entered;
        count_thread(&counted, measure, rs_block_counts_thread(kind, device, phase->thread_index));
    }
    if (account)
        counted.peak_charged_bytes =
            rs_max(phase->peak_charged_bytes[device], atomic_load(&account->recent_peak_bytes));
    return counted;
}

static void add_memory(struct rmmshim_phase *sum, struct rmmshim_phase one)
{
    raise_size(&sum->peak_bytes, one.peak_bytes);
    raise_size(&sum->peak_used_bytes, one.peak_used_bytes);
    raise_size(&sum->thread_peak_bytes, one.thread_peak_bytes);
    raise_size(&sum->peak_charged_bytes, one.peak_charged_bytes);
    sum->allocated_bytes += one.allocated_bytes;
    sum->allocations += one.allocations;
    sum->thread_allocated_bytes += one.thread_allocated_bytes;
    sum->thread_allocations += one.thread_allocations;
}

static void end_measures(struct open_phase *phase)
{
    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (enum rs_kind kind = 0; kind < RS_KINDS; kind++)
            if (is_counted(kind, device) || (kind == RS_KIND_DEVICE && charged_account(device)))
                add_memory(&phase->name->ended[device][kind], measured(phase, kind, device));
}

/* ---- names ---- */

static uint32_t name_hash(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

static struct name *find_name(const char *text)
{
    uint32_t hash = name_hash(text);

    for (unsigned i = 0; i < name_count; i++)
        if (name_hashes[i] == hash && strcmp(names[i]->text, text) == 0)
            return names[i];
    return NULL;
}

static void add_name(struct name *name)
{
    RS_ASSERT(name_count < RS_PHASE_NAMES);
    name_hashes[name_count] = name_hash(name->text);
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

/* Copies a phase's name, and cuts it if it is too long, but never inside a UTF-8 character. Control
 * characters become blanks. */
static void copy_phase_name(char text[RS_PHASE_NAME_BYTES], const char *name)
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
    RS_ASSERT_HELD(&lock);
    phase->next = open_phases;
    open_phases = phase;
    phase->name->open++;
}

static void unlink_phase(struct open_phase *phase)
{
    struct open_phase **link = &open_phases;

    RS_ASSERT_HELD(&lock);
    RS_ASSERT(phase->name->open > 0);
    while (*link != phase)
        link = &(*link)->next;
    *link = phase->next;
    phase->name->open--;
}

/* Ends the phase at *place, removes it from the lists of its thread and of all threads, and frees
 * it. */
static void end_phase(struct open_phase **place, bool is_unended)
{
    struct open_phase *phase = *place;

    RS_ASSERT(mine.depth > 0);
    *place = phase->around;
    mine.depth--;
    RS_MUTEX_GUARD(&lock);
    end_measures(phase);
    phase->name->unended += is_unended;
    unlink_phase(phase);
    free(phase);
}

/* ---- the end of a thread ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;
/* The process that made the key. A child of a raw clone() has another id and must not take the
 * lock, which a thread of the parent may hold for ever. */
static pid_t process;

/* Ends all phases of a thread that ends. A thread with an index calls this while it still owns the
 * index (rs_thread_index_at_end). The key's destructor calls it too, for threads without an index;
 * for other threads nothing is left to end then. */
static void end_phases_of_thread(void)
{
    while (mine.innermost && getpid() == process)
        end_phase(&mine.innermost, true);
    memset(mine.too_deep, 0, sizeof(mine.too_deep));
}

static void end_by_key(void *data)
{
    (void)data;
    end_phases_of_thread();
}

static void make_thread_key(void)
{
    process = getpid();
    has_key = pthread_key_create(&key, end_by_key) == 0;
    rs_thread_index_at_end(end_phases_of_thread);
}

/* Has end_phases_of_thread run at the thread's end. Returns false when that is impossible. */
static bool is_end_noticed(void)
{
    pthread_once(&once, make_thread_key);
    return has_key && pthread_setspecific(key, &mine) == 0;
}

/* ---- push and pop ---- */

/* Returns the struct of a name, made if need be, and counts one more entry of it. NULL when out of
 * host memory. The caller holds the lock. */
static struct name *enter_name(const char *text)
{
    struct name *name = find_name(text);

    RS_ASSERT_HELD(&lock);
    if (!name && name_count >= RS_PHASE_NAMES - 1) {
        text = RS_PHASE_OTHERS;
        name = find_name(text);
    }
    if (name || (name = make_name(text)))
        name->entries++;
    return name;
}

/* Returns where the owner's too deep phases are counted in this thread. If the owner has none,
 * returns a free place with `make`, else NULL. NULL also when no place is free. */
static struct too_deep *too_deep_of(const void *owner, bool make)
{
    struct too_deep *place = NULL;

    for (int i = 0; i < OWNERS; i++) {
        if (mine.too_deep[i].count > 0 && mine.too_deep[i].owner == owner)
            return &mine.too_deep[i];
        if (mine.too_deep[i].count == 0)
            place = &mine.too_deep[i];
    }
    return make ? place : NULL;
}

static int push_too_deep(const char *text, const void *owner)
{
    struct too_deep *too_deep = too_deep_of(owner, true);
    struct name *name;

    if (!too_deep)
        return -ENOMEM;
    RS_MUTEX_GUARD(&lock);
    name = enter_name(text);
    too_deep->owner = owner;
    too_deep->count += name != NULL;
    return name ? 0 : -ENOMEM;
}

static bool enter_phase(struct open_phase *phase, const char *text)
{
    RS_MUTEX_GUARD(&lock);

    phase->name = enter_name(text);
    if (!phase->name)
        return false;
    begin_measures(phase);
    link_phase(phase);
    return true;
}

int rs_phase_push(const char *name, const void *owner, const char **entered)
{
    char text[RS_PHASE_NAME_BYTES];
    struct open_phase *phase;

    *entered = NULL;
    copy_phase_name(text, name);
    /* While the owner has a phase that is too deep, its next ones count as too deep as well, since
     * a pop must end the latest one. */
    if (mine.depth == RS_PHASE_DEPTH || too_deep_of(owner, false))
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
    struct too_deep *too_deep = too_deep_of(owner, false);

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
static struct rmmshim_phase sum_of_name(const struct name *name, enum rs_kind kind, int device)
{
    struct rmmshim_phase sum = name->ended[device][kind];

    for (struct open_phase *phase = open_phases; phase; phase = phase->next)
        if (phase->name == name)
            add_memory(&sum, measured(phase, kind, device));
    sum.name = name->text;
    sum.entries = name->entries;
    sum.open = name->open;
    sum.unended = name->unended;
    return sum;
}

bool rs_phase_get(unsigned index, enum rs_kind kind, int device, struct rmmshim_phase *phase)
{
    bool is_there;

    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    if (!rs_mutex_lock_bounded(&lock, "phases"))
        return false;
    is_there = index < name_count;
    if (is_there)
        *phase = sum_of_name(names[index], kind, device);
    rs_mutex_unlock(&lock);
    return is_there;
}

static void forget_ended_peaks(enum rs_kind kind, int device)
{
    for (unsigned i = 0; i < name_count; i++) {
        struct rmmshim_phase *ended = &names[i]->ended[device][kind];
        ended->peak_bytes = ended->peak_used_bytes = 0;
        ended->thread_peak_bytes = ended->peak_charged_bytes = 0;
    }
}

/* Restarts the peaks of open phases. Each thread's peak is restarted before the process's, since
 * rs_block_counts_thread may take the process's peak for the thread's. */
static void forget_open_peaks(enum rs_kind kind, int device)
{
    for (struct open_phase *phase = open_phases; phase; phase = phase->next)
        restart_thread(kind, device, phase->thread_index);
    restart_peaks(kind, device, false);
    for (struct open_phase *phase = open_phases; phase; phase = phase->next) {
        struct measure *measure = measure_of(phase, kind, device);
        measure->scope.peaks.live_bytes = rs_block_counts(kind, device).live_bytes;
        measure->thread_peak_live_bytes =
            rs_block_counts_thread(kind, device, phase->thread_index).live_bytes;
    }
}

void rs_phase_reset_peaks(enum rs_kind kind, int device)
{
    RS_MUTEX_GUARD(&lock);

    forget_ended_peaks(kind, device);
    if (is_counted(kind, device))
        forget_open_peaks(kind, device);
    if (kind == RS_KIND_DEVICE) {
        restart_charged(device);
        for (struct open_phase *phase = open_phases; phase; phase = phase->next)
            phase->peak_charged_bytes[device] = 0;
    }
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

/* At the fork, another thread of the parent may have been changing the links and the table of
 * names, so both are made anew. The fork handlers have reset the lock. Names of the parent stay
 * mapped, since the program may still have pointers to them. */
void rs_scopes_forked(void)
{
    struct open_phase *own[RS_PHASE_DEPTH];
    unsigned count = 0;

    memset(innermost, 0, sizeof(innermost));
    process = getpid();
    open_phases = NULL;
    name_count = 0;
    for (struct open_phase *phase = mine.innermost; phase; phase = phase->around)
        own[count++] = phase;
    RS_ASSERT(count == mine.depth);
    RS_MUTEX_GUARD(&lock);
    while (count > 0) /* the outermost phase first, in the order in which they were begun */
        begin_phase_anew(own[--count]);
}
