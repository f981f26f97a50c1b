/* SPDX-License-Identifier: Apache-2.0 */
/* A driver's virtual memory management for tests: addresses without memory, a capacity, failures on
 * demand, and a record of all calls, so that leaks and misuse show. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_vmm {
    size_t granularity_bytes, capacity_bytes;
    size_t created_bytes, peak_bytes; /* bytes of physical memory */
    size_t reservations, mappings;    /* counts of those that exist now */
    uint64_t calls, creations, unmappings, reservations_made;
    uint64_t fail_at; /* the call with this number from now (1 is the next) fails with fail_with; 0:
                         none does */
    bool fails_from_then_on; /* all calls after that one fail too */
    CUresult fail_with;      /* answer of the failing calls */
    unsigned wrong_calls;    /* calls that a driver would refuse: double mappings, unknown handles,
                                unmapping a watched range */
    bool is_supported;       /* answer of the device attribute for virtual memory management */
    bool is_slow;            /* lets other threads run inside each call */
    unsigned waits;          /* frees of a sentinel, which wait for the device */
    uint64_t unmapped_unwaited;  /* unmappings since the last wait */
    void (*on_call)(void *data); /* called once, inside the next call that creates memory */
    void *on_call_data;
    void (*on_release)(void);      /* called inside each call that releases memory */
    void (*on_access)(void *data); /* called inside each call that changes access */
    void *on_access_data;
};

extern struct fake_vmm fake_vmm;

/* Replaces the driver's functions by a new fake. */
void fake_vmm_install(size_t capacity_bytes);

/* With `watched`, unmapping any part of the range counts as a wrong call from now on; without, no
 * longer. */
void fake_vmm_watch(CUdeviceptr address, size_t size_bytes, bool watched);

/* True when every byte of the range is mapped with access for device 0, or for `device`. */
bool fake_vmm_is_usable(CUdeviceptr address, size_t size_bytes);
bool fake_vmm_is_usable_by(int device, CUdeviceptr address, size_t size_bytes);

/* True when no reservation, mapping or memory exists, wrong_calls is 0, and the calling thread's
 * capture mode is the program's. */
bool fake_vmm_is_clean(void);
