/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: when a freed block may be handed out again.  The device here is a count of what the
 * program has submitted and of how much of that is done; an event is done when the count that it
 * was recorded at is.  Tests say when that is. */
#include "unit.h"

#include "base/clock.h"
#include "base/request.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream_order.h"
#include "fake_leaf.h"
#include "free_sentinel.h"
#include "ledger/account.h"
#include "resource/report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>

#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)
#define CTX    ((CUcontext)(uintptr_t)0x1000)
#define OTHER  ((CUcontext)(uintptr_t)0x2000)

enum {
    EVENTS_MAX = 4096,
    STACK_MAX = 8,
    WAIT_MS = 20, /* for one epoch */
    SEAL_MIB = 32,
    LOOK_MIB = 4, /* so much more before it is looked at again */
    SEAL_COUNT = 128,
    UNIT_BYTES = 512,
};

/* ---- host memory that runs out ---- */

static _Atomic bool host_is_full;

void *__real_calloc(size_t count, size_t bytes);
void *__real_mmap(void *, size_t, int, int, int, off_t);
void *__real_mmap64(void *, size_t, int, int, int, off_t);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_mmap(void *, size_t, int, int, int, off_t);
void *__wrap_mmap64(void *, size_t, int, int, int, off_t);

void *__wrap_calloc(size_t count, size_t bytes)
{
    return host_is_full ? NULL : __real_calloc(count, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    return host_is_full ? MAP_FAILED : __real_mmap(at, bytes, access, flags, file, offset);
}

void *__wrap_mmap64(void *at, size_t bytes, int access, int flags, int file, off_t offset)
{
    return host_is_full ? MAP_FAILED : __real_mmap64(at, bytes, access, flags, file, offset);
}

/* ---- the device ---- */

struct fake_event {
    CUcontext context;
    uint64_t covers;
    bool is_recorded, is_live;
};

static struct {
    pthread_mutex_t lock; /* protects what follows */
    struct fake_event events[EVENTS_MAX];
    size_t event_count;
    CUdeviceptr next_sentinel;
    size_t live_sentinels;
    unsigned records, queries, waits; /* calls; waits: frees of a sentinel */
    unsigned complete_at;             /* this query finds all work done; 0: none does */
    unsigned wrong_calls; /* in a wrong context, of a dead event, outside relaxed mode */
    CUresult record_answer, query_answer, free_answer; /* when not CUDA_SUCCESS */
    bool is_full;                                      /* no sentinel can be had */
    size_t free_bytes;                                 /* that it says of itself */
    void (*in_record)(void);                           /* once, when the event is stamped */
    void (*in_free)(void);                             /* once, when all is done */
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic uint64_t submitted, completed;

static __thread struct {
    CUcontext stack[STACK_MAX];
    unsigned depth;
    CUstreamCaptureMode mode;
} thread;

/* The program gives the device something to do. */
static uint64_t submit(void)
{
    return atomic_fetch_add(&submitted, 1) + 1;
}

static void complete_to(uint64_t count)
{
    uint64_t seen = atomic_load(&completed);

    while (seen < count && !atomic_compare_exchange_weak(&completed, &seen, count))
        ;
}

static void complete_all(void)
{
    complete_to(atomic_load(&submitted));
}

/* All work ends while it is waited for, however slow this machine is: a few looks from now. */
static void complete_in(unsigned queries)
{
    device.complete_at = device.queries + queries;
}

static CUcontext current(void)
{
    return thread.depth ? thread.stack[thread.depth - 1] : NULL;
}

static void device_lock(void)
{
    pthread_mutex_lock(&device.lock);
}

static void device_unlock(void)
{
    pthread_mutex_unlock(&device.lock);
}

/* A call that would spoil a capture in any other mode. */
static void must_be_relaxed(void)
{
    device.wrong_calls += thread.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult fake_get_current(CUcontext *context)
{
    *context = current();
    return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext context)
{
    assert_true(thread.depth < STACK_MAX);
    thread.stack[thread.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
    assert_true(thread.depth > 0);
    *context = thread.stack[--thread.depth];
    return CUDA_SUCCESS;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = thread.mode;

    thread.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    device_lock();
    must_be_relaxed();
    assert_true(device.event_count < EVENTS_MAX);
    assert_true(flags & CU_EVENT_DISABLE_TIMING);
    device.events[device.event_count] = (struct fake_event){.context = current(), .is_live = true};
    *event = (CUevent)(void *)&device.events[device.event_count++];
    device_unlock();
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
    struct fake_event *fake = (struct fake_event *)(void *)event;

    device_lock();
    device.wrong_calls += !fake->is_live;
    fake->is_live = false;
    device_unlock();
    return CUDA_SUCCESS;
}

static CUresult fake_record(CUcontext context, CUevent event)
{
    struct fake_event *fake = (struct fake_event *)(void *)event;
    void (*in_record)(void);
    CUresult result;

    device_lock();
    device.records++;
    device.wrong_calls += !fake->is_live || fake->context != context || context != CTX;
    result = device.record_answer;
    if (result == CUDA_SUCCESS) {
        fake->is_recorded = true;
        fake->covers = atomic_load(&submitted);
    }
    in_record = device.in_record;
    device.in_record = NULL;
    device_unlock();
    if (in_record)
        in_record();
    return result;
}

static CUresult fake_query(CUevent event)
{
    struct fake_event *fake = (struct fake_event *)(void *)event;
    CUresult result;

    device_lock();
    must_be_relaxed();
    device.queries++;
    device.wrong_calls += !fake->is_live || !fake->is_recorded || current() != fake->context;
    if (device.queries == device.complete_at)
        complete_all();
    result = device.query_answer;
    if (result == CUDA_SUCCESS && fake->covers > atomic_load(&completed))
        result = CUDA_ERROR_NOT_READY;
    device_unlock();
    return result;
}

static CUresult fake_allocate(CUdeviceptr *address, size_t bytes)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    device_lock();
    must_be_relaxed();
    device.wrong_calls += current() != CTX || bytes != 512;
    if (!device.is_full) {
        *address = 0x100 + ++device.next_sentinel;
        device.live_sentinels++;
        result = CUDA_SUCCESS;
    }
    device_unlock();
    return result;
}

/* As cuMemFree: returns when all that was submitted is done. */
static CUresult fake_free(CUdeviceptr address)
{
    void (*in_free)(void);
    CUresult result;

    device_lock();
    must_be_relaxed();
    device.wrong_calls += address <= 0x100;
    device.waits++;
    result = device.free_answer;
    device.live_sentinels -= result == CUDA_SUCCESS;
    in_free = device.in_free;
    device.in_free = NULL;
    device_unlock();
    if (result == CUDA_SUCCESS)
        complete_all();
    if (in_free)
        in_free();
    return result;
}

static CUresult fake_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = device.free_bytes;
    *total_bytes = PLENTY;
    return CUDA_SUCCESS;
}

/* A stream is a number and a state; its address is its handle. */
struct fake_stream {
    unsigned long long id;
    CUstreamCaptureStatus capture;
    CUresult answer;
    bool is_dead;
};

static CUstream handle_of(struct fake_stream *stream)
{
    return (CUstream)(void *)stream;
}

static struct fake_stream legacy_stream = {.id = 1};

static struct fake_stream *fake_stream_of(CUstream stream)
{
    struct fake_stream *fake =
        stream == CU_STREAM_LEGACY ? &legacy_stream : (struct fake_stream *)(void *)stream;

    if ((stream == CU_STREAM_LEGACY && current() != CTX) || fake->is_dead)
        device.wrong_calls++;
    return fake;
}

static CUresult fake_stream_id(CUstream stream, unsigned long long *id)
{
    *id = fake_stream_of(stream)->id;
    return CUDA_SUCCESS;
}

static CUresult fake_is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = fake_stream_of(stream)->capture;
    return fake_stream_of(stream)->answer;
}

static struct rs_sentinel sentinel;
static struct rs_account account;
static const struct rs_place place = {
    .context = CTX,
    .sentinel = &sentinel,
    .account = &account,
    .total_bytes = (size_t)80 << 30,
    .first_on_device = true,
    .frees_are_clean = true,
};

static void forget_one(const struct rs_place *where, void *holder);

static const struct rs_place place_with_holders = {
    .context = CTX,
    .sentinel = &sentinel,
    .account = &account,
    .total_bytes = (size_t)80 << 30,
    .first_on_device = true,
    .frees_are_clean = true,
    .forget_holder = forget_one,
};

static void start_device(bool has_fences)
{
    host_is_full = false;
    memset(device.events, 0, sizeof(device.events));
    device.event_count = 0;
    device.live_sentinels = 0;
    device.records = device.queries = device.waits = device.wrong_calls = 0;
    device.complete_at = 0;
    device.record_answer = device.query_answer = device.free_answer = CUDA_SUCCESS;
    device.is_full = false;
    device.free_bytes = PLENTY;
    device.in_record = NULL;
    device.in_free = NULL;
    atomic_store(&submitted, 0);
    atomic_store(&completed, 0);
    memset(&account, 0, sizeof(account));
    rs_driver = (struct rs_driver){
        .cuCtxGetCurrent = fake_get_current,
        .cuCtxPushCurrent_v2 = fake_push,
        .cuCtxPopCurrent_v2 = fake_pop,
        .cuThreadExchangeStreamCaptureMode = fake_exchange_mode,
        .cuEventCreate = fake_event_create,
        .cuEventDestroy_v2 = fake_event_destroy,
        .cuEventQuery = fake_query,
        .cuCtxRecordEvent = has_fences ? fake_record : NULL,
        .cuMemAlloc_v2 = fake_allocate,
        .cuMemFree_v2 = fake_free,
        .cuMemGetInfo_v2 = fake_memory_info,
        .cuStreamGetId = fake_stream_id,
        .cuStreamIsCapturing = fake_is_capturing,
    };
    thread.depth = 0;
    thread.mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    (void)fake_push(CTX);
}

/* ---- stacks ---- */

struct stack {
    struct fake_leaf *leaf;
    struct rs_mr *mr; /* reuse over a resource over the leaf */
};

static void charge(struct stack *stack)
{
    atomic_store(&account.held_bytes[RS_MEMORY_DEVICE], stack->leaf->live_bytes);
}

static struct stack stack_at(const struct rs_place *where,
                             const struct rs_mr_descriptor *descriptor, size_t capacity_bytes,
                             const char *const *options, const char *mode)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};
    struct rs_mr *below;
    int error;

    below = make_resource_at(where, descriptor, &stack.leaf->base, options, &error);
    assert_int_equal(error, 0);
    charge(&stack);
    stack.mr = make_resource_at(where, &rs_mr_descriptor_reuse, below, OPTIONS(mode), &error);
    assert_int_equal(error, 0);
    return stack;
}

static struct stack stack_over(const struct rs_mr_descriptor *descriptor, size_t capacity_bytes,
                               const char *const *options, const char *mode)
{
    return stack_at(&place, descriptor, capacity_bytes, options, mode);
}

static struct stack start(size_t capacity_bytes, const char *initial_size)
{
    start_device(true);
    return stack_over(&rs_mr_descriptor_pool, capacity_bytes, OPTIONS(initial_size),
                      "free=deferred");
}

