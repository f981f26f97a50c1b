/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts of devices: learns their handles, and notices their ends when references to them
 * are released. */
#include "context/primary.h"

#include "base/lock.h"
#include "context/end.h"
#include "context/exclusion.h"
#include "context/identity.h"
#include "context/table.h"
#include "driver/driver.h"

#include <stdatomic.h>

/* Bit i: the primary context of device i has not ended since its handle was asked for. */
static _Atomic uint64_t primaries_learnt;

static void forget_learnt(CUdevice device)
{
    atomic_fetch_and(&primaries_learnt, ~(1ull << (unsigned)device % RS_DEVICES_MAX));
}

struct rs_context *rs_context_end_begin_primary(CUdevice device)
{
    struct rs_context *context;

    forget_learnt(device);
    rs_mutex_lock(&rs_contexts_lock);
    context = rs_context_take_out(rs_contexts_primary(device));
    rs_mutex_unlock(&rs_contexts_lock);
    return context;
}

struct rs_context *rs_context_release_begin(CUdevice device)
{
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    context = rs_context_doubt(rs_contexts_primary(device));
    rs_mutex_unlock(&rs_contexts_lock);
    return context;
}

/* False once the context has ended, even where a new one has its handle. */
static bool is_primary_alive(const struct rs_context *context, struct rs_witness witness)
{
    unsigned long long id;
    unsigned flags;
    int active = 1;

    if (!rs_driver.cuDevicePrimaryCtxGetState ||
        rs_driver.cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS)
        return true;
    if (!active || rs_context_is_gone_there(witness, context->handle))
        return false;
    id = rs_context_id_of(context->handle);
    return id == 0 || id == context->id;
}

/* The driver is asked without the lock.  Its answer is about the context found before: ids are
 * never used twice, and no record is recycled while a context ends. */
static void drop_if_ended(CUdevice device)
{
    struct rs_witness witness = {0, 0};
    struct rs_context *context;

    rs_mutex_lock(&rs_contexts_lock);
    context = rs_contexts_primary(device);
    if (context)
        witness = context->witness;
    rs_mutex_unlock(&rs_contexts_lock);
    if (!context || is_primary_alive(context, witness))
        return;
    rs_mutex_lock(&rs_contexts_lock);
    if (rs_contexts_have(context))
        rs_context_drop(context);
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_give_back_ended();
}

void rs_context_release_finish(CUdevice device, struct rs_context *doubted, bool released)
{
    if (released) {
        forget_learnt(device);
        drop_if_ended(device);
    }
    rs_context_doubt_end(doubted, false);
}

void rs_context_release_primary(CUdevice device)
{
    struct rs_context *excluded = rs_context_ending_enter_primary(device);
    struct rs_context *doubted = rs_context_release_begin(device);

    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    rs_context_release_finish(device, doubted, true);
    rs_context_ending_leave(excluded);
}

/* Retains and releases the primary context; the program may release its last reference in between,
 * so the end is checked for. */
static void learn_primary(CUdevice device)
{
    struct rs_context *excluded, *doubted;

    if (!rs_driver_is_primary_active(device))
        return;
    excluded = rs_context_ending_enter_primary(device);
    doubted = rs_context_release_begin(device);
    (void)rs_driver_learn_primary(device);
    rs_context_release_finish(device, doubted, true);
    atomic_fetch_or(&primaries_learnt, 1ull << (unsigned)device % RS_DEVICES_MAX);
    rs_context_ending_leave(excluded);
}

CUcontext rs_context_primary(CUdevice device)
{
    if (!rs_driver_known_primary(device))
        learn_primary(device);
    return rs_driver_active_primary(device);
}

void rs_context_learn_current(CUcontext handle)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUdevice device;

    if (rs_driver.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
        rs_driver_known_primary(device) != handle &&
        !(atomic_load(&primaries_learnt) >> device % RS_DEVICES_MAX & 1))
        learn_primary(device);
    rs_capture_restore(mode);
}
