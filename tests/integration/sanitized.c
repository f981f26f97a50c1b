/* SPDX-License-Identifier: Apache-2.0 */
/* A program that test_sanitizers.py builds with each sanitizer.  The word says what it does:
 *
 *   use      several threads allocate, copy and free memory of every kind, and some of it stays
 *   fork     the same; a child that was forked meanwhile ends as programs do
 *   leak     the same, and a block of the heap is lost
 *   overrun  the same, and a byte behind a block of the heap is written
 *   race     the same, and two threads write one variable
 *
 * With OWN_OPTIONS it has options of its own for AddressSanitizer. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult result_ = (call);                                                                 \
        if (result_ != CUDA_SUCCESS) {                                                             \
            printf("%s = %d\n", #call, (int)result_);                                              \
            exit(9);                                                                               \
        }                                                                                          \
    } while (0)

extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

#ifdef OWN_OPTIONS
const char *__asan_default_options(void)
{
    return "exitcode=21";
}
#endif

enum { THREADS = 4, ROUNDS = 50, KEPT = 8 };

static CUcontext context;
static int written_by_two;
static char *volatile heap_block;

/* Pinned memory is written by the host, so a detector of races sees who has it when. */
static void use_host_memory(size_t bytes)
{
    void *pinned;

    MUST(cuMemHostAlloc(&pinned, bytes, 0));
    memset(pinned, 1, bytes);
    MUST(cuMemFreeHost(pinned));
}

static void use_managed_memory(size_t bytes)
{
    CUdeviceptr managed;

    MUST(cuMemAllocManaged(&managed, bytes, CU_MEM_ATTACH_GLOBAL));
    memset((void *)managed, 1, bytes);
    MUST(cuMemFree(managed));
}

static void use_device_memory(size_t bytes)
{
    CUdeviceptr device, ordered;
    char *from = calloc(1, bytes);

    MUST(cuMemAlloc(&device, bytes));
    MUST(cuMemcpyHtoD(device, from, bytes));
    MUST(cuMemAllocAsync(&ordered, bytes, NULL));
    MUST(cuMemFreeAsync(ordered, NULL));
    MUST(cuMemFree(device));
    free(from);
}

static void *use_memory(void *unused)
{
    CUdeviceptr kept;

    MUST(cuCtxSetCurrent(context));
    for (size_t i = 1; i <= ROUNDS; i++) {
        use_device_memory(i * 1000);
        use_host_memory(i * 100);
        use_managed_memory(i * 100);
    }
    for (size_t i = 1; i <= KEPT; i++)
        MUST(cuMemAlloc(&kept, i << 18));
    return unused;
}

static void *write_variable(void *unused)
{
    for (int i = 0; i < 1000; i++)
        written_by_two++;
    return unused;
}

static void run_threads(void *(*function)(void *))
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, function, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void fork_child(void)
{
    pid_t child = fork();
    int status = -1;

    if (child == 0)
        exit(0);
    waitpid(child, &status, 0);
    printf("the child ended with %d\n", status);
}

int main(int count, char **words)
{
    const char *word = count > 1 ? words[1] : "use";
    CUdevice device;
    CUcontext other;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    run_threads(use_memory);
    MUST(cuCtxCreate_v2(&other, 0, device));
    use_device_memory(1 << 20);
    MUST(cuCtxDestroy(other));
    MUST(cuCtxSetCurrent(context));
    use_host_memory(1 << 20);
    if (strcmp(word, "fork") == 0)
        fork_child();
    if (strcmp(word, "leak") == 0) {
        heap_block = malloc(100);
        heap_block = NULL;
    }
    if (strcmp(word, "overrun") == 0) {
        heap_block = malloc(100);
        heap_block[100] = 1;
    }
    if (strcmp(word, "race") == 0)
        run_threads(write_variable);
    puts("done");
    return 0;
}
