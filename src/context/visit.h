/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over the stacks of all contexts.
 *
 * A function that says so skips pinned memory's stacks.  Those of a context that may be ending
 * (context/table.h) are left out, and nobody waits for them unless the comment says so: the end
 * may take as long as the context's kernels. */
#pragma once

#include "base/check.h"
#include "context/context.h"
#include "context/stack.h"
#include "resource/report.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* In place of a device's number, where a function says so: the stacks that hold host memory, of all
 * devices and of every kind. */
enum { RS_VISIT_HOST = -2 };

/* Has every stack of the device's contexts, pinned memory's too, give back its wholly free memory
 * to the driver, except for keep_bytes in all.  Returns the bytes given back.  The caller holds no
 * lock.
 *
 * Memory that goes back only by a driver call that waits (pinned and managed memory, and with
 * RMM_FREE=immediate all) stays while its context works; this tries again for up to bound_ns.
 * *is_left: some of it stayed, or a context's end took longer.  Drivers without fences do not tell
 * whether a context works: there these calls wait outside a request (base/request.h), and the
 * memory stays inside one. */
size_t rs_context_trim(int device, size_t keep_bytes, uint64_t bound_ns, bool *is_left);

/* As rs_context_trim for a request that is out of memory, of about `bytes` alone (SIZE_MAX: all):
 * each stack keeps the rest.  Of initial sizes it keeps only those over memories that are not in
 * initial_of (bits 1 << rs_memory; rs_trim.initial_of).  Skips pinned memory, unless `device` is
 * RS_VISIT_HOST. */
size_t rs_context_trim_some(int device, size_t bytes, unsigned initial_of);

static inline size_t rs_context_trim_all(int device, unsigned initial_of)
{
    return rs_context_trim_some(device, SIZE_MAX, initial_of);
}

/* Calls rs_mr_make_ready, with wait_ns in ns, for the stacks of the device until one returns
 * RS_READY_SOME; returns the best answer.  Skips pinned memory, unless `device` is
 * RS_VISIT_HOST.
 *
 * A stack that is left out is not "nothing": when no other has a block ready, this waits up to
 * wait_ns for the context's end, after which its memory is the driver's again, and returns
 * RS_READY_SOME, or RS_READY_PENDING while the end takes longer. */
enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns);

/* Returns the idle bytes of the device's stacks, quarantine included, those of ending contexts too.
 * Skips pinned memory. */
size_t rs_context_idle_bytes(int device);

/* As rs_context_idle_bytes.  False, with *bytes unchanged, where no stack can be visited: inside
 * rs_context_creating_begin. */
bool rs_context_idle_bytes_at_once(int device, size_t *bytes);

/* As rs_context_idle_bytes, of the resources over any of these memories (bits 1 << rs_memory)
 * alone; `device` may be RS_VISIT_HOST. */
size_t rs_context_idle_bytes_of(int device, unsigned memories);

/* Called around the program's waits for its work: calls rs_mr_synchronise for all stacks that have
 * a release threshold.  Skips pinned memory.  Without a threshold in the process it costs one load.
 * With RS_SYNCHRONISE_CAPTURE, for all stacks. */
void rs_context_synchronise_slowly(enum rs_synchronise when);

static inline void rs_context_synchronise(enum rs_synchronise when)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_context_has_threshold, memory_order_relaxed)))
        rs_context_synchronise_slowly(when);
}

/* Returns a number that changes with each block that enters or leaves the quarantine of a stack
 * over any of these memories (bits 1 << rs_memory), on any device. */
uint64_t rs_context_moves(unsigned memories);

/* Calls visit for each stack of each context in service, under the contexts' lock, which visit must
 * not need. */
void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data);

/* As rs_context_each_stack, for the stacks of one kind on one device; at last calls gone with the
 * counters of dropped stacks. */
void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data);

/* Tells the context's stacks which devices may access its memory now (introspect/introspect.h).
 * After an error some stacks are told and some are not. */
CUresult rs_context_apply_peers(CUcontext handle);
