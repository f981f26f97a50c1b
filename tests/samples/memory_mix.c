/* SPDX-License-Identifier: Apache-2.0 */
/* Memory calls of all kinds in a random order, their contents checked, and the answers to wrong
 * calls.
 *
 *   memory_mix [--seed N] [--threads N] [--rounds N] [--log2-limit N] [PART]...
 *
 *   mix          device, pitched, managed and stream-ordered blocks, several streams and threads;
 *                blocks change threads; some are freed while in use
 *   reuse        a freed block's memory must not be touched by the work that used it
 *   errors       size 0, wrong frees, queries about wrong addresses, the last error
 *   huge         sizes that no device has (asks for them; not for managed memory on a real device)
 *   information  an allocation is seen in what is free (not so with managed memory)
 *
 * Without a PART: mix, reuse, errors. */
#include "kernels.h"
#include "sample.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { SLOTS = 24, STREAMS = 3, THREADS_MAX = 64, MAILBOX_MAX = 8 };

static __typeof__(&cuModuleLoadData) module_load_data;
static __typeof__(&cuModuleGetFunction) module_get_function;
static __typeof__(&cuLaunchKernel) launch_kernel;
static __typeof__(&cuMemGetAddressRange) get_address_range;
static __typeof__(&cuMemAllocPitch) alloc_pitch;
static __typeof__(&cuMemFree) mem_free;
static __typeof__(&cuPointerGetAttribute) pointer_get_attribute;
static __typeof__(&cuPointerGetAttributes) pointer_get_attributes;
static __typeof__(&cuCtxGetCurrent) ctx_get_current;

static CUfunction kernel_check_pattern, kernel_fill32, kernel_spin_us;

static struct {
    uint64_t seed;
    unsigned threads, rounds, log2_limit;
} settings = {.seed = 1, .threads = 4, .rounds = 300, .log2_limit = 20};

static void prepare(void)
{
    static const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cuModuleLoadData", &module_load_data},
        {"cuModuleGetFunction", &module_get_function},
        {"cuLaunchKernel", &launch_kernel},
        {"cuMemGetAddressRange", &get_address_range},
        {"cuMemAllocPitch", &alloc_pitch},
        {"cuMemFree", &mem_free},
        {"cuPointerGetAttribute", &pointer_get_attribute},
        {"cuPointerGetAttributes", &pointer_get_attributes},
        {"cuCtxGetCurrent", &ctx_get_current},
    };
    CUmodule module;

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        enum cudaDriverEntryPointQueryResult found;
        MUST(cudaGetDriverEntryPointByVersion(wanted[i].name, wanted[i].function, 11040,
                                              cudaEnableDefault, &found));
        CHECK(found == cudaDriverEntryPointSuccess);
    }
    MUST(cudaFree(NULL));
    MUST(module_load_data(&module, kernels_ptx));
    MUST(module_get_function(&kernel_check_pattern, module, "check_pattern"));
    MUST(module_get_function(&kernel_fill32, module, "fill32"));
    MUST(module_get_function(&kernel_spin_us, module, "spin_us"));
}

static void launch(CUfunction kernel, cudaStream_t stream, void **parameters)
{
    MUST(launch_kernel(kernel, KERNEL_BLOCKS, 1, 1, KERNEL_THREADS, 1, 1, 0, (CUstream)stream,
                       parameters, NULL));
}

static void spin(cudaStream_t stream, uint64_t us)
{
    MUST(launch_kernel(kernel_spin_us, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, (void *[]){&us},
                       NULL));
}

/* ---- mix ------------------------------------------------------------------------------------- */

enum kind { DEVICE, PITCHED, MANAGED, STREAM_ORDERED };

struct block {
    enum kind kind;
    void *ptr;
    uint64_t words; /* that hold value */
    uint32_t value;
    bool idle; /* all work on it is known to be done */
};

/* Blocks that another thread is to free. */
static struct mailbox {
    pthread_mutex_t lock;
    struct block blocks[MAILBOX_MAX];
    unsigned count;
} mailboxes[THREADS_MAX];

struct worker {
    unsigned index;
    struct sequence sequence;
    cudaStream_t streams[STREAMS];
    struct block slots[SLOTS];
    uint64_t *counter; /* on the device: words that were wrong */
    uint64_t allocations, bytes, wrong_on_host, checksum;
};

