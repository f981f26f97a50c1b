/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"

#include "../../unit/fake_vmm.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream.h"
#include "fake_threads.h"
#include "ledger/account.h"
#include "resource/expression.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LOOK_NS = 500,       /* a look at the clock: each is beside a call of the driver's */
    LATE_NS = 55 * 1000, /* a sleeper wakes so late: Linux's timer slack is 50 us */
    UNIT_BYTES = 2 << 20,
    SHARING_BYTES = 1 << 20,    /* smaller blocks share units */
    ALLOCATION_NS = 100 * 1000, /* what cuMemAlloc takes a thread of several */
};

#define CONTEXT ((CUcontext)(uintptr_t)0x1000)

struct fake_device fake_device;

struct event {
    uint64_t done_ns;
};

/* A driver block's size stands at an index that is its address. */
static size_t *sizes;
static size_t size_count;

static struct rs_account device_account, account;
static struct rs_sentinel sentinel;
static struct rs_own_stream own_stream;
static struct rs_environment environment;

/* ---- time ---- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_nanosleep(const struct timespec *delay, struct timespec *left);
int __wrap_sched_yield(void);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    fake_device.now_ns += LOOK_NS; /* no turn is handed over: locks are held here */
    out->tv_sec = (time_t)(fake_device.now_ns / 1000000000u);
    out->tv_nsec = (long)(fake_device.now_ns % 1000000000u);
    return 0;
}

int __wrap_nanosleep(const struct timespec *delay, struct timespec *left)
{
    (void)left;
    fake_threads_pass(LATE_NS + (uint64_t)delay->tv_sec * 1000000000u + (uint64_t)delay->tv_nsec);
    return 0;
}

int __wrap_sched_yield(void)
{
    fake_threads_pass(LOOK_NS);
    return 0;
}

void fake_device_operate(uint64_t operation_ns)
{
    struct fake_device *device = &fake_device;

    fake_threads_pass(operation_ns);
    if (device->lag_ns == 0)
        return;
    if (device->gpu_ns == 0)
        device->gpu_ns = device->now_ns;
    if (device->gpu_ns < device->now_ns) {
        device->idle_ns += device->now_ns - device->gpu_ns;
        device->gpu_ns = device->now_ns;
    }
    device->gpu_ns += 2 * operation_ns;
    device->busy_ns += 2 * operation_ns;
    if (device->gpu_ns > device->now_ns + device->lag_ns)
        fake_threads_pass(device->gpu_ns - device->lag_ns - device->now_ns);
}

/* ---- the driver ---- */

static CUresult fake_get_current(CUcontext *out)
{
    *out = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof(struct event));
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static CUresult fake_record(CUcontext context, CUevent event)
{
    (void)context;
    ((struct event *)(void *)event)->done_ns = fake_device.gpu_ns;
    fake_device.fences++;
    return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent event)
{
    fake_device.looks++;
    return ((struct event *)(void *)event)->done_ns <= fake_device.now_ns ? CUDA_SUCCESS
                                                                          : CUDA_ERROR_NOT_READY;
}

