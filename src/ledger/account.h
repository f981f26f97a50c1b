/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that this process holds of one device, or that one context holds, counted beneath
 * every stack.  A leaf charges each byte here before it asks the driver, so a byte is counted
 * once whatever the stack looks like, and a limit is checked before the driver is asked. */
#pragma once

#include "shared/job_limit.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kind of memory that bytes are counted as. */
enum rs_memory {
    RS_MEMORY_DEVICE,
    RS_MEMORY_MANAGED, /* charged like device memory: all of it may migrate to the device */
    RS_MEMORY_HOST,    /* counted, but never charged against the limit */
    RS_MEMORIES
};

/* The account of a device (`device` is NULL), or of a context.  Fields marked [device] are used in
 * a device's account only. */
struct rs_account {
    struct rs_account *device; /* of a context's account: the device's, which counts it too */
    _Atomic size_t held_bytes[RS_MEMORIES]; /* now taken from the driver, as requested */
    _Atomic size_t charged_bytes;           /* device and managed memory, in the driver's own units
                                               where they are known: the limit applies to it */
    _Atomic size_t asked_bytes;             /* part of charged_bytes: the driver has not answered */
    _Atomic size_t peak_charged_bytes;      /* largest charged_bytes that the driver has granted */
    _Atomic size_t recent_peak_bytes;       /* [device] the same since rs_account_restart_peak */
    _Atomic size_t limit_bytes;             /* [device] 0: no limit */
    _Atomic size_t peak_bytes;              /* largest held_bytes of device memory */
    /* Calls that the driver granted or is about to; calls that gave back; requests over the limit,
     * which a device's account counts. */
    _Atomic uint64_t driver_allocations, driver_frees, refusals;
    _Atomic uint64_t releases;          /* [device] grows when bytes are no longer charged */
    _Atomic size_t returning_bytes;     /* [device] rs_account_begin_return */
    _Atomic(struct rs_job_share *) job; /* [device] its job's; NULL: no job has a limit */
    struct rs_footprint_packed *packed; /* [device] footprint.c's, never freed */
};

/* The state in which a request was made that may be refused.  Memory that other threads released
 * since makes the refusal stale. */
struct rs_refusal {
    size_t size_bytes;
    uint64_t releases;     /* rs_account_releases before the request */
    size_t asked_bytes;    /* charged by the request itself, which stays charged meanwhile */
    enum rs_memory memory; /* the kind that is asked for */
};

/* How one request that may have to wait for other processes of the job was answered; zero at first.
 */
struct rs_account_wait {
    struct rs_job_contest contest;
    bool is_contested; /* the latest try */
};

/* Charges bytes that the driver is about to be asked for.  Returns false, with nothing counted,
 * when they would exceed the device's limit, or its job's; the driver must not be asked then.
 * Otherwise rs_account_taken or rs_account_untake must follow with the driver's answer; until then
 * no peak rises, as the driver may refuse.  While the answer depends on requests of other processes
 * of the job it waits, 20 ms at most, with nothing counted: no lock may be held.  A NULL account
 * counts nothing and returns true.  Thread safe, like all functions here. */
bool rs_account_take(struct rs_account *account, size_t bytes, enum rs_memory memory);

/* Charges as rs_account_take does, where the driver takes charge_bytes of the device for a
 * request of `bytes`. */
bool rs_account_take_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                        enum rs_memory memory);

/* Charges as rs_account_take_as does, but never waits: for callers that hold a lock.  These leave
 * it and try again while rs_account_wait says so. */
bool rs_account_try_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                       enum rs_memory memory, struct rs_account_wait *wait);

/* True after a nap, when the latest try was refused because of requests of other processes that may
 * be refused themselves.  False when the request is refused. */
bool rs_account_wait(struct rs_account *account, struct rs_account_wait *wait);

/* The driver granted a request that was charged as charge_bytes: peaks rise. */
void rs_account_taken(struct rs_account *account, size_t charge_bytes, enum rs_memory memory);