/* The fences of all that was freed must be done, and everything goes upstream. */
static void end(struct stack *stack)
{
    struct rs_mr *below = stack->mr->upstream[0];

    assert_true(rs_mr_check(stack->mr));
    stack->mr->ops.destroy(stack->mr, false);
    free_sentinel(&sentinel);
    assert_true(rs_mr_check(below));
    below->ops.destroy(below, false);
    assert_int_equal(stack->leaf->live_count, 0);
    assert_int_equal(stack->leaf->wrong_calls, 0);
    assert_int_equal(device.wrong_calls, 0);
    assert_int_equal(device.live_sentinels, 0);
    for (size_t i = 0; i < device.event_count; i++)
        assert_false(device.events[i].is_live);
    assert_int_equal(thread.depth, 1);
    assert_int_equal(thread.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fake_leaf_destroy(stack->leaf);
}

static CUresult try(struct stack *stack, size_t size_bytes, struct rs_allocation *out)
{
    CUresult result;

    charge(stack);
    result = rs_mr_allocate(stack->mr, size_bytes, NULL, out);
    assert_true(rs_mr_check(stack->mr));
    return result;
}

static struct rs_allocation take(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(try(stack, size_bytes, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, size_bytes);
    return allocation;
}

static void give(struct stack *stack, const struct rs_allocation *allocation)
{
    charge(stack);
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(stack->mr));
}

/* What is open becomes an epoch, which is not waited for. */
static void seal(struct stack *stack)
{
    rs_request_begin();
    (void)rs_mr_trim(stack->mr, PLENTY);
    rs_request_end();
}

/* The block is used by work that is not done, and freed. */
static uint64_t give_busy(struct stack *stack, const struct rs_allocation *allocation)
{
    uint64_t work = submit();

    give(stack, allocation);
    return work;
}

static uint64_t counter(struct stack *stack, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    rs_mr_report(stack->mr, &report);
    value = rs_report_value(&report, "reuse", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

static void sleep_ms(unsigned ms)
{
    struct timespec delay = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&delay, NULL);
}

static void *complete_soon(void *ms)
{
    sleep_ms(*(unsigned *)ms);
    complete_all();
    return NULL;
}

/* ---- tests ---- */

/* What was freed and is done with is in one piece again before a huge block is placed. */
static void a_huge_block_is_placed_beside_nothing_that_is_done_with(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=2GiB");
    struct rs_allocation a = take(&stack, 300 * MIB), b = take(&stack, 100 * MIB), huge;
    CUdeviceptr start_address = a.address;

    (void)state;
    give(&stack, &a);
    give(&stack, &b); /* little: not sealed */
    complete_all();
    huge = take(&stack, 512 * MIB);
    assert_int_equal(huge.address, start_address);
    give(&stack, &huge);
    complete_all();
    end(&stack);
}

/* Pairs of one size need none: each leaves a hole for the next. */
static void huge_blocks_of_one_size_ask_for_no_fence(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=2GiB");
    struct rs_allocation huge = take(&stack, 512 * MIB);

    (void)state;
    give(&stack, &huge);
    device.queries = 0;
    huge = take(&stack, 512 * MIB);
    assert_int_equal(device.queries, 0);
    give(&stack, &huge);
    complete_all();
    end(&stack);
}

static void a_freed_block_waits_for_its_fence(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB), c, d;

    (void)state;
    (void)give_busy(&stack, &a);
    c = take(&stack, 4 * MIB);
    assert_true(c.address != a.address);
    assert_int_equal(device.records, 1);
    assert_int_equal(counter(&stack, "quarantined"), 4 * MIB);
    complete_all();
    d = take(&stack, 4 * MIB);
    assert_int_equal(d.address, a.address);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    give(&stack, &b);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

static void a_free_after_the_seal_is_not_covered(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=12MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB),
                         c = take(&stack, 4 * MIB), d, e, f, g;
    uint64_t first, second;

    (void)state;
    first = give_busy(&stack, &a);
    d = take(&stack, 4 * MIB); /* seals a */
    second = give_busy(&stack, &b);
    complete_to(first);
    e = take(&stack, 4 * MIB);
    assert_int_equal(e.address, a.address);
    f = take(&stack, 4 * MIB);
    assert_true(f.address != b.address);
    complete_to(second);
    g = take(&stack, 4 * MIB);
    assert_int_equal(g.address, b.address);
    give(&stack, &c);
    give(&stack, &d);
    give(&stack, &e);
    give(&stack, &f);
    give(&stack, &g);
    end(&stack);
}

static struct {
    struct stack *stack;
    struct rs_allocation allocation;
    CUstream stream;
    uint64_t work;
} late;

static void free_late(void)
{
    late.work = submit();
    assert_int_equal(rs_mr_deallocate(late.stack->mr, &late.allocation, late.stream), CUDA_SUCCESS);
    late.stream = NULL;
}

/* Seals and retires what it can, and gives nothing back. */
static void turn(struct stack *stack)
{
    charge(stack);
    assert_int_equal(rs_mr_trim(stack->mr, SIZE_MAX), 0);
}

static void a_free_during_the_seal_is_not_covered(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB), c, d;
    uint64_t first;

    (void)state;
    late.stack = &stack;
    late.allocation = b;
    device.in_record = free_late;
    first = give_busy(&stack, &a);
    turn(&stack); /* seals a; b is freed behind the fence */
    assert_null(device.in_record);
    complete_to(first);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    c = take(&stack, 4 * MIB);
    d = take(&stack, 56 * MIB); /* all that is left */
    assert_true(c.address == a.address);
    assert_true(d.address > b.address);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

static void small_frees_are_sealed_by_the_hundred(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    static struct rs_allocation blocks[3 * SEAL_COUNT];

    (void)state;
    for (unsigned i = 0; i < 3 * SEAL_COUNT; i++)
        blocks[i] = take(&stack, 1000);
    for (unsigned i = 0; i < SEAL_COUNT - 1; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.records, 0);
    (void)give_busy(&stack, &blocks[SEAL_COUNT - 1]);
    assert_int_equal(device.records, 1);
    for (unsigned i = SEAL_COUNT; i < 2 * SEAL_COUNT; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.records, 2);
    assert_int_equal(device.queries, 0); /* not for a single epoch */
    complete_all();
    for (unsigned i = 2 * SEAL_COUNT; i < 3 * SEAL_COUNT; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.records, 3);
    assert_int_equal(device.queries, 1);
    assert_int_equal(counter(&stack, "epochs_sealed"), 3);
    assert_int_equal(counter(&stack, "epochs_retired"), 2);
    assert_int_equal(counter(&stack, "quarantined_blocks"), SEAL_COUNT);
    assert_int_equal(counter(&stack, "quarantined"), SEAL_COUNT * 1000);
    end(&stack);
}

static void a_large_free_is_sealed_at_once(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=128MiB");
    struct rs_allocation a = take(&stack, SEAL_MIB * MIB - 1), b = take(&stack, LOOK_MIB * MIB);
    struct rs_allocation c = take(&stack, SEAL_MIB * MIB);

    (void)state;
    (void)give_busy(&stack, &a);
    assert_int_equal(device.records, 0);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.records, 1);
    (void)give_busy(&stack, &c);
    assert_int_equal(device.records, 2);
    end(&stack);
}

/* Frees a hundred of them in one epoch. */
static uint64_t give_epoch(struct stack *stack, const struct rs_allocation *blocks)
{
    uint64_t work = submit();

    for (unsigned i = 0; i < SEAL_COUNT; i++)
        give(stack, &blocks[i]);
    return work;
}

/* An answer that a fence is done is the costly one. */
static void a_free_gets_one_answer_that_a_fence_is_done(void **state)
{
    enum { EPOCHS = 70 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    static struct rs_allocation blocks[EPOCHS + 2][SEAL_COUNT];
    unsigned queries;

    (void)state;
    for (unsigned i = 0; i < (EPOCHS + 2) * SEAL_COUNT; i++)
        blocks[i / SEAL_COUNT][i % SEAL_COUNT] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < EPOCHS - 1; i++) {
        queries = device.queries;
        (void)give_epoch(&stack, blocks[i]);
        assert_in_range(device.queries - queries, 0, i == 2 ? 2 : 1);
    }
    assert_int_equal(counter(&stack, "epochs_sealed"), EPOCHS - 1);
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    complete_all();
    queries = device.queries;
    (void)give_epoch(&stack, blocks[EPOCHS - 1]);
    assert_int_equal(counter(&stack, "epochs_retired"), EPOCHS - 1);
    assert_int_equal(device.queries - queries, 2); /* that of the oldest, which was pending */
    queries = device.queries;
    (void)give_epoch(&stack, blocks[EPOCHS]);
    complete_all();
    (void)give_epoch(&stack, blocks[EPOCHS + 1]);
    assert_int_equal(counter(&stack, "epochs_retired"), EPOCHS + 1);
    assert_int_equal(device.queries - queries, 1);
    end(&stack);
}

/* A long operation, and what a program frees meanwhile. */
static void a_seal_asks_once_however_much_was_freed_while_the_gpu_is_stuck(void **state)
{
    enum { EPOCHS = 1000, EVENTS = 66 };
    struct stack stack = start(PLENTY, "initial_size=128MiB");
    static struct rs_allocation blocks[EPOCHS + 1][SEAL_COUNT];
    unsigned queries, records;

    (void)state;
    charge(&stack);
    for (unsigned i = 0; i < (EPOCHS + 1) * SEAL_COUNT; i++)
        assert_int_equal(
            rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &blocks[i / SEAL_COUNT][i % SEAL_COUNT]),
            CUDA_SUCCESS);
    (void)submit();
    for (unsigned i = 0; i < EPOCHS; i++) {
        queries = device.queries;
        records = device.records;
        for (unsigned j = 0; j < SEAL_COUNT; j++)
            assert_int_equal(rs_mr_deallocate(stack.mr, &blocks[i][j], NULL), CUDA_SUCCESS);
        assert_int_equal(device.records - records, 1);
        assert_in_range(device.queries - queries, 0, i == 2 ? 2 : 1);
    }
    assert_in_range(device.event_count, 1, EVENTS);
    assert_true(rs_mr_check(stack.mr));
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), EPOCHS * SEAL_COUNT);
    complete_all();
    (void)rs_mr_trim(stack.mr, PLENTY);
    assert_int_equal(counter(&stack, "epochs_retired"), EPOCHS);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

/* Nothing is left upstream, so each free would seal for the next allocation.  Behind many pending
 * epochs that is in vain, and each seal a driver call. */
static void frees_behind_many_epochs_seal_seldom(void **state)
{
    enum { FREES = 1024, CROWD = 16, EVERY = 16, BYTES = 64 << 10 };
    static struct rs_allocation blocks[FREES];
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    unsigned records;

    (void)state;
    for (unsigned i = 0; i < FREES; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, BYTES, NULL, &blocks[i]), CUDA_SUCCESS);
    charge(&stack);
    (void)submit();
    records = device.records;
    for (unsigned i = 0; i < FREES; i++)
        assert_int_equal(rs_mr_deallocate(stack.mr, &blocks[i], NULL), CUDA_SUCCESS);
    assert_in_range(device.records - records, CROWD, 2 * CROWD + FREES / EVERY);
    complete_all();
    (void)rs_mr_trim(stack.mr, PLENTY);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

/* Of many epochs, which were merged: what work still uses waits, the oldest alone waits for none
 * but its own, and the others for little that is younger. */
static void a_merged_epoch_waits_for_its_youngest_fence(void **state)
{
    enum { EPOCHS = 300 };

    (void)state;
    for (unsigned done = 0; done <= EPOCHS; done += done < 3 ? 1 : 9) {
        struct stack stack = start(PLENTY, "initial_size=64MiB");
        struct rs_allocation blocks[EPOCHS];
        uint64_t work[EPOCHS + 1] = {0};
        uint64_t left;

        for (unsigned i = 0; i < EPOCHS; i++)
            assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &blocks[i]), CUDA_SUCCESS);
        for (unsigned i = 0; i < EPOCHS; i++) {
            work[i + 1] = submit();
            assert_int_equal(rs_mr_deallocate(stack.mr, &blocks[i], NULL), CUDA_SUCCESS);
            seal(&stack);
        }
        assert_true(rs_mr_check(stack.mr));
        complete_to(work[done]);
        (void)rs_mr_trim(stack.mr, PLENTY);
        left = counter(&stack, "quarantined_blocks");
        assert_int_equal(EPOCHS - left, counter(&stack, "epochs_retired"));
        assert_in_range(left, EPOCHS - done, EPOCHS - done + (EPOCHS - done) / 8);
        if (done <= 1)
            assert_int_equal(left, EPOCHS - done);
        end(&stack);
    }
}

static void of_many_epochs_only_those_that_are_done_are_retired(void **state)
{
    enum { EPOCHS = 41, DONE = 23 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    static struct rs_allocation blocks[EPOCHS][SEAL_COUNT];
    uint64_t work[EPOCHS];

    (void)state;
    for (unsigned i = 0; i < EPOCHS * SEAL_COUNT; i++)
        blocks[i / SEAL_COUNT][i % SEAL_COUNT] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < EPOCHS - 1; i++)
        work[i] = give_epoch(&stack, blocks[i]);
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    complete_to(work[DONE - 1]);
    (void)give_epoch(&stack, blocks[EPOCHS - 1]);
    assert_in_range(counter(&stack, "epochs_retired"), DONE / 2, DONE); /* without looking long */
    (void)rs_mr_trim(stack.mr, PLENTY);
    assert_int_equal(counter(&stack, "epochs_retired"), DONE);
    assert_int_equal(counter(&stack, "quarantined_blocks"), (EPOCHS - DONE) * SEAL_COUNT);
    end(&stack);
}

/* Whatever the number of epochs and how many of them are done. */
static void what_is_asked_for_exactly_is_exact(void **state)
{
    enum { EPOCHS = 30 };

    (void)state;
    for (unsigned done = 0; done <= EPOCHS; done++) {
        struct stack stack = start(PLENTY, "initial_size=64MiB");
        struct rs_allocation blocks[EPOCHS];
        uint64_t work[EPOCHS + 1] = {0};

        for (unsigned i = 0; i < EPOCHS; i++)
            blocks[i] = take(&stack, MIB);
        for (unsigned i = 0; i < EPOCHS; i++) {
            work[i + 1] = give_busy(&stack, &blocks[i]);
            seal(&stack);
        }
        complete_to(work[done]);
        (void)rs_mr_trim(stack.mr, PLENTY);
        assert_int_equal(counter(&stack, "epochs_retired"), done);
        assert_int_equal(counter(&stack, "quarantined_blocks"), EPOCHS - done);
        end(&stack);
    }
}

/* Threads that are there at once, each of which frees less than is sealed. */
struct side_by_side {
    struct stack *stack;
    pthread_barrier_t *all_have_freed;
};

static void *free_some(void *data)
{
    struct side_by_side *side = data;

    for (unsigned i = 0; i < SEAL_MIB / 4; i++) {
        struct rs_allocation block = take(side->stack, MIB);
        (void)give_busy(side->stack, &block);
    }
    pthread_barrier_wait(side->all_have_freed);
    return NULL;
}

