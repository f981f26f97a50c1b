/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts: the bytes that this process, or one context, holds of a device, counted below all
 * stacks (trees of memory resources).  A leaf, the resource of a stack that calls the driver,
 * charges each byte here before it asks the driver.  So a byte is counted once whatever the stack
 * looks like, and a limit is checked before the driver is asked.
 *
 * A context's account is part of its device's account, and changes under the device's mutex.  Of
 * the numbers, only limit_bytes and returning_bytes change without it; numbers that are read
 * without it are atomic.  No function here waits for the driver; rs_account_take and
 * rs_footprint_pack may wait for the job's locks.
 *
 * What an allocation really takes: the driver cuts requests of up to 1 MiB from shared blocks of 2
 * MiB, and gives larger requests whole blocks (MEASURED.md).  A thousand requests of one byte must
 * not be charged as a thousand bytes, nor as a thousand blocks, so shared blocks are counted by
 * address, once per context.  (If a driver lets contexts share such a block, each of them is
 * charged for it.) */
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

/* The account of a device (`device` is NULL), or of a context, which uses only the fields above
 * `mutex`. */
struct rs_account {
    /* The account of the context's device, which counts the context's bytes too; NULL in a device's
     * account. */
    struct rs_account *device;
    /* How many small allocations lie in each shared block, by address / 2 MiB. */
    struct rs_hash_table blocks;
    _Atomic size_t held_bytes[RS_MEMORIES]; /* taken from the driver or asked for, as requested */
    _Atomic size_t charged_bytes; /* device and managed memory, in the driver's own units where
                                     these are known; the limit applies to this number */

    struct rs_mutex mutex;
    _Atomic size_t limit_bytes; /* 0: no limit */
    /* The part of charged_bytes for which the driver has not answered yet. */
    _Atomic size_t asked_bytes;
    _Atomic size_t peak_charged_bytes; /* largest charged_bytes that the driver has granted */
    _Atomic size_t recent_peak_bytes;  /* the same, but only since rs_account_restart_peak */
    /* Bytes on their way back to the driver (rs_account_begin_return). */
    _Atomic size_t returning_bytes;
    _Atomic uint64_t refusals; /* requests that the device's or the job's limit refused */
    _Atomic uint64_t releases; /* grows when held or charged bytes fall */
    /* The device's share in the job; NULL: there is no job with a limit. */
    _Atomic(struct rs_job_share *) job;
    struct rs_packed *packed; /* small allocations whose addresses are not known */
};

/* The state of the account before a request.  If the request is refused and other threads have
 * released memory since, the refusal is stale. */
struct rs_refusal {
    size_t size_bytes;
    uint64_t releases;  /* rs_account_releases before the request */
    size_t asked_bytes; /* the bytes that the request itself has charged, which stay charged while
                           it is repeated */
    enum rs_memory memory; /* the kind that is asked for */
};

/* Initialises an empty account: of a context, if `device` is the account of the context's device;
 * of a device, if `device` is NULL. */
void rs_account_begin(struct rs_account *account, struct rs_account *device);

/* Charges charge_bytes for a request of `bytes`, before the driver is asked.  Returns false, with
 * only the refusal counted, when that would exceed the device's limit or its job's limit; then the
 * driver must not be asked.  After true, rs_account_settle must follow with the driver's answer;
 * until then no peak rises, as the driver may refuse.  A NULL account counts nothing and returns
 * true.  Thread safe, like all functions here. */
bool rs_account_take(struct rs_account *account, size_t bytes, size_t charge_bytes,
                     enum rs_memory memory);

/* What an account has counted for a holder of memory. */
struct rs_amount {
    size_t held_bytes, charged_bytes;
    size_t asked_bytes; /* charged by rs_account_take, and not yet answered by the driver */
};

/* Changes what is counted for a holder of memory from one amount to another.  No limit is checked,
 * since the driver has already given or taken back the memory.  A NULL account is allowed. */
void rs_account_settle(struct rs_account *account, struct rs_amount from, struct rs_amount to,
                       enum rs_memory memory);

/* Called when the driver has granted what rs_account_take charged: peaks rise. */
static inline void rs_account_taken(struct rs_account *account, size_t bytes, size_t charge_bytes,
                                    enum rs_memory memory)
{
    rs_account_settle(account, (struct rs_amount){bytes, charge_bytes, charge_bytes},
                      (struct rs_amount){bytes, charge_bytes, 0}, memory);
}

/* Called when the driver has refused what rs_account_take charged. */
static inline void rs_account_untake(struct rs_account *account, size_t bytes, size_t charge_bytes,
                                     enum rs_memory memory)
{
    rs_account_settle(account, (struct rs_amount){bytes, charge_bytes, charge_bytes},
                      (struct rs_amount){0, 0, 0}, memory);
}

