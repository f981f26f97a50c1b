/* SPDX-License-Identifier: Apache-2.0 */
#include "report/out_of_memory.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "report/counters.h"
#include "report/document.h"
#include "report/holders.h"
#include "report/neighbours.h"
#include "report/publish.h"
#include "trace/object.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    TEXT_HOLDERS_MAX = 8,
    JSON_HOLDERS_MAX = 256,
    KEEP_NS = 1000 * 1000 * 1000,
    KEEP_DIVISOR = 20,
};

enum refuser { REFUSED_BY_LIMIT, REFUSED_BY_JOB, REFUSED_BY_STACK, REFUSED_BY_DEVICE };

/* What is known about the refused request. Byte counts are sums over all contexts of the device;
 * for a request of pinned memory they are those of pinned memory. */
struct refused {
    int device;
    enum rs_kind kind;
    size_t asked_bytes;
    const struct rs_call_site *site; /* NULL: not known */
    size_t limit_bytes; /* the most that the process may hold by its own limit and the job's; 0:
                           there is neither */
    size_t own_limit_bytes;
    size_t job_limit_bytes, job_others_bytes;
    enum refuser by;
    size_t held_bytes;    /* the bytes charged against the limits */
    size_t used_bytes;    /* the program's blocks, from stacks or from the driver */
    size_t idle_bytes;    /* held by the stacks and not in use; includes waiting_bytes */
    size_t waiting_bytes; /* freed blocks that the GPU may still use (in quarantine) */
    size_t largest_free_bytes;
    bool has_largest_free;          /* at least one stack knows its largest free block */
    size_t free_bytes, total_bytes; /* both are 0 if they are not known */
    size_t path_bytes[RS_PATHS];
    bool is_tracked; /* at least one stack tracks call sites: the holders are then call sites, else
                        libraries */
};

/* Protects the variables below. A refused thread only tries to lock it: another thread may be
 * writing its report to a pipe that the refused thread itself reads, so a wait might never end. */
static struct rs_mutex reporting = RS_MUTEX_INIT(RS_RANK_REPORT);
RS_RESET_IN_CHILD(report_out_of_memory, reporting);
static struct refused refused;
static struct rs_gathered all;
static struct rs_holders holders;
static struct rs_neighbours neighbours;
static bool is_written[RS_DEVICES_MAX][2]; /* by device; [1] is for pinned memory */
static struct rs_page_file file = {.variable = "RMM_ON_OOM"};
static struct rs_page page;
static struct rs_document document;
static bool has_begun; /* rs_page_begin has been called for the page */

/* ---- gathering ---- */

/* True for kinds that lie in the same memory as the request: pinned memory lies in the host's, and
 * managed memory counts as the device's. */
static bool is_same_memory(enum rs_kind kind)
{
    return (kind == RS_KIND_PINNED) == (refused.kind == RS_KIND_PINNED);
}

static void note_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    (void)data;
    if (stack->environment.device != refused.device || !is_same_memory(stack->kind))
        return;
    refused.idle_bytes += rs_mr_idle_bytes(mr);
    rs_holders_add(&holders, stack, mr, false);
}

static void add_block(void *data, const struct rs_block_view *view)
{
    (void)data;
    if (view->device == refused.device && is_same_memory(view->kind))
        rs_holders_add_block(&holders, view);
}

static void add_counters(const struct rs_report *report)
{
    refused.used_bytes += rs_report_value(report, RS_PROGRAM, "live", 0) +
                          rs_report_value(report, "account", "unserved", 0);
    refused.held_bytes += rs_report_value(report, "account", "charged", 0);
    refused.waiting_bytes += rs_report_value(report, "reuse", "quarantined", 0);
    for (int i = 0; i < RS_PATHS; i++)
        refused.path_bytes[i] += rs_report_value(report, "account", rs_path_names[i], 0);
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        if (strcmp(counter->name, "largest_free") != 0)
            continue;
        refused.has_largest_free = true;
        refused.largest_free_bytes = rs_max(refused.largest_free_bytes, counter->value);
    }
}

