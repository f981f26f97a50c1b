/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that this process holds of one device, or that one context holds, counted beneath
 * every stack.  A leaf charges each byte here before it asks the driver, so a byte is counted
 * once whatever the stack looks like, and a limit is checked before the driver is asked.
 *
 * A context's account is part of its device's, under the device's mutex.  All numbers are plain
 * ones that change under it; those that are read without it are atomic.  No function waits for the
 * driver; one that takes may wait for the job's lock.
 *
 * What an allocation really takes: the driver cuts requests of up to 1 MiB from shared blocks of
 * 2 MiB, and gives larger requests whole blocks (MEASURED.md).  A thousand requests of one byte
 * must not be charged as a thousand bytes, nor as a thousand blocks, so shared blocks are counted
 * by address, once per context: on a driver where contexts share them, each is charged. */
#pragma once

#include "base/hash_table.h"
#include "base/lock.h"
#include "driver/cuda.h"
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

/* The account of a device (`device` is NULL), or of a context, which uses the first fields alone.
 */
struct rs_account {
    struct rs_account *device;   /* of a context's account: the device's, which counts it too */
    struct rs_hash_table blocks; /* small allocations in each shared block, by address / 2 MiB */
    _Atomic size_t held_bytes[RS_MEMORIES]; /* now taken from the driver, as requested */
    _Atomic size_t charged_bytes;           /* device and managed memory, in the driver's own units
                                               where they are known: the limit applies to it */

    struct rs_mutex mutex;
    _Atomic size_t limit_bytes;         /* 0: no limit */
    _Atomic size_t asked_bytes;         /* part of charged_bytes: the driver has not answered */
    _Atomic size_t peak_charged_bytes;  /* largest charged_bytes that the driver has granted */
    _Atomic size_t recent_peak_bytes;   /* the same since rs_account_restart_peak */
    _Atomic size_t returning_bytes;     /* rs_account_begin_return */
    _Atomic uint64_t refusals;          /* requests over the limit */
    _Atomic uint64_t releases;          /* grows when bytes are no longer charged */
    _Atomic(struct rs_job_share *) job; /* its job's; NULL: no job has a limit */
    struct rs_packed *packed;           /* small allocations whose addresses are not known */
};

/* The state in which a request was made that may be refused.  Memory that other threads released
 * since makes the refusal stale. */
struct rs_refusal {
    size_t size_bytes;
    uint64_t releases;     /* rs_account_releases before the request */
    size_t asked_bytes;    /* charged by the request itself, which stays charged meanwhile */
    enum rs_memory memory; /* the kind that is asked for */
};

/* An empty account: of a context of `device`, or, where that is NULL, of a device. */
void rs_account_begin(struct rs_account *account, struct rs_account *device);

/* Charges charge_bytes for a request of `bytes` that the driver is about to be asked for.  Returns
 * false, with nothing counted, when that would exceed the device's limit, or its job's; the driver
 * must not be asked then.  Otherwise rs_account_settle must follow with the driver's answer; until
 * then no peak rises, as the driver may refuse.  A NULL account counts nothing and returns true.
 * Thread safe, like all functions here. */
bool rs_account_take(struct rs_account *account, size_t bytes, size_t charge_bytes,
                     enum rs_memory memory);

/* What an account has counted for a holder of memory. */
struct rs_amount {
    size_t held_bytes, charged_bytes;
    size_t asked_bytes; /* charged by rs_account_take, and not answered yet */
};

/* What is counted for a holder goes from one amount to another.  The driver has the say: no limit
 * is checked. */
void rs_account_settle(struct rs_account *account, struct rs_amount from, struct rs_amount to,
                       enum rs_memory memory);

/* The driver granted what rs_account_take charged: peaks rise. */
static inline void rs_account_taken(struct rs_account *account, size_t bytes, size_t charge_bytes,
                                    enum rs_memory memory)
{
    rs_account_settle(account, (struct rs_amount){bytes, charge_bytes, charge_bytes},
                      (struct rs_amount){bytes, charge_bytes, 0}, memory);
}

