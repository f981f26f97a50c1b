/* SPDX-License-Identifier: Apache-2.0 */
/* One object per thread and owner, such as a thread's part of an arena.  A thread finds its
 * object without a lock; when the thread ends, the object is given back to its owner.
 *
 * Owner and thread may end in either order.  A thread has sixteen slots, chosen by the owner's
 * id modulo 16: an object for an owner whose slot is taken makes the thread give the earlier
 * object back, as if it ended.  A child after fork() gives nothing back: it never uses its
 * parent's owners again, and their locks may be held for ever. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Embedded in an owner; its fields are private. */
struct rs_slot_owner {
    uint64_t id; /* never reused, so that a late thread cannot mistake one owner for another */
    struct rs_slot_owner *next, *previous;
    void (*leave)(struct rs_slot_owner *owner, void *object);
};

/* Registers an owner; from now on threads may have objects of it.  `leave` is called with the
 * object of a thread that ends, on that thread, while the owner cannot be removed. */
void rs_slot_owner_enter(struct rs_slot_owner *owner,
                         void (*leave)(struct rs_slot_owner *owner, void *object));

/* Unregisters an owner.  On return no call of its `leave` is under way and none will follow;
 * objects that threads still have are forgotten.  The caller holds no lock that `leave` takes. */
void rs_slot_owner_remove(struct rs_slot_owner *owner);

/* Returns the calling thread's object, or NULL. */
void *rs_slot_get(const struct rs_slot_owner *owner);

/* Gives the calling thread, which has no object of this owner, an object.  Returns false, with
 * nothing set, when the end of the thread would not be noticed (no pthread key).  The caller
 * holds no lock that any owner's `leave` takes. */
bool rs_slot_set(struct rs_slot_owner *owner, void *object);
