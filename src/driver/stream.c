/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/stream.h"

#include "base/lock.h"
#include "driver/driver.h"

/* A hash table of the handles of destroyed streams. No destroyed handle is ever forgotten: when a
 * place of the table is full, every handle that the place does not list counts as destroyed from
 * then on. A live stream whose handle would count as destroyed is listed, with its number, when
 * memory is allocated on it. */
enum { PLACE_BITS = 10, PLACE_HANDLES = 4 };

struct handle {
    CUstream stream; /* NULL: this element is free */
    /* The number of the live stream that has the handle now; 0: no such stream is known. */
    unsigned long long key;
};

struct place {
    struct handle handles[PLACE_HANDLES];
    unsigned turn; /* if all elements are of live streams: the next one to replace (modulo
                      PLACE_HANDLES) */
    bool is_full;  /* handles that are not listed count as destroyed */
};

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_TABLE); /* protects the places */
RS_RESET_IN_CHILD(driver_stream_order, lock);
static struct place places[1 << PLACE_BITS];
static _Atomic bool any_destroyed;

static struct place *place_of_stream(CUstream stream)
{
    return &places[(uintptr_t)stream * 0x9e3779b97f4a7c15u >> (64 - PLACE_BITS)];
}

static struct handle *find_handle(struct place *place, CUstream stream)
{
    RS_ASSERT_HELD(&lock);
    for (int i = 0; i < PLACE_HANDLES; i++)
        if (place->handles[i].stream == stream)
            return &place->handles[i];
    return NULL;
}

/* Makes the place full: handles that it does not list count as destroyed from now on. So destroyed
 * handles need not be listed any more, and their elements become free. */
static void fill_place(struct place *place)
{
    RS_ASSERT(!place->is_full);
    place->is_full = true;
    for (int i = 0; i < PLACE_HANDLES; i++)
        if (place->handles[i].key == 0)
            place->handles[i].stream = NULL;
}

/* Returns the element of a full place in which a live stream is to be listed. That is a free one,
 * or else the element of another live stream, which then counts as destroyed. */
static struct handle *take_room(struct place *place)
{
    struct handle *room = find_handle(place, NULL);

    RS_ASSERT(place->is_full); /* else a destroyed handle would be forgotten */
    return room ? room : &place->handles[place->turn++ % PLACE_HANDLES];
}

void rs_stream_destroyed(CUstream stream)
{
    struct place *place = place_of_stream(stream);
    struct handle *handle;
    RS_MUTEX_GUARD(&lock);

    handle = find_handle(place, stream);
    if (!handle && !place->is_full && !(handle = find_handle(place, NULL)))
        fill_place(place);
    if (handle)
        *handle = (struct handle){place->is_full ? NULL : stream, 0};
    atomic_store(&any_destroyed, true);
}

/* True when a stream with this handle was, or may have been, destroyed. *key is then the number of
 * the live stream that has the handle now; 0: no such stream is known. */
static bool was_destroyed(CUstream stream, unsigned long long *key)
{
    struct place *place = place_of_stream(stream);
    const struct handle *handle;

    if (!atomic_load_explicit(&any_destroyed, memory_order_relaxed))
        return false;
    RS_MUTEX_GUARD(&lock);
    handle = find_handle(place, stream);
    *key = handle ? handle->key : 0;
    return handle || place->is_full;
}

static void note_alive(CUstream stream, unsigned long long key)
{
    struct place *place = place_of_stream(stream);
    struct handle *handle;

    if (!atomic_load_explicit(&any_destroyed, memory_order_relaxed))
        return;
    RS_MUTEX_GUARD(&lock);
    handle = find_handle(place, stream);
    if (!handle && place->is_full)
        handle = take_room(place);
    if (handle)
        *handle = (struct handle){stream, key};
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
        return stream; /* the handle stands for a default stream of `device` */
    return NULL;
}

static bool ask_in(CUstream stream, CUcontext context, unsigned long long *key)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUcontext current = NULL;

    if (!stream || !rs_driver.cuStreamGetId || !rs_driver.cuStreamIsCapturing)
        return false;
    if (is_default(stream) &&
        (rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context))
        return false;
    /* For the legacy stream cuStreamIsCapturing fails while a blocking stream captures. */
    return rs_driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE &&
           rs_driver.cuStreamGetId(stream, key) == CUDA_SUCCESS;
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

/* ---- the library's own stream ---- */

CUstream rs_own_stream(struct rs_own_stream *own, CUcontext context)
{
    CUstream stream = atomic_load_explicit(&own->stream, memory_order_acquire), made = NULL;
    CUresult result;

    if (stream)
        return stream;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(context, &result);
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && !atomic_compare_exchange_strong(&own->stream, &stream, made))
        (void)rs_driver.cuStreamDestroy_v2(made); /* another thread has made the stream first */
    else if (result == CUDA_SUCCESS)
        stream = made;
    return stream;
}

CUresult rs_own_stream_wait(CUstream stream)
{
    RS_RELAXED_GUARD();

    return rs_driver.cuStreamSynchronize(stream);
}

CUresult rs_own_stream_poll(CUstream stream, uint64_t bound_ns)
{
    uint64_t begin_ns = rs_clock_ns();
    CUresult result;
    unsigned turn = 0;
    RS_RELAXED_GUARD();

    while ((result = rs_driver.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
           rs_clock_ns() - begin_ns < bound_ns)
        rs_poll_pause(turn++);
    return result;
}

/* The stream is queried first, so that the synchronisation does not wait: if streams share a
 * hardware channel, this stream may wait for the program's work, which may wait for this thread. */
bool rs_own_stream_settle(CUstream stream, uint64_t bound_ns)
{
    return rs_own_stream_poll(stream, bound_ns) == CUDA_SUCCESS &&
           rs_own_stream_wait(stream) == CUDA_SUCCESS;
}
