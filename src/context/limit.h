/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_LIMIT: the most bytes that this process takes from the driver on a device, over all contexts,
 * stacks and ways to allocate. One account per device (ledger/account.h) is charged before the
 * driver is asked.
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

/* Stores the limit of the job on a device, and the bytes that its other processes have taken; of
 * several jobs inside each other, those of the one with the fewest bytes left. Returns false when
 * there is no such limit. */
bool rs_limit_job(int device, size_t *limit_bytes, size_t *others_bytes);

/* Returns the account of the device, which lives as long as the process; NULL when the device's
 * number is not from 0 to RS_DEVICES_MAX - 1. */
struct rs_account *rs_limit_account(int device);

/* Resolves RMM_LIMIT for a device, once: a percentage is of the device's total memory (`80%`), or
 * of its free memory (`80%free`). For the latter a context of the device must be current; until
 * then the limit is the same percentage of the total. Before that it joins the job for the device,
 * if there is one. Makes driver calls, none of which waits. */
void rs_limit_resolve(CUdevice device);

/* Returns the device's limit in bytes, or 0 when there is none or this process does not serve. */
size_t rs_limit_get(int device);

/* Returns false for a number that rs_limit_account refuses, and while the limit is not resolved:
 * RMM_LIMIT is a percentage and CUDA has not been started, or this process does not serve. */
bool rs_limit_is_known(int device);

/* Sets the limit in bytes from now on (0: none), in place of RMM_LIMIT. Memory that is held already
 * stays; only further requests are refused. Returns false, without setting it, for a number that
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

/* Notes that the charged bytes of a path have grown or shrunk by the difference of from_bytes and
 * to_bytes. For RS_PATH_GRAPH it calls rs_limit_note_unserved too. */
void rs_limit_note_path(int device, enum rs_path path, size_t from_bytes, size_t to_bytes);

/* Notes that the memory that the program has beside the stacks has grown or shrunk by the
 * difference of from_bytes and to_bytes, as requested; the driver has granted the change. */
void rs_limit_note_unserved(int device, size_t from_bytes, size_t to_bytes);

/* Notes a stream-ordered allocation that the driver served, or its free, and calls
 * rs_limit_note_unserved for it; bytes as requested. */
void rs_limit_note_stream_ordered(int device, size_t bytes, bool freed);

/* Counts an out-of-memory error that the program receives, for memory of any kind, whether a limit
 * or the driver refused it. A refusal inside the library after which the program still gets its
 * memory does not count. */
RS_COLD void rs_limit_note_refused(int device);

uint64_t rs_limit_refused(int device);

/* Adds the count of rs_limit_refused, as a counter of the program (RS_PROGRAM), to the report; not
 * for a device that is not used, and no count of 0 to an empty report. The caller passes the report
 * of device memory, since there is one whatever kinds of memory the program allocates. */
void rs_limit_report_refused(int device, struct rs_report *report);

/* True when memory of the device was charged, or its limit was resolved or set. False otherwise,
 * and when the driver has been asked and knows no such device. */
bool rs_limit_is_used(int device);

/* Adds the account's counters to the report when the device has a limit or was charged; with
 * also_unused, also when only the limit was resolved. */
void rs_limit_report(int device, struct rs_report *report, bool also_unused);
