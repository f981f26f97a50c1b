/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/kernel.h"

#include "driver/device.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define POLL_NS 20000

static uint32_t *words(uint64_t address)
{
    return hc_bytes((uintptr_t)address);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void nap(void)
{
    struct timespec delay = {0, POLL_NS};
    nanosleep(&delay, NULL);
}

/* What a program's kernels do to each other is the race detector's affair (race.h), and some tests
 * let them race; ThreadSanitizer is there for the host's threads. */
#define KERNEL __attribute__((no_sanitize("thread"))) static

/* fill32(words, count, value) */
KERNEL CUresult fill32(void *args)
{
    const uint64_t *arg = args;
    uint32_t *to = words(arg[0]);
    for (uint64_t i = 0; i < arg[1]; i++)
        to[i] = (uint32_t)arg[2];
    return CUDA_SUCCESS;
}

static void writes_words(struct hc_work *work, const uint64_t *args)
{
    hc_work_touches(work, args[0], args[1] * 4, true);
}

/* add_one(words, count) */
KERNEL CUresult add_one(void *args)
{
    const uint64_t *arg = args;
    uint32_t *to = words(arg[0]);
    for (uint64_t i = 0; i < arg[1]; i++)
        to[i]++;
    return CUDA_SUCCESS;
}

/* copy(to, from, bytes) */
static CUresult copy(void *args)
{
    const uint64_t *arg = args;
    memmove(words(arg[0]), words(arg[1]), arg[2]);
    return CUDA_SUCCESS;
}

static void copies(struct hc_work *work, const uint64_t *args)
{
    hc_work_touches(work, args[1], args[2], false);
    hc_work_touches(work, args[0], args[2], true);
}

/* check_pattern(words, count, value, counter): adds the number of other values to *counter. */
KERNEL CUresult check_pattern(void *args)
{
    const uint64_t *arg = args;
    const uint32_t *from = words(arg[0]);
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < arg[1]; i++)
        wrong += from[i] != (uint32_t)arg[2];
    atomic_fetch_add((_Atomic uint32_t *)words(arg[3]), wrong);
    return CUDA_SUCCESS;
}

static void reads_words(struct hc_work *work, const uint64_t *args)
{
    hc_work_touches(work, args[0], args[1] * 4, false);
    hc_work_touches(work, args[3], 4, true);
}

/* spin_us(microseconds) */
static CUresult spin_us(void *args)
{
    const uint64_t *arg = args;
    struct timespec delay = {(time_t)(arg[0] / 1000000), (long)(arg[0] % 1000000) * 1000};
    while (nanosleep(&delay, &delay))
        ;
    return CUDA_SUCCESS;
}

/* spin_until(flag): until the host makes *flag other than 0. */
static CUresult spin_until(void *args)
{
    const uint64_t *arg = args;
    const _Atomic uint32_t *flag = (const _Atomic uint32_t *)words(arg[0]);
    while (!atomic_load(flag))
        nap();
    return CUDA_SUCCESS;
}

static void reads_flag(struct hc_work *work, const uint64_t *args)
{
    hc_work_touches(work, args[0], 4, false);
}

/* hold32(words, count, value, microseconds): fills again and again for that long. */
static CUresult hold32(void *args)
{
    const uint64_t *arg = args;
    uint64_t end_ns = now_ns() + arg[3] * 1000;
    do {
        fill32(args);
        nap();
    } while (now_ns() < end_ns);
    return fill32(args);
}

/* fault(): an access to an illegal address. */
static CUresult fault(void *args)
{
    (void)args;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static const struct hc_kernel kernels[] = {
    {"fill32", 3, {8, 8, 4}, fill32, writes_words},
    {"add_one", 2, {8, 8}, add_one, writes_words},
    {"copy", 3, {8, 8, 8}, copy, copies},
    {"check_pattern", 4, {8, 8, 4, 8}, check_pattern, reads_words},
    {"spin_us", 1, {8}, spin_us, NULL},
    {"spin_until", 1, {8}, spin_until, reads_flag},
    {"hold32", 4, {8, 8, 4, 8}, hold32, writes_words},
    {"fault", 0, {0}, fault, NULL},
};

unsigned hc_kernel_count(void)
{
    return sizeof(kernels) / sizeof(kernels[0]);
}

const struct hc_kernel *hc_kernel_at(unsigned index)
{
    return index < hc_kernel_count() ? &kernels[index] : NULL;
}

const struct hc_kernel *hc_kernel_named(const char *name)
{
    for (unsigned i = 0; i < hc_kernel_count(); i++) {
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    }
    return NULL;
}

const struct hc_kernel *hc_kernel_of(const void *handle)
{
    for (unsigned i = 0; i < hc_kernel_count(); i++) {
        if (&kernels[i] == handle)
            return &kernels[i];
    }
    return NULL;
}

/* Where the parameters lie: each by its own pointer, or all in one buffer. */
static const char *buffer_of(void **extra, size_t *bytes)
{
    const char *buffer = NULL;
    *bytes = 0;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *bytes = *(size_t *)extra[1];
        else
            return NULL;
    }
    return buffer;
}

static CUresult read_args(const struct hc_kernel *kernel, void **params, void **extra,
                          uint64_t *args)
{
    size_t room, offset = 0;
    const char *buffer = buffer_of(extra, &room);
    if (kernel->param_count && !params && !buffer)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < kernel->param_count; i++) {
        size_t bytes = kernel->param_bytes[i];
        const void *from = params ? params[i] : NULL;
        if (!params) {
            offset = (offset + bytes - 1) / bytes * bytes;
            if (offset + bytes > room)
                return CUDA_ERROR_INVALID_VALUE;
            from = buffer + offset;
            offset += bytes;
        }
        args[i] = 0;
        memcpy(&args[i], from, bytes);
    }
    return CUDA_SUCCESS;
}

CUresult hc_kernel_work(const void *handle, void **params, void **extra, struct hc_work *work)
{
    const struct hc_kernel *kernel = hc_kernel_of(handle);
    uint64_t args[HC_KERNEL_PARAMS];
    if (!kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = read_args(kernel, params, extra, args);
    if (result)
        return result;
    *work = (struct hc_work){.type = CU_GRAPH_NODE_TYPE_KERNEL, .run = kernel->run};
    memcpy(work->args, args, sizeof(args));
    if (kernel->declare)
        kernel->declare(work, args);
    return CUDA_SUCCESS;
}
