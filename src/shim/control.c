/* SPDX-License-Identifier: Apache-2.0 */
/* The C API (include/rmmshim/rmmshim.h).  All functions are thread safe and may be called in any
 * process at any time. */
#include "rmmshim/rmmshim.h"

#include "base/check.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/block_counts.h"
#include "context/context.h"
#include "context/limit.h"
#include "context/scope.h"
#include "context/table.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "recording/recorder.h"
#include "report/report.h"
#include "resource/adaptor/logging.h"
#include "shared/job.h"
#include "shim/control.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static_assert((int)RMMSHIM_DEVICE_MEMORY == (int)RS_KIND_DEVICE &&
                  (int)RMMSHIM_PINNED_MEMORY == (int)RS_KIND_PINNED &&
                  (int)RMMSHIM_MANAGED_MEMORY == (int)RS_KIND_MANAGED,
              "the kinds are told apart by the same numbers inside");

static __thread char last_error[RS_CONTROL_ERROR_BYTES];

const char *rmmshim_version(void)
{
    static const char mark[] = RS_JOB_MARK;

    return mark + strlen(RS_JOB_MARK_BEFORE);
}

const char *rmmshim_last_error(void)
{
    return last_error;
}

int rs_control_error(int result, const char *line)
{
    snprintf(last_error, sizeof(last_error), "%s", line ? line : "");
    return result ? result : -EINVAL;
}

static int not_served(void)
{
    char line[RS_CONTROL_ERROR_BYTES];

    snprintf(line, sizeof(line),
             "rmmshim does not serve this process: `rmmshim doctor %d` says why", (int)getpid());
    return rs_control_error(-ENOTSUP, line);
}

/* Returns 0, or the error for a process that stacks do not serve or for an unknown device. *started
 * is set to whether CUDA has been started. */
static int check_device(int device, bool *started)
{
    int count = 0;

    *started = false;
    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    *started = rs_driver_ready(false) && rs_driver.cuDeviceGetCount &&
               rs_driver.cuDeviceGetCount(&count) == CUDA_SUCCESS;
    if (device < 0 || !rs_limit_account(device) || (*started && device >= count))
        return rs_control_error(-ENODEV, "there is no device with this number");
    return 0;
}

static int check_call(int device, int kind, bool needs_cuda)
{
    bool started;
    int result = check_device(device, &started);

    if (result == 0 && needs_cuda && !started)
        result = rs_control_error(-EAGAIN, "CUDA is not initialised yet");
    if (result == 0 && (kind < 0 || kind >= RS_KINDS))
        result = rs_control_error(0, "kind is not a value of enum rmmshim_kind");
    return result;
}

static int check_started(int device)
{
    return check_call(device, RS_KIND_DEVICE, true);
}

/* ---- structs of the program, which begin with their size ---- */

static int check_size(const void *structure, const char *error)
{
    const uint64_t *size = structure;

    return size && *size >= 2 * sizeof(*size) ? 0 : rs_control_error(0, error);
}

/* Checks the arguments of a call that fills in a struct of the program. */
static int check_filling(const void *structure, const char *error, int device, int kind,
                         bool needs_cuda)
{
    int result = check_size(structure, error);

    return result == 0 ? check_call(device, kind, needs_cuda) : result;
}

/* Copies `filled` to the program's struct, whose version may have fewer members than the library's,
 * or more. Its size member becomes the number of bytes copied. */
static void copy_out(void *structure, void *filled, size_t bytes)
{
    uint64_t *size = filled;

    *size = rs_min(*(const uint64_t *)structure, bytes);
    memcpy(structure, filled, (size_t)*size);
}

/* ---- statistics ---- */

/* The memory that the leaves of stacks, their lowest resources, have from the driver. It includes
 * memory that was spilled to the host, which is charged to no limit. */
struct taken {
    size_t held_bytes, peak_bytes;
    uint64_t allocations, frees;
};

struct sums {
    struct taken taken, gone;
    size_t idle_bytes, free_blocks;
};

