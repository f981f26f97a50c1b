/* SPDX-License-Identifier: Apache-2.0 */
/* The driver under the leaves: plain allocations, pools and one stream of the library's own, on a
 * device of 1 GiB.  It notes each call that a driver would refuse or that would spoil a capture. */
#pragma once

#include "driver/cuda.h"
#include "resource/resource.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MIB    ((size_t)1 << 20)
#define GIB    ((size_t)1 << 30)
#define CTX    ((CUcontext)(uintptr_t)0x1000)
#define STREAM ((CUstream)(uintptr_t)0x2000)

enum { BLOCKS_MAX = 1 << 14, POOLS_MAX = 8, POOL_STEP = 32 << 20, DEVICE_MIB = 1024 };

struct fake_pool {
    bool is_live, is_destroyed;
    CUmemPoolProps properties;
    cuuint64_t threshold;
    size_t reserved_bytes, used_bytes;
};

struct fake_block {
    CUdeviceptr address;
    size_t size_bytes;
    struct fake_pool *pool; /* NULL: an allocation of the context's */
};

struct leaf_device {
    pthread_mutex_t lock;                          /* protects what follows */
    struct fake_pool pools[POOLS_MAX], *last_pool; /* that was made */
    struct fake_block blocks[BLOCKS_MAX];
    size_t block_count;
    CUdeviceptr next_address;
    bool pools_grow_always; /* what is idle is in pieces that are too small */
    size_t lingering_bytes; /* given back in order, and taken until somebody waits for the stream */
    unsigned waits;         /* for the stream */
    bool context_is_gone;
    bool is_stuck;              /* nothing that is given to the stream is ever done */
    struct rs_mr *ends_in_call; /* in the next allocation of a pool's */
    void (*in_call)(void);
    bool has_pools, shares_pools, is_pageable;
    int version;
    /* When not CUDA_SUCCESS; destroy: of pools. */
    CUresult allocate_answer, free_answer, wait_answer, destroy_answer;
    _Atomic unsigned sentinel_frees;               /* each waits for all work */
    _Atomic unsigned asked, wrong_calls, unwaited; /* unwaited: pool allocations not complete yet */
};

extern struct leaf_device device;

/* How far the clock is ahead, and what each look at it adds. */
extern _Atomic uint64_t clock_ahead_ns, clock_step_ns;
extern _Atomic bool clock_stands; /* while set, it says what it said last */

/* Puts the device in place of the driver's functions, as new; a fixture's set-up. */
int device_start(void **state);

/* What the driver has given out or still holds, of the device's DEVICE_MIB. */
size_t device_used(void);
