/* SPDX-License-Identifier: Apache-2.0 */
#include "reuse_device.h"

#include "unit.h"

#include "base/lock.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "host_memory.h"

#include <semaphore.h>
#include <string.h>
#include <time.h>

struct fake_device device = {.lock = PTHREAD_MUTEX_INITIALIZER};
_Atomic uint64_t submitted, completed;
__thread struct fake_thread thread;

uint64_t submit(void)
{
    return atomic_fetch_add(&submitted, 1) + 1;
}

void complete_to(uint64_t count)
{
    uint64_t seen = atomic_load(&completed);

    while (seen < count && !atomic_compare_exchange_weak(&completed, &seen, count))
        ;
}

void complete_all(void)
{
    complete_to(atomic_load(&submitted));
}

/* ---- a clock that stands while complete_in is to come, or goes by looks at it ---- */

enum { SECOND_NS = 1000000000, LOOK_NS = 10 * 1000 };

static _Atomic uint64_t stands_at_ns; /* 0: it goes */
static _Atomic uint64_t step_ns;      /* what each look adds while it stands */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    uint64_t ns = atomic_load(&stands_at_ns);

    if (ns != 0 && atomic_load(&step_ns) != 0)
        ns = atomic_fetch_add(&stands_at_ns, step_ns);
    if (ns == 0 || clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, now);
    *now = (struct timespec){(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    return 0;
}

void complete_in(unsigned queries)
{
    device.complete_at = device.queries + queries;
    atomic_store(&stands_at_ns, 0);
    atomic_store(&stands_at_ns, rs_clock_ns());
}

void count_time(void)
{
    atomic_store(&stands_at_ns, rs_clock_ns());
    atomic_store(&step_ns, LOOK_NS);
}

void complete_after_ms(unsigned ms)
{
    count_time();
    device.complete_at = device.queries + ms * (1000000 / LOOK_NS);
}

/* ---- the device ---- */

CUcontext current(void)
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

CUresult fake_push(CUcontext context)
{
    assert_true(thread.depth < STACK_MAX);
    thread.stack[thread.depth++] = context;
    return CUDA_SUCCESS;
}

CUresult fake_pop(CUcontext *context)
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

static void *run(void *data)
{
    void (*const *action)(void) = data;

    thread.mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    (void)fake_push(CTX);
    (*action)();
    return NULL;
}

/* The thread that records holds the capture gate and the lock of its `reuse`. */
static void on_another_thread(void (*action)(void))
{
    pthread_t other;

    assert_int_equal(pthread_create(&other, NULL, run, &action), 0);
    pthread_join(other, NULL);
}

static struct {
    pthread_t thread;
    sem_t is_held, may_end;
} beginner;

static void *hold_gate(void *unused)
{
    rs_capture_begin_enter();
    sem_post(&beginner.is_held);
    sem_wait(&beginner.may_end);
    rs_capture_begin_leave((struct rs_capture_stream){.identity = &beginner}, false);
    return unused;
}

void begin_elsewhere(void)
{
    sem_init(&beginner.is_held, 0, 0);
    sem_init(&beginner.may_end, 0, 0);
    assert_int_equal(pthread_create(&beginner.thread, NULL, hold_gate, NULL), 0);
    sem_wait(&beginner.is_held);
}

void fail_to_begin_elsewhere(void)
{
    sem_post(&beginner.may_end);
    pthread_join(beginner.thread, NULL);
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
        on_another_thread(in_record);
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
    if (device.queries == device.complete_at) {
        complete_all();
        if (atomic_load(&step_ns) == 0)
            atomic_store(&stands_at_ns, 0);
    }
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

CUstream handle_of(struct fake_stream *stream)
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

struct rs_sentinel sentinel;
struct rs_account account;
const struct rs_environment environment = {
    .context = CTX,
    .sentinel = &sentinel,
    .account = &account,
    .total_bytes = (size_t)80 << 30,
    .first_on_device = true,
    .frees_are_ready = true,
};

void start_device(bool has_fences)
{
    host_left = -1;
    memset(device.events, 0, sizeof(device.events));
    device.event_count = 0;
    device.live_sentinels = 0;
    device.records = device.queries = device.waits = device.wrong_calls = 0;
    device.complete_at = 0;
    atomic_store(&step_ns, 0);
    atomic_store(&stands_at_ns, 0);
    device.record_answer = device.query_answer = device.free_answer = CUDA_SUCCESS;
    device.is_full = false;
    device.in_record = NULL;
    device.in_free = NULL;
    atomic_store(&submitted, 0);
    atomic_store(&completed, 0);
    rs_account_begin(&account, NULL);
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
        .cuStreamGetId = fake_stream_id,
        .cuStreamIsCapturing = fake_is_capturing,
    };
    thread.depth = 0;
    thread.mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    (void)fake_push(CTX);
}
