/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the contexts in service.  The caller of all below holds the lock, unless it says
 * otherwise. */
#pragma once

#include "base/lock.h"
#include "context/context_record.h"

#include <stdbool.h>

/* A handle the program may have current, and the context it allocates from: its own, or for a green
 * context the one that owns its memory. */
struct rs_context_entry {
    CUcontext handle;
    unsigned long long id;
    struct rs_context *context;
};

/* Protects all that the files of this folder know of contexts; no driver call waits under it. */
extern struct rs_mutex rs_contexts_lock;

/* The handle's entry, or NULL.  It is good until the table changes. */
struct rs_context_entry *rs_contexts_entry(CUcontext handle);

bool rs_contexts_have(const struct rs_context *context);

/* The primary context of the device, NULL while none is in service. */
struct rs_context *rs_contexts_primary(CUdevice device);

/* False when out of host memory. */
bool rs_contexts_add(CUcontext handle, struct rs_context *context);

void rs_contexts_remove_entry(struct rs_context_entry *entry);

/* All entries of the context. */
void rs_contexts_remove(const struct rs_context *context);

/* Each stack of a context that has been made.  Without the lock too. */
void rs_context_visit_stacks(struct rs_context *context,
                             void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                             void *data);

/* Of all contexts in service. */
void rs_contexts_visit_stacks(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                              void *data);
