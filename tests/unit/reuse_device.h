/* SPDX-License-Identifier: Apache-2.0 */
/* The device under the tests of `reuse`: counts the work that the program has submitted and how
 * much of it is done.  An event is done once the count at its recording is; the test decides when
 * that is.  The device records each call that a driver would refuse or that would spoil a capture.
 */
#pragma once

#include "driver/fence.h"
#include "ledger/account.h"
#include "resource/resource.h"

#include <pthread.h>
#include <stdatomic.h>

#define PLENTY ((size_t)1 << 50)
#define CTX    ((CUcontext)(uintptr_t)0x1000) /* context of the memory */
#define OTHER  ((CUcontext)(uintptr_t)0x2000) /* another context of the program */

enum { EVENTS_MAX = 4096, STACK_MAX = 8 };

struct fake_event {
    CUcontext context;
    uint64_t covers; /* number of the latest work when it was recorded */
    bool is_recorded, is_live;
};

struct fake_device {
    pthread_mutex_t lock; /* protects all fields below */
    struct fake_event events[EVENTS_MAX];
    size_t event_count;
    CUdeviceptr next_sentinel;
    size_t live_sentinels;
    unsigned records, queries, waits; /* numbers of calls; a wait is a free of a sentinel */
    unsigned complete_at; /* the query with this number finds all work done; 0: none does */
    unsigned wrong_calls; /* calls in a wrong context, about a dead event or outside relaxed capture
                             mode */
    /* Answers of these calls, when not CUDA_SUCCESS. */
    CUresult record_answer, query_answer, free_answer;
    bool is_full;            /* allocations of a sentinel fail */
    void (*in_record)(void); /* called once, when an event gets its count */
    void (*in_free)(void);   /* called once, in a free, when all work is done */
};

extern struct fake_device device;

/* Number of the latest work that was submitted, and of the latest work that is done. */
extern _Atomic uint64_t submitted, completed;

/* The driver's state of the calling thread. */
struct fake_thread {
    CUcontext stack[STACK_MAX];
    unsigned depth;
    CUstreamCaptureMode mode;
};

extern __thread struct fake_thread thread;

/* A stream; its address is its handle. */
struct fake_stream {
    unsigned long long id;
    CUstreamCaptureStatus capture;
    CUresult answer;
    bool is_dead;
};

CUstream handle_of(struct fake_stream *stream);

/* The environment of the resources under test: the first context of a device of 80 GiB. */
extern struct rs_sentinel sentinel;
extern struct rs_account account;
extern const struct rs_environment environment;

/* Makes rs_driver this device, with no work submitted and CTX current.  Without fences it is a
 * driver before 12.5. */
void start_device(bool has_fences);

/* Submits work and returns its number. */
uint64_t submit(void);

/* Completes the work up to this number, or all that was submitted. */
void complete_to(uint64_t count);
void complete_all(void);

/* All work is done at the query so many from now: while it is waited for, however slow this machine
 * is, since the clock stands until then. */
void complete_in(unsigned queries);

/* From now on time is what the library looks at the clock, 10 us each: a bounded wait lasts so many
 * looks, however slow this machine is. */
void count_time(void);

/* So it is, and all work is done after so many milliseconds of queries, one at each look. */
void complete_after_ms(unsigned ms);

/* Another thread is in the middle of the driver's call that begins a capture; which then fails. */
void begin_elsewhere(void);
void fail_to_begin_elsewhere(void);

/* The calling thread's current context. */
CUcontext current(void);
CUresult fake_push(CUcontext context);
CUresult fake_pop(CUcontext *context);