static void add_taken(struct taken *taken, const struct rs_report *report, const char *leaf)
{
    taken->held_bytes += rs_report_value(report, leaf, "held", 0);
    taken->peak_bytes += rs_report_value(report, leaf, "held_peak", 0);
    taken->allocations += rs_report_value(report, leaf, "driver_allocations", 0);
    taken->frees += rs_report_value(report, leaf, "driver_frees", 0);
}

static void add_leaves(struct taken *taken, struct rs_mr *mr)
{
    struct rs_report report = {.count = 0};

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        add_leaves(taken, mr->upstream[i]);
    if (mr->descriptor->upstream_count > 0)
        return;
    if (mr->ops.report)
        mr->ops.report(mr, &report);
    add_taken(taken, &report, mr->descriptor->name);
    rs_report_release(&report);
}

/* Adds the numbers of one stack. It asks for the idle bytes first: then a resource over a driver's
 * pool reads the pool's numbers anew, so that the held bytes are up to date too. */
static void add_stack_sums(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct sums *sums = data;

    (void)stack;
    sums->idle_bytes += rs_mr_idle_bytes(mr);
    sums->free_blocks += rs_mr_free_blocks(mr);
    add_leaves(&sums->taken, mr);
}

static void add_gone(void *data, const struct rs_report *report)
{
    struct sums *sums = data;

    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        if (rs_mr_descriptors[i]->upstream_count == 0)
            add_taken(&sums->gone, report, rs_mr_descriptors[i]->name);
}

/* Reads anew how much the driver's pools hold, if that is counted, since they give memory back by
 * themselves. */
static void follow_pools(int device)
{
    if (rs_limit_follows() && rs_driver_ready(false))
        rs_charge_follow_pools(device);
}

int rmmshim_get_statistics(int device, struct rmmshim_statistics *statistics)
{
    return rmmshim_get_statistics_of(device, RMMSHIM_DEVICE_MEMORY, statistics);
}

int rmmshim_get_statistics_of(int device, int kind, struct rmmshim_statistics *statistics)
{
    struct rmmshim_statistics filled;
    struct sums sums = {.idle_bytes = 0};
    const struct rs_account *account;
    struct rs_block_counts blocks;
    int result = check_filling(
        statistics, "statistics->size is not set to the size of the structure", device, kind, true);

    if (result != 0)
        return result;
    follow_pools(device);
    rs_context_each_stack_ever((enum rs_kind)kind, device, add_stack_sums, add_gone, &sums);
    account = rs_limit_account(device);
    blocks = rs_block_counts((enum rs_kind)kind, device);
    filled = (struct rmmshim_statistics){
        .used_bytes = blocks.live_bytes,
        .peak_used_bytes = blocks.peak_live_bytes,
        .used_blocks = blocks.live_blocks,
        .peak_used_blocks = blocks.peak_live_blocks,
        .allocations = blocks.entered,
        .frees = blocks.left,
        .total_bytes = sums.taken.held_bytes,
        .peak_total_bytes = rs_max(sums.taken.peak_bytes, sums.gone.peak_bytes),
        .free_bytes = sums.idle_bytes,
        .free_blocks = sums.free_blocks,
        .charged_bytes = atomic_load_explicit(&account->charged_bytes, memory_order_relaxed),
        .limit_bytes = rs_limit_get(device),
        .refusals = rs_limit_refused(device),
        .driver_allocations = sums.taken.allocations + sums.gone.allocations,
        .driver_frees = sums.taken.frees + sums.gone.frees,
        .allocated_bytes = blocks.entered_bytes,
        .freed_bytes = blocks.left_bytes,
    };
    copy_out(statistics, &filled, sizeof(filled));
    return 0;
}

static const char no_counters_size[] = "counters->size is not set to the size of the structure";

/* Checks what check_call checks, and that CUDA is started. It is also an error if only the driver
 * serves that kind of memory, since the counters then stay 0. */
static int check_counted(int device, int kind)
{
    int result = check_call(device, kind, false);

    if (result == 0 && !rs_config_stack(&rs_config, (enum rs_kind)kind, device) &&
        !(kind == RS_KIND_DEVICE && rs_pushed_of(device)) &&
        rs_block_counts((enum rs_kind)kind, device).entered == 0)
        return rs_control_error(-ENOTSUP, "without a limit or a pool for this kind of memory on "
                                          "this device, rmmshim does not count it");
    return result == 0 ? check_call(device, kind, true) : result;
}

