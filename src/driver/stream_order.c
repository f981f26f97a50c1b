/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/stream_order.h"

#include "base/lock.h"
#include "driver/driver.h"

#include <stdatomic.h>
#include <stdint.h>

/* Handles that were destroyed, by a hash; a newer one takes an older one's place. */
enum { HANDLE_BITS = 12 };

struct handle {
    CUstream stream;
    unsigned long long key; /* of the stream that has the handle now; 0: nobody is known to */
};

static struct rs_mutex lock = RS_MUTEX_INIT; /* protects the handles */
static struct handle handles[1 << HANDLE_BITS];
static _Atomic bool any_destroyed;

/* Its place, whether or not it is in it. */
static struct handle *place_of(CUstream stream)
{
    return &handles[(uintptr_t)stream * 0x9e3779b97f4a7c15u >> (64 - HANDLE_BITS)];
}

void rs_stream_destroyed(CUstream stream)
{
    rs_mutex_lock(&lock);
    *place_of(stream) = (struct handle){stream, 0};
    rs_mutex_unlock(&lock);
    atomic_store(&any_destroyed, true);
}

/* True when the handle was destroyed; *key is the number of the stream that has it now, or 0. */
static bool was_destroyed(CUstream stream, unsigned long long *key)
{
    bool destroyed;

    if (!atomic_load_explicit(&any_destroyed, memory_order_relaxed))
        return false;
    rs_mutex_lock(&lock);
    destroyed = place_of(stream)->stream == stream;
    *key = place_of(stream)->key;
    rs_mutex_unlock(&lock);
    return destroyed;
}

static void note_alive(CUstream stream, unsigned long long key)
{
    if (!atomic_load_explicit(&any_destroyed, memory_order_relaxed))
        return;
    rs_mutex_lock(&lock);
    if (place_of(stream)->stream == stream)
        place_of(stream)->key = key;
    rs_mutex_unlock(&lock);
}

static bool ask(CUstream stream, unsigned long long *key)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;

    /* The legacy stream answers with an error while a blocking stream captures. */
    return rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE &&
           rs_driver.cuStreamGetId(stream, key) == CUDA_SUCCESS;
}

static bool is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUstream rs_stream_from(CUdevice device, CUcontext context, CUstream stream)
{
    CUcontext current = NULL;
    CUdevice current_device;

    if (!is_default(stream) || rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current ||
        current == context)
        return stream;
    if (rs_driver.cuCtxGetDevice(&current_device) == CUDA_SUCCESS && current_device != device)
        return stream; /* the caller means the device's, whichever is current */
    return NULL;
}

static bool ask_in(CUstream stream, CUcontext context, unsigned long long *key)
{
    CUcontext current = NULL;

    if (!stream || !rs_driver.cuStreamGetId || !rs_driver.cuStreamIsCapturing)
        return false;
    if (is_default(stream) &&
        (rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context))
        return false;
    return ask(stream, key);
}

bool rs_stream_key(CUstream stream, CUcontext context, unsigned long long *key)
{
    if (!ask_in(stream, context, key))
        return false;
    note_alive(stream, *key);
    return true;
}

bool rs_stream_key_to_free(CUstream stream, CUcontext context, unsigned long long allocated_on,
                           unsigned long long *key)
{
    unsigned long long now = 0;

    if (was_destroyed(stream, &now) && (now == 0 || now != allocated_on))
        return false;
    return ask_in(stream, context, key);
}
