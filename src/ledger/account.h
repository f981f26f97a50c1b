/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds of one device, beneath every stack: each byte that a leaf takes from the
 * driver is charged here first, so that it is counted once whatever the stack looks like, and a
 * limit is checked before the driver is asked. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where bytes lie. */
enum rs_memory {
    RS_MEMORY_DEVICE,
    RS_MEMORY_MANAGED, /* wherever it is used, so all of it may lie on the device */
    RS_MEMORY_HOST,
    RS_MEMORIES
};

struct rs_job_share;

struct rs_account {
    struct rs_account *device; /* of a context's account: the device's, which counts it too */
    _Atomic size_t held_bytes[RS_MEMORIES]; /* now taken from the driver */
    _Atomic size_t charged_bytes;           /* device and managed memory, in the driver's own units
                                               where they are known: what the limit is about */
    _Atomic size_t asked_bytes;             /* of these, what the driver has not answered yet */
    _Atomic size_t peak_charged_bytes;      /* of a device's account */
    _Atomic size_t limit_bytes;             /* of a device's account; 0: none */
    _Atomic size_t peak_bytes;              /* of device memory */
    _Atomic uint64_t driver_allocations, driver_frees, refusals;
    _Atomic uint64_t releases; /* of a device's account: goes up when bytes are charged no longer */
    _Atomic size_t returning_bytes;     /* of a device's account: that threads have in hand */
    _Atomic(struct rs_job_share *) job; /* of a device's account: its job's, NULL without one */
    struct rs_footprint_packed *packed; /* of a device's account, for its life: footprint.c's */
};

/* A request that may be refused, as its caller knows it before it asks. */
struct rs_refusal {
    size_t size_bytes;
    uint64_t releases;     /* rs_account_releases */
    size_t asked_bytes;    /* that the request itself has charged, and keeps charged meanwhile */
    enum rs_memory memory; /* that is asked for */
};

/* Counts bytes about to be taken.  False, with nothing counted, when they would exceed the device's
 * limit: then the driver must not be asked.  Otherwise the driver's answer ends it, by
 * rs_account_taken or rs_account_untake: until then no peak rises, as the driver may refuse.  A
 * NULL account is allowed.  Thread safe. */
bool rs_account_take(struct rs_account *account, size_t bytes, enum rs_memory memory);

/* The same where the driver takes more of the device than was asked for. */
bool rs_account_take_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                        enum rs_memory memory);

/* The driver has answered what was charged charge_bytes in advance: peaks rise. */
void rs_account_taken(struct rs_account *account, size_t charge_bytes, enum rs_memory memory);

/* Counts bytes given back.  Thread safe. */
void rs_account_give(struct rs_account *account, size_t bytes, enum rs_memory memory);

void rs_account_give_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                        enum rs_memory memory);

/* Several calls' at once. */
void rs_account_give_many(struct rs_account *account, size_t bytes, size_t charge_bytes,
                          uint64_t count, enum rs_memory memory);

/* For memory that grows and shrinks inside the driver's own calls: the same for bytes alone, no
 * call is counted, and nothing is left to be answered. */
bool rs_account_grow(struct rs_account *account, size_t bytes, enum rs_memory memory);
void rs_account_shrink(struct rs_account *account, size_t bytes, enum rs_memory memory);

/* The driver refused what rs_account_take counted. */
void rs_account_untake(struct rs_account *account, size_t bytes, enum rs_memory memory);
void rs_account_untake_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                          enum rs_memory memory);

/* What was charged as from_bytes turned out to be to_bytes, which the driver has taken already: no
 * limit is checked. */
void rs_account_recharge(struct rs_account *account, size_t from_bytes, size_t to_bytes);

/* Counts bytes that the driver holds or gave back by itself (a stream-ordered pool), charged as
 * from_bytes before. */
void rs_account_follow(struct rs_account *account, size_t from_held_bytes, size_t to_held_bytes,
                       size_t from_bytes);

/* Around the time in which bytes that go back are nowhere to be found, and charged still.  A NULL
 * account is allowed. */
void rs_account_begin_return(struct rs_account *account, size_t bytes);
void rs_account_end_return(struct rs_account *account, size_t bytes);

/* Changes whenever another thread's bytes of the device are charged no longer: a refusal counts
 * only if this is what it was before the request.  0 for a NULL account. */
uint64_t rs_account_releases(const struct rs_account *account);

/* Bytes that the device's limit leaves room for now; SIZE_MAX without one. */
size_t rs_account_room(const struct rs_account *account);

/* True when the device's limit leaves room for that much now. */
bool rs_account_has_room(const struct rs_account *account, size_t bytes);

/* The most that this process may have charged of the device now: by its own limit, and by what the
 * other processes of its job have left it (shared/job_limit.h).  0 without either. */
size_t rs_account_limit(const struct rs_account *account);

/* True when the device has a limit. */
bool rs_account_has_limit(const struct rs_account *account);

/* All that is held, of whatever memory, or of those whose bits (1 << memory) are set. */
size_t rs_account_held_bytes(const struct rs_account *account);
size_t rs_account_held_bytes_of(const struct rs_account *account, unsigned memories);

/* A context is gone with all it held: takes that off its device's account. */
void rs_account_lose(struct rs_account *account);
