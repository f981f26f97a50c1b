/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: what the environment variables (config/variables.h) amount to for each device.
 *
 * RMM_RESOURCE gives a stack as an expression; the short variables build the same expression, so
 * that the common cases need no grammar.  A name with _0, _1, ... is for that device alone. */
#pragma once

#include "base/complaint.h"
#include "config/variables.h"
#include "resource/expression.h"

#include <stdbool.h>

enum rs_on_error { RS_ON_ERROR_ABORT, RS_ON_ERROR_PASSTHROUGH, RS_ON_ERROR_DENY };
enum rs_free_mode { RS_FREE_MODE_DEFERRED, RS_FREE_MODE_WAIT, RS_FREE_MODE_IMMEDIATE };
enum rs_ipc { RS_IPC_SHARED, RS_IPC_DEDICATED };
enum rs_memory_type_word { RS_MEMORY_TYPE_REQUESTED, RS_MEMORY_TYPE_ACTUAL };
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

struct rs_config {
    bool anything_set;                 /* false: every call is forwarded */
    const struct rs_source *any_limit; /* RMM_LIMIT for some device, or NULL */
    enum rs_on_error on_error;
    bool verbose;
    unsigned hook_groups;
    enum rs_statistics_format statistics;
    const char *statistics_path;        /* NULL: stderr */
    enum rs_statistics_format tracking; /* the leak report; never for Prometheus */
    const char *tracking_path;
    bool actual_memory_type; /* RMM_MEMORY_TYPE=actual */

    /* NULL: the driver's own allocations.  The last row is for devices without settings. */
    struct rs_expression *stack[RS_KINDS][RS_DEVICES_MAX + 1];

    struct rs_config_values *values; /* private */
};

/* Reads `environment` (like environ).  Complains about every bad setting; returns the number of
 * complaints.  Even then on_error is valid.  The config lives until rs_config_free. */
unsigned rs_config_parse(char *const *environment, struct rs_complaints *complaints,
                         struct rs_config *config);

void rs_config_free(struct rs_config *config);

/* The stack for device memory that a text asks for inside the process, with what RMM_FREE (that for
 * all devices) adds to it.  NULL after complaining, or when out of host memory.  The source and the
 * config outlive it. */
struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_complaints *complaints);

/* The expression for a kind of memory on a device, or NULL. */
const struct rs_expression *rs_config_stack(const struct rs_config *config, enum rs_kind kind,
                                            int device);

/* How many variables are for devices from `devices` on, and the first of them. */
unsigned rs_config_count_absent(const struct rs_config *config, int devices,
                                const struct rs_source **first, int *first_device);

/* The device's limit (-1: that for all devices) as it was written, or NULL. */
const struct rs_size *rs_config_limit(const struct rs_config *config, int device);

/* What report a text asks for ("json:PATH"), as RMM_STATISTICS's or (without Prometheus's format)
 * RMM_TRACKING's does; *path is left alone where it is stderr.  RS_STATISTICS_NONE where none is,
 * or after complaining. */
enum rs_statistics_format rs_config_report(const struct rs_source *source, bool prometheus,
                                           const char **path, struct rs_complaints *complaints);

/* False, after complaining, when a resource of the stack begins with more than limit_bytes (0: no
 * limit).  With place NULL percentages are let through. */
bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_place *place, struct rs_complaints *complaints);
