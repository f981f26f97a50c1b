/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, read once when the library is loaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hc_schedule { HC_REAL, HC_RANDOM, HC_STEPPED };
enum hc_placement { HC_FIRST_FIT, HC_SAME_AGAIN, HC_NEVER_AGAIN };

struct hc_config {
    int driver_version;        /* HOSTCUDA_DRIVER_VERSION */
    int device_count;          /* HOSTCUDA_DEVICES */
    size_t memory_bytes;       /* HOSTCUDA_MEMORY, of each device */
    size_t context_bytes;      /* HOSTCUDA_CONTEXT_MEMORY, what a context takes of it */
    size_t pool_step_bytes;    /* HOSTCUDA_POOL_STEP, that a pool holds whole ones of */
    size_t module_bytes;       /* HOSTCUDA_MODULE_MEMORY, what a loaded module takes of it */
    const char *withhold;      /* HOSTCUDA_WITHHOLD, names separated by commas */
    enum hc_schedule schedule; /* HOSTCUDA_SCHEDULE: real, random[:SEED], stepped */
    uint64_t seed;
    enum hc_placement placement; /* HOSTCUDA_PLACEMENT: first, same, never */
    bool inner;                  /* HOSTCUDA_INNER: cuGetProcAddress answers other addresses */
    bool pageable;           /* HOSTCUDA_PAGEABLE: kernels reach the program's pageable memory */
    bool concurrent_managed; /* HOSTCUDA_CONCURRENT_MANAGED, on: what the attribute says */
    bool guard;      /* HOSTCUDA_GUARD, on: the host faults when it touches device memory itself */
    bool poison;     /* HOSTCUDA_POISON: fill freed memory */
    bool quarantine; /* HOSTCUDA_QUARANTINE: freed memory faults and is not placed again */
    bool race;       /* HOSTCUDA_RACE */
    const char *race_owner; /* HOSTCUDA_RACE_OWNER: the library whose pool the notes are about */
    bool waits;             /* HOSTCUDA_WAITS: waits inside a program's allocations are reports */
    bool report;        /* HOSTCUDA_REPORT: at the end, what was called and is not implemented */
    const char *faults; /* HOSTCUDA_FAULT */
};

extern struct hc_config hc_config;

void hc_config_read(void);

/* True if the name is in HOSTCUDA_WITHHOLD. */
bool hc_config_withholds(const char *name);
