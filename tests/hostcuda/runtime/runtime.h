/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the test runtime: the driver, found as NVIDIA's runtime finds it, and what every
 * function does first and last. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include "runtime/driver_functions.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#define RT_API __attribute__((visibility("default")))

#define RT_PLAIN_FIELD(name, version)       PFN_##name##_v##version name;
#define RT_STREAM_FIELD(name, version, own) PFN_##name##_v##version name[2];

/* Functions of [2]: with the legacy stream, with the calling thread's own. */
struct rt_driver {
    PFN_cuGetProcAddress_v12000 get_address;
    PFN_cuGetProcAddress_v11030 get_address_old;
    RT_PLAIN_FUNCTIONS(RT_PLAIN_FIELD)
    RT_STREAM_FUNCTIONS(RT_STREAM_FIELD)
};

extern struct rt_driver rt_driver;

/* Tells the race detector of the device in host memory what the program allocates and frees, which
 * is more than the driver sees when a library serves it from a pool. No-ops on a real driver. */
void rt_note_allocate(const void *pointer, size_t bytes);
void rt_note_free(const void *pointer);
void rt_note_allocate_on(const void *pointer, size_t bytes, CUstream stream);
void rt_note_free_on(const void *pointer, CUstream stream);
/* After the driver's free: the note is taken back if it failed. */
CUresult rt_note_freed(const void *pointer, CUresult result);

/* Around the driver's part of an allocation, for the same device: it must not wait. */
void rt_request_begin(void);
void rt_request_end(void);

#define RT_REQUEST(call)                                                                           \
    ({                                                                                             \
        rt_request_begin();                                                                        \
        CUresult rt_result_ = (call);                                                              \
        rt_request_end();                                                                          \
        rt_result_;                                                                                \
    })

/* Finds and initialises the driver, once. */
cudaError_t rt_driver_open(void);

/* A driver function by base name, version and flags; NULL if there is none. */
void *rt_driver_find(const char *name, int version, cuuint64_t flags);

/* Opens the driver and makes the thread's device's primary context current, unless the program has
 * made another one current. */
cudaError_t rt_begin(void);

/* Keeps a failure as the thread's last error, and returns it. */
cudaError_t rt_end(cudaError_t error);

/* For a driver call in a runtime function: begin, call, keep. */
#define RT_CALL(call)                                                                              \
    ({                                                                                             \
        cudaError_t rt_error_ = rt_begin();                                                        \
        rt_end(rt_error_ ? rt_error_ : (cudaError_t)(call));                                       \
    })

/* A runtime function in both its variants; `own` in the body is 0 or 1, the index into the driver's
 * functions. */
#define RT_PAIR(name, suffix, params, ...)                                                         \
    RT_API cudaError_t name params                                                                 \
    {                                                                                              \
        enum { own = 0 };                                                                          \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    RT_API cudaError_t name##suffix params;                                                        \
    RT_API cudaError_t name##suffix params                                                         \
    {                                                                                              \
        enum { own = 1 };                                                                          \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    _Static_assert(1, "the semicolon")
