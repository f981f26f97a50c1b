/* SPDX-License-Identifier: Apache-2.0 */
/* A mutex.  A child after fork() never takes one: it only forwards (shim/life.h), so locks need no
 * fork handlers. */
#pragma once

#include "base/check.h"

#include <pthread.h>
#include <stdbool.h>

struct rs_mutex {
    pthread_mutex_t native;
};

#define RS_MUTEX_INIT                                                                              \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER                                                                  \
    }

static inline void rs_mutex_init(struct rs_mutex *mutex)
{
    pthread_mutex_init(&mutex->native, NULL);
}

static inline void rs_mutex_destroy(struct rs_mutex *mutex)
{
    pthread_mutex_destroy(&mutex->native);
}

static inline void rs_mutex_lock(struct rs_mutex *mutex)
{
    int failed = pthread_mutex_lock(&mutex->native);
    RS_ASSERT(!failed);
    (void)failed;
}

/* False when somebody, the calling thread included, holds it. */
static inline bool rs_mutex_try_lock(struct rs_mutex *mutex)
{
    return pthread_mutex_trylock(&mutex->native) == 0;
}

static inline void rs_mutex_unlock(struct rs_mutex *mutex)
{
    int failed = pthread_mutex_unlock(&mutex->native);
    RS_ASSERT(!failed);
    (void)failed;
}
