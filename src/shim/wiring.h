/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from lower folders to higher ones: a lower file reports an event, or asks for something
 * that only a higher one can do.  They stand in one table, filled in wiring.c, so that no include
 * goes up (scripts/check-includes).  Where locks matter, the comment of a call says which ones its
 * caller holds. */
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
    /* Called by config when stacks are about to serve the process: the settings are read, and
     * nothing is allocated yet. Returns false, after a diagnostic, if a setting turns out to be
     * bad. */
    bool (*serving)(struct rs_diagnostics *diagnostics);

    /* Called in a forked child, which has only the calling thread, if the parent's settings asked
     * for anything. */
    void (*forked)(void);

    /* Called in each forked child, before `forked`: resets the locks of the whole process
     * (base/lock.h). Work that another thread of the parent has left half done is forgotten. */
    void (*reset_locks)(void);

    /* Called when the first context is known: a child that is forked from now on only forwards. */
    void (*first_context)(void);

    /* Called when stacks were made or dropped.  The caller holds no lock. */
    void (*stacks_changed)(void);

    /* Called before all stacks give back unused memory: exported blocks that other processes have
     * closed become unused here.  The caller holds no lock. */
    void (*before_trim)(void);

    /* Called when a stack's memory has ended with its context.  The caller holds the contexts'
     * lock. */
    void (*stack_gone)(const struct rs_stack *stack, struct rs_mr *mr);

    /* Called when a context has ended, before stack_gone is called for its stacks. The caller holds
     * the contexts' lock. */
    void (*context_gone)(struct rs_context *context);

    /* Called when a block has been lost with its context. `exported` is the field of the block's
     * record (RS_EXPORTED_..., context/block.h). */
    void (*export_gone)(unsigned exported);

    /* Returns the devices that may access the memory of a context, a bit each. */
    uint64_t (*peer_devices)(CUcontext owner);

    /* Calls rs_reclaim (charge/charge.h).  The caller holds no lock. */
    bool (*reclaim)(int device, const struct rs_refusal *refusal, bool may_wait);
};

extern const struct rs_wiring rs_wiring;
