/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a process, as the rest of the library reads them. */
#pragma once

#include "config/variables.h"
#include "resource/expression.h"
#include "resource/resource.h"

#include <stdbool.h>

/* RMM_ON_ERROR: what follows a bad setting. */
enum rs_on_error {
    RS_ON_ERROR_ABORT,       /* the process ends with exit code 78 */
    RS_ON_ERROR_PASSTHROUGH, /* every call goes to the driver */
    RS_ON_ERROR_DENY         /* allocations return CUDA_ERROR_OUT_OF_MEMORY */
};

/* RMM_FREE: when a freed block is reused. */
enum rs_free_mode {
    RS_FREE_MODE_DEFERRED, /* after all earlier work of its context; the free does not wait */
    RS_FREE_MODE_WAIT,     /* after all earlier work of its context, for which the free waits */
    RS_FREE_MODE_IMMEDIATE /* at once */
};

/* RMM_IPC: which blocks cudaIpcGetMemHandle can export. */
enum rs_ipc {
    RS_IPC_SHARED,   /* any block; the importing process runs rmmshim */
    RS_IPC_DEDICATED /* each block is an allocation of the driver's, which any process can open */
};

/* RMM_MEMORY_TYPE: how pointer attributes describe a block that lies in other memory. */
enum rs_memory_type_word {
    RS_MEMORY_TYPE_REQUESTED, /* as the device memory that was asked for */
    RS_MEMORY_TYPE_ACTUAL     /* as the memory in which it lies */
};

/* How the process takes commands from outside (shared/commands.h). */
enum rs_control {
    RS_CONTROL_UNASKED, /* at its calls, if it is served for another reason */
    RS_CONTROL_CALLS,   /* at its calls */
    RS_CONTROL_THREAD,  /* at its calls, and in a thread of the library's own */
};

/* RMM_FALLBACK: the memory that serves when the device has none left. */
enum rs_fallback { RS_FALLBACK_MANAGED, RS_FALLBACK_PINNED };

/* RMM_STATISTICS, RMM_TRACKING, RMM_ON_OOM: the format of a report. */
enum rs_statistics_format {
    RS_STATISTICS_NONE, /* no report */
    RS_STATISTICS_TEXT,
    RS_STATISTICS_JSON,
    RS_STATISTICS_PROMETHEUS,
    RS_STATISTICS_PROMETHEUS_ALL, /* with each counter of each resource */
};

/* Groups of entry points that RMM_HOOKS switches on. */
enum {
    RS_HOOK_GROUP_DEVICE = 1 << 0,
    RS_HOOK_GROUP_PINNED = 1 << 1,
    RS_HOOK_GROUP_MANAGED = 1 << 2,
    RS_HOOK_GROUP_RUNTIME = 1 << 3,
    RS_HOOK_GROUP_ASYNC = 1 << 4,
    RS_HOOK_GROUPS_ALL = (1 << 5) - 1,
    /* All but async.  The driver's stream-ordered memory outlives contexts, is reachable as its
     * pool says, and is counted in that pool.  Blocks of a stack are none of these, so the group
     * must be asked for. */
    RS_HOOK_GROUPS_DEFAULT = RS_HOOK_GROUPS_ALL & ~RS_HOOK_GROUP_ASYNC,
};

/* A field that a row of config/variables.def names is filled by it. */
struct rs_config {
    bool anything_set; /* false: no variable gives a stack, so every call is forwarded */
    const struct rs_source *limit_job; /* RMM_LIMIT_JOB, or NULL */
    struct rs_size limit_job_size;     /* its value, where it is set */
    const char *job_path;              /* RMM_JOB, or NULL */
    const struct rs_source *any_limit; /* RMM_LIMIT of some device; NULL: no device has a limit */
    enum rs_on_error on_error;
    bool verbose;
    enum rs_control control;
    bool nvtx_phases; /* RMM_PHASES=nvtx */
    unsigned hook_groups;
    enum rs_statistics_format statistics;
    const char *statistics_path;        /* NULL: stderr */
    enum rs_statistics_format tracking; /* the leak report; never for Prometheus */
    const char *tracking_path;
    enum rs_statistics_format on_oom; /* the report at out-of-memory; never for Prometheus */
    const char *on_oom_path;
    bool on_oom_given; /* false: RMM_ON_OOM is not set, which is not the same as none */
    enum rs_memory_type_word memory_type;

    /* The stacks, by kind and device; NULL: the driver's own allocations.  The last element is
     * for devices without settings of their own. */
    struct rs_expression *stack[RS_KINDS][RS_DEVICES_MAX + 1];

    struct rs_config_values *values; /* private */
};