static void block_make(struct worker *worker, unsigned slot)
{
    cudaStream_t stream = worker->streams[slot % STREAMS];
    size_t bytes = 3 + sequence_size(&worker->sequence, settings.log2_limit);
    unsigned dice = (unsigned)sequence_below(&worker->sequence, 10);
    struct block block = {.kind = dice < 6 ? DEVICE : (enum kind)(dice % 3 + 1)};
    uint64_t value;

    block.value = (uint32_t)sequence_next(&worker->sequence);
    value = block.value;
    if (block.kind == PITCHED) {
        size_t width = 1 + bytes / 16, height = 13, pitch;
        MUST(cudaMallocPitch(&block.ptr, &pitch, width, height));
        CHECK(pitch >= width);
        worker->checksum = checksum_number(worker->checksum, pitch);
        bytes = pitch * height;
    } else if (block.kind == MANAGED) {
        bytes = bytes / 8 + 4;
        MUST(cudaMallocManaged(&block.ptr, bytes, cudaMemAttachGlobal));
    } else if (block.kind == STREAM_ORDERED) {
        MUST(cudaMallocAsync(&block.ptr, bytes, stream));
    } else {
        MUST(cudaMalloc(&block.ptr, bytes));
        CHECK((uintptr_t)block.ptr % 512 == 0);
    }
    block.words = bytes / sizeof(uint32_t);
    worker->allocations++;
    worker->bytes += bytes;
    worker->checksum = checksum_number(worker->checksum, bytes);

    if (block.kind == DEVICE && sequence_below(&worker->sequence, 8) == 0) {
        CUdeviceptr base;
        size_t range_bytes, inside = sequence_below(&worker->sequence, bytes);
        MUST(get_address_range(&base, &range_bytes, (CUdeviceptr)block.ptr + inside));
        CHECK(base == (CUdeviceptr)block.ptr && range_bytes == bytes);
    }
    launch(kernel_fill32, stream, (void *[]){&block.ptr, &block.words, &value});
    if (block.kind == MANAGED) {
        MUST(cudaStreamSynchronize(stream));
        block.idle = true;
    }
    worker->slots[slot] = block;
}

static void block_check(const struct block *block, cudaStream_t stream, uint64_t *counter)
{
    uint64_t value = block->value;

    launch(kernel_check_pattern, stream,
           (void *[]){(void *)(uintptr_t)&block->ptr, (void *)(uintptr_t)&block->words, &value,
                      &counter});
}

/* Hands the block to the next thread; false when there is no room for it. */
static bool block_send(struct worker *worker, const struct block *block)
{
    struct mailbox *mailbox = &mailboxes[(worker->index + 1) % settings.threads];
    bool sent;

    pthread_mutex_lock(&mailbox->lock);
    sent = mailbox->count < MAILBOX_MAX;
    if (sent)
        mailbox->blocks[mailbox->count++] = *block;
    pthread_mutex_unlock(&mailbox->lock);
    return sent;
}

static void mailbox_empty(struct worker *worker)
{
    struct mailbox *mailbox = &mailboxes[worker->index];
    struct block block;

    for (;;) {
        pthread_mutex_lock(&mailbox->lock);
        if (mailbox->count == 0) {
            pthread_mutex_unlock(&mailbox->lock);
            return;
        }
        block = mailbox->blocks[--mailbox->count];
        pthread_mutex_unlock(&mailbox->lock);
        if (block.idle)
            block_check(&block, worker->streams[0], worker->counter);
        MUST(cudaFree(block.ptr)); /* waits for the check, and for the sender's work */
    }
}

