/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the test runtime: finds the driver as NVIDIA's runtime does, and wraps every runtime
 * function. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include "runtime/driver_functions.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#define RT_API __attribute__((visibility("default")))

#define RT_PLAIN_FIELD(name, version)       PFN_##name##_v##version name;
#define RT_STREAM_FIELD(name, version, own) PFN_##name##_v##version name[2];

/* Arrays of two hold the variant with the legacy stream, then the one with the calling thread's own
 * stream. */
struct rt_driver {
    PFN_cuGetProcAddress_v12000 get_address;
    PFN_cuGetProcAddress_v11030 get_address_old;
    RT_PLAIN_FUNCTIONS(RT_PLAIN_FIELD)
    RT_STREAM_FUNCTIONS(RT_STREAM_FIELD)
};

extern struct rt_driver rt_driver;

/* Tell the race detector of the device in host memory what the program allocates and frees, as the
 * driver does not see this when a library serves it from a pool. They do nothing on a real driver.
 */
void rt_note_allocate(const void *pointer, size_t bytes);
void rt_note_free(const void *pointer);
void rt_note_allocate_on(const void *pointer, size_t bytes, CUstream stream);
void rt_note_free_on(const void *pointer, CUstream stream);
/* Must follow the driver's free: takes the note back if the free failed. Returns result. */
CUresult rt_note_freed(const void *pointer, CUresult result);

/* Begin and end of the driver's part of an allocation, in which it must not wait (HOSTCUDA_WAITS).
 */
void rt_request_begin(void);
void rt_request_end(void);

#define RT_REQUEST(call)                                                                           \
    ({                                                                                             \
        rt_request_begin();                                                                        \
        CUresult rt_result_ = (call);                                                              \
        rt_request_end();                                                                          \
        rt_result_;                                                                                \
    })

/* Finds and initialises the driver at the first call. */
cudaError_t rt_driver_open(void);

/* Returns a driver function by base name, version and flags; NULL if there is none. */
void *rt_driver_find(const char *name, int version, cuuint64_t flags);

/* Opens the driver and, unless a context is current, makes the primary context of the thread's
 * device current. */
cudaError_t rt_begin(void);

/* Keeps a failure as the thread's last error, and returns it. */
cudaError_t rt_end(cudaError_t error);

/* A runtime function that makes one driver call: rt_begin, the call, rt_end. */
#define RT_CALL(call)                                                                              \
    ({                                                                                             \
        cudaError_t rt_error_ = rt_begin();                                                        \
        rt_end(rt_error_ ? rt_error_ : (cudaError_t)(call));                                       \
    })

/* Defines a runtime function in both its variants; `own` in the body is 0 or 1, the index into the
 * driver's functions. */
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
