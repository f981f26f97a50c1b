/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the program's own allocations by key, and finds the memory behind mapped addresses. */
#include "charge/charge.h"

#include "base/check.h"
#include "base/hash_table.h"
#include "context/table.h"
#include "shim/wiring.h"

#include <stdatomic.h>
#include <stdlib.h>

struct rs_mutex rs_charge_lock = RS_MUTEX_INIT(RS_RANK_RECORDS);
RS_RESET_IN_CHILD(charge_charge, rs_charge_lock);
/* The lock protects `tables`, `mappings` and `entered`. */
static struct rs_hash_table tables[RS_KEYS];
static struct rs_mapping *mappings;
static _Atomic size_t entered; /* the number of live records; also read without the lock: while it
                                  is 0, no free looks for a record */

/* A range of addresses to which memory is mapped. */
struct rs_mapping {
    CUdeviceptr address;
    size_t size_bytes;
    struct rs_charged *memory;
    struct rs_mapping *next;
};

static enum rs_memory memory_of_record(const struct rs_charged *record)
{
    return record->path == RS_PATH_MANAGED ? RS_MEMORY_MANAGED : RS_MEMORY_DEVICE;
}

static bool take_charge(struct rs_charged *record)
{
    struct rs_account *account = rs_limit_account(record->device);
    bool taken = record->path == RS_PATH_ARRAY
                     ? rs_footprint_pack(account, record->size_bytes, &record->share)
                     : rs_account_take(account, record->size_bytes, record->share.charged_bytes,
                                       memory_of_record(record));

    if (taken)
        rs_limit_note_path(record->device, record->path, 0, record->share.charged_bytes);
    return taken;
}

/* Settles the charge of an allocation that the driver has made. */
static void settle_record(struct rs_charged *record, unsigned long long key)
{
    struct rs_account *account = rs_limit_account(record->device);
    size_t charged_bytes;

    rs_limit_note_unserved(record->device, 0, record->size_bytes);
    record->is_shared = record->keys == RS_KEYS_ADDRESSES &&
                        rs_footprint_settle(account, key, record->size_bytes,
                                            memory_of_record(record), &charged_bytes);
    if (!record->is_shared) {
        rs_account_taken(account, record->size_bytes, record->share.charged_bytes,
                         memory_of_record(record));
        return;
    }
    rs_limit_note_path(record->device, record->path, record->share.charged_bytes, charged_bytes);
    record->share.charged_bytes = charged_bytes;
}

/* Takes the charge back, when the driver has the memory back, or (`refused`) has made no allocation
 * that a free could name. */
static void give_charge(const struct rs_charged *record, bool refused)
{
    struct rs_account *account = rs_limit_account(record->device);
    size_t charged_bytes = record->share.charged_bytes;

    if (record->pool) {
        rs_charge_pool_freed(record->pool, record->size_bytes, charged_bytes);
        return;
    }
    if (record->is_shared)
        charged_bytes =
            rs_footprint_leave(account, record->key, record->size_bytes, memory_of_record(record));
    if (record->path == RS_PATH_ARRAY)
        charged_bytes = rs_footprint_unpack(account, record->size_bytes, &record->share, refused);
    else if (refused)
        rs_account_untake(account, record->size_bytes, charged_bytes, memory_of_record(record));
    else
        rs_account_give(account, record->size_bytes, charged_bytes, memory_of_record(record));
    rs_limit_note_path(record->device, record->path, charged_bytes, 0);
    if (!refused)
        rs_limit_note_unserved(record->device, record->size_bytes, 0);
}

/* ---- the tables; under the lock ---- */

/* If the memory has no handle, no mapping and no call under way, takes its charge back and frees
 * its record. */
static void drop_unused(struct rs_charged *memory)
{
    if (memory->handles || memory->mappings || memory->calls)
        return;
    give_charge(memory, false);
    free(memory);
    atomic_fetch_sub(&entered, 1);
}

/* Enters a record into its table.  This fails only if host memory is out and over a hundred calls
 * under way leave no slot free; then no free will find the record, and its bytes stay charged. */
static void put_record(struct rs_charged *record)
{
    struct rs_charged *old = rs_hash_take(&tables[record->keys], record->key);

    (void)rs_hash_put(&tables[record->keys], record->key, record);
    if (old && old != record) { /* the older allocation with this key must have been freed by a call
                                   without a hook */
        old->handles = 0;
        drop_unused(old);
    }
}

/* Counts one more handle.  The first handle enters the record into its table. */
static void add_handle(struct rs_charged *memory)
{
    if (memory->handles++ == 0)
        put_record(memory);
}

struct rs_charged *rs_charged_new(enum rs_charge_keys keys)
{
    RS_ASSERT_HELD(&rs_charge_lock);
    return rs_hash_reserve(&tables[keys], 1) ? calloc(1, sizeof(struct rs_charged)) : NULL;
}

void rs_charged_enter(struct rs_charged *record, unsigned long long key)
{
    RS_ASSERT_HELD(&rs_charge_lock);
    atomic_fetch_add(&entered, 1);
    record->key = key;
    add_handle(record);
}

