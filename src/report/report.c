/* SPDX-License-Identifier: Apache-2.0 */
#include "report/report.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/process.h"
#include "base/size.h"
#include "config/config.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "context/table.h"
#include "context/visit.h"
#include "recording/recorder.h"
#include "report/counters.h"
#include "report/document.h"
#include "report/holders.h"
#include "report/out_of_memory.h"
#include "report/publish.h"
#include "resource/adaptor/logging.h"
#include "shared/published.h"
#include "trace/object.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    LOCKS_WAIT_NS = 500 * 1000 * 1000, /* the longest wait at exit, for all locks together */
    TEXT_SITES_MAX = 32,
    JSON_SITES_MAX = 256,
    END_BYTES = 512,
    SITE_BYTES = 64 + RS_CALL_SITE_FRAMES_MAX * 17,
};

/* ---- the leak report ---- */

/* The blocks of ended contexts; at exit those of the others are added. Protected by the contexts'
 * lock until is_gathered is true; from then on only the report uses them. */
static struct rs_holders all_leaks;
static bool is_gathered; /* protected by the contexts' lock */

void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr)
{
    RS_ASSERT_HELD(&rs_contexts_lock);
    if (!is_gathered) /* otherwise the report has these blocks as live ones */
        rs_holders_add(&all_leaks, stack, mr, true);
}

/* Returns false if the contexts' lock cannot be had, which say_left_out reports. */
static bool gather_leaks(void)
{
    if (!rs_contexts_lock_bounded())
        return false;
    for (struct rs_stack_walk walk = {0}; rs_contexts_next_stack(&walk);)
        rs_holders_add(&all_leaks, walk.stack, walk.mr, false);
    is_gathered = true;
    rs_mutex_unlock(&rs_contexts_lock);
    return true;
}

static struct rs_document document;

#define PROCESS "rmmshim[[{pid}]]: {program}"
#define AMOUNT  "{bytes} in {blocks} block{blocks||s}"

static void add_total(struct rs_node *in, const struct rs_holder *leaks, size_t count)
{
    struct rs_block_sum total = {0, 0};

    for (size_t i = 0; i < count; i++)
        rs_block_sum_add(&total, leaks[i].amount);
    rs_node_block_sum(in, total);
}

static void add_leak(struct rs_node *list, const struct rs_holder *leak)
{
    struct rs_node *site = rs_node_object(list, NULL);

    rs_node_block_sum(site, leak->amount);
    rs_node_flag(site, "context_ended", leak->context_ended);
    site->line = leak->site
                     ? "  " AMOUNT
                       "[{context_ended?}, not freed when their CUDA context ended], allocated at\n"
                     : "  " AMOUNT "[{context_ended?}, not freed when their CUDA context ended], "
                       "allocated at an unknown place\n";
    rs_site_fill(site, leak->site, leak->outside, true);
}

static void add_leaks(struct rs_node *list, const struct rs_holder *leaks, size_t count,
                      size_t sites_max)
{
    struct rs_node *stack = rs_node_object(list, NULL), *sites, *more;
    size_t said = rs_min(count, sites_max);

    stack->line = rs_document_format(
        &document, PROCESS ", device {device}%s: leaked " AMOUNT " from %zu call site%s\n",
        rs_kind_texts[leaks->kind], count, count == 1 ? "" : "s");
    rs_node_count(stack, "device", (uint64_t)leaks->device);
    rs_node_word(stack, "kind", rs_kind_names[leaks->kind]);
    add_total(stack, leaks, count);
    sites = rs_node_list(stack, "call_sites");
    for (size_t i = 0; i < said; i++)
        add_leak(sites, &leaks[i]);
    more = rs_node_object(stack, "more");
    more->line = "[  " AMOUNT " from {call_sites} more call site{call_sites||s}\n]";
    rs_node_count(more, "call_sites", count - said);
    add_total(more, leaks + said, count - said);
}

/* Returns the bytes that the program has allocated from the driver itself. These are not checked
 * for leaks. */
static uint64_t unchecked_bytes(const struct rs_report *report)
{
    uint64_t bytes = 0;

    for (int path = 0; path < RS_PATHS; path++)
        bytes += rs_report_value(report, "account", rs_path_names[path], 0);
    return bytes;
}

/* Returns the line that says that no leak was found, and what was not checked. Returns NULL if no
 * device was used, or if blocks may be missing, which say_left_out reports. */
