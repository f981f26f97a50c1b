/* SPDX-License-Identifier: Apache-2.0 */
/* system: the process's own memory, which the device uses directly where it can (HMM, ATS).  RMM's
 * system_memory_resource.
 *
 * free() waits for nothing, unlike cudaFree.  So the caller of a free here must know that no work
 * uses the block: a kernel would write into memory that the program's own malloc handed out since.
 */
#include "driver/driver.h"

#include "base/request.h"
#include "resource/leaf/detached_leaf.h"
#include "shared/published.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    LARGE_BYTES = 2 << 20
}; /* a block from this size on has a mapping of its own, which begins at a large page */

static void *map_large(size_t size_bytes)
{
    size_t mapped_bytes, before_bytes;
    char *memory;

    if (__builtin_add_overflow(size_bytes, LARGE_BYTES, &mapped_bytes))
        return NULL;
    memory = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    before_bytes = -(uintptr_t)memory % LARGE_BYTES;
    if (before_bytes > 0)
        /* Pages that stay mapped after a failure were never touched. */
        (void)munmap(memory, before_bytes);
    if (before_bytes < LARGE_BYTES)
        (void)munmap(memory + before_bytes + size_bytes, LARGE_BYTES - before_bytes);
    return memory + before_bytes;
}

/* Computes the bytes that a block takes: whole large pages for a large block, so that it ends on a
 * page. */
static bool round_size(size_t size_bytes, size_t *rounded_bytes)
{
    return rs_round_up(size_bytes, size_bytes >= LARGE_BYTES ? LARGE_BYTES : RS_BLOCK_ALIGNMENT,
                       rounded_bytes);
}

static CUresult take_once(struct rs_detached_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    struct rs_account *account = leaf->environment->account;
    size_t rounded_bytes;
    void *memory;

    if (!round_size(size_bytes, &rounded_bytes) ||
        !rs_account_take(account, size_bytes, 0, RS_MEMORY_HOST))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory = size_bytes >= LARGE_BYTES ? map_large(rounded_bytes)
                                       : aligned_alloc(RS_BLOCK_ALIGNMENT, rounded_bytes);
    if (!memory) {
        rs_account_untake(account, size_bytes, 0, RS_MEMORY_HOST);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    rs_account_taken(account, size_bytes, 0, RS_MEMORY_HOST);
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* Before a request is out of memory, all stacks that hold host memory give idle memory back. */
static CUresult system_take(struct rs_detached_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                            CUdeviceptr *address)
{
    const struct rs_environment *environment = leaf->environment;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = RS_MEMORY_HOST};
    bool reclaims = environment->reclaim && !rs_effort_is_ahead(effort);
    CUresult result;

    if (rs_effort_is_held(effort))
        return CUDA_ERROR_NOT_READY; /* this leaf holds no memory */
    rs_request_begin();
    do {
        refusal.releases = rs_account_releases(environment->account);
        result = take_once(leaf, size_bytes, address);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && reclaims &&
             environment->reclaim(environment, &refusal, !environment->frees_are_ready));
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        rs_request_note_short();
    rs_request_end();
    return result;
}

static CUresult system_give(struct rs_detached_leaf *leaf, CUdeviceptr address, size_t size_bytes)
{
    void *memory = (void *)(uintptr_t)address;
    size_t rounded_bytes = 0;

    if (size_bytes < LARGE_BYTES)
        free(memory);
    else if (!round_size(size_bytes, &rounded_bytes) || munmap(memory, rounded_bytes) != 0)
        return CUDA_ERROR_UNKNOWN; /* the process has reached its limit of mappings */
    rs_account_give(leaf->environment->account, size_bytes, 0, RS_MEMORY_HOST);
    return CUDA_SUCCESS;
}

static const struct rs_detached_calls system_calls = {
    .take = system_take,
    .give = system_give,
    .give_late = system_give,
};

static bool system_validate(const void *config, const struct rs_environment *environment,
                            const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    (void)config;
    if (!environment ||
        rs_driver_device_has(environment->device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS))
        return true;
    rs_diagnose(diagnostics, source, NULL,
                "system needs a device that reaches the process's own memory (HMM or ATS), which "
                "this one does not");
    return false;
}

static int system_create(const struct rs_environment *environment, const void *config,
                         struct rs_mr *const *upstream, struct rs_mr **out)
{
    struct rs_detached_leaf *leaf = RS_PUBLISHED_NEW(struct rs_detached_leaf);

    (void)config;
    (void)upstream;
    if (!leaf)
        return -ENOMEM;
    rs_detached_leaf_init(leaf, &rs_mr_descriptor_system, environment, &system_calls);
    *out = &leaf->base;
    return 0;
}

static const struct rs_option system_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_system = {
    .name = "system",
    .aliases = {"system_memory"},
    .summary = "the process's own memory, on devices that reach it (HMM, ATS)",
    .memory = RS_MEMORY_HOST,
    .overcommits = true,
    .frees = RS_FREE_AT_ONCE,
    .dies_with_context = false,
    .options = system_options,
    .validate = system_validate,
    .create = system_create,
};
