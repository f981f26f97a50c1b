/* SPDX-License-Identifier: Apache-2.0 */
/* What the test runtime offers beyond CUDA's own: the device's kernels, launched by name. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define hostcudaLaunch hostcudaLaunch_ptsz
#endif

/* Launches a kernel of the device with pointers to its arguments, as cudaLaunchKernel takes them.
 */
cudaError_t hostcudaLaunch(const char *kernel, cudaStream_t stream, void **args);

#ifdef __cplusplus
}
#endif

/* words[0 .. count) = value */
static inline cudaError_t hostcudaFill32(void *words, size_t count, unsigned value,
                                         cudaStream_t stream)
{
    void *args[] = {&words, &count, &value};
    return hostcudaLaunch("fill32", stream, args);
}

/* words[0 .. count) += 1 */
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

/* Adds to *counter, which the device can reach, how many of the words are not value. */
static inline cudaError_t hostcudaCheckPattern(const void *words, size_t count, unsigned value,
                                               unsigned *counter, cudaStream_t stream)
{
    void *args[] = {&words, &count, &value, &counter};
    return hostcudaLaunch("check_pattern", stream, args);
}

/* Takes that long and touches nothing. */
static inline cudaError_t hostcudaSpinUs(size_t microseconds, cudaStream_t stream)
{
    void *args[] = {&microseconds};
    return hostcudaLaunch("spin_us", stream, args);
}

/* Ends when the host makes *flag, pinned or managed memory, other than 0. */
static inline cudaError_t hostcudaSpinUntil(const unsigned *flag, cudaStream_t stream)
{
    void *args[] = {&flag};
    return hostcudaLaunch("spin_until", stream, args);
}

/* Fills words[0 .. count) with value again and again for that long. */
static inline cudaError_t hostcudaHold32(void *words, size_t count, unsigned value,
                                         size_t microseconds, cudaStream_t stream)
{
    void *args[] = {&words, &count, &value, &microseconds};
    return hostcudaLaunch("hold32", stream, args);
}

/* An access to an illegal address: the context fails from then on. */
static inline cudaError_t hostcudaFault(cudaStream_t stream)
{
    return hostcudaLaunch("fault", stream, NULL);
}
