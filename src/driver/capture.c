/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/capture.h"

#include "base/lock.h"
#include "base/log.h"
#include "driver/driver.h"

#include <stdlib.h>

enum { REVIEW_EVERY = 16, FIRST_ROOM = 16 };

struct origin {
    struct rs_capture_stream stream;
    /* The number of this capture, in the order in which captures began. It tells captures with the
     * same handle apart. */
    unsigned long long begin;
    unsigned ending; /* the number of driver calls under way that may end the capture */
};

/* The gate. A thread holds it exclusively while it begins a capture, and shared while it records a
 * fence. It also protects the list of origins. */
static struct rs_shared_lock gate = RS_SHARED_LOCK_INIT(RS_RANK_ALONE);
RS_RESET_IN_CHILD(driver_capture, gate);
static struct origin *origins;
static _Atomic size_t origin_count; /* written while the gate is held exclusively */
static size_t origin_room;
static unsigned long long last_begin;
static _Atomic bool distrusted;
static __thread char this_thread;

static bool is_per_thread(CUstream stream, bool per_thread_default)
{
    return stream == CU_STREAM_PER_THREAD || (!stream && per_thread_default);
}

struct rs_capture_stream rs_capture_stream(CUstream stream, bool per_thread_default)
{
    struct rs_capture_stream what = {.identity = stream, .handle = stream};

    if (!is_per_thread(stream, per_thread_default))
        return what;
    what = (struct rs_capture_stream){.identity = &this_thread, .handle = CU_STREAM_PER_THREAD};
    /* A thread has one per-thread default stream in each context, so these streams are told apart
     * by their contexts. */
    if (rs_driver_ready(true) && rs_driver.cuCtxGetCurrent(&what.context) != CUDA_SUCCESS)
        what.context = NULL;
    return what;
}

/* Returns the context's number; 0: unknown. */
static unsigned long long id_of(CUcontext context)
{
    unsigned long long id = 0;

    if (!context || !rs_driver.cuCtxGetId || rs_driver.cuCtxGetId(context, &id) != CUDA_SUCCESS)
        return 0;
    return id;
}

/* Drivers before 12.5 have no cuStreamGetCtx_v2, so contexts stay unknown there. They are not
 * needed either: the gate protects records of context events, which such drivers do not have. */
struct rs_capture_stream rs_capture_origin(CUstream stream, bool per_thread_default)
{
    struct rs_capture_stream origin = rs_capture_stream(stream, per_thread_default);

    if (!origin.handle || !RS_DRIVER_HAS(cuStreamGetCtx_v2) || !rs_driver.cuStreamGetCtx)
        return origin;
    RS_RELAXED_GUARD();
    if (rs_driver.cuStreamGetCtx(origin.handle, &origin.context) != CUDA_SUCCESS ||
        rs_driver.cuStreamGetCtx_v2(origin.handle, &origin.owner, &origin.green) != CUDA_SUCCESS)
        origin.context = origin.owner = NULL;
    origin.context_id = id_of(origin.context);
    return origin;
}

/* ---- the list, under the lock ---- */

static bool is_same_stream(const struct rs_capture_stream *a, const struct rs_capture_stream *b)
{
    return a->identity == b->identity && (a->handle != CU_STREAM_PER_THREAD || !a->context ||
                                          !b->context || a->context == b->context);
}

static bool is_of_context(const struct rs_capture_stream *stream, CUcontext context)
{
    return context && (stream->context == context || stream->owner == context);
}

static bool ends_with(const struct rs_capture_stream *stream, const struct rs_capture_stream *what)
{
    if (what->identity)
        return is_same_stream(stream, what);
    return what->green ? stream->green == what->green : is_of_context(stream, what->context);
}

static bool shuts_gate(const struct rs_capture_stream *stream, CUcontext context)
{
    return !stream->owner || is_of_context(stream, context);
}

static struct origin *find_origin(const struct rs_capture_stream *stream)
{
    RS_ASSERT_HELD(&gate);
    for (size_t i = 0; i < origin_count; i++)
        if (is_same_stream(&origins[i].stream, stream))
            return &origins[i];
    return NULL;
}

static void take_out(struct origin *origin)
{
    RS_ASSERT_HELD(&gate);
    RS_ASSERT(origin_count > 0 && origin >= origins && origin < origins + origin_count);
    *origin = origins[--origin_count];
}

static bool make_room_for_origin(void)
{
    size_t room = origin_room ? 2 * origin_room : FIRST_ROOM;
    struct origin *more;

    RS_ASSERT(origin_count <= origin_room);
    if (origin_count < origin_room)
        return true;
    more = realloc(origins, room * sizeof(*origins));
    if (!more)
        return false;
    origins = more;
    origin_room = room;
    return true;
}

/* ---- begins and ends ---- */

void rs_capture_begin_enter(void)
{
    rs_shared_lock_take_alone(&gate);
}