int rmmshim_get_counters(int device, int kind, struct rmmshim_counters *counters)
{
    struct rmmshim_counters filled;
    int result = check_size(counters, no_counters_size);

    if (result == 0)
        result = check_counted(device, kind);
    if (result != 0)
        return result;
    rs_count_levels_get((enum rs_kind)kind, device, &filled);
    copy_out(counters, &filled, sizeof(filled));
    return 0;
}

int rmmshim_push_counters(int device, int kind)
{
    int result = check_counted(device, kind);

    if (result == 0 && rs_count_levels_push((enum rs_kind)kind, device) != 0)
        result = rs_control_error(-ENOMEM, "out of host memory");
    return result;
}

int rmmshim_pop_counters(int device, int kind, struct rmmshim_counters *counters)
{
    struct rmmshim_counters filled;
    int result = counters ? check_filling(counters, no_counters_size, device, kind, true)
                          : check_call(device, kind, true);

    if (result == 0 && rs_count_levels_pop((enum rs_kind)kind, device, &filled) != 0)
        result = rs_control_error(-ERANGE, "no counters are pushed, so there are none to pop");
    if (result == 0 && counters)
        copy_out(counters, &filled, sizeof(filled));
    return result;
}

int rmmshim_reset_peaks(int device, int kind)
{
    int result = check_call(device, kind, true);

    if (result == 0)
        rs_count_levels_reset_peaks((enum rs_kind)kind, device);
    return result;
}

/* ---- phases ---- */

/* The owner of the phases that the C API begins. */
static const char of_program[1];

/* Marks the begin or end of a phase in the event log and the recording. Errors are ignored: without
 * an open file there is nothing to mark, and a file that cannot be written has been reported. */
static void mark_phase(bool begins, const char *name)
{
    char text[sizeof("begin ") + RS_PHASE_NAME_BYTES];

    if (!name)
        return;
    (void)rs_recorder_mark(begins ? RS_RECORDING_PHASE_BEGIN : RS_RECORDING_PHASE_END, name, true);
    snprintf(text, sizeof(text), "%s %s", begins ? "begin" : "end", name);
    (void)rs_logging_mark(text);
}

int rmmshim_push_phase(const char *name)
{
    const char *entered;

    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    if (!name || !*name)
        return rs_control_error(0, "the name of the phase is NULL or empty");
    if (rs_phase_push(name, of_program, &entered) != 0)
        return rs_control_error(-ENOMEM, "out of host memory");
    mark_phase(true, entered);
    return 0;
}

int rmmshim_pop_phase(void)
{
    const char *name;

    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    if (rs_phase_pop(of_program, &name) != 0)
        return rs_control_error(-ERANGE,
                                "this thread has pushed no phase, so there is none to pop");
    mark_phase(false, name);
    return 0;
}

void rs_control_push_range(const char *name, const void *owner)
{
    const char *entered;

    if (rs_mode_serving() && rs_phase_push(name, owner, &entered) == 0)
        mark_phase(true, entered);
}

void rs_control_pop_range(const void *owner)
{
    const char *name;

    if (rs_mode_serving() && rs_phase_pop(owner, &name) == 0)
        mark_phase(false, name);
}

int rmmshim_get_phase(int device, int kind, unsigned index, struct rmmshim_phase *phase)
{
    struct rmmshim_phase filled;
    int result = check_filling(phase, "phase->size is not set to the size of the structure", device,
                               kind, false);

    if (result == 0 && !rs_phase_get(index, (enum rs_kind)kind, device, &filled))
        result = rs_control_error(-ERANGE, "there is no phase with this number");
    if (result == 0)
        copy_out(phase, &filled, sizeof(filled));
    return result;
}

int rmmshim_reset_phase_peaks(int device, int kind)
{
    int result = check_call(device, kind, false);

    if (result == 0)
        rs_phase_reset_peaks((enum rs_kind)kind, device);
    return result;
}

