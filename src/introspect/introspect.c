/* SPDX-License-Identifier: Apache-2.0 */
#include "introspect/introspect.h"

#include "base/check.h"
#include "base/lock.h"
#include "config/mode.h"
#include "context/context.h"
#include "context/end.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "ipc/import.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address)
{
    struct rs_introspection found = {.what = RS_INTROSPECTED_FOREIGN};

    switch (rs_import_find(address, &found.block.address, &found.block.size_bytes)) {
    case RS_IMPORTED_BLOCK:
        found.what = RS_INTROSPECTED_OPENED;
        break;
    case RS_IMPORTED_OUTSIDE:
        found.what = RS_INTROSPECTED_FREED;
        break;
    case RS_IMPORTED_NOT:
        if (serving && rs_block_find(address, &found.block))
            found.what = RS_INTROSPECTED_BLOCK;
        else if (serving && rs_block_is_our_memory(address))
            found.what = RS_INTROSPECTED_FREED;
        break;
    }
    return found;
}

struct rs_introspection rs_introspect(CUdeviceptr address)
{
    return rs_introspect_if(rs_mode_serving(), address);
}

CUdeviceptr rs_introspect_unknown_address(void)
{
    static _Atomic(void *) page;
    void *known = atomic_load(&page), *made;

    if (known)
        return (CUdeviceptr)(uintptr_t)known;
    made = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return 1; /* an address in page 0, which is never allocated */
    if (!atomic_compare_exchange_strong(&page, &known, made)) {
        munmap(made, 4096);
        made = known;
    }
    return (CUdeviceptr)(uintptr_t)made;
}

/* ---- SYNC_MEMOPS ---- */

static CUresult set_in_driver(CUdeviceptr address, bool wanted)
{
    unsigned value = wanted;

    if (!rs_driver.cuPointerSetAttribute)
        return CUDA_ERROR_NOT_FOUND;
    return rs_driver.cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

/* Unsets the attribute in the driver unless a live block of the allocation wants it. No lock is
 * held during the driver's call, which may wait. So the blocks are looked at again afterwards, and
 * if one has got the attribute meanwhile, it is set again in the driver. */
static CUresult clear(CUdeviceptr address)
{
    CUresult result = CUDA_SUCCESS;

    if (!rs_block_segment_syncs_memops(address)) {
        result = set_in_driver(address, false);
        if (result == CUDA_SUCCESS && rs_block_segment_syncs_memops(address))
            (void)set_in_driver(address, true);
    }
    return result;
}

void rs_sync_memops_note(CUdeviceptr address)
{
    rs_block_note_advice(address, &(struct rs_advice){RS_ADVISED_SYNC_MEMOPS, 0});
}

/* For a block of device memory only its own setting counts, even if it lies in managed memory. */
bool rs_sync_memops_get(CUdeviceptr address, enum rs_kind kind, bool of_the_driver)
{
    const struct rs_block_record *block = rs_block_around(address);
    unsigned advised = block ? block->advised : 0;

    if (advised & RS_ADVISED_SYNC_MEMOPS)
        return true;
    return kind == RS_KIND_MANAGED && of_the_driver && !(advised & RS_ADVISED_NO_SYNC_MEMOPS);
}

static void forget_sync_memops(CUdeviceptr address)
{
    struct rs_block_record *block = rs_block_around(address);

    if (block)
        atomic_fetch_and_explicit(&block->advised, (unsigned char)~RS_ADVISED_SYNC_MEMOPS,
                                  memory_order_relaxed);
}

/* Unsets the attribute of a managed block.  The driver's attribute stays set, since neighbouring
 * blocks have had it since they were allocated. */
static void unset_managed(CUdeviceptr address)
{
    rs_block_note_advice(address, &(struct rs_advice){RS_ADVISED_NO_SYNC_MEMOPS, 0});
    forget_sync_memops(address);
}

CUresult rs_sync_memops_set(CUdeviceptr address, enum rs_kind kind, bool wanted)
{
    bool before = rs_block_syncs_memops(rs_block_around(address));
    CUresult result;

    if (!wanted && kind == RS_KIND_MANAGED) {
        unset_managed(address);
        return CUDA_SUCCESS;
    }
    if (!wanted) {
        forget_sync_memops(address);
        return before ? clear(address) : CUDA_SUCCESS;
    }
    /* Noted before the driver is called, so that a concurrent clear() sees it. */
    rs_sync_memops_note(address);
    result = set_in_driver(address, true);
    if (result != CUDA_SUCCESS && !before)
        forget_sync_memops(address);
    return result;
}

void rs_sync_memops_freed(const struct rs_taken_block *block)
{
    CUresult result;

    if (!(block->advice.advised & RS_ADVISED_SYNC_MEMOPS) || block->stack->kind == RS_KIND_MANAGED)
        return;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(block->stack->environment.context, &result);
    if (result == CUDA_SUCCESS)
        (void)clear(block->allocation.address); /* if this fails, copies wait longer than needed */
}

/* ---- access of other devices ---- */

/* A context whose memory other contexts may access, or once could. */
struct owner {
    CUcontext handle;
    unsigned long long id; /* from cuCtxGetId, since a new context may get the handle of one that is
                              still ending; 0 on drivers without ids */
    /* Per device: how many of its contexts enabled access. A context that has ended stays counted,
     * since the driver keeps the device's access. */
    unsigned accessors[RS_DEVICES_MAX];
    CUcontext borrowers[RS_DEVICES_MAX]; /* per device: the context that rs_peer_lend gave access */
    struct owner *next;
};

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_RECORDS); /* protects `owners` */
RS_RESET_IN_CHILD(introspect, lock);
static struct owner *owners;