void rs_capture_begin_leave(struct rs_capture_stream stream, bool began)
{
    /* A stream that has now begun a capture was not capturing before. So a capture that is still
     * noted for it has ended unseen, and its place is used again. */
    struct origin *origin = began ? find_origin(&stream) : NULL;

    RS_ASSERT_HELD(&gate);
    if (began && !origin && make_room_for_origin())
        origin = &origins[origin_count++];
    if (origin)
        *origin = (struct origin){.stream = stream, .begin = ++last_begin};
    else if (began)
        atomic_store(&distrusted,
                     /* There is no host memory to note the capture, so its end would go unseen. */
                     true);
    rs_shared_lock_unlock(&gate);
}

void rs_capture_ended(struct rs_capture_stream stream)
{
    struct origin *origin;

    rs_shared_lock_take_alone(&gate);
    origin = find_origin(&stream);
    if (origin)
        take_out(origin);
    rs_shared_lock_unlock(&gate);
}

struct rs_capture_end rs_capture_end_begin(struct rs_capture_stream what)
{
    struct rs_capture_end end = {.what = what};

    if (!rs_capture_is_any())
        return end;
    rs_shared_lock_take_alone(&gate);
    for (size_t i = 0; i < origin_count; i++) {
        if (!ends_with(&origins[i].stream, &what))
            continue;
        origins[i].ending++;
        end.last_begin = last_begin;
    }
    rs_shared_lock_unlock(&gate);
    return end;
}

/* A capture that began after rs_capture_end_begin is of another stream with the same handle, so its
 * origin stays in the list. */
void rs_capture_end_finish(struct rs_capture_end end, bool ended)
{
    if (!end.last_begin)
        return;
    rs_shared_lock_take_alone(&gate);
    for (size_t i = origin_count; i-- > 0;) {
        if (origins[i].begin > end.last_begin || !ends_with(&origins[i].stream, &end.what))
            continue;
        RS_ASSERT(origins[i].ending > 0); /* rs_capture_end_begin has counted this call */
        origins[i].ending--;
        if (ended)
            take_out(&origins[i]);
    }
    rs_shared_lock_unlock(&gate);
}

bool rs_capture_is_any(void)
{
    return origin_count > 0;
}

/* ---- review ---- */

static bool may_be_asked(const struct origin *origin)
{
    RS_ASSERT_HELD(&gate);
    return rs_driver.cuStreamIsCapturing && !origin->ending && origin->stream.context &&
           (origin->stream.handle != CU_STREAM_PER_THREAD ||
            origin->stream.identity == &this_thread);
}

/* Asks the driver whether the stream captures. The stream's context is current. If the context has
 * ended, the stream has too, and the driver must not get its handle. */
static CUresult ask_whether_captures(const struct rs_capture_stream *stream,
                                     CUstreamCaptureStatus *status)
{
    if (id_of(stream->context) != stream->context_id)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return rs_driver.cuStreamIsCapturing(stream->handle, status);
}

static bool is_over(const struct origin *origin)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUresult result;

    if (!may_be_asked(origin))
        return false;
    RS_CONTEXT_GUARD(origin->stream.context, &result);
    if (result == CUDA_SUCCESS)
        result = ask_whether_captures(&origin->stream, &status);
    return result == CUDA_SUCCESS ? status == CU_STREAM_CAPTURE_STATUS_NONE
                                  : result == CUDA_ERROR_INVALID_CONTEXT ||
                                        result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
                                        result == CUDA_ERROR_INVALID_HANDLE;
}

void rs_capture_review(CUcontext context)
{
    if (!rs_capture_is_any() || !rs_shared_lock_try_alone(&gate))
        return;
    RS_RELAXED_GUARD();
    for (size_t i = origin_count; i-- > 0;)
        if ((!context || shuts_gate(&origins[i].stream, context)) && is_over(&origins[i]))
            take_out(&origins[i]);
    rs_shared_lock_unlock(&gate);
}

/* ---- the gate ---- */

void rs_capture_distrust(const char *name)
{
    static struct rs_late_line line = {
        .text = " may start GPU work whose end rmmshim cannot see: from now on freed memory is "
                "reused only after a wait for all work of the GPU, which is slower (a newer "
                "rmmshim may know this function)"};

    atomic_store(&distrusted, true);
    rs_log_once_serving(&line, name);
}

bool rs_capture_is_distrusted(void)
{
    return atomic_load(&distrusted);
}

static bool pass(CUcontext context)
{
    bool shut = false;

    if (rs_capture_is_distrusted() || !rs_shared_lock_try_shared(&gate))
        return false;
    for (size_t i = 0; i < origin_count && !shut; i++)
        shut = shuts_gate(&origins[i].stream, context);
    if (shut)
        rs_shared_lock_unlock(&gate);
    return !shut;
}

bool rs_capture_gate_enter(CUcontext context)
{
    static _Atomic unsigned shut_count;

    if (pass(context))
        return true;
    if (atomic_fetch_add(&shut_count, 1) % REVIEW_EVERY != REVIEW_EVERY - 1)
        return false;
    rs_capture_review(context);
    return pass(context);
}

void rs_capture_gate_leave(void)
{
    rs_shared_lock_unlock(&gate);
}
