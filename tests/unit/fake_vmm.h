/* SPDX-License-Identifier: Apache-2.0 */
/* A driver's virtual memory management for tests: addresses without bytes, a capacity, failures on
 * demand, and a record of everything, so that what is left over or misused shows. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_vmm {
    size_t granularity_bytes, capacity_bytes;
    size_t created_bytes, peak_bytes; /* physical memory */
    size_t reservations, mappings;    /* there are now */
    uint64_t calls, creations, unmappings, reservations_made;
    uint64_t fail_at;        /* this call from now (1 is the next) fails with ... */
    bool fails_from_then_on; /* ... and all after it ... */
    CUresult fail_with;      /* ... this */
    unsigned wrong_calls;    /* double mappings, unmapping what is watched, unknown handles, ... */
    bool is_supported;       /* the device's attribute */
    bool is_slow;            /* other threads run inside each call */
    unsigned waits;          /* real frees of a sentinel */
    uint64_t unmapped_unwaited;  /* unmappings since the last wait */
    void (*on_call)(void *data); /* called once, inside the next call that creates memory */
    void *on_call_data;
    void (*on_release)(void);      /* called inside each call that releases memory */
    void (*on_access)(void *data); /* called inside each call that changes access */
    void *on_access_data;
};

extern struct fake_vmm fake_vmm;

/* Puts the fake in place of the driver's functions, as new. */
void fake_vmm_install(size_t capacity_bytes);

/* From now on (watched) unmapping any part of the range is wrong. */
void fake_vmm_watch(CUdeviceptr address, size_t size_bytes, bool watched);

/* True when every byte of the range is mapped and may be used, by device 0 or by that one. */
bool fake_vmm_is_usable(CUdeviceptr address, size_t size_bytes);
bool fake_vmm_is_usable_by(int device, CUdeviceptr address, size_t size_bytes);

/* True when no reservation, mapping or memory is left and nothing was misused. */
bool fake_vmm_is_clean(void);
