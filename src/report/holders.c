/* SPDX-License-Identifier: Apache-2.0 */
#include "report/holders.h"

#include "base/check.h"
#include "base/size.h"
#include "config/config.h"
#include "resource/adaptor/tracking.h"
#include "trace/object.h"

#include <string.h>

enum { TEXT_FRAMES_MAX = 12, TEXT_SIZES_MAX = 4 };

/* ---- gathering ---- */

static bool is_same_holder(const struct rs_holder *a, const struct rs_holder *b)
{
    return a->site == b->site && a->object == b->object && a->size_class == b->size_class &&
           a->device == b->device && a->kind == b->kind && a->context_ended == b->context_ended;
}

static size_t place_of_holder(const struct rs_holder *holder)
{
    uint64_t hash = (uintptr_t)holder->site / 16 + (uint64_t)holder->object * 256 +
                    holder->size_class + (uint64_t)holder->device * 7 +
                    (uint64_t)holder->kind * 64 + holder->context_ended;

    return (size_t)((hash * 11400714819323198485u) >> 40) % RS_HOLDERS_MAX;
}

static void add_holder(struct rs_holders *holders, const struct rs_holder *holder)
{
    size_t at = place_of_holder(holder);
    struct rs_holder *place;

    /* There is always an empty place, which ends the search. */
    RS_ASSERT(holders->used <= RS_HOLDERS_USED_MAX);
    while (holders->places[at].amount.blocks && !is_same_holder(&holders->places[at], holder))
        at = (at + 1) % RS_HOLDERS_MAX;
    place = &holders->places[at];
    if (place->amount.blocks) {
        rs_block_sum_add(&place->amount, holder->amount);
        place->smallest_bytes = rs_min(place->smallest_bytes, holder->smallest_bytes);
        place->largest_bytes = rs_max(place->largest_bytes, holder->largest_bytes);
    } else if (holders->used < RS_HOLDERS_USED_MAX) {
        *place = *holder;
        holders->used++;
    } else {
        rs_block_sum_add(&holders->others, holder->amount);
    }
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

    add_holder(gathering->holders, &(struct rs_holder){.site = tracked->site,
                                                       .device = stack->environment.device,
                                                       .kind = stack->kind,
                                                       .context_ended = gathering->context_ended,
                                                       .amount = {tracked->size_bytes, 1}});
}

void rs_holders_add(struct rs_holders *holders, const struct rs_stack *stack, struct rs_mr *mr,
                    bool context_ended)
{
    struct gathering gathering = {holders, stack, context_ended};

    while (mr && mr->descriptor != &rs_mr_descriptor_tracking)
        mr = mr->upstream[0];
    if (mr)
        rs_tracking_each(mr, add_tracked, &gathering);
}

void rs_holders_add_block(struct rs_holders *holders, const struct rs_block_view *view)
{
    add_holder(holders, &(struct rs_holder){
                            .object = rs_object_name(view->object) ? view->object : 0,
                            .size_class = 64 - (unsigned)__builtin_clzll(view->size_bytes | 1),
                            .device = view->device,
                            .kind = view->kind,
                            .amount = {view->size_bytes, 1},
                            .smallest_bytes = view->size_bytes,
                            .largest_bytes = view->size_bytes,
                        });
}

unsigned rs_holders_tracked(const struct rs_holders *holders)
{
    unsigned kinds = 0;

    for (size_t i = 0; i < RS_HOLDERS_MAX; i++)
        if (holders->places[i].site)
            kinds |= 1u << holders->places[i].kind;
    return kinds;
}

/* ---- in order ---- */

static bool reads_alike(const struct rs_holder *a, const struct rs_holder *b)
{
    size_t frames;

    if (a->device != b->device || a->kind != b->kind || a->context_ended != b->context_ended ||
        !a->site)
        return false;
    frames = a->site->frame_count - a->outside;
    return frames == b->site->frame_count - b->outside &&
           a->site->line_count == b->site->line_count &&
           memcmp(a->site->frames + a->outside, b->site->frames + b->outside,
                  (frames + a->site->line_count) * sizeof(void *)) ==
               0; /* the Python lines (pointers) follow the frames */
}

/* Moves the used places to the front, and returns their number. With `merges`, call sites that
 * print the same text become one. They may differ in frames that are not printed: only a call that
 * reaches the library through the CUDA runtime has frames of the runtime. */
static size_t pack_places(struct rs_holders *holders, bool merges)
{
    size_t count = 0;

    for (size_t i = 0; i < RS_HOLDERS_MAX; i++) {
        struct rs_holder holder = holders->places[i];
        size_t j = merges && holder.site ? 0 : count;
        if (!holder.amount.blocks)
            continue;
        holder.outside = merges && holder.site ? rs_site_frames_outside(holder.site) : 0;
        while (j < count && !reads_alike(&holders->places[j], &holder))
            j++;
        if (j < count)
            rs_block_sum_add(&holders->places[j].amount, holder.amount);
        else
            holders->places[count++] = holder;
    }
    return count;
}

