/* SPDX-License-Identifier: Apache-2.0 */
/* Programs with one memory mistake each, and one without any, for the resources that find them.
 *
 *   debug_blocks SCENE */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 100000, FILL = 0x5a };

#define NOT_INLINED __attribute__((noinline))

static void must(int answer, const char *what)
{
    if (answer == 0)
        return;
    printf("%s = %d\n", what, answer);
    exit(1);
}

#define OK(call) must((int)(call), #call)

/* Inlined in every build, so that the first frame is its caller. */
__attribute__((always_inline)) static inline char *allocate(size_t bytes)
{
    char *block = NULL;

    OK(cudaMalloc((void **)&block, bytes));
    return block;
}

/* Not exported, so that its name is in no table of the loader's. */
static NOT_INLINED char *forgets_one(size_t bytes)
{
    char *block = allocate(bytes);

    OK(cudaMemset(block, FILL, bytes));
    return block;
}

static NOT_INLINED void forgets_three(void)
{
    for (int i = 0; i < 3; i++)
        OK(cudaMemset(allocate(2 * BYTES), FILL, 2 * BYTES));
}

static void leaks(void)
{
    char *freed = allocate(BYTES);

    (void)forgets_one(BYTES + 1);
    forgets_three();
    OK(cudaFree(freed));
}

static void leaks_and_resets(void)
{
    leaks();
    OK(cudaDeviceReset());
}

/* Prints what a right program reads, which no setting may change. */
static void right(void)
{
    static unsigned char host[BYTES];

    for (int round = 0; round < 40; round++) {
        size_t bytes = (size_t)(BYTES - 997 * round);
        char *from = allocate(bytes), *to = allocate(bytes), *pinned = NULL;
        unsigned sum = 0;

        OK(cudaMallocHost((void **)&pinned, bytes));
        memset(pinned, round, bytes);
        OK(cudaMemcpy(from, pinned, bytes, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
        OK(cudaMemcpy(host, to, bytes, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < bytes; i++)
            sum += host[i];
        printf("%d: %u\n", round, sum);
        OK(cudaFree(from));
        OK(cudaFree(to));
        OK(cudaFreeHost(pinned));
    }
}

static void writes_past_the_end(void)
{
    char *block = allocate(BYTES);

    OK(cudaMemset(block + BYTES, 0x77, 1));
    OK(cudaFree(block));
    /* Freed memory comes to be looked at when more is freed and allocated. */
    OK(cudaFree(allocate(BYTES)));
}

static void writes_before_the_beginning(void)
{
    char *block = allocate(BYTES);

    OK(cudaMemset(block - 4, 0x77, 2));
    OK(cudaFree(block));
    OK(cudaFree(allocate(BYTES)));
}

static void writes_after_the_free(void)
{
    char *block = allocate(BYTES);

    OK(cudaFree(block));
    OK(cudaMemset(block + 1000, 0x77, 4));
    OK(cudaDeviceSynchronize()); /* the look at the block waits for no work of the program's */
    OK(cudaFree(allocate(BYTES)));
}

/* Frees of others have the block's own free looked at, wherever freed blocks wait. */
static void writes_long_after_the_free(void)
{
    char *block = allocate(BYTES);

    OK(cudaFree(block));
    for (int i = 0; i < 100; i++) {
        OK(cudaFree(allocate(2 * BYTES)));
        OK(cudaDeviceSynchronize());
    }
    OK(cudaMemset(block + 1000, 0x77, 4));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(allocate(BYTES)));
}

/* The answer is the driver's own. */
static void frees_twice(void)
{
    char *block = allocate(BYTES);

    OK(cudaFree(block));
    if (cudaFree(block) != cudaErrorInvalidValue)
        exit(1);
}

/* A name as C++ gives it: app::train(int). */
static char *train(size_t bytes) __asm__("_ZN3app5trainEi");

static __attribute__((noinline, used)) char *train(size_t bytes)
{
    char *block = allocate(bytes);

    OK(cudaMemset(block, FILL, bytes));
    return block;
}

/* Holds blocks, and makes a call for each line of stdin. */
static void holds(void)
{
    char line[16], *pinned = NULL;
    size_t total;

    for (size_t i = 0; i < 3; i++)
        (void)train(2 * BYTES);
    (void)forgets_one(BYTES);
    OK(cudaMallocHost((void **)&pinned, BYTES));
    OK(cudaFree(allocate(5 * BYTES)));
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        OK(cudaMemGetInfo(&total, &total));
        printf("called\n");
        fflush(stdout);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {
    {"leaks", leaks},
    {"leaks_and_resets", leaks_and_resets},
    {"right", right},
    {"writes_past_the_end", writes_past_the_end},
    {"writes_before_the_beginning", writes_before_the_beginning},
    {"writes_after_the_free", writes_after_the_free},
    {"writes_long_after_the_free", writes_long_after_the_free},
    {"frees_twice", frees_twice},
    {"holds", holds},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        if (strcmp(argv[1], scenes[i].name) != 0)
            continue;
        scenes[i].run();
        printf("%s is done\n", argv[1]);
        return 0;
    }
    return 2;
}
