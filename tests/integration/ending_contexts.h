/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that end in one thread while another looks on: what contexts.c and context_ends.c share.
 */
#pragma once

#include "device_work.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

#pragma weak hostcuda_fault_hits

enum { BYTES = 1 << 20, WORDS = BYTES / 4 };

static CUdevice device;

static inline CUdeviceptr allocate(void)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, BYTES));
    return block;
}

/* Memory of a context that lives: the driver can fill it and read it. */
static inline void use(CUdeviceptr block)
{
    unsigned host[WORDS / 64], value = (unsigned)(block >> 9) | 1;

    MUST(cuMemsetD32(block, value, WORDS));
    MUST(cuMemcpyDtoH(host, block, sizeof(host)));
    CHECK(host[0] == value && host[WORDS / 64 - 1] == value);
}

static inline CUcontext retain(void)
{
    CUcontext context;

    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

static inline bool is_active(void)
{
    unsigned flags;
    int active;

    MUST(cuDevicePrimaryCtxGetState(device, &flags, &active));
    return active;
}

static inline void *release(void *data)
{
    (void)data;
    MUST(cuDevicePrimaryCtxRelease(device));
    return NULL;
}

static inline void *reset(void *data)
{
    (void)data;
    MUST(cuDevicePrimaryCtxReset(device));
    return NULL;
}

/* The same for a created context, whose handle comes again. */
static inline void *destroy(void *context)
{
    MUST(cuCtxDestroy(context));
    return NULL;
}

static inline pthread_t start(void *(*run)(void *data), void *data)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, run, data) == 0);
    return thread;
}

static inline void finish(pthread_t thread)
{
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The next call of that name is late: until then it has not begun, or its caller does not know what
 * it did. */
static inline void delay(const char *rule)
{
    hostcuda_fault_clear();
    CHECK(hostcuda_fault_add(rule) == 0);
}

static inline void wait_for_delay(void)
{
    while (hostcuda_fault_hits() == 0)
        sched_yield();
}

/* A delay before a call, so long that only end_delay or finish_delayed ends it. */
#define UNTIL_TOLD "before_us=600000000"

static inline void ignore(int signal_number)
{
    (void)signal_number;
}

/* A signal interrupts the delay.  The first may come before that has begun; a later one may also
 * interrupt the delay after the call, and so comes only when it is needed. */
static inline void interrupt(pthread_t thread, unsigned look)
{
    static const struct timespec pause = {0, 1000 * 1000};
    enum { LOOKS = 8 };

    signal(SIGUSR1, ignore);
    if (look % LOOKS == 0)
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
    (void)nanosleep(&pause, NULL);
}

static inline void finish_delayed(pthread_t thread)
{
    for (unsigned look = 0; pthread_tryjoin_np(thread, NULL) != 0; look++)
        interrupt(thread, look);
}

/* Blocks of the context that is current now, also after everything was given back. */
static inline void use_now(void)
{
    CUdeviceptr first = allocate(), second = allocate();

    use(first);
    use(second);
    CHECK(first != second);
    MUST(cuMemFree(first));
    use(second);
    MUST(cuMemFree(second));
    use(allocate());
}
