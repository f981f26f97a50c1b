/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/device.h"

#include "driver/config.h"
#include "driver/entry_table.h"
#include "driver/lock.h"
#include "hostcuda.h"

/* Addresses are worth little: several times the capacity spares the driver any fragmentation. */
#define ADDRESSES_PER_BYTE              4
#define SHARED_LEAST_BYTES              ((size_t)1 << 30)
#define ADDRESSES_PER_BYTE_IF_USED_ONCE 32

static struct hc_device devices[HC_DEVICES_MAX];
static struct hc_region managed, pinned;

bool hc_devices_open(void)
{
    bool used_once = hc_config.placement == HC_NEVER_AGAIN || hc_config.quarantine;
    size_t factor = used_once ? ADDRESSES_PER_BYTE_IF_USED_ONCE : ADDRESSES_PER_BYTE;
    size_t shared_bytes = hc_config.memory_bytes * factor;
    if (shared_bytes < SHARED_LEAST_BYTES)
        shared_bytes = SHARED_LEAST_BYTES;
    for (int i = 0; i < hc_config.device_count; i++) {
        if (!hc_region_open(&devices[i].memory, hc_config.memory_bytes * factor,
                            hc_config.memory_bytes, hc_config.guard))
            return false;
    }
    return hc_region_open(&managed, shared_bytes, SIZE_MAX, false) &&
           hc_region_open(&pinned, shared_bytes, hc_config.host_bytes, false);
}

struct hc_device *hc_device_at(int ordinal)
{
    return ordinal >= 0 && ordinal < hc_config.device_count ? &devices[ordinal] : NULL;
}

struct hc_region *hc_managed_region(void)
{
    return &managed;
}

struct hc_region *hc_pinned_region(void)
{
    return &pinned;
}

void *hc_bytes(uintptr_t address)
{
    for (int i = 0; i < hc_config.device_count; i++) {
        if (hc_region_holds(&devices[i].memory, address))
            return hc_region_bytes(&devices[i].memory, address);
    }
    return (void *)address;
}

void hc_device_note_peaks(void)
{
    for (int i = 0; i < hc_config.device_count; i++) {
        if (devices[i].memory.used_bytes > devices[i].peak_bytes)
            devices[i].peak_bytes = devices[i].memory.used_bytes;
    }
}

HC_API size_t hostcuda_used_bytes(int device)
{
    HC_LOCKED();
    return hc_device_at(device) ? devices[device].memory.used_bytes : 0;
}

HC_API size_t hostcuda_peak_bytes(int device)
{
    HC_LOCKED();
    return hc_device_at(device) ? devices[device].peak_bytes : 0;
}
