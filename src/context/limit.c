/* SPDX-License-Identifier: Apache-2.0 */
#include "context/limit.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/output.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/table.h"
#include "driver/driver.h"
#include "shared/job.h"
#include "shared/job_limit.h"
#include "shared/published.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct device_limit {
    struct rs_account account;
    _Atomic size_t path_bytes[RS_PATHS];
    _Atomic uint64_t ordered_allocations; /* stream-ordered allocations that the driver served */
    /* Live stream-ordered allocations: their bytes as requested, and their number. */
    _Atomic size_t ordered_live_bytes, ordered_live_blocks;
    /* The memory that the driver served to the program itself, beside the stacks, in bytes as
     * requested.  Of the pools of cuMemAllocAsync only the program's blocks count; of graphs the
     * charged bytes do, since the driver does not tell what was requested. */
    _Atomic size_t unserved_bytes, peak_unserved_bytes;
    _Atomic uint64_t refused;                /* out-of-memory errors that the program received */
    struct rs_job_share shares[RS_JOBS_MAX]; /* one for each job; the account charges the first one
                                                once the jobs are joined for the device */
    _Atomic unsigned joining;                /* enum joining */
    /* enum resolved: whether the limit is final, by RMM_LIMIT or by rs_limit_set */
    _Atomic unsigned resolved;
};

static struct device_limit unpublished[RS_DEVICES_MAX] = {
    [0 ... RS_DEVICES_MAX - 1] = {.account = {.mutex = RS_MUTEX_INIT(RS_RANK_LEDGER)}}};
static struct device_limit *devices = unpublished;

static _Atomic bool any_limit;

/* The number of devices that the driver reports; 0 until it has been asked after CUDA's start. */
static _Atomic int device_count;

enum { JOINING_NAP_NS = 20 * 1000 };

/* A thread that reads RESOLVED will read the limit that was set. RESOLVING lasts a few
 * instructions. */
enum resolved { RESOLVED_NOT, RESOLVING, RESOLVED };

/* The job is joined once for a device. Other threads wait while one joins it. */
enum joining { JOINING_NOT, JOINING_NOW, JOINING_DONE };

/* The jobs of the process, the innermost first, and the process's entry in each. */
static struct {
    struct rs_job_limit *job;
    struct rs_job_entry *member;
    struct rs_size limit;
} jobs[RS_JOBS_MAX];

static unsigned job_count;

bool rs_limit_has_job;

void rs_limit_begin(void)
{
    struct device_limit *published = NULL;

    job_count = 0;
    rs_limit_has_job = false;
    if (rs_published_head())
        published = rs_published_allocate(sizeof(unpublished), _Alignof(struct device_limit));
    if (!published) /* cleared for a forked child: another thread of the parent may have been
                       joining the job at the fork */
        memset(unpublished, 0, sizeof(unpublished));
    devices = published ? published : unpublished;
    for (int device = 0; device < RS_DEVICES_MAX; device++)
        rs_account_begin(&devices[device].account, NULL);
}

static bool is_device_number(int device)
{
    return device >= 0 && device < RS_DEVICES_MAX;
}

struct rs_account *rs_limit_account(int device)
{
    return is_device_number(device) ? &devices[device].account : NULL;
}

static bool is_resolved(int device)
{
    return atomic_load(&devices[device].resolved) == RESOLVED;
}

static void set_bytes(int device, size_t bytes)
{
    RS_ASSERT(is_device_number(device));
    atomic_store(&devices[device].account.limit_bytes, bytes);
    if (bytes)
        atomic_store(&any_limit, true);
}

/* Makes the calling thread the only one that may set the limit, until set_end. Returns false,
 * without doing so, when the limit is resolved already and only_first is set. */
static bool set_begin(int device, bool only_first)
{
    _Atomic unsigned *resolved = &devices[device].resolved;
    unsigned seen = atomic_load(resolved);

    for (unsigned turn = 0;; rs_pause(turn++)) {
        if (seen == RESOLVED && only_first)
            return false;
        if (seen != RESOLVING && atomic_compare_exchange_strong(resolved, &seen, RESOLVING))
            return true;
        seen = atomic_load(resolved);
    }
}

static void set_end(int device, bool for_good)
{
    RS_ASSERT(atomic_load(&devices[device].resolved) == RESOLVING);
    atomic_store(&devices[device].resolved, for_good ? RESOLVED : RESOLVED_NOT);
}