static const char *none_line(void)
{
    static struct rs_gathered all;
    uint64_t blocks = 0, live = 0, unchecked = 0;
    char text[RS_SIZE_TEXT_BYTES];
    const char *what = "leaks were not looked for, because rmmshim served no allocation (if it "
                       "should have, see `rmmshim doctor`)";

    if (rs_locks_missed()->name_count)
        return NULL; /* say_left_out tells what is missing */
    rs_gather(&all, true);
    for (size_t i = 0; i < all.count; i++) {
        blocks += rs_report_value(&all.stacks[i].report, RS_PROGRAM, "allocations", 0);
        live += rs_report_value(&all.stacks[i].report, RS_PROGRAM, "live_allocations", 0);
        unchecked += unchecked_bytes(&all.stacks[i].report);
    }
    if (!all.count)
        return NULL; /* no device was used */
    if (live)        /* these come from resources without `tracking`, such as pushed ones */
        what = rs_document_format(&document,
                                  "no leaks among tracked allocations; %" PRIu64
                                  " block%s from resources without tracking %s not freed",
                                  live, live == 1 ? "" : "s", live == 1 ? "was" : "were");
    else if (blocks)
        what =
            rs_document_format(&document, "no leaks: %s%" PRIu64 " block%s freed",
                               blocks == 1 ? "" : "all ", blocks, blocks == 1 ? " was" : "s were");
    return rs_document_format(&document, PROCESS ": %s%s%s%s\n", what, unchecked ? "; " : "",
                              unchecked ? rs_size_format_short(unchecked, text) : "",
                              unchecked ? " not served by rmmshim was not checked" : "");
}

static void fill_leaks(const struct rs_holders *leaks, size_t count, bool json)
{
    const struct rs_holder *places = leaks->places;
    struct rs_node *root = &document.root, *list, *others;

    rs_document_begin(&document);
    rs_node_count(root, "schema", 1);
    rs_node_count(root, "pid", (uint64_t)getpid());
    rs_node_text(root, "program", program_invocation_short_name);
    list = rs_node_list(root, "leaks");
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && places[end].device == places[i].device &&
                      places[end].kind == places[i].kind;)
            end++;
        add_leaks(list, &places[i], end - i, json ? JSON_SITES_MAX : TEXT_SITES_MAX);
    }
    others = rs_node_object(root, "others");
    rs_node_block_sum(others, leaks->others);
    if (leaks->others.blocks)
        others->line = PROCESS ": also leaked " AMOUNT " from further call sites\n";
    else if (!count && !json)
        root->end = none_line();
}

static struct rs_page leaks_page;
static struct rs_page_file leaks_file = {.variable = "RMM_TRACKING"};

/* Writes the leak report. The text says so if no block leaked, and is empty if no device was used.
 */
static void write_leaks(void)
{
    bool json = rs_config.tracking == RS_STATISTICS_JSON;
    size_t count;

    if (!gather_leaks())
        return;
    count = rs_holders_sort(&all_leaks, true);
    rs_page_begin(&leaks_page, &leaks_file, rs_config.tracking_path);
    fill_leaks(&all_leaks, count, json);
    if (json)
        rs_document_put_json(&leaks_page, &document.root, false);
    else
        rs_document_put_text(&leaks_page, &document.root);
    rs_document_release(&document);
    rs_page_end(&leaks_page);
}

/* ---- the list of what is live ---- */

/* Protects the variables of this section. Threads only try to lock it and never wait: a list is
 * made in the middle of some call of the program. */
static struct rs_mutex listing = RS_MUTEX_INIT(RS_RANK_REPORT);
RS_RESET_IN_CHILD(report_live, listing);
static struct rs_holders holders;
/* The sums of live blocks, by kind; put_holder subtracts the blocks that it lists. */
static struct rs_block_sum live[RS_KINDS];
static unsigned tracked; /* the kinds that are tracked, as rs_holders_tracked returns them */
static int listed_device;

static char *list_text; /* RS_LIVE_LIST_BYTES bytes; NULL: not allocated yet */
static pid_t text_owner;
static size_t used_bytes;
static bool is_full;

/* Allocates the list's text in published memory, unless it is there already. Returns false if
 * nothing is published, as in a forked child, or there is no room. */
static bool take_text(void)
{
    if (!rs_published_head())
        return false;
    if (!list_text || text_owner != getpid())
        list_text = rs_published_allocate(RS_LIVE_LIST_BYTES, RS_PUBLISHED_ALIGNMENT);
    text_owner = getpid();
    if (list_text && rs_published_offset(list_text))
        return true;
    if (list_text)
        rs_published_free(list_text);
    list_text = NULL;
    return false;
}

