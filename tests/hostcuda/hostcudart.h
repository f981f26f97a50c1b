/* SPDX-License-Identifier: Apache-2.0 */
/* Extensions of the test runtime: launch the device's kernels by name. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define hostcudaLaunch hostcudaLaunch_ptsz
#endif

/* Launches a kernel by name; args holds pointers to its arguments, as for cudaLaunchKernel. */
cudaError_t hostcudaLaunch(const char *kernel, cudaStream_t stream, void **args);

#ifdef __cplusplus
}
#endif

/* Sets words[0 .. count) to value. */
static inline cudaError_t hostcudaFill32(void *words, size_t count, unsigned value,
                                         cudaStream_t stream)
{
    void *args[] = {&words, &count, &value};
    return hostcudaLaunch("fill32", stream, args);
}

/* Adds 1 to words[0 .. count). */
static inline cudaError_t hostcudaAddOne(void *words, size_t count, cudaStream_t stream)
{
    void *args[] = {&words, &count};
    return hostcudaLaunch("add_one", stream, args);
}

static inline cudaError_t hostcudaCopy(void *to, const void *from, size_t bytes,
                                       cudaStream_t stream)
{
    void *args[] = {&to, &from, &bytes};
    return hostcudaLaunch("copy", stream, args);
}

/* Adds the number of words that differ from value to *counter, which the device must be able to
 * reach. */
static inline cudaError_t hostcudaCheckPattern(const void *words, size_t count, unsigned value,
                                               unsigned *counter, cudaStream_t stream)
{
    void *args[] = {&words, &count, &value, &counter};
    return hostcudaLaunch("check_pattern", stream, args);
}

/* Runs for the given number of microseconds and accesses no memory. */
static inline cudaError_t hostcudaSpinUs(size_t microseconds, cudaStream_t stream)
{
    void *args[] = {&microseconds};
    return hostcudaLaunch("spin_us", stream, args);
}

/* Runs until the host sets *flag, in pinned or managed memory, to a value other than 0. */
static inline cudaError_t hostcudaSpinUntil(const unsigned *flag, cudaStream_t stream)
{
    void *args[] = {&flag};
    return hostcudaLaunch("spin_until", stream, args);
}

/* Fills words[0 .. count) with value repeatedly for the given number of microseconds. */
static inline cudaError_t hostcudaHold32(void *words, size_t count, unsigned value,
                                         size_t microseconds, cudaStream_t stream)
{
    void *args[] = {&words, &count, &value, &microseconds};
    return hostcudaLaunch("hold32", stream, args);
}

/* Accesses an illegal address: the context fails from then on. */
static inline cudaError_t hostcudaFault(cudaStream_t stream)
{
    return hostcudaLaunch("fault", stream, NULL);
}
