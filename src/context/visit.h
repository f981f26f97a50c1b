/* SPDX-License-Identifier: Apache-2.0 */
/* What is done with the stacks of all contexts. */
#pragma once

#include "base/check.h"
#include "context/context_record.h"
#include "context/stack.h"
#include "resource/report.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Has every stack of the device's contexts give back its wholly free memory.  *keep_bytes, in:
 * bytes to keep; out: the unused part.  Returns the bytes given back.  No lock may be held: outside
 * a request the driver calls wait.  Waits up to 1 s for a context that is about to end, as the next
 * five do. */
size_t rs_context_trim(int device, size_t *keep_bytes);

/* The same for somebody who is out of memory: nothing stays, but in pinned memory's stacks; an
 * initial size only where its memory is not in initial_of (rs_mr_trim_all). */
size_t rs_context_trim_all(int device, unsigned initial_of);

/* rs_mr_make_ready of all these stacks, until one of them says RS_READY_SOME. */
enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns);

/* What they hold that nobody uses, quarantine included. */
size_t rs_context_idle_bytes(int device);

/* The same of resources over any of these memories, bits 1 << rs_memory. */
size_t rs_context_idle_bytes_of(int device, unsigned memories);

/* Around the program's waits for its work: rs_mr_synchronise of all stacks for device memory that
 * have a threshold.  Without any it costs nothing. */
void rs_context_synchronise_slowly(enum rs_synchronise when);

static inline void rs_context_synchronise(enum rs_synchronise when)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_context_has_threshold, memory_order_relaxed)))
        rs_context_synchronise_slowly(when);
}

/* Changes with each block that enters or leaves the quarantine of any of them, on any device. */
uint64_t rs_context_moves(void);

/* Calls visit for each stack of each context in service, with a lock held that visit must not
 * need. */
void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data);

/* The same for the stacks of one kind of a device alone, and at last `gone` with the counters of
 * those whose contexts are gone. */
void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data);

/* Tells the context's stacks which devices may reach its memory now (introspect/peer.h).  After an
 * error some may be told and some not. */
CUresult rs_context_apply_peers(CUcontext handle);
