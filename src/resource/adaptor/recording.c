/* SPDX-License-Identifier: Apache-2.0 */
/* recording: writes events of its stack to the process's recording (recording/format.h).  Events
 * are allocations, refusals, frees, slow requests, trims, and changes of the device's held bytes or
 * limit. */
#include "recording/recorder.h"

#include "base/log.h"
#include "base/output.h"
#include "base/request.h"
#include "resource/resource.h"
#include "trace/call_site.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RESOURCES_BYTES = 512 };

struct recording_config {
    const char *path;
    size_t size;
    size_t sites;
    int kind;
};

struct recording {
    struct rs_mr base;
    size_t sites_each; /* a thread records one call site each time that it has allocated so many
                          bytes; SIZE_MAX: none */
    uint64_t place;    /* the place of the stack's events, without the stream (rs_recorder_place) */
    const struct rs_account *account;       /* of the device; NULL: there is none */
    _Atomic size_t held_bytes, limit_bytes; /* the values that were recorded last */
};

/* The bytes that the thread has allocated since they last reached a multiple of sites_each. */
static __thread size_t unsampled_bytes;

/* True if the call site of this block is recorded: the block makes the thread's bytes reach the
 * next multiple of sites_each. */
static bool is_sampled(const struct recording *recording, size_t size_bytes)
{
    if (RS_LIKELY(recording->sites_each == SIZE_MAX))
        return false;
    if (size_bytes < recording->sites_each - unsampled_bytes) {
        unsampled_bytes += size_bytes;
        return false;
    }
    unsampled_bytes = (unsampled_bytes + size_bytes) % recording->sites_each;
    return true;
}

/* Records the device's held bytes and limit if they have changed since they were last recorded.
 * Called at each allocation, free and trim, since calls outside the stack change them too. */
RS_HOT_INLINE void record_held(struct recording *recording)
{
    size_t held, limit;

    if (!recording->account)
        return;
    held = atomic_load_explicit(&recording->account->charged_bytes, memory_order_relaxed);
    limit = atomic_load_explicit(&recording->account->limit_bytes, memory_order_relaxed);
    if (RS_LIKELY(held == atomic_load_explicit(&recording->held_bytes, memory_order_relaxed) &&
                  limit == atomic_load_explicit(&recording->limit_bytes, memory_order_relaxed)))
        return;
    atomic_store_explicit(&recording->held_bytes, held, memory_order_relaxed);
    atomic_store_explicit(&recording->limit_bytes, limit, memory_order_relaxed);
    rs_record(RS_RECORDING_HELD, limit, held, recording->place, 0);
}

/* Allocates from upstream, and records the result.  CUDA_ERROR_NOT_READY is no refusal: the caller
 * asks again with more effort. */
static CUresult recording_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                   enum rs_effort effort, struct rs_allocation *out)
{
    struct recording *recording = RS_MR_AS(recording, mr);
    uint64_t place = recording->place | rs_recorder_place(0, 0, stream);
    CUresult result;
    uint32_t site = 0;
    bool is_served;

    rs_request_took_ns = 0;
    result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);
    if (result == CUDA_ERROR_NOT_READY)
        return result;
    record_held(recording);
    if (RS_UNLIKELY(rs_request_took_ns))
        rs_record(RS_RECORDING_SLOW, rs_request_took_ns, size_bytes, place, 0);
    is_served = result == CUDA_SUCCESS;
    if (is_served ? is_sampled(recording, size_bytes) : recording->sites_each != SIZE_MAX)
        site = rs_recorder_site(rs_call_site_here());
    rs_record(is_served ? RS_RECORDING_ALLOCATE : RS_RECORDING_REFUSED,
              is_served ? out->address : 0, size_bytes, place, site);
    return result;
}

/* Records before upstream frees: the next allocation of the address must be recorded later. */
static CUresult recording_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                     CUstream stream)
{
    struct recording *recording = RS_MR_AS(recording, mr);

    record_held(recording);
    rs_record(RS_RECORDING_DEALLOCATE, allocation->address, allocation->size_bytes,
              recording->place | rs_recorder_place(0, 0, stream), 0);
    return rs_mr_deallocate(mr->upstream[0], allocation, stream);
}

static size_t recording_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct recording *recording = RS_MR_AS(recording, mr);
    size_t given_bytes = rs_mr_trim_with(mr->upstream[0], trim);

    rs_record(RS_RECORDING_TRIM, 0, given_bytes, recording->place, 0);
    record_held(recording);
    return given_bytes;
}

