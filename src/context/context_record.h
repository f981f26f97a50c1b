/* SPDX-License-Identifier: Apache-2.0 */
/* The records of contexts and of their stacks. */
#pragma once

#include "base/check.h"
#include "config/config.h"
#include "context/pushed.h"
#include "driver/cuda.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream.h"
#include "ledger/account.h"
#include "resource/resource.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RS_HOST_FLAG_SETS = 8, /* combinations of portable, device-mapped and write-combined: each has
                              its own stack, as each block must answer with its own flags */
    RS_STACK_DEVICE = 0,   /* index of the stack of device memory in rs_context.stack; the next are
                              those of the other kinds */
    RS_STACK_MANAGED,
    RS_STACK_PINNED, /* first of RS_HOST_FLAG_SETS, one for each combination of flags */
    RS_STACKS = RS_STACK_PINNED + RS_HOST_FLAG_SETS,
};

/* Whether a context is in service. */
enum {
    RS_CONTEXT_ENDS = 0,
    RS_CONTEXT_SERVES = 1,
    /* In service, but the driver has said that its work has failed: the driver answers allocations
     * and frees (context/fault.h).  No bit of the mask that a free compares with RS_CONTEXT_SERVES.
     */
    RS_CONTEXT_FAULTY = 0x80,
};

struct rs_stack {
    struct rs_context *context;
    _Atomic(struct rs_mr *) mr; /* NULL: not made yet, or no stack is wanted */
    struct rs_block_counter *counter;
    enum rs_kind kind;
    bool frees_wait;  /* a free waits for the GPU, or may, as without fences */
    bool settled;     /* making was tried: mr is final; under the contexts' lock */
    bool has_initial; /* this stack has taken the initial sizes of its kind and device; under the
                         contexts' lock */
    struct rs_environment environment;
};

/* The stack of a pushed resource in one context, made at the first allocation under the resource.
 */
struct rs_pushed_stack {
    struct rs_stack stack;
    const struct rs_pushed *resource;
    bool denies; /* the stack cannot be made here: allocations are answered with out of memory */
    struct rs_pushed_stack *next;
};

/* A small driver allocation that stands for its context, where the driver has no cuCtxGetId: the
 * context lives as long as the driver reports this allocation id for the address.  All zero: none.
 */
struct rs_witness {
    CUdeviceptr address;
    unsigned long long id;
};

/* How near its end a context is. */
enum rs_context_ending {
    RS_ENDING_NOT,
    RS_ENDING_MAYBE,  /* a reference is given up, which may be the last one */
    RS_ENDING_SURELY, /* it is destroyed, unless the driver refuses */
    RS_ENDING_OVER,
};

struct rs_context {
    CUcontext handle;
    unsigned long long id; /* of cuCtxGetId, which tells a reused handle; 0 on drivers without it */
    CUdevice device;
    bool primary;
    struct rs_witness witness;
    struct rs_sentinel sentinel;
    struct rs_own_stream own_stream;
    struct rs_own_stream joining; /* waits for other contexts' work, so own_stream need not */
    struct rs_account account;    /* bytes of this context; part of its device's */
    _Atomic uint64_t peers;       /* bit i: device i may access this context's memory */
    _Atomic(struct rs_pushed_stack *) pushed; /* list of stacks; entries are only added */
    bool owns_memory; /* this context is known to own its memory: it is no green context */
    /* Calls under way that end the context, or may (its last reference); under the contexts' lock.
     */
    unsigned ends, releases;
    _Atomic unsigned char ending; /* enum rs_context_ending */
    unsigned char alive_before;   /* what `alive` is again when no call ended the context */
    /* RS_CONTEXT_..., RS_CONTEXT_ENDS while a call may end the context and ever after: `ending`
     * says more.  Every free reads this flag and the first fields of stack[RS_STACK_DEVICE], which
     * share its cache line. */
    _Alignas(RS_CACHE_LINE) _Atomic unsigned char alive;
    struct rs_stack stack[RS_STACKS]; /* indexed by RS_STACK_... */
    unsigned endings, holds; /* calls that may end it, and deallocations that keep it from ending
                                (context/exclusion.h), under way; under the contexts' lock */
    struct rs_context *next_dropped;
};

/* Rises with every change that makes a cached context (rs_thread.found) wrong; each thread then
 * looks up anew. */
extern RS_HOT_DATA _Atomic unsigned rs_context_generation;
