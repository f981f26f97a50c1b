/* SPDX-License-Identifier: Apache-2.0 */
/* Prologue and epilogue of every exported function: counts the call, refuses it after a fork or
 * before cuInit, injects faults. */
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include "driver/entry_table.h"

#include <cuda.h>

struct hc_call {
    enum hc_fn fn;
};

/* Returns CUDA_SUCCESS, or the error that the function must return without doing anything. */
CUresult hc_call_begin(struct hc_call *call);
void hc_call_end(struct hc_call *call);

/* As hc_call_begin, for the few functions that work before cuInit. */
CUresult hc_call_begin_early(struct hc_call *call);

/* Sets whether a host function runs on this thread; then only queries of streams and events are
 * permitted. */
void hc_call_forbid(bool forbidden);

/* Returns the name of the exported function that the calling thread called last. */
const char *hc_call_name(void);

/* True in a forked child whose parent had a running driver. */
bool hc_call_is_forked(void);

#define HC_ENTER(name)                                                                             \
    __attribute__((cleanup(hc_call_end))) struct hc_call hc_call_ = {HC_FN_##name};                \
    CUresult hc_refused_ = hc_call_begin(&hc_call_);                                               \
    if (hc_refused_)                                                                               \
    return hc_refused_

#define HC_ENTER_EARLY(name)                                                                       \
    __attribute__((cleanup(hc_call_end))) struct hc_call hc_call_ = {HC_FN_##name};                \
    CUresult hc_refused_ = hc_call_begin_early(&hc_call_);                                         \
    if (hc_refused_)                                                                               \
    return hc_refused_

/* Defines a function in both its variants: NULL is the legacy stream in the first, the calling
 * thread's own in the second. HC_STREAM(s) in the body returns the stream meant. */
#define HC_PAIR(name, suffix, params, ...)                                                         \
    HC_API CUresult name params                                                                    \
    {                                                                                              \
        HC_ENTER(name);                                                                            \
        const CUstream hc_default_ = CU_STREAM_LEGACY;                                             \
        (void)hc_default_;                                                                         \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    HC_API CUresult name##suffix params                                                            \
    {                                                                                              \
        HC_ENTER(name##suffix);                                                                    \
        const CUstream hc_default_ = CU_STREAM_PER_THREAD;                                         \
        (void)hc_default_;                                                                         \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    _Static_assert(1, "the semicolon")

#define HC_STREAM(stream) ((stream) ? (stream) : hc_default_)