static void what_threads_free_side_by_side_is_sealed_together(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=256MiB");
    pthread_barrier_t all_have_freed;
    struct side_by_side side = {&stack, &all_have_freed};
    pthread_t threads[8];

    (void)state;
    assert_int_equal(pthread_barrier_init(&all_have_freed, NULL, 8), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, free_some, &side), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(counter(&stack, "quarantined"), 2 * SEAL_MIB * MIB);
    assert_in_range(device.records, 1, 2);
    pthread_barrier_destroy(&all_have_freed);
    end(&stack);
}

/* 32 MiB were live at once, and nothing is held any more. */
static struct stack start_with_peak(void)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation peak = take(&stack, 32 * MIB);

    give(&stack, &peak);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(stack.leaf->live_bytes, 0);
    return stack;
}

static void growth_is_free_up_to_the_peak_and_a_little(void **state)
{
    struct stack stack = start_with_peak();
    struct rs_allocation a = take(&stack, 16 * MIB), b, c;

    (void)state;
    (void)give_busy(&stack, &a);
    b = take(&stack, 17 * MIB); /* held 16 and these 17: 32 and a thirty-second */
    assert_true(b.address != a.address);
    assert_int_equal(counter(&stack, "waits"), 0);
    (void)give_busy(&stack, &b);
    complete_in(20);
    c = take(&stack, 16 * MIB);
    assert_true(counter(&stack, "waits") > 0);
    assert_int_equal(stack.leaf->live_bytes, 34 * MIB); /* chunks are in units of 2 MiB */
    give(&stack, &c);
    end(&stack);
}

/* An initial size is room that was asked for, and no peak: the program used 8 MiB of it. */
static void growth_is_not_free_past_the_initial_size(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 8 * MIB), b = take(&stack, 8 * MIB), c;

    (void)state;
    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    complete_in(3);
    c = take(&stack, 8 * MIB);
    assert_int_equal(counter(&stack, "waits"), 1);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    give(&stack, &c);
    end(&stack);
}

/* 64 MiB at first, which are in use, and a large chunk of 40 that is free.  128 MiB were live at
 * once, so 132 may be held. */
static struct stack start_with_hole(const char *mode, struct rs_allocation *first,
                                    struct rs_allocation *hole)
{
    struct rs_allocation peak;
    struct stack stack;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=64MiB"), mode);
    *first = take(&stack, 64 * MIB);
    peak = take(&stack, 64 * MIB);
    give(&stack, &peak);
    (void)rs_mr_trim(stack.mr, 0);
    *hole = take(&stack, 40 * MIB);
    give(&stack, hole);
    return stack;
}

static bool lies_in(const struct rs_allocation *block, const struct rs_allocation *hole)
{
    return block->address >= hole->address && block->address - hole->address < hole->size_bytes;
}

static void within_the_allowance_growth_is_better_than_a_cut(void **state)
{
    static const char *const modes[] = {"free=deferred", "free=wait"};

    (void)state;
    for (size_t waits = 0; waits < RS_ARRAY_LENGTH(modes); waits++) {
        struct rs_allocation first, hole, block;
        struct stack stack = start_with_hole(modes[waits], &first, &hole);
        block = take(&stack, 20 * MIB);
        assert_int_equal(lies_in(&block, &hole), waits);
        give(&stack, &block);
        give(&stack, &first);
        end(&stack);
    }
}

/* 144 MiB may be held, and 140 are.  A large block that is cut for a smaller one is missed later.
 */
static void past_the_allowance_a_wait_is_better_than_a_cut(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation hole = take(&stack, 100 * MIB), busy = take(&stack, 40 * MIB), block;

    (void)state;
    give(&stack, &hole);
    (void)give_busy(&stack, &busy);
    complete_in(20);
    block = take(&stack, 36 * MIB);
    assert_true(lies_in(&block, &busy));
    assert_int_equal(counter(&stack, "waits"), 1);
    give(&stack, &block);
    end(&stack);
}

/* 132 MiB may be held, and 152 are, and the GPU is stuck. */
static void past_the_allowance_a_cut_is_better_than_growth(void **state)
{
    struct rs_allocation first, hole, busy, block;
    struct stack stack = start_with_hole("free=deferred", &first, &hole);

    (void)state;
    busy = take(&stack, 48 * MIB);
    (void)give_busy(&stack, &busy);
    block = take(&stack, 28 * MIB);
    assert_true(lies_in(&block, &hole));
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    give(&stack, &block);
    give(&stack, &first);
    complete_all();
    end(&stack);
}

/* 148 MiB may be held, and 132 are.  The block in the gap is freed and its work done; only nobody
 * has looked yet. */
static void past_the_allowance_what_is_clean_by_now_spares_a_cut(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation first = take(&stack, 16 * MIB), gap = take(&stack, 36 * MIB);
    struct rs_allocation hole = take(&stack, 80 * MIB), block;

    (void)state;
    give(&stack, &hole);
    (void)rs_mr_trim(stack.mr, PLENTY); /* clean, and kept */
    (void)give_busy(&stack, &gap);      /* large: this seals */
    complete_all();
    block = take(&stack, 35 * MIB);
    assert_true(lies_in(&block, &gap));
    give(&stack, &block);
    give(&stack, &first);
    end(&stack);
}

/* What the context's stacks of other kinds hold is charged to the same account. */
static void other_memories_do_not_count_against_growth(void **state)
{
    struct stack stack = start_with_peak();
    struct rs_allocation a, b;

    (void)state;
    atomic_store(&account.held_bytes[RS_MEMORY_HOST], 1 << 30);
    atomic_store(&account.held_bytes[RS_MEMORY_MANAGED], 1 << 30);
    a = take(&stack, 16 * MIB);
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB); /* as above */
    assert_true(b.address != a.address);
    assert_int_equal(counter(&stack, "waits"), 0);
    give(&stack, &b);
    end(&stack);
}

static void past_the_peak_an_epoch_is_waited_for_once(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b, c, d;
    uint64_t begin_ns, waited_ns;

    (void)state;
    (void)give_busy(&stack, &a);
    begin_ns = rs_clock_ns();
    b = take(&stack, 16 * MIB);
    waited_ns = rs_clock_ns() - begin_ns;
    assert_true(b.address != a.address);
    assert_true(waited_ns >= WAIT_MS * 1000000ull);
    assert_true(waited_ns < 5000000000ull);
    assert_int_equal(counter(&stack, "waits"), 1);
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    assert_true(counter(&stack, "waited") >= WAIT_MS * 1000000ull);
    assert_true(counter(&stack, "waited") <= waited_ns);
    (void)give_busy(&stack, &b);
    c = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "waits"), 1); /* the first epoch hides the second */
    assert_int_equal(stack.leaf->live_bytes, 48 * MIB);
    complete_all();
    d = take(&stack, 16 * MIB);
    assert_true(d.address == a.address || d.address == b.address);
    assert_int_equal(stack.leaf->live_bytes, 48 * MIB);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

static void a_wait_ends_with_the_work(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)state;
    (void)give_busy(&stack, &a);
    complete_in(3);
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    assert_int_equal(counter(&stack, "waits"), 1);
    assert_int_equal(counter(&stack, "waits_in_vain"), 0);
    assert_int_equal(stack.leaf->live_bytes, 16 * MIB);
    give(&stack, &b);
    end(&stack);
}

/* What is freed is sealed and waited for even when another epoch has just been retired. */
static void growth_waits_for_open_frees_too(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 16 * MIB), c, d;
    uint64_t first, waits;

    (void)state;
    first = give_busy(&stack, &a);
    c = take(&stack, 8 * MIB); /* grows, as the peak does; seals a */
    complete_to(first);
    (void)give_busy(&stack, &b);
    waits = counter(&stack, "waits");
    complete_in(4);
    d = take(&stack, 16 * MIB);
    assert_int_equal(d.address, b.address);
    assert_int_equal(counter(&stack, "waits"), waits + 1);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

static void before_out_of_memory_all_is_waited_for(void **state)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 8 * MIB), b = take(&stack, 8 * MIB), c, d;
    unsigned ms = 3 * WAIT_MS;
    pthread_t helper;

    (void)state;
    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    assert_int_equal(pthread_create(&helper, NULL, complete_soon, &ms), 0);
    c = take(&stack, 16 * MIB);
    assert_int_equal(pthread_join(helper, NULL), 0);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(try(&stack, 1, &d), CUDA_ERROR_OUT_OF_MEMORY);
    give(&stack, &c);
    end(&stack);
}

/* Several threads wait for the same work, and one of them sees its end. */
static void *take_and_give(void *data)
{
    struct stack *stack = data;
    struct rs_allocation allocation;
    CUresult result;

    thread.depth = 0;
    (void)fake_push(CTX);
    result = rs_mr_allocate(stack->mr, 4 * MIB, NULL, &allocation);
    if (result == CUDA_SUCCESS)
        result = rs_mr_deallocate(stack->mr, &allocation, NULL);
    return (void *)(uintptr_t)result;
}

static void threads_that_wait_for_the_same_work_all_go_on(void **state)
{
    struct stack stack = start(32 * MIB, "initial_size=32MiB");
    struct rs_allocation blocks[8];
    unsigned ms = 3 * WAIT_MS;
    uint64_t begin_ns = rs_clock_ns();
    pthread_t helper, threads[8];
    void *result;

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        blocks[i] = take(&stack, 4 * MIB);
    for (unsigned i = 0; i < 8; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(pthread_create(&helper, NULL, complete_soon, &ms), 0);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &stack), 0);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_int_equal((uintptr_t)result, CUDA_SUCCESS);
    }
    assert_int_equal(pthread_join(helper, NULL), 0);
    assert_true(rs_clock_ns() - begin_ns < 10000000000ull);
    end(&stack);
}

static void a_fence_that_can_never_be_done_is_not_waited_for(void **state)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;
    uint64_t begin_ns = rs_clock_ns();

    (void)state;
    (void)give_busy(&stack, &a);
    device.query_answer = device.free_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_clock_ns() - begin_ns < 5000000000ull);
    assert_int_equal(counter(&stack, "quarantined"), 16 * MIB);
    device.query_answer = device.free_answer = CUDA_SUCCESS;
    end(&stack);
}

/* ---- what piled up while the GPU was stuck ---- */

enum { PILED_UP = 4096, FEW = 128 + 2 * 8 };

static struct rs_allocation pile[PILED_UP], large_one; /* of which a free seals */

/* Over a resource whose each block is one of the leaf's. */
static struct stack start_pile(size_t capacity_bytes)
{
    struct stack stack;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_limiting, capacity_bytes, OPTIONS("limit=1TiB"),
                       "free=deferred");
    charge(&stack);
    assert_int_equal(rs_mr_allocate(stack.mr, SEAL_MIB * MIB, NULL, &large_one), CUDA_SUCCESS);
    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &pile[i]), CUDA_SUCCESS);
    charge(&stack);
    return stack;
}

static void pile_up(struct stack *stack)
{
    (void)submit();
    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_deallocate(stack->mr, &pile[i], NULL), CUDA_SUCCESS);
    assert_int_equal(stack->leaf->deallocations, 0);
    assert_true(rs_mr_check(stack->mr));
}

/* Returns how many blocks went upstream. */
static uint64_t give_one(struct stack *stack, const struct rs_allocation *block)
{
    uint64_t before = stack->leaf->deallocations;

    assert_int_equal(rs_mr_deallocate(stack->mr, block, NULL), CUDA_SUCCESS);
    return stack->leaf->deallocations - before;
}

/* Else the first free that finds the GPU done would give millions upstream by itself. */
static void what_piled_up_goes_upstream_a_few_at_a_time(void **state)
{
    static struct rs_allocation more[PILED_UP];
    struct stack stack = start_pile(PLENTY);
    unsigned frees = 0;

    (void)state;
    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &more[i]), CUDA_SUCCESS);
    pile_up(&stack);
    complete_all();
    assert_in_range(give_one(&stack, &large_one), 0, FEW);
    for (; frees < PILED_UP; frees++)
        assert_in_range(give_one(&stack, &more[frees]), 0, FEW);
    assert_true(rs_mr_check(stack.mr));
    assert_in_range(stack.leaf->deallocations, PILED_UP / 2, 2 * PILED_UP);
    assert_in_range(counter(&stack, "quarantined_blocks"), 1, PILED_UP);
    end(&stack);
}

/* An allocation that upstream has nothing for is served with the first of it. */
static void need_takes_what_piled_up_in_steps(void **state)
{
    enum { STEP = 512 };
    struct stack stack = start(PLENTY, "initial_size=2MiB");
    struct rs_allocation block;

    (void)state;
    for (unsigned i = 0; i < PILED_UP; i++)
        assert_int_equal(rs_mr_allocate(stack.mr, UNIT_BYTES, NULL, &pile[i]), CUDA_SUCCESS);
    assert_int_equal(stack.leaf->live_bytes, PILED_UP * UNIT_BYTES); /* nothing is left */
    pile_up(&stack);
    complete_all();
    block = take(&stack, UNIT_BYTES);
    assert_in_range(counter(&stack, "quarantined_blocks"), PILED_UP - STEP, PILED_UP - 1);
    assert_int_equal(stack.leaf->live_bytes, PILED_UP * UNIT_BYTES);
    give(&stack, &block);
    end(&stack);
}