static void recording_context_ended(struct rs_mr *mr)
{
    rs_record(RS_RECORDING_STACK_GONE, 0, 0, RS_MR_AS(recording, mr)->place, 0);
}

static const struct rs_mr_ops recording_ops = {
    .allocate = recording_allocate,
    .deallocate = recording_deallocate,
    .trim = recording_trim,
    .context_ended = recording_context_ended,
};

/* Writes the names of `mr` and of the resources on its first upstream path: "reuse(pool(cuda))". */
static void name_resources(const struct rs_mr *mr, char text[RESOURCES_BYTES])
{
    size_t depth = 0;

    text[0] = '\0';
    for (; mr; mr = mr->upstream[0], depth++)
        rs_text_add(text, RESOURCES_BYTES, "%s%s", depth ? "(" : "", mr->descriptor->name);
    for (; depth > 1; depth--)
        rs_text_add(text, RESOURCES_BYTES, ")");
}

static const char sample; /* its address is the key of a definition (rs_recorder_define) */

static void record_stack(struct rs_mr *mr)
{
    const struct recording *recording = RS_MR_AS(recording, mr);
    char text[RESOURCES_BYTES];

    if (recording->sites_each > 1 && recording->sites_each != SIZE_MAX)
        (void)rs_recorder_define(RS_RECORDING_SAMPLE, &sample, recording->sites_each, NULL, 0);
    name_resources(mr->upstream[0], text);
    rs_record(RS_RECORDING_STACK, 0, mr->environment->total_bytes, recording->place,
              rs_recorder_define(RS_RECORDING_RESOURCE, NULL, 0, text, strlen(text)));
}

static int recording_init(struct rs_mr *mr, const void *config)
{
    const struct recording_config *settings = config;
    struct recording *recording = RS_MR_AS(recording, mr);
    struct rs_account *account = mr->environment->account;
    RS_PATH_BUFFER(path);
    const char *at, *reason;

    if (!path)
        return -ENOMEM;
    if (!rs_path_expand(settings->path, path, PATH_MAX, &at, &reason)) {
        /* The path was valid when it was parsed, so a variable in it has been unset since. */
        rs_log("recording: %s: %s", settings->path, reason);
        return -EINVAL;
    }
    recording->sites_each = settings->sites;
    recording->account = account && account->device ? account->device : account;
    recording->place = rs_recorder_place((unsigned)mr->environment->device,
                                         (enum rs_recording_memory)settings->kind, NULL) |
                       rs_recorder_new_stack();
    if (rs_recorder_begin(path, settings->size)) {
        rs_request_time_all();
        record_stack(mr);
    }
    return 0;
}

static bool recording_validate(const void *config, const struct rs_validation *of)
{
    const struct recording_config *settings = config;
    RS_PATH_BUFFER(path);
    const char *at, *reason;

    if (!settings->path || !*settings->path)
        return RS_REFUSE(of, "'recording' needs a path, as in path=app.rec");
    /* Without memory for `path` nothing is checked here; recording_init then fails. */
    return !path || rs_path_expand(settings->path, path, PATH_MAX, &at, &reason) ||
           RS_REFUSE(of, "path '%s': %s", settings->path, reason);
}

static const char *const kinds[] = {"device", "pinned", "managed", NULL};

static const struct rs_option recording_options[] = {
    RS_OPTION_TEXT_ROW(
        struct recording_config, path, "",
        "path of the file to write, which may contain %p %h %e %t %r %q{VAR} as in RMM_RECORD; a "
        "process writes one recording, so each `recording` resource must have the same path; "
        "required"),
    RS_OPTION_SIZE_ROW(
        struct recording_config, size, "256MiB",
        "the maximum size of the file; when it is full, new events replace the oldest ones",
        .minimum = 4 << 20, .unit_below = 4 << 20),
    RS_OPTION_SIZE_ROW(struct recording_config, sites, "none",
                       "for which blocks the call site is recorded; all: for every block; a size "
                       "such as 1MiB: for one block in each 1 MiB that a thread allocates; none "
                       "(the default): for no block",
                       .minimum = 1, .none = true, .all = true),
    RS_OPTION_WORD_ROW(struct recording_config, kind, kinds, "device",
                       "the kind of memory under which the recording lists the blocks: device (the "
                       "default), pinned or managed"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_recording = {
    .name = "recording",
    .summary =
        "records each allocation and each free in a compact file, which `rmmshim report` reads",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct recording_config),
    .options = recording_options,
    .validate = recording_validate,
};

RS_MR_CLASS(recording, struct recording, recording_ops, recording_init);
