/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that go up: what lies below tells here what has happened, or asks for what only those
 * above can do.  All of them stand in one table (wiring.c), so that no two files of this folder
 * include each other (scripts/check-includes).  Each may be made where its comment says, with these
 * locks held, and must not need more. */
#pragma once

#include "base/log.h"
#include "driver/cuda.h"
#include "ledger/account.h"

#include <stdbool.h>
#include <stdint.h>

struct rs_context;
struct rs_mr;
struct rs_environment;
struct rs_stack;

struct rs_wiring {
    /* The process is about to be served: the settings are read, nothing is allocated.  False after
     * saying that a setting turns out bad.  By mode. */
    bool (*serving)(struct rs_diagnostics *diagnostics);

    /* The same process is a forked child now, which has this one thread. */
    void (*forked)(void);

    /* As `forked`, and before it, in each child: resets the locks of the whole process
     * (base/lock.h). What another thread may have left half done is forgotten, as nothing of it is
     * the child's. */
    void (*reset_locks)(void);

    /* The first context is known: a child that is forked from now on only forwards. */
    void (*first_context)(void);

    /* Stacks have come or gone.  Without locks. */
    void (*stacks_changed)(void);

    /* Stacks are about to give back what nobody uses, all of them: exported blocks that others have
     * closed are among it.  Without locks. */
    void (*before_trim)(void);

    /* A stack's memory is gone with its context.  Under the contexts' lock. */
    void (*stack_gone)(const struct rs_stack *stack, struct rs_mr *mr);

    /* The context is gone, and what belonged to it: its stacks' calls come after.  Under the
     * contexts' lock. */
    void (*context_gone)(struct rs_context *context);

    /* An exported block is gone (its number in the table of exports, 0: it was not). */
    void (*export_gone)(unsigned exported);

    /* Which devices may reach the memory of a context: a bit each. */
    uint64_t (*peer_devices)(CUcontext owner);

    /* rs_reclaim (charge/charge.h).  Without locks. */
    bool (*reclaim)(int device, const struct rs_refusal *refusal, bool may_wait);
};

extern const struct rs_wiring rs_wiring;