static void an_allocation_sorts_a_bounded_part_of_what_is_clean(void **state)
{
    enum { COUNT = 1500, SORTED = 8 * 16, KEPT = 512 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation other, last[SEAL_COUNT];

    (void)state;
    for (unsigned i = 0; i < COUNT; i++)
        pile[i] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < SEAL_COUNT; i++)
        last[i] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < COUNT; i++)
        (void)give_one(&stack, &pile[i]);
    complete_all();
    for (unsigned i = 0; i < SEAL_COUNT; i++)
        (void)give_one(&stack, &last[i]);
    assert_in_range(counter(&stack, "kept"), (COUNT - 2 * SEAL_COUNT) * UNIT_BYTES, MIB);
    other = take(&stack, 2 * UNIT_BYTES);
    assert_in_range(counter(&stack, "kept"),
                    (COUNT - 2 * SEAL_COUNT - SORTED - KEPT) * (size_t)UNIT_BYTES, MIB);
    give(&stack, &other);
    end(&stack);
}

static void a_trim_gives_all_that_piled_up_upstream(void **state)
{
    struct stack stack = start_pile(PLENTY);

    (void)state;
    pile_up(&stack);
    complete_all();
    (void)give_one(&stack, &large_one);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    assert_int_equal(stack.leaf->live_count, 0);
    end(&stack);
}

static void need_takes_all_that_piled_up(void **state)
{
    struct stack stack = start_pile(PILED_UP * UNIT_BYTES + SEAL_MIB * MIB);
    struct rs_allocation all;

    (void)state;
    pile_up(&stack);
    complete_all();
    (void)give_one(&stack, &large_one); /* finds it done, and leaves most of it */
    complete_all();
    all = take(&stack, PILED_UP * UNIT_BYTES + SEAL_MIB * MIB);
    assert_int_equal(stack.leaf->live_count, 1);
    give(&stack, &all);
    end(&stack);
}

static void what_piled_up_goes_with_its_context(void **state)
{
    struct stack stack = start_pile(PLENTY);
    struct rs_mr *below = stack.mr->upstream[0];

    (void)state;
    pile_up(&stack);
    complete_all();
    (void)give_one(&stack, &large_one);
    stack.mr->ops.destroy(stack.mr, true);
    below->ops.destroy(below, true);
    free_sentinel(&sentinel);
    fake_leaf_destroy(stack.leaf);
}

static void an_epoch_waited_for_in_vain_is_known_among_many(void **state)
{
    enum { EPOCHS = 200 };
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b, c, small[EPOCHS];

    (void)state;
    for (unsigned i = 0; i < EPOCHS; i++)
        small[i] = take(&stack, UNIT_BYTES);
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    for (unsigned i = 0; i < EPOCHS; i++) {
        (void)give_busy(&stack, &small[i]);
        turn(&stack);
    }
    assert_int_equal(counter(&stack, "epochs_sealed"), EPOCHS + 1);
    c = take(&stack, 16 * MIB);
    assert_int_equal(counter(&stack, "waits"), 1);
    give(&stack, &b);
    give(&stack, &c);
    end(&stack);
}

static const struct rs_capture_stream capturing = {.identity = &device};

static void begin_capture(void)
{
    rs_capture_begin_enter();
    rs_capture_begin_leave(capturing, true);
}

static void nothing_is_sealed_while_a_stream_captures(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b, c;

    (void)state;
    begin_capture();
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB);
    assert_int_equal(device.records, 0);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    assert_int_equal(stack.leaf->live_bytes, 32 * MIB);
    rs_capture_ended((struct rs_capture_stream){.identity = &stack}); /* another stream's end */
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(device.records, 0);
    rs_capture_ended(capturing);
    complete_all();
    c = take(&stack, 16 * MIB);
    assert_int_equal(c.address, a.address);
    assert_int_equal(device.records, 1);
    give(&stack, &b);
    give(&stack, &c);
    end(&stack);
}

static void a_capture_that_does_not_begin_leaves_the_gate_open(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB);

    (void)state;
    rs_capture_begin_enter();
    rs_capture_begin_leave(capturing, false);
    (void)give_busy(&stack, &a);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(device.records, 1);
    end(&stack);
}

static void a_capture_that_is_just_beginning_holds_the_gate(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB), b;

    (void)state;
    rs_capture_begin_enter();
    (void)give_busy(&stack, &a);
    b = take(&stack, MIB);
    assert_true(b.address != a.address);
    assert_int_equal(device.records, 0);
    rs_capture_begin_leave(capturing, false);
    give(&stack, &b);
    end(&stack);
}

static struct {
    pthread_t thread;
    _Atomic bool began;
} beginner;

static void *begin_elsewhere(void *unused)
{
    rs_capture_begin_enter();
    atomic_store(&beginner.began, true);
    rs_capture_begin_leave(capturing, false);
    return unused;
}

static void start_to_begin(void)
{
    assert_int_equal(pthread_create(&beginner.thread, NULL, begin_elsewhere, NULL), 0);
    sleep_ms(WAIT_MS);
    assert_false(atomic_load(&beginner.began));
}

static void no_capture_begins_while_a_fence_is_recorded(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=2MiB");
    struct rs_allocation a = take(&stack, MIB);

    (void)state;
    atomic_store(&beginner.began, false);
    (void)give_busy(&stack, &a);
    device.in_record = start_to_begin;
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(pthread_join(beginner.thread, NULL), 0);
    assert_true(atomic_load(&beginner.began));
    end(&stack);
}

/* The driver's own wait has no bound, and an allocation of the driver's does not wait. */
static void no_allocation_waits_without_bound(void **state)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)state;
    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.records, 0);
    assert_int_equal(device.waits, 0);
    rs_capture_ended(capturing);
    complete_all();
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    give(&stack, &b);
    end(&stack);
}

/* Programs answer a refusal by freeing something and asking again. */
static void after_a_refusal_in_a_capture_the_next_free_waits(void **state)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 15 * MIB), spare = take(&stack, 512), b;

    (void)state;
    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(try(&stack, 15 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.waits, 0);
    give(&stack, &spare);
    assert_int_equal(device.waits, 1);
    b = take(&stack, 15 * MIB);
    spare = take(&stack, 512);
    give(&stack, &spare); /* only that one */
    assert_int_equal(device.waits, 1);
    give(&stack, &b);
    rs_capture_ended(capturing);
    end(&stack);
}

static void a_refused_record_leaves_the_blocks_open(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB), b, c;

    (void)state;
    device.record_answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    (void)give_busy(&stack, &a);
    complete_all();
    b = take(&stack, MIB);
    assert_true(b.address != a.address);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    device.record_answer = CUDA_SUCCESS;
    c = take(&stack, MIB);
    assert_int_equal(c.address, a.address);
    give(&stack, &b);
    give(&stack, &c);
    end(&stack);
}

static struct stack start_old_with(size_t capacity_bytes, const char *initial_size,
                                   size_t free_bytes)
{
    start_device(false);
    device.free_bytes = free_bytes;
    return stack_over(&rs_mr_descriptor_pool, capacity_bytes, OPTIONS(initial_size),
                      "free=deferred");
}

static struct stack start_old(size_t capacity_bytes, const char *initial_size)
{
    return start_old_with(capacity_bytes, initial_size, PLENTY);
}

static void on_an_old_driver_frees_wait_at_the_threshold(void **state)
{
    struct stack stack = start_old(PLENTY, "initial_size=8MiB");
    struct rs_allocation blocks[SEAL_COUNT], again;

    (void)state;
    for (unsigned i = 0; i < SEAL_COUNT; i++)
        blocks[i] = take(&stack, 1000);
    for (unsigned i = 0; i < SEAL_COUNT - 1; i++)
        (void)give_busy(&stack, &blocks[i]);
    assert_int_equal(device.waits, 0);
    again = take(&stack, 8 * MIB); /* grows */
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), SEAL_COUNT - 1);
    (void)give_busy(&stack, &blocks[SEAL_COUNT - 1]);
    assert_int_equal(device.waits, 1);
    assert_int_equal(atomic_load(&completed), atomic_load(&submitted));
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    assert_int_equal(counter(&stack, "full_waits"), 1);
    assert_int_equal(device.event_count, 0);
    give(&stack, &again);
    end(&stack);
}

/* No allocation could wait for it. */
static void on_an_old_driver_frees_wait_where_there_is_no_more(void **state)
{
    struct stack stack = start_old_with(16 * MIB, "initial_size=16MiB", 2 * SEAL_MIB * MIB - 1);
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)state;
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    assert_int_equal(device.waits, 1);
    give(&stack, &b);
    end(&stack);
}

static void on_an_old_driver_a_limit_is_no_more(void **state)
{
    struct stack stack = start_old(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB), b;

    (void)state;
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 0);
    atomic_store(&account.limit_bytes, 10 * MIB);
    b = take(&stack, 2 * MIB); /* grows, and sees the limit */
    (void)give_busy(&stack, &b);
    assert_int_equal(device.waits, 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

/* The driver has waited, and returns to us only after another thread's free. */
static void a_free_during_the_full_wait_is_not_covered(void **state)
{
    struct stack stack = start_old(64 * MIB, "initial_size=64MiB");
    struct rs_allocation a = take(&stack, 32 * MIB), b = take(&stack, 8 * MIB),
                         c = take(&stack, 16 * MIB), d;

    (void)state;
    late.stack = &stack;
    late.allocation = b;
    device.in_free = free_late;
    (void)give_busy(&stack, &a); /* so much is waited for at once */
    assert_null(device.in_free);
    d = take(&stack, 32 * MIB);
    assert_int_equal(d.address, a.address);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

/* Without memory for a new sentinel the one that is held back serves. */
static void the_sentinel_works_on_a_full_device(void **state)
{
    struct stack stack = start_old_with(16 * MIB, "initial_size=16MiB", 0);
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)state;
    rs_sentinel_prepare(&sentinel, CTX);
    assert_int_equal(device.live_sentinels, 2);
    device.is_full = true;
    for (unsigned i = 0; i < 2; i++) {
        (void)give_busy(&stack, &a);
        b = take(&stack, 16 * MIB);
        assert_int_equal(b.address, a.address);
        assert_int_equal(device.waits, i + 1);
        a = b;
    }
    (void)give_busy(&stack, &a);
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY); /* cannot wait */
    device.is_full = false;
    assert_int_equal(rs_mr_trim(stack.mr, SIZE_MAX), 0); /* may wait */
    b = take(&stack, 16 * MIB);
    give(&stack, &b);
    end(&stack);
}

static void nobody_gets_the_block_while_its_free_waits(void)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(late.stack->mr, 16 * MIB, NULL, &allocation), CUDA_SUCCESS);
    assert_true(allocation.address != late.allocation.address);
    late.allocation = allocation;
}

static void free_wait_waits_before_the_block_is_free(void **state)
{
    struct stack stack;
    struct rs_allocation a;

    (void)state;
    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=16MiB"), "free=wait");
    a = take(&stack, 16 * MIB);
    late.stack = &stack;
    late.allocation = a;
    device.in_free = nobody_gets_the_block_while_its_free_waits;
    (void)give_busy(&stack, &a);
    assert_null(device.in_free);
    give(&stack, &late.allocation);
    end(&stack);
}

static void free_wait_waits_in_each_free(void **state)
{
    struct stack stack;
    struct rs_allocation a, b;

    (void)state;
    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=16MiB"), "free=wait");
    for (unsigned i = 0; i < 3; i++) {
        a = take(&stack, 16 * MIB);
        (void)give_busy(&stack, &a);
        assert_int_equal(device.waits, i + 1);
        assert_int_equal(atomic_load(&completed), i + 1);
        assert_int_equal(counter(&stack, "quarantined"), 0);
    }
    assert_int_equal(counter(&stack, "full_waits"), 3);
    assert_int_equal(device.records, 0);
    a = take(&stack, 16 * MIB);
    device.free_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    charge(&stack);
    assert_int_equal(rs_mr_deallocate(stack.mr, &a, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    device.free_answer = CUDA_SUCCESS;
    b = take(&stack, 16 * MIB);
    assert_true(b.address != a.address); /* still allocated */
    give(&stack, &a);
    give(&stack, &b);
    end(&stack);
}

static void fixed_size_blocks_wait_too(void **state)
{
    struct stack stack;
    struct rs_allocation blocks[4], again;

    (void)state;
    start_device(true);
    stack = stack_over(&rs_mr_descriptor_fixed_size, 4 * MIB,
                       OPTIONS("block_size=1MiB", "blocks_to_preallocate=4"), "free=deferred");
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, MIB);
    rs_capture_begin_enter(); /* no fence can be had, and the driver's own wait fails */
    (void)give_busy(&stack, &blocks[2]);
    device.free_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(try(&stack, MIB, &again), CUDA_ERROR_OUT_OF_MEMORY);
    device.free_answer = CUDA_SUCCESS;
    rs_capture_begin_leave(capturing, false);
    complete_all();
    again = take(&stack, MIB);
    assert_int_equal(again.address, blocks[2].address);
    assert_int_equal(device.records, 1);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, i == 2 ? &again : &blocks[i]);
    end(&stack);
}