/* The driver refused it. */
static inline void rs_account_untake(struct rs_account *account, size_t bytes, size_t charge_bytes,
                                     enum rs_memory memory)
{
    rs_account_settle(account, (struct rs_amount){bytes, charge_bytes, charge_bytes},
                      (struct rs_amount){0, 0, 0}, memory);
}

/* The driver has it back. */
static inline void rs_account_give(struct rs_account *account, size_t bytes, size_t charge_bytes,
                                   enum rs_memory memory)
{
    rs_account_settle(account, (struct rs_amount){bytes, charge_bytes, 0},
                      (struct rs_amount){0, 0, 0}, memory);
}

/* A context is gone with all that it held: takes its bytes off the account and its device's. */
void rs_account_lose(struct rs_account *account);

/* ---- what an allocation really takes ---- */

/* Returns the most bytes that the driver may take for a request: size_bytes rounded up to 2 MiB.
 * They are charged before the driver is asked. */
size_t rs_footprint_most(size_t size_bytes);

/* The driver granted, at `address`, a request that was charged as the most that it may take:
 * corrects the charge to *charged_bytes, and peaks rise.  Returns false, with the account
 * unchanged, when out of host memory. */
bool rs_footprint_settle(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                         enum rs_memory memory, size_t *charged_bytes);

/* The allocation is about to go back to the driver.  Returns the bytes charged for it, which
 * rs_account_give takes once the driver has it.  Needs no host memory. */
size_t rs_footprint_leave(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                          enum rs_memory memory);

/* How an allocation without a known address is counted. */
struct rs_footprint_share {
    size_t charged_bytes; /* by how much the charge grew when it was taken */
    bool is_packed;       /* it shares driver blocks with other small allocations */
};

/* Charges device memory whose address the driver does not tell (arrays), before the driver is
 * asked.  Small allocations share blocks as closely as earlier frees leave room for.  Returns
 * false, with nothing counted, as rs_account_take does. */
bool rs_footprint_pack(struct rs_account *account, size_t size_bytes,
                       struct rs_footprint_share *share);

/* The driver has the memory back, or, `refused`, did not grant what rs_footprint_pack charged.
 * Returns the bytes that are no longer charged, which may differ from those charged for it: other
 * allocations came and went between. */
size_t rs_footprint_unpack(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share, bool refused);

/* ---- read without the mutex; a NULL account is allowed where it says so ---- */

/* Enclose the time in which bytes are on their way back to the driver: no resource counts them
 * as idle, but they are still charged.  NULL is allowed. */
void rs_account_begin_return(struct rs_account *account, size_t bytes);
void rs_account_end_return(struct rs_account *account, size_t bytes);

/* Returns a number that changes whenever another thread, or another process of the job, releases
 * charged bytes of the device.  A refusal counts only if the number is what it was before the
 * request.  0 for NULL. */
uint64_t rs_account_releases(const struct rs_account *account);

/* The program has freed `bytes`: other processes of the job may ask for them.  NULL is allowed. */
void rs_account_freed(const struct rs_account *account, size_t bytes);

/* Returns the bytes that the device's limit leaves room for now; SIZE_MAX without a limit, and for
 * NULL. */
size_t rs_account_room(const struct rs_account *account);

/* True when the device's limit leaves room for `bytes` now. */
bool rs_account_has_room(const struct rs_account *account, size_t bytes);

/* The most that this process may have charged of the device at any time: the smaller of its own
 * limit and its job's.  SIZE_MAX without either, and for NULL. */
size_t rs_account_most(const struct rs_account *account);

/* As rs_account_most, now: less what the other processes of its job have taken. */
size_t rs_account_limit(const struct rs_account *account);

/* Returns the largest charged_bytes that the driver has granted of the device since the last call,
 * now included, and restarts that peak at what is charged now; peak_charged_bytes stays. */
size_t rs_account_restart_peak(struct rs_account *device);

/* Returns the held bytes of the kinds of memory whose bits (1 << memory) are set in `memories`. */
size_t rs_account_held_bytes_of(const struct rs_account *account, unsigned memories);

static inline size_t rs_account_held_bytes(const struct rs_account *account)
{
    return rs_account_held_bytes_of(account, ~0u);
}