size_t fake_device_taken_bytes(size_t size_bytes)
{
    return size_bytes < SHARING_BYTES ? size_bytes
                                      : (size_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

/* Addresses are UNIT_BYTES apart at least, and never given out twice. */
static CUresult fake_allocate(CUdeviceptr *out, size_t size_bytes)
{
    static CUdeviceptr next = (CUdeviceptr)1 << 40;
    size_t taken_bytes = fake_device_taken_bytes(size_bytes), index;

    if (fake_threads_is_one())
        fake_threads_pass(ALLOCATION_NS);
    if (size_bytes > fake_device.capacity_bytes ||
        fake_device.held_bytes + taken_bytes > fake_device.capacity_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    index = (next - ((CUdeviceptr)1 << 40)) / UNIT_BYTES;
    if (index >= size_count) {
        size_t more = 2 * index + 1024;
        sizes = realloc(sizes, more * sizeof(*sizes));
        if (!sizes)
            abort();
        memset(sizes + size_count, 0, (more - size_count) * sizeof(*sizes));
        size_count = more;
    }
    sizes[index] = size_bytes;
    *out = next;
    next += (size_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    fake_device.held_bytes += taken_bytes;
    if (fake_device.peak_bytes < fake_device.held_bytes)
        fake_device.peak_bytes = fake_device.held_bytes;
    fake_device.allocations += size_bytes != RS_SENTINEL_BYTES;
    return CUDA_SUCCESS;
}

static void forget(CUdeviceptr address)
{
    size_t index = (address - ((CUdeviceptr)1 << 40)) / UNIT_BYTES;

    fake_device.held_bytes -= fake_device_taken_bytes(sizes[index]);
    fake_device.frees += sizes[index] != RS_SENTINEL_BYTES;
    sizes[index] = 0;
}

/* As cuMemFree: when the GPU is done. */
static CUresult fake_free(CUdeviceptr address)
{
    if (fake_device.now_ns < fake_device.gpu_ns)
        fake_device.now_ns = fake_device.gpu_ns;
    forget(address);
    return CUDA_SUCCESS;
}

/* On our own stream, which the program's work does not hold up. */
static CUresult fake_free_async(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    forget(address);
    return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *out, unsigned flags)
{
    (void)flags;
    *out = (CUstream)(uintptr_t)0x2000;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_done(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

void fake_device_install(uint64_t lag_ns, size_t capacity_bytes)
{
    fake_device = (struct fake_device){.lag_ns = lag_ns, .capacity_bytes = capacity_bytes};
    fake_vmm_install(capacity_bytes);
    rs_driver.cuCtxGetCurrent = fake_get_current;
    rs_driver.cuThreadExchangeStreamCaptureMode = fake_exchange_mode;
    rs_driver.cuEventCreate = fake_event_create;
    rs_driver.cuEventDestroy_v2 = fake_event_destroy;
    rs_driver.cuEventQuery = fake_query;
    rs_driver.cuCtxRecordEvent = fake_record;
    rs_driver.cuMemAlloc_v2 = fake_allocate;
    rs_driver.cuMemFree_v2 = fake_free;
    rs_driver.cuMemFreeAsync = fake_free_async;
    rs_driver.cuStreamCreate = fake_stream_create;
    rs_driver.cuStreamDestroy_v2 = fake_stream_done;
    rs_driver.cuStreamQuery = fake_stream_done;
    rs_driver.cuStreamSynchronize = fake_stream_done;
    rs_account_begin(&device_account, NULL);
    rs_account_begin(&account, &device_account);
    environment = (struct rs_environment){
        .context = CONTEXT,
        .sentinel = &sentinel,
        .own_stream = &own_stream,
        .account = &account,
        .total_bytes = capacity_bytes,
        .free_bytes = capacity_bytes,
        .first_on_device = true,
    };
}

void fake_device_limit(size_t limit_bytes)
{
    device_account.limit_bytes = limit_bytes;
}

size_t fake_device_peak_bytes(void)
{
    return fake_device.peak_bytes + fake_vmm.peak_bytes;
}

/* ---- stacks ---- */

static void say(void *data, const char *line)
{
    (void)data;
    fprintf(stderr, "%s\n", line);
}

struct rs_mr *fake_device_stack(const char *text, bool deferred)
{
    static struct rs_source source = {"the expression", NULL};
    struct rs_diagnostics diagnostics = {.write = say};
    struct rs_expression *expression;
    struct rs_mr *mr = NULL;

    source.text = text;
    expression = rs_expression_parse(&source, &diagnostics);
    if (expression && deferred)
        expression = rs_expression_insert_reuse(expression);
    if (!expression)
        return NULL;
    environment.frees_are_ready = rs_expression_frees_are_ready(expression);
    if (!rs_expression_validate(expression, &environment, &diagnostics) ||
        rs_expression_build(expression, &environment, &diagnostics, &mr) != 0)
        mr = NULL;
    rs_expression_free(expression);
    return mr;
}