/* Another context of the program is current: the fences are this stack's context's all the same. */
static void fences_belong_to_the_context_of_the_memory(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 2 * MIB), b;
    CUcontext popped;

    (void)state;
    (void)fake_push(OTHER);
    (void)give_busy(&stack, &a);
    complete_all();
    b = take(&stack, 2 * MIB);
    assert_int_equal(b.address, a.address);
    assert_ptr_equal(device.events[0].context, CTX);
    give(&stack, &b);
    assert_ptr_equal(current(), OTHER);
    (void)fake_pop(&popped);
    end(&stack);
}

static void trim_gives_back_what_is_clean(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 8 * MIB);

    (void)state;
    (void)give_busy(&stack, &a);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 8 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(stack.leaf->live_bytes, 8 * MIB);
    complete_all();
    assert_int_equal(rs_mr_trim(stack.mr, 0), 8 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 0);
    end(&stack);
}

static size_t excess_bytes;

static size_t fake_excess_bytes(struct rs_mr *mr)
{
    (void)mr;
    return excess_bytes;
}

/* Over a pool that would pass on what exceeds a release threshold. */
static struct stack start_with_threshold(void)
{
    struct stack stack = start(PLENTY, "initial_size=512MiB");

    stack.mr->upstream[0]->ops.excess_bytes = fake_excess_bytes;
    stack.mr->has_threshold = true;
    excess_bytes = PLENTY;
    return stack;
}

static void what_is_in_excess_goes_upstream_when_the_program_synchronises(void **state)
{
    struct stack stack = start_with_threshold();
    struct rs_allocation a = take(&stack, 3 * MIB), b = take(&stack, 1000);

    (void)state;
    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    assert_int_equal(device.records, 0);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_BEGIN);
    assert_int_equal(device.records, 1);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_END_SOME); /* another stream */
    assert_int_equal(counter(&stack, "quarantined"), 3 * MIB + 1000);
    complete_all();
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_END_SOME);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(device.records, 1);
    end(&stack);
}

static void a_wait_for_the_whole_context_sees_late_fences(void **state)
{
    struct stack stack = start_with_threshold();
    struct rs_allocation a = take(&stack, 8 * MIB);

    (void)state;
    (void)give_busy(&stack, &a);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_BEGIN);
    complete_in(8);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_END_ALL);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

static void expect_no_give_back(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation a = take(stack, size_bytes);
    unsigned records;

    give(stack, &a);
    records = device.records;
    rs_mr_synchronise(stack->mr, RS_SYNCHRONISE_BEGIN);
    assert_int_equal(device.records, records);
    complete_all();
    rs_mr_synchronise(stack->mr, RS_SYNCHRONISE_END_ALL);
    assert_int_equal(counter(stack, "quarantined"), size_bytes);
    (void)rs_mr_trim(stack->mr, PLENTY);
}

static void what_is_no_excess_stays_when_the_program_synchronises(void **state)
{
    struct stack stack = start_with_threshold();

    (void)state;
    expect_no_give_back(&stack, MIB); /* of no use to the driver */
    excess_bytes = 0;
    expect_no_give_back(&stack, 8 * MIB);
    excess_bytes = PLENTY;
    stack.mr->has_threshold = false;
    expect_no_give_back(&stack, 8 * MIB);
    end(&stack);
}

static uint64_t older_work;

static void finish_older_work(void)
{
    complete_to(older_work);
}

/* The older fence is done when the younger is recorded, and that a little later. */
static void a_trim_waits_for_the_youngest_fence_too(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=512MiB");
    struct rs_allocation a = take(&stack, 8 * MIB), b = take(&stack, 8 * MIB);

    (void)state;
    older_work = give_busy(&stack, &a);
    seal(&stack);
    (void)give_busy(&stack, &b);
    device.in_record = finish_older_work;
    complete_in(8);
    (void)rs_mr_trim(stack.mr, 0);
    assert_null(device.in_record);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

/* Neither an epoch nor growth is possible then, but the driver's own wait is. */
static void without_host_memory_nothing_is_lost(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)state;
    host_is_full = true;
    (void)give_busy(&stack, &a); /* a free needs none */
    b = take(&stack, 16 * MIB);
    host_is_full = false;
    assert_int_equal(b.address, a.address);
    assert_int_equal(device.records, 0);
    assert_int_equal(device.waits, 1); /* of the free: no epoch can be made */
    give(&stack, &b);
    end(&stack);
}

static void records_need_host_memory(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=16MiB");
    struct rs_allocation a, b;

    (void)state;
    host_is_full = true;
    assert_int_equal(try(&stack, MIB, &a), CUDA_ERROR_OUT_OF_MEMORY);
    host_is_full = false;
    a = take(&stack, 16 * MIB); /* nothing was lost */
    (void)give_busy(&stack, &a);
    complete_all();
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    give(&stack, &b);
    end(&stack);
}

/* A failed allocation is not live: the peak, and so growth, must not remember it. */
/* A program that probes for memory must not hold from then on what it never had. */
static void a_refused_request_is_no_peak(void **state)
{
    struct stack stack = start(512 * MIB, "initial_size=0");
    struct rs_allocation a = take(&stack, 8 * MIB), b;

    (void)state;
    assert_int_equal(try(&stack, 1024 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(try(&stack, (size_t)PTRDIFF_MAX + 1, &b), CUDA_ERROR_OUT_OF_MEMORY);
    for (unsigned i = 0; i < 20; i++) {
        (void)give_busy(&stack, &a);
        complete_in(4);
        a = take(&stack, 8 * MIB);
    }
    assert_true(stack.leaf->live_bytes <= 24 * MIB);
    give(&stack, &a);
    end(&stack);
}

/* The one block that there is room for is freed while upstream says that there is none. */
static void free_and_complete(void *data)
{
    (void)data;
    free_late();
    complete_all();
}

static void a_refusal_counts_only_if_nothing_moved(void **state)
{
    struct stack stack = start(16 * MIB, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    (void)state;
    late.stack = &stack;
    late.allocation = a;
    stack.leaf->on_call = free_and_complete;
    b = take(&stack, 16 * MIB);
    assert_null(stack.leaf->on_call);
    give(&stack, &b);
    end(&stack);
}

/* It is tried again, and nothing is lost. */
static void what_upstream_does_not_take_back_stays(void **state)
{
    struct stack stack;
    struct rs_allocation a, b;

    (void)state;
    start_device(true);
    stack = stack_over(&rs_mr_descriptor_aligned, 16 * MIB, NULL, "free=deferred");
    a = take(&stack, 16 * MIB);
    stack.leaf->fail_deallocations_with = CUDA_ERROR_NOT_READY;
    give(&stack, &a);
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 16 * MIB);
    stack.leaf->fail_deallocations_with = CUDA_SUCCESS;
    b = take(&stack, 16 * MIB);
    give(&stack, &b);
    end(&stack);
}

static void memory_that_is_gone_needs_no_driver(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct rs_allocation a = take(&stack, 4 * MIB), b = take(&stack, 4 * MIB);
    unsigned queries, waits;

    (void)state;
    (void)give_busy(&stack, &a);
    (void)rs_mr_trim(stack.mr, 0);
    (void)give_busy(&stack, &b);
    queries = device.queries;
    waits = device.waits;
    rs_mr_destroy(stack.mr, true);
    assert_int_equal(device.queries, queries);
    assert_int_equal(device.waits, waits);
}

/* ---- clean blocks that are kept ---- */

enum { KEPT = 400, KEPT_BLOCK = 4096 };

static int holders[KEPT]; /* how often each was forgotten */

static void forget_one(const struct rs_place *where, void *holder)
{
    assert_ptr_equal(where, &place_with_holders);
    (*(int *)holder)++;
}

/* KEPT blocks were freed with their holders, and all but the last epoch of them are clean and kept.
 */
static struct stack start_kept(size_t capacity_bytes)
{
    struct rs_allocation blocks[KEPT];
    struct stack stack;

    start_device(true);
    memset(holders, 0, sizeof(holders));
    stack = stack_at(&place_with_holders, &rs_mr_descriptor_pool, capacity_bytes,
                     OPTIONS("initial_size=0"), "free=deferred");
    assert_true(stack.mr->keeps_holders);
    for (unsigned i = 0; i < KEPT; i++) {
        blocks[i] = take(&stack, KEPT_BLOCK);
        assert_null(blocks[i].holder);
    }
    for (unsigned i = 0; i < KEPT; i++) {
        blocks[i].holder = &holders[i];
        give(&stack, &blocks[i]);
        complete_all();
    }
    assert_true(counter(&stack, "kept") > 0);
    return stack;
}

static unsigned forgotten(void)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < KEPT; i++) {
        assert_true(holders[i] <= 1);
        sum += (unsigned)holders[i];
    }
    return sum;
}

static void a_kept_block_comes_back_with_its_holder(void **state)
{
    struct stack stack = start_kept(PLENTY);
    unsigned gone = forgotten();
    size_t kept = counter(&stack, "kept");
    struct rs_allocation again = take(&stack, KEPT_BLOCK), other;

    (void)state;
    assert_non_null(again.holder);
    assert_int_equal(*(int *)again.holder, 0);
    assert_int_equal(counter(&stack, "kept"), kept - KEPT_BLOCK);
    other = take(&stack, KEPT_BLOCK / 2); /* only just that size */
    assert_null(other.holder);
    assert_int_equal(counter(&stack, "kept"), kept - KEPT_BLOCK);
    assert_int_equal(forgotten(), gone);
    give(&stack, &again);
    give(&stack, &other);
    complete_all();
    end(&stack);
    assert_int_equal(forgotten(), KEPT);
}

/* What is kept goes upstream before upstream is asked for more, and no block goes there with a
 * holder that still knows it. */
static void kept_blocks_go_upstream_in_need(void **state)
{
    struct stack stack = start_kept(2 * MIB);
    struct rs_allocation large = take(&stack, 2 * MIB);

    (void)state;
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(forgotten(), KEPT);
    assert_null(large.holder);
    give(&stack, &large);
    complete_all();
    end(&stack);
}

static void kept_blocks_go_upstream_on_trim(void **state)
{
    struct stack stack = start_kept(PLENTY);

    (void)state;
    assert_true(rs_mr_trim(stack.mr, 0) > 0);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 0);
    assert_int_equal(stack.leaf->live_bytes, 0);
    assert_int_equal(forgotten(), KEPT);
    end(&stack);
}

/* Uses blocks of many sizes, one size after the other.  The most that was kept. */
static size_t most_kept(struct stack *stack)
{
    enum { SIZES = 40 };
    struct rs_allocation blocks[8];
    size_t most = 0;

    for (unsigned size = 1; size <= SIZES; size++) {
        for (unsigned round = 0; round < 60; round++) {
            for (unsigned i = 0; i < RS_ARRAY_LENGTH(blocks); i++)
                blocks[i] = take(stack, size * (16 << 10));
            for (unsigned i = 0; i < RS_ARRAY_LENGTH(blocks); i++) {
                give(stack, &blocks[i]);
                complete_all();
            }
            most = rs_max(most, counter(stack, "kept"));
        }
    }
    return most;
}

/* The share of what is held that may be kept; as much again may wait to be sorted. */
static void no_more_is_kept_than_a_share(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=256MiB");
    size_t kept_bytes = most_kept(&stack);
    struct rs_allocation live;

    (void)state;
    assert_in_range(kept_bytes, 2 * 256 * MIB / 64 + 1, 2 * 256 * MIB / 16); /* most is idle */
    end(&stack);

    stack = start(PLENTY, "initial_size=256MiB");
    live = take(&stack, 240 * MIB);
    assert_in_range(most_kept(&stack), MIB, 2 * 256 * MIB / 64);
    give(&stack, &live);
    end(&stack);
}

static struct stack start_host(void)
{
    struct stack stack = {.leaf = fake_leaf_create(PLENTY)};
    struct rs_mr *below;
    int error;

    start_device(true);
    stack.leaf->base.memories = 1u << RS_MEMORY_HOST;
    below = make_resource_at(&place, &rs_mr_descriptor_pool, &stack.leaf->base,
                             OPTIONS("initial_size=64MiB"), &error);
    assert_int_equal(error, 0);
    stack.mr =
        make_resource_at(&place, &rs_mr_descriptor_reuse, below, OPTIONS("free=deferred"), &error);
    assert_int_equal(error, 0);
    return stack;
}

/* Host memory that was used last is still in the processor's caches: as soon as it is clean it
 * comes back, though there is more that is free. */
static void host_memory_comes_back_at_once(void **state)
{
    struct stack stack = start_host();
    struct rs_allocation a, b, small;

    (void)state;
    a = take(&stack, 4 * MIB);
    (void)give_busy(&stack, &a);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    b = take(&stack, 4 * MIB);
    assert_true(b.address != a.address); /* it is still used */
    give(&stack, &b);
    complete_all();
    a = take(&stack, 4 * MIB);
    assert_int_equal(a.address, b.address); /* freed last */
    (void)give_busy(&stack, &a);
    complete_all();
    for (unsigned i = 1; i < 10; i++) {
        b = take(&stack, 4 * MIB);
        assert_int_equal(b.address, a.address);
        (void)give_busy(&stack, &b);
        complete_all();
    }
    small = take(&stack, 512); /* not worth it */
    give(&stack, &small);
    assert_int_equal(counter(&stack, "epochs_sealed"), 12);
    end(&stack);
}

