/* SPDX-License-Identifier: Apache-2.0 */
/* The devices: memory, primary context, attributes. The caller holds the lock. */
#pragma once

#include "driver/region.h"

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#define HC_DEVICES_MAX 8

struct hc_device {
    struct hc_region memory;
    struct hc_ctx *primary; /* one object for the life of the process */
    unsigned primary_count;
    struct hc_pool *default_pool, *current_pool;
    size_t peak_bytes; /* peak of the used bytes, taken whenever a call releases the lock */
};

/* Opens the devices' memory; false if the host refuses. */
bool hc_devices_open(void);

/* The device of that ordinal, or NULL. */
struct hc_device *hc_device_at(int ordinal);

/* Returns the driver's own mapping of an address of the program. Works without the lock. */
void *hc_bytes(uintptr_t address);

/* Memory that all devices see. */
struct hc_region *hc_managed_region(void);
struct hc_region *hc_pinned_region(void);
