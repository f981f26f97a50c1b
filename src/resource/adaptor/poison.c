/* SPDX-License-Identifier: Apache-2.0 */
/* poison: fills blocks and puts guards around them, to find a program's memory errors.
 *
 * A block lies between two guards of known bytes, which are checked when the block is freed.  A new
 * block is filled with a pattern, by default one that is NaN as half, bfloat16, float and double.
 * A freed block is filled with another pattern and kept for a while.  It is checked when it is
 * handed out again or goes upstream: a byte that has changed was written after the free.
 *
 * poison stands below `reuse`, so a block comes back to it when no GPU work uses the block any
 * more.  Its fills and copies go through the library's own stream of the context, so it does not
 * wait for the program's work, except for a bounded time if streams share a channel. */
#include "resource/adaptor/poison.h"

#include "base/lock.h"
#include "base/log.h"
#include "driver/driver.h"
#include "driver/stream.h"
#include "resource/record_slab.h"
#include "resource/report.h"
#include "trace/call_site.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    GUARD_BYTE = 0xfb,
    /* The bytes that are compared at a time, in a pinned buffer.  A copy to pageable memory would
     * wait. */
    CHECK_BYTES = 1 << 20,
    KEPT_MAX = 1024, /* the most freed blocks that are kept */
    NAP_NS = 20 * 1000,
    /* How often an allocation is tried again after kept blocks went upstream. */
    RETRIES_MAX = 100,
};

static const unsigned GUARD_PATTERN = GUARD_BYTE * 0x01010101u;

struct poison_config {
    size_t guard, keep;
    uint64_t fill_allocated, fill_freed;
    int on_error;
};

enum { ON_ERROR_REPORT, ON_ERROR_ABORT };

static const char *const on_error_words[] = {"report", "abort", NULL};

/* The record of a live or kept block, which is the token of a live one. */
struct record {
    struct record *before, *after; /* neighbours in the ring of live blocks, or of kept ones */
    struct rs_allocation upstream; /* upstream's block, with the guards */
    size_t size_bytes : 63;        /* the size asked of this resource */
    size_t is_guarded : 1; /* the block could be filled at its allocation, and at its free */
    /* The call site that allocated the block last; NULL: not known. */
    const struct rs_call_site *site;
};

_Static_assert(sizeof(struct record) <= RS_RECORD_BYTES, "a block's record is a slab's record");

struct poison {
    struct rs_mr base;
    struct poison_config set;

    struct rs_mutex copy_lock; /* protects the buffer */
    void *buffer;              /* pinned memory of CHECK_BYTES; NULL: it was not needed yet */

    /* Protected by the lock, under which no driver call is made. */
    struct rs_record_slab records;
    struct record live, kept; /* the heads of the rings; `kept` begins with the oldest block */
    /* Written under the lock, also read without it (base/lock.h). */
    _Atomic size_t kept_bytes, kept_count;
    size_t leaving_count; /* kept blocks on their way upstream */

    _Atomic uint64_t before_count, after_count, freed_count, unchecked_count;
};

/* ---- rings; the caller holds the lock ---- */

static void ring_add(struct record *ring, struct record *record)
{
    record->before = ring->before;
    record->after = ring;
    record->before->after = record;
    ring->before = record;
}

static void ring_remove(struct record *record)
{
    record->before->after = record->after;
    record->after->before = record->before;
}

/* ---- fills and copies of device memory, through the library's own stream ---- */

/* A visit: the driver calls between begin_visit and end_visit.  The context is current there, and
 * no capture of the program is invalidated. */
struct visit {
    CUstreamCaptureMode mode;
    bool entered;
    CUstream stream;
    bool is_pending; /* work was begun for which the visit has not waited yet */
    CUresult result; /* the first error, after which the visit begins no work */
};

struct difference {
    bool found;
    size_t at;
    unsigned char value;
};

static const uint64_t fill_ns = 15ull * 1000 * 1000 * 1000;

static struct visit begin_visit(const struct rs_environment *environment)
{
    struct visit visit = {.mode = rs_capture_relax()};