static void put_listed(const char *format, ...) RS_PRINTF(1, 2);

/* Adds a line to the list. If the line does not fit, the list is full: only the lines of put_end
 * follow, for which END_BYTES are kept free. */
static void put_listed(const char *format, ...)
{
    size_t room = RS_LIVE_LIST_BYTES - END_BYTES - used_bytes;
    va_list arguments;
    int length;

    RS_ASSERT_HELD(&listing);
    RS_ASSERT(used_bytes <= RS_LIVE_LIST_BYTES - END_BYTES);
    if (is_full)
        return;
    va_start(arguments, format);
    length = vsnprintf(list_text + used_bytes, room, format, arguments);
    va_end(arguments);
    is_full = length < 0 || (size_t)length >= room;
    if (!is_full)
        used_bytes += (size_t)length;
}

static void list_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    (void)data;
    if (stack->environment.device == listed_device)
        rs_holders_add(&holders, stack, mr, false);
}

static void count_block(void *data, const struct rs_block_view *view)
{
    (void)data;
    if (view->device != listed_device)
        return;
    rs_block_sum_add(&live[view->kind], (struct rs_block_sum){view->size_bytes, 1});
    if (!(tracked & 1u << view->kind))
        rs_holders_add_block(&holders, view);
}

static void gather_list(int device)
{
    RS_ASSERT_HELD(&listing);
    memset(&holders, 0, sizeof(holders));
    memset(live, 0, sizeof(live));
    listed_device = device;
    rs_context_each_stack(list_stack, NULL);
    tracked = rs_holders_tracked(&holders);
    rs_object_review();
    rs_block_each(count_block, NULL);
}

static void put_site(const struct rs_holder *holder)
{
    char line[SITE_BYTES];
    size_t used = 0;

    for (unsigned i = 0; i < holder->site->frame_count; i++)
        used += (size_t)snprintf(line + used, sizeof(line) - used, " %" PRIxPTR,
                                 (uintptr_t)holder->site->frames[i]);
    RS_ASSERT(used < sizeof(line));
    put_listed("site %d %zu %zu%.*s\n", (int)holder->kind, holder->amount.bytes,
               holder->amount.blocks, (int)used, line);
    for (unsigned i = 0; i < holder->site->line_count; i++)
        put_listed("line %s\n", rs_site_line(holder->site, i)->text);
}

static void put_library(const struct rs_library *library)
{
    put_listed("library %d %zu %zu %s\n", (int)library->kind, library->amount.bytes,
               library->amount.blocks, library->name ? library->name : "?");
    for (size_t i = 0; i < library->size_count; i++) {
        const struct rs_holder *size = &library->sizes[i];
        put_listed("size %zu %zu %zu %zu\n", size->amount.bytes, size->amount.blocks,
                   size->smallest_bytes, size->largest_bytes);
    }
}

/* Lists a call site or a library. Blocks of a tracked kind whose call site is not known get no line
 * here; put_end sums them up. */
static void put_holder(const struct rs_library *holder)
{
    struct rs_block_sum *rest = &live[holder->kind];

    if (holder->sizes->site)
        put_site(holder->sizes);
    else if (holder->sizes->size_class)
        put_library(holder);
    else
        return;
    if (is_full)
        return;
    rest->bytes -= rs_min(holder->amount.bytes, rest->bytes);
    rest->blocks -= rs_min(holder->amount.blocks, rest->blocks);
}

static void put_end(void)
{
    for (int kind = 0; kind < RS_KINDS; kind++)
        if (live[kind].blocks)
            used_bytes +=
                (size_t)snprintf(list_text + used_bytes, RS_LIVE_LIST_BYTES - used_bytes,
                                 "more %d %zu %zu\n", kind, live[kind].bytes, live[kind].blocks);
    used_bytes +=
        (size_t)snprintf(list_text + used_bytes, RS_LIVE_LIST_BYTES - used_bytes, "end\n");
    RS_ASSERT(used_bytes < RS_LIVE_LIST_BYTES); /* put_listed has kept END_BYTES free */
}

static void write_list(void)
{
    const struct rs_holder *at = holders.places, *end = at + rs_holders_sort(&holders, false);
    struct rs_library holder;

    used_bytes = 0;
    is_full = false;
    for (; at < end; at += holder.size_count) {
        holder = rs_holders_library(at, end);
        put_holder(&holder);
    }
    put_end();
}