/* Counts one driver call that gave back `bytes`, charged as the same number. */
void rs_account_give(struct rs_account *account, size_t bytes, enum rs_memory memory);

/* Counts as rs_account_give does, for `bytes` that were charged as charge_bytes. */
void rs_account_give_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                        enum rs_memory memory);

/* Counts as rs_account_give_as does, for `count` driver calls that gave back `bytes` in all. */
void rs_account_give_many(struct rs_account *account, size_t bytes, size_t charge_bytes,
                          uint64_t count, enum rs_memory memory);

/* Charge and release memory that grows and shrinks inside the driver's own calls: no driver call
 * is counted, and no answer follows, so peaks rise at once.  rs_account_try_grow returns false,
 * with nothing counted, as rs_account_try_as does. */
bool rs_account_try_grow(struct rs_account *account, size_t bytes, enum rs_memory memory,
                         struct rs_account_wait *wait);
void rs_account_shrink(struct rs_account *account, size_t bytes, enum rs_memory memory);

/* The driver refused a request that rs_account_take, or rs_account_take_as, charged. */
void rs_account_untake(struct rs_account *account, size_t bytes, enum rs_memory memory);
void rs_account_untake_as(struct rs_account *account, size_t bytes, size_t charge_bytes,
                          enum rs_memory memory);

/* Changes a charge from from_bytes to to_bytes.  The driver has taken them already, so no limit
 * is checked. */
void rs_account_recharge(struct rs_account *account, size_t from_bytes, size_t to_bytes);

/* Follows the size of a driver's pool, which the driver changes by itself: held bytes go from
 * from_held_bytes to to_held_bytes, and the charge from from_bytes to to_held_bytes.  `account`
 * is a device's. */
void rs_account_follow(struct rs_account *account, size_t from_held_bytes, size_t to_held_bytes,
                       size_t from_bytes);

/* Enclose the time in which bytes are on their way back to the driver: no resource counts them
 * as idle, but they are still charged.  A NULL account is allowed. */
void rs_account_begin_return(struct rs_account *account, size_t bytes);
void rs_account_end_return(struct rs_account *account, size_t bytes);

/* Returns a number that changes whenever another thread, or another process of the job, releases
 * charged bytes of the device.  A refusal counts only if the number is what it was before the
 * request.  0 for a NULL account. */
uint64_t rs_account_releases(const struct rs_account *account);

/* The program has freed `bytes`: other processes of the job may ask for them.  A NULL account is
 * allowed. */
void rs_account_freed(const struct rs_account *account, size_t bytes);

/* Returns the bytes that the device's limit leaves room for now; SIZE_MAX without a limit. */
size_t rs_account_room(const struct rs_account *account);

/* True when the device's limit leaves room for `bytes` now. */
bool rs_account_has_room(const struct rs_account *account, size_t bytes);

/* The most that this process may have charged of the device now: by its own limit, and by what the
 * other processes of its job have left it (shared/job_limit.h).  0 without either. */
size_t rs_account_limit(const struct rs_account *account);

/* The most that this process may have charged of the device at any time: the smaller of its own
 * limit and its job's.  SIZE_MAX without either, and for a NULL account. */
size_t rs_account_most(const struct rs_account *account);

/* Returns the largest charged_bytes that the driver has granted of the device since the last call,
 * now included, and restarts that peak at what is charged now; peak_charged_bytes stays. */
size_t rs_account_restart_peak(struct rs_account *device);

/* The same without a restart. */
size_t rs_account_recent_peak(struct rs_account *device);

/* True when the device has a limit. */
bool rs_account_has_limit(const struct rs_account *account);

/* Return the held bytes of all kinds of memory, and of those whose bits (1 << memory) are set in
 * `memories`. */
size_t rs_account_held_bytes(const struct rs_account *account);
size_t rs_account_held_bytes_of(const struct rs_account *account, unsigned memories);

/* A context is gone with all that it held: takes its bytes off the account and its device's. */
void rs_account_lose(struct rs_account *account);
