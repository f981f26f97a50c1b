/* SPDX-License-Identifier: Apache-2.0 */
/* The leak report: gathers live blocks by call site, and writes them as text or JSON. */
#include "report/leaks.h"

#include "config/mode.h"
#include "context/visit.h"
#include "report/page.h"
#include "resource/adaptor/tracking.h"
#include "trace/symbol.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    LEAKS_MAX = 2048, /* places for call sites, a power of two. Leaks of further call sites are
                         counted together */
    LEAKS_USED_MAX = LEAKS_MAX * 3 / 4,
    TEXT_SITES_MAX = 32,
    JSON_SITES_MAX = 256,
    TEXT_FRAMES_MAX = 12,
};

/* Live blocks of one call site, device and kind. */
struct leak {
    const struct rs_call_site *site; /* NULL: unknown */
    int device;
    enum rs_kind kind;
    bool context_ended;
    size_t bytes, blocks; /* blocks 0: an empty place in the table */
    unsigned outside;     /* the CUDA runtime's frames, left out at the top */
};

struct leaks {
    struct leak places[LEAKS_MAX]; /* a hash table with linear probing */
    size_t used;
    struct leak others; /* leaks without a place, of any device */
};

static struct leaks gone; /* protected by the contexts' lock */

/* ---- gathering ---- */

static bool is_same(const struct leak *a, const struct leak *b)
{
    return a->site == b->site && a->device == b->device && a->kind == b->kind &&
           a->context_ended == b->context_ended;
}

static size_t place_of(const struct leak *leak)
{
    uint64_t hash = (uintptr_t)leak->site / 16 + (uint64_t)leak->device * 7 +
                    (uint64_t)leak->kind * 3 + leak->context_ended;

    return (size_t)((hash * 11400714819323198485u) >> 40) % LEAKS_MAX;
}

static void add(struct leaks *leaks, const struct leak *leak)
{
    struct leak *place = &leaks->others;
    size_t at = place_of(leak);

    while (leaks->places[at].blocks && !is_same(&leaks->places[at], leak))
        at = (at + 1) % LEAKS_MAX;
    if (leaks->places[at].blocks) {
        place = &leaks->places[at];
    } else if (leaks->used < LEAKS_USED_MAX) {
        place = &leaks->places[at];
        leaks->used++;
        *place = *leak;
        return;
    }
    place->bytes += leak->bytes;
    place->blocks += leak->blocks;
}

struct gathering {
    struct leaks *leaks;
    const struct rs_stack *stack;
    bool context_ended;
};

static void add_tracked(void *data, const struct rs_tracked *tracked)
{
    const struct gathering *gathering = data;
    const struct rs_stack *stack = gathering->stack;

    add(gathering->leaks, &(struct leak){tracked->site, stack->environment.device, stack->kind,
                                         gathering->context_ended, tracked->size_bytes, 1, 0});
}

/* Gathers from the uppermost tracking resource, which has the program's blocks; one below has those
 * of the resources above it. */
static void gather(struct leaks *leaks, const struct rs_stack *stack, struct rs_mr *mr,
                   bool context_ended)
{
    struct gathering gathering = {leaks, stack, context_ended};

    while (mr && mr->descriptor != &rs_mr_descriptor_tracking)
        mr = mr->upstream[0];
    if (mr)
        rs_tracking_each(mr, add_tracked, &gathering);
}

void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr)
{
    gather(&gone, stack, mr, true);
}

static void gather_live(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    gather(data, stack, mr, false);
}

/* ---- what the report shows ---- */

static bool is_of_runtime(const void *frame)
{
    struct rs_symbol symbol;

    rs_symbol_describe(frame, &symbol);
    return strncmp(symbol.object, "libcudart", 9) == 0;
}

/* Returns the number of frames to leave out: the report shows where the program calls the CUDA
 * runtime, not where the runtime calls the driver. */
static unsigned frames_outside(const struct rs_call_site *site)
{
    unsigned outside = 0;

    while (outside < site->frame_count && is_of_runtime(site->frames[outside]))
        outside++;
    return outside < site->frame_count ? outside : 0;
}

static bool says_the_same(const struct leak *a, const struct leak *b)
{
    size_t frames;

    if (a->device != b->device || a->kind != b->kind || a->context_ended != b->context_ended ||
        !a->site || !b->site)
        return is_same(a, b);
    frames = a->site->frame_count - a->outside;
    return frames == b->site->frame_count - b->outside &&
           memcmp(a->site->frames + a->outside, b->site->frames + b->outside,
                  frames * sizeof(void *)) == 0 &&
           strcmp(rs_call_site_python(a->site), rs_call_site_python(b->site)) == 0;
}

/* Packs the used places to the front, and merges those that read the same: the CUDA runtime calls
 * us in two ways, of which only one has frames of its own. */