/* One block at a time.  An allocation never waits for it; a free does, past 64 MiB. */
static void in_a_long_capture_frees_wait(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a;
    unsigned waits;

    (void)state;
    stack.leaf->is_tight = true; /* a gap would misalign what comes next */
    begin_capture();
    for (unsigned i = 0; i < 40; i++) {
        waits = device.waits;
        a = take(&stack, 8 * MIB);
        assert_int_equal(device.waits, waits);
        (void)give_busy(&stack, &a);
        assert_in_range(counter(&stack, "quarantined"), 0, 64 * MIB);
    }
    assert_in_range(device.waits, 4, 6);
    assert_int_equal(counter(&stack, "full_waits"), device.waits);
    assert_int_equal(device.records, 0);
    assert_in_range(stack.leaf->live_bytes, 0, 80 * MIB);
    rs_capture_ended(capturing);
    end(&stack);
}

/* It is there anyway. */
static void what_was_held_before_may_wait_for_the_end_of_a_capture(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=256MiB");
    struct rs_allocation a;

    (void)state;
    begin_capture();
    for (unsigned i = 0; i < 31; i++) {
        a = take(&stack, 8 * MIB);
        (void)give_busy(&stack, &a);
    }
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined"), 248 * MIB);
    a = take(&stack, 8 * MIB);
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    rs_capture_ended(capturing);
    end(&stack);
}

/* An allocation would find nothing, and does not wait. */
static void in_a_capture_frees_wait_early_where_upstream_is_full(void **state)
{
    struct stack stack;
    struct rs_allocation a;
    unsigned waits;

    (void)state;
    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY,
                       OPTIONS("initial_size=48MiB", "maximum_size=48MiB"), "free=deferred");
    begin_capture();
    for (unsigned i = 0; i < 40; i++) {
        waits = device.waits;
        a = take(&stack, 8 * MIB);
        assert_int_equal(device.waits, waits);
        (void)give_busy(&stack, &a);
    }
    assert_in_range(device.waits, 5, 20);
    assert_int_equal(device.records, 0);
    rs_capture_ended(capturing);
    end(&stack);
}

static void a_free_in_the_order_of_a_stream_does_not_wait_in_a_capture(void **state)
{
    struct fake_stream stream = {.id = 7}, other = {.id = 8};
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a;

    (void)state;
    begin_capture();
    for (unsigned i = 0; i < 40; i++) {
        a = take(&stack, 8 * MIB);
        (void)submit();
        charge(&stack);
        assert_int_equal(rs_mr_deallocate(stack.mr, &a, handle_of(i % 2 ? &stream : &other)),
                         CUDA_SUCCESS);
    }
    assert_int_equal(device.waits, 0);
    rs_capture_ended(capturing);
    end(&stack);
}

/* As on an old driver: full waits, when it is time, and none for what is scarce. */
static void frees_wait_where_the_driver_refuses_fences(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a;
    unsigned waits;

    (void)state;
    stack.leaf->is_tight = true; /* a gap would misalign what comes next */
    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < 40; i++) {
        waits = device.waits;
        a = take(&stack, 8 * MIB);
        assert_int_equal(device.waits, waits);
        (void)give_busy(&stack, &a);
    }
    assert_in_range(device.waits, 9, 12);
    assert_in_range(stack.leaf->live_bytes, 0, 48 * MIB);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    device.record_answer = CUDA_SUCCESS; /* for the moment only */
    for (unsigned i = 0; i < 8; i++) {
        a = take(&stack, 8 * MIB);
        (void)give_busy(&stack, &a);
    }
    assert_true(counter(&stack, "epochs_sealed") > 0);
    end(&stack);
}

/* Each free of host memory is to be sealed, and must not wait each time. */
static void host_memory_is_waited_for_by_the_size_of_it(void **state)
{
    struct stack stack = start_host();
    struct rs_allocation a;

    (void)state;
    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < 40; i++) {
        a = take(&stack, 4 * MIB);
        (void)give_busy(&stack, &a);
    }
    assert_in_range(device.waits, 1, 5);
    device.record_answer = CUDA_SUCCESS;
    end(&stack);
}

/* By the allocations, a block each; nothing is lost or found twice. */
static void what_has_come_back_is_sorted_bit_by_bit(void **state)
{
    enum { BACK = 2 * SEAL_COUNT };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    static struct rs_allocation blocks[BACK + SEAL_COUNT];
    size_t free_blocks;

    (void)state;
    for (unsigned i = 0; i < BACK + SEAL_COUNT; i++)
        blocks[i] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < BACK + SEAL_COUNT; i++) {
        give(&stack, &blocks[i]);
        complete_all();
    }
    assert_int_equal(counter(&stack, "kept"), BACK * UNIT_BYTES);
    free_blocks = rs_mr_free_blocks(stack.mr);
    for (unsigned i = 0; i < BACK; i++) {
        blocks[i] = take(&stack, UNIT_BYTES);
        assert_int_equal(counter(&stack, "kept"), (BACK - 1 - i) * UNIT_BYTES);
        assert_int_equal(rs_mr_free_blocks(stack.mr), free_blocks - 1 - i);
        for (unsigned j = 0; j < i; j++)
            assert_true(blocks[j].address != blocks[i].address);
    }
    for (unsigned i = 0; i < BACK; i++)
        give(&stack, &blocks[i]);
    complete_all();
    end(&stack);
}

/* Of large host memory the blocks used last, which are not searched for again, and none of another
 * size: what is kept splits what is free upstream. */
static void the_last_large_host_blocks_are_kept(void **state)
{
    struct stack stack = start_host();
    struct rs_allocation a, b, c, whole;

    (void)state;
    atomic_fetch_add(&account.held_bytes[RS_MEMORY_HOST], 16ull << 30); /* so several might be */
    a = take(&stack, 20 * MIB);
    b = take(&stack, 24 * MIB);
    give(&stack, &a);
    give(&stack, &b);
    complete_all();
    c = take(&stack, MIB);
    assert_int_equal(counter(&stack, "kept"), 24 * MIB); /* not a too */
    b = take(&stack, 24 * MIB);
    assert_int_equal(counter(&stack, "kept"), 0);
    give(&stack, &b);
    give(&stack, &c);
    complete_all();
    whole = take(&stack, 64 * MIB); /* goes before more is taken from the system */
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(stack.leaf->allocations, 1);
    give(&stack, &whole);
    complete_all();
    end(&stack);
    atomic_fetch_sub(&account.held_bytes[RS_MEMORY_HOST], 16ull << 30);
}

static void a_few_large_host_blocks_of_one_size_are_kept(void **state)
{
    struct stack stack = start_host();
    struct rs_allocation blocks[4], small;

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, 10 * MIB);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, &blocks[i]);
    complete_all();
    small = take(&stack, MIB);
    assert_int_equal(counter(&stack, "kept"), 40 * MIB);
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = take(&stack, 10 * MIB);
    assert_int_equal(counter(&stack, "kept"), 0);
    for (unsigned i = 0; i < 4; i++)
        give(&stack, &blocks[i]);
    give(&stack, &small);
    complete_all();
    end(&stack);
}

/* Each answer that a fence is done costs more than all else of such a pair. */
static void large_host_blocks_are_asked_for_when_there_is_no_other(void **state)
{
    struct stack stack = start_host();
    struct rs_allocation a = take(&stack, SEAL_MIB * MIB), b, c, d;

    (void)state;
    give(&stack, &a);
    complete_all();
    b = take(&stack, SEAL_MIB * MIB);
    assert_int_equal(device.queries, 0);
    give(&stack, &b);
    complete_all();
    assert_int_equal(device.records, 2);
    assert_int_equal(device.queries, 0);
    c = take(&stack, SEAL_MIB * MIB);
    assert_int_equal(device.queries, 1);
    assert_int_equal(counter(&stack, "kept"), SEAL_MIB * MIB);
    d = take(&stack, SEAL_MIB * MIB);
    assert_int_equal(device.queries, 1);
    assert_int_equal(c.address + d.address, a.address + b.address);
    assert_int_equal(stack.leaf->allocations, 1);
    give(&stack, &c);
    give(&stack, &d);
    complete_all();
    end(&stack);
}

/* Its frees go upstream at once. */
static void free_wait_keeps_nothing(void **state)
{
    struct rs_allocation a;
    struct stack stack;

    (void)state;
    start_device(true);
    stack = stack_at(&place_with_holders, &rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=0"),
                     "free=wait");
    assert_false(stack.mr->keeps_holders);
    a = take(&stack, KEPT_BLOCK);
    give(&stack, &a);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

static void the_report_is_exact(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation a = take(&stack, 1000), b = take(&stack, 2000), c;

    (void)state;
    assert_int_equal(counter(&stack, "quarantined"), 0);
    (void)give_busy(&stack, &a);
    (void)give_busy(&stack, &b);
    assert_int_equal(counter(&stack, "quarantined"), 3000);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 2);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    assert_int_equal(counter(&stack, "epochs_retired"), 0);
    complete_all();
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    assert_int_equal(counter(&stack, "epochs_retired"), 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    assert_int_equal(counter(&stack, "waits"), 0);
    assert_int_equal(counter(&stack, "waits_in_vain"), 0);
    assert_int_equal(counter(&stack, "full_waits"), 0);
    assert_int_equal(counter(&stack, "waited"), 0);
    c = take(&stack, 1);
    give(&stack, &c);
    end(&stack);
}

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 4000, HELD = 32, ADDRESSES = 1 << 20 };

/* What the latest work on each 512 bytes of the leaf's addresses was, and above it the number of
 * the stream in whose order they were freed. */
enum { STREAM_SHIFT = 48 };

static _Atomic uint64_t last_work[ADDRESSES];
static bool in_order; /* half of all calls are in the order of the thread's stream */
static _Atomic unsigned early;

static _Atomic uint64_t *work_at(CUdeviceptr address)
{
    size_t at = (size_t)(address - 0x10000000) / UNIT_BYTES;

    assert_true(at < ADDRESSES);
    return &last_work[at];
}

static void mark(const struct rs_allocation *allocation, uint64_t work,
                 const struct fake_stream *stream)
{
    uint64_t tag = stream ? (uint64_t)stream->id << STREAM_SHIFT : 0;

    for (size_t at = 0; at < allocation->size_bytes; at += UNIT_BYTES)
        atomic_store(work_at(allocation->address + at), work | tag);
}

static void expect_done(const struct rs_allocation *allocation, const struct fake_stream *stream)
{
    uint64_t done = atomic_load(&completed), last;

    for (size_t at = 0; at < allocation->size_bytes; at += UNIT_BYTES) {
        last = atomic_load(work_at(allocation->address + at));
        if (last << 16 >> 16 > done && !(stream && last >> STREAM_SHIFT == stream->id))
            atomic_fetch_add(&early, 1);
    }
}

struct worker {
    struct stack *stack;
    uint64_t seed;
    struct fake_stream stream;
};

static void *work(void *data)
{
    struct worker *worker = data;
    struct rs_allocation held[HELD];
    unsigned count = 0;

    thread.depth = 0;
    (void)fake_push(CTX);
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t random = test_random(&worker->seed);
        struct fake_stream *stream = in_order && random >> 40 & 1 ? &worker->stream : NULL;
        if (count < HELD && (count == 0 || random % 2)) {
            size_t bytes = 1 + test_random(&worker->seed) % (random % 64 ? 8192 : 2 * MIB);
            if (rs_mr_allocate(worker->stack->mr, bytes, handle_of(stream), &held[count]) !=
                CUDA_SUCCESS)
                continue;
            expect_done(&held[count++], stream);
        } else {
            unsigned at = (unsigned)(random >> 8) % count;
            mark(&held[at], submit(), stream);
            assert_int_equal(rs_mr_deallocate(worker->stack->mr, &held[at], handle_of(stream)),
                             CUDA_SUCCESS);
            held[at] = held[--count];
        }
        if (random % 16 == 0)
            complete_to(atomic_load(&submitted) -
                        (random >> 16) % 64 % (atomic_load(&submitted) + 1));
        if (random % 512 == 0) {
            rs_capture_begin_enter();
            rs_capture_begin_leave((struct rs_capture_stream){.identity = worker}, true);
        } else if (random % 64 == 0) {
            rs_capture_ended((struct rs_capture_stream){.identity = worker});
        }
    }
    while (count)
        assert_int_equal(rs_mr_deallocate(worker->stack->mr, &held[--count], NULL), CUDA_SUCCESS);
    for (unsigned i = 0; i < ROUNDS; i++)
        rs_capture_ended((struct rs_capture_stream){.identity = worker});
    return NULL;
}

static void run_threads(struct stack *stack)
{
    pthread_t threads[THREADS];
    struct worker workers[THREADS]; /* two on each stream */

    for (size_t i = 0; i < ADDRESSES; i++)
        atomic_store(&last_work[i], 0);
    atomic_store(&early, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){stack, 0x9e3779b97f4a7c15 * (i + 1), {.id = 1 + i / 2}};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    complete_all();
    assert_int_equal(atomic_load(&early), 0);
}