static void look_at_counters(void)
{
    rs_gather(&all, true);
    for (size_t i = 0; i < all.count; i++)
        if (all.stacks[i].device == refused.device && is_same_memory(all.stacks[i].kind))
            add_counters(&all.stacks[i].report);
}

static void look_at_memory(void)
{
    const struct rs_account *account = rs_limit_account(refused.device);

    if (refused.kind == RS_KIND_PINNED) {
        rs_host_memory(&refused.total_bytes, &refused.free_bytes);
        return;
    }
    refused.limit_bytes = rs_account_limit(account);
    if (refused.limit_bytes == SIZE_MAX)
        refused.limit_bytes = 0;
    refused.own_limit_bytes = rs_limit_get(refused.device);
    (void)rs_limit_job(refused.device, &refused.job_limit_bytes, &refused.job_others_bytes);
    if (!rs_limit_ask_free(refused.device, &refused.free_bytes) ||
        rs_driver.cuDeviceTotalMem_v2(&refused.total_bytes, refused.device) != CUDA_SUCCESS)
        refused.free_bytes = refused.total_bytes = 0;
}

/* Looks for other processes that hold memory of the device. Does nothing for pinned memory. */
static void look_for_neighbours(void)
{
    CUuuid uuid;

    if (refused.kind != RS_KIND_PINNED && rs_driver.cuDeviceGetUuid_v2 &&
        rs_driver.cuDeviceGetUuid_v2(&uuid, refused.device) == CUDA_SUCCESS)
        rs_neighbours_find(&neighbours, (const unsigned char *)uuid.bytes);
}

static bool leaves_room(size_t limit_bytes, size_t used_bytes)
{
    return !limit_bytes ||
           (used_bytes <= limit_bytes && refused.asked_bytes <= limit_bytes - used_bytes);
}

/* Returns what refused the request. A request meets the process's own limit, then the job's limit,
 * then the device; the first one into which it does not fit has refused it. If it fits into all
 * three, a maximum of the stack refused it, or the free memory is fragmented. */
static enum refuser find_refuser(void)
{
    if (!leaves_room(refused.own_limit_bytes, refused.held_bytes))
        return REFUSED_BY_LIMIT;
    if (!leaves_room(refused.job_limit_bytes, refused.held_bytes + refused.job_others_bytes))
        return REFUSED_BY_JOB;
    return refused.total_bytes && refused.asked_bytes <= refused.free_bytes ? REFUSED_BY_STACK
                                                                            : REFUSED_BY_DEVICE;
}

/* Fills in `refused`, `holders` and `neighbours`. With asks_who it finds the call site of the
 * request even if no stack tracks call sites. */
static void gather_refused(int device, enum rs_kind kind, size_t size_bytes, bool asks_who)
{
    RS_RELAXED_GUARD();

    memset(&holders, 0, sizeof(holders));
    memset(&neighbours, 0, sizeof(neighbours));
    refused = (struct refused){.device = device, .kind = kind, .asked_bytes = size_bytes};
    rs_context_each_stack(note_stack, NULL);
    look_at_counters();
    look_at_memory();
    refused.is_tracked = rs_holders_tracked(&holders) != 0;
    if (!refused.is_tracked) { /* the report then lists libraries and sizes instead of call sites */
        memset(&holders, 0, sizeof(holders));
        rs_object_review();
        rs_block_each(add_block, NULL);
    }
    look_for_neighbours();
    refused.by = find_refuser();
    if (asks_who || refused.is_tracked)
        refused.site = rs_call_site_here();
}

/* Returns the stacks' idle bytes that do not wait for the GPU. */
static size_t cached_bytes(void)
{
    return refused.idle_bytes - rs_min(refused.waiting_bytes, refused.idle_bytes);
}

/* ---- who refused, and what to do about it ---- */

static bool has_fallback(void)
{
    static char text[RS_EXPRESSION_TEXT_BYTES];

    for (size_t i = 0; i < all.count; i++)
        if (all.stacks[i].device == refused.device && all.stacks[i].kind == refused.kind &&
            strstr(rs_gathered_expression(&all.stacks[i], text), "fallback("))
            return true;
    return false;
}

