/* SPDX-License-Identifier: Apache-2.0 */
#include "report/holders.h"

#include "resource/adaptor/tracking.h"

#include <string.h>

enum { TEXT_FRAMES_MAX = 12 };

/* ---- gathering ---- */

static bool is_same(const struct rs_holder *a, const struct rs_holder *b)
{
    return a->site == b->site && a->device == b->device && a->kind == b->kind &&
           a->context_ended == b->context_ended;
}

static size_t place_of(const struct rs_holder *holder)
{
    uint64_t hash = (uintptr_t)holder->site / 16 + (uint64_t)holder->device * 7 +
                    (uint64_t)holder->kind * 3 + holder->context_ended;

    return (size_t)((hash * 11400714819323198485u) >> 40) % RS_HOLDERS_MAX;
}

static void add(struct rs_holders *holders, const struct rs_holder *holder)
{
    struct rs_holder *place = &holders->others;
    size_t at = place_of(holder);

    while (holders->places[at].blocks && !is_same(&holders->places[at], holder))
        at = (at + 1) % RS_HOLDERS_MAX;
    if (holders->places[at].blocks) {
        place = &holders->places[at];
    } else if (holders->used < RS_HOLDERS_USED_MAX) {
        place = &holders->places[at];
        holders->used++;
        *place = *holder;
        return;
    }
    place->bytes += holder->bytes;
    place->blocks += holder->blocks;
}

struct gathering {
    struct rs_holders *holders;
    const struct rs_stack *stack;
    bool context_ended;
};

static void add_tracked(void *data, const struct rs_tracked *tracked)
{
    const struct gathering *gathering = data;
    const struct rs_stack *stack = gathering->stack;

    add(gathering->holders,
        &(struct rs_holder){tracked->site, stack->environment.device, stack->kind,
                            gathering->context_ended, tracked->size_bytes, 1, 0});
}

bool rs_holders_add(struct rs_holders *holders, const struct rs_stack *stack, struct rs_mr *mr,
                    bool context_ended)
{
    struct gathering gathering = {holders, stack, context_ended};

    while (mr && mr->descriptor != &rs_mr_descriptor_tracking)
        mr = mr->upstream[0];
    if (mr)
        rs_tracking_each(mr, add_tracked, &gathering);
    return mr != NULL;
}

/* ---- what is said of them ---- */

static bool says_the_same(const struct rs_holder *a, const struct rs_holder *b)
{
    size_t frames;

    if (a->device != b->device || a->kind != b->kind || a->context_ended != b->context_ended ||
        !a->site || !b->site)
        return is_same(a, b);
    frames = a->site->frame_count - a->outside;
    return frames == b->site->frame_count - b->outside &&
           memcmp(a->site->frames + a->outside, b->site->frames + b->outside,
                  frames * sizeof(void *)) == 0 &&
           a->site->line_count == b->site->line_count &&
           memcmp(a->site->lines, b->site->lines, a->site->line_count * sizeof(void *)) == 0;
}

/* Packs the used places to the front, with `merges` one for each that reads differently: a runtime
 * reaches us by two ways, of which only one has its own frames. */
static size_t pack(struct rs_holders *holders, bool merges)
{
    size_t count = 0;

    for (size_t i = 0; i < RS_HOLDERS_MAX; i++) {
        struct rs_holder holder = holders->places[i];
        size_t j = merges ? 0 : count;
        if (!holder.blocks)
            continue;
        holder.outside = merges && holder.site ? rs_site_frames_outside(holder.site) : 0;
        while (j < count && !says_the_same(&holders->places[j], &holder))
            j++;
        if (j < count) {
            holders->places[j].bytes += holder.bytes;
            holders->places[j].blocks += holder.blocks;
        } else {
            holders->places[count++] = holder;
        }
    }
    return count;
}

/* By device and kind, then the most bytes first. */
static int compare(const struct rs_holder *a, const struct rs_holder *b)
{
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->blocks > b->blocks ? -1 : a->blocks < b->blocks;
}

/* Shell's: qsort may need malloc, whose lock the thread may hold that exits in a signal's handler.
 */
static void sort(struct rs_holder *holders, size_t count)
{
    for (size_t gap = count / 2; gap > 0; gap /= 2) {
        for (size_t i = gap; i < count; i++) {
            struct rs_holder holder = holders[i];
            size_t at = i;
            for (; at >= gap && compare(&holders[at - gap], &holder) > 0; at -= gap)
                holders[at] = holders[at - gap];
            holders[at] = holder;
        }
    }
}

size_t rs_holders_sort(struct rs_holders *holders)
{
    size_t count = pack(holders, true);

    sort(holders->places, count);
    return count;
}

size_t rs_holders_order(struct rs_holders *holders)
{
    size_t count = pack(holders, false);

    sort(holders->places, count);
    return count;
}

/* ---- a call site in a report ---- */

void rs_frame_fill(struct rs_node *list, const struct rs_symbol *symbol, const char *file_line,
                   int said)
{
    struct rs_node *frame = rs_node_object(list, NULL);

    rs_node_text(frame, "function", symbol->function);
    rs_node_count(frame, "function_offset", symbol->function_offset);
    rs_node_text(frame, "object", symbol->object);
    rs_node_count(frame, "object_offset", symbol->object_offset);
    if (file_line)
        rs_node_text(frame, "line", file_line);
    if (said == TEXT_FRAMES_MAX)
        frame->line = "    ...\n";
    else if (said < 0 || said > TEXT_FRAMES_MAX)
        frame->line = NULL;
    else if (!symbol->function[0])
        frame->line = "    {object}+{object_offset:x}\n";
    else
        frame->line = file_line
                          ? "    {function} at {line} ({object})\n"
                          : "    {function}+{function_offset:x} ({object}+{object_offset:x})\n";
}

void rs_site_fill(struct rs_node *in, const struct rs_call_site *site, unsigned outside,
                  bool has_lines)
{
    const void *said[RS_CALL_SITE_FRAMES_MAX];
    unsigned count = site && has_lines ? rs_site_frames_to_say(site, outside, said) : 0, next = 0;
    struct rs_node *list = rs_node_list(in, "python");
    struct rs_symbol symbol;

    for (unsigned i = 0; site && i < site->line_count; i++)
        rs_node_text(list, NULL, site->lines[i]->text)->line = has_lines ? "    {}\n" : NULL;
    list = rs_node_list(in, "frames");
    for (unsigned i = outside; site && i < site->frame_count; i++) {
        bool is_said = next < count && said[next] == site->frames[i];
        rs_symbol_describe(site->frames[i], &symbol);
        rs_frame_fill(list, &symbol, NULL, is_said ? (int)next : -1);
        next += is_said;
    }
}
