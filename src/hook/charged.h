/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of hooks that forward, and count what the driver takes and gives back. */
#pragma once

#include "base/request.h"
#include "charge/charge.h"

/* Charges size_bytes, makes the call, again after each out-of-memory that something was given back
 * for, and enters what it made under `key`. */
#define RS_CHARGED(path, device, size_bytes, call, key)                                            \
    do {                                                                                           \
        struct rs_charge charge;                                                                   \
        CUresult answer;                                                                           \
        if (!rs_charge_begin(&charge, path, device, size_bytes))                                   \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        do                                                                                         \
            answer = call;                                                                         \
        while (rs_charge_again(&charge, answer));                                                  \
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

/* The same as RS_CHARGED for stream-ordered memory, with the hook's own parameters.  A pool that
 * grew past the limit all the same (by a unit of the driver's that was not known, or as what it
 * kept was in pieces) gives the block back in the stream's order, and is asked again. */
#define RS_CHARGED_ASYNC(pool, per_thread, call)                                                   \
    do {                                                                                           \
        struct rs_pool_charge charge = {.turn = 0};                                                \
        CUresult answer;                                                                           \
        bool anew;                                                                                 \
        if (!address)                                                                              \
            return call;    /* the driver's own error */                                           \
        rs_request_begin(); /* one, and its patience, however often it is begun anew */            \
        do {                                                                                       \
            answer = CUDA_ERROR_OUT_OF_MEMORY;                                                     \
            if (!rs_charge_async_begin(&charge, pool, stream, per_thread, size_bytes))             \
                break;                                                                             \
            do                                                                                     \
                answer = call;                                                                     \
            while (rs_charge_async_again(&charge, answer));                                        \
            if (!rs_charge_async_end(&charge, answer, answer == CUDA_SUCCESS ? *address : 0))      \
                break;                                                                             \
            anew = rs_charge_async_undo(&charge, *address, stream, per_thread);                    \
            *address = 0;                                                                          \
            answer = CUDA_ERROR_OUT_OF_MEMORY;                                                     \
        } while (anew);                                                                            \
        rs_request_end();                                                                          \
        return answer;                                                                             \
    } while (0)
