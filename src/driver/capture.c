/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/capture.h"

#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { ORIGINS_MAX = 256 };

/* Held exclusively by begins, shared by recorders; protects the list of origins. */
static pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;
static struct rs_capture_stream origins[ORIGINS_MAX];
static size_t origin_count;
static _Atomic bool distrusted;

struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default)
{
    static __thread char this_thread;

    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread_default))
        return (struct rs_capture_stream){&this_thread};
    return (struct rs_capture_stream){stream};
}

void rs_capture_begin_enter(void)
{
    pthread_rwlock_wrlock(&gate);
}

void rs_capture_begin_leave(struct rs_capture_stream stream, bool began)
{
    if (began && origin_count < ORIGINS_MAX)
        origins[origin_count++] = stream;
    else if (began)
        atomic_store(&distrusted, true); /* its end could not be told from the others' */
    pthread_rwlock_unlock(&gate);
}

void rs_capture_ended(struct rs_capture_stream stream)
{
    pthread_rwlock_wrlock(&gate);
    for (size_t i = 0; i < origin_count; i++) {
        if (origins[i].identity != stream.identity)
            continue;
        origins[i] = origins[--origin_count];
        break;
    }
    pthread_rwlock_unlock(&gate);
}

bool rs_capture_is_origin(struct rs_capture_stream stream)
{
    bool found = false;

    pthread_rwlock_rdlock(&gate);
    for (size_t i = 0; i < origin_count && !found; i++)
        found = origins[i].identity == stream.identity;
    pthread_rwlock_unlock(&gate);
    return found;
}

void rs_capture_distrust(const char *name)
{
    if (!atomic_exchange(&distrusted, true))
        rs_log_once_serving(" may bring work that no fence covers: from now on freed memory is "
                            "reused only after full waits",
                            name);
}

bool rs_capture_gate_enter(void)
{
    if (atomic_load(&distrusted) || pthread_rwlock_tryrdlock(&gate) != 0)
        return false;
    if (origin_count == 0)
        return true;
    pthread_rwlock_unlock(&gate);
    return false;
}

void rs_capture_gate_leave(void)
{
    pthread_rwlock_unlock(&gate);
}