/* ---- the job ---- */

/* Why a job was not joined. */
struct reason {
    int error;
    const char *text;
};

/* What is wrong with the job's file. */
static const struct reason reasons_of_file[] = {
    {EPROTO, "was not written by this version of rmmshim: remove it, or choose another file"},
    {EACCES, "must belong to this user and be writable, with no access for others (chmod 600)"},
    {EXDEV, "is used by processes in another PID namespace, and this process cannot see whether "
            "they still run: set RMM_JOB to another file, or remove this one when they have ended"},
    {0, NULL},
};

static const struct reason reasons_of_job[] = {
    {ESTALE,
     "this process cannot share the limit of the `rmmshim run` that started it, because that "
     "`run` has ended, or is in another PID or network namespace: start the program again "
     "with `rmmshim run`, inside its own container if it is in one"},
    {ETIMEDOUT, "this process cannot share the limit of the `rmmshim run` that started it, because "
                "that `run` does not answer: start the program again with `rmmshim run`"},
    {EPROTO, "this library and the `rmmshim run` that shares the limit have different versions: "
             "use both from one installation"},
    {ESRCH,
     "this process cannot share the limit, because /proc cannot be read here: mount /proc, or "
     "use RMM_LIMIT, a limit for each process"},
    {EBUSY,
     "timed out, because another process does not let go of the job's lock: if a process of the "
     "job is stopped (state T in `ps`), continue or end it, and start this program again"},
    {ENOTSUP, "this kernel has no robust mutexes, which a shared limit needs: use RMM_LIMIT, a "
              "limit for each process"},
    {E2BIG, "this process would be in more than 4 jobs with a limit: nest fewer `rmmshim run "
            "--limit-job` in each other"},
    {EFBIG, "the limit on file sizes (ulimit -f) leaves no room for the job's file"},
    {EUSERS, "too many processes share the job's limit: start fewer at a time"},
    {0, NULL},
};

/* Returns NULL when only the number of the error is known. */
static const char *why_not(const struct reason *reason, int error)
{
    while (reason->text && reason->error != -error)
        reason++;
    return reason->text;
}

/* Reports why a job was not joined. `path` is the job's file if the error concerns that file, else
 * NULL. */
static void say_not_joined(struct rs_diagnostics *diagnostics, int error, const char *path)
{
    const char *of_file = path ? why_not(reasons_of_file, error) : NULL,
               *reason = why_not(reasons_of_job, error);

    if (of_file)
        rs_diagnose(diagnostics, rs_config.limit_job, NULL, "the job's file (RMM_JOB) %s %s", path,
                    of_file);
    else if (path && !reason)
        rs_diagnose(diagnostics, rs_config.limit_job, NULL,
                    "cannot use the job's file (RMM_JOB) %s: %s", path, strerror(-error));
    else
        rs_diagnose(diagnostics, rs_config.limit_job, NULL, "%s",
                    reason ? reason : strerror(-error));
}

static int join_one(int of_run, const char *path)
{
    int result;

    if (job_count == RS_JOBS_MAX) {
        rs_file_close(of_run);
        return -E2BIG;
    }
    jobs[job_count].limit = rs_config.limit_job_size;
    result = rs_job_limit_open(of_run, path, &jobs[job_count].limit, &jobs[job_count].job,
                               &jobs[job_count].member);
    job_count += result == 0;
    return result;
}

/* Joins the jobs of the `rmmshim run` that started this process and of those around that `run`. */
static int join_of_run(void)
{
    uint32_t number = 0;
    int more, result, file = -1;

    do {
        more = rs_run_ask(RS_JOB_GIVE_LIMIT, number++, -1, &file);
        result = more < 0 ? more : join_one(file, NULL);
    } while (result == 0 && more > 0);
    return result;
}

/* Joins all jobs: that of the file `path` (NULL: none), and those of the `rmmshim run` that started
 * this process. If the file's job is joined, a `run` that is absent, has ended or has no limit to
 * share is no error. */
static int join_all(const char *path)
{
    int result = path ? join_one(-1, path) : 0;

    if (result == 0)
        result = join_of_run();
    return path && job_count == 1 && (result == -ENOENT || result == -EACCES || result == -ESTALE)
               ? 0
               : result;
}

