/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/span.h"

#include "base/check.h"
#include "heap/alignment.h"

_Static_assert(sizeof(struct rs_span) <= RS_RECORD_BYTES, "a span is one record");
_Static_assert((int)RS_SPAN_UNIT == (int)RS_BLOCK_ALIGNMENT,
               "every span is a block as the driver has it");

enum { LEVELS = 64 }; /* a million free spans make a tree of some 50 */

/* ---- the tree: a treap, in order of addresses, heap of random ranks ---- */

/* MurmurHash3's mixer.  Addresses come at regular distances; a multiplication alone would give
 * some distances monotone ranks. */
static uint32_t rank_of(CUdeviceptr address)
{
    uint64_t bits = (uint64_t)address;

    bits ^= bits >> 33;
    bits *= 0xff51afd7ed558ccdull;
    bits ^= bits >> 33;
    bits *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(bits >> 32);
}

static uint32_t lead_units(const struct rs_span *span)
{
    return (uint32_t)(rs_lead_bytes(span->address, RS_LARGE_ALIGNMENT) / RS_SPAN_UNIT);
}

/* Returns the units that the span itself has room for. */
static uint32_t room(const struct rs_span *span, enum rs_span_fit fit)
{
    uint32_t lead = fit == RS_SPAN_ALIGNED ? lead_units(span) : 0;

    return lead < span->units ? span->units - lead : 0;
}

