/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and their memory on the driver API.  Each scene prints what the driver answers; a test
 * compares that with and without the library.
 *
 *   life_driver SCENE [ROUNDS] */
#include "../samples/sample.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 50000, BLOCKS = 8 };

/* cuda.h maps the plain name to another version with every release; this one is in all drivers. */
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

static CUdevice device;
static int rounds = 20; /* of contexts that come and go */

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

static void make(CUdeviceptr blocks[BLOCKS], unsigned char value)
{
    for (int i = 0; i < BLOCKS; i++) {
        MUST(cuMemAlloc(&blocks[i], BYTES));
        MUST(cuMemsetD8(blocks[i], value, BYTES));
    }
}

static void check(const CUdeviceptr blocks[BLOCKS], unsigned char value)
{
    static unsigned char host[BYTES];

    for (int i = 0; i < BLOCKS; i++) {
        MUST(cuMemcpyDtoH(host, blocks[i], BYTES));
        for (int j = 0; j < BYTES; j++)
            if (host[j] != value) {
                printf("block %d, byte %d is %d, not %d\n", i, j, host[j], value);
                exit(1);
            }
    }
}

static void drop(const CUdeviceptr blocks[BLOCKS])
{
    for (int i = 0; i < BLOCKS; i++)
        MUST(cuMemFree(blocks[i]));
}

static CUcontext create(void)
{
    CUcontext context;

    MUST(cuCtxCreate_v2(&context, 0, device));
    return context;
}

/* Contexts that come and go with live blocks; their handles may come again. */
static void destroyed_contexts(void)
{
    CUdeviceptr blocks[BLOCKS], others[BLOCKS];

    for (int round = 0; round < rounds; round++) {
        CUcontext context = create(), other;
        make(blocks, (unsigned char)round);
        other = create();
        make(others, (unsigned char)(round + 100));
        MUST(cuCtxDestroy(context));
        if (round == 0)
            SAY(cuMemFree(blocks[0]));
        check(others, (unsigned char)(round + 100));
        drop(others);
        make(others, 7);
        check(others, 7);
        MUST(cuCtxDestroy(other));
    }
    printf("%d rounds\n", rounds);
}

static void two_contexts(void)
{
    CUdeviceptr first_blocks[BLOCKS], second_blocks[BLOCKS], base;
    CUcontext first = create(), second, owner;
    size_t bytes;

    make(first_blocks, 1);
    second = create();
    make(second_blocks, 2);
    MUST(cuCtxSetCurrent(first));
    check(first_blocks, 1);
    /* questions and frees about the other context's memory */
    SAY(cuMemGetAddressRange(&base, &bytes, second_blocks[0] + 5));
    printf("base %s, %zu bytes\n", base == second_blocks[0] ? "right" : "WRONG", bytes);
    SAY(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, second_blocks[0]));
    printf("owner %s\n", owner == second ? "right" : "WRONG");
    SAY(cuMemFree(second_blocks[0]));
    SAY(cuMemFree(second_blocks[0]));
    MUST(cuCtxDestroy(second));
    SAY(cuMemFree(second_blocks[1]));
    check(first_blocks, 1);
    drop(first_blocks);
    MUST(cuCtxDestroy(first));
}

static void no_context(void)
{
    CUdeviceptr blocks[BLOCKS], p = 0, base;
    CUcontext context = create(), none;
    size_t bytes, total;

    make(blocks, 3);
    MUST(cuCtxPopCurrent(&none));
    SAY(cuMemAlloc(&p, BYTES));
    SAY(cuMemGetInfo(&bytes, &total));
    SAY(cuMemGetAddressRange(&base, &bytes, blocks[1] + 5));
    SAY(cuMemFree(blocks[0]));
    SAY(cuMemFree(blocks[0]));
    SAY(cuMemFree(blocks[1] + 512));
    SAY(cuMemFree(0));
    MUST(cuCtxPushCurrent(context));
    SAY(cuMemFree(blocks[1]));
    MUST(cuCtxDestroy(context));
    SAY(cuMemFree(blocks[2]));
}

static void primary_context(void)
{
    CUdeviceptr blocks[BLOCKS];

    for (int round = 0; round < 5; round++) {
        CUcontext context;
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        make(blocks, (unsigned char)round);
        check(blocks, (unsigned char)round);
        if (round % 2)
            MUST(cuDevicePrimaryCtxReset(device));
        else
            MUST(cuDevicePrimaryCtxRelease(device));
        SAY(cuMemFree(blocks[0]));
        if (round % 2)
            SAY(cuDevicePrimaryCtxRelease(device));
    }
}

