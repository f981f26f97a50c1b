/* SPDX-License-Identifier: Apache-2.0 */
/* Two CUDA runtimes in one process: what one allocates the other frees, and each has last errors of
 * its own.
 *
 *   two_runtimes LIBRARY LIBRARY
 *
 * Each is loaded with RTLD_LOCAL and found by handle, as Python's packages do.  What is printed
 * depends on the two alone; the last line counts the allocations that succeeded. */
#include "sample.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { RUNTIMES = 2, BLOCKS = 50, ROUNDS = 100, BYTES = 70000 };

static struct runtime {
    __typeof__(&cudaMalloc) allocate;
    __typeof__(&cudaFree) free;
    cudaError_t (*allocate_managed)(void **, size_t, unsigned);
    cudaError_t (*allocate_pinned)(void **, size_t);
    __typeof__(&cudaFreeHost) free_pinned;
    __typeof__(&cudaMemcpy) copy;
    __typeof__(&cudaMemset) set;
    __typeof__(&cudaSetDevice) set_device;
    __typeof__(&cudaGetDeviceCount) device_count;
    __typeof__(&cudaDeviceSynchronize) synchronize;
    __typeof__(&cudaGetLastError) last_error;
    __typeof__(&cudaPeekAtLastError) peek;
    __typeof__(&cudaRuntimeGetVersion) version;
    __typeof__(&cudaPointerGetAttributes) attributes;
} runtimes[RUNTIMES];

static unsigned device_blocks, managed_blocks, pinned_blocks;

static void load(struct runtime *runtime, const char *path)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cudaMalloc", &runtime->allocate},
        {"cudaFree", &runtime->free},
        {"cudaMallocManaged", &runtime->allocate_managed},
        {"cudaMallocHost", &runtime->allocate_pinned},
        {"cudaFreeHost", &runtime->free_pinned},
        {"cudaMemcpy", &runtime->copy},
        {"cudaMemset", &runtime->set},
        {"cudaSetDevice", &runtime->set_device},
        {"cudaGetDeviceCount", &runtime->device_count},
        {"cudaDeviceSynchronize", &runtime->synchronize},
        {"cudaGetLastError", &runtime->last_error},
        {"cudaPeekAtLastError", &runtime->peek},
        {"cudaRuntimeGetVersion", &runtime->version},
        {"cudaPointerGetAttributes", &runtime->attributes},
    };
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        printf("%s\n", dlerror());
    CHECK(handle);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(handle, wanted[i].name);
        CHECK(found);
        memcpy(wanted[i].function, &found, sizeof(found));
    }
}

/* Counts are exact: several threads allocate. */
static void *device_block(const struct runtime *runtime, size_t bytes)
{
    void *block = NULL;

    MUST(runtime->allocate(&block, bytes));
    __atomic_add_fetch(&device_blocks, 1, __ATOMIC_RELAXED);
    return block;
}