static uint32_t largest_of(const struct rs_span *tree, enum rs_span_fit fit)
{
    return tree ? tree->largest[fit] : 0;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t largest_below(const struct rs_span *span, enum rs_span_fit fit)
{
    return larger(room(span, fit),
                  larger(largest_of(span->left, fit), largest_of(span->right, fit)));
}

static struct rs_span *refresh(struct rs_span *span)
{
    span->largest[RS_SPAN_ANYWHERE] = largest_below(span, RS_SPAN_ANYWHERE);
    span->largest[RS_SPAN_ALIGNED] = largest_below(span, RS_SPAN_ALIGNED);
    return span;
}

/* The functions below recurse as deep as the tree is high: some dozens for a million spans. */

/* Splits a tree into the spans below and above an address. */
static void split(struct rs_span *tree, CUdeviceptr address, struct rs_span **below,
                  struct rs_span **above)
{
    if (!tree) {
        *below = *above = NULL;
    } else if (tree->address < address) {
        split(tree->right, address, &tree->right, above);
        *below = refresh(tree);
    } else {
        split(tree->left, address, below, &tree->left);
        *above = refresh(tree);
    }
}

static struct rs_span *join(struct rs_span *below, struct rs_span *above)
{
    if (!below || !above)
        return below ? below : above;
    if (below->rank >= above->rank) {
        below->right = join(below->right, above);
        return refresh(below);
    }
    above->left = join(below, above->left);
    return refresh(above);
}

/* Returns the tree with the span in it.  On the way down each node learns of the new room. */
static struct rs_span *insert(struct rs_span *tree, struct rs_span *span)
{
    if (!tree || tree->rank < span->rank) {
        split(tree, span->address, &span->left, &span->right);
        return refresh(span);
    }
    for (int fit = 0; fit < RS_SPAN_FITS; fit++)
        tree->largest[fit] = larger(tree->largest[fit], room(span, (enum rs_span_fit)fit));
    if (span->address < tree->address)
        tree->left = insert(tree->left, span);
    else
        tree->right = insert(tree->right, span);
    return tree;
}

/* True when the largest rooms in the tree changed. */
static bool refresh_changes(struct rs_span *tree)
{
    uint32_t anywhere = tree->largest[RS_SPAN_ANYWHERE], aligned = tree->largest[RS_SPAN_ALIGNED];

    refresh(tree);
    return tree->largest[RS_SPAN_ANYWHERE] != anywhere || tree->largest[RS_SPAN_ALIGNED] != aligned;
}

/* As replace, for the top of a tree. */
static bool replace_top(struct rs_span **tree, struct rs_span *with)
{
    struct rs_span *top = *tree;

    if (with == top)
        return refresh_changes(top);
    if (with) {
        with->left = top->left;
        with->right = top->right;
        with->rank = top->rank;
    }
    *tree = with ? refresh(with) : join(top->left, top->right);
    return true;
}

/* Puts `with` in the place of a span of this tree: another span, whose address lies between those
 * of the neighbours in the tree; the same span, whose units have changed; or NULL, which takes the
 * span out.  It takes over the rank, so the order of the tree holds.  True when the largest rooms
 * in the tree may have changed: most changes end a few nodes above.  It recurses where the tree is
 * higher than LEVELS. */
static bool replace(struct rs_span **tree, const struct rs_span *span, struct rs_span *with)
{
    struct rs_span **above[LEVELS];
    unsigned count = 0;
    bool changed;

    for (; *tree != span && count < LEVELS; count++) {
        RS_ASSERT(*tree);
        above[count] = tree;
        tree = span->address < (*tree)->address ? &(*tree)->left : &(*tree)->right;
    }
    changed = *tree == span ? replace_top(tree, with) : replace(tree, span, with);
    while (changed && count > 0)
        changed = refresh_changes(*above[--count]);
    return changed;
}

/* Enters new units of a free span. */
static void resize_free(struct rs_span_set *set, struct rs_span *span)
{
    RS_ASSERT(rs_span_is_free(span) && span->units > 0);
    (void)replace(&set->root, span, span);
}

/* Puts a span that is not in the tree in the place of its free neighbour. */
static void replace_free(struct rs_span_set *set, struct rs_span *span, struct rs_span *with)
{
    RS_ASSERT(rs_span_is_free(span) && !rs_span_is_free(with) && with->units > 0);
    (void)replace(&set->root, span, with);
    span->largest[RS_SPAN_ANYWHERE] = span->largest[RS_SPAN_ALIGNED] = 0;
}

static void insert_free(struct rs_span_set *set, struct rs_span *span)
{
    RS_ASSERT(span->units > 0 && !rs_span_is_free(span));
    span->rank = rank_of(span->address);
    set->root = insert(set->root, span);
    set->free_count++;
}

static void remove_free(struct rs_span_set *set, struct rs_span *span)
{
    RS_ASSERT(rs_span_is_free(span));
    RS_ASSERT(set->free_count > 0);
    (void)replace(&set->root, span, NULL);
    set->free_count--;
    span->largest[RS_SPAN_ANYWHERE] = span->largest[RS_SPAN_ALIGNED] = 0;
}

static struct rs_span *first_fit(const struct rs_span_set *set, uint32_t units,
                                 enum rs_span_fit fit)
{
    struct rs_span *span = set->root;

    if (largest_of(span, fit) < units)
        return NULL;
    for (;;) {
        if (largest_of(span->left, fit) >= units)
            span = span->left;
        else if (room(span, fit) >= units)
            return span;
        else
            span = span->right;
    }
}

static struct rs_span *last_fit(const struct rs_span_set *set, uint32_t units, enum rs_span_fit fit)
{
    struct rs_span *span = set->root;

    if (largest_of(span, fit) < units)
        return NULL;
    for (;;) {
        if (largest_of(span->right, fit) >= units)
            span = span->right;
        else if (room(span, fit) >= units)
            return span;
        else
            span = span->left;
    }
}

/* ---- spans ---- */

/* Cuts a span in two: it keeps keep_units.  Returns the upper span.  The tree does not know yet. */
static struct rs_span *cut(struct rs_span_set *set, struct rs_span *span, uint32_t keep_units)
{
    struct rs_span *rest = rs_record_slab_take(&set->records);

    RS_ASSERT(rest && keep_units > 0 && keep_units < span->units);
    *rest = (struct rs_span){
        .address = span->address + rs_span_bytes(keep_units),
        .units = span->units - keep_units,
        .before = span,
        .after = span->after,
        .owner = span->owner,
    };
    if (rest->after)
        rest->after->before = rest;
    span->after = rest;
    span->units = keep_units;
    return rest;
}

/* Merges `upper` into `lower`, its neighbour.  The tree does not know yet, and the record of
 * `upper` is still to be given back. */
static void merge(struct rs_span *lower, struct rs_span *upper)
{
    RS_ASSERT(lower->address + rs_span_bytes(lower->units) == upper->address);
    RS_ASSERT(lower->after == upper && lower->owner == upper->owner);
    lower->units += upper->units;
    lower->after = upper->after;
    if (lower->after)
        lower->after->before = lower;
}

bool rs_span_reserve(struct rs_span_set *set)
{
    return rs_record_slab_reserve(&set->records);
}

struct rs_span *rs_span_add(struct rs_span_set *set, CUdeviceptr address, uint32_t units,
                            void *owner)
{
    struct rs_span *span = rs_record_slab_take(&set->records);

    RS_ASSERT(span && units > 0 && address % RS_SPAN_UNIT == 0);
    RS_ASSERT(units <= RS_SPAN_UNITS_MAX); /* larger ones do not fit into a span's numbers */
    *span = (struct rs_span){.address = address, .units = units, .owner = owner};
    insert_free(set, span);
    return span;
}

void rs_span_remove(struct rs_span_set *set, struct rs_span *range)
{
    RS_ASSERT(rs_span_is_whole(range));
    remove_free(set, range);
    rs_record_slab_give(&set->records, range);
}

/* Takes `units` behind the first `lead` units of a free span. */
static struct rs_span *take_behind(struct rs_span_set *set, struct rs_span *span, uint32_t lead,
                                   uint32_t units)
{
    RS_ASSERT(units > 0 && lead < span->units && units <= span->units - lead);
    if (lead > 0) {
        struct rs_span *before = span;
        span = cut(set, before, lead);
        resize_free(set, before);
        if (span->units > units)
            insert_free(set, cut(set, span, units));
    } else if (span->units > units) {
        replace_free(set, span, cut(set, span, units));
    } else {
        remove_free(set, span);
    }
    return span;
}

struct rs_span *rs_span_take(struct rs_span_set *set, uint32_t units, enum rs_span_fit fit)
{
    struct rs_span *span = first_fit(set, units, fit);

    if (!span)
        return NULL;
    return take_behind(set, span, fit == RS_SPAN_ALIGNED ? lead_units(span) : 0, units);
}

struct rs_span *rs_span_take_last(struct rs_span_set *set, uint32_t units, enum rs_span_fit fit)
{
    struct rs_span *span = last_fit(set, units, fit);
    CUdeviceptr start;

    if (!span)
        return NULL;
    start = span->address + rs_span_bytes(span->units - units);
    if (fit == RS_SPAN_ALIGNED)
        start = rs_round_down(start, RS_LARGE_ALIGNMENT);
    return take_behind(set, span, (uint32_t)((start - span->address) / RS_SPAN_UNIT), units);
}

void rs_span_give(struct rs_span_set *set, struct rs_span *span)
{
    struct rs_span *before = span->before, *after = span->after;
    bool below = before && rs_span_is_free(before), above = after && rs_span_is_free(after);

    RS_ASSERT(!rs_span_is_free(span));
    if (above) {
        merge(span, after);
        if (below)
            remove_free(set, after);
        else
            replace_free(set, after, span);
        rs_record_slab_give(&set->records, after);
    }
    if (below) {
        merge(before, span);
        resize_free(set, before);
        rs_record_slab_give(&set->records, span);
        span = before;
    } else if (!above) {
        insert_free(set, span);
    }
    RS_ASSERT_SLOW(!(span->before && rs_span_is_free(span->before)) &&
                   !(span->after && rs_span_is_free(span->after)));
}

void rs_span_set_destroy(struct rs_span_set *set)
{
    rs_record_slab_destroy(&set->records);
    set->root = NULL;
}

/* ---- checks ---- */

static bool tree_check(const struct rs_span *tree, const struct rs_span *above,
                       const struct rs_span *below, struct rs_span_sums *sums)
{
    if (!tree)
        return true;
    if ((above && above->address >= tree->address) || (below && below->address <= tree->address))
        return false;
    if ((tree->left && tree->left->rank > tree->rank) ||
        (tree->right && tree->right->rank > tree->rank))
        return false;
    for (int fit = 0; fit < RS_SPAN_FITS; fit++)
        if (tree->largest[fit] != largest_below(tree, (enum rs_span_fit)fit))
            return false;
    sums->free_spans++;
    sums->free_units += tree->units;
    return tree_check(tree->left, above, tree, sums) && tree_check(tree->right, tree, below, sums);
}

bool rs_span_tree_check(const struct rs_span_set *set, struct rs_span_sums *sums)
{
    *sums = (struct rs_span_sums){0};
    return tree_check(set->root, NULL, NULL, sums);
}

bool rs_span_range_check(const struct rs_span *range, struct rs_span_sums *sums)
{
    CUdeviceptr address = range->address;
    const struct rs_span *before = NULL;

    for (const struct rs_span *span = range; span; before = span, span = span->after) {
        bool is_free = rs_span_is_free(span);
        if (span->address != address || span->before != before || span->units == 0 ||
            (before && is_free && rs_span_is_free(before)))
            return false;
        sums->free_spans += is_free;
        sums->free_units += is_free ? span->units : 0;
        sums->taken_spans += !is_free;
        sums->taken_units += is_free ? 0 : span->units;
        address += rs_span_bytes(span->units);
    }
    return true;
}
