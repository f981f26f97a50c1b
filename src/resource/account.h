/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds of one device, beneath every stack: each byte that a leaf takes from the
 * driver is charged here first, so that it is counted once whatever the stack looks like. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_account {
    struct rs_account *device; /* of a context's account: the device's, which counts it too */
    _Atomic size_t held_bytes; /* device memory now taken from the driver by our leaves */
    _Atomic size_t peak_bytes;
    _Atomic size_t held_elsewhere_bytes; /* managed and host memory: not the device's */
    _Atomic uint64_t driver_allocations, driver_frees;
};

/* Counts bytes taken or given back; `on_device` tells device memory from managed and host memory.
 * A NULL account is allowed.  Thread safe. */
void rs_account_take(struct rs_account *account, size_t bytes, bool on_device);
void rs_account_give(struct rs_account *account, size_t bytes, bool on_device);

/* A context is gone with all it held: takes that off its device's account. */
void rs_account_lose(struct rs_account *account);
