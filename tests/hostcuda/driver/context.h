/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: which one is current on a thread, and what ends with a context. The caller holds the
 * lock. */
#pragma once

#include "driver/alloc.h"
#include "driver/clock.h"

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#define HC_LIMITS 16

struct hc_op;
struct hc_stream;

struct hc_ctx {
    int device;
    bool is_primary;
    bool is_active;
    unsigned flags;
    unsigned long long id;
    CUresult error;            /* sticky */
    struct hc_ctx *owner;      /* itself, or a green context's primary, which owns its memory */
    struct hc_ctx *greens;     /* green contexts of this primary */
    struct hc_ctx *next;       /* in greens, or in the list of contexts to use again */
    struct hc_stream *streams; /* all but destroyed ones whose work is done */
    struct hc_stream *null_stream;
    struct hc_clock gone_clock;          /* of destroyed streams whose work is done */
    struct hc_clock gone_blocking_clock; /* of those that the NULL stream is ordered with */
    struct hc_alloc *allocs;
    size_t module_bytes;    /* of modules that are loaded here: HOSTCUDA_MODULE_MEMORY */
    size_t lingering_bytes; /* of streams that are gone, in the owner: hc_memory_linger */
    unsigned peers;         /* bit per device that this context may reach */
    unsigned sm_count;      /* of a green context */
    struct hc_op *gate;     /* all later work waits for this operation; NULL: for none */
    struct hc_clock gate_clock;
    unsigned api_version;
    size_t limits[HC_LIMITS];
};

/* Returns the current context; CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED or its
 * sticky error if it cannot work. */
CUresult hc_ctx_current(struct hc_ctx **ctx);

/* Returns the context of a handle, with the same errors as hc_ctx_current. */
CUresult hc_ctx_of(CUcontext handle, struct hc_ctx **ctx);

/* The active primary context, which the call does not retain; NULL if there is none. */
struct hc_ctx *hc_ctx_primary(int device);

/* Retains the primary context and makes it active. */
CUresult hc_ctx_primary_retain(int device, struct hc_ctx **ctx);

CUresult hc_ctx_create(int device, unsigned flags, struct hc_ctx *owner, struct hc_ctx **out);

/* Waits for its work, then frees all that it owns. */
void hc_ctx_destroy(struct hc_ctx *ctx);

/* Makes the context fail with a sticky error. */
void hc_ctx_fail(struct hc_ctx *ctx, CUresult error);
CUresult hc_ctx_error(const struct hc_ctx *ctx);

static inline CUcontext hc_ctx_handle(struct hc_ctx *ctx)
{
    return (CUcontext)ctx;
}

/* Push to, pop from and replace the top of this thread's stack of current contexts. */
CUresult hc_ctx_push(struct hc_ctx *ctx);
CUresult hc_ctx_pop(struct hc_ctx **ctx);
void hc_ctx_set(struct hc_ctx *ctx);
/* Returns the top of the stack, dead or alive; NULL if it is empty. */
struct hc_ctx *hc_ctx_top(void);
