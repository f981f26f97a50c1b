/* SPDX-License-Identifier: Apache-2.0 */
#include "report/leaks.h"

#include "base/lock.h"
#include "base/size.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/visit.h"
#include "report/document.h"
#include "report/gather.h"
#include "report/holders.h"
#include "report/page.h"
#include "report/publish.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

enum { TEXT_SITES_MAX = 32, JSON_SITES_MAX = 256 };

static struct rs_holders gone; /* under the contexts' lock */

void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr)
{
    (void)rs_holders_add(&gone, stack, mr, true);
}

static void gather_live(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    (void)rs_holders_add(data, stack, mr, false);
}

static struct rs_document document;

#define PROCESS "rmmshim[[{pid}]]: {program}"
#define AMOUNT  "{bytes} in {blocks} block{blocks||s}"

static void add_amount(struct rs_node *in, size_t bytes, size_t blocks)
{
    rs_node_bytes(in, "bytes", bytes);
    rs_node_count(in, "blocks", blocks);
}

static void add_total(struct rs_node *in, const struct rs_holder *leaks, size_t count)
{
    size_t bytes = 0, blocks = 0;

    for (size_t i = 0; i < count; i++) {
        bytes += leaks[i].bytes;
        blocks += leaks[i].blocks;
    }
    add_amount(in, bytes, blocks);
}

static void add_site(struct rs_node *list, const struct rs_holder *leak)
{
    struct rs_node *site = rs_node_object(list, NULL);

    add_amount(site, leak->bytes, leak->blocks);
    rs_node_flag(site, "context_ended", leak->context_ended);
    site->line = leak->site
                     ? "  " AMOUNT "[{context_ended?}, when the context ended], allocated at\n"
                     : "  " AMOUNT "[{context_ended?}, when the context ended], it is not known "
                       "where\n";
    rs_site_fill(site, leak->site, leak->outside, true);
}

static void add_stack(struct rs_node *list, const struct rs_holder *leaks, size_t count,
                      size_t sites_max)
{
    struct rs_node *stack = rs_node_object(list, NULL), *sites, *more;
    size_t said = count < sites_max ? count : sites_max;

    stack->line = rs_document_format(
        &document, PROCESS ", device {device}%s: leaked " AMOUNT " from %zu call site%s\n",
        rs_kind_texts[leaks->kind], count, count == 1 ? "" : "s");
    rs_node_count(stack, "device", (uint64_t)leaks->device);
    rs_node_word(stack, "kind", rs_kind_names[leaks->kind]);
    add_total(stack, leaks, count);
    sites = rs_node_list(stack, "call_sites");
    for (size_t i = 0; i < said; i++)
        add_site(sites, &leaks[i]);
    more = rs_node_object(stack, "more");
    more->line = "[  " AMOUNT " from {call_sites} more call site{call_sites||s}\n]";
    rs_node_count(more, "call_sites", count - said);
    add_total(more, leaks + said, count - said);
}

/* Memory that no stack serves is not tracked. */
static uint64_t untracked_bytes(const struct rs_report *report)
{
    static const char *const ways[] = {"driver", "managed",        "arrays",
                                       "vmm",    "stream_ordered", "graphs"};
    uint64_t bytes = 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(ways); i++)
        bytes += rs_report_value(report, "account", ways[i], 0);
    return bytes;
}

/* Nothing was found, which says something only of what was looked at. */
static const char *none_line(void)
{
    static struct rs_gathered all;
    uint64_t blocks = 0, live = 0, untracked = 0, said;
    char text[RS_SIZE_TEXT_BYTES];
    const char *what = "no leaks were looked for: no block was tracked";

    if (rs_locks_missed()->name_count)
        return NULL; /* it is said that something was left out */
    rs_gather_all(&all);
    for (size_t i = 0; i < all.count; i++) {
        blocks += rs_report_value(&all.stacks[i].report, RS_PROGRAM, "allocations", 0);
        live += rs_report_value(&all.stacks[i].report, RS_PROGRAM, "live_allocations", 0);
        untracked += untracked_bytes(&all.stacks[i].report);
    }
    if (!all.count)
        return NULL; /* no device was used */
    said = live ? live : blocks;
    if (said) /* live: of a resource that a thread has pushed, say */
        what = rs_document_format(&document, "%s%" PRIu64 " block%s%s freed",
                                  live ? "no leaks in stacks that track; in others "
                                       : "no leaks: all ",
                                  said, said == 1 ? " was" : "s were", live ? " not" : "");
    return rs_document_format(&document, PROCESS ": %s%s%s%s\n", what, untracked ? "; " : "",
                              untracked ? rs_size_format_short(untracked, text) : "",
                              untracked ? " that no stack serves are not tracked" : "");
}

static void fill(const struct rs_holders *leaks, size_t count, bool json)
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
        add_stack(list, &places[i], end - i, json ? JSON_SITES_MAX : TEXT_SITES_MAX);
    }
    others = rs_node_object(root, "others");
    add_amount(others, leaks->others.bytes, leaks->others.blocks);
    if (leaks->others.blocks)
        others->line = PROCESS ": and " AMOUNT " from further call sites\n";
    else if (!count && !json)
        root->end = none_line();
}

/* ---- the whole ---- */

static struct rs_page page;
static struct rs_page_file file = {.variable = "RMM_TRACKING"};

void rs_leaks_claim(void)
{
    rs_page_claim(&file, rs_config.tracking_path);
    if (rs_config.tracking != RS_STATISTICS_NONE)
        rs_publish_leak_report();
}

void rs_leaks_write(void)
{
    bool json = rs_config.tracking == RS_STATISTICS_JSON;
    size_t count;

    rs_context_each_stack(gather_live, &gone);
    count = rs_holders_sort(&gone);
    rs_page_begin(&page, &file, rs_config.tracking_path);
    fill(&gone, count, json);
    if (json)
        rs_document_put_json(&page, &document.root, false);
    else
        rs_document_put_text(&page, &document.root);
    rs_document_release(&document);
    rs_page_end(&page);
}