static bool precedes(const struct rs_holder *a, const struct rs_holder *b)
{
    if (a->device != b->device)
        return a->device < b->device;
    if (a->library_bytes != b->library_bytes)
        return a->library_bytes > b->library_bytes;
    if (a->object != b->object)
        return a->object < b->object;
    if (a->kind != b->kind)
        return a->kind < b->kind;
    if (a->amount.bytes != b->amount.bytes)
        return a->amount.bytes > b->amount.bytes;
    return a->amount.blocks > b->amount.blocks;
}

/* Sorts by Shell's method rather than by qsort, which may call malloc: this thread may hold
 * malloc's lock if a signal handler called exit(). */
static void sort(struct rs_holder *holders, size_t count)
{
    for (size_t gap = count / 2; gap > 0; gap /= 2) {
        for (size_t i = gap; i < count; i++) {
            struct rs_holder holder = holders[i];
            size_t at = i;
            for (; at >= gap && precedes(&holder, &holders[at - gap]); at -= gap)
                holders[at] = holders[at - gap];
            holders[at] = holder;
        }
    }
}

size_t rs_holders_sort(struct rs_holders *holders, bool merges)
{
    struct rs_holder *places = holders->places;
    size_t count = pack_places(holders, merges);

    sort(places, count); /* now the sizes of one library are neighbours */
    for (size_t i = 0, end; i < count; i = end) {
        struct rs_library library = rs_holders_library(&places[i], &places[count]);
        end = i + library.size_count;
        for (size_t j = i; j < end && places[j].size_class; j++)
            places[j].library_bytes = library.amount.bytes;
    }
    sort(places, count);
    return count;
}

static bool is_of_one_library(const struct rs_holder *a, const struct rs_holder *b)
{
    return a->size_class && b->size_class && a->device == b->device && a->object == b->object &&
           a->kind == b->kind;
}

struct rs_library rs_holders_library(const struct rs_holder *first, const struct rs_holder *end)
{
    struct rs_library library = {rs_object_name(first->object), first->kind, first->amount, first,
                                 1};

    for (const struct rs_holder *size = first + 1; size < end && is_of_one_library(first, size);
         size++) {
        rs_block_sum_add(&library.amount, size->amount);
        library.size_count++;
    }
    return library;
}

/* ---- in a report ---- */

static void add_size_class(struct rs_node *sizes, const struct rs_holder *from, bool is_said)
{
    struct rs_node *size = rs_node_object(sizes, NULL);

    rs_node_block_sum(size, from->amount);
    rs_node_bytes(size, "smallest", from->smallest_bytes);
    rs_node_bytes(size, "largest", from->largest_bytes);
    if (is_said)
        size->line = from->smallest_bytes == from->largest_bytes
                         ? "    {bytes} in {blocks} block{blocks||s} of {largest}\n"
                         : "    {bytes} in {blocks} block{blocks||s} of {smallest} to {largest}\n";
}

void rs_library_fill(struct rs_node *list, const struct rs_library *library, enum rs_kind usual,
                     bool is_said)
{
    struct rs_node *holder = rs_node_object(list, NULL);
    bool has_sizes = library->size_count > 1, has_range;
    struct rs_block_sum rest = {0, 0};
    struct rs_node *sizes;
    char of[RS_SIZE_TEXT_BYTES], to[RS_SIZE_TEXT_BYTES];
    const struct rs_holder *only = library->sizes;

    has_range = !has_sizes && only->smallest_bytes != only->largest_bytes;
    rs_node_word(holder, "kind", rs_kind_names[library->kind]);
    rs_node_block_sum(holder, library->amount);
    if (library->name)
        rs_node_text(holder, "library", library->name);
    if (is_said)
        holder->line = rs_document_format(
            list->document, "  {bytes} in {blocks} block{blocks||s}%s%s%s%s%s, allocated by %s\n",
            has_sizes ? "" : " of ",
            has_sizes ? "" : rs_size_format_short(only->smallest_bytes, of),
            has_range ? " to " : "", has_range ? rs_size_format_short(only->largest_bytes, to) : "",
            library->kind == usual ? "" : rs_kind_texts[library->kind],
            library->name ? "{library}" : "an unknown library");
    sizes = rs_node_list(holder, "sizes");
    for (size_t i = 0; i < library->size_count; i++) {
        bool has_line = i < TEXT_SIZES_MAX;
        add_size_class(sizes, &library->sizes[i], is_said && has_sizes && has_line);
        if (!has_line)
            rs_block_sum_add(&rest, library->sizes[i].amount);
    }
    if (is_said)
        sizes->end = rs_document_rest(list->document, "    ", rest);
}

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
        rs_node_text(list, NULL, rs_site_line(site, i)->text)->line = has_lines ? "    {}\n" : NULL;
    list = rs_node_list(in, "frames");
    for (unsigned i = outside; site && i < site->frame_count; i++) {
        bool is_said = next < count && said[next] == site->frames[i];
        rs_symbol_describe(site->frames[i], true, &symbol);
        rs_frame_fill(list, &symbol, NULL, is_said ? (int)next : -1);
        next += is_said;
    }
}