    visit.entered = rs_driver_context_enter(environment->context, &visit.result);
    if (visit.result != CUDA_SUCCESS)
        return visit;
    visit.stream = rs_own_stream(environment->own_stream, environment->context);
    if (!visit.stream)
        visit.result = CUDA_ERROR_OUT_OF_MEMORY;
    return visit;
}

/* Waits for the work that the visit has begun.  The wait is bounded, since the stream may share a
 * channel with work that waits for this thread.  If it takes too long, visit->result becomes
 * CUDA_ERROR_OUT_OF_MEMORY, unless it has an earlier error. */
static void wait_for_visit(struct visit *visit)
{
    CUresult waited = CUDA_SUCCESS;

    if (visit->is_pending && !rs_own_stream_settle(visit->stream, fill_ns))
        waited = rs_driver.cuStreamQuery(visit->stream);
    visit->is_pending = false;
    if (visit->result == CUDA_SUCCESS)
        visit->result = waited == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : waited;
}

/* Waits for the work that was begun, even after an error, and undoes begin_visit.  Returns the
 * first error of the visit, or CUDA_SUCCESS. */
static CUresult end_visit(struct visit *visit)
{
    wait_for_visit(visit);
    rs_driver_context_leave(visit->entered);
    rs_capture_restore(visit->mode);
    return visit->result;
}

static void fill_bytes(struct visit *visit, CUdeviceptr address, unsigned char value, size_t bytes)
{
    if (visit->result != CUDA_SUCCESS || bytes == 0)
        return;
    visit->is_pending = true;
    visit->result = rs_driver.cuMemsetD8Async(address, value, bytes, visit->stream);
}

/* Returns the byte at the offset `at` of memory that is filled with a pattern, in little-endian
 * order. */
static unsigned char pattern_byte(unsigned pattern, size_t at)
{
    return (unsigned char)(pattern >> 8 * (at % sizeof(pattern)));
}

/* Fills memory with a 32-bit pattern.  The bytes need not be a multiple of 4. */
static void fill_words(struct visit *visit, CUdeviceptr address, unsigned pattern, size_t bytes)
{
    size_t whole_bytes = rs_round_down(bytes, sizeof(pattern));

    if (visit->result == CUDA_SUCCESS && whole_bytes > 0) {
        visit->is_pending = true;
        visit->result = rs_driver.cuMemsetD32Async(address, pattern, whole_bytes / sizeof(pattern),
                                                   visit->stream);
    }
    for (size_t i = whole_bytes; i < bytes; i++)
        fill_bytes(visit, address + i, pattern_byte(pattern, i), 1);
}

/* Finds the first byte that differs from the pattern, in host memory. */
static struct difference compare(const unsigned char *bytes, unsigned pattern, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != pattern_byte(pattern, i))
            return (struct difference){true, i, bytes[i]};
    return (struct difference){false, 0, 0};
}

/* Finds the first byte that differs from the pattern, in device memory, which it copies into the
 * buffer piece by piece.  Finds none if visit->result is an error. */
static struct difference find_difference(struct poison *poison, struct visit *visit,
                                         CUdeviceptr address, unsigned pattern, size_t bytes)
{
    struct difference difference = {false, 0, 0};

    RS_MUTEX_GUARD(&poison->copy_lock);
    if (visit->result == CUDA_SUCCESS && !poison->buffer)
        visit->result =
            rs_driver.cuMemHostAlloc(&poison->buffer, CHECK_BYTES, CU_MEMHOSTALLOC_PORTABLE);
    for (size_t done = 0, part; done < bytes && !difference.found; done += part) {
        part = rs_min(bytes - done, CHECK_BYTES);
        if (visit->result == CUDA_SUCCESS) {
            visit->is_pending = true;
            visit->result =
                rs_driver.cuMemcpyDtoHAsync_v2(poison->buffer, address + done, part, visit->stream);
        }
        wait_for_visit(visit);
        if (visit->result != CUDA_SUCCESS)
            break;
        difference = compare(poison->buffer, pattern, part);
        difference.at += done;
    }
    return difference;
}

/* ---- findings ---- */

static CUdeviceptr address_of(const struct poison *poison, const struct record *record)
{
    return record->upstream.address + poison->set.guard;
}

_Atomic unsigned rs_poison_count;

enum { SITE_BYTES = 640 }; /* room for the text about a call site */

