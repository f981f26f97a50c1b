/* SPDX-License-Identifier: Apache-2.0 */
#include "report/leaks.h"

#include "base/lock.h"
#include "base/size.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/visit.h"
#include "report/gather.h"
#include "report/holders.h"
#include "report/page.h"
#include "report/publish.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
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

static struct rs_page page;

#define PUT(...) rs_page_put(&page, __VA_ARGS__)

static void put_escaped(const char *text)
{
    rs_page_put_escaped(&page, text, strlen(text));
}

struct totals {
    size_t bytes, blocks;
};

static struct totals add_up(const struct rs_holder *leaks, size_t count)
{
    struct totals totals = {0, 0};

    for (size_t i = 0; i < count; i++) {
        totals.bytes += leaks[i].bytes;
        totals.blocks += leaks[i].blocks;
    }
    return totals;
}

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

/* ---- as text ---- */

static void put_amount(struct totals totals)
{
    char text[RS_SIZE_TEXT_BYTES];

    PUT("%s in %zu block%s", rs_size_format_short(totals.bytes, text), totals.blocks,
        plural(totals.blocks));
}

static void put_text_site(const struct rs_holder *leak)
{
    PUT("  ");
    put_amount((struct totals){leak->bytes, leak->blocks});
    PUT("%s%s\n", leak->context_ended ? ", when the context ended" : "",
        leak->site ? ", allocated at" : ", it is not known where");
    if (leak->site)
        rs_site_put_text(&page, leak->site, leak->outside);
}

static void put_text_stack(const struct rs_holder *leaks, size_t count)
{
    size_t said = 0;

    PUT("rmmshim[%d]: %s, device %d%s: leaked ", (int)getpid(), program_invocation_short_name,
        leaks[0].device, rs_kind_texts[leaks[0].kind]);
    put_amount(add_up(leaks, count));
    PUT(" from %zu call site%s\n", count, plural(count));
    for (; said < count && said < TEXT_SITES_MAX; said++)
        put_text_site(&leaks[said]);
    if (said == count)
        return;
    PUT("  ");
    put_amount(add_up(leaks + said, count - said));
    PUT(" from %zu more call site%s\n", count - said, plural(count - said));
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
static void put_text_none(void)
{
    static struct rs_gathered all;
    uint64_t blocks = 0, live = 0, untracked = 0;
    char text[RS_SIZE_TEXT_BYTES];

    if (rs_locks_missed()->name_count)
        return; /* it is said that something was left out */
    rs_gather_all(&all);
    for (size_t i = 0; i < all.count; i++) {
        blocks += rs_report_value(&all.stacks[i].report, RS_PROGRAM, "allocations", 0);
        live += rs_report_value(&all.stacks[i].report, RS_PROGRAM, "live_allocations", 0);
        untracked += untracked_bytes(&all.stacks[i].report);
    }
    if (!all.count)
        return; /* no device was used */
    PUT("rmmshim[%d]: %s: ", (int)getpid(), program_invocation_short_name);
    if (live) /* of a resource that a thread has pushed, say */
        PUT("no leaks in stacks that track; in others %" PRIu64 " block%s not freed", live,
            live == 1 ? " was" : "s were");
    else if (blocks)
        PUT("no leaks: all %" PRIu64 " block%s freed", blocks, blocks == 1 ? " was" : "s were");
    else
        PUT("no leaks were looked for: no block was tracked");
    if (untracked)
        PUT("; %s that no stack serves are not tracked", rs_size_format_short(untracked, text));
    PUT("\n");
}

static void put_text_others(const struct rs_holder *others)
{
    PUT("rmmshim[%d]: %s: and ", (int)getpid(), program_invocation_short_name);
    put_amount((struct totals){others->bytes, others->blocks});
    PUT(" from further call sites\n");
}

/* ---- as JSON ---- */

static void put_json_site(const struct rs_holder *leak)
{
    PUT("\n{\"bytes\":%zu,\"blocks\":%zu,\"context_ended\":%s,", leak->bytes, leak->blocks,
        leak->context_ended ? "true" : "false");
    rs_site_put_json(&page, leak->site, leak->outside);
    PUT("}");
}

static void put_json_stack(const struct rs_holder *leaks, size_t count)
{
    struct totals all = add_up(leaks, count), rest;
    size_t said = 0;

    PUT("{\"device\":%d,\"kind\":\"%s\",\"bytes\":%zu,\"blocks\":%zu,\"call_sites\":[",
        leaks[0].device, rs_kind_names[leaks[0].kind], all.bytes, all.blocks);
    for (; said < count && said < JSON_SITES_MAX; said++) {
        PUT("%s", said ? "," : "");
        put_json_site(&leaks[said]);
    }
    rest = add_up(leaks + said, count - said);
    PUT("],\"more\":{\"call_sites\":%zu,\"bytes\":%zu,\"blocks\":%zu}}", count - said, rest.bytes,
        rest.blocks);
}

/* ---- the whole ---- */

static void put_stacks(const struct rs_holder *leaks, size_t count, bool json)
{
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && leaks[end].device == leaks[i].device &&
                      leaks[end].kind == leaks[i].kind;)
            end++;
        if (json) {
            PUT("%s\n", i ? "," : "");
            put_json_stack(leaks + i, end - i);
        } else {
            put_text_stack(leaks + i, end - i);
        }
    }
}

static void fill_page(const struct rs_holders *leaks, size_t count, bool json)
{
    if (json) {
        PUT("{\"schema\":1,\"pid\":%d,\"program\":\"", (int)getpid());
        put_escaped(program_invocation_short_name);
        PUT("\",\"leaks\":[");
    }
    put_stacks(leaks->places, count, json);
    if (json)
        PUT("],\"others\":{\"bytes\":%zu,\"blocks\":%zu}}\n", leaks->others.bytes,
            leaks->others.blocks);
    else if (leaks->others.blocks)
        put_text_others(&leaks->others);
    else if (!count)
        put_text_none();
}

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
    fill_page(&gone, count, json);
    rs_page_end(&page);
}
