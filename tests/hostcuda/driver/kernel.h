/* SPDX-License-Identifier: Apache-2.0 */
/* The device's kernels: a fixed set, found by name in any module. The caller holds the lock. */
#pragma once

#include "driver/op.h"

#define HC_KERNEL_PARAMS 4

struct hc_kernel {
    const char *name;
    unsigned param_count;
    unsigned char param_bytes[HC_KERNEL_PARAMS];
    CUresult (*run)(void *args); /* args: one uint64_t for each parameter */
    void (*declare)(struct hc_work *work, const uint64_t *args);
};

const struct hc_kernel *hc_kernel_named(const char *name);
const struct hc_kernel *hc_kernel_at(unsigned index); /* NULL past the last */
unsigned hc_kernel_count(void);

/* The kernel of a CUfunction or CUkernel, or NULL. */
const struct hc_kernel *hc_kernel_of(const void *handle);

/* The work of a launch with these arguments, given as cuLaunchKernel takes them. */
CUresult hc_kernel_work(const void *handle, void **params, void **extra, struct hc_work *work);