static void block_end(struct worker *worker, unsigned slot)
{
    cudaStream_t stream = worker->streams[slot % STREAMS];
    struct block block = worker->slots[slot];
    unsigned dice = (unsigned)sequence_below(&worker->sequence, 8);

    worker->slots[slot].ptr = NULL;
    if (block.kind == MANAGED) {
        uint32_t *words = block.ptr;
        for (uint64_t i = 0; i < block.words; i++)
            worker->wrong_on_host += words[i] != block.value;
        MUST(cudaFree(block.ptr));
        return;
    }
    if (dice == 0 && block.words <= 65536) {
        static __thread uint32_t words[65536];
        MUST(cudaMemcpyAsync(words, block.ptr, block.words * sizeof(*words), cudaMemcpyDeviceToHost,
                             stream));
        MUST(cudaStreamSynchronize(stream));
        worker->checksum = checksum_words(worker->checksum, words, block.words);
    } else {
        block_check(&block, stream, worker->counter);
    }
    if (block.kind == STREAM_ORDERED || dice == 1) {
        MUST(cudaFreeAsync(block.ptr, stream));
        return;
    }
    if (dice <= 3) {
        if (dice == 2)
            MUST(cudaStreamSynchronize(stream));
        block.idle = dice == 2;
        if (block_send(worker, &block))
            return;
    }
    MUST(cudaFree(block.ptr));
}

static void *worker_run(void *data)
{
    struct worker *worker = data;

    MUST(cudaSetDevice(0));
    for (unsigned i = 0; i < STREAMS; i++)
        MUST(cudaStreamCreateWithFlags(&worker->streams[i],
                                       i ? cudaStreamNonBlocking : cudaStreamDefault));
    MUST(cudaMalloc((void **)&worker->counter, sizeof(uint64_t)));
    MUST(cudaMemset(worker->counter, 0, sizeof(uint64_t)));
    MUST(cudaDeviceSynchronize());

    for (unsigned round = 0; round < settings.rounds; round++) {
        unsigned slot = (unsigned)sequence_below(&worker->sequence, SLOTS);
        if (worker->slots[slot].ptr)
            block_end(worker, slot);
        else
            block_make(worker, slot);
        if (round % 16 == 0)
            mailbox_empty(worker);
    }
    return NULL;
}

/* On the main thread, when its threads have ended: what is left over, made by others. */
static void worker_finish(struct worker *worker)
{
    uint64_t wrong;

    mailbox_empty(worker);
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        struct block *block = &worker->slots[slot];
        if (!block->ptr)
            continue;
        block_check(block, worker->streams[slot % STREAMS], worker->counter);
        if (block->kind == STREAM_ORDERED) /* the free of such a block does not wait */
            MUST(cudaDeviceSynchronize());
        MUST(cudaFree(block->ptr));
    }
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(&wrong, worker->counter, sizeof(wrong), cudaMemcpyDeviceToHost));
    MUST(cudaFree(worker->counter));
    for (unsigned i = 0; i < STREAMS; i++)
        MUST(cudaStreamDestroy(worker->streams[i]));
    worker->wrong_on_host += wrong;
}

static int mix(void)
{
    static struct worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    uint64_t allocations = 0, bytes = 0, wrong = 0, checksum = CHECKSUM_BEGIN;

    memset(workers, 0, sizeof(workers));
    for (unsigned i = 0; i < settings.threads; i++) {
        pthread_mutex_init(&mailboxes[i].lock, NULL);
        workers[i].index = i;
        workers[i].sequence.state = settings.seed * 1000 + i;
        workers[i].checksum = CHECKSUM_BEGIN;
    }
    for (unsigned i = 0; i < settings.threads; i++)
        MUST(pthread_create(&threads[i], NULL, worker_run, &workers[i]));
    for (unsigned i = 0; i < settings.threads; i++)
        MUST(pthread_join(threads[i], NULL));
    for (unsigned i = 0; i < settings.threads; i++) {
        worker_finish(&workers[i]);
        allocations += workers[i].allocations;
        bytes += workers[i].bytes;
        wrong += workers[i].wrong_on_host;
        checksum = checksum_number(checksum, workers[i].checksum);
    }
    printf("mix: seed %llu, %u threads, %llu allocations, %llu bytes, %llu wrong, "
           "checksum %016llx\n",
           (unsigned long long)settings.seed, settings.threads, (unsigned long long)allocations,
           (unsigned long long)bytes, (unsigned long long)wrong, (unsigned long long)checksum);
    return wrong != 0;
}

/* ---- reuse ----------------------------------------------------------------------------------- */

/* Work on one stream writes into a block that is freed meanwhile; whoever gets that memory next and
 * fills it on another stream must find only its own words in it. */
