/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the contexts in service.  The caller holds rs_contexts_lock, except where a comment
 * says otherwise. */
#pragma once

#include "base/lock.h"
#include "context/context_record.h"

#include <stdbool.h>

/* Maps a handle that the program may have current to the context that owns the memory allocated
 * under it: its own, or the primary of a green context. */
struct rs_context_entry {
    CUcontext handle;
    unsigned long long id;
    struct rs_context *context;
};

/* Protects the state of all files in this folder about contexts; no driver call that waits is made
 * under it. */
extern struct rs_mutex rs_contexts_lock;

/* Returns the entry of a handle, or NULL. The pointer is valid until the table changes. */
struct rs_context_entry *rs_contexts_entry(CUcontext handle);

bool rs_contexts_have(const struct rs_context *context);

/* Returns the primary context of the device; NULL while none is in service. */
struct rs_context *rs_contexts_primary(CUdevice device);

/* Adds an entry; false when out of host memory. */
bool rs_contexts_add(CUcontext handle, struct rs_context *context);

void rs_contexts_remove_entry(struct rs_context_entry *entry);

/* Removes all entries of the context, and makes all threads look up anew. */
void rs_contexts_remove(const struct rs_context *context);

/* Calls visit for each stack of the context that has been made.  May be called without the lock. */
void rs_context_visit_stacks(struct rs_context *context,
                             void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                             void *data);

/* As rs_context_visit_stacks, for all contexts in service. */
void rs_contexts_visit_stacks(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                              void *data);
