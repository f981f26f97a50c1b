// SPDX-License-Identifier: Apache-2.0
// replay_torch TRACE: plays a trace through PyTorch's caching allocator, from its package (build-peers), as
// PYTORCH_CUDA_ALLOC_CONF sets it.
#include "trace.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>

namespace {

void *allocate(std::size_t bytes, cudaStream_t stream)
{
    static const bool initialised = [] {
        c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
        return true;
    }();
    (void)initialised;
    try {
        return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream);
    } catch (c10::OutOfMemoryError const &) {
        return nullptr;
    }
}

void deallocate(void *block, std::size_t, cudaStream_t)
{
    c10::cuda::CUDACachingAllocator::raw_delete(block);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        std::fprintf(stderr, "usage: replay_torch TRACE\n");
        return TRACE_BAD;
    }
    const trace_player player = {allocate, deallocate};
    int status = trace_play(argv[1], &player);
    std::fflush(stdout);
    std::_Exit(status); // what is live at the end of a trace is not freed
}