static void say(struct poison *poison, const struct record *record, const char *what,
                long long offset, unsigned char value, _Atomic uint64_t *counter)
{
    char site[SITE_BYTES];

    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    rs_site_describe(record->site, site, sizeof(site));
    rs_log(
        "poison: device %d: block %#llx of %zu bytes: the program wrote %s: byte %lld is %#04x%s",
        (int)poison->base.environment->device, (unsigned long long)address_of(poison, record),
        (size_t)record->size_bytes, what, offset, value, site);
    if (poison->set.on_error == ON_ERROR_ABORT)
        abort();
}

void rs_poison_say_freed(const struct rs_poisoned *block, const char *how)
{
    char site[SITE_BYTES];

    rs_site_describe(block->site, site, sizeof(site));
    rs_log("poison: device %d: block %#llx of %zu bytes %s%s", block->device,
           (unsigned long long)block->address, block->size_bytes, how, site);
    if (block->aborts)
        abort();
}

/* Returns the record of the block that begins at the address; NULL if the ring has none.  The
 * caller holds the lock. */
static const struct record *find_in_ring(const struct poison *poison, const struct record *ring,
                                         CUdeviceptr address)
{
    const struct record *record = ring->after;

    while (record != ring && address_of(poison, record) != address)
        record = record->after;
    return record == ring ? NULL : record;
}

bool rs_poison_find(struct rs_mr *mr, CUdeviceptr address, struct rs_poisoned *found)
{
    struct poison *poison = RS_MR_AS(poison, mr);
    const struct record *record = NULL;

    if (mr->descriptor == &rs_mr_descriptor_poison) {
        rs_mutex_lock(&mr->lock);
        record = find_in_ring(poison, &poison->live, address);
        if (!record)
            record = find_in_ring(poison, &poison->kept, address);
        if (record)
            *found = (struct rs_poisoned){(int)mr->environment->device, address, record->size_bytes,
                                          record->site, poison->set.on_error == ON_ERROR_ABORT};
        rs_mutex_unlock(&mr->lock);
    }
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i] && !record; i++)
        if (rs_poison_find(mr->upstream[i], address, found))
            return true;
    return record;
}

/* If `result` is an error, counts a block that could not be filled or checked.  Nothing is logged:
 * if the context is broken, the program's next call returns the error. */
static void count_unchecked(struct poison *poison, CUresult result)
{
    if (result != CUDA_SUCCESS)
        atomic_fetch_add_explicit(&poison->unchecked_count, 1, memory_order_relaxed);
}

/* Called at a block's free: checks its guards, and fills it with the pattern for freed memory. */
static void end_use(struct poison *poison, struct record *record)
{
    size_t guard_bytes = record->is_guarded ? poison->set.guard : 0;
    CUdeviceptr block = address_of(poison, record);
    struct visit visit = begin_visit(poison->base.environment);
    struct difference before, after;
    CUresult result;

    fill_words(&visit, block, (unsigned)poison->set.fill_freed, record->size_bytes);
    before = find_difference(poison, &visit, record->upstream.address, GUARD_PATTERN, guard_bytes);
    after = find_difference(poison, &visit, block + record->size_bytes, GUARD_PATTERN, guard_bytes);
    result = end_visit(&visit);
    record->is_guarded &= result == CUDA_SUCCESS;
    count_unchecked(poison, result);
    if (before.found)
        say(poison, record, "before the block's beginning",
            (long long)before.at - (long long)poison->set.guard, before.value,
            &poison->before_count);
    if (after.found)
        say(poison, record, "past the block's end",
            (long long)record->size_bytes + (long long)after.at, after.value, &poison->after_count);
}

/* Checks that nobody wrote into a kept block, before it is handed out or goes upstream. */
static void check_freed(struct poison *poison, const struct record *record)
{
    struct difference difference;
    struct visit visit;

    if (!record->is_guarded)
        return;
    visit = begin_visit(poison->base.environment);
    difference = find_difference(poison, &visit, address_of(poison, record),
                                 (unsigned)poison->set.fill_freed, record->size_bytes);
    count_unchecked(poison, end_visit(&visit));
    if (difference.found)
        say(poison, record, "into the freed block", (long long)difference.at, difference.value,
            &poison->freed_count);
}

