/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_LIMIT: the most that this process takes from the driver on a device, over all contexts,
 * stacks and paths.  One account per device (ledger/account.h) is charged before the driver is
 * asked. */
#pragma once

#include "base/diagnostic.h"
#include "driver/cuda.h"
#include "ledger/account.h"
#include "resource/report.h"

#include <stdbool.h>
#include <stddef.h>

/* Before the first account is asked for, and again in a forked child: they lie in published memory
 * (shared/published.h) where there is some. */
void rs_limit_begin(void);

/* Joins the job whose limit RMM_LIMIT_JOB sets (shared/job_limit.h), where it is set.  False after
 * saying why that cannot be: the setting is bad. */
bool rs_limit_join_job(struct rs_diagnostics *diagnostics);

/* The limit of the job on a device, and what its other processes have taken; false without one. */
bool rs_limit_job(int device, size_t *limit_bytes, size_t *others_bytes);

/* The device's account; NULL for a device beyond those that we know.  Lives as long as the process.
 */
struct rs_account *rs_limit_account(int device);

/* Reads the setting for a device once: percentages are of its real total.  A share of what is free
 * waits for the first call with a context of the device current.  Makes driver calls that do not
 * wait.  Thread safe. */
void rs_limit_resolve(CUdevice device);

/* The limit in bytes, 0 when there is none. */
size_t rs_limit_get(int device);

/* False while RMM_LIMIT is a share that nobody could resolve yet: CUDA has not been started. */
bool rs_limit_is_known(int device);

/* Sets the limit from now on (0: none), whatever RMM_LIMIT says.  What is held already stays: only
 * further requests are refused.  False for an unknown device, or when nothing is counted in this
 * process (no setting at all).  Thread safe. */
bool rs_limit_set(int device, size_t bytes);

/* True when the program's stream-ordered allocations must be followed: a limit or statistics. */
bool rs_limit_follows(void);

/* What is free, told by the current context; false where there is none of this device. */
bool rs_limit_ask_free(CUdevice device, size_t *free_bytes);

/* Ways to the driver's memory that are counted beside the stacks' own. */
enum rs_path {
    RS_PATH_DRIVER,         /* cuMemAlloc that no stack served */
    RS_PATH_MANAGED,        /* cuMemAllocManaged */
    RS_PATH_ARRAY,          /* CUDA arrays */
    RS_PATH_VMM,            /* cuMemCreate */
    RS_PATH_STREAM_ORDERED, /* pools of cuMemAllocAsync, with what they keep */
    RS_PATH_GRAPH,          /* memory nodes of graphs */
    RS_PATHS
};

/* The bytes charged on a path went from one figure to another. */
void rs_limit_note_path(int device, enum rs_path path, size_t from_bytes, size_t to_bytes);

/* A stream-ordered allocation of the program's that the driver served, or its free. */
void rs_limit_note_stream_ordered(int device, size_t bytes, bool freed);

/* True when the device was used, or its limit asked for. */
bool rs_limit_is_used(int device);

/* Adds the account's counters when anything was taken of the device, or with also_unused when the
 * device was used at all. */
void rs_limit_report(int device, struct rs_report *report, bool also_unused);