bool rs_limit_join_job(struct rs_diagnostics *diagnostics)
{
    const char *at, *reason, *path = rs_config.job_path;
    RS_PATH_BUFFER(expanded);
    char text[RS_SIZE_TEXT_BYTES];
    int result;

    if (!rs_config.limit_job)
        return true;
    if (!expanded)
        return rs_diagnose(
            diagnostics, rs_config.limit_job, NULL,
            "this process has no host memory left to join the job that shares this limit");
    if (path && !rs_path_expand(path, expanded, PATH_MAX, &at, &reason))
        return rs_diagnose(diagnostics, &(struct rs_source){"RMM_JOB", path}, at, "%s", reason);
    result = join_all(path ? expanded : NULL);
    rs_limit_has_job = result == 0;
    if (result == 0)
        return true;
    if (!path && (result == -ENOENT || result == -EACCES) && job_count == 0)
        rs_diagnose(diagnostics, rs_config.limit_job, NULL,
                    "this process belongs to no job, so it has nobody to share the limit with: use "
                    "`rmmshim run --limit-job`, or set RMM_JOB to the same file in all processes "
                    "(rmmshim creates the file)");
    else if (result == -EEXIST)
        rs_diagnose(diagnostics, rs_config.limit_job, NULL,
                    "the processes that use the job's file %s have another limit, %s: set the same "
                    "RMM_LIMIT_JOB, or another file in RMM_JOB",
                    expanded, rs_size_write(jobs[job_count].limit, text));
    else
        say_not_joined(diagnostics, result, path && job_count == 0 ? expanded : NULL);
    return false;
}

/* True when a job's limit or RMM_LIMIT_JOB is a percentage, so that the device's size is needed. */
static bool needs_total(void)
{
    bool needs = rs_config.limit_job_size.kind != RS_SIZE_BYTES;

    for (unsigned i = 0; i < job_count; i++)
        needs = needs || jobs[i].limit.kind != RS_SIZE_BYTES;
    return needs;
}

/* Stores the device's UUID, and its total memory if the driver tells. Returns false when the driver
 * does not tell enough. On a driver without UUIDs the device's number stands in for the UUID. */
static bool describe_device(CUdevice device, CUuuid *uuid, size_t *total_bytes)
{
    bool has_total = rs_driver.cuDeviceTotalMem_v2 &&
                     rs_driver.cuDeviceTotalMem_v2(total_bytes, device) == CUDA_SUCCESS;

    memset(uuid, 0, sizeof(*uuid));
    if (rs_driver.cuDeviceGetUuid_v2 && rs_driver.cuDeviceGetUuid_v2(uuid, device) == CUDA_SUCCESS)
        return has_total || !needs_total();
    snprintf(uuid->bytes, sizeof(uuid->bytes), "device %d", (int)device);
    return has_total;
}

/* Sets the device's share in each job and has the account charge them. Bytes that were charged
 * before, because the driver told the device's size late, count in the jobs too. The mutex keeps
 * requests from changing them meanwhile. */
static void set_share(struct device_limit *of, const CUuuid *uuid, size_t total_bytes)
{
    RS_MUTEX_GUARD(&of->account.mutex);
    size_t charged_bytes = rs_counter_get(&of->account.charged_bytes), most = SIZE_MAX;
    struct rs_job_share *share = NULL;

    for (unsigned i = job_count; i-- > 0;) {
        most = rs_min(most, rs_size_resolve(jobs[i].limit, total_bytes, total_bytes));
        if (i == 0) /* RMM_LIMIT_JOB of this process may be smaller than the limit of the innermost
                       job's file */
            most =
                rs_min(most, rs_size_resolve(rs_config.limit_job_size, total_bytes, total_bytes));
        of->shares[i] = (struct rs_job_share){.job = jobs[i].job,
                                              .member = jobs[i].member,
                                              .next = share,
                                              .limit_bytes = rs_max(most, 1),
                                              .missed_bytes = charged_bytes};
        share = &of->shares[i];
        memcpy(share->uuid, uuid->bytes, sizeof(share->uuid));
    }
    rs_job_share_enter(share);
    atomic_store_explicit(&of->account.job, share, memory_order_release);
}

/* Joins the jobs for one device: from now on they are charged too. If the driver does not describe
 * the device yet, a later call joins. */
