/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations by key, and the memory behind mapped addresses. */
#include "charge/charge.h"

#include "base/hash_table.h"
#include "base/lock.h"
#include "base/request.h"
#include "charge/record.h"
#include "context/exclusion.h"
#include "ledger/account.h"
#include "shim/wiring.h"

#include <stdatomic.h>
#include <stdlib.h>

static struct rs_mutex lock =
    RS_MUTEX_INIT(RS_RANK_RECORDS); /* protects the four variables below */
RS_RESET_IN_CHILD(charge_charge, lock);
static struct rs_hash_table tables[RS_KEYS];
static size_t pending[RS_KEYS]; /* places that calls under way have reserved in each table */
static struct rs_mapping *mappings;
static _Atomic size_t entered; /* live records, read without the lock; at 0 no free looks further */

/* A range of addresses to which memory is mapped. */
struct rs_mapping {
    CUdeviceptr address;
    size_t size_bytes;
    struct rs_charged *memory;
    struct rs_mapping *next;
};

static enum rs_memory memory_of(const struct rs_charged *record)
{
    return record->path == RS_PATH_MANAGED ? RS_MEMORY_MANAGED : RS_MEMORY_DEVICE;
}

static struct rs_footprint_share share_of(const struct rs_charged *record)
{
    return (struct rs_footprint_share){record->charged_bytes, record->is_packed};
}

static void give(const struct rs_charged *record)
{
    const struct rs_footprint_share share = share_of(record);
    struct rs_account *account = rs_limit_account(record->device);
    size_t charged_bytes = record->charged_bytes;

    if (record->pool) {
        rs_charge_pool_freed(record->pool, record->size_bytes, record->charged_bytes);
        return;
    }
    if (record->path == RS_PATH_ARRAY) {
        charged_bytes = rs_footprint_unpack(account, record->size_bytes, &share, false);
    } else {
        if (record->is_shared)
            charged_bytes =
                rs_footprint_leave(account, record->key, record->size_bytes, memory_of(record));
        rs_account_give(account, record->size_bytes, charged_bytes, memory_of(record));
    }
    rs_limit_note_path(record->device, record->path, charged_bytes, 0);
    rs_limit_note_unserved(record->device, record->size_bytes, 0);
}

static bool take(struct rs_charged *record)
{
    struct rs_account *account = rs_limit_account(record->device);
    struct rs_footprint_share share = {record->charged_bytes, false};

    if (record->path == RS_PATH_ARRAY ? !rs_footprint_pack(account, record->size_bytes, &share)
                                      : !rs_account_take(account, record->size_bytes,
                                                         record->charged_bytes, memory_of(record)))
        return false;
    record->charged_bytes = share.charged_bytes;
    record->is_packed = share.is_packed;
    rs_limit_note_path(record->device, record->path, 0, record->charged_bytes);
    return true;
}

/* The driver made the allocation. */
static void settle(struct rs_charged *record, unsigned long long key)
{
    struct rs_account *account = rs_limit_account(record->device);
    size_t charged_bytes = record->charged_bytes;

    if (record->keys == RS_KEYS_ADDRESSES &&
        rs_footprint_settle(account, key, record->size_bytes, memory_of(record), &charged_bytes)) {
        rs_limit_note_path(record->device, record->path, record->charged_bytes, charged_bytes);
        record->charged_bytes = charged_bytes;
        record->is_shared = true;
    } else {
        rs_account_taken(account, record->size_bytes, record->charged_bytes, memory_of(record));
    }
    rs_limit_note_unserved(record->device, 0, record->size_bytes);
}

/* The driver made no allocation that a free could name. */
static void untake(struct rs_charged *record)
{
    struct rs_account *account = rs_limit_account(record->device);
    const struct rs_footprint_share share = share_of(record);
    size_t charged_bytes = record->charged_bytes;

    if (record->path == RS_PATH_ARRAY)
        charged_bytes = rs_footprint_unpack(account, record->size_bytes, &share, true);
    else
        rs_account_untake(account, record->size_bytes, record->charged_bytes, memory_of(record));
    rs_limit_note_path(record->device, record->path, charged_bytes, 0);
}

struct rs_charged *rs_charged_reserve(enum rs_charge_keys keys)
{
    struct rs_charged *record = calloc(1, sizeof(*record));
    bool reserved;

    if (!record)
        return NULL;
    rs_mutex_lock(&lock);
    reserved = rs_hash_reserve(&tables[keys], pending[keys] + 1);
    pending[keys] += reserved;
    rs_mutex_unlock(&lock);
    if (reserved) {
        record->keys = keys;
        return record;
    }
    free(record);
    return NULL;
}

void rs_charged_drop(struct rs_charged *record)
{
    rs_mutex_lock(&lock);
    pending[record->keys]--;
    rs_mutex_unlock(&lock);
    free(record);
}

