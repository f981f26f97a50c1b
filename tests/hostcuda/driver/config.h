/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment, read once when the library is loaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hc_schedule { HC_REAL, HC_RANDOM, HC_STEPPED };
enum hc_placement { HC_FIRST_FIT, HC_SAME_AGAIN, HC_NEVER_AGAIN };

struct hc_config {
    int driver_version;   /* HOSTCUDA_DRIVER_VERSION */
    int device_count;     /* HOSTCUDA_DEVICES */
    int first_uuid;       /* HOSTCUDA_UUID: the number in the UUID of device 0 */
    size_t memory_bytes;  /* HOSTCUDA_MEMORY, of each device */
    size_t context_bytes; /* HOSTCUDA_CONTEXT_MEMORY, taken by each context */
    /* HOSTCUDA_POOL_STEP, in whole multiples of which a pool holds memory */
    size_t pool_step_bytes;
    size_t host_bytes;    /* most host memory that can be pinned; SIZE_MAX: what there are addresses
                             for */
    size_t module_bytes;  /* HOSTCUDA_MODULE_MEMORY, taken by each loaded module */
    const char *withhold; /* HOSTCUDA_WITHHOLD, names separated by commas */
    enum hc_schedule schedule; /* HOSTCUDA_SCHEDULE: real, random[:SEED], stepped */
    uint64_t seed;
    enum hc_placement placement; /* HOSTCUDA_PLACEMENT: first, same, never */
    bool inner;                  /* HOSTCUDA_INNER: cuGetProcAddress answers other addresses */
    bool pageable;           /* HOSTCUDA_PAGEABLE: kernels reach the program's pageable memory */
    bool concurrent_managed; /* HOSTCUDA_CONCURRENT_MANAGED: the device attribute; on by default */
    bool guard;  /* HOSTCUDA_GUARD: the host faults when it accesses device memory; on by default */
    bool poison; /* HOSTCUDA_POISON: fill freed memory */
    bool quarantine;        /* HOSTCUDA_QUARANTINE: freed memory faults and is not placed again */
    bool race;              /* HOSTCUDA_RACE */
    const char *race_owner; /* HOSTCUDA_RACE_OWNER: the library whose pool the notes are about */
    bool waits;             /* HOSTCUDA_WAITS: waits inside a program's allocations are reports */
    bool report;        /* HOSTCUDA_REPORT: print at exit which functions were called but are not
                           implemented */
    const char *faults; /* HOSTCUDA_FAULT */
};

extern struct hc_config hc_config;

void hc_config_read(void);

/* True if the name is in HOSTCUDA_WITHHOLD. */
bool hc_config_withholds(const char *name);
