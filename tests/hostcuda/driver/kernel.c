/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/kernel.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define POLL_NS 20000

static uint32_t *words(uint64_t address)
{
    return (uint32_t *)(uintptr_t)address;
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

/* fill32(words, count, value) */
static CUresult fill32(void *args)
{
    const uint64_t *arg = args;
    for (uint64_t i = 0; i < arg[1]; i++)
        words(arg[0])[i] = (uint32_t)arg[2];
    return CUDA_SUCCESS;
}

static void writes_words(struct hc_work *work, const uint64_t *args)
{
    hc_work_touches(work, args[0], args[1] * 4, true);
}

/* add_one(words, count) */
static CUresult add_one(void *args)
{
    const uint64_t *arg = args;
    for (uint64_t i = 0; i < arg[1]; i++)
        words(arg[0])[i]++;
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
static CUresult check_pattern(void *args)
{
    const uint64_t *arg = args;
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < arg[1]; i++)
        wrong += words(arg[0])[i] != (uint32_t)arg[2];
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
