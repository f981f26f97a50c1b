/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of hooks that forward, and count what the driver takes and gives back. */
#pragma once

#include "shim/charge.h"

/* Charges size_bytes, makes the call, once more after an out-of-memory that something was given
 * back for, and enters what it made under `key`. */
#define RS_CHARGED(path, device, size_bytes, call, key)                                            \
    do {                                                                                           \
        struct rs_charge charge;                                                                   \
        CUresult answer;                                                                           \
        if (!rs_charge_begin(&charge, path, device, size_bytes))                                   \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        answer = call;                                                                             \
        if (rs_charge_again(&charge, answer))                                                      \
            answer = call;                                                                         \
        return rs_charge_end(&charge, answer, answer == CUDA_SUCCESS ? (key) : 0);                 \
    } while (0)

/* Makes a call that frees what was entered under `key`. */
#define RS_CHARGED_FREE(keys, key, call)                                                           \
    do {                                                                                           \
        struct rs_charge charge;                                                                   \
        CUresult answer;                                                                           \
        rs_charge_free_begin(&charge, keys, key);                                                  \
        answer = call;                                                                             \
        rs_charge_free_end(&charge, answer);                                                       \
        return answer;                                                                             \
    } while (0)