static void must_hold(const struct runtime *runtime, const void *block, size_t bytes, int byte)
{
    static __thread unsigned char host[BYTES];

    CHECK(bytes <= sizeof(host));
    MUST(runtime->copy(host, block, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i++)
        CHECK(host[i] == byte);
}

/* ---- what one makes the other knows and frees ---- */

static void say_attributes(const struct runtime *runtime, const void *block)
{
    struct cudaPointerAttributes attributes = {.device = -1};

    MUST(runtime->attributes(&attributes, block));
    printf(", device %d%s", attributes.device,
           attributes.type == cudaMemoryTypeHost ? " on the host" : "");
}

static void exchange(unsigned one, unsigned other)
{
    const struct runtime *maker = &runtimes[one], *user = &runtimes[other];
    void *block;

    printf("%u makes, %u uses: device memory", one, other);
    block = device_block(maker, BYTES);
    MUST(maker->set(block, 0x5a, BYTES));
    must_hold(user, block, BYTES, 0x5a);
    say_attributes(user, block);
    MUST(user->free(block));

    printf("; managed");
    MUST(maker->allocate_managed(&block, BYTES, cudaMemAttachGlobal));
    managed_blocks++;
    memset(block, 0x33, BYTES);
    must_hold(user, block, BYTES, 0x33);
    MUST(user->set(block, 0x44, BYTES));
    MUST(user->synchronize());
    CHECK(((unsigned char *)block)[BYTES - 1] == 0x44);
    MUST(user->free(block));

    printf("; pinned");
    MUST(maker->allocate_pinned(&block, BYTES));
    pinned_blocks++;
    memset(block, 0x66, BYTES);
    must_hold(user, block, BYTES, 0x66);
    say_attributes(user, block);
    MUST(user->free_pinned(block));
    printf("\n");
}

/* ---- last errors ---- */

static void say_errors(const char *call, unsigned runtime, cudaError_t answer)
{
    printf("%s of %u = %d, then last errors", call, runtime, (int)answer);
    for (unsigned i = 0; i < RUNTIMES; i++) {
        int peeked = (int)runtimes[i].peek(), first = (int)runtimes[i].last_error();
        printf(" %d %d %d", peeked, first, (int)runtimes[i].last_error());
    }
    printf("\n");
}

static void errors(unsigned one, unsigned other)
{
    const struct runtime *runtime = &runtimes[one];
    void *block = NULL;
    int local = 0;

    say_errors("cudaMalloc of too much", one, runtime->allocate(&block, (size_t)1 << 60));
    say_errors("cudaMalloc of nothing", one, runtime->allocate(&block, 0));
    say_errors("cudaFree of a wrong address", one, runtime->free((void *)0x1234000));
    say_errors("cudaFree of host memory", one, runtime->free(&local));
    say_errors("cudaFree of NULL", one, runtime->free(NULL));
    block = device_block(runtime, 1000);
    MUST(runtimes[other].free(block));
    say_errors("cudaFree of what the other freed", one, runtime->free(block));

    /* An error of one stands while the other's calls succeed. */
    (void)runtime->allocate(&block, (size_t)1 << 60);
    block = device_block(&runtimes[other], 1000);
    MUST(runtimes[other].free(block));
    say_errors("an older error", one, cudaSuccess);
}

/* ---- threads ---- */

struct worker {
    unsigned index;
    pthread_barrier_t *barrier;
    void *blocks[BLOCKS];
    struct worker *others;
    int last_error;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    const struct runtime *own = &runtimes[worker->index % RUNTIMES];
    struct sequence sequence = {worker->index};
    void *block;

    for (unsigned round = 0; round < ROUNDS; round++) {
        const struct runtime *maker = &runtimes[(round + worker->index) % RUNTIMES];
        const struct runtime *user = &runtimes[(round / 2 + worker->index) % RUNTIMES];
        size_t bytes = 1 + sequence_below(&sequence, BYTES);

        block = device_block(maker, bytes);
        MUST(maker->set(block, (int)(round % 256), bytes));
        must_hold(user, block, bytes, (int)(round % 256));
        MUST(user->free(block));
    }

    /* Each frees with its own runtime what the other thread made with the other runtime. */
    for (unsigned i = 0; i < BLOCKS; i++) {
        worker->blocks[i] = device_block(own, 1000 + i);
        MUST(own->set(worker->blocks[i], (int)i, 1000 + i));
    }
    MUST(own->synchronize());
    pthread_barrier_wait(worker->barrier);
    for (unsigned i = 0; i < BLOCKS; i++) {
        void *theirs = worker->others[(worker->index + 1) % 2].blocks[i];
        must_hold(own, theirs, 1000 + i, (int)i);
        MUST(own->free(theirs));
    }

    /* A last error belongs to a runtime and a thread. */
    if (worker->index == 0)
        (void)own->allocate(&block, (size_t)1 << 60);
    pthread_barrier_wait(worker->barrier);
    worker->last_error = (int)runtimes[0].last_error();
    return NULL;
}

static void threads(void)
{
    pthread_barrier_t barrier;
    pthread_t ids[2];
    struct worker workers[2];

    MUST(pthread_barrier_init(&barrier, NULL, 2));
    for (unsigned i = 0; i < 2; i++)
        workers[i] = (struct worker){.index = i, .barrier = &barrier, .others = workers};
    for (unsigned i = 0; i < 2; i++)
        MUST(pthread_create(&ids[i], NULL, work, &workers[i]));
    for (unsigned i = 0; i < 2; i++)
        MUST(pthread_join(ids[i], NULL));
    MUST(pthread_barrier_destroy(&barrier));
    printf("threads: last errors of 0 are %d and %d\n", workers[0].last_error,
           workers[1].last_error);
}

/* ---- devices ---- */

/* The first call after a change of device allocates, by the same runtime and by the other. */
static void devices(void)
{
    int count = 0;

    MUST(runtimes[0].device_count(&count));
    for (int round = 0; round < 4; round++)
        for (unsigned chooser = 0; chooser < RUNTIMES; chooser++)
            for (unsigned maker = 0; maker < RUNTIMES; maker++) {
                int device = count > 1 ? round % 2 : 0;
                void *block;

                MUST(runtimes[chooser].set_device(device));
                block = device_block(&runtimes[maker], 1000);
                printf("%u chooses device %d, %u makes", chooser, device, maker);
                say_attributes(&runtimes[maker], block);
                MUST(runtimes[maker].set(block, round, 1000));
                must_hold(&runtimes[chooser], block, 1000, round);
                MUST(runtimes[chooser].free(block));
                printf("\n");
            }
}

int main(int argc, char **argv)
{
    if (argc != 1 + RUNTIMES) {
        fprintf(stderr, "usage: two_runtimes LIBRARY LIBRARY\n");
        return 2;
    }
    for (unsigned i = 0; i < RUNTIMES; i++)
        load(&runtimes[i], argv[1 + i]);
    exchange(0, 1); /* first: the second runtime finds the context that the first made */
    for (unsigned i = 0; i < RUNTIMES; i++) {
        int version = 0;
        MUST(runtimes[i].version(&version));
        printf("runtime %u is of version %d\n", i, version);
    }
    exchange(1, 0);
    exchange(0, 0);
    exchange(1, 1);
    errors(0, 1);
    errors(1, 0);
    threads();
    devices();
    for (unsigned i = 0; i < RUNTIMES; i++)
        MUST(runtimes[i].last_error());
    printf("%u device, %u managed, %u pinned\n", device_blocks, managed_blocks, pinned_blocks);
    return 0;
}
