/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/device.h"

#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/own_stream.h"
#include "ledger/account.h"
#include "resource/expression.h"
#include "tool/replay/virtual_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LOOK_NS = 500,       /* a look at the clock: each is beside a call of the driver's */
    LATE_NS = 55 * 1000, /* a sleeper wakes so late: Linux's timer slack is 50 us */
    UNIT_BYTES = 2 << 20,
    SHARING_BYTES = 1 << 20, /* smaller blocks share units */
};

#define CONTEXT ((CUcontext)(uintptr_t)0x1000)

struct replay_device replay_device;
static bool is_installed;

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

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __real_nanosleep(const struct timespec *delay, struct timespec *left);
int __real_sched_yield(void);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (!is_installed)
        return __real_clock_gettime(clock, out);
    replay_device.now_ns += LOOK_NS;
    out->tv_sec = (time_t)(replay_device.now_ns / 1000000000u);
    out->tv_nsec = (long)(replay_device.now_ns % 1000000000u);
    return 0;
}

int __wrap_nanosleep(const struct timespec *delay, struct timespec *left)
{
    if (!is_installed)
        return __real_nanosleep(delay, left);
    replay_device.now_ns +=
        LATE_NS + (uint64_t)delay->tv_sec * 1000000000u + (uint64_t)delay->tv_nsec;
    return 0;
}

int __wrap_sched_yield(void)
{
    if (!is_installed)
        return __real_sched_yield();
    replay_device.now_ns += LOOK_NS;
    return 0;
}

void replay_device_operate(uint64_t operation_ns)
{
    struct replay_device *device = &replay_device;

    device->now_ns += operation_ns;
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
        device->now_ns = device->gpu_ns - device->lag_ns;
}

void replay_device_reach(uint64_t ns)
{
    struct replay_device *device = &replay_device;

    device->now_ns += ns;
    device->recorded_ns += ns;
    if (device->lag_ns)
        device->gpu_ns = device->now_ns + device->lag_ns;
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
    ((struct event *)(void *)event)->done_ns = replay_device.gpu_ns;
    replay_device.fences++;
    return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent event)
{
    replay_device.looks++;
    return ((struct event *)(void *)event)->done_ns <= replay_device.now_ns ? CUDA_SUCCESS
                                                                            : CUDA_ERROR_NOT_READY;
}

size_t replay_device_taken_bytes(size_t size_bytes)
{
    return size_bytes < SHARING_BYTES ? size_bytes
                                      : (size_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

/* Addresses are UNIT_BYTES apart at least, and never given out twice. */
static CUresult fake_allocate(CUdeviceptr *out, size_t size_bytes)
{
    static CUdeviceptr next = (CUdeviceptr)1 << 40;
    size_t taken_bytes = replay_device_taken_bytes(size_bytes), index;

    if (size_bytes > replay_device.capacity_bytes ||
        replay_device.held_bytes + taken_bytes > replay_device.capacity_bytes)
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
    replay_device.held_bytes += taken_bytes;
    if (replay_device.peak_bytes < replay_device.held_bytes)
        replay_device.peak_bytes = replay_device.held_bytes;
    replay_device.allocations += size_bytes != RS_SENTINEL_BYTES;
    return CUDA_SUCCESS;
}

static void forget(CUdeviceptr address)
{
    size_t index = (address - ((CUdeviceptr)1 << 40)) / UNIT_BYTES;

    replay_device.held_bytes -= replay_device_taken_bytes(sizes[index]);
    replay_device.frees += sizes[index] != RS_SENTINEL_BYTES;
    sizes[index] = 0;
}

/* As cuMemFree: when the GPU is done. */
static CUresult fake_free(CUdeviceptr address)
{
    if (replay_device.now_ns < replay_device.gpu_ns) {
        replay_device.now_ns = replay_device.gpu_ns;
        replay_device.free_waits++;
    }
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

void replay_device_install(uint64_t lag_ns, size_t capacity_bytes)
{
    is_installed = true;
    replay_device = (struct replay_device){.lag_ns = lag_ns, .capacity_bytes = capacity_bytes};
    memset(&sentinel, 0, sizeof(sentinel));
    memset(&own_stream, 0, sizeof(own_stream));
    rs_driver = (struct rs_driver){.cuCtxGetCurrent = fake_get_current};
    replay_virtual_memory_install(capacity_bytes);
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
    account = (struct rs_account){.device = &device_account};
    device_account = (struct rs_account){.limit_bytes = 0};
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

size_t replay_device_peak_bytes(void)
{
    return replay_device.peak_bytes + replay_virtual_memory.peak_bytes;
}

void replay_device_remove(void)
{
    is_installed = false;
}

/* ---- stacks ---- */

static struct rs_expression *put_leaf(struct rs_expression *leaf, const struct rs_source *source,
                                      struct rs_diagnostics *diagnostics)
{
    const struct rs_mr_descriptor *descriptor = leaf->descriptor;

    if (descriptor == &rs_mr_descriptor_cuda || descriptor == &rs_mr_descriptor_virtual)
        return leaf;
    if (descriptor == &rs_mr_descriptor_async || descriptor == &rs_mr_descriptor_async_managed) {
        rs_diagnose(diagnostics, source, leaf->at,
                    "what the driver's own pool holds is not known, so it cannot be replayed");
        rs_expression_free(leaf);
        return NULL;
    }
    rs_expression_free(leaf);
    return rs_expression_node(&rs_mr_descriptor_cuda, NULL, source);
}

/* A leaf takes from the device here, whatever memory it is of.  Returns the new top, or NULL with
 * all of it freed. */
static struct rs_expression *put_leaves(struct rs_expression *node, const struct rs_source *source,
                                        struct rs_diagnostics *diagnostics)
{
    if (!node->upstream[0])
        return put_leaf(node, source, diagnostics);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && node->upstream[i]; i++) {
        node->upstream[i] = put_leaves(node->upstream[i], source, diagnostics);
        if (!node->upstream[i]) {
            rs_expression_free(node);
            return NULL;
        }
    }
    return node;
}

struct rs_mr *replay_device_stack(const char *text, bool deferred,
                                  struct rs_diagnostics *diagnostics)
{
    static struct rs_source source = {"the expression", NULL};
    struct rs_expression *expression;
    struct rs_mr *mr = NULL;

    source.text = text;
    expression = rs_expression_parse(&source, diagnostics);
    if (expression)
        expression = put_leaves(expression, &source, diagnostics);
    if (expression && deferred)
        expression = rs_expression_insert_reuse(expression);
    if (!expression)
        return NULL;
    environment.frees_are_ready = rs_expression_frees_are_ready(expression);
    if (!rs_expression_validate(expression, &environment, diagnostics) ||
        rs_expression_build(expression, &environment, diagnostics, &mr) != 0)
        mr = NULL;
    rs_expression_free(expression);
    return mr;
}