/* Under the lock: frees the record of memory without a handle, a mapping or a call under way. */
static void drop_unused(struct rs_charged *memory)
{
    if (memory->handles || memory->mappings || memory->calls)
        return;
    give(memory);
    free(memory);
    atomic_fetch_sub(&entered, 1);
}

void rs_charged_enter(struct rs_charged *record, unsigned long long key)
{
    struct rs_charged *old;

    record->key = key;
    rs_mutex_lock(&lock);
    pending[record->keys]--;
    atomic_fetch_add(&entered, 1);
    old = rs_hash_take(&tables[record->keys], key);        /* freed by a call without a hook */
    (void)rs_hash_put(&tables[record->keys], key, record); /* reserved */
    if (old) {
        old->handles = 0;
        drop_unused(old);
    }
    rs_mutex_unlock(&lock);
}

/* ---- allocations ---- */

static enum rs_charge_keys keys_of(enum rs_path path)
{
    return path == RS_PATH_VMM     ? RS_KEYS_HANDLES
           : path == RS_PATH_ARRAY ? RS_KEYS_ARRAYS
                                   : RS_KEYS_ADDRESSES;
}

/* Charges the record, and reclaims memory between tries while the limit leaves no room. */
static bool take_or_reclaim(struct rs_charged *record)
{
    const struct rs_account *account = rs_limit_account(record->device);
    struct rs_refusal refusal = {.size_bytes = record->charged_bytes, .memory = memory_of(record)};

    do {
        refusal.releases = rs_account_releases(account);
        if (take(record))
            return true;
    } while (rs_wiring.reclaim(record->device, &refusal, true));
    return false;
}

static bool begin(struct rs_charge *charge, const struct rs_charge_owner *owner, enum rs_path path,
                  size_t size_bytes)
{
    struct rs_charged *record;

    if (!rs_limit_account(owner->device))
        return true;
    rs_limit_resolve(owner->device);
    rs_context_publish_stacks();
    record = rs_charged_reserve(keys_of(path));
    if (!record)
        return false;
    record->path = path;
    record->device = owner->device;
    record->context = owner->context;
    record->size_bytes = size_bytes;
    record->charged_bytes = rs_footprint_most(size_bytes);
    if (!take_or_reclaim(record)) {
        rs_charged_drop(record);
        return false;
    }
    charge->record = record;
    charge->releases = rs_account_releases(rs_limit_account(owner->device));
    return true;
}

bool rs_charge_begin(struct rs_charge *charge, const struct rs_charge_owner *owner,
                     enum rs_path path, size_t size_bytes)
{
    bool begun;

    *charge = (struct rs_charge){.record = NULL};
    rs_request_begin();
    begun = begin(charge, owner, path, size_bytes);
    if (!begun)
        rs_request_end();
    return begun;
}

bool rs_charge_again(struct rs_charge *charge, CUresult result)
{
    const struct rs_charged *record = charge->record;
    struct rs_refusal refusal;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !record)
        return false;
    refusal = (struct rs_refusal){rs_footprint_most(record->size_bytes), charge->releases,
                                  record->charged_bytes, memory_of(record)};
    charge->releases = rs_account_releases(rs_limit_account(record->device));
    return rs_wiring.reclaim(record->device, &refusal, true);
}

CUresult rs_charge_end(struct rs_charge *charge, CUresult result, unsigned long long key)
{
    struct rs_charged *record = charge->record;

    rs_request_end();
    if (!record)
        return result;
    if (result == CUDA_SUCCESS && key != 0) { /* without a key no free could name it */
        record->handles = 1;
        settle(record, key);
        rs_charged_enter(record, key);
        return result;
    }
    untake(record);
    rs_charged_drop(record);
    return result;
}

void rs_charge_free_begin(struct rs_charge *charge, enum rs_charge_keys keys,
                          unsigned long long key)
{
    *charge = (struct rs_charge){.record = NULL};
    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return;
    rs_mutex_lock(&lock);
    charge->record = rs_hash_take(&tables[keys], key);
    pending[keys] += charge->record != NULL; /* where the record returns when the driver refuses */
    rs_mutex_unlock(&lock);
}

void rs_charge_free_end(struct rs_charge *charge, CUresult result)
{
    struct rs_charged *record = charge->record;

    if (!record)
        return;
    atomic_fetch_sub(&entered, 1);
    if (result != CUDA_SUCCESS) {
        rs_charged_enter(record, record->key);
        return;
    }
    give(record);
    rs_charged_drop(record);
}