int rs_live_list(int device, uint64_t *offset, uint64_t *length_bytes)
{
    int result = -ENOMEM;

    RS_ASSERT(device >= 0 && device < RS_DEVICES_MAX);
    if (!rs_mutex_try_lock(&listing))
        return -EBUSY;
    if (take_text()) {
        gather_list(device);
        write_list();
        *offset = rs_published_offset(list_text);
        *length_bytes = used_bytes;
        result = 0;
    }
    rs_mutex_unlock(&listing);
    return result;
}

/* ---- the statistics, and all at exit ---- */

static struct rs_mutex writing =
    RS_MUTEX_INIT(RS_RANK_REPORT); /* protects the page and the gathered counters */
RS_RESET_IN_CHILD(report_report, writing);
static struct rs_page page;
static struct rs_gathered all;

static struct rs_page_file file = {.variable = "RMM_STATISTICS"};

void rs_report_claim(void)
{
    rs_page_claim(&file, rs_config.statistics_path);
    rs_page_claim(&leaks_file, rs_config.tracking_path);
    if (rs_config.tracking != RS_STATISTICS_NONE)
        rs_publish_leak_report();
    rs_oom_claim();
    if (file.state != RS_PAGE_FILE_NONE) /* RS_PAGE_FILE_NONE: the file could not be claimed, which
                                            was logged */
        rs_publish_report_file(rs_config.statistics,
                               file.state == RS_PAGE_FILE_CLAIMED ? &file.output : NULL);
}

/* The caller holds `writing`. */
static void write_statistics(enum rs_statistics_format format, struct rs_page_file *to,
                             const char *path)
{
    const struct rs_locks_missed *missed = rs_locks_missed();
    struct rs_report_subject subject = {
        .process = (int)getpid(),
        .program = program_invocation_short_name,
        .rank = rs_process_rank(),
        .stacks = all.stacks,
        .left_out = missed->names,
        .hides_program = true,
        .is_this_process = true,
    };

    rs_gather(&all, false);
    if (all.is_short)
        rs_log_asked("RMM_STATISTICS: some counters are missing, because host memory ran out");
    rs_page_begin(&page, to, path);
    subject.stack_count = all.count;
    subject.left_out_count = missed->name_count;
    rs_report_put(&page, format, &subject);
    rs_page_end(&page);
}

int rs_report_write(const char *where, struct rs_diagnostics *diagnostics)
{
    const struct rs_source source = {"rmmshim_report", where ? where : "text"};
    static struct rs_page_file to; /* protected by `writing`; static, since it is large */
    unsigned before = diagnostics->count;
    const char *path = NULL;
    enum rs_statistics_format format = rs_config_report(&source, &path, diagnostics);

    if (diagnostics->count == before && format == RS_STATISTICS_NONE)
        rs_diagnose(diagnostics, &source, NULL,
                    "rmmshim_report() was called with an argument that asks for no report; "
                    "expected text, text:PATH, "
                    "json:PATH, prom:PATH or prom-all:PATH");
    if (diagnostics->count > before)
        return -EINVAL;
    RS_MUTEX_GUARD(&writing);
    to = (struct rs_page_file){.variable = source.name};
    write_statistics(format, &to, path);
    return to.error;
}

static void write_at_exit(void)
{
    if (!rs_mutex_lock_bounded(&writing, "rmmshim_report"))
        return;
    write_statistics(rs_config.statistics, &file, rs_config.statistics_path);
    rs_mutex_unlock(&writing);
}

static void say_left_out(void)
{
    const struct rs_locks_missed *missed = rs_locks_missed();
    char text[RS_LOG_LINE_BYTES] = "";
    size_t used = 0;

    for (unsigned i = 0; i < missed->name_count && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "",
                                 missed->names[i]);
    if (used)
        rs_log_asked(
            "reports or logs are incomplete: at exit a thread was still using what rmmshim needs "
            "for "
            "%s; let all threads end before exit, and call exit outside of signal handlers",
            text);
}

static _Atomic bool armed;

void rs_report_arm(void)
{
    atomic_store(&armed, true);
}

void rs_report_at_exit(void)
{
    if (!atomic_exchange(&armed, false) || !rs_mode_serving())
        return; /* no report was asked for, or this is a forked child */
    rs_lock_bound_begin(LOCKS_WAIT_NS);
    rs_publish_report_step(RS_REPORT_BEGUN);
    rs_logging_end();
    rs_recorder_end();
    if (rs_config.statistics != RS_STATISTICS_NONE)
        write_at_exit();
    if (rs_config.tracking != RS_STATISTICS_NONE)
        write_leaks();
    rs_oom_end();
    say_left_out();
    rs_publish_report_step(RS_REPORT_DONE);
    rs_lock_bound_end();
}