/* ---- in the order of a stream ---- */

static struct rs_allocation take_on(struct stack *stack, size_t size_bytes, CUstream stream)
{
    struct rs_allocation allocation;

    charge(stack);
    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, stream, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, size_bytes);
    assert_true(rs_mr_check(stack->mr));
    return allocation;
}

static void give_on(struct stack *stack, const struct rs_allocation *allocation, CUstream stream)
{
    (void)submit();
    charge(stack);
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, stream), CUDA_SUCCESS);
    assert_true(rs_mr_check(stack->mr));
}

static void the_same_stream_gets_its_block_at_once(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b;

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        give_on(&stack, &a, s);
        assert_int_equal(counter(&stack, "quarantined"), 4 * MIB);
        b = take_on(&stack, 4 * MIB, s);
        assert_int_equal(b.address, a.address);
        assert_int_equal(counter(&stack, "quarantined"), 0);
        a = b;
    }
    assert_int_equal(counter(&stack, "stream_reuses"), 1000);
    assert_int_equal(device.records, 0);
    give_on(&stack, &a, s);
    end(&stack);
}

static void another_stream_waits_for_the_fence(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct fake_stream one = {.id = 7}, two = {.id = 8};
    struct rs_allocation a = take_on(&stack, 4 * MIB, handle_of(&one)), b, c, d;

    (void)state;
    give_on(&stack, &a, handle_of(&one));
    b = take_on(&stack, 4 * MIB, handle_of(&two));
    assert_true(b.address != a.address);
    c = take_on(&stack, 4 * MIB, NULL); /* on any stream */
    assert_true(c.address != a.address);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    d = take_on(&stack, 4 * MIB, handle_of(&two));
    assert_int_equal(d.address, a.address);
    give_on(&stack, &b, handle_of(&two));
    give_on(&stack, &c, NULL);
    give_on(&stack, &d, handle_of(&two));
    end(&stack);
}

/* Of merged epochs too. */
static void ordered_blocks_can_be_taken_back_however_many_there_are(void **state)
{
    enum { EPOCHS = 300 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    static struct rs_allocation blocks[EPOCHS];

    (void)state;
    for (unsigned i = 0; i < EPOCHS; i++)
        blocks[i] = take_on(&stack, UNIT_BYTES * (i + 1), s);
    for (unsigned i = 0; i < EPOCHS; i++) {
        give_on(&stack, &blocks[i], s);
        turn(&stack);
    }
    assert_int_equal(counter(&stack, "epochs_sealed"), EPOCHS);
    assert_int_equal(counter(&stack, "quarantined_blocks"), EPOCHS);
    for (unsigned i = 0; i < EPOCHS; i += 10)
        blocks[i] = take_on(&stack, UNIT_BYTES * (i + 1), s);
    assert_int_equal(counter(&stack, "stream_reuses"), EPOCHS / 10);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    for (unsigned i = 0; i < EPOCHS; i += 10)
        give_on(&stack, &blocks[i], s);
    end(&stack);
}

/* The handle of a destroyed stream comes back for a new one; its block retires as others do. */
static void a_recycled_handle_is_another_stream(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a = take_on(&stack, 4 * MIB, handle_of(&stream)), b, c;

    (void)state;
    give_on(&stack, &a, handle_of(&stream));
    stream.id = 9;
    b = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_true(b.address != a.address);
    turn(&stack);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    c = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_int_equal(c.address, a.address);
    give_on(&stack, &b, handle_of(&stream));
    give_on(&stack, &c, handle_of(&stream));
    end(&stack);
}

/* What is captured runs later and again: neither a free nor an allocation in it has an order. */
static void a_capture_has_no_order(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 4 * MIB, s), c, d;

    (void)state;
    give_on(&stack, &a, s);
    stream.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    c = take_on(&stack, 4 * MIB, s);
    assert_true(c.address != a.address);
    give_on(&stack, &b, s);
    stream.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    d = take_on(&stack, 4 * MIB, s);
    assert_true(d.address != a.address && d.address != b.address);
    give_on(&stack, &d, s);
    stream.capture = CU_STREAM_CAPTURE_STATUS_NONE;
    stream.answer = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    d = take_on(&stack, 4 * MIB, s);
    assert_true(d.address != a.address && d.address != b.address);
    stream.answer = CUDA_SUCCESS;
    b = take_on(&stack, 4 * MIB, s);
    assert_int_equal(b.address, a.address); /* freed before the capture */
    a = take_on(&stack, 4 * MIB, s);
    assert_int_equal(counter(&stack, "stream_reuses"), 1);
    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    give_on(&stack, &c, s);
    give_on(&stack, &d, s);
    end(&stack);
}

/* Freed after its stream died: the handle is not asked about, and if it came back, it is another's.
 */
static void a_destroyed_stream_has_no_order(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 4 * MIB, s), c, d;

    (void)state;
    rs_stream_destroyed(s);
    stream.is_dead = true;
    give_on(&stack, &a, s);
    stream = (struct fake_stream){.id = 8}; /* a new stream with the handle */
    c = take_on(&stack, 4 * MIB, s);
    assert_true(c.address != a.address);
    give_on(&stack, &b, s); /* the first stream's: its work may still run */
    d = take_on(&stack, 4 * MIB, s);
    assert_true(d.address != a.address && d.address != b.address);
    give_on(&stack, &c, s);
    a = take_on(&stack, 4 * MIB, s);
    assert_int_equal(a.address, c.address); /* the new stream's own */
    give_on(&stack, &a, s);
    give_on(&stack, &d, s);
    end(&stack);
}

static void a_sealed_block_can_still_be_taken_back(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 6 * MIB, s),
                         c = take_on(&stack, 8 * MIB, s), d, other;
    uint64_t first;

    (void)state;
    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    give_on(&stack, &c, s);
    first = atomic_load(&submitted);
    turn(&stack);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    d = take_on(&stack, 6 * MIB, s); /* out of the middle */
    assert_int_equal(d.address, b.address);
    give_on(&stack, &d, s); /* freed again: behind that fence */
    complete_to(first);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 6 * MIB);
    other = take_on(&stack, 6 * MIB, NULL);
    assert_true(other.address != b.address);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    give_on(&stack, &other, NULL);
    end(&stack);
}

static void an_ordered_free_during_the_seal_is_not_covered(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 6 * MIB, s);
    uint64_t first;

    (void)state;
    late.stack = &stack;
    late.allocation = b;
    late.stream = s;
    give_on(&stack, &a, s);
    first = atomic_load(&submitted);
    device.in_record = free_late;
    turn(&stack); /* seals a; b is freed behind the fence */
    assert_null(device.in_record);
    complete_to(first);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 6 * MIB);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

static void only_blocks_that_fit_are_taken_back(void **state)
{
    static const struct {
        size_t freed, asked;
        bool fits;
    } rows[] = {
        {512, 1, true},
        {512, 512, true},
        {1024, 512, false},
        {4096, 4096, true},
        {4096, 3584, false},
        {4608, 4096, true},
        {9 * MIB, 8 * MIB, true},
        {10 * MIB, 8 * MIB, false},
        {8 * MIB, 8 * MIB + 1, false},
        {8 * MIB + 1, 8 * MIB, true},
        {1000, 1020, true}, /* both 1024 bytes upstream */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct stack stack = start(PLENTY, "initial_size=64MiB");
        struct fake_stream stream = {.id = 7};
        CUstream s = handle_of(&stream);
        struct rs_allocation a = take_on(&stack, rows[i].freed, s), b;
        give_on(&stack, &a, s);
        b = take_on(&stack, rows[i].asked, s);
        assert_int_equal(b.address == a.address, rows[i].fits);
        give_on(&stack, &b, s);
        end(&stack);
    }
}

static void the_best_fit_is_taken_back(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4608, s), b = take_on(&stack, 4096, s), c;

    (void)state;
    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    c = take_on(&stack, 4000, s);
    assert_int_equal(c.address, b.address);
    give_on(&stack, &c, s);
    end(&stack);
}

/* More than can be found by their stream: the rest waits for its fence, and none is lost. */
static void the_cache_is_bounded(void **state)
{
    enum { MANY = 120 }; /* fewer than are sealed at once */
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    static struct rs_allocation blocks[MANY];
    uint64_t found;

    (void)state;
    for (unsigned i = 0; i < MANY; i++)
        blocks[i] = take_on(&stack, 4096, s);
    for (unsigned i = 0; i < MANY; i++)
        give_on(&stack, &blocks[i], s);
    for (unsigned i = 0; i < MANY; i++)
        blocks[i] = take_on(&stack, 4096, s);
    found = counter(&stack, "stream_reuses");
    assert_true(found > 0 && found < MANY);
    assert_int_equal(counter(&stack, "quarantined_blocks"), MANY - found);
    for (unsigned i = 0; i < MANY; i++)
        give_on(&stack, &blocks[i], s);
    complete_all();
    turn(&stack);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

static void a_full_device_waits_for_ordered_blocks_too(void **state)
{
    struct stack stack = start(8 * MIB, "initial_size=8MiB");
    struct fake_stream one = {.id = 7}, two = {.id = 8};
    struct rs_allocation a = take_on(&stack, 8 * MIB, handle_of(&one)), b;
    unsigned ms = 30;
    pthread_t helper;

    (void)state;
    give_on(&stack, &a, handle_of(&one));
    assert_int_equal(pthread_create(&helper, NULL, complete_soon, &ms), 0);
    b = take_on(&stack, 8 * MIB, handle_of(&two));
    assert_int_equal(pthread_join(helper, NULL), 0);
    assert_int_equal(b.address, a.address);
    give_on(&stack, &b, handle_of(&two));
    end(&stack);
}

static void without_stream_numbers_there_is_no_order(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a = take_on(&stack, 4 * MIB, handle_of(&stream)), b;

    (void)state;
    rs_driver.cuStreamGetId = NULL;
    give_on(&stack, &a, handle_of(&stream));
    b = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_true(b.address != a.address);
    give_on(&stack, &b, handle_of(&stream));
    end(&stack);
}

/* The handle means another stream in another context. */
static void the_legacy_stream_is_the_current_contexts(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation a = take_on(&stack, 4 * MIB, CU_STREAM_LEGACY), b;
    CUcontext popped;

    (void)state;
    give_on(&stack, &a, CU_STREAM_LEGACY);
    (void)fake_push(OTHER);
    b = take_on(&stack, 4 * MIB, CU_STREAM_LEGACY);
    assert_true(b.address != a.address);
    give_on(&stack, &b, CU_STREAM_LEGACY);
    (void)fake_pop(&popped);
    b = take_on(&stack, 4 * MIB, CU_STREAM_LEGACY);
    assert_int_equal(b.address, a.address);
    give_on(&stack, &b, CU_STREAM_LEGACY);
    end(&stack);
}

/* As cudaFreeAsync: the block waits in quarantine, and its free does not. */
static void free_wait_waits_for_no_free_on_a_stream(void **state)
{
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a, b;
    struct stack stack;

    (void)state;
    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=8MiB"), "free=wait");
    a = take_on(&stack, 4 * MIB, handle_of(&stream));
    give_on(&stack, &a, handle_of(&stream));
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined"), 4 * MIB);
    b = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_true(b.address != a.address); /* this mode knows no order */
    complete_all();
    turn(&stack);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(device.waits, 0);
    give(&stack, &b);
    assert_int_equal(device.waits, 1);
    end(&stack);
}

static void a_failed_seal_leaves_ordered_blocks_open(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 6 * MIB, s), c;

    (void)state;
    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    begin_capture();
    turn(&stack);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    rs_capture_ended(capturing);
    c = take_on(&stack, 4 * MIB, s);
    assert_int_equal(c.address, a.address);
    turn(&stack);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    give_on(&stack, &c, s);
    end(&stack);
}

static void threads_with_streams_never_get_a_busy_block(void **state)
{
    struct stack stack = start(96 * MIB, "initial_size=16MiB");

    (void)state;
    in_order = true;
    run_threads(&stack);
    in_order = false;
    assert_true(counter(&stack, "stream_reuses") > 100);
    assert_true(counter(&stack, "epochs_retired") > 1);
    end(&stack);
}

static void threads_never_get_a_busy_block(void **state)
{
    struct stack stack = start(96 * MIB, "initial_size=16MiB");

    (void)state;
    run_threads(&stack);
    assert_true(counter(&stack, "epochs_retired") > 10);
    assert_true(counter(&stack, "epochs_sealed") >= counter(&stack, "epochs_retired"));
    end(&stack);
}

static void threads_never_get_a_busy_block_on_an_old_driver(void **state)
{
    struct stack stack = start_old(96 * MIB, "initial_size=16MiB");

    (void)state;
    run_threads(&stack);
    assert_true(counter(&stack, "full_waits") > 10);
    end(&stack);
}

/* ---- over a fallback ---- */

/* reuse over a fallback from a pool to a second leaf of any size. */
static struct stack start_with_fallback(bool has_fences, size_t capacity_bytes,
                                        struct fake_leaf **second)
{
    struct stack stack = {.leaf = fake_leaf_create(capacity_bytes)};
    struct rs_allocation peak;
    struct rs_mr *below;
    int error;