static int reuse(void)
{
    cudaStream_t writer, next;
    uint64_t *counter, wrong, words = 50000;
    unsigned rounds = 20;

    MUST(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking));
    MUST(cudaMalloc((void **)&counter, sizeof(*counter)));
    MUST(cudaMemset(counter, 0, sizeof(*counter)));
    MUST(cudaDeviceSynchronize());
    for (unsigned round = 0; round < rounds; round++) {
        uint64_t old_value = 0xdead0000u + round, value = round;
        uint32_t *block;

        MUST(cudaMalloc((void **)&block, words * sizeof(*block)));
        spin(writer, 3000);
        launch(kernel_fill32, writer, (void *[]){&block, &words, &old_value});
        MUST(cudaFree(block));
        MUST(cudaMalloc((void **)&block, words * sizeof(*block)));
        launch(kernel_fill32, next, (void *[]){&block, &words, &value});
        MUST(cudaDeviceSynchronize());
        launch(kernel_check_pattern, next, (void *[]){&block, &words, &value, &counter});
        MUST(cudaDeviceSynchronize());
        MUST(cudaFree(block));
    }
    MUST(cudaMemcpy(&wrong, counter, sizeof(wrong), cudaMemcpyDeviceToHost));
    MUST(cudaFree(counter));
    MUST(cudaStreamDestroy(writer));
    MUST(cudaStreamDestroy(next));
    printf("reuse: %u rounds, %llu wrong\n", rounds, (unsigned long long)wrong);
    return wrong != 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A runtime call's result, and what cudaGetLastError says the first and the second time. */
#define ANSWER(call)                                                                               \
    do {                                                                                           \
        int answer_ = (int)(call);                                                                 \
        int last_ = (int)cudaGetLastError();                                                       \
        printf("%s = %d, last error %d then %d\n", #call, answer_, last_,                          \
               (int)cudaGetLastError());                                                           \
    } while (0)

/* A driver call's result. */
#define DRIVER_ANSWER(call) printf("%s = %d\n", #call, (int)(call))

static void range_of(const char *what, CUdeviceptr block, uint64_t offset)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult result = get_address_range(&base, &bytes, block + offset);

    if (result == CUDA_SUCCESS)
        printf("range of %s: base %s, %zu bytes\n", what, base == block ? "right" : "WRONG", bytes);
    else
        printf("range of %s: %d\n", what, (int)result);
}

static void attributes_of(const char *what, CUdeviceptr block, uint64_t offset)
{
    struct cudaPointerAttributes attributes;
    CUcontext context = NULL, current = NULL;
    CUdeviceptr start = 0, device_pointer = 0;
    size_t range_bytes = 0;
    int ordinal = -9;
    CUresult results[5];
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *values[] = {&start, &range_bytes};

    memset(&attributes, 0, sizeof(attributes));
    ANSWER(cudaPointerGetAttributes(&attributes, (void *)(block + offset)));
    /* Whether memory is managed is what RMM_MANAGED is there to change. */
    printf("runtime's attributes of %s: %s, device %d, device pointer %s\n", what,
           attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged
               ? "on a device"
           : attributes.type == cudaMemoryTypeUnregistered ? "unregistered"
                                                           : "on the host",
           attributes.device,
           attributes.devicePointer == (void *)(block + offset) ? "right"
           : attributes.devicePointer                           ? "WRONG"
                                                                : "null");

    results[0] = pointer_get_attribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, block + offset);
    results[1] =
        pointer_get_attribute(&device_pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, block + offset);
    results[2] =
        pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block + offset);
    results[3] =
        pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + offset);
    results[4] =
        pointer_get_attribute(&range_bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + offset);
    MUST(ctx_get_current(&current));
    printf("driver's attributes of %s: %d %d %d %d %d", what, (int)results[0], (int)results[1],
           (int)results[2], (int)results[3], (int)results[4]);
    if (results[0] == CUDA_SUCCESS)
        printf(", context %s", context == current ? "right" : "WRONG");
    if (results[1] == CUDA_SUCCESS)
        printf(", device pointer %s", device_pointer == block + offset ? "right" : "WRONG");
    if (results[2] == CUDA_SUCCESS)
        printf(", device %d", ordinal);
    if (results[3] == CUDA_SUCCESS && results[4] == CUDA_SUCCESS)
        printf(", range %s %zu", start == block ? "right" : "WRONG", range_bytes);
    start = 0;
    range_bytes = 0;
    printf("\nseveral attributes of %s: %d", what,
           (int)pointer_get_attributes(2, names, values, block + offset));
    printf(", range %s %zu\n", start == block ? "right" : start ? "WRONG" : "null", range_bytes);
}