static void join_device(CUdevice device)
{
    struct device_limit *of = &devices[device];
    unsigned seen = JOINING_NOT;
    size_t total_bytes = 0;
    CUuuid uuid;

    if (job_count == 0 || atomic_load(&of->joining) == JOINING_DONE ||
        !describe_device(device, &uuid, &total_bytes))
        return;
    if (atomic_compare_exchange_strong(&of->joining, &seen, JOINING_NOW)) {
        set_share(of, &uuid, total_bytes);
        atomic_store(&of->joining, JOINING_DONE);
    }
    while (atomic_load(&of->joining) == JOINING_NOW)
        rs_nap(JOINING_NAP_NS);
}

bool rs_limit_job(int device, size_t *limit_bytes, size_t *others_bytes)
{
    const struct rs_job_share *share =
        is_device_number(device) ? atomic_load(&devices[device].account.job) : NULL;

    if (!share)
        return false;
    share = rs_job_share_tightest(share);
    *limit_bytes = share->limit_bytes;
    *others_bytes = rs_job_share_others(share);
    return true;
}

/* ---- the limit ---- */

bool rs_limit_ask_free(CUdevice device, size_t *free_bytes)
{
    RS_RELAXED_GUARD();
    CUdevice current;
    size_t total;

    return rs_driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device &&
           rs_driver.cuMemGetInfo_v2(free_bytes, &total) == CUDA_SUCCESS;
}

static void note_device_count(void)
{
    int count;

    if (atomic_load(&device_count) == 0 && rs_driver.cuDeviceGetCount &&
        rs_driver.cuDeviceGetCount(&count) == CUDA_SUCCESS)
        atomic_store(&device_count, count);
}

/* Returns false when the driver has been asked and has no such device. Before CUDA is started a
 * limit can be set for any number. */
static bool is_device_there(int device)
{
    int count = atomic_load(&device_count);

    return is_device_number(device) && (count == 0 || device < count);
}

void rs_limit_resolve(CUdevice device)
{
    const struct rs_size *size;
    size_t total = 0, free_bytes = 0, bytes;
    bool is_final;

    if (!is_device_number(device))
        return;
    note_device_count();
    join_device(device);
    if (is_resolved(device))
        return;
    size = rs_config_limit(&rs_config, device);
    if (size && size->kind != RS_SIZE_BYTES &&
        (!rs_driver.cuDeviceTotalMem_v2 ||
         rs_driver.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS))
        return; /* no such device, or the driver is not ready: a later call resolves it */
    /* A context of the device must be current to ask for its free memory; until then the percentage
     * is taken of the total. */
    is_final = !size || size->kind != RS_SIZE_OF_FREE || rs_limit_ask_free(device, &free_bytes);
    bytes = size ? rs_max(rs_size_resolve(*size, total, is_final ? free_bytes : total), 1) : 0;
    if (!set_begin(device, true))
        return;
    if (bytes)
        set_bytes(device, bytes);
    set_end(device, is_final);
    rs_context_stacks_changed(); /* the account is to be published, even without a stack */
}

size_t rs_limit_get(int device)
{
    if (!is_device_number(device) || !rs_mode_serving())
        return 0;
    rs_limit_resolve(device);
    return atomic_load(&devices[device].account.limit_bytes);
}

bool rs_limit_is_known(int device)
{
    return rs_limit_get(device) > 0 || (is_device_number(device) && is_resolved(device));
}

bool rs_limit_set(int device, size_t bytes)
{
    if (!is_device_number(device) || rs_mode_now() != RS_MODE_SERVE)
        return false;
    (void)set_begin(device, false);
    set_bytes(device, bytes);
    set_end(device, true);
    return true;
}

bool rs_limit_follows(void)
{
    return rs_config.statistics != RS_STATISTICS_NONE || rs_config.any_limit ||
           rs_config.control != RS_CONTROL_UNASKED || rs_config.limit_job ||
           atomic_load_explicit(&any_limit, memory_order_relaxed);
}

/* ---- what the program is told ---- */

RS_COLD void rs_limit_note_refused(int device)
{
    if (is_device_number(device))
        atomic_fetch_add_explicit(&devices[device].refused, 1, memory_order_relaxed);
}

uint64_t rs_limit_refused(int device)
{
    return is_device_number(device)
               ? atomic_load_explicit(&devices[device].refused, memory_order_relaxed)
               : 0;
}

void rs_limit_report_refused(int device, struct rs_report *report)
{
    /* The report of a process that only asked how much memory there is stays empty. */
    if (rs_limit_is_used(device) && (report->count > 0 || rs_limit_refused(device) > 0))
        rs_report_add_field(report, RS_PROGRAM, "refused", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                            devices[device].refused);
}