static size_t pack(struct leaks *leaks)
{
    size_t count = 0;

    for (size_t i = 0; i < LEAKS_MAX; i++) {
        struct leak leak = leaks->places[i];
        size_t j = 0;
        if (!leak.blocks)
            continue;
        leak.outside = leak.site ? frames_outside(leak.site) : 0;
        while (j < count && !says_the_same(&leaks->places[j], &leak))
            j++;
        if (j < count) {
            leaks->places[j].bytes += leak.bytes;
            leaks->places[j].blocks += leak.blocks;
        } else {
            leaks->places[count++] = leak;
        }
    }
    return count;
}

/* Orders by device and kind, then by bytes, the most first. */
static int compare(const struct leak *a, const struct leak *b)
{
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->blocks > b->blocks ? -1 : a->blocks < b->blocks;
}

/* Shell sort, as qsort may need malloc: exit may be called in a signal's handler, by a thread that
 * holds malloc's lock. */
static void sort(struct leak *leaks, size_t count)
{
    for (size_t gap = count / 2; gap > 0; gap /= 2) {
        for (size_t i = gap; i < count; i++) {
            struct leak leak = leaks[i];
            size_t at = i;
            for (; at >= gap && compare(&leaks[at - gap], &leak) > 0; at -= gap)
                leaks[at] = leaks[at - gap];
            leaks[at] = leak;
        }
    }
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

static struct totals add_up(const struct leak *leaks, size_t count)
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

static void put_text_site(const struct leak *leak)
{
    const struct rs_call_site *site = leak->site;
    const char *line = site ? rs_call_site_python(site) : "";
    struct rs_symbol symbol;

    PUT("  ");
    put_amount((struct totals){leak->bytes, leak->blocks});
    PUT("%s%s\n", leak->context_ended ? ", when the context ended" : "",
        site ? ", allocated at" : ", it is not known where");
    for (; *line; line = strchr(line, '\n') + 1)
        PUT("    %.*s\n", (int)strcspn(line, "\n"), line);
    for (unsigned i = leak->outside; site && i < site->frame_count; i++) {
        if (i - leak->outside == TEXT_FRAMES_MAX) {
            PUT("    ...\n");
            return;
        }
        rs_symbol_describe(site->frames[i], &symbol);
        if (symbol.function[0])
            PUT("    %s+%#zx (%s+%#zx)\n", symbol.function, (size_t)symbol.function_offset,
                symbol.object, (size_t)symbol.object_offset);
        else
            PUT("    %s+%#zx\n", symbol.object, (size_t)symbol.object_offset);
    }
}

static void put_text_stack(const struct leak *leaks, size_t count)
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

static void put_text_others(const struct leak *others)
{
    PUT("rmmshim[%d]: %s: and ", (int)getpid(), program_invocation_short_name);
    put_amount((struct totals){others->bytes, others->blocks});
    PUT(" from further call sites\n");
}

/* ---- as JSON ---- */

static void put_json_python(const char *line)
{
    const char *between = "";

    PUT("],\"python\":[");
    for (; *line; line = strchr(line, '\n') + 1) {
        PUT("%s\"", between);
        rs_page_put_escaped(&page, line, strcspn(line, "\n"));
        PUT("\"");
        between = ",";
    }
    PUT("]");
}

static void put_json_site(const struct leak *leak)
{
    const struct rs_call_site *site = leak->site;
    struct rs_symbol symbol;

    PUT("\n{\"bytes\":%zu,\"blocks\":%zu,\"context_ended\":%s,\"frames\":[", leak->bytes,
        leak->blocks, leak->context_ended ? "true" : "false");
    for (unsigned i = leak->outside; site && i < site->frame_count; i++) {
        rs_symbol_describe(site->frames[i], &symbol);
        PUT("%s{\"function\":\"", i > leak->outside ? "," : "");
        put_escaped(symbol.function);
        PUT("\",\"function_offset\":%zu,\"object\":\"", (size_t)symbol.function_offset);
        put_escaped(symbol.object);
        PUT("\",\"object_offset\":%zu}", (size_t)symbol.object_offset);
    }
    put_json_python(site ? rs_call_site_python(site) : "");
    PUT("}");
}

static void put_json_stack(const struct leak *leaks, size_t count)
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

static void put_stacks(const struct leak *leaks, size_t count, bool json)
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

static void fill_page(const struct leaks *leaks, size_t count, bool json)
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
}

static struct rs_page_file file = {.variable = "RMM_TRACKING"};

void rs_leaks_claim(void)
{
    rs_page_claim(&file, rs_config.tracking_path);
}

void rs_leaks_write(void)
{
    bool json = rs_config.tracking == RS_STATISTICS_JSON;
    size_t count;

    rs_context_each_stack(gather_live, &gone);
    count = pack(&gone);
    sort(gone.places, count);
    rs_page_begin(&page, &file, rs_config.tracking_path);
    fill_page(&gone, count, json);
    rs_page_end(&page);
}
