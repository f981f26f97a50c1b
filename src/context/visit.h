/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over the stacks of all contexts.
 *
 * Some functions skip the stacks of pinned memory; their comments say so.
 *
 * The trims, rs_context_make_ready and rs_context_synchronise call the driver for each stack. They
 * leave out the stacks of a context that may be ending (context/table.h), since its end may take as
 * long as its kernels. They do not wait for that end unless their comments say so. The other
 * functions visit these stacks too. */
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

/* Has every stack of the device's contexts, including those of pinned memory, give its wholly free
 * memory back to the driver, except for keep_bytes in all. Returns the bytes given back. The caller
 * holds no lock.
 *
 * Some memory goes back only by a driver call that waits: pinned and managed memory, and with
 * RMM_FREE=immediate every kind. It stays while its context works, and rs_context_trim tries again
 * for up to bound_ns. *is_left is set to whether some memory stayed, or a context's end took longer
 * than that. Drivers without fences do not tell whether a context works. There the driver calls are
 * made and wait, unless the thread serves a request (base/request.h); then the memory stays. */
size_t rs_context_trim(int device, size_t keep_bytes, uint64_t bound_ns, bool *is_left);

/* Trims once for a request that is out of memory, and returns the bytes given back. Only about
 * `bytes` are given back (SIZE_MAX: all), so that the stacks keep the rest. initial_of is a set of
 * memories (bits 1 << rs_memory). Pools over these give back their initial size too; other pools
 * keep it. Skips pinned memory, unless `device` is RS_VISIT_HOST. */
size_t rs_context_trim_some(int device, size_t bytes, unsigned initial_of);

static inline size_t rs_context_trim_all(int device, unsigned initial_of)
{
    return rs_context_trim_some(device, SIZE_MAX, initial_of);
}

/* Calls rs_mr_make_ready, which takes freed blocks out of quarantine, for the stacks of the device
 * until one returns RS_READY_SOME. wait_ns is passed to each. Returns the best answer. Skips pinned
 * memory, unless `device` is RS_VISIT_HOST.
 *
 * A stack that is left out because its context may be ending may also have such blocks. So if no
 * other stack returns RS_READY_SOME, this waits up to wait_ns for the context's end, after which
 * its memory is the driver's again. It then returns RS_READY_SOME, or RS_READY_PENDING if the end
 * takes longer. A thread that must not wait for ends ignores these stacks. */
enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns);

/* Returns the idle bytes of the device's stacks, including freed blocks in quarantine and the
 * stacks of ending contexts. Only resources over these memories count (bits 1 << rs_memory; ~0:
 * all). Skips pinned memory, unless `device` is RS_VISIT_HOST. */
size_t rs_context_idle_bytes_of(int device, unsigned memories);

/* Sets *bytes to rs_context_idle_bytes_of for all memories, and returns true. Inside
 * rs_context_creating_begin no stack can be visited: returns false, with *bytes unchanged. */
bool rs_context_idle_bytes_at_once(int device, size_t *bytes);

/* Calls rs_mr_synchronise. Before a capture (RS_SYNCHRONISE_CAPTURE) it does so for all stacks, for
 * any other `when` only for the stacks with a release threshold, and not for pinned memory. waited:
 * with RS_SYNCHRONISE_END_ALL, the context whose work the program has waited for (NULL: the current
 * one); for stacks of other contexts that is RS_SYNCHRONISE_END_SOME. */
void rs_context_synchronise_slowly(enum rs_synchronise when, CUcontext waited);

/* Called around the program's waits for its work. Costs one load while no stack has a release
 * threshold. */
static inline void rs_context_synchronise(enum rs_synchronise when, CUcontext waited)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_context_has_threshold, memory_order_relaxed)))
        rs_context_synchronise_slowly(when, waited);
}

/* Returns a number that changes with each block that enters or leaves the quarantine of a stack
 * over these memories (bits 1 << rs_memory), on any device. */
uint64_t rs_context_moves(unsigned memories);

/* Calls visit for each stack of each context in the table, under the contexts' lock, which visit
 * must not take. Does nothing if the lock cannot be had (rs_contexts_lock_bounded). */
void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data);

/* Does what rs_context_each_stack does, but only for the stacks of one kind on one device. Then
 * calls `gone` with the counters of their dropped stacks. */
void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data);

/* Tells the context's stacks which devices may access its memory now (introspect/introspect.h).
 * Returns CUDA_SUCCESS, or the error of the first stack that fails; later stacks are then not told.
 */
CUresult rs_context_apply_peers(CUcontext handle);