/* Fills a new block and its guards.  In a kept block the guards may have changed after they were
 * checked, so they are filled again. */
static void fill_allocated(struct poison *poison, struct record *record)
{
    CUdeviceptr block = address_of(poison, record);
    struct visit visit = begin_visit(poison->base.environment);
    CUresult result;

    fill_bytes(&visit, record->upstream.address, GUARD_BYTE, poison->set.guard);
    fill_words(&visit, block, (unsigned)poison->set.fill_allocated, record->size_bytes);
    fill_bytes(&visit, block + record->size_bytes, GUARD_BYTE, poison->set.guard);
    result = end_visit(&visit);
    record->is_guarded = result == CUDA_SUCCESS;
    count_unchecked(poison, result);
}

/* ---- kept blocks ---- */

/* Takes a kept block out of its ring.  The caller holds the lock. */
static struct record *unkeep_locked(struct poison *poison, struct record *record)
{
    ring_remove(record);
    rs_counter_subtract(&poison->kept_bytes, record->upstream.size_bytes);
    rs_counter_subtract(&poison->kept_count, 1);
    return record;
}

static void keep_locked(struct poison *poison, struct record *record)
{
    ring_add(&poison->kept, record);
    rs_counter_add(&poison->kept_bytes, record->upstream.size_bytes);
    rs_counter_add(&poison->kept_count, 1);
}

/* If more than keep_bytes or more than keep_count blocks are kept, takes the oldest block, which
 * then goes upstream.  Otherwise returns NULL. */
static struct record *take_oldest(struct poison *poison, size_t keep_bytes, size_t keep_count)
{
    RS_MUTEX_GUARD(&poison->base.lock);
    struct record *record = NULL;

    if (poison->kept_bytes > keep_bytes || poison->kept_count > keep_count) {
        record = unkeep_locked(poison, poison->kept.after);
        poison->leaving_count++;
        rs_account_begin_return(poison->base.environment->account, record->upstream.size_bytes);
    }
    return record;
}

/* Gives a block of take_oldest upstream.  Returns its bytes.  Returns 0 when upstream refuses the
 * block, which is then kept again. */
static size_t give_upstream(struct poison *poison, struct record *record)
{
    size_t bytes = record->upstream.size_bytes;
    CUresult result;

    check_freed(poison, record);
    result = rs_mr_deallocate(poison->base.upstream[0], &record->upstream, NULL);
    RS_MUTEX_GUARD(&poison->base.lock);
    poison->leaving_count--;
    if (result == CUDA_SUCCESS)
        rs_record_slab_give(&poison->records, record);
    else
        keep_locked(poison, record);
    rs_account_end_return(poison->base.environment->account, bytes);
    return result == CUDA_SUCCESS ? bytes : 0;
}

/* Gives the oldest kept blocks upstream until at most keep_bytes and keep_count blocks are kept, or
 * upstream refuses a block.  Returns the bytes given back. */
static size_t keep_only(struct poison *poison, size_t keep_bytes, size_t keep_count)
{
    struct record *record;
    size_t total = 0, bytes;

    while ((record = take_oldest(poison, keep_bytes, keep_count))) {
        bytes = give_upstream(poison, record);
        if (bytes == 0)
            break;
        total += bytes;
    }
    return total;
}

/* Gives all kept blocks upstream, after upstream was out of memory.  If there are none, waits a
 * moment for those that other threads are giving upstream.  True when another try may succeed. */
static bool give_kept_back(struct poison *poison)
{
    size_t leaving;

    if (keep_only(poison, 0, 0) > 0)
        return true;
    rs_mutex_lock(&poison->base.lock);
    leaving = poison->leaving_count;
    rs_mutex_unlock(&poison->base.lock);
    if (leaving > 0)
        rs_nap(NAP_NS);
    return leaving > 0;
}

/* Takes the oldest kept block of exactly this size.  Returns NULL if there is none. */
static struct record *take_kept_block(struct poison *poison, size_t total_bytes)
{
    RS_MUTEX_GUARD(&poison->base.lock);

    for (struct record *record = poison->kept.after; record != &poison->kept;
         record = record->after)
        if (record->upstream.size_bytes == total_bytes)
            return unkeep_locked(poison, record);
    return NULL;
}

