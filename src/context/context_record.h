/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a context, and of its stacks. */
#pragma once

#include "base/check.h"
#include "config/config.h"
#include "context/pushed.h"
#include "driver/cuda.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/own_stream.h"
#include "ledger/account.h"
#include "resource/resource.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RS_HOST_FLAG_SETS = 8, /* portable, device-mapped, write-combined: kept apart, as each block
                              must answer with its own flags */
    RS_STACK_DEVICE = 0,   /* where each kind's stacks are in a context */
    RS_STACK_MANAGED,
    RS_STACK_PINNED, /* by flags */
    RS_STACKS = RS_STACK_PINNED + RS_HOST_FLAG_SETS,
};

struct rs_stack {
    struct rs_context *context;
    _Atomic(struct rs_mr *) mr; /* NULL: not made, or none is wanted */
    struct rs_block_counter *counter;
    enum rs_kind kind;
    bool frees_wait;  /* for work; or may, on a driver without fences */
    bool settled;     /* made, or none is wanted; under the contexts' lock */
    bool has_initial; /* took the initial sizes: the same */
    struct rs_environment environment;
};

/* A stack for a pushed resource, made at the first allocation under it. */
struct rs_pushed_stack {
    struct rs_stack stack;
    const struct rs_pushed *resource;
    bool denies; /* it cannot be made: allocations are out of memory */
    struct rs_pushed_stack *next;
};

/* A small block of a context's, where the driver has no cuCtxGetId: while it is there, with that id
 * of its allocation, so is the context.  All zero: none. */
struct rs_witness {
    CUdeviceptr address;
    unsigned long long id;
};

struct rs_context {
    CUcontext handle;
    unsigned long long id; /* cuCtxGetId, 0 where the driver has none: tells a reused handle */
    CUdevice device;
    bool primary;
    struct rs_witness witness;
    struct rs_sentinel sentinel;
    struct rs_own_stream own_stream;
    struct rs_own_stream joining; /* waits for other contexts' work, so the first one need not */
    struct rs_account account;    /* what this context holds; part of its device's */
    _Atomic uint64_t peers;       /* devices that may reach its memory, a bit each */
    _Atomic(struct rs_pushed_stack *) pushed; /* only ever added to */
    bool owns_memory;                         /* known not to be a green context's */
    /* False while the context is being destroyed, and ever after.  Each free reads it, and of the
     * stack of device memory what is in the same cache line. */
    _Alignas(RS_CACHE_LINE) _Atomic bool alive;
    struct rs_stack stack[RS_STACKS]; /* RS_STACK_... */
    struct rs_context *next_dropped;
};

/* Goes up with every change that makes what threads found last (rs_thread.found) wrong. */
extern RS_HOT_DATA _Atomic unsigned rs_context_generation;