/* True for a primary context. When it ends and is made again, it has the same handle and another
 * id, and what was noted for it is still valid. */
static bool is_primary(CUcontext handle)
{
    for (CUdevice device = 0; device < RS_DEVICES_MAX; device++)
        if (rs_driver_known_primary(device) == handle)
            return true;
    return false;
}

static struct owner *find_memory_owner(CUcontext handle, unsigned long long id)
{
    struct owner *owner = owners;

    RS_ASSERT_HELD(&lock);
    while (owner && (owner->handle != handle || (owner->id != id && !is_primary(handle))))
        owner = owner->next;
    return owner;
}

static bool note_access(CUcontext handle, CUdevice device, bool allowed)
{
    unsigned long long id = rs_context_id_of(handle);
    struct owner *owner;

    RS_ASSERT(device >= 0 && device < RS_DEVICES_MAX);
    RS_MUTEX_GUARD(&lock);
    owner = find_memory_owner(handle, id);
    if (!owner && allowed && (owner = calloc(1, sizeof(*owner)))) {
        owner->handle = handle;
        owner->id = id;
        owner->next = owners;
        owners = owner;
    }
    if (owner && allowed)
        owner->accessors[device]++;
    else if (owner && owner->accessors[device])
        owner->accessors[device]--;
    return owner || !allowed;
}

CUresult rs_peer_changed(CUcontext owner, bool allowed)
{
    CUdevice device;
    CUresult result;

    /* The change is noted even before the settings are read, since a stack may be made later. */
    if (atomic_load(&rs_mode_current) == RS_MODE_FORWARD ||
        rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || device < 0 || device >= RS_DEVICES_MAX)
        return CUDA_SUCCESS;
    if (!note_access(owner, device, allowed))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_mode_serving() ? rs_context_apply_peers(owner) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS || !allowed)
        return CUDA_SUCCESS; /* access that a stack still grants does no harm */
    (void)note_access(owner, device, false);
    (void)rs_context_apply_peers(owner);
    return result;
}

static void note_loan(CUcontext handle, CUdevice device, CUcontext borrower)
{
    unsigned long long id = rs_context_id_of(handle);
    struct owner *owner;

    RS_ASSERT(device >= 0 && device < RS_DEVICES_MAX && borrower);
    RS_MUTEX_GUARD(&lock);
    owner = find_memory_owner(handle, id);
    if (owner)
        owner->borrowers[device] = borrower;
}

/* Gives `borrower`, the current context, access to the memory of `owner`.  Returns true if it has
 * access now. */
static bool lend_here(CUcontext owner, CUdevice device, CUcontext borrower)
{
    CUresult result = rs_driver.cuCtxEnablePeerAccess(owner, 0);

    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (rs_peer_changed(owner, true) != CUDA_SUCCESS) {
        (void)rs_driver.cuCtxDisablePeerAccess(owner);
        return false;
    }
    note_loan(owner, device, borrower);
    return true;
}

bool rs_peer_lend(CUcontext owner, CUdevice device)
{
    CUcontext borrower = rs_context_primary(device);
    CUresult result;

    if (!borrower || !rs_driver.cuCtxEnablePeerAccess || !rs_driver.cuCtxDisablePeerAccess)
        return false;
    RS_CONTEXT_GUARD(borrower, &result);
    return result == CUDA_SUCCESS && lend_here(owner, device, borrower);
}

/* Returns the element of `borrowers` that holds the current context, in the record of the context
 * `handle`; NULL when there is none. The caller holds the lock. */
static CUcontext *loan_of_current(CUcontext handle)
{
    struct owner *owner = find_memory_owner(handle, rs_context_id_of(handle));
    CUcontext current = NULL;
    CUdevice device;

    if (!owner || rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current ||
        rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS || device < 0 || device >= RS_DEVICES_MAX)
        return NULL;
    return owner->borrowers[device] == current ? &owner->borrowers[device] : NULL;
}

bool rs_peer_is_lent(CUcontext owner, bool ends)
{
    RS_MUTEX_GUARD(&lock);
    CUcontext *loan = loan_of_current(owner);

    if (loan && ends)
        *loan = NULL;
    return loan;
}

uint64_t rs_peer_devices(CUcontext handle)
{
    RS_MUTEX_GUARD(&lock);
    /* Without owners the driver need not be asked for the context's id. */
    const struct owner *owner = owners ? find_memory_owner(handle, rs_context_id_of(handle)) : NULL;
    uint64_t devices = 0;

    for (int device = 0; owner && device < RS_DEVICES_MAX; device++)
        devices |= (uint64_t)(owner->accessors[device] > 0) << device;
    return devices;
}

void rs_peer_forget(CUcontext handle, unsigned long long id)
{
    struct owner **link = &owners, *owner;

    RS_MUTEX_GUARD(&lock);
    while (*link && ((*link)->handle != handle || (*link)->id != id))
        link = &(*link)->next;
    owner = *link;
    if (owner)
        *link = owner->next;
    free(owner);
}
