/* SPDX-License-Identifier: Apache-2.0 */
/* What the settings can be. */
#pragma once

#include "config/variables.h"
#include "resource/expression.h"
#include "resource/resource.h"

#include <stdbool.h>

enum rs_on_error { RS_ON_ERROR_ABORT, RS_ON_ERROR_PASSTHROUGH, RS_ON_ERROR_DENY };
enum rs_free_mode { RS_FREE_MODE_DEFERRED, RS_FREE_MODE_WAIT, RS_FREE_MODE_IMMEDIATE };
enum rs_ipc { RS_IPC_SHARED, RS_IPC_DEDICATED };
enum rs_memory_type_word { RS_MEMORY_TYPE_REQUESTED, RS_MEMORY_TYPE_ACTUAL };
/* How the process takes commands from outside (shared/commands.h). */
enum rs_control {
    RS_CONTROL_UNASKED, /* at its calls, where it is served for another reason */
    RS_CONTROL_CALLS,   /* at its calls */
    RS_CONTROL_THREAD,  /* at its calls, and in a thread of the library's */
};
enum rs_fallback { RS_FALLBACK_MANAGED, RS_FALLBACK_PINNED };
enum rs_statistics_format {
    RS_STATISTICS_NONE,
    RS_STATISTICS_TEXT,
    RS_STATISTICS_JSON,
    RS_STATISTICS_PROMETHEUS
};

/* Groups of entry points that RMM_HOOKS switches. */
enum {
    RS_HOOK_GROUP_DEVICE = 1 << 0,
    RS_HOOK_GROUP_PINNED = 1 << 1,
    RS_HOOK_GROUP_MANAGED = 1 << 2,
    RS_HOOK_GROUP_RUNTIME = 1 << 3,
    RS_HOOK_GROUP_ASYNC = 1 << 4,
    RS_HOOK_GROUPS_ALL = (1 << 5) - 1,
    /* Stream-ordered memory of the driver outlives contexts, is reached by what its pool says, and
     * is seen in that pool: ours is not, so that somebody has to ask for it. */
    RS_HOOK_GROUPS_DEFAULT = RS_HOOK_GROUPS_ALL & ~RS_HOOK_GROUP_ASYNC,
};

/* A field that a row of config/variables.def names is filled by it. */
struct rs_config {
    bool anything_set;                 /* false: every call is forwarded */
    const struct rs_source *limit_job; /* RMM_LIMIT_JOB, or NULL */
    struct rs_size limit_job_size;     /* its value, where it is set */
    const char *job_path;              /* RMM_JOB, or NULL */
    const struct rs_source *any_limit; /* RMM_LIMIT for some device, or NULL */
    enum rs_on_error on_error;
    bool verbose;
    enum rs_control control;
    unsigned hook_groups;
    enum rs_statistics_format statistics;
    const char *statistics_path;        /* NULL: stderr */
    enum rs_statistics_format tracking; /* the leak report; never for Prometheus */
    const char *tracking_path;
    enum rs_memory_type_word memory_type;

    /* NULL: the driver's own allocations.  The last row is for devices without settings. */
    struct rs_expression *stack[RS_KINDS][RS_DEVICES_MAX + 1];

    struct rs_config_values *values; /* private */
};