/* ---- allocations ---- */

static const enum rs_charge_keys keys_of[RS_PATHS] = {
    [RS_PATH_VMM] = RS_KEYS_HANDLES, [RS_PATH_ARRAY] = RS_KEYS_ARRAYS};

/* Charges the record, and reclaims memory between tries while the limit leaves no room.  Returns
 * false when nothing more can be reclaimed. */
static bool take_or_reclaim(struct rs_charged *record)
{
    const struct rs_account *account = rs_limit_account(record->device);
    struct rs_refusal refusal = {.size_bytes = record->share.charged_bytes,
                                 .memory = memory_of_record(record)};

    do {
        refusal.releases = rs_account_releases(account);
        if (take_charge(record))
            return true;
    } while (rs_wiring.reclaim(record->device, &refusal, true));
    return false;
}

bool rs_charge_begin(struct rs_charge *charge, const struct rs_charge_owner *owner,
                     enum rs_path path, size_t size_bytes)
{
    size_t most_bytes = rs_footprint_most(size_bytes);
    struct rs_charged *record;

    *charge = (struct rs_charge){.reclaims_on = RS_NO_DEVICE};
    if (!rs_limit_account(owner->device))
        return true;
    rs_limit_resolve(owner->device);
    rs_context_publish_stacks();
    rs_mutex_lock(&rs_charge_lock);
    record = rs_charged_new(keys_of[path]);
    rs_mutex_unlock(&rs_charge_lock);
    if (!record)
        return false;
    *record = (struct rs_charged){.keys = keys_of[path],
                                  .path = path,
                                  .device = owner->device,
                                  .context = owner->context,
                                  .size_bytes = size_bytes,
                                  .share.charged_bytes = most_bytes};
    if (!take_or_reclaim(record)) {
        free(record);
        return false;
    }
    *charge = (struct rs_charge){
        .record = record,
        .reclaims_on = owner->device,
        .refusal = {most_bytes, rs_account_releases(rs_limit_account(owner->device)),
                    record->share.charged_bytes, memory_of_record(record)}};
    return true;
}

bool rs_charge_again(struct rs_charge *charge, CUresult result)
{
    const struct rs_refusal refusal = charge->refusal;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || charge->reclaims_on == RS_NO_DEVICE)
        return false;
    charge->refusal.releases = rs_account_releases(rs_limit_account(charge->reclaims_on));
    return rs_wiring.reclaim(charge->reclaims_on, &refusal, true);
}

void rs_charge_end(struct rs_charge *charge, CUresult result, unsigned long long key)
{
    struct rs_charged *record = charge->record;

    if (!record)
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
    if (result == CUDA_SUCCESS && key != 0) { /* without a key no free could name the allocation */
        settle_record(record, key);
        rs_charged_enter(record, key);
    } else {
        give_charge(record, true);
        free(record);
    }
}

struct rs_charged *rs_charge_free_begin(bool serving, enum rs_charge_keys keys,
                                        unsigned long long key)
{
    struct rs_charged *record;

    if (!serving || atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return NULL;
    RS_MUTEX_GUARD(&rs_charge_lock);
    record = rs_hash_get(&tables[keys], key);
    if (record) {
        record->calls++;
        if (--record->handles == 0)
            (void)rs_hash_take(&tables[keys], key);
    }
    return record;
}

CUresult rs_charge_free_end(struct rs_charged *record, CUresult result)
{
    if (!record)
        return result;
    RS_MUTEX_GUARD(&rs_charge_lock);
    if (result != CUDA_SUCCESS)
        add_handle(record);
    record->calls--;
    drop_unused(record);
    return result;
}

void rs_charge_forget(const struct rs_context *context)
{
    RS_MUTEX_GUARD(&rs_charge_lock);

    for (int keys = 0; keys < RS_KEYS; keys++)
        for (size_t slot = 0; slot < tables[keys].slot_count;) {
            struct rs_charged *record = rs_hash_at(&tables[keys], slot);
            if (!record || record->context != context) {
                slot++;
                continue;
            }
            /* The slot is looked at again, since taking a record may move another one there. */
            (void)rs_hash_take(&tables[keys], record->key);
            record->handles = 0;
            drop_unused(record);
        }
}

/* ---- virtual memory ---- */

void rs_charge_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
    struct rs_charged *memory;

    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
    memory = rs_hash_get(&tables[RS_KEYS_HANDLES], handle);
    for (const struct rs_mapping *at = address ? mappings : NULL; !memory && at; at = at->next)
        if (address - at->address < at->size_bytes)
            memory = at->memory;
    if (memory && handle) {
        memory->key = handle;
        add_handle(memory);
    }
}

bool rs_charge_map_begin(struct rs_mapping **mapping, CUdeviceptr address, size_t size_bytes,
                         CUmemGenericAllocationHandle handle)
{
    struct rs_charged *memory;

    *mapping = NULL;
    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return true;
    RS_MUTEX_GUARD(&rs_charge_lock);
    memory = rs_hash_get(&tables[RS_KEYS_HANDLES], handle);
    if (!memory)
        return true;
    *mapping = malloc(sizeof(**mapping));
    if (!*mapping)
        return false;
    **mapping = (struct rs_mapping){address, size_bytes, memory, NULL};
    memory->calls++;
    return true;
}

