/* SPDX-License-Identifier: Apache-2.0 */
#include "spin.h"

#include "kernels.h"
#include "sample.h"

#include <cuda.h>

static __typeof__(&cuLaunchKernel) launch_kernel;

struct bench_spin bench_spin_open(void)
{
    __typeof__(&cuModuleLoadData) load = bench_driver_function("cuModuleLoadData");
    __typeof__(&cuModuleGetFunction) get = bench_driver_function("cuModuleGetFunction");
    struct bench_spin spin;
    CUmodule module;
    CUfunction function;

    launch_kernel = bench_driver_function("cuLaunchKernel");
    MUST(load(&module, kernels_ptx));
    MUST(get(&function, module, "spin_us"));
    spin = (struct bench_spin){module, function};
    bench_spin_launch(&spin, NULL, 1);
    MUST(cudaDeviceSynchronize());
    return spin;
}

void bench_spin_launch(const struct bench_spin *spin, cudaStream_t stream, uint64_t us)
{
    MUST(launch_kernel(spin->function, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, (void *[]){&us},
                       NULL));
}

void bench_spin_close(struct bench_spin *spin)
{
    __typeof__(&cuModuleUnload) unload = bench_driver_function("cuModuleUnload");

    MUST(cudaDeviceSynchronize());
    MUST(unload(spin->module));
}
