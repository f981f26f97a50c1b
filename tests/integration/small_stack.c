/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose first requests, and one that is refused, come from a stack of 16 KiB: a thread's,
 * on which its thread-local variables lie too, or a coroutine's.  No memory is below it. */
#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* The driver of tests/hostcuda alone has 4 KiB of thread-local variables. */
enum { STACK_BYTES = 16 << 10, DRIVERS_BYTES = 4 << 10, GUARD_BYTES = 64 << 10, BLOCKS = 20 };

static CUcontext context;
static int wrong;

static void use(void)
{
    CUdeviceptr blocks[BLOCKS + 1], refused;
    size_t free_bytes, total_bytes;

    for (size_t i = 0; i < BLOCKS; i++)
        wrong += cuMemAlloc(&blocks[i], 1000 * (i + 1)) != CUDA_SUCCESS;
    wrong += cuMemAlloc(&blocks[BLOCKS], 64 << 20) != CUDA_SUCCESS;
    for (int i = 0; i < 2; i++)
        wrong += cuMemAlloc(&refused, (size_t)1 << 40) != CUDA_ERROR_OUT_OF_MEMORY;
    wrong += cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_SUCCESS;
    for (int i = 0; i < BLOCKS + 1; i++)
        wrong += cuMemFree(blocks[i]) != CUDA_SUCCESS;
}

static void *use_in_thread(void *data)
{
    wrong += cuCtxSetCurrent(context) != CUDA_SUCCESS;
    use();
    return data;
}

static char *make_stack(size_t bytes)
{
    char *memory = mmap(NULL, GUARD_BYTES + bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED || mprotect(memory + GUARD_BYTES, bytes, PROT_READ | PROT_WRITE) != 0)
        exit(2);
    return memory + GUARD_BYTES;
}

/* False where a thread's stack must be larger. */
static bool in_thread(void)
{
    const size_t bytes = STACK_BYTES + DRIVERS_BYTES;
    pthread_attr_t attributes;
    pthread_t thread;
    bool fits;

    pthread_attr_init(&attributes);
    fits = pthread_attr_setstack(&attributes, make_stack(bytes), bytes) == 0 &&
           pthread_create(&thread, &attributes, use_in_thread, NULL) == 0;
    if (fits)
        pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    return fits;
}

static void in_coroutine(void)
{
    static ucontext_t home, coroutine;

    getcontext(&coroutine);
    coroutine.uc_stack = (stack_t){.ss_sp = make_stack(STACK_BYTES), .ss_size = STACK_BYTES};
    coroutine.uc_link = &home;
    makecontext(&coroutine, use, 0);
    wrong += swapcontext(&home, &coroutine) != 0;
}

int main(int argc, char **argv)
{
    CUdevice device;
    bool fits = true;

    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context))
        return 1;
    if (argc > 1 && strcmp(argv[1], "thread") == 0)
        fits = in_thread();
    else
        in_coroutine();
    printf("%s, %d wrong\n", fits ? "done" : "no thread has so small a stack", wrong);
    return wrong != 0;
}
