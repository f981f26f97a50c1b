/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's own memory resources, for the same workloads in the same program: what its benchmark measures
 * (RANDOM_ALLOCATIONS_BENCH), with pools of the size that is asked for; 0 is the size that it has there.
 * Built against RMM's package,
 * of which nothing is in this tree: build-rmm. */
#include "bench.h"

#include <rmm/aligned.hpp>
#include <rmm/cuda_device.hpp>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pinned_host_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>

#include <cuda/memory_resource>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>

namespace
{

using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

/* Bins of 256 KiB to 4 MiB, as in RMM's benchmark. */
constexpr int smallest_bin = 18, largest_bin = 22;
constexpr size_t arena_leaves = size_t{64} << 20;

/* The one that is open.  Allocation goes through a reference, as in RMM's benchmark and containers. */
std::optional<any_resource> resource;
std::optional<rmm::device_async_resource_ref> reference;

int say(const char *what, const std::exception &error)
{
    std::fprintf(stderr, "rmm: %s: %s\n", what, error.what());
    return 1;
}

int allocate(void **block, size_t bytes, cudaStream_t stream) noexcept
{
    try {
        *block = reference->allocate(rmm::cuda_stream_view{stream}, bytes,
                                     rmm::CUDA_ALLOCATION_ALIGNMENT);
        return 0;
    } catch (const std::bad_alloc &) {
        return 2;
    } catch (const std::exception &error) {
        return say("allocate", error);
    }
}

int deallocate(void *block, size_t bytes, cudaStream_t stream) noexcept
{
    try {
        reference->deallocate(rmm::cuda_stream_view{stream}, block, bytes,
                              rmm::CUDA_ALLOCATION_ALIGNMENT);
        return 0;
    } catch (const std::exception &error) {
        return say("deallocate", error);
    }
}

void close_resource() noexcept
{
    reference.reset();
    resource.reset();
}

template <typename Make> int open_resource(const Make &make) noexcept
{
    try {
        resource.emplace(make());
        reference.emplace(*resource);
        return 0;
    } catch (const std::exception &error) {
        return say("open", error);
    }
}

any_resource make_pool(size_t bytes)
{
    if (!bytes)
        bytes = rmm::percent_of_free_device_memory(50);
    return rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, bytes};
}

int open_pool(size_t bytes) noexcept
{
    return open_resource([bytes] { return make_pool(bytes); });
}

int open_arena(size_t bytes) noexcept
{
    return open_resource([bytes]() -> any_resource {
        return rmm::mr::arena_memory_resource{
            rmm::mr::cuda_memory_resource{},
            bytes ? bytes : rmm::available_device_memory().first - arena_leaves};
    });
}

int open_binning(size_t bytes) noexcept
{
    return open_resource([bytes]() -> any_resource {
        return rmm::mr::binning_memory_resource{make_pool(bytes), smallest_bin, largest_bin};
    });
}

int open_async(size_t) noexcept
{
    return open_resource([]() -> any_resource { return rmm::mr::cuda_async_memory_resource{}; });
}

int open_cuda(size_t) noexcept
{
    return open_resource([]() -> any_resource { return rmm::mr::cuda_memory_resource{}; });
}

int open_pinned_pool(size_t bytes) noexcept
{
    return open_resource([bytes]() -> any_resource {
        return rmm::mr::pool_memory_resource{rmm::mr::pinned_host_memory_resource{}, bytes};
    });
}

const bench_memory memories[] = {
    {"rmm_cuda", allocate, deallocate, open_cuda, close_resource},
    {"rmm_pool", allocate, deallocate, open_pool, close_resource},
    {"rmm_arena", allocate, deallocate, open_arena, close_resource},
    {"rmm_binning", allocate, deallocate, open_binning, close_resource},
    {"rmm_async", allocate, deallocate, open_async, close_resource},
    {"rmm_pinned_pool", allocate, deallocate, open_pinned_pool, close_resource},
};

} // namespace

extern "C" const bench_memory *const bench_memories[] = {
    &memories[0], &memories[1], &memories[2], &memories[3], &memories[4], &memories[5], nullptr};
