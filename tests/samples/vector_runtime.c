/* SPDX-License-Identifier: Apache-2.0 */
/* A program on the CUDA runtime API: temporary vectors in every round, two streams, kernels through
 * the runtime's driver entry points.  Built with the shared and with the static runtime.
 *
 *   vector_runtime [ROUNDS] [ELEMENTS] */
#include "kernels.h"
#include "sample.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

static __typeof__(&cuModuleLoadData) module_load_data;
static __typeof__(&cuModuleGetFunction) module_get_function;
static __typeof__(&cuModuleUnload) module_unload;
static __typeof__(&cuLaunchKernel) launch_kernel;

static void find_driver_functions(void)
{
    static const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cuModuleLoadData", &module_load_data},
        {"cuModuleGetFunction", &module_get_function},
        {"cuModuleUnload", &module_unload},
        {"cuLaunchKernel", &launch_kernel},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        enum cudaDriverEntryPointQueryResult found;
        MUST(cudaGetDriverEntryPointByVersion(wanted[i].name, wanted[i].function, 11040,
                                              cudaEnableDefault, &found));
        CHECK(found == cudaDriverEntryPointSuccess);
    }
}

static void launch(CUfunction kernel, cudaStream_t stream, void **parameters)
{
    MUST(launch_kernel(kernel, KERNEL_BLOCKS, 1, 1, KERNEL_THREADS, 1, 1, 0, (CUstream)stream,
                       parameters, NULL));
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 40;
    uint64_t elements_max = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    struct sequence sequence = {1};
    uint64_t checksum = CHECKSUM_BEGIN, allocated_bytes = 0, wrong = 0;
    uint32_t *host = malloc(elements_max * sizeof(*host));
    cudaStream_t streams[2];
    CUmodule module;
    CUfunction add_one, copy, check_pattern, fill32;

    CHECK(host);
    find_driver_functions();
    MUST(cudaFree(NULL)); /* makes the context */
    MUST(module_load_data(&module, kernels_ptx));
    MUST(module_get_function(&add_one, module, "add_one"));
    MUST(module_get_function(&copy, module, "copy"));
    MUST(module_get_function(&check_pattern, module, "check_pattern"));
    MUST(module_get_function(&fill32, module, "fill32"));
    MUST(cudaStreamCreate(&streams[0]));
    MUST(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));

    for (unsigned round = 0; round < rounds; round++) {
        uint64_t n = 1 + sequence_below(&sequence, elements_max), value = round * 7919u;
        size_t bytes = n * sizeof(*host);
        cudaStream_t stream = streams[round % 2];
        uint32_t *input, *output, *constant;
        uint64_t *counter, count;

        MUST(cudaMalloc((void **)&input, bytes));
        MUST(cudaMalloc((void **)&output, bytes));
        MUST(cudaMalloc((void **)&constant, bytes));
        MUST(cudaMalloc((void **)&counter, sizeof(*counter)));
        CHECK((uintptr_t)input % 512 == 0 && (uintptr_t)counter % 512 == 0);
        allocated_bytes += 3 * bytes + sizeof(*counter);

        for (uint64_t i = 0; i < n; i++)
            host[i] = (uint32_t)sequence_next(&sequence);
        MUST(cudaMemcpyAsync(input, host, bytes, cudaMemcpyHostToDevice, stream));
        MUST(cudaMemsetAsync(counter, 0, sizeof(*counter), stream));
        launch(copy, stream, (void *[]){&output, &input, &bytes});
        launch(add_one, stream, (void *[]){&output, &n});
        launch(fill32, stream, (void *[]){&constant, &n, &value});
        launch(check_pattern, stream, (void *[]){&constant, &n, &value, &counter});
        MUST(cudaFree(constant)); /* still in use: this free waits */
        MUST(cudaFree(input));
        MUST(cudaMemcpyAsync(host, output, bytes, cudaMemcpyDeviceToHost, stream));
        MUST(cudaStreamSynchronize(stream));
        checksum = checksum_words(checksum, host, n);
        MUST(cudaMemcpy(&count, counter, sizeof(count), cudaMemcpyDeviceToHost));
        wrong += count;
        MUST(cudaFree(output));
        MUST(cudaFree(counter));
    }

    MUST(cudaStreamDestroy(streams[0]));
    MUST(cudaStreamDestroy(streams[1]));
    MUST(module_unload(module));
    MUST(cudaGetLastError());
    printf("vector_runtime: %u rounds, %llu bytes allocated, %llu wrong, checksum %016llx\n",
           rounds, (unsigned long long)allocated_bytes, (unsigned long long)wrong,
           (unsigned long long)checksum);
    free(host);
    return wrong != 0;
}
