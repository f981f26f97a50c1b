/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the real CUDA runtime, which finds its driver functions and, on the host-memory driver,
 * then refuses to go on: it checks a private table that only NVIDIA's driver has. */
#include <cuda_runtime_api.h>
#include <stdio.h>

int main(void)
{
    void *p = NULL;
    int count = -1, result = (int)cudaGetDeviceCount(&count);

    printf("cudaGetDeviceCount = %d, %d devices\n", result, count);
    result = (int)cudaMalloc(&p, 1000);
    printf("cudaMalloc = %d, %s\n", result, p ? "a pointer" : "null");
    result = (int)cudaFree(p);
    printf("cudaFree = %d, last error %d\n", result, (int)cudaGetLastError());
    return 0;
}