static bool is_in_pieces(void)
{
    return cached_bytes() >= refused.asked_bytes && refused.kind == RS_KIND_DEVICE;
}

static const char *advice(void)
{
    static const char *const ways_out[] = {
        [REFUSED_BY_LIMIT] = "raise --limit (RMM_LIMIT)",
        [REFUSED_BY_JOB] = "raise --limit-job (RMM_LIMIT_JOB)",
        [REFUSED_BY_STACK] =
            "raise the maximum size (for example RMM_POOL_MAX_SIZE or RMM_ARENA_SIZE)",
        [REFUSED_BY_DEVICE] = "use less memory at a time, or end other processes on the GPU",
    };
    const char *other = "";

    if (refused.kind == RS_KIND_PINNED)
        return "use less pinned memory at a time, or make more of the host's memory free";
    if (is_in_pieces())
        other =
            ", or use --resource virtual, which can serve a large request from several free pieces";
    else if (refused.kind == RS_KIND_DEVICE && !has_fallback())
        other = ", or add --fallback managed (RMM_FALLBACK)";
    return rs_document_format(&document, "%s%s", ways_out[refused.by], other);
}

/* ---- the document ---- */

static void add_head(struct rs_node *root)
{
    static const char *const refusers[] = {"limit", "job_limit", "stack", "device"};

    rs_node_count(root, "schema", 1);
    rs_node_count(root, "pid", (uint64_t)getpid());
    rs_node_text(root, "program", program_invocation_short_name);
    rs_node_count(root, "device", (uint64_t)refused.device);
    rs_node_word(root, "kind", rs_kind_names[refused.kind]);
    rs_node_bytes(root, "asked", refused.asked_bytes);
    rs_node_word(root, "refused_by", refusers[refused.by]);
    rs_node_word(root, "advice", advice());
    rs_node_bytes(root, "limit", refused.limit_bytes);
    rs_node_bytes(root, "own_limit", refused.own_limit_bytes);
    rs_node_bytes(root, "job_limit", refused.job_limit_bytes);
    rs_node_bytes(root, "job_others", refused.job_others_bytes);
    rs_node_bytes(root, "job_left",
                  refused.job_limit_bytes -
                      rs_min(refused.job_others_bytes, refused.job_limit_bytes));
    rs_node_bytes(root, "held", refused.held_bytes);
    rs_node_bytes(root, "used", refused.used_bytes);
    rs_node_bytes(root, "cached", cached_bytes());
    rs_node_bytes(root, "waiting", refused.waiting_bytes);
    if (refused.has_largest_free)
        rs_node_bytes(root, "largest_free", refused.largest_free_bytes);
    if (refused.total_bytes) {
        rs_node_bytes(root, "free", refused.free_bytes);
        rs_node_bytes(root, "total", refused.total_bytes);
    }
}

#define USED                                                                                       \
    "[{used} used][{used!}nothing used][, {cached} cached][, {waiting} freed but perhaps "         \
    "still in use by the GPU][, largest cached piece {largest_free}]"

/* Returns the first line of the text, which keep_report also logs. */
static const char *head_line(void)
{
    static const char *const lines[] = {
        [REFUSED_BY_LIMIT] = " refused by the {own_limit} limit (RMM_LIMIT): " USED
                             "[; the GPU has {free:1} of {total} free]",
        [REFUSED_BY_JOB] =
            " refused by the job's {job_limit} limit (RMM_LIMIT_JOB)[: other processes of the job "
            "hold {job_others}], which leaves {job_left} for this process; in this process " USED,
        [REFUSED_BY_STACK] = " refused, though the GPU has {free} of {total} free: a pool or "
                             "other memory resource is at its maximum size, or has no free piece "
                             "that is large enough; " USED,
        [REFUSED_BY_DEVICE] =
            " refused by the driver[: the GPU has {free:1} of {total} free]; " USED,
    };

    if (refused.kind == RS_KIND_PINNED)
        return "rmmshim[[{pid}]]: out of memory: {asked} of pinned memory refused: " USED
               "[; the host has {free:1} of {total} free] -> {advice}\n";
    return rs_document_format(
        &document, "rmmshim[[{pid}]]: out of memory on GPU {device}: {asked}%s%s -> {advice}\n",
        refused.kind == RS_KIND_MANAGED ? " of managed memory" : "", lines[refused.by]);
}

