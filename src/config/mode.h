/* SPDX-License-Identifier: Apache-2.0 */
/* The mode: what this library does in this process. The first hooked call that needs the settings
 * (an allocation, or a question about the size of memory, for example) reads them from the
 * environment as it was at load. From then on they decide what hooks do. A child after fork() only
 * forwards, since CUDA does not work in it. The exception is a child that was forked before any
 * context existed: it starts like a new process. */
#pragma once

#include "config/config.h"

enum rs_mode {
    RS_MODE_UNBORN,  /* the settings have not been read */
    RS_MODE_FORWARD, /* every call goes to the driver */
    RS_MODE_SERVE,   /* stacks serve */
    RS_MODE_DENY,    /* after a bad setting: allocations return CUDA_ERROR_OUT_OF_MEMORY */
};

extern RS_HOT_DATA _Atomic int rs_mode_current;
extern RS_HOT_DATA _Atomic(const volatile unsigned char *)
    rs_mode_page; /* its first byte is 0 before stacks serve, and in a forked child (where the
                     kernel can zero it) */
extern struct rs_config rs_config; /* valid once the mode is known */

/* Slow path of rs_mode_now: reads the settings if no thread has done so. */
RS_COLD enum rs_mode rs_mode_slow(void);

/* Reads the first byte of rs_mode_page. */
static inline bool rs_mode_page_is_kept(void)
{
    /* Acquire, since some callers read the page before they have read the mode. */
    return *atomic_load_explicit(&rs_mode_page, memory_order_acquire);
}

/* Returns 0 when stacks serve in this process, else another number. A caller can combine it with
 * other conditions (RS_DIFFER) by |, and so needs one branch for all. */
static inline uintptr_t rs_mode_unserving(void)
{
    /* The mode is read first, with acquire, so that the page that is read next belongs to it. */
    int mode = atomic_load_explicit(&rs_mode_current, memory_order_acquire);
    return RS_DIFFER(mode, RS_MODE_SERVE) | !rs_mode_page_is_kept();
}

/* Returns what hooks do now.  The first call in the process reads the settings, and ends the
 * process after a bad one if RMM_ON_ERROR says abort.  Thread safe. */
static inline enum rs_mode rs_mode_now(void)
{
    if (RS_LIKELY(atomic_load_explicit(&rs_mode_current, memory_order_acquire) == RS_MODE_SERVE &&
                  rs_mode_page_is_kept()))
        return RS_MODE_SERVE;
    return rs_mode_slow();
}

/* True once stacks serve in this process. Does not read the settings: for calls that change nothing
 * for the library before stacks serve, such as frees. */
static inline bool rs_mode_serving(void)
{
    return RS_LIKELY(!rs_mode_unserving());
}

/* Called when a context was entered into the table of contexts. From now on a child of fork() only
 * forwards. The first call also calls rs_wiring.first_context. */
void rs_mode_note_context(void);

/* Called after a bad setting was reported, when the settings are read or later: some show only on a
 * device, such as a pool larger than its memory. Ends the process, forwards from now on, or denies
 * allocations, as RMM_ON_ERROR says. Returns the new mode. */
enum rs_mode rs_mode_bad_settings(void);

/* Notes that the driver returned an unknown function for `name`, a function that allocates memory,
 * so that this memory cannot be counted. If a limit is set, it is reported as a bad setting, now or
 * when the settings are read. */
void rs_mode_note_unknown(const char *name);

/* The diagnostics of settings; each is written to the log. */
extern struct rs_diagnostics rs_mode_diagnostics;