static int errors(void)
{
    enum { BYTES = 1000 };
    unsigned char host[BYTES];
    char *p = NULL, *neighbour;
    void *q = NULL;
    size_t pitch, free_bytes = 0, total_bytes = 0, free_again = 0, total_again = 0;
    CUdeviceptr block, base;
    size_t bytes;

    /* size 0 */
    ANSWER(cudaMalloc(&q, 0));
    printf("its pointer is %s\n", q ? "not null" : "null");
    ANSWER(cudaMalloc(NULL, 100));
    ANSWER(cudaMallocManaged(&q, 0, cudaMemAttachGlobal));
    ANSWER(cudaMallocPitch(&q, &pitch, 0, 10));
    DRIVER_ANSWER(alloc_pitch(&block, &pitch, 0, 10, 4));
    DRIVER_ANSWER(alloc_pitch(&block, &pitch, 10, 0, 4));
    DRIVER_ANSWER(alloc_pitch(&block, &pitch, 10, 10, 3));
    ANSWER(cudaMallocManaged(&q, 100, 77));

    /* wrong frees */
    ANSWER(cudaFree(NULL));
    ANSWER(cudaFree((void *)0x1234000));
    ANSWER(cudaFree(host));
    DRIVER_ANSWER(mem_free(0));
    DRIVER_ANSWER(mem_free(0x1234001));
    MUST(cudaMalloc((void **)&p, BYTES));
    MUST(cudaMalloc((void **)&neighbour, BYTES));
    MUST(cudaMemset(p, 0x5a, BYTES));
    MUST(cudaMemset(neighbour, 0xa5, BYTES));
    ANSWER(cudaFree(p + 1));
    ANSWER(cudaFree(p + 512));
    ANSWER(cudaFree(p + BYTES - 1));
    MUST(cudaMemcpy(host, p, BYTES, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < BYTES; i++)
        CHECK(host[i] == 0x5a);

    /* questions about it */
    block = (CUdeviceptr)p;
    range_of("the block", block, 0);
    range_of("an address inside", block, BYTES / 2);
    range_of("its last byte", block, BYTES - 1);
    range_of("one past it", block, BYTES);
    DRIVER_ANSWER(get_address_range(NULL, &bytes, block));
    printf("which is %zu bytes\n", bytes);
    DRIVER_ANSWER(get_address_range(&base, NULL, block));
    printf("which is %s\n", base == block ? "right" : "WRONG");
    DRIVER_ANSWER(get_address_range(NULL, NULL, block));
    DRIVER_ANSWER(get_address_range(&base, &bytes, 0x1234000));
    attributes_of("the block", block, 0);
    attributes_of("an address inside", block, BYTES - 1);

    /* freed */
    ANSWER(cudaFree(p));
    ANSWER(cudaFree(p));
    DRIVER_ANSWER(mem_free(block));
    range_of("the freed block", block, 0);
    attributes_of("the freed block", block, 0);
    MUST(cudaMemcpy(host, neighbour, BYTES, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < BYTES; i++)
        CHECK(host[i] == 0xa5);
    ANSWER(cudaFree(neighbour));

    /* frees of the other kinds */
    MUST(cudaMalloc((void **)&p, BYTES));
    ANSWER(cudaFreeAsync(p, NULL));
    MUST(cudaMallocAsync((void **)&p, BYTES, NULL));
    ANSWER(cudaFree(p));
    MUST(cudaMallocManaged((void **)&p, BYTES, cudaMemAttachGlobal));
    ANSWER(cudaFreeAsync(p, NULL));
    ANSWER(cudaFree(p));
    MUST(cudaMalloc((void **)&p, BYTES));
    DRIVER_ANSWER(mem_free((CUdeviceptr)p));
    ANSWER(cudaFree(p));

    /* memory information */
    MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
    MUST(cudaMemGetInfo(&free_again, &total_again));
    printf("memory information: %s\n", free_bytes <= total_bytes && free_bytes > 0 &&
                                               total_bytes == total_again &&
                                               free_again <= total_again
                                           ? "right"
                                           : "WRONG");
    return 0;
}

static int huge(void)
{
    void *p = NULL;
    size_t pitch = 0;
    CUdeviceptr block;

    ANSWER(cudaMalloc(&p, (size_t)1 << 60));
    ANSWER(cudaMalloc(&p, SIZE_MAX));
    ANSWER(cudaMalloc(&p, SIZE_MAX - 510));
    ANSWER(cudaMalloc(&p, SIZE_MAX - 511));
    ANSWER(cudaMalloc(&p, SIZE_MAX - ((size_t)2 << 20) + 2));
    ANSWER(cudaMalloc(&p, SIZE_MAX / 2 + 1));
    ANSWER(cudaMalloc(&p, (size_t)1 << 50));
    ANSWER(cudaMallocPitch(&p, &pitch, (size_t)1 << 40, (size_t)1 << 40));
    DRIVER_ANSWER(alloc_pitch(&block, &pitch, SIZE_MAX, 2, 4));
    DRIVER_ANSWER(alloc_pitch(&block, &pitch, (size_t)1 << 33, (size_t)1 << 33, 16));
    printf("the pointer is %s\n", p ? "not null" : "null");
    MUST(cudaMalloc(&p, 1000)); /* and all is well afterwards */
    MUST(cudaFree(p));
    return 0;
}

static bool near(size_t bytes, size_t wanted_bytes)
{
    return bytes + ((size_t)2 << 20) >= wanted_bytes && bytes <= wanted_bytes + ((size_t)2 << 20);
}

static int information(void)
{
    size_t bytes = (size_t)64 << 20, before, with, after, total;
    void *first, *block;

    MUST(cudaMalloc(&first, 1000));
    MUST(cudaMemGetInfo(&before, &total));
    MUST(cudaMalloc(&block, bytes));
    MUST(cudaMemGetInfo(&with, &total));
    MUST(cudaFree(block));
    MUST(cudaMemGetInfo(&after, &total));
    MUST(cudaFree(first));
    /* The driver's own unit is 2 MiB. */
    printf("information: %s were taken, %s came back, total %zu bytes\n",
           near(before - with, bytes) ? "64 MiB" : "NOT 64 MiB",
           near(after - with, bytes) ? "64 MiB" : "NOT 64 MiB", total);
    return 0;
}

static const struct part {
    const char *name;
    int (*run)(void);
    bool wanted_by_default;
} parts[] = {
    {"mix", mix, true},
    {"reuse", reuse, true},
    {"errors", errors, true},
    {"huge", huge, false},
    {"information", information, false},
};

static int usage(void)
{
    fprintf(stderr, "usage: memory_mix [--seed N] [--threads N] [--rounds N] [--log2-limit N] "
                    "[mix|reuse|errors|huge|information]...\n");
    return 2;
}

int main(int argc, char **argv)
{
    bool wanted[sizeof(parts) / sizeof(parts[0])] = {false};
    bool any = false;
    int failed = 0;

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc, known = false;
        if (!strcmp(argv[i], "--seed") && more) {
            settings.seed = strtoull(argv[++i], NULL, 10);
            continue;
        }
        if (!strcmp(argv[i], "--threads") && more) {
            settings.threads = (unsigned)atoi(argv[++i]);
            continue;
        }
        if (!strcmp(argv[i], "--rounds") && more) {
            settings.rounds = (unsigned)atoi(argv[++i]);
            continue;
        }
        if (!strcmp(argv[i], "--log2-limit") && more) {
            settings.log2_limit = (unsigned)atoi(argv[++i]);
            continue;
        }
        for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]); j++) {
            if (strcmp(argv[i], parts[j].name))
                continue;
            wanted[j] = any = known = true;
        }
        if (!known)
            return usage();
    }
    if (settings.threads < 1 || settings.threads > THREADS_MAX || settings.log2_limit < 1 ||
        settings.log2_limit > 30)
        return usage();

    prepare();
    for (size_t j = 0; j < sizeof(parts) / sizeof(parts[0]); j++)
        if (any ? wanted[j] : parts[j].wanted_by_default)
            failed |= parts[j].run();
    MUST(cudaGetLastError());
    return failed;
}