static void add_neighbours(struct rs_node *root)
{
    struct rs_node *others = rs_node_object(root, "others"), *processes, *more;
    /* Other processes are not the reason if this process's own limit or its stack refused the
     * request; then the text leaves them out. */
    bool is_said = refused.by != REFUSED_BY_LIMIT && refused.by != REFUSED_BY_STACK;

    processes = rs_node_list(others, "processes");
    for (size_t i = 0; i < neighbours.count; i++) {
        const struct rs_neighbour *neighbour = &neighbours.most[i];
        struct rs_node *process = rs_node_object(processes, NULL);
        rs_node_count(process, "pid", (uint64_t)neighbour->process);
        rs_node_text(process, "program", neighbour->program);
        rs_node_bytes(process, "held", neighbour->held_bytes);
        if (is_said)
            process->line = "  {held} held by {program} (pid {pid})\n";
    }
    more = rs_node_object(others, "more");
    rs_node_bytes(more, "held", neighbours.more_bytes);
    rs_node_count(more, "processes", neighbours.more_processes);
    rs_node_flag(others, "complete", !neighbours.is_cut);
    if (is_said) {
        more->line = "[  {held} held by {processes} more process{processes||es}\n]";
        others->end = "[{complete!}  the list of processes is incomplete, because there was no "
                      "time to look at all of them\n"
                      "]";
    }
}

static void add_paths(struct rs_node *root)
{
    static const char *const lines[RS_PATHS] = {
        "[  {driver} not served by rmmshim: allocated by the driver's cuMemAlloc\n]",
        "[  {managed} not served by rmmshim: managed memory\n]",
        "[  {arrays} not served by rmmshim: CUDA arrays\n]",
        "[  {vmm} not served by rmmshim: created with cuMemCreate\n]",
        "[  {stream_ordered} held by the driver's pools of cudaMallocAsync\n]",
        "[  {graphs} held by memory nodes of CUDA graphs\n]",
    };
    struct rs_node *outside = rs_node_object(root, "outside");

    for (int i = 0; i < RS_PATHS; i++)
        rs_node_bytes(outside, rs_path_names[i], refused.path_bytes[i])->line = lines[i];
}

static void add_holder_site(struct rs_node *list, const struct rs_holder *from, bool is_said)
{
    struct rs_node *holder = rs_node_object(list, NULL);

    rs_node_word(holder, "kind", rs_kind_names[from->kind]);
    rs_node_block_sum(holder, from->amount);
    rs_site_fill(holder, from->site, from->outside, is_said);
    if (is_said)
        holder->line = rs_document_format(
            &document, "  {bytes} in {blocks} block{blocks||s}%s, allocated at%s\n",
            from->kind == refused.kind ? "" : rs_kind_texts[from->kind],
            from->site ? "" : " an unknown place");
}

static void add_all_holders(struct rs_node *root)
{
    const struct rs_holder *at = holders.places;
    const struct rs_holder *end = at + rs_holders_sort(&holders, true);
    struct rs_block_sum rest = holders.others, more = holders.others;
    struct rs_library holder;
    struct rs_node *list;

    rs_node_word(root, "by", refused.is_tracked ? "call_site" : "library");
    list = rs_node_list(root, "holders");
    for (size_t i = 0; at < end; i++, at += holder.size_count) {
        bool is_said = i < TEXT_HOLDERS_MAX;
        holder = rs_holders_library(at, end);
        if (!is_said)
            rs_block_sum_add(&rest, holder.amount);
        if (i >= JSON_HOLDERS_MAX)
            rs_block_sum_add(&more, holder.amount);
        else if (at->size_class)
            rs_library_fill(list, &holder, refused.kind, is_said);
        else
            add_holder_site(list, at, is_said);
    }
    list->end = rs_document_rest(&document, "  ", rest);
    rs_node_block_sum(rs_node_object(root, "more"), more);
}

