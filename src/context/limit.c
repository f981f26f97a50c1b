/* SPDX-License-Identifier: Apache-2.0 */
#include "context/limit.h"

#include "base/arithmetic.h"
#include "config/mode.h"
#include "driver/driver.h"
#include "shared/published.h"

#include <stdatomic.h>

struct device_limit {
    struct rs_account account;
    _Atomic size_t path_bytes[RS_PATHS];
    _Atomic uint64_t ordered_allocations; /* stream-ordered allocations that the driver served */
    /* Live ones of these, in bytes as requested. */
    _Atomic size_t ordered_live_bytes, ordered_live_blocks;
    _Atomic bool resolved; /* RMM_LIMIT has been resolved, or rs_limit_set was called first */
};

static struct device_limit unpublished[RS_DEVICES_MAX], *devices = unpublished;

static _Atomic bool any_limit;

void rs_limit_begin(void)
{
    struct device_limit *published = NULL;

    if (rs_published_head())
        published = rs_published_allocate(sizeof(unpublished), _Alignof(struct device_limit));
    devices = published ? published : unpublished;
}

static bool is_known(int device)
{
    return device >= 0 && device < RS_DEVICES_MAX;
}

struct rs_account *rs_limit_account(int device)
{
    return is_known(device) ? &devices[device].account : NULL;
}

static void set(int device, size_t bytes)
{
    atomic_store(&devices[device].account.limit_bytes, bytes);
    if (bytes)
        atomic_store(&any_limit, true);
}

bool rs_limit_ask_free(CUdevice device, size_t *free_bytes)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUdevice current;
    size_t total;
    bool told = rs_driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device &&
                rs_driver.cuMemGetInfo_v2(free_bytes, &total) == CUDA_SUCCESS;

    rs_capture_restore(mode);
    return told;
}

void rs_limit_resolve(CUdevice device)
{
    const struct rs_size *size;
    size_t total = 0, free_bytes = 0, bytes;
    bool expected = false;

    if (!is_known(device) || atomic_load(&devices[device].resolved))
        return;
    size = rs_config_limit(&rs_config, device);
    if (size && size->kind != RS_SIZE_BYTES &&
        (!rs_driver.cuDeviceTotalMem_v2 ||
         rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS))
        return; /* no such device, or the driver is not ready: a later call resolves it */
    if (size && size->kind == RS_SIZE_OF_FREE && !rs_limit_ask_free(device, &free_bytes)) {
        /* Until a context of the device is current. */
        set(device, rs_max(rs_size_resolve(*size, total, total), 1));
        return;
    }
    bytes = size ? rs_max(rs_size_resolve(*size, total, free_bytes), 1) : 0;
    if (atomic_compare_exchange_strong(&devices[device].resolved, &expected, true) && bytes)
        set(device, bytes);
}

size_t rs_limit_get(int device)
{
    if (!is_known(device) || !rs_mode_serving())
        return 0;
    rs_limit_resolve(device);
    return atomic_load(&devices[device].account.limit_bytes);
}

bool rs_limit_is_known(int device)
{
    return rs_limit_get(device) > 0 || (is_known(device) && atomic_load(&devices[device].resolved));
}

bool rs_limit_set(int device, size_t bytes)
{
    if (!is_known(device) || rs_mode_now() != RS_MODE_SERVE)
        return false;
    atomic_store(&devices[device].resolved, true);
    set(device, bytes);
    return true;
}

bool rs_limit_follows(void)
{
    return rs_config.statistics != RS_STATISTICS_NONE || rs_config.any_limit ||
           rs_config.control != RS_CONTROL_UNASKED ||
           atomic_load_explicit(&any_limit, memory_order_relaxed);
}

/* ---- the report ---- */

void rs_limit_note_path(int device, enum rs_path path, size_t from_bytes, size_t to_bytes)
{
    if (is_known(device))
        atomic_fetch_add_explicit(&devices[device].path_bytes[path], to_bytes - from_bytes,
                                  memory_order_relaxed);
}

void rs_limit_note_stream_ordered(int device, size_t bytes, bool freed)
{
    if (!is_known(device))
        return;
    atomic_fetch_add_explicit(&devices[device].ordered_allocations, !freed, memory_order_relaxed);
    atomic_fetch_add_explicit(&devices[device].ordered_live_bytes, freed ? -bytes : bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&devices[device].ordered_live_blocks, freed ? -(size_t)1 : 1,
                              memory_order_relaxed);
}

void rs_limit_report(int device, struct rs_report *report, bool also_unused)
{
    static const char *const names[RS_PATHS] = {"driver", "managed",        "arrays",
                                                "vmm",    "stream_ordered", "graphs"};
    struct device_limit *of = is_known(device) ? &devices[device] : NULL;
    struct rs_account *account = of ? &of->account : NULL;
    struct rs_term served[] = {
        {RS_REPORT_PLACE(account->charged_bytes), 1, 0, 1},
        {RS_REPORT_PLACE(of->path_bytes[0]), RS_PATHS, sizeof(of->path_bytes[0]), -1},
    };

    if (!of || (!atomic_load(&account->limit_bytes) && !atomic_load(&account->peak_charged_bytes) &&
                !(also_unused && atomic_load(&of->resolved))))
        return;
#define ADD(name, kind, unit, field)                                                               \
    rs_report_add_field(report, "account", name, RS_COUNTER_##kind, RS_UNIT_##unit, field)
    ADD("limit", LIVE, BYTES, account->limit_bytes);
    ADD("charged", LIVE, BYTES, account->charged_bytes);
    ADD("charged_peak", PEAK, BYTES, account->peak_charged_bytes);
    ADD("refusals", TOTAL, COUNT, account->refusals);
    rs_report_add_sum(report, "account", "served", RS_COUNTER_LIVE, RS_UNIT_BYTES, served, 2);
    for (int path = 0; path < RS_PATHS; path++)
        ADD(names[path], LIVE, BYTES, of->path_bytes[path]);
    ADD("stream_ordered_live", LIVE, BYTES, of->ordered_live_bytes);
    ADD("stream_ordered_blocks", LIVE, COUNT, of->ordered_live_blocks);
    ADD("stream_ordered_allocations", TOTAL, COUNT, of->ordered_allocations);
#undef ADD
}
