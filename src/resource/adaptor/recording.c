/* SPDX-License-Identifier: Apache-2.0 */
/* recording: every allocation and free, in a compact file (recording/format.h) that `rmmshim
 * export` and `rmmshim replay` read. */
#include "recording/recorder.h"

#include "base/counter.h"
#include "base/log.h"
#include "base/path.h"
#include "resource/resource.h"
#include "trace/call_site.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>

struct recording_config {
    const char *path;
    size_t size;
    size_t stacks;
};

struct recording {
    struct rs_mr base;
    struct rs_recorder *recorder;
    unsigned stack;        /* the definition's number */
    size_t stacks_each;    /* bytes; SIZE_MAX: no call sites */
    _Atomic size_t sample; /* bytes allocated since the last call site */
};

static struct recording *recording_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct recording, base);
}

/* Of a sample, the block counts in which a multiple of stacks_each bytes is reached: a block's
 * chance is its share of the bytes. */
static bool is_sampled(struct recording *recording, size_t size_bytes)
{
    size_t before;

    if (RS_LIKELY(recording->stacks_each == SIZE_MAX))
        return false;
    if (size_bytes >= recording->stacks_each)
        return true;
    before = atomic_fetch_add_explicit(&recording->sample, size_bytes, memory_order_relaxed);
    return before / recording->stacks_each != (before + size_bytes) / recording->stacks_each;
}

static void record(struct recording *recording, enum rs_recording_event_kind kind,
                   CUdeviceptr address, size_t size_bytes, CUstream stream, unsigned site)
{
    rs_recorder_put(recording->recorder, &(struct rs_recorder_event){
                                             .kind = kind,
                                             .address = address,
                                             .size_bytes = size_bytes,
                                             .stream = stream,
                                             .stack = recording->stack,
                                             .site = site,
                                         });
}

static unsigned site_of(struct recording *recording, size_t size_bytes)
{
    return is_sampled(recording, size_bytes) && rs_recorder_is_on(recording->recorder)
               ? rs_recorder_site(recording->recorder, rs_call_site_here())
               : 0;
}

/* After CUDA_ERROR_NOT_READY a request with more effort follows: that is no refusal yet. */
static CUresult recording_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                   enum rs_effort effort, struct rs_allocation *out)
{
    struct recording *recording = recording_of(mr);
    CUresult result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);

    if (RS_LIKELY(result == CUDA_SUCCESS))
        record(recording, RS_RECORDING_ALLOCATE, out->address, size_bytes, stream,
               site_of(recording, size_bytes));
    else if (result != CUDA_ERROR_NOT_READY)
        record(recording, RS_RECORDING_REFUSED, 0, size_bytes, stream,
               recording->stacks_each == SIZE_MAX
                   ? 0
                   : rs_recorder_site(recording->recorder, rs_call_site_here()));
    return result;
}

/* Records before upstream frees, so that the next allocation of the address comes later. */
static CUresult recording_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                     CUstream stream)
{
    record(recording_of(mr), RS_RECORDING_FREE, allocation->address, allocation->size_bytes, stream,
           0);
    return rs_mr_deallocate(mr->upstream[0], allocation, stream);
}

static void recording_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct recording *recording = recording_of(mr);

    (void)memory_is_gone;
    record(recording, RS_RECORDING_STACK_GONE, 0, 0, NULL, 0);
    free(recording);
}

static const struct rs_mr_ops recording_ops = {
    .allocate = recording_allocate,
    .deallocate = recording_deallocate,
    .destroy = recording_destroy,
};

/* 0 device, 1 managed, 2 host. */
static unsigned memory_of(const struct rs_mr *mr)
{
    if (mr->memories & 1u << RS_MEMORY_MANAGED)
        return 1;
    return mr->memories == 1u << RS_MEMORY_HOST ? 2 : 0;
}

static int recording_create(const struct rs_environment *environment, const void *config,
                            struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct recording_config *settings = config;
    struct recording *recording = calloc(1, sizeof(*recording));
    char path[PATH_MAX];
    const char *at, *reason;

    if (!recording)
        return -ENOMEM;
    if (!rs_path_expand(settings->path, path, sizeof(path), &at, &reason)) {
        /* The path was validated: a variable in it has gone since. */
        rs_log("recording: %s: %s", settings->path, reason);
        free(recording);
        return -EINVAL;
    }
    recording->recorder = rs_recorder_get(path, settings->size);
    if (!recording->recorder) {
        free(recording);
        return -ENOMEM;
    }
    recording->stacks_each = settings->stacks;
    rs_mr_init(&recording->base, &recording_ops, &rs_mr_descriptor_recording, upstream);
    recording->stack =
        rs_recorder_stack(recording->recorder, (int)environment->device,
                          memory_of(&recording->base), upstream[0]->descriptor->name);
    *out = &recording->base;
    return 0;
}

static bool recording_validate(const void *config, const struct rs_environment *environment,
                               const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    const struct recording_config *settings = config;
    char path[PATH_MAX];
    const char *at, *reason;

    (void)environment;
    if (!settings->path || !*settings->path) {
        rs_diagnose(diagnostics, source, NULL, "recording needs a path, as in path=%%e.rec");
        return false;
    }
    if (!rs_path_expand(settings->path, path, sizeof(path), &at, &reason)) {
        rs_diagnose(diagnostics, source, NULL, "path '%s': %s", settings->path, reason);
        return false;
    }
    return true;
}

static const struct rs_option recording_options[] = {
    RS_OPTION_TEXT_ROW(struct recording_config, path, "",
                       "file to write, with %p %h %e %t %r %q{VAR}; must be given"),
    RS_OPTION_SIZE_ROW(struct recording_config, size, "1GiB",
                       "the file's greatest size; then the newest events replace the oldest ones",
                       .minimum = 1 << 20, .unit_below = 1 << 20),
    RS_OPTION_SIZE_ROW(struct recording_config, stacks, "none",
                       "call sites: 1 of each block, a size of one block in so many bytes",
                       .minimum = 1, .none = true),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_recording = {
    .name = "recording",
    .summary = "records each allocation and free in a compact file, for rmmshim export and replay",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .passes_allocations = true,
    .config_bytes = sizeof(struct recording_config),
    .options = recording_options,
    .validate = recording_validate,
    .create = recording_create,
};