/* ---- the report ---- */

void rs_limit_note_path(int device, enum rs_path path, size_t from_bytes, size_t to_bytes)
{
    RS_ASSERT(path < RS_PATHS);
    if (!is_device_number(device))
        return;
    atomic_fetch_add_explicit(&devices[device].path_bytes[path], to_bytes - from_bytes,
                              memory_order_relaxed);
    /* The driver does not tell how many bytes a graph requested, so the charged bytes are noted in
     * their place. For other paths the caller notes the requested bytes. */
    if (path == RS_PATH_GRAPH)
        rs_limit_note_unserved(device, from_bytes, to_bytes);
}

void rs_limit_note_unserved(int device, size_t from_bytes, size_t to_bytes)
{
    struct device_limit *of = is_device_number(device) ? &devices[device] : NULL;
    size_t now;

    if (!of)
        return;
    now = atomic_fetch_add_explicit(&of->unserved_bytes, to_bytes - from_bytes,
                                    memory_order_relaxed) +
          to_bytes - from_bytes;
    /* The sum is below zero for a moment when a thread notes a free before another thread has noted
     * the allocation. Then it is no peak. */
    if (now <= SIZE_MAX / 2)
        rs_counter_raise(&of->peak_unserved_bytes, now);
}

void rs_limit_note_stream_ordered(int device, size_t bytes, bool freed)
{
    if (!is_device_number(device))
        return;
    atomic_fetch_add_explicit(&devices[device].ordered_allocations, !freed, memory_order_relaxed);
    atomic_fetch_add_explicit(&devices[device].ordered_live_bytes, freed ? -bytes : bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&devices[device].ordered_live_blocks, freed ? -(size_t)1 : 1,
                              memory_order_relaxed);
    rs_limit_note_unserved(device, freed ? bytes : 0, freed ? 0 : bytes);
}

bool rs_limit_is_used(int device)
{
    const struct device_limit *of = &devices[device];

    return is_device_there(device) &&
           (is_resolved(device) || atomic_load(&of->account.limit_bytes) ||
            atomic_load(&of->account.peak_charged_bytes));
}

const char *const rs_path_names[RS_PATHS] = {"driver", "managed",        "arrays",
                                             "vmm",    "stream_ordered", "graphs"};

void rs_limit_report(int device, struct rs_report *report, bool also_unused)
{
    struct device_limit *of = is_device_there(device) ? &devices[device] : NULL;
    struct rs_account *account = of ? &of->account : NULL;
    struct rs_term served[] = {
        {RS_REPORT_PLACE(account->charged_bytes), 1, 0, 1},
        {RS_REPORT_PLACE(of->path_bytes[0]), RS_PATHS, sizeof(of->path_bytes[0]), -1},
    };

    if (!of || (!atomic_load(&account->limit_bytes) && !atomic_load(&account->peak_charged_bytes) &&
                !(also_unused && is_resolved(device))))
        return;
#define ADD(name, kind, unit, field)                                                               \
    rs_report_add_field(report, "account", name, RS_COUNTER_##kind, RS_UNIT_##unit, field)
    ADD("limit", LIVE, BYTES, account->limit_bytes);
    if (atomic_load(&account->job))
        ADD("job_limit", LIVE, BYTES, of->shares[0].limit_bytes);
    ADD("charged", LIVE, BYTES, account->charged_bytes);
    ADD("charged_peak", PEAK, BYTES, account->peak_charged_bytes);
    ADD("internal_refusals", TOTAL, COUNT, account->refusals);
    rs_report_add_sum(report, "account", "served", RS_COUNTER_LIVE, RS_UNIT_BYTES, served, 2);
    for (int path = 0; path < RS_PATHS; path++)
        ADD(rs_path_names[path], LIVE, BYTES, of->path_bytes[path]);
    ADD("unserved", LIVE, BYTES, of->unserved_bytes);
    ADD("unserved_peak", PEAK, BYTES, of->peak_unserved_bytes);
    ADD("stream_ordered_live", LIVE, BYTES, of->ordered_live_bytes);
    ADD("stream_ordered_blocks", LIVE, COUNT, of->ordered_live_blocks);
    ADD("stream_ordered_allocations", TOTAL, COUNT, of->ordered_allocations);
#undef ADD
}
