// SPDX-License-Identifier: Apache-2.0
// replay_rmm pool|binning|arena=BYTES TRACE: plays a trace through RAPIDS RMM's own resources, from its packages
// (build-peers).  librmm carries a CUDA runtime of NVIDIA's in itself, which the device in host memory cannot serve;
// so what the library would ask that runtime is answered here, and its upstream is a resource of ours.
#include "trace.h"

#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

// The library's definitions of these stand behind ours.
RMM_NAMESPACE_BEGIN
cuda_device_id get_current_cuda_device()
{
    return cuda_device_id{0};
}

int get_num_cuda_devices()
{
    return 1;
}

std::pair<std::size_t, std::size_t> available_device_memory()
{
    std::size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return {free_bytes, total_bytes};
}

// What an arena does before it is out of memory.  Nothing runs here that would have to be waited for.
void mr::detail::arena_memory_resource_impl::defragment()
{
    for (auto &[thread, arena] : thread_arenas_)
        arena->defragment();
    for (auto &[stream, arena] : stream_arenas_)
        arena.defragment();
}
RMM_NAMESPACE_END

namespace {

// What rmm::mr::cuda_memory_resource is, by this program's runtime.
struct device_memory {
    void *allocate_sync(std::size_t bytes, std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT)
    {
        void *block = nullptr;
        if (cudaMalloc(&block, bytes) != cudaSuccess)
            throw rmm::out_of_memory{"cudaMalloc"};
        return block;
    }

    void deallocate_sync(void *block, std::size_t, std::size_t = rmm::CUDA_ALLOCATION_ALIGNMENT) noexcept
    {
        cudaFree(block);
    }

    void *allocate(cuda::stream_ref, std::size_t bytes, std::size_t alignment = rmm::CUDA_ALLOCATION_ALIGNMENT)
    {
        return allocate_sync(bytes, alignment);
    }

    void deallocate(cuda::stream_ref, void *block, std::size_t bytes,
                    std::size_t alignment = rmm::CUDA_ALLOCATION_ALIGNMENT) noexcept
    {
        deallocate_sync(block, bytes, alignment);
    }

    bool operator==(device_memory const &) const noexcept
    {
        return true;
    }

    friend constexpr void get_property(device_memory const &, cuda::mr::device_accessible) noexcept
    {
    }
};

enum { SMALLEST_BIN_BITS = 18, LARGEST_BIN_BITS = 22 }; // as in RMM's own benchmarks

using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

std::unique_ptr<any_resource> resource;
const char *resource_name;

std::unique_ptr<any_resource> make(const char *name)
{
    if (std::strcmp(name, "pool") == 0)
        return std::make_unique<any_resource>(rmm::mr::pool_memory_resource{device_memory{}, 0});
    if (std::strcmp(name, "binning") == 0)
        return std::make_unique<any_resource>(
            rmm::mr::binning_memory_resource{rmm::mr::pool_memory_resource{device_memory{}, 0}, SMALLEST_BIN_BITS,
                                             LARGEST_BIN_BITS});
    return std::make_unique<any_resource>(
        rmm::mr::arena_memory_resource{device_memory{}, std::strtoull(name + std::strlen("arena="), nullptr, 10)});
}

void *allocate(std::size_t bytes, cudaStream_t stream)
{
    try {
        if (!resource) // at the first allocation, so that what it takes in advance counts
            resource = make(resource_name);
        return resource->allocate(cuda::stream_ref{stream}, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
    } catch (rmm::bad_alloc const &) {
        return nullptr;
    }
}

void deallocate(void *block, std::size_t bytes, cudaStream_t stream)
{
    resource->deallocate(cuda::stream_ref{stream}, block, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3 || (std::strcmp(argv[1], "pool") != 0 && std::strcmp(argv[1], "binning") != 0 &&
                      std::strncmp(argv[1], "arena=", std::strlen("arena=")) != 0)) {
        std::fprintf(stderr, "usage: replay_rmm pool|binning|arena=BYTES TRACE\n");
        return TRACE_BAD;
    }
    resource_name = argv[1];
    const trace_player player = {allocate, deallocate};
    int status = trace_play(argv[2], &player);
    std::fflush(stdout);
    std::_Exit(status); // what is live at the end of a trace is not freed
}