/* Called when the driver has got the memory back. */
static inline void rs_account_give(struct rs_account *account, size_t bytes, size_t charge_bytes,
                                   enum rs_memory memory)
{
    rs_account_settle(account, (struct rs_amount){bytes, charge_bytes, 0},
                      (struct rs_amount){0, 0, 0}, memory);
}

/* Called when a context has ended, and all its memory with it: takes the context's bytes off its
 * account and its device's account. */
void rs_account_lose(struct rs_account *account);

/* ---- what an allocation really takes ---- */

/* Returns the most bytes that the driver may take for a request: size_bytes rounded up to 2 MiB.
 * They are charged before the driver is asked. */
size_t rs_footprint_most(size_t size_bytes);

/* Called when the driver has granted, at `address`, a request for which rs_footprint_most was
 * charged: corrects the charge, stores the corrected one in *charged_bytes, and peaks rise.
 * Returns false, with the account unchanged and *charged_bytes undefined, when out of host
 * memory. */
bool rs_footprint_settle(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                         enum rs_memory memory, size_t *charged_bytes);

/* Called before an allocation goes back to the driver.  Returns the bytes charged for it, to be
 * passed to rs_account_give once the driver has the memory.  Needs no host memory. */
size_t rs_footprint_leave(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                          enum rs_memory memory);

/* How an allocation without a known address is counted. */
struct rs_footprint_share {
    size_t charged_bytes; /* by how much the account's charge grew for this allocation */
    bool is_packed;       /* the allocation shares driver blocks with other small ones */
};

/* Charges a device's account (not a context's, and not NULL) for memory whose address the driver
 * does not tell (arrays), before the driver is asked. It assumes that small allocations share
 * blocks as closely as the holes of earlier frees allow. Returns false when the limit leaves no
 * room, as rs_account_take does. */
bool rs_footprint_pack(struct rs_account *account, size_t size_bytes,
                       struct rs_footprint_share *share);

/* Called when the driver has the memory back, or (`refused`) did not grant what rs_footprint_pack
 * charged.  Returns the number of bytes that are no longer charged.  That may differ from
 * share->charged_bytes, since other small allocations came and went in between. */
size_t rs_footprint_unpack(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share, bool refused);

/* ---- read without the mutex; a NULL account is allowed where it says so ---- */

/* rs_account_begin_return and rs_account_end_return enclose the time in which bytes go back to the
 * driver: no resource counts them as idle any more, but they are still charged.  NULL is
 * allowed. */
void rs_account_begin_return(struct rs_account *account, size_t bytes);
void rs_account_end_return(struct rs_account *account, size_t bytes);

/* Returns a number that changes whenever another thread, or another process of the job, releases
 * charged bytes of the device.  A refusal counts only if the number is the same as before the
 * request.  Returns 0 for a NULL account. */
uint64_t rs_account_releases(const struct rs_account *account);

/* Called when the program has freed `bytes`, so that other processes of the job may ask for them.
 * NULL is allowed. */
void rs_account_freed(const struct rs_account *account, size_t bytes);

/* Returns the bytes that the device's limit leaves room for now; SIZE_MAX without a limit, and for
 * NULL. */
size_t rs_account_room(const struct rs_account *account);

/* True when the device's limit leaves room for `bytes` now; always without a limit, and for NULL.
 */
bool rs_account_has_room(const struct rs_account *account, size_t bytes);

/* Returns the most bytes of the device with which this process may be charged, whatever others
 * have: the smaller of its own limit and its job's.  SIZE_MAX without either, and for NULL. */
size_t rs_account_most(const struct rs_account *account);

/* Returns the most bytes of the device with which this process may be charged now: the smaller of
 * its own limit and what the job's other processes leave of the job's (at least 1 byte).  SIZE_MAX
 * without a limit, and for NULL. */
size_t rs_account_limit(const struct rs_account *account);

/* Returns recent_peak_bytes, the largest charged_bytes that the driver has granted since the last
 * call, and restarts that peak at what is granted now. Takes the mutex. peak_charged_bytes stays as
 * it is. */
size_t rs_account_restart_peak(struct rs_account *device);

/* Returns the held bytes of the kinds of memory whose bits (1 << memory) are set in `memories`; 0
 * for NULL. */
size_t rs_account_held_bytes_of(const struct rs_account *account, unsigned memories);

static inline size_t rs_account_held_bytes(const struct rs_account *account)
{
    return rs_account_held_bytes_of(account, ~0u);
}