/* Takes a record.  When out of host memory, gives kept blocks upstream to get one of their records.
 * Returns NULL when no block is kept either. */
static struct record *take_record(struct poison *poison)
{
    struct record *record = rs_record_slab_take_alone(&poison->records, &poison->base.lock),
                  *oldest;

    while (!record && (oldest = take_oldest(poison, 0, 0)) && give_upstream(poison, oldest) > 0)
        record = rs_record_slab_take_alone(&poison->records, &poison->base.lock);
    return record;
}

/* ---- allocation ---- */

static CUresult take_upstream(struct poison *poison, size_t total_bytes, CUstream stream,
                              enum rs_effort effort, struct record **out)
{
    struct record *record = take_record(poison);
    struct rs_mr *upstream = poison->base.upstream[0];
    unsigned tries = 0;
    CUresult result;

    if (!record)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_mr_allocate_with(upstream, total_bytes, stream, effort, &record->upstream);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && tries++ < RETRIES_MAX && give_kept_back(poison))
        result = rs_mr_allocate_with(upstream, total_bytes, stream, effort, &record->upstream);
    if (result != CUDA_SUCCESS)
        rs_record_slab_give_alone(&poison->records, &poison->base.lock, record);
    else
        *out = record;
    return result;
}

static CUresult poison_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                enum rs_effort effort, struct rs_allocation *out)
{
    struct poison *poison = RS_MR_AS(poison, mr);
    struct record *record;
    size_t total_bytes;
    CUresult result;

    if (__builtin_add_overflow(size_bytes, 2 * poison->set.guard, &total_bytes))
        return rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY);
    record = take_kept_block(poison, total_bytes);
    if (record) {
        check_freed(poison, record);
    } else {
        result = take_upstream(poison, total_bytes, stream, effort, &record);
        if (result != CUDA_SUCCESS)
            return rs_effort_result(effort, result);
    }
    record->size_bytes = size_bytes;
    record->site = rs_call_site_here();
    fill_allocated(poison, record);
    RS_MUTEX_GUARD(&poison->base.lock);
    ring_add(&poison->live, record);
    *out = (struct rs_allocation){address_of(poison, record), size_bytes, record, NULL};
    return CUDA_SUCCESS;
}

static CUresult poison_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                  CUstream stream)
{
    struct poison *poison = RS_MR_AS(poison, mr);
    struct record *record = allocation->token;

    (void)stream;
    end_use(poison, record);
    rs_mutex_lock(&poison->base.lock);
    ring_remove(record);
    keep_locked(poison, record);
    rs_mutex_unlock(&poison->base.lock);
    /* The result does not matter: a block that upstream refuses stays kept. */
    (void)keep_only(poison, poison->set.keep, KEPT_MAX);
    return CUDA_SUCCESS;
}

/* ---- the rest of the resource ---- */

static size_t poison_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    size_t returned_bytes = keep_only(RS_MR_AS(poison, mr), trim->keep_bytes, KEPT_MAX);

    return returned_bytes + rs_mr_trim_with(mr->upstream[0], trim);
}

static size_t poison_idle_bytes(struct rs_mr *mr)
{
    return rs_counter_get(&RS_MR_AS(poison, mr)->kept_bytes);
}

static size_t poison_free_blocks(struct rs_mr *mr)
{
    return rs_counter_get(&RS_MR_AS(poison, mr)->kept_count);
}

static const struct rs_counter_row poison_counters[] = {
    RS_COUNTER_ROW("written_before", TOTAL, COUNT, struct poison, before_count),
    RS_COUNTER_ROW("written_past_end", TOTAL, COUNT, struct poison, after_count),
    RS_COUNTER_ROW("written_after_free", TOTAL, COUNT, struct poison, freed_count),
    RS_COUNTER_ROW("unchecked", TOTAL, COUNT, struct poison, unchecked_count),
    RS_COUNTER_ROW("kept", LIVE, BYTES, struct poison, kept_bytes),
    RS_COUNTER_ROW("kept_blocks", LIVE, COUNT, struct poison, kept_count),
    RS_COUNTER_END,
};

