/* SPDX-License-Identifier: Apache-2.0 */
/* The device under reuse: a count of what the program has submitted and of how much of it is done.
 * An event is done when the count that it was recorded at is; a test says when that is.  The device
 * notes each call that a driver would refuse or that would spoil a capture. */
#pragma once

#include "driver/fence.h"
#include "ledger/account.h"
#include "resource/resource.h"

#include <pthread.h>
#include <stdatomic.h>

#define PLENTY ((size_t)1 << 50)
#define CTX    ((CUcontext)(uintptr_t)0x1000) /* of the memory */
#define OTHER  ((CUcontext)(uintptr_t)0x2000) /* of the same program */

enum { EVENTS_MAX = 4096, STACK_MAX = 8 };

struct fake_event {
    CUcontext context;
    uint64_t covers; /* what was submitted when it was recorded */
    bool is_recorded, is_live;
};

struct fake_device {
    pthread_mutex_t lock; /* protects what follows */
    struct fake_event events[EVENTS_MAX];
    size_t event_count;
    CUdeviceptr next_sentinel;
    size_t live_sentinels;
    unsigned records, queries, waits; /* calls; waits: frees of a sentinel */
    unsigned complete_at;             /* this query finds all work done; 0: none does */
    unsigned wrong_calls; /* in a wrong context, of a dead event, outside relaxed mode */
    CUresult record_answer, query_answer, free_answer; /* when not CUDA_SUCCESS */
    bool is_full;                                      /* no sentinel can be had */
    size_t free_bytes;                                 /* that it says of itself */
    void (*in_record)(void); /* once, by another thread, when the event is stamped */
    void (*in_free)(void);   /* once, when all is done */
};

extern struct fake_device device;

/* Numbers of the latest work that was submitted, and of the latest that is done. */
extern _Atomic uint64_t submitted, completed;

/* What the driver knows of the calling thread. */
struct fake_thread {
    CUcontext stack[STACK_MAX];
    unsigned depth;
    CUstreamCaptureMode mode;
};

extern __thread struct fake_thread thread;

/* A stream is a number and a state; its address is its handle. */
struct fake_stream {
    unsigned long long id;
    CUstreamCaptureStatus capture;
    CUresult answer;
    bool is_dead;
};

CUstream handle_of(struct fake_stream *stream);

/* What a resource is made at: the first context of a device of 80 GiB. */
extern struct rs_sentinel sentinel;
extern struct rs_account account;
extern const struct rs_environment environment;

/* Makes rs_driver this device, with nothing submitted and CTX current; a driver before 12.5 has no
 * fences. */
void start_device(bool has_fences);

/* The program gives the device something to do; returns its number. */
uint64_t submit(void);

/* All work up to this number is done, or all that was submitted. */
void complete_to(uint64_t count);
void complete_all(void);

/* All work is done at the query so many from now: while it is waited for, however slow this machine
 * is, since the clock stands until then. */
void complete_in(unsigned queries);

/* Another thread is in the middle of the driver's call that begins a capture; which then fails. */
void begin_elsewhere(void);
void fail_to_begin_elsewhere(void);

/* The calling thread's current context. */
CUcontext current(void);
CUresult fake_push(CUcontext context);
CUresult fake_pop(CUcontext *context);