void rs_charge_map_end(struct rs_mapping *mapping, CUresult result)
{
    if (!mapping)
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
    mapping->memory->calls--;
    if (result == CUDA_SUCCESS) {
        mapping->memory->mappings++;
        mapping->next = mappings;
        mappings = mapping;
    } else {
        drop_unused(mapping->memory);
        free(mapping);
    }
}

struct rs_mapping *rs_charge_unmap_begin(CUdeviceptr address, size_t size_bytes)
{
    struct rs_mapping *found = NULL, **link = &mappings;
    size_t covered = 0;

    if (atomic_load_explicit(&entered, memory_order_acquire) == 0)
        return NULL;
    RS_MUTEX_GUARD(&rs_charge_lock);
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
    return found;
}

void rs_charge_unmap_end(struct rs_mapping *found, CUresult result)
{
    struct rs_mapping *next;

    if (!found)
        return;
    RS_MUTEX_GUARD(&rs_charge_lock);
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
}

/* ---- the device memory of a CUDA array, which the driver tells for sparse arrays alone ---- */

enum {
    UNIT_BYTES = 4 << 10,
    TILE_BYTES = 64,
    TILE_ROWS = 8,
    SPARSE = 0x40, /* CUDA_ARRAY3D_SPARSE; DEFERRED, LAYERED and CUBE are flags of the same group */
    DEFERRED = 0x80,
    LAYERED = 0x01,
    CUBE = 0x04,
    FORMATS_BY_CHANNEL_END = 0x40,
};

/* Ranges of formats, with the bits of one channel (below FORMATS_BY_CHANNEL_END) or of one element.
 * Formats of video and compressed textures count as the largest format in their range, since a
 * limit may count too much, but never too little. */
static const struct format {
    unsigned first, last, bits;
} formats[] = {
    {0x01, 0x01, 8},
    {0x08, 0x08, 8}, /* integers of 8 bits */
    {0x02, 0x02, 16},
    {0x09, 0x09, 16},
    {0x10, 0x10, 16}, /* integers of 16 bits, and half precision */
    {0x00, FORMATS_BY_CHANNEL_END - 1, 32},
    {0x50, 0x50, 32}, /* elements of 10, 10, 10 and 2 bits */
    {0x91, 0x9e, 8},  /* compressed: at most 16 bytes for 4 x 4 elements */
    {0xa2, 0xa2, 16},
    {0xb0, 0xb0, 16}, /* video of 8 bits with 4:2:2 and 4:2:0 sampling */
};

/* Returns the bits of one element with all its channels. */
static size_t element_bits(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    /* The formats with one, two and four channels of 8 bits, then those with 16 bits. */
    static const unsigned char normalized[] = {8, 16, 32, 16, 32, 64};
    unsigned format = (unsigned)descriptor->Format;

    if (format >= 0xc0 && format <= 0xcb)
        return normalized[(format - 0xc0) % RS_ARRAY_LENGTH(normalized)];
    for (size_t i = 0; i < RS_ARRAY_LENGTH(formats); i++)
        if (format >= formats[i].first && format <= formats[i].last)
            return formats[i].bits *
                   (format < FORMATS_BY_CHANNEL_END ? rs_max(descriptor->NumChannels, 1u) : 1u);
    return 64;
}

/* Returns the bytes of one mip level; SIZE_MAX on overflow. */
static size_t level_bytes(size_t width, size_t height, size_t depth, size_t bits)
{
    size_t row_bytes, rows, bytes;

    if (__builtin_mul_overflow(width, bits, &bytes) || !rs_round_up(bytes, 8, &bytes) ||
        !rs_round_up(bytes / 8, TILE_BYTES, &row_bytes) || !rs_round_up(height, TILE_ROWS, &rows) ||
        __builtin_mul_overflow(row_bytes, rows, &bytes) ||
        __builtin_mul_overflow(bytes, depth, &bytes))
        return SIZE_MAX;
    return bytes;
}

size_t rs_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels)
{
    size_t width = descriptor->Width, height = rs_max(descriptor->Height, 1);
    size_t depth = rs_max(descriptor->Depth, 1), total = 0;
    bool has_layers = descriptor->Flags & (LAYERED | CUBE);

    if (width == 0 || (descriptor->Flags & (SPARSE | DEFERRED)))
        return 0;
    for (unsigned level = 0; level < rs_max(levels, 1) && level < 64; level++) {
        size_t bytes = level_bytes(width, height, depth, element_bits(descriptor));
        if (bytes == SIZE_MAX || __builtin_add_overflow(total, bytes, &total))
            return SIZE_MAX;
        width = rs_max(width / 2, 1);
        height = rs_max(height / 2, 1);
        depth = has_layers ? depth : rs_max(depth / 2, 1);
    }
    return rs_round_up(total, UNIT_BYTES, &total) ? total : SIZE_MAX;
}
