/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_LIMIT: the most bytes that this process takes from the driver on a device, over all contexts,
 * stacks and ways to allocate. Each device has one account (ledger/account.h), which is charged
 * before the driver is asked.
 *
 * All functions but rs_limit_begin and rs_limit_join_job are thread safe. */
#pragma once

#include "base/check.h"
#include "base/log.h"
#include "driver/cuda.h"
#include "ledger/account.h"
#include "resource/report.h"

#include <stdbool.h>
#include <stddef.h>

/* Places the accounts: in published memory (shared/published.h) where there is some, else in the
 * process.  Must be called before the first account is used, and again in a forked child. */
void rs_limit_begin(void);

/* Joins the job whose limit RMM_LIMIT_JOB sets (shared/job_limit.h), if it is set. Returns false,
 * after reporting why, when the job cannot be joined. */
bool rs_limit_join_job(struct rs_diagnostics *diagnostics);

/* True when the process has joined a job. */
extern bool rs_limit_has_job;

/* Stores the job's limit on a device, and the bytes that the job's other processes have taken. Of
 * jobs inside each other, that with the fewest bytes left counts. Returns false when no job limits
 * the device. */
bool rs_limit_job(int device, size_t *limit_bytes, size_t *others_bytes);

/* Returns the account of the device, which lives as long as the process; NULL when the device's
 * number is not from 0 to RS_DEVICES_MAX - 1. */
struct rs_account *rs_limit_account(int device);

/* Joins the job for the device, if there is one, and turns RMM_LIMIT into bytes, once. A percentage
 * is of the device's total memory (`80%`), or of its free memory (`80%free`). For free memory a
 * context of the device must be current; until one is, the limit is the same percentage of the
 * total. Makes driver calls, none of which waits. */
void rs_limit_resolve(CUdevice device);

/* Returns the device's limit in bytes, or 0 when there is none or this process does not serve. */
size_t rs_limit_get(int device);

/* Returns false while the limit in bytes is not known: RMM_LIMIT is a percentage and CUDA has not
 * been started, or this process does not serve. Also for a number that rs_limit_account refuses. */
bool rs_limit_is_known(int device);

/* Replaces RMM_LIMIT by a limit in bytes (0: none). Memory that is held already stays; only further
 * requests are refused. Returns false, without setting the limit, for a number that
 * rs_limit_account refuses, and when this process does not serve (rs_mode_now). */
bool rs_limit_set(int device, size_t bytes);

/* True when what the driver's memory pools hold must be counted: there is a limit (of the process
 * or of a job), a report, or RMM_CONTROL, which can set a limit later. */
bool rs_limit_follows(void);

/* Asks the current context for the free bytes of its device; returns false when no context of
 * `device` is current, or the driver does not answer. */
bool rs_limit_ask_free(CUdevice device, size_t *free_bytes);

/* Ways to take memory from the driver that are charged besides the stacks. */
enum rs_path {
    RS_PATH_DRIVER,         /* cuMemAlloc and similar calls that no stack served */
    RS_PATH_MANAGED,        /* cuMemAllocManaged that no stack served */
    RS_PATH_ARRAY,          /* CUDA arrays */
    RS_PATH_VMM,            /* cuMemCreate */
    RS_PATH_STREAM_ORDERED, /* pools of cuMemAllocAsync, with the free memory that they keep */
    RS_PATH_GRAPH,          /* memory nodes of graphs */
    RS_PATHS
};

/* Names of the account's counters of these paths. */
extern const char *const rs_path_names[RS_PATHS];

/* Adds to_bytes - from_bytes to the charged bytes of a path. For RS_PATH_GRAPH it calls
 * rs_limit_note_unserved too. */
void rs_limit_note_path(int device, enum rs_path path, size_t from_bytes, size_t to_bytes);

/* Adds to_bytes - from_bytes to the memory that the driver served to the program itself, beside the
 * stacks, in bytes as requested. Called after the driver has granted the change. */
void rs_limit_note_unserved(int device, size_t from_bytes, size_t to_bytes);

/* Notes a stream-ordered allocation that the driver served, or its free (`freed`). Calls
 * rs_limit_note_unserved for it. `bytes` is what the program requested. */
void rs_limit_note_stream_ordered(int device, size_t bytes, bool freed);

/* Counts an out-of-memory error that the program receives, whatever kind of memory it asked for and
 * whether a limit or the driver refused. A refusal inside the library after which the program still
 * gets its memory does not count. */
RS_COLD void rs_limit_note_refused(int device);

uint64_t rs_limit_refused(int device);

/* Adds the count of rs_limit_refused to the report, as a counter of the program (RS_PROGRAM). Does
 * nothing for a device that is not used, and adds no count of 0 to an empty report. The caller
 * passes the report of device memory, which exists whatever memory the program allocates. */
void rs_limit_report_refused(int device, struct rs_report *report);

/* True when memory of the device was charged, or its limit was resolved or set. Always false for a
 * device that the driver does not have, once the driver has been asked. */
bool rs_limit_is_used(int device);

/* Adds the account's counters to the report when the device has a limit or was charged. With
 * also_unused it is enough that the limit was resolved. */
void rs_limit_report(int device, struct rs_report *report, bool also_unused);
