/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the contexts in service, by the handle that the program may have current. */
#include "context/table.h"

#include "base/check.h"
#include "context/identity.h"

#include <stdlib.h>

enum { ENTRIES_FIRST = 64 };

struct rs_mutex rs_contexts_lock = RS_MUTEX_INIT(RS_RANK_CONTEXTS);
RS_RESET_IN_CHILD(context_table, rs_contexts_lock);

static struct rs_context_entry *entries; /* these three under the lock */
static size_t entry_count, entry_room;

RS_HOT_DATA _Atomic unsigned rs_context_generation = 1;

struct rs_context_entry *rs_contexts_entry(CUcontext handle)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].handle == handle)
            return &entries[i];
    return NULL;
}

bool rs_contexts_have(const struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context == context)
            return true;
    return false;
}

struct rs_context *rs_contexts_primary(CUdevice device)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].context->primary && entries[i].context->device == device)
            return entries[i].context;
    return NULL;
}

bool rs_contexts_add(CUcontext handle, struct rs_context *context)
{
    size_t room = entry_room ? 2 * entry_room : ENTRIES_FIRST;
    struct rs_context_entry *grown;

    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(entry_count <= entry_room);
    RS_ASSERT_SLOW(!rs_contexts_entry(handle)); /* the older entry would hide the new one */
    if (entry_count == entry_room) {
        grown = realloc(entries, room * sizeof(*entries));
        if (!grown)
            return false;
        entries = grown;
        entry_room = room;
    }
    entries[entry_count++] = (struct rs_context_entry){handle, rs_context_id_of(handle), context};
    return true;
}

void rs_contexts_remove_entry(struct rs_context_entry *entry)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    RS_ASSERT(entry_count > 0 && entry >= entries && entry < entries + entry_count);
    *entry = entries[--entry_count];
}

void rs_contexts_remove(const struct rs_context *context)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count;) {
        if (entries[i].context == context)
            entries[i] = entries[--entry_count];
        else
            i++;
    }
    RS_ASSERT_SLOW(!rs_contexts_have(context));
    atomic_fetch_add_explicit(&rs_context_generation, 1, memory_order_release);
}

void rs_context_visit_stacks(struct rs_context *context,
                             void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                             void *data)
{
    struct rs_pushed_stack *pushed = atomic_load_explicit(&context->pushed, memory_order_acquire);
    struct rs_mr *mr;

    for (int i = 0; i < RS_STACKS; i++) {
        mr = atomic_load_explicit(&context->stack[i].mr, memory_order_acquire);
        if (mr)
            visit(data, &context->stack[i], mr);
    }
    for (; pushed; pushed = pushed->next) {
        mr = atomic_load_explicit(&pushed->stack.mr, memory_order_acquire);
        if (mr)
            visit(data, &pushed->stack, mr);
    }
}

void rs_contexts_visit_stacks(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                              void *data)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    for (size_t i = 0; i < entry_count; i++) {
        /* A green context's entry names the same stacks. */
        if (entries[i].context->handle == entries[i].handle)
            rs_context_visit_stacks(entries[i].context, visit, data);
    }
}