/* The first reference's release does not end the context. */
static void two_references(void)
{
    CUdeviceptr blocks[BLOCKS];
    CUcontext context;

    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    make(blocks, 9);
    MUST(cuDevicePrimaryCtxRelease(device));
    check(blocks, 9);
    drop(blocks);
    make(blocks, 10);
    check(blocks, 10);
    MUST(cuDevicePrimaryCtxRelease(device));
    SAY(cuMemFree(blocks[0]));
}

static void *free_here(void *data)
{
    const CUdeviceptr *blocks = data;

    for (int i = 0; i < BLOCKS; i++)
        SAY(cuMemFree(blocks[i]));
    return NULL;
}

static void other_thread(void)
{
    CUdeviceptr blocks[BLOCKS];
    CUcontext context = create();
    pthread_t thread;

    make(blocks, 4);
    pthread_create(&thread, NULL, free_here, blocks); /* a thread without a context */
    pthread_join(thread, NULL);
    make(blocks, 5);
    check(blocks, 5);
    drop(blocks);
    MUST(cuCtxDestroy(context));
}

/* A child that no handler of fork() was told of asks about, frees and waits for what is its
 * parent's. */
static void cloned(void)
{
    CUdeviceptr blocks[BLOCKS], base;
    size_t bytes, total;
    int status = 0;
    pid_t child;

    create();
    make(blocks, 8);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        int failed = cuMemFree(blocks[0]) != CUDA_SUCCESS;
        failed += 2 * (cuMemGetAddressRange(&base, &bytes, blocks[1]) != CUDA_SUCCESS);
        failed += 4 * (cuMemAlloc(&base, BYTES) != CUDA_SUCCESS);
        failed += 8 * (cuMemGetInfo(&bytes, &total) != CUDA_SUCCESS);
        failed += 16 * (cuCtxSynchronize() != CUDA_SUCCESS);
        failed += 32 * (cuStreamSynchronize(NULL) != CUDA_SUCCESS);
        _exit(failed);
    }
    waitpid(child, &status, 0);
    printf("of its calls failed: %d\n", status);
    check(blocks, 8);
    drop(blocks);
}

/* Memory allocated under a green context is its primary's, and outlives it. */
static void green_contexts(void)
{
#if CUDA_VERSION >= 12040
    CUdeviceptr first[BLOCKS], second[BLOCKS];
    CUcontext primary, context, owner;
    CUdevResourceDesc description;
    CUdevResource resource;
    CUgreenCtx green;

    MUST(cuDevicePrimaryCtxRetain(&primary, device));
    for (int round = 0; round < 5; round++) {
        MUST(cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM));
        MUST(cuDevResourceGenerateDesc(&description, &resource, 1));
        MUST(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
        MUST(cuCtxFromGreenCtx(&context, green));
        MUST(cuCtxSetCurrent(context));
        make(first, (unsigned char)round);
        check(first, (unsigned char)round);
        MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, first[0]));
        printf("owner is the %s\n", owner == primary ? "primary" : "green one");
        MUST(cuCtxSetCurrent(primary));
        make(second, (unsigned char)(round + 50));
        SAY(cuMemFree(first[0]));
        SAY(cuGreenCtxDestroy(green));
        check(second, (unsigned char)(round + 50));
        for (int i = 1; i < BLOCKS; i++)
            SAY(cuMemFree(first[i]));
        drop(second);
    }
    MUST(cuDevicePrimaryCtxRelease(device));
#endif
}

static void live_at_exit(void)
{
    CUdeviceptr blocks[BLOCKS];

    create();
    make(blocks, 6);
    create();
    make(blocks, 7);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {
        {"destroyed_contexts", destroyed_contexts},
        {"two_contexts", two_contexts},
        {"no_context", no_context},
        {"primary_context", primary_context},
        {"two_references", two_references},
        {"other_thread", other_thread},
        {"cloned", cloned},
        {"green_contexts", green_contexts},
        {"live_at_exit", live_at_exit},
    };

    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 2)
        rounds = atoi(argv[2]);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!strcmp(argv[1], scenes[i].name)) {
            scenes[i].run();
            return 0;
        }
    fprintf(stderr, "usage: life_driver SCENE\n");
    return 2;
}