    start_device(has_fences);
    *second = fake_leaf_create(PLENTY);
    (*second)->next_address = (CUdeviceptr)1 << 40;
    below = make_resource_at(&place, &rs_mr_descriptor_pool, &stack.leaf->base, NULL, &error);
    below = make_resource_of_two(&place, &rs_mr_descriptor_fallback, below, &(*second)->base, NULL,
                                 &error);
    stack.mr = make_resource_at(&place, &rs_mr_descriptor_reuse, below, NULL, &error);
    assert_non_null(stack.mr);
    /* The program has used much at once before, so that growth is free. */
    peak = take(&stack, 4096 * MIB);
    give(&stack, &peak);
    (void)rs_mr_trim(stack.mr, 0);
    (*second)->allocations = 0;
    device.waits = 0;
    return stack;
}

static void end_with_fallback(struct stack *stack)
{
    assert_true(rs_mr_check(stack->mr));
    complete_all();
    rs_mr_destroy(stack->mr, false);
    free_sentinel(&sentinel);
    assert_int_equal(device.wrong_calls, 0);
    assert_int_equal(device.live_sentinels, 0);
}

/* What is quarantined would do, within the bound: that is better than slow memory. */
static void a_fallback_waits_for_what_will_be_clean_soon(void **state)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 64 * MIB, &second);
    struct rs_allocation large = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), again;

    (void)state;
    give_busy(&stack, &large);
    complete_in(3);
    again = take(&stack, 48 * MIB);
    assert_int_equal(second->allocations, 0);
    assert_int_equal(counter(&stack, "waits_in_vain"), 0);
    give(&stack, &again);
    give(&stack, &small);
    end_with_fallback(&stack);
}

/* Work that lasts is not waited for: neither the 30 s before out-of-memory, nor twice. */
static void a_fallback_does_not_wait_long(void **state)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 64 * MIB, &second);
    struct rs_allocation large = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), spilled[3];
    uint64_t begin_ns = rs_clock_ns();

    (void)state;
    give_busy(&stack, &large);
    for (unsigned i = 0; i < 3; i++)
        spilled[i] = take(&stack, 48 * MIB);
    assert_int_equal(second->allocations, 3);
    assert_int_equal(counter(&stack, "waits_in_vain"), 1);
    assert_in_range(rs_clock_ns() - begin_ns, WAIT_MS * 1000000ull, 5000 * 1000000ull);
    complete_all();
    large = take(&stack, 48 * MIB);
    assert_int_equal(second->allocations, 3); /* home again */
    give(&stack, &large);
    give(&stack, &small);
    for (unsigned i = 0; i < 3; i++)
        give(&stack, &spilled[i]);
    end_with_fallback(&stack);
}

/* More than all that is freed and free: no wait would help. */
static void a_fallback_does_not_wait_in_vain(void **state)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 64 * MIB, &second);
    struct rs_allocation kept = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), large;

    (void)state;
    give_busy(&stack, &small);
    large = take(&stack, 32 * MIB);
    assert_int_equal(second->allocations, 1);
    assert_int_equal(counter(&stack, "waits"), 0);
    give(&stack, &large);
    give(&stack, &kept);
    end_with_fallback(&stack);
}

static void on_an_old_driver_a_fallback_does_not_wait(void **state)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(false, 64 * MIB, &second);
    struct rs_allocation kept = take(&stack, 48 * MIB), small = take(&stack, 16 * MIB), spilled;

    (void)state;
    give_busy(&stack, &small);
    spilled = take(&stack, 16 * MIB);
    assert_int_equal(second->allocations, 1);
    assert_int_equal(device.waits, 0);
    give(&stack, &spilled);
    give(&stack, &kept);
    end_with_fallback(&stack);
}

/* Only when neither has memory, the long wait is due. */
static void both_full_waits_before_out_of_memory(void **state)
{
    struct fake_leaf *second;
    struct stack stack = start_with_fallback(true, 16 * MIB, &second);
    struct rs_allocation first = take(&stack, 16 * MIB), spilled, again;
    pthread_t completer;

    (void)state;
    second->capacity_bytes = 16 * MIB;
    spilled = take(&stack, 16 * MIB);
    give_busy(&stack, &spilled);
    assert_int_equal(pthread_create(&completer, NULL, complete_soon, &(unsigned){50}), 0);
    again = take(&stack, 16 * MIB);
    pthread_join(completer, NULL);
    assert_int_equal(second->allocations, 2);
    give(&stack, &again);
    give(&stack, &first);
    end_with_fallback(&stack);
}

static void held_memory_can_be_asked_for(void **state)
{
    struct stack stack = start(PLENTY, "initial_size=4MiB");
    struct rs_allocation block = take(&stack, 4 * MIB), held;

    (void)state;
    give_busy(&stack, &block);
    assert_int_equal(rs_mr_allocate_held(stack.mr, 4 * MIB, NULL, &held), CUDA_ERROR_NOT_READY);
    complete_all();
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0); /* seals */
    assert_int_equal(rs_mr_allocate_held(stack.mr, 4 * MIB, NULL, &held), CUDA_SUCCESS);
    assert_int_equal(stack.leaf->allocations, 1);
    give(&stack, &held);
    end(&stack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_huge_block_is_placed_beside_nothing_that_is_done_with),
        cmocka_unit_test(huge_blocks_of_one_size_ask_for_no_fence),
        cmocka_unit_test(a_freed_block_waits_for_its_fence),
        cmocka_unit_test(a_free_after_the_seal_is_not_covered),
        cmocka_unit_test(a_free_during_the_seal_is_not_covered),
        cmocka_unit_test(small_frees_are_sealed_by_the_hundred),
        cmocka_unit_test(a_large_free_is_sealed_at_once),
        cmocka_unit_test(a_free_gets_one_answer_that_a_fence_is_done),
        cmocka_unit_test(frees_behind_many_epochs_seal_seldom),
        cmocka_unit_test(a_seal_asks_once_however_much_was_freed_while_the_gpu_is_stuck),
        cmocka_unit_test(a_merged_epoch_waits_for_its_youngest_fence),
        cmocka_unit_test(what_piled_up_goes_upstream_a_few_at_a_time),
        cmocka_unit_test(need_takes_what_piled_up_in_steps),
        cmocka_unit_test(an_allocation_sorts_a_bounded_part_of_what_is_clean),
        cmocka_unit_test(a_trim_gives_all_that_piled_up_upstream),
        cmocka_unit_test(need_takes_all_that_piled_up),
        cmocka_unit_test(what_piled_up_goes_with_its_context),
        cmocka_unit_test(an_epoch_waited_for_in_vain_is_known_among_many),
        cmocka_unit_test(ordered_blocks_can_be_taken_back_however_many_there_are),
        cmocka_unit_test(of_many_epochs_only_those_that_are_done_are_retired),
        cmocka_unit_test(what_is_asked_for_exactly_is_exact),
        cmocka_unit_test(what_threads_free_side_by_side_is_sealed_together),
        cmocka_unit_test(growth_is_free_up_to_the_peak_and_a_little),
        cmocka_unit_test(growth_is_not_free_past_the_initial_size),
        cmocka_unit_test(within_the_allowance_growth_is_better_than_a_cut),
        cmocka_unit_test(past_the_allowance_a_wait_is_better_than_a_cut),
        cmocka_unit_test(past_the_allowance_a_cut_is_better_than_growth),
        cmocka_unit_test(past_the_allowance_what_is_clean_by_now_spares_a_cut),
        cmocka_unit_test(other_memories_do_not_count_against_growth),
        cmocka_unit_test(past_the_peak_an_epoch_is_waited_for_once),
        cmocka_unit_test(a_wait_ends_with_the_work),
        cmocka_unit_test(growth_waits_for_open_frees_too),
        cmocka_unit_test(before_out_of_memory_all_is_waited_for),
        cmocka_unit_test(threads_that_wait_for_the_same_work_all_go_on),
        cmocka_unit_test(a_fence_that_can_never_be_done_is_not_waited_for),
        cmocka_unit_test(nothing_is_sealed_while_a_stream_captures),
        cmocka_unit_test(a_capture_that_does_not_begin_leaves_the_gate_open),
        cmocka_unit_test(a_capture_that_is_just_beginning_holds_the_gate),
        cmocka_unit_test(no_capture_begins_while_a_fence_is_recorded),
        cmocka_unit_test(no_allocation_waits_without_bound),
        cmocka_unit_test(after_a_refusal_in_a_capture_the_next_free_waits),
        cmocka_unit_test(a_refused_record_leaves_the_blocks_open),
        cmocka_unit_test(in_a_long_capture_frees_wait),
        cmocka_unit_test(what_was_held_before_may_wait_for_the_end_of_a_capture),
        cmocka_unit_test(in_a_capture_frees_wait_early_where_upstream_is_full),
        cmocka_unit_test(a_free_in_the_order_of_a_stream_does_not_wait_in_a_capture),
        cmocka_unit_test(frees_wait_where_the_driver_refuses_fences),
        cmocka_unit_test(host_memory_is_waited_for_by_the_size_of_it),
        cmocka_unit_test(on_an_old_driver_frees_wait_at_the_threshold),
        cmocka_unit_test(on_an_old_driver_frees_wait_where_there_is_no_more),
        cmocka_unit_test(on_an_old_driver_a_limit_is_no_more),
        cmocka_unit_test(the_sentinel_works_on_a_full_device),
        cmocka_unit_test(a_free_during_the_full_wait_is_not_covered),
        cmocka_unit_test(free_wait_waits_in_each_free),
        cmocka_unit_test(free_wait_waits_before_the_block_is_free),
        cmocka_unit_test(fixed_size_blocks_wait_too),
        cmocka_unit_test(fences_belong_to_the_context_of_the_memory),
        cmocka_unit_test(trim_gives_back_what_is_clean),
        cmocka_unit_test(what_is_in_excess_goes_upstream_when_the_program_synchronises),
        cmocka_unit_test(a_wait_for_the_whole_context_sees_late_fences),
        cmocka_unit_test(what_is_no_excess_stays_when_the_program_synchronises),
        cmocka_unit_test(a_trim_waits_for_the_youngest_fence_too),
        cmocka_unit_test(without_host_memory_nothing_is_lost),
        cmocka_unit_test(records_need_host_memory),
        cmocka_unit_test(a_refused_request_is_no_peak),
        cmocka_unit_test(a_refusal_counts_only_if_nothing_moved),
        cmocka_unit_test(what_upstream_does_not_take_back_stays),
        cmocka_unit_test(memory_that_is_gone_needs_no_driver),
        cmocka_unit_test(a_kept_block_comes_back_with_its_holder),
        cmocka_unit_test(kept_blocks_go_upstream_in_need),
        cmocka_unit_test(kept_blocks_go_upstream_on_trim),
        cmocka_unit_test(no_more_is_kept_than_a_share),
        cmocka_unit_test(host_memory_comes_back_at_once),
        cmocka_unit_test(what_has_come_back_is_sorted_bit_by_bit),
        cmocka_unit_test(the_last_large_host_blocks_are_kept),
        cmocka_unit_test(a_few_large_host_blocks_of_one_size_are_kept),
        cmocka_unit_test(large_host_blocks_are_asked_for_when_there_is_no_other),
        cmocka_unit_test(free_wait_keeps_nothing),
        cmocka_unit_test(the_report_is_exact),
        cmocka_unit_test(a_fallback_waits_for_what_will_be_clean_soon),
        cmocka_unit_test(a_fallback_does_not_wait_long),
        cmocka_unit_test(a_fallback_does_not_wait_in_vain),
        cmocka_unit_test(on_an_old_driver_a_fallback_does_not_wait),
        cmocka_unit_test(both_full_waits_before_out_of_memory),
        cmocka_unit_test(held_memory_can_be_asked_for),
        cmocka_unit_test(the_same_stream_gets_its_block_at_once),
        cmocka_unit_test(another_stream_waits_for_the_fence),
        cmocka_unit_test(a_recycled_handle_is_another_stream),
        cmocka_unit_test(a_capture_has_no_order),
        cmocka_unit_test(a_destroyed_stream_has_no_order),
        cmocka_unit_test(a_sealed_block_can_still_be_taken_back),
        cmocka_unit_test(an_ordered_free_during_the_seal_is_not_covered),
        cmocka_unit_test(only_blocks_that_fit_are_taken_back),
        cmocka_unit_test(the_best_fit_is_taken_back),
        cmocka_unit_test(the_cache_is_bounded),
        cmocka_unit_test(a_full_device_waits_for_ordered_blocks_too),
        cmocka_unit_test(without_stream_numbers_there_is_no_order),
        cmocka_unit_test(the_legacy_stream_is_the_current_contexts),
        cmocka_unit_test(free_wait_waits_for_no_free_on_a_stream),
        cmocka_unit_test(a_failed_seal_leaves_ordered_blocks_open),
        cmocka_unit_test(threads_with_streams_never_get_a_busy_block),
        cmocka_unit_test(threads_never_get_a_busy_block),
        cmocka_unit_test(threads_never_get_a_busy_block_on_an_old_driver),
    };
    return cmocka_run_group_tests_name("reuse", tests, NULL, NULL);
}
