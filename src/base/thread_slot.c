/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread_slot.h"

#include "base/check.h"
#include "base/lock.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

enum { SLOTS = 16 };

struct slot {
    uint64_t owner_id; /* 0: empty */
    void *object;
};

static __thread struct slot slots[SLOTS];

static struct rs_mutex lock =
    RS_MUTEX_INIT(RS_RANK_THREAD_SLOTS); /* of the list of owners; held during a `leave` */
static struct rs_slot_owner *owners;
static uint64_t last_id;

/* The key exists for its destructor, which runs when a thread ends. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;
static pid_t process;

static struct slot *slot_of(const struct rs_slot_owner *owner)
{
    return &slots[owner->id % SLOTS];
}

/* Under the lock: owners are linked both ways, newest first. */
__attribute__((unused)) static bool owners_check(void)
{
    const struct rs_slot_owner *before = NULL;

    for (const struct rs_slot_owner *owner = owners; owner; before = owner, owner = owner->next)
        if (owner->previous != before || (before && before->id <= owner->id) || !owner->leave)
            return false;
    return true;
}

/* Empties the slot, and gives its object back if the owner still lives. */
static void leave_slot(struct slot *slot)
{
    struct slot left = *slot;

    *slot = (struct slot){0, NULL};
    rs_mutex_lock(&lock);
    RS_ASSERT(left.owner_id <= last_id); /* no owner of ours has had a later id */
    for (struct rs_slot_owner *owner = owners; owner; owner = owner->next)
        if (owner->id == left.owner_id)
            owner->leave(owner, left.object);
    rs_mutex_unlock(&lock);
}

static void end_of_thread(void *data)
{
    struct slot *mine = data;

    if (getpid() != process)
        return;
    for (unsigned i = 0; i < SLOTS; i++)
        if (mine[i].owner_id)
            leave_slot(&mine[i]);
}

static void make_key(void)
{
    process = getpid();
    has_key = pthread_key_create(&key, end_of_thread) == 0;
}

void rs_slot_owner_enter(struct rs_slot_owner *owner,
                         void (*leave)(struct rs_slot_owner *owner, void *object))
{
    pthread_once(&once, make_key);
    rs_mutex_lock(&lock);
    *owner = (struct rs_slot_owner){.id = ++last_id, .next = owners, .leave = leave};
    if (owners)
        owners->previous = owner;
    owners = owner;
    RS_ASSERT_SLOW(owners_check());
    rs_mutex_unlock(&lock);
}

void rs_slot_owner_remove(struct rs_slot_owner *owner)
{
    rs_mutex_lock(&lock);
    /* Removed twice it would take out whoever stands there now. */
    RS_ASSERT((owner->previous ? owner->previous->next : owners) == owner);
    *(owner->previous ? &owner->previous->next : &owners) = owner->next;
    if (owner->next)
        owner->next->previous = owner->previous;
    RS_ASSERT_SLOW(owners_check());
    rs_mutex_unlock(&lock);
}

void *rs_slot_get(const struct rs_slot_owner *owner)
{
    const struct slot *slot = slot_of(owner);

    return slot->owner_id == owner->id ? slot->object : NULL;
}

bool rs_slot_set(struct rs_slot_owner *owner, void *object)
{
    struct slot *slot = slot_of(owner);

    RS_ASSERT(slot->owner_id != owner->id);
    RS_ASSERT(owner->id != 0 && object); /* NULL stands for none */
    if (!has_key || pthread_setspecific(key, slots) != 0)
        return false;
    if (slot->owner_id)
        leave_slot(slot);
    *slot = (struct slot){owner->id, object};
    return true;
}
