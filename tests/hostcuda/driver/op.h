/* SPDX-License-Identifier: Apache-2.0 */
/* An operation of the device, and the order between operations. An operation runs when all that it
 * comes after are done; which those are was decided when it was submitted. The caller holds the
 * lock, except where noted. */
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include "driver/clock.h"

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hc_ctx;
struct hc_stream;

#define HC_OP_RANGES 4
#define HC_OP_ARGS   128

/* Memory that an operation touches. */
struct hc_range {
    uintptr_t address;
    size_t bytes;
    bool write;
};

/* What an operation does. Graphs hold copies of it. */
struct hc_work {
    CUgraphNodeType type;        /* type of its graph node */
    CUresult (*run)(void *args); /* without the lock; NULL: only a place in the order */
    void (*finish)(void *args);  /* under the lock, after run, also when run was skipped */
    bool tells_host;             /* the program learns from its end that all earlier work is done */
    struct hc_range ranges[HC_OP_RANGES];
    unsigned range_count;
    _Alignas(16) unsigned char args[HC_OP_ARGS];
    void *staged; /* host memory that the operation owns */
    size_t staged_bytes;
};

struct hc_op {
    struct hc_work work;
    struct hc_ctx *ctx;
    struct hc_stream *stream;     /* NULL: in no stream */
    unsigned long long stream_id; /* id of the one stream that this wait is for; 0: none */
    unsigned refs;
    unsigned pending; /* operations that it waits for */
    bool done;
    struct hc_clock clock; /* of its stream, if the work tells the host */
    uint64_t done_ns;
    struct hc_op **later; /* operations that wait for this one */
    unsigned later_count, later_room;
    struct hc_op *next; /* in the scheduler's list */
};

/* A new operation with one reference, not yet in any order. NULL without memory. */
struct hc_op *hc_op_new(struct hc_ctx *ctx, const struct hc_work *work);
struct hc_op *hc_op_ref(struct hc_op *op);
void hc_op_unref(struct hc_op *op);

/* Makes op wait for earlier, which may be NULL or done. */
void hc_op_after(struct hc_op *op, struct hc_op *earlier);

/* Lets op run once everything it waits for is done; no hc_op_after may follow. */
void hc_op_start(struct hc_op *op);

/* Marks op done and starts the operations that waited only for it. */
void hc_op_complete(struct hc_op *op, CUresult result);

/* Waits until op is done, and releases the lock meanwhile. */
void hc_op_wait(struct hc_op *op);

/* Declares that the work touches a range. */
void hc_work_touches(struct hc_work *work, uintptr_t address, size_t bytes, bool write);

/* Frees what the work owns. */
void hc_work_drop(struct hc_work *work);
