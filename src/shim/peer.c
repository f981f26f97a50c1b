/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/peer.h"

#include "base/lock.h"
#include "driver/driver.h"
#include "shim/config.h"
#include "shim/context.h"
#include "shim/life.h"

#include <stdlib.h>

/* A context whose memory others may reach, or might once. */
struct owner {
    CUcontext handle;
    unsigned accessors[RS_DEVICES_MAX]; /* contexts of that device that enabled it.  One that ends
                                           stays counted: the device keeps its access then */
    struct owner *next;
};

static struct rs_mutex lock = RS_MUTEX_INIT; /* protects the list */
static struct owner *owners;

static struct owner *find(CUcontext handle)
{
    struct owner *owner = owners;

    while (owner && owner->handle != handle)
        owner = owner->next;
    return owner;
}

static bool note(CUcontext handle, CUdevice device, bool allowed)
{
    struct owner *owner;

    rs_mutex_lock(&lock);
    owner = find(handle);
    if (!owner && allowed && (owner = calloc(1, sizeof(*owner)))) {
        owner->handle = handle;
        owner->next = owners;
        owners = owner;
    }
    if (owner && allowed)
        owner->accessors[device]++;
    else if (owner && owner->accessors[device])
        owner->accessors[device]--;
    rs_mutex_unlock(&lock);
    return owner || !allowed;
}

CUresult rs_peer_changed(CUcontext owner, bool allowed)
{
    CUdevice device;
    CUresult result;

    /* Before the settings are read too: a stack may come. */
    if (atomic_load(&rs_life_mode) == RS_MODE_FORWARD ||
        rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || device < 0 || device >= RS_DEVICES_MAX)
        return CUDA_SUCCESS;
    if (!note(owner, device, allowed))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_life_serving() ? rs_context_apply_peers(owner) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS || !allowed)
        return CUDA_SUCCESS; /* access that was not taken back harms nobody */
    (void)note(owner, device, false);
    (void)rs_context_apply_peers(owner);
    return result;
}

uint64_t rs_peer_devices(CUcontext handle)
{
    const struct owner *owner;
    uint64_t devices = 0;

    rs_mutex_lock(&lock);
    owner = find(handle);
    for (int device = 0; owner && device < RS_DEVICES_MAX; device++)
        devices |= (uint64_t)(owner->accessors[device] > 0) << device;
    rs_mutex_unlock(&lock);
    return devices;
}

void rs_peer_forget(CUcontext handle)
{
    struct owner **link = &owners, *owner;

    rs_mutex_lock(&lock);
    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    owner = *link;
    if (owner)
        *link = owner->next;
    rs_mutex_unlock(&lock);
    free(owner);
}