static void fill_document(void)
{
    struct rs_node *root = &document.root, *at;

    rs_document_begin(&document);
    add_head(root);
    root->line = head_line();
    at = rs_node_object(root, "asked_at");
    rs_site_fill(at, refused.site, refused.site ? rs_site_frames_outside(refused.site) : 0, true);
    if (refused.site)
        at->line = "  asked at\n";
    add_all_holders(root);
    add_paths(root);
    add_neighbours(root);
}

/* ---- the whole ---- */

void rs_oom_claim(void)
{
    rs_page_claim(&file, rs_config.on_oom_path);
}

static void begin_page(void)
{
    if (!has_begun)
        rs_page_begin(&page, &file, rs_config.on_oom_path);
    has_begun = true;
}

static void write_at_once(int device, enum rs_kind kind, size_t size_bytes)
{
    bool *written = &is_written[device][kind == RS_KIND_PINNED];

    if (*written)
        return;
    *written = true;
    gather_refused(device, kind, size_bytes, true);
    begin_page();
    fill_document();
    if (rs_config.on_oom ==
        RS_STATISTICS_JSON) /* on one line, since the file may get several reports */
        rs_document_put_json(&page, &document.root, true);
    else
        rs_document_put_text(&page, &document.root);
    rs_document_release(&document);
    rs_page_flush(&page);
}

/* True when there is time for a report that is kept in the published page. Nobody has asked for
 * these reports, and with 220,000 live blocks each took 48 ms. So they may take 1 s in all, plus a
 * twentieth of the time since the first one. */
static bool may_keep(uint64_t begin_ns, uint64_t spent_ns)
{
    static uint64_t first_ns;

    if (!first_ns)
        first_ns = begin_ns;
    return spent_ns <= KEEP_NS + (begin_ns - first_ns) / KEEP_DIVISOR;
}

/* Keeps the report in the published page. The head line of the first report is also logged at once,
 * without its prefix, since rs_log adds one; the kept report then has another head line. */
static void keep_report(int device, enum rs_kind kind, size_t size_bytes)
{
    static uint64_t spent_ns;
    static bool said;
    uint64_t begin_ns = rs_clock_ns();
    const char *text;

    if (!may_keep(begin_ns, spent_ns))
        return;
    gather_refused(device, kind, size_bytes, false);
    fill_document();
    rs_page_begin_text(&page);
    rs_document_put_text(&page, &document.root);
    text = strstr(page.text, ": ");
    if (text && rs_log_once(&said)) {
        rs_log("%.*s", (int)strcspn(text + 2, "\n"), text + 2);
        document.root.line = kind == RS_KIND_PINNED
                                 ? "rmmshim[[{pid}]]: who held pinned memory when {asked} were "
                                   "refused:\n"
                                 : "rmmshim[[{pid}]]: who held memory of GPU {device} when {asked} "
                                   "were refused:\n";
        rs_page_begin_text(&page);
        rs_document_put_text(&page, &document.root);
    }
    rs_document_release(&document);
    rs_publish_refusal(page.text);
    spent_ns += rs_clock_ns() - begin_ns;
}

RS_COLD void rs_oom_refused(int device, enum rs_kind kind, size_t size_bytes)
{
    bool at_once = rs_config.on_oom != RS_STATISTICS_NONE;
    int error = errno;

    if (device < 0 || device >= RS_DEVICES_MAX || !rs_mode_serving())
        return;
    rs_limit_note_refused(device);
    if ((!at_once && (rs_config.on_oom_given || !rs_publish_is_held())) ||
        !rs_mutex_try_lock(&reporting))
        return;
    if (at_once)
        write_at_once(device, kind, size_bytes);
    else
        keep_report(device, kind, size_bytes);
    rs_mutex_unlock(&reporting);
    errno = error;
}

void rs_oom_end(void)
{
    if (rs_config.on_oom == RS_STATISTICS_NONE || !rs_mutex_lock_bounded(&reporting, "RMM_ON_OOM"))
        return;
    begin_page();
    rs_page_end(&page);
    rs_mutex_unlock(&reporting);
}