/* ---- trim, limit ---- */

size_t rs_control_trim(int device, size_t keep_bytes, bool *is_left)
{
    const struct rs_account *account = rs_limit_account(device);
    size_t before, after;

    *is_left = false;
    if (check_started(device) != 0)
        return 0;
    /* The bytes that went back are the difference of the account, since rs_trim's own sum includes
     * memory that one resource gave to another and not to the driver. */
    follow_pools(device);
    before = rs_account_held_bytes(account);
    (void)rs_trim(device, keep_bytes, is_left);
    after = rs_account_held_bytes(account);
    return before - rs_min(before, after);
}

size_t rmmshim_trim(int device, size_t keep_bytes)
{
    bool is_left;

    return rs_control_trim(device, keep_bytes, &is_left);
}

int rs_control_set_limit(int device, size_t bytes, bool *is_left)
{
    struct rs_account *account = rs_limit_account(device);
    bool started;
    int result = check_device(device, &started);

    *is_left = false;
    if (result != 0)
        return result;
    if (!rs_limit_set(device, bytes))
        return not_served();
    if (bytes && rs_driver_ready(false))
        /* Without a limit what the driver's pools hold may not have been read. */
        rs_charge_begin_to_follow(device);
    if (!rs_account_has_room(account, 0))
        (void)rs_control_trim(device, 0, is_left);
    return 0;
}

int rmmshim_set_limit(int device, size_t bytes)
{
    bool is_left;

    return rs_control_set_limit(device, bytes, &is_left);
}

int rmmshim_set_limit_fraction(int device, double fraction)
{
    size_t total_bytes = 0;
    int result = check_started(device);

    if (result != 0)
        return result;
    if (!(fraction >= 0 && fraction <= 1))
        return rs_control_error(0, "a fraction must be between 0 and 1");
    if (rs_driver.cuDeviceTotalMem_v2(&total_bytes, device) != CUDA_SUCCESS)
        return rs_control_error(
            -ENODEV,
            "the driver does not report how much memory the device has: give the limit in bytes");
    /* A fraction above 0 is at least one byte, since 0 means no limit. */
    return rmmshim_set_limit(
        device, fraction > 0 ? rs_max((size_t)((double)total_bytes * fraction), 1) : 0);
}

int rmmshim_get_limit(int device, size_t *bytes)
{
    bool started;
    int result = check_device(device, &started);

    if (result == 0 && !bytes)
        result = rs_control_error(0, "bytes is NULL");
    if (result == 0 && !rs_limit_is_known(device))
        result = rs_control_error(
            -EAGAIN, "the limit is a percentage: its bytes are known once CUDA is initialised");
    if (result == 0)
        *bytes = rs_limit_get(device);
    return result;
}

/* ---- resources ---- */

static void keep_line(void *data, const char *line)
{
    (void)data;
    (void)rs_control_error(0, line);
}

/* Returns 0 when stacks serve device memory in this process, else the error. */
static int check_serves_device_memory(void)
{
    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    if (!(rs_config.hook_groups & RS_HOOK_GROUP_DEVICE))
        return rs_control_error(-ENOTSUP, "rmmshim does not serve device memory in this process, "
                                          "because RMM_HOOKS leaves out `device`");
    return 0;
}

/* Keeps an error message for -ENOSPC and -ENOMEM; for -EINVAL a diagnostic has been kept already.
 * Returns `result`. */
static int resource_error(int result)
{
    char line[RS_CONTROL_ERROR_BYTES];

    if (result == -ENOSPC) {
        snprintf(line, sizeof(line),
                 "too many memory resources: a thread can have %d pushed, and a process can use "
                 "%d different ones",
                 RS_PUSHED_DEPTH_MAX, RS_PUSHED_MAX);
        return rs_control_error(result, line);
    }
    if (result == -ENOMEM)
        return rs_control_error(result, "out of host memory");
    return result;
}

