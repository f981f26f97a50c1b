/* SPDX-License-Identifier: Apache-2.0 */
/* Asks about blocks of every kind and of many sizes whatever the driver can be asked, at their
 * base, inside, at their last byte, one past the end and after they are freed.  Prints one line per
 * answer, in words that do not depend on where memory lies: a run under the library is compared
 * with one without, line by line (test_attributes.py, tests/gpu/test_attributes.py).
 *
 *   KIND BYTES WHERE QUESTION ANSWER */
#define __CUDA_API_VERSION_INTERNAL
#include "../samples/sample.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 3, ASKED = 1 /* in the middle */, PAGE = 4096, NOT_ANSWERED = 0x55 };
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static CUcontext context;

/* ---- kinds of blocks ---- */

static CUresult device_allocate(CUdeviceptr *block, size_t bytes)
{
    return cuMemAlloc_v2(block, bytes);
}

/* A row of 512 bytes for each 512: what the driver makes of it is its own affair. */
static CUresult pitch_allocate(CUdeviceptr *block, size_t bytes)
{
    size_t pitch;

    return cuMemAllocPitch_v2(block, &pitch, bytes, 1, 4);
}

static CUresult runtime_allocate(CUdeviceptr *block, size_t bytes)
{
    return (CUresult)cudaMalloc((void **)block, bytes);
}

static CUresult runtime_free(CUdeviceptr block)
{
    return (CUresult)cudaFree((void *)block);
}

