/* SPDX-License-Identifier: Apache-2.0 */
/* One row for each exported function, for cuGetProcAddress and the call counters. */
#pragma once

#include "hostcuda_fn.h"

#include <stdbool.h>

#define HC_API __attribute__((visibility("default")))

struct hc_entry {
    const char *symbol;
    const char *base; /* name by which cuGetProcAddress finds it */
    int since;        /* first driver version with this ABI; 0: by dlsym only */
    bool per_thread;  /* NULL means the calling thread's own stream */
    void (*address)(void);
    enum hc_fn fn;
};

extern const struct hc_entry hc_entries[];
extern const unsigned hc_entry_count;
extern const char *const hc_fn_names[HC_FN_COUNT];

/* Counts the call and answers CUDA_ERROR_NOT_SUPPORTED. */
int hc_unsupported(enum hc_fn fn);