static bool check_ring(const struct record *ring, size_t *bytes, size_t *count)
{
    bool good = true;

    *bytes = *count = 0;
    for (const struct record *record = ring->after; record != ring; record = record->after) {
        good = good && record->after->before == record && record->before->after == record;
        *bytes += record->upstream.size_bytes;
        *count += 1;
    }
    return good;
}

static bool poison_is_sound(struct rs_mr *mr)
{
    const struct poison *poison = RS_MR_AS(poison, mr);
    size_t bytes, count;

    return check_ring(&poison->live, &bytes, &count) && check_ring(&poison->kept, &bytes, &count) &&
           bytes == poison->kept_bytes && count == poison->kept_count;
}

/* Checks the live blocks a last time, and gives all blocks upstream. */
static void give_all_back(struct poison *poison)
{
    struct record *record;

    while (poison->live.after != &poison->live) {
        record = poison->live.after;
        end_use(poison, record);
        ring_remove(record);
        (void)rs_mr_deallocate(poison->base.upstream[0], &record->upstream, NULL);
    }
    (void)keep_only(poison, 0, 0);
}

static void poison_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct poison *poison = RS_MR_AS(poison, mr);

    if (!memory_is_gone)
        give_all_back(poison);
    if (!memory_is_gone && poison->buffer)
        (void)rs_driver.cuMemFreeHost(poison->buffer);
    rs_record_slab_destroy(&poison->records);
    rs_mutex_destroy(&poison->copy_lock);
    atomic_fetch_sub(&rs_poison_count, 1);
}

static const struct rs_mr_ops poison_ops = {
    .allocate = poison_allocate,
    .deallocate = poison_deallocate,
    .end = poison_end,
    .trim = poison_trim,
    .idle_bytes = poison_idle_bytes,
    .free_blocks = poison_free_blocks,
    .counters = poison_counters,
    .is_sound = poison_is_sound,
};

static bool has_functions(void)
{
    return rs_driver.cuMemsetD8Async && rs_driver.cuMemsetD32Async &&
           rs_driver.cuMemcpyDtoHAsync_v2 && rs_driver.cuStreamCreate && rs_driver.cuStreamQuery &&
           rs_driver.cuStreamSynchronize;
}

static int poison_init(struct rs_mr *mr, const void *config)
{
    struct poison *poison = RS_MR_AS(poison, mr);

    (void)config;
    rs_mutex_init(&poison->copy_lock, RS_RANK_RESOURCE);
    poison->live.before = poison->live.after = &poison->live;
    poison->kept.before = poison->kept.after = &poison->kept;
    atomic_fetch_add(&rs_poison_count, 1);
    return has_functions() ? 0 : -ENOTSUP;
}

/* The default patterns are quiet NaNs as half, bfloat16, float and double. */
static const struct rs_option poison_options[] = {
    RS_OPTION_SIZE_ROW(struct poison_config, guard, "4KiB",
                       "how many guard bytes are kept before and after each block; a write into "
                       "them is found and reported when the block is freed",
                       .multiple_of = RS_BLOCK_ALIGNMENT, .maximum = 1 << 30),
    RS_OPTION_SIZE_ROW(
        struct poison_config, keep, "64MiB",
        "how much freed memory is held back from reuse, so that writes after the free are found"),
    RS_OPTION_COUNT_ROW(struct poison_config, fill_allocated, "0x7ffa7ffa",
                        "32-bit value with which allocated memory is filled",
                        .maximum = UINT32_MAX),
    RS_OPTION_COUNT_ROW(struct poison_config, fill_freed, "0x7ffd7ffd",
                        "32-bit value with which freed memory is filled", .maximum = UINT32_MAX),
    RS_OPTION_WORD_ROW(struct poison_config, on_error, on_error_words, "report",
                       "what happens when a wrong write or free is found; report (the default): a "
                       "line is printed; abort: a line is printed, and abort() ends the process",
                       .aliases = {{"abort", RS_OPTION_BOOLEAN}}),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_poison = {
    .name = "poison",
    .summary =
        "finds writes outside of a block or after its free, with guard bytes and fill patterns",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .keeps_blocks = true,
    .config_bytes = sizeof(struct poison_config),
    .options = poison_options,
};

RS_MR_CLASS_WITH_SET(poison, struct poison, poison_ops, poison_init);