static CUresult managed_allocate(CUdeviceptr *block, size_t bytes)
{
    return cuMemAllocManaged(block, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult pinned_allocate(CUdeviceptr *block, size_t bytes)
{
    return cuMemHostAlloc((void **)block, bytes, 0);
}

static CUresult portable_allocate(CUdeviceptr *block, size_t bytes)
{
    return cuMemHostAlloc((void **)block, bytes,
                          CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
}

static CUresult pinned_free(CUdeviceptr block)
{
    return cuMemFreeHost((void *)block);
}

static const struct kind {
    const char *name;
    CUresult (*allocate)(CUdeviceptr *block, size_t bytes);
    CUresult (*free)(CUdeviceptr block);
} kinds[] = {
    {"device", device_allocate, cuMemFree_v2},   {"pitch", pitch_allocate, cuMemFree_v2},
    {"runtime", runtime_allocate, runtime_free}, {"managed", managed_allocate, cuMemFree_v2},
    {"pinned", pinned_allocate, pinned_free},    {"portable", portable_allocate, pinned_free},
};

/* None is a multiple of 512 where the end is asked about: what is there may be anybody's. */
static const size_t sizes[] = {1, 1000, 100000, MIB, 3 * MIB + 100, 40 * MIB};

/* What is being asked about. */
static const struct kind *kind;
static size_t size_bytes;
static CUdeviceptr blocks[BLOCKS], base;
static const char *where;

static void say(const char *question, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(const char *question, const char *format, ...)
{
    va_list arguments;

    printf("%s %zu %s %s ", kind->name, size_bytes, where, question);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

static void say_result(const char *question, CUresult result)
{
    say(question, result == CUDA_SUCCESS ? "ok" : "error %d", (int)result);
}

static const char *yes(bool is_so)
{
    return is_so ? "yes" : "no";
}

/* ---- pointer attributes ---- */

union answer {
    unsigned char bytes[16];
    unsigned number;
    int ordinal;
    unsigned long long wide;
    size_t size;
    CUdeviceptr address;
    void *host;
    CUcontext context;
    CUmemoryPool pool;
};

static union answer fresh(void)
{
    union answer answer;

    memset(&answer, NOT_ANSWERED, sizeof(answer));
    return answer;
}

/* Whether the mapping that begins there holds an address.  Not whether it begins with the block or
 * before: the driver's own small blocks share mappings, which of them begins one is chance. */
static const char *around(CUdeviceptr mapping, CUdeviceptr at)
{
    size_t bytes = 0;

    (void)cuPointerGetAttribute(&bytes, (CUpointer_attribute)18 /* MAPPING_SIZE */, at);
    return !mapping ? "none" : at - mapping < bytes ? "around it" : "elsewhere";
}

static const char *in_words(CUpointer_attribute attribute, const union answer *answer,
                            CUdeviceptr at)
{
    static char words[64];
    union answer untouched = fresh();

    /* The driver does so of an address that it does not know. */
    if (!memcmp(answer, &untouched, sizeof(untouched)))
        return "untouched";
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return !answer->context ? "none" : answer->context == context ? "the block's" : "another";
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return !answer->address ? "none" : answer->address == at ? "the same" : "another";
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        snprintf(words, sizeof(words), "base%+lld", (long long)(answer->address - base));
        return answer->address ? words : "none";
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return around(answer->address, at);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return !answer->size                ? "none"
               : answer->size < size_bytes  ? "less"
               : answer->size == size_bytes ? "the block's"
                                            : "more";
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        snprintf(words, sizeof(words), "%zu", answer->size);
        return words;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return answer->pool ? "a pool" : "none";
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: /* more about them: ids() */
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return answer->wide ? "a number" : "0";
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        snprintf(words, sizeof(words), "%llu", answer->wide);
        return words;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        snprintf(words, sizeof(words), "%d", answer->ordinal);
        return words;
    default:
        snprintf(words, sizeof(words), "%u", answer->number);
        return words;
    }
}

/* By number: the newest ones have no name in older headers. */
static const struct attribute {
    const char *name;
    CUpointer_attribute number;
} attributes[] = {
    {"CONTEXT", 1},
    {"MEMORY_TYPE", 2},
    {"DEVICE_POINTER", 3},
    {"HOST_POINTER", 4},
    {"SYNC_MEMOPS", 6},
    {"BUFFER_ID", 7},
    {"IS_MANAGED", 8},
    {"DEVICE_ORDINAL", 9},
    {"IS_LEGACY_CUDA_IPC_CAPABLE", 10},
    {"RANGE_START_ADDR", 11},
    {"RANGE_SIZE", 12},
    {"MAPPED", 13},
    {"ALLOWED_HANDLE_TYPES", 14},
    {"IS_GPU_DIRECT_RDMA_CAPABLE", 15},
    {"ACCESS_FLAGS", 16},
    {"MEMPOOL_HANDLE", 17},
    {"MAPPING_SIZE", 18},
    {"MAPPING_BASE_ADDR", 19},
    {"MEMORY_BLOCK_ID", 20},
    {"IS_HW_DECOMPRESS_CAPABLE", 21},
    {"number_22", 22}, /* of the future */
    {"number_0", 0},
};
enum { ATTRIBUTES = sizeof(attributes) / sizeof(attributes[0]), REAL_ATTRIBUTES = 19 };

/* Each by itself. */
static void ask_single(CUdeviceptr at)
{
    for (int i = 0; i < ATTRIBUTES; i++) {
        union answer answer = fresh();
        CUresult result = cuPointerGetAttribute(&answer, attributes[i].number, at);
        if (result == CUDA_SUCCESS)
            say(attributes[i].name, "%s", in_words(attributes[i].number, &answer, at));
        else
            say_result(attributes[i].name, result);
    }
    say_result("NULL_data", cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
}

/* Those that all supported drivers know, at once. */
static void ask_several(CUdeviceptr at)
{
    CUpointer_attribute asked[REAL_ATTRIBUTES];
    union answer answers[REAL_ATTRIBUTES];
    void *data[REAL_ATTRIBUTES];
    char question[64];
    CUresult result;

    for (int i = 0; i < REAL_ATTRIBUTES; i++) {
        answers[i] = fresh();
        asked[i] = attributes[i].number;
        data[i] = &answers[i];
    }
    result = cuPointerGetAttributes(REAL_ATTRIBUTES, asked, data, at);
    say_result("several", result);
    for (int i = 0; i < REAL_ATTRIBUTES && result == CUDA_SUCCESS; i++) {
        snprintf(question, sizeof(question), "several_%s", attributes[i].name);
        say(question, "%s", in_words(asked[i], &answers[i], at));
    }
    say_result("several_none", cuPointerGetAttributes(0, asked, data, at));
}

static void ask_runtime(CUdeviceptr at)
{
    struct cudaPointerAttributes answer;
    cudaError_t result;

    memset(&answer, NOT_ANSWERED, sizeof(answer));
    result = cudaPointerGetAttributes(&answer, (void *)at);
    if (result != cudaSuccess) {
        say_result("runtime", (CUresult)result);
        (void)cudaGetLastError();
        return;
    }
    say("runtime", "type %d, device %d, device pointer %s, host pointer %s", (int)answer.type,
        answer.device, yes(answer.devicePointer == (void *)at),
        answer.hostPointer == (void *)at ? "yes"
        : answer.hostPointer             ? "another"
                                         : "none");
}

/* ---- the other questions ---- */

static void ask_range(CUdeviceptr at)
{
    CUdeviceptr start = 0;
    size_t bytes = 0;
    CUresult result = cuMemGetAddressRange_v2(&start, &bytes, at);

    if (result == CUDA_SUCCESS)
        say("address_range", "base%+lld, %zu bytes", (long long)(start - base), bytes);
    else
        say_result("address_range", result);
}

static void ask_host(CUdeviceptr at)
{
    CUdeviceptr device = 0;
    unsigned flags = 0;
    CUresult result = cuMemHostGetFlags(&flags, (void *)at);

    if (result == CUDA_SUCCESS)
        say("host_flags", "%u", flags);
    else
        say_result("host_flags", result);
    result = cuMemHostGetDevicePointer_v2(&device, (void *)at, 0);
    if (result == CUDA_SUCCESS)
        say("host_device_pointer", "%s", device == at ? "the same" : "another");
    else
        say_result("host_device_pointer", result);
}

static void ask_allocation_handle(CUdeviceptr at)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemRetainAllocationHandle(&handle, (void *)at);

    say_result("allocation_handle", result);
    if (result == CUDA_SUCCESS)
        MUST(cuMemRelease(handle));
}

/* Its pages as a file descriptor; bytes from there on. */
static void ask_range_handle(const char *question, CUdeviceptr at, size_t bytes)
{
    int fd = -1;
    CUresult result =
        cuMemGetHandleForAddressRange(&fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

    say_result(question, result);
    if (result == CUDA_SUCCESS)
        close(fd);
}

static CUresult set_sync(CUdeviceptr at, unsigned value)
{
    return cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
}

static void ask_settable(CUdeviceptr at)
{
    unsigned value = 0;

    say_result("set_IS_MANAGED",
               cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
    say_result("set_NULL", cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    say_result("set_SYNC_MEMOPS_0", set_sync(at, 0));
}

static void ask(const char *here, CUdeviceptr at)
{
    where = here;
    ask_single(at);
    ask_several(at);
    ask_runtime(at);
    ask_range(at);
    ask_host(at);
    ask_allocation_handle(at);
    ask_settable(at);
}

/* ---- what only a row of questions shows ---- */

static unsigned sync_of(CUdeviceptr at)
{
    unsigned value = NOT_ANSWERED;

    (void)cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
    return value;
}

static unsigned long long id_of(CUpointer_attribute attribute, CUdeviceptr at)
{
    unsigned long long id = 0;

    (void)cuPointerGetAttribute(&id, attribute, at);
    return id;
}

static bool all_differ(CUpointer_attribute attribute)
{
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < i; j++)
            if (id_of(attribute, blocks[i]) == id_of(attribute, blocks[j]))
                return false;
    return true;
}

static bool is_of_the_whole_block(CUpointer_attribute attribute)
{
    return id_of(attribute, base) == id_of(attribute, base + size_bytes / 2) &&
           id_of(attribute, base) == id_of(attribute, base + size_bytes - 1) &&
           id_of(attribute, base) == id_of(attribute, base);
}

static void ask_ids(void)
{
    where = "blocks";
    say("BUFFER_IDs_differ", "%s", yes(all_differ(CU_POINTER_ATTRIBUTE_BUFFER_ID)));
    say("BUFFER_ID_is_the_block's", "%s",
        yes(is_of_the_whole_block(CU_POINTER_ATTRIBUTE_BUFFER_ID)));
    say("MEMORY_BLOCK_IDs_differ", "%s",
        yes(all_differ((CUpointer_attribute)20 /* MEMORY_BLOCK_ID */)));
}

static void ask_sync(void)
{
    where = "blocks";
    say_result("set_SYNC_MEMOPS", set_sync(base + size_bytes / 2, 1));
    say("SYNC_MEMOPS_then", "%u, of the neighbours %u %u", sync_of(base), sync_of(blocks[0]),
        sync_of(blocks[2]));
    say_result("set_SYNC_MEMOPS_of_a_neighbour", set_sync(blocks[0], 1));
    say_result("unset_SYNC_MEMOPS_of_a_neighbour", set_sync(blocks[0], 0));
    say("SYNC_MEMOPS_at_the_end", "%u, of the neighbours %u %u", sync_of(base), sync_of(blocks[0]),
        sync_of(blocks[2]));
}

/* Asking for the tokens sets SYNC_MEMOPS. */
static void ask_tokens(void)
{
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;

    where = "blocks";
    say_result("P2P_TOKENS",
               cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, blocks[2]));
    say("SYNC_MEMOPS_after_tokens", "%u, of the neighbour %u", sync_of(blocks[2]),
        sync_of(blocks[0]));
}

/* The middle one is freed and a block of its size made, which may lie at the same place. */
static void ask_again(void)
{
    unsigned long long before = id_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, base);
    CUdeviceptr old = base;

    MUST(kind->free(base));
    ask("freed", old);
    if (size_bytes % PAGE == 0)
        ask_range_handle("range_handle", old, PAGE);
    where = "again";
    say_result("set_SYNC_MEMOPS_of_freed", set_sync(old, 1));
    for (int i = 0; i < 2 * BLOCKS; i++) {
        MUST(kind->allocate(&blocks[ASKED], size_bytes));
        base = blocks[ASKED];
        if (base == old || i == 2 * BLOCKS - 1)
            break;
        MUST(kind->free(base));
        MUST(cuCtxSynchronize());
    }
    say("BUFFER_ID_is_new", "%s", yes(id_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, base) != before));
    say("SYNC_MEMOPS", "%u", sync_of(base));
    ask("reused", base);
}

static void about_size(size_t bytes)
{
    size_bytes = bytes;
    for (int i = 0; i < BLOCKS; i++)
        MUST(kind->allocate(&blocks[i], bytes));
    base = blocks[ASKED];
    ask("base", base);
    ask("inside", base + bytes / 2);
    ask("last", base + bytes - 1);
    if (bytes % 512 != 0)
        ask("past", base + bytes);
    if (bytes % PAGE == 0) {
        where = "base";
        ask_range_handle("range_handle", base, bytes);
        ask_range_handle("range_handle_of_a_page", base, PAGE);
        ask_range_handle("range_handle_unaligned", base + 512, PAGE);
        where = "inside";
        ask_range_handle("range_handle", base + PAGE, PAGE);
    }
    ask_ids();
    ask_sync();
    ask_tokens();
    ask_again();
    for (int i = 0; i < BLOCKS; i++)
        MUST(kind->free(blocks[i]));
}

int main(int argc, char **argv)
{
    MUST(cuInit(0));
    MUST(cudaFree(NULL));
    MUST(cuCtxGetCurrent(&context));
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        kind = &kinds[k];
        if (argc > 1 && strcmp(argv[1], kind->name) != 0)
            continue;
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            /* A pitch is a whole number of 512: what was asked for is not its size. */
            about_size(kind->allocate == pitch_allocate ? (sizes[i] + 511) / 512 * 512 : sizes[i]);
        }
    }
    return 0;
}
