/* SPDX-License-Identifier: Apache-2.0 */
/* One object per thread and owner, such as a thread's part of an arena: found without a lock, and
 * given back to its owner when the thread ends.
 *
 * Owner and thread may end in either order.  A thread remembers sixteen owners; one more makes it
 * give the object of an earlier one back, as if it ended.  A child after fork() gives nothing back:
 * it never uses its parent's owners again, and their locks may be held for ever. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Part of an owner; its fields are private. */
struct rs_slot_owner {
    uint64_t id; /* never used again by another owner, so that a late thread cannot mix them up */
    struct rs_slot_owner *next, *previous;
    void (*leave)(struct rs_slot_owner *owner, void *object);
};

/* From here on threads may have objects of this owner's.  `leave` is called with the object of a
 * thread that ends, on that thread, while the owner cannot be removed. */
void rs_slot_owner_enter(struct rs_slot_owner *owner,
                         void (*leave)(struct rs_slot_owner *owner, void *object));

/* No `leave` is called from here on, and none is under way.  What threads have of it is forgotten.
 * The caller holds no lock that `leave` takes. */
void rs_slot_owner_remove(struct rs_slot_owner *owner);

/* The calling thread's object, or NULL. */
void *rs_slot_get(const struct rs_slot_owner *owner);

/* Gives the calling thread, which has none, an object.  False when its end would not be noticed:
 * then it has none still.  The caller holds no lock that a `leave` takes. */
bool rs_slot_set(struct rs_slot_owner *owner, void *object);