int rmmshim_push_resource(const char *expression)
{
    struct rs_diagnostics diagnostics = {.write = keep_line};
    int result = check_serves_device_memory();

    if (result != 0)
        return result;
    if (!expression)
        return rs_control_error(0, "expression is NULL");
    result = rs_pushed_push(expression, &diagnostics);
    if (result != 0 || !rs_driver_ready(false))
        return resource_error(result);
    result = rs_context_make_pushed(rs_pushed_of(-1), -1, &diagnostics);
    if (result != 0)
        (void)rs_pushed_pop();
    return result;
}

int rmmshim_pop_resource(void)
{
    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    return rs_pushed_pop() == 0
               ? 0
               : rs_control_error(-ERANGE, "no memory resource is pushed, so there is none to pop");
}

int rmmshim_set_resource(int device, const char *expression)
{
    struct rs_diagnostics diagnostics = {.write = keep_line};
    const struct rs_pushed *resource = NULL;
    bool started;
    int result = check_device(device, &started);

    if (result == 0)
        result = check_serves_device_memory();
    if (result != 0)
        return result;
    if (expression)
        result = rs_pushed_find(expression, &diagnostics, &resource);
    if (result == 0 && resource && started)
        result = rs_context_make_pushed(resource, device, &diagnostics);
    if (result == 0)
        rs_pushed_set(device, resource);
    return resource_error(result);
}

/* ---- prefetch ---- */

/* The driver refuses memory that does not migrate, and devices without prefetch: neither is an
 * error of the caller, so both count as success. */
static int prefetch_error(CUresult result)
{
    char line[80];

    if (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE ||
        result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED)
        return 0;
    snprintf(line, sizeof(line), "the driver refused to prefetch the memory: CUDA error %d",
             (int)result);
    return rs_control_error(-EIO, line);
}

int rmmshim_prefetch(const void *start, size_t bytes, int device, void *stream)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)start;
    struct rs_block_view block;
    size_t rest_bytes;
    int result = device == RS_PLACEMENT_HOST ? check_started(0) : check_started(device);

    if (result != 0)
        return result;
    if (!rs_block_find(address, &block))
        return rs_control_error(0, "the address does not lie in a block that rmmshim allocated");
    rest_bytes = block.size_bytes - (size_t)(address - block.address);
    if (bytes > rest_bytes)
        return rs_control_error(0, "the address range reaches past the end of its block");
    return prefetch_error(
        rs_placement_prefetch(block.context, address, bytes ? bytes : rest_bytes, device, stream));
}

/* ---- reports and marks ---- */

/* Reads anew how much the driver's pools hold, for a report that follows. The report itself makes
 * no driver call, since it is also made at exit. */
static void ask_pools(void)
{
    for (int device = 0; device < RS_DEVICES_MAX; device++)
        follow_pools(device);
    RS_EACH_STACK(walk)
        (void)rs_mr_idle_bytes(walk.mr);
}

int rmmshim_report(const char *where)
{
    struct rs_diagnostics diagnostics = {.write = keep_line};
    char line[RS_CONTROL_ERROR_BYTES];
    int result;

    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    ask_pools();
    result = rs_report_write(where, &diagnostics);
    if (result != 0 && diagnostics.count == 0) {
        snprintf(line, sizeof(line), "the report cannot be written to %.120s: %s",
                 where && strchr(where, ':') ? where : "stderr", strerror(-result));
        result = rs_control_error(result, line);
    }
    return result;
}

int rmmshim_mark(const char *phase)
{
    char line[RS_CONTROL_ERROR_BYTES];
    bool is_recorded;
    int result;

    if (rs_mode_now() != RS_MODE_SERVE)
        return not_served();
    if (!phase)
        return rs_control_error(0, "phase is NULL");
    is_recorded = rs_recorder_mark(RS_RECORDING_MARK, phase, false);
    result = rs_logging_mark(phase);
    if (result == -ENOENT && is_recorded)
        return 0;
    if (result == -ENOENT)
        return rs_control_error(result, "there is no file for the mark: neither an event log "
                                        "(RMM_LOG) nor a recording (RMM_RECORD) is open");
    if (result == 0)
        return 0;
    snprintf(line, sizeof(line),
             "the mark cannot be written to the file LOG.marks beside the event log (RMM_LOG): %s",
             strerror(-result));
    return rs_control_error(result, line);
}
