/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/call.h"

#include "driver/config.h"
#include "driver/device.h"
#include "driver/fault.h"
#include "driver/hide.h"
#include "driver/lock.h"
#include "hostcuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t hc_mutex = PTHREAD_MUTEX_INITIALIZER;

static atomic_ullong counts[HC_FN_COUNT];
static atomic_ullong unsupported_count;
static atomic_bool is_unsupported[HC_FN_COUNT];
static atomic_bool is_initialised;
static atomic_bool is_exiting;
static __thread bool is_forbidden;
static __thread enum hc_fn latest;

/* A page that a forked child finds empty, however it was forked. Where the kernel cannot do that,
 * the fork handler does. */
static volatile char *_Atomic parent_page;

__attribute__((constructor)) static void load(void)
{
    hc_config_read();
    hc_fault_read();
    hc_hide_exports();
}

bool hc_call_is_forked(void)
{
    const volatile char *page = atomic_load_explicit(&parent_page, memory_order_acquire);
    return page && !*page;
}

static void forget_parent(void)
{
    *parent_page = 0;
}

/* Runs before all destructors and all exit handlers from before cuInit. */
static void exits(void)
{
    is_exiting = true;
}

static CUresult initialise(void)
{
    HC_LOCKED();
    if (is_initialised)
        return CUDA_SUCCESS;
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (madvise(page, bytes, MADV_WIPEONFORK) && pthread_atfork(NULL, NULL, forget_parent))
        return CUDA_ERROR_OPERATING_SYSTEM;
    *page = 1;
    parent_page = page;
    if (!hc_devices_open() || atexit(exits))
        return CUDA_ERROR_OUT_OF_MEMORY;
    is_initialised = true;
    return CUDA_SUCCESS;
}

CUresult hc_call_begin_early(struct hc_call *call)
{
    atomic_fetch_add_explicit(&counts[call->fn], 1, memory_order_relaxed);
    latest = call->fn;
    return hc_fault_before(call->fn);
}

/* Measured: a host function may ask about a stream. */
static bool is_harmless(enum hc_fn fn)
{
    return fn == HC_FN_cuStreamQuery || fn == HC_FN_cuStreamQuery_ptsz || fn == HC_FN_cuEventQuery;
}

CUresult hc_call_begin(struct hc_call *call)
{
    CUresult result = hc_call_begin_early(call);
    if (result)
        return result;
    if (!is_initialised || hc_call_is_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (is_forbidden && !is_harmless(call->fn))
        return CUDA_ERROR_NOT_PERMITTED;
    return is_exiting ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

const char *hc_call_name(void)
{
    return hc_fn_names[latest];
}

void hc_call_forbid(bool forbidden)
{
    is_forbidden = forbidden;
}

void hc_call_end(struct hc_call *call)
{
    hc_fault_after(call->fn);
}

int hc_unsupported(enum hc_fn fn)
{
    struct hc_call call = {fn};
    CUresult result = hc_call_begin_early(&call);
    hc_call_end(&call);
    if (result)
        return result;
    is_unsupported[fn] = true;
    atomic_fetch_add_explicit(&unsupported_count, 1, memory_order_relaxed);
    return CUDA_ERROR_NOT_SUPPORTED;
}

__attribute__((destructor)) static void report(void)
{
    for (int i = 0; hc_config.report && i < HC_FN_COUNT; i++) {
        if (is_unsupported[i])
            dprintf(STDERR_FILENO, "hostcuda: %s is not implemented, called %llu times\n",
                    hc_fn_names[i], counts[i]);
    }
}

HC_API CUresult cuInit(unsigned int flags)
{
    HC_ENTER_EARLY(cuInit);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (hc_call_is_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    return initialise();
}

HC_API unsigned long long hostcuda_call_count(const char *symbol)
{
    for (int i = 0; i < HC_FN_COUNT; i++) {
        if (!strcmp(hc_fn_names[i], symbol))
            return counts[i];
    }
    return 0;
}

HC_API unsigned long long hostcuda_all_calls(FILE *list)
{
    unsigned long long all = 0;

    for (int i = 0; i < HC_FN_COUNT; i++) {
        unsigned long long count = counts[i];
        all += count;
        if (list && count)
            fprintf(list, "%s %llu\n", hc_fn_names[i], count);
    }
    return all;
}

HC_API unsigned long long hostcuda_unsupported_count(void)
{
    return unsupported_count;
}
