/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over the stacks of all contexts.
 *
 * Some functions skip the stacks of pinned memory; their comments say so. Functions that call the
 * driver for the stacks (the trims, rs_context_make_ready and rs_context_synchronise) leave out
 * those of a context that may be ending (context/table.h), and do not wait for them unless their
 * comments say so: the end may take as long as the context's kernels. The others visit these stacks
 * too. */
#pragma once

#include "base/check.h"
#include "context/context.h"
#include "context/stack.h"
#include "resource/report.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Some functions take RS_VISIT_HOST in place of a device's number; it means the stacks of every
 * kind, on all devices, that hold host memory. */
enum { RS_VISIT_HOST = -2 };

/* Has every stack of the device's contexts, pinned memory's too, give back its wholly free memory
 * to the driver, except for keep_bytes in all.  Returns the bytes given back.  The caller holds no
 * lock.
 *
 * Memory that goes back only by a driver call that waits (pinned and managed memory, and with
 * RMM_FREE=immediate every kind) stays while its context works; rs_context_trim tries again for up
 * to bound_ns. It sets *is_left if some memory stayed, or a context's end took longer than that.
 * Drivers without fences do not tell whether a context works.  With these, the driver calls are
 * made and wait, unless the thread serves a request (base/request.h): then the memory stays. */
size_t rs_context_trim(int device, size_t keep_bytes, uint64_t bound_ns, bool *is_left);

/* Trims once for a request that is out of memory, and returns the bytes given back: only about
 * `bytes` (SIZE_MAX: all), so that the stacks keep the rest. initial_of is a set of memories (bits
 * 1 << rs_memory; rs_trim.initial_of): pools over these give back their initial size too, other
 * pools keep it. Skips pinned memory, unless `device` is RS_VISIT_HOST. */
size_t rs_context_trim_some(int device, size_t bytes, unsigned initial_of);

static inline size_t rs_context_trim_all(int device, unsigned initial_of)
{
    return rs_context_trim_some(device, SIZE_MAX, initial_of);
}

/* Calls rs_mr_make_ready, with the same wait_ns, for the stacks of the device until one returns
 * RS_READY_SOME; returns the best answer. Skips pinned memory, unless `device` is RS_VISIT_HOST.
 *
 * A stack that is left out because its context may be ending may have memory, so the answer is not
 * RS_READY_NOTHING (unless this thread must not wait for ends): when no other stack has a block
 * ready, this waits up to wait_ns for the context's end, after which its memory is the driver's
 * again, and returns RS_READY_SOME, or RS_READY_PENDING while the end takes longer. */
enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns);

/* Returns the idle bytes of the device's stacks, quarantine included, those of ending contexts too,
 * but only of resources over any of these memories (bits 1 << rs_memory; ~0: all). Skips pinned
 * memory, unless `device` is RS_VISIT_HOST. */
size_t rs_context_idle_bytes_of(int device, unsigned memories);

/* Stores what rs_context_idle_bytes_of returns for all memories, and returns true. Returns false,
 * with *bytes unchanged, inside rs_context_creating_begin, where no stack can be visited. */
bool rs_context_idle_bytes_at_once(int device, size_t *bytes);

/* Called before a capture (RS_SYNCHRONISE_CAPTURE): calls rs_mr_synchronise for all stacks. For any
 * other `when` it does so only for the stacks that have a release threshold, pinned memory's left
 * out. */
void rs_context_synchronise_slowly(enum rs_synchronise when);

/* Called around the program's waits for its work.  Where no stack has a threshold, it costs one
 * load. */
static inline void rs_context_synchronise(enum rs_synchronise when)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_context_has_threshold, memory_order_relaxed)))
        rs_context_synchronise_slowly(when);
}

/* Returns a number that changes with each block that enters or leaves the quarantine of a stack
 * over any of these memories (bits 1 << rs_memory), on any device. */
uint64_t rs_context_moves(unsigned memories);

/* Calls visit for each stack of each context in the table. It holds the contexts' lock meanwhile,
 * so visit must not take it. Where the lock cannot be had (rs_contexts_lock_bounded), it does
 * nothing. */
void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data);

/* Does what rs_context_each_stack does for the stacks of one kind on one device, and then calls
 * `gone` with the counters of dropped stacks. */
void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data);

/* Tells the context's stacks which devices may access its memory now (introspect/introspect.h).
 * Returns CUDA_SUCCESS, or the error of the first stack that fails; the stacks after it are then
 * not told. */
CUresult rs_context_apply_peers(CUcontext handle);
