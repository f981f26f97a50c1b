/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the shim in a process: nothing happens before the first hooked call that allocates,
 * frees or asks about memory; then the settings are read once and decide what hooks do from then
 * on.  A child after fork() only forwards, since CUDA is dead in it; a child that forks before any
 * context exists starts afresh. */
#pragma once

#include "base/check.h"
#include "config/config.h"

#include <stdatomic.h>
#include <stdbool.h>

enum rs_mode {
    RS_MODE_UNBORN,  /* settings not read yet */
    RS_MODE_FORWARD, /* every call goes to the driver */
    RS_MODE_SERVE,   /* stacks serve */
    RS_MODE_DENY,    /* a bad setting: allocations are out of memory */
};

extern RS_HOT_DATA _Atomic int rs_mode_current;
extern RS_HOT_DATA _Atomic(const volatile unsigned char *)
    rs_mode_page;                  /* reads 0 in a forked child */
extern struct rs_config rs_config; /* valid once the mode is known */

RS_COLD enum rs_mode rs_mode_slow(void);

static inline bool rs_mode_page_is_kept(void)
{
    /* Acquire: some look before the mode says that there is a page. */
    return *atomic_load_explicit(&rs_mode_page, memory_order_acquire);
}

/* 0 where stacks serve, for callers that look at more in one branch. */
static inline uintptr_t rs_mode_unserving(void)
{
    int mode = atomic_load_explicit(&rs_mode_current, memory_order_acquire); /* first: then the page
                                                                             is the mode's */
    return RS_DIFFER(mode, RS_MODE_SERVE) | !rs_mode_page_is_kept();
}

/* What hooks do now.  The first call reads the settings and may end the process. */
static inline enum rs_mode rs_mode_now(void)
{
    if (RS_LIKELY(atomic_load_explicit(&rs_mode_current, memory_order_acquire) == RS_MODE_SERVE &&
                  rs_mode_page_is_kept()))
        return RS_MODE_SERVE;
    return rs_mode_slow();
}

/* True once stacks may serve in this process: for hooks that only track. */
static inline bool rs_mode_serving(void)
{
    return RS_LIKELY(!rs_mode_unserving());
}

/* A context got a stack: from now on a forked child stays a forwarder. */
void rs_mode_note_context(void);

/* Bad settings that show only on a device (a pool larger than it): ends the process, forwards from
 * now on, or denies, as RMM_ON_ERROR says.  Returns the mode. */
enum rs_mode rs_mode_bad_settings(void);

/* The driver answers a name that allocates with a function that we do not know, so what it takes
 * cannot be counted: said once, and a bad setting where a limit is set, now or when the settings
 * are read. */
void rs_mode_note_unknown(const char *name);

/* Diagnostics go to the log. */
extern struct rs_diagnostics rs_mode_diagnostics;