void rs_charge_forget(const struct rs_context *context)
{
    rs_mutex_lock(&lock);
    for (int keys = 0; keys < RS_KEYS; keys++) {
        for (size_t slot = 0; slot < tables[keys].slot_count;) {
            struct rs_charged *record = rs_hash_at(&tables[keys], slot);
            if (!record || record->context != context) {
                slot++;
                continue;
            }
            (void)rs_hash_take(&tables[keys],
                               record->key); /* another record may move to this slot */
            give(record);
            free(record);
            atomic_fetch_sub(&entered, 1);
        }
    }
    rs_mutex_unlock(&lock);
}

/* ---- virtual memory ---- */

void rs_charge_release_begin(struct rs_charge *charge, CUmemGenericAllocationHandle handle)
{
    struct rs_charged *memory;

    *charge = (struct rs_charge){.record = NULL};
    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return;
    rs_mutex_lock(&lock);
    memory = rs_hash_get(&tables[RS_KEYS_HANDLES], handle);
    if (memory) {
        memory->calls++;
        if (--memory->handles == 0) { /* the driver may give the same handle to another thread */
            (void)rs_hash_take(&tables[RS_KEYS_HANDLES], handle);
            pending[RS_KEYS_HANDLES]++;
            charge->taken_out = true;
        }
    }
    charge->record = memory;
    rs_mutex_unlock(&lock);
}

/* Counts one more handle, and enters the first.  Under the lock. */
static void enter_handle(struct rs_charged *memory)
{
    if (memory->handles++ == 0)
        (void)rs_hash_put(&tables[RS_KEYS_HANDLES], memory->key, memory);
}

void rs_charge_release_end(struct rs_charge *charge, CUresult result)
{
    struct rs_charged *memory = charge->record;

    if (!memory)
        return;
    rs_mutex_lock(&lock);
    pending[RS_KEYS_HANDLES] -= charge->taken_out;
    if (result != CUDA_SUCCESS)
        enter_handle(memory);
    memory->calls--;
    drop_unused(memory);
    rs_mutex_unlock(&lock);
}

/* The memory that is mapped to the address.  Under the lock. */
static struct rs_charged *mapped_at(CUdeviceptr address)
{
    const struct rs_mapping *mapping = mappings;

    while (mapping && address - mapping->address >= mapping->size_bytes)
        mapping = mapping->next;
    return mapping ? mapping->memory : NULL;
}

void rs_charge_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
    struct rs_charged *memory;

    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return;
    rs_mutex_lock(&lock);
    memory = rs_hash_get(&tables[RS_KEYS_HANDLES], handle);
    if (!memory && address)
        memory = mapped_at(address);
    if (memory && handle) {
        memory->key = handle;
        enter_handle(memory);
    }
    rs_mutex_unlock(&lock);
}

bool rs_charge_map_begin(struct rs_mapping **mapping, CUdeviceptr address, size_t size_bytes,
                         CUmemGenericAllocationHandle handle)
{
    struct rs_charged *memory;

    *mapping = NULL;
    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return true;
    rs_mutex_lock(&lock);
    memory = rs_hash_get(&tables[RS_KEYS_HANDLES], handle);
    if (memory)
        memory->calls++;
    rs_mutex_unlock(&lock);
    if (!memory)
        return true;
    *mapping = calloc(1, sizeof(**mapping));
    if (*mapping) {
        **mapping = (struct rs_mapping){address, size_bytes, memory, NULL};
        return true;
    }
    rs_mutex_lock(&lock);
    memory->calls--;
    drop_unused(memory);
    rs_mutex_unlock(&lock);
    return false;
}

void rs_charge_map_end(struct rs_mapping *mapping, CUresult result)
{
    if (!mapping)
        return;
    rs_mutex_lock(&lock);
    mapping->memory->calls--;
    if (result == CUDA_SUCCESS) {
        mapping->memory->mappings++;
        mapping->next = mappings;
        mappings = mapping;
    } else {
        drop_unused(mapping->memory);
        free(mapping);
    }
    rs_mutex_unlock(&lock);
}

struct rs_mapping *rs_charge_unmap_begin(CUdeviceptr address, size_t size_bytes)
{
    struct rs_mapping *found = NULL, **link = &mappings;
    size_t covered = 0;

    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return NULL;
    rs_mutex_lock(&lock);
    while (*link && covered < size_bytes) {
        struct rs_mapping *mapping = *link;
        if (mapping->address < address || mapping->address - address >= size_bytes) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->next = found;
        found = mapping;
        covered += mapping->size_bytes;
    }
    rs_mutex_unlock(&lock);
    return found;
}

void rs_charge_unmap_end(struct rs_mapping *found, CUresult result)
{
    struct rs_mapping *next;

    if (!found)
        return;
    rs_mutex_lock(&lock);
    for (; found; found = next) {
        next = found->next;
        if (result != CUDA_SUCCESS) {
            found->next = mappings;
            mappings = found;
            continue;
        }
        found->memory->mappings--;
        drop_unused(found->memory);
        free(found);
    }
    rs_mutex_unlock(&lock);
}
