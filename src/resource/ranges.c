/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/ranges.h"

#include "base/lock.h"

#include <stdlib.h>

_Static_assert(sizeof(struct rs_block) <= RS_RECORD_BYTES, "a block's record is one cache line");

/* ---- the index: classes ---- */

/* Returns the size in units of 512 bytes.  It is rounded up, so that a request and a block that
 * fits it exactly are in one class.  Only the last block of a range can be smaller than its class
 * says. */
static size_t units_of(size_t size_bytes)
{
    return ((size_bytes - 1) >> RS_BLOCK_UNIT_BITS) + 1;
}

static size_t size_class_of(size_t size_bytes)
{
    size_t units = units_of(size_bytes);
    unsigned top_bit, shift;

    if (units < 2u << RS_BLOCK_CLASS_BITS)
        return units;
    top_bit = 63u - (unsigned)__builtin_clzl(units);
    shift = top_bit - RS_BLOCK_CLASS_BITS;
    return ((size_t)shift << RS_BLOCK_CLASS_BITS) + (units >> shift);
}

static void mark(struct rs_block_index *index, size_t class)
{
    RS_ASSERT_SLOW(class < RS_BLOCK_CLASSES);
    index->words[class / 64] |= 1ull << class % 64;
    index->groups[class / 64 / 64] |= 1ull << class / 64 % 64;
}

static void unmark(struct rs_block_index *index, size_t class)
{
    RS_ASSERT_SLOW(index->words[class / 64] >> class % 64 & 1);
    index->words[class / 64] &= ~(1ull << class % 64);
    if (!index->words[class / 64])
        index->groups[class / 64 / 64] &= ~(1ull << class / 64 % 64);
}

/* Returns the first bit set at `from` or later, or `bits` when there is none. */
RS_HOT_INLINE size_t next_bit(const uint64_t *words, size_t bits, size_t from)
{
    size_t word = from / 64;
    uint64_t rest;

    if (from >= bits)
        return bits;
    for (rest = words[word] & ~0ull << from % 64; !rest; rest = words[word])
        if (++word * 64 >= bits)
            return bits;
    return word * 64 + (size_t)__builtin_ctzll(rest);
}

/* Returns the first class at `from` or later that has a block, or RS_BLOCK_CLASSES. */
RS_HOT_INLINE size_t next_class(const struct rs_block_index *index, size_t from)
{
    size_t word = from / 64;
    uint64_t rest;

    if (from >= RS_BLOCK_CLASSES)
        return RS_BLOCK_CLASSES;
    rest = index->words[word] & ~0ull << from % 64;
    if (!rest) {
        word = next_bit(index->groups, RS_BLOCK_CLASS_WORDS, word + 1);
        if (word == RS_BLOCK_CLASS_WORDS)
            return RS_BLOCK_CLASSES;
        rest = index->words[word];
    }
    return word * 64 + (size_t)__builtin_ctzll(rest);
}

/* ---- the index: the tree of one class, a treap ordered by (size, address), with random ranks as
 * heap priorities ----
 */

/* Hashes the address with MurmurHash3's mixer.  Addresses come at regular distances: for some
 * distances a multiplication alone would give monotone ranks, and the tree would be a list. */
static uint32_t rank_of(CUdeviceptr address)
{
    uint64_t bits = (uint64_t)address;

    bits ^= bits >> 33;
    bits *= 0xff51afd7ed558ccdull;
    bits ^= bits >> 33;
    bits *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(bits >> 32);
}

static bool comes_before(const struct rs_block *a, const struct rs_block *b)
{
    return a->size_bytes < b->size_bytes ||
           (a->size_bytes == b->size_bytes && a->address < b->address);
}

/* Splits a tree into the blocks that come before `block` and those after it. */
static void split_tree(struct rs_block *tree, const struct rs_block *block,
                       struct rs_block **before, struct rs_block **after)
{
    while (tree) {
        if (comes_before(tree, block)) {
            *before = tree;
            before = &tree->right;
            tree = tree->right;
        } else {
            *after = tree;
            after = &tree->left;
            tree = tree->left;
        }
    }
    *before = NULL;
    *after = NULL;
}

/* Joins two trees at *root.  All blocks of `before` must come before those of `after`. */
static void join_trees(struct rs_block *before, struct rs_block *after, struct rs_block **root)
{
    while (before && after) {
        if (before->rank >= after->rank) {
            *root = before;
            root = &before->right;
            before = before->right;
        } else {
            *root = after;
            root = &after->left;
            after = after->left;
        }
    }
    *root = before ? before : after;
}

void rs_block_index_insert(struct rs_block_index *index, struct rs_block *block)
{
    size_t class = size_class_of(block->size_bytes);
    struct rs_block **link = &index->roots[class];

    RS_ASSERT(block->size_bytes > 0);
    RS_ASSERT_SLOW(block->is_free != block->is_void);
    block->rank = rank_of(block->address);
    if (!*link)
        mark(index, class);
    while (*link && (*link)->rank >= block->rank)
        link = comes_before(block, *link) ? &(*link)->left : &(*link)->right;
    split_tree(*link, block, &block->left, &block->right);
    *link = block;
}

void rs_block_index_remove(struct rs_block_index *index, struct rs_block *block)
{
    size_t class = size_class_of(block->size_bytes);
    struct rs_block **link = &index->roots[class];

    while (*link != block) {
        RS_ASSERT(*link);
        link = comes_before(block, *link) ? &(*link)->left : &(*link)->right;
    }
    RS_ASSERT_SLOW(!block->left || block->left->rank <= block->rank);
    RS_ASSERT_SLOW(!block->right || block->right->rank <= block->rank);
    join_trees(block->left, block->right, link);
    if (!index->roots[class])
        unmark(index, class);
}

static struct rs_block *first_of_at_least(struct rs_block *tree, size_t size_bytes)
{
    struct rs_block *best = NULL;

    while (tree) {
        if (tree->size_bytes < size_bytes) {
            tree = tree->right;
        } else {
            best = tree;
            tree = tree->left;
        }
    }
    return best;
}

struct rs_block *rs_block_index_best_fit(const struct rs_block_index *index, size_t size_bytes)
{
    size_t class = size_class_of(size_bytes);
    struct rs_block *block = first_of_at_least(index->roots[class], size_bytes);

    if (block)
        return block;
    class = next_class(index, class + 1);
    RS_ASSERT_SLOW(class >= RS_BLOCK_CLASSES || index->roots[class]);
    return class < RS_BLOCK_CLASSES ? first_of_at_least(index->roots[class], size_bytes) : NULL;
}

static struct rs_block *first_after(struct rs_block *tree, const struct rs_block *block)
{
    struct rs_block *first = NULL;

    while (tree) {
        if (comes_before(block, tree)) {
            first = tree;
            tree = tree->left;
        } else {
            tree = tree->right;
        }
    }
    return first;
}

struct rs_block *rs_block_index_after(const struct rs_block_index *index,
                                      const struct rs_block *block)
{
    size_t class = size_class_of(block->size_bytes);
    struct rs_block *after = first_after(index->roots[class], block);

    if (after)
        return after;
    class = next_class(index, class + 1);
    return class < RS_BLOCK_CLASSES ? first_after(index->roots[class], block) : NULL;
}

struct rs_block *rs_block_index_largest(const struct rs_block_index *index)
{
    for (size_t word = RS_BLOCK_CLASS_WORDS; word-- > 0;) {
        struct rs_block *block;
        if (!index->words[word])
            continue;
        block = index->roots[word * 64 + 63 - (size_t)__builtin_clzll(index->words[word])];
        RS_ASSERT_SLOW(block); /* the class has a block, since its bit is set */
        while (block->right)
            block = block->right;
        return block;
    }
    return NULL;
}

/* ---- the check of the index, which is recursive, since treaps are shallow ---- */

static bool tree_check(const struct rs_block *tree, size_t class, const struct rs_block *above,
                       const struct rs_block *below, size_t *count)
{
    if (!tree)
        return true;
    if (tree->is_free == tree->is_void || size_class_of(tree->size_bytes) != class)
        return false;
    if ((above && !comes_before(above, tree)) || (below && !comes_before(tree, below)))
        return false;
    if ((tree->left && tree->left->rank > tree->rank) ||
        (tree->right && tree->right->rank > tree->rank))
        return false;
    ++*count;
    return tree_check(tree->left, class, above, tree, count) &&
           tree_check(tree->right, class, tree, below, count);
}

static bool bit_is_set(const uint64_t *words, size_t bit)
{
    return words[bit / 64] >> bit % 64 & 1;
}

/* True when no class of this word of the bitmap has a block, as with most words. */
static bool is_empty_word(const struct rs_block_index *index, size_t word)
{
    uintptr_t any = index->words[word];

    for (size_t class = word * 64; class < word * 64 + 64 && class < RS_BLOCK_CLASSES; class ++)
        any |= (uintptr_t)index->roots[class];
    return !any;
}

static bool word_check(const struct rs_block_index *index, size_t word, size_t *count)
{
    if (bit_is_set(index->groups, word) != (index->words[word] != 0))
        return false;
    if (is_empty_word(index, word))
        return true;
    for (size_t class = word * 64; class < word * 64 + 64 && class < RS_BLOCK_CLASSES; class ++)
        if (bit_is_set(index->words, class) != (index->roots[class] != NULL) ||
            !tree_check(index->roots[class], class, NULL, NULL, count))
            return false;
    return true;
}

bool rs_block_index_check(const struct rs_block_index *index, size_t *count)
{
    *count = 0;
    for (size_t word = 0; word < RS_BLOCK_CLASS_WORDS; word++)
        if (!word_check(index, word, count))
            return false;
    return true;
}

/* ---- requests and ranges ---- */

bool rs_block_request_init(struct rs_block_request *request, size_t size_bytes, size_t unit_bytes,
                           bool packed)
{
    RS_ASSERT_SLOW(rs_is_power_of_two(unit_bytes) && unit_bytes >= RS_BLOCK_ALIGNMENT);
    *request = (struct rs_block_request){
        .bytes = size_bytes,
        .unit = unit_bytes,
        .alignment = packed || size_bytes < RS_LARGE_BYTES ? unit_bytes
                                                           : rs_max(RS_LARGE_ALIGNMENT, unit_bytes),
        .most_bytes = SIZE_MAX,
        .ample_bytes = SIZE_MAX,
    };
    return rs_round_up(size_bytes, unit_bytes, &request->rounded_bytes);
}

bool rs_blocks_begin(struct rs_blocks *blocks)
{
    blocks->free_blocks = calloc(RS_BLOCK_GROUPS, sizeof(*blocks->free_blocks));
    return blocks->free_blocks;
}

void rs_blocks_end(struct rs_blocks *blocks)
{
    rs_record_slab_destroy(&blocks->records);
    free(blocks->free_blocks);
}

void rs_blocks_insert_free(struct rs_blocks *blocks, struct rs_block *block)
{
    RS_ASSERT_SLOW(!block->is_free && !block->is_void && block->group < RS_BLOCK_GROUPS);
    block->is_free = true;
    rs_block_index_insert(&blocks->free_blocks[block->group], block);
    blocks->free_block_count++;
    blocks->free_range_count += rs_block_is_whole(block);
}

void rs_blocks_remove_free(struct rs_blocks *blocks, struct rs_block *block)
{
    RS_ASSERT(block->is_free);
    RS_ASSERT_SLOW(blocks->free_block_count > 0);
    RS_ASSERT_SLOW(!rs_block_is_whole(block) || blocks->free_range_count > 0);
    blocks->free_range_count -= rs_block_is_whole(block);
    rs_block_index_remove(&blocks->free_blocks[block->group], block);
    blocks->free_block_count--;
    block->is_free = false;
}

struct rs_block *rs_blocks_cut(struct rs_blocks *blocks, struct rs_block *block, size_t keep_bytes)
{
    struct rs_block *rest = rs_record_slab_take(&blocks->records);

    RS_ASSERT(rest && keep_bytes < block->size_bytes);
    RS_ASSERT_SLOW(keep_bytes > 0 && keep_bytes % RS_BLOCK_ALIGNMENT == 0);
    *rest = (struct rs_block){
        .address = block->address + keep_bytes,
        .size_bytes = block->size_bytes - keep_bytes,
        .before = block,
        .after = block->after,
        .group = block->group,
    };
    if (rest->after)
        rest->after->before = rest;
    block->after = rest;
    block->size_bytes = keep_bytes;
    return rest;
}

/* Returns the smallest block of at least the request's size, if the request fits there with its
 * alignment.  Otherwise returns the smallest block that is certain to have room for the alignment
 * too.  If there is none, any_alignment allows the first of these blocks without the alignment, if
 * its address is a multiple of `unit`.  Returns NULL if nothing fits. */
static struct rs_block *find_fit(const struct rs_block_index *index,
                                 const struct rs_block_request *request)
{
    struct rs_block *block = rs_block_index_best_fit(index, request->bytes);
    size_t spare_bytes;

    if (!block ||
        block->size_bytes - request->bytes >= rs_lead_bytes(block->address, request->alignment))
        return block;
    if (!__builtin_add_overflow(request->rounded_bytes, request->alignment - request->unit,
                                &spare_bytes)) {
        struct rs_block *larger = rs_block_index_best_fit(index, spare_bytes);
        if (larger)
            return larger;
    }
    return request->any_alignment && block->address % request->unit == 0 ? block : NULL;
}

static struct rs_block *better_fit(struct rs_block *a, struct rs_block *b)
{
    return !a || (b && comes_before(b, a)) ? b : a;
}

static struct rs_block *find_block(const struct rs_blocks *blocks,
                                   const struct rs_block_request *request)
{
    const struct rs_block_index *own = &blocks->free_blocks[request->group];
    const struct rs_block_index *common = &blocks->free_blocks[RS_BLOCKS_COMMON];

    if (own == common ||
        rs_block_index_is_empty(own)) /* as in a pool that has only its initial chunk */
        return find_fit(common, request);
    if (rs_block_index_is_empty(common))
        return find_fit(own, request);
    return better_fit(find_fit(own, request), find_fit(common, request));
}

/* Returns the best fit among the blocks of at least ample_bytes. */
static struct rs_block *find_ample(const struct rs_blocks *blocks,
                                   const struct rs_block_request *request)
{
    struct rs_block_request ample = *request;

    ample.bytes = ample.rounded_bytes = request->ample_bytes;
    return find_block(blocks, &ample);
}

/* True when the request is to be cut from the upper end of this block: a small request takes the
 * upper end of a common block of at least apart_bytes. */
static bool takes_end(const struct rs_blocks *blocks, const struct rs_block *block,
                      const struct rs_block_request *request)
{
    return request->is_small && block->group == RS_BLOCKS_COMMON &&
           block->size_bytes >= blocks->apart_bytes;
}

/* Returns how many bytes of the block stay free below the request, if it takes the upper end. */
static size_t bytes_before_end(const struct rs_block *block, const struct rs_block_request *request)
{
    CUdeviceptr last = block->address + block->size_bytes - request->bytes;

    last = rs_round_down(last, request->alignment);
    return last > block->address ? (size_t)(last - block->address) : 0;
}

/* Does as rs_blocks_hand_out.  A part that begins after lead_bytes gets the group `group`. */
RS_HOT_INLINE void hand_out_at(struct rs_blocks *blocks, struct rs_block *block, size_t lead_bytes,
                               enum rs_block_group group, const struct rs_block_request *request,
                               struct rs_allocation *out)
{
    rs_blocks_remove_free(blocks, block);
    if (lead_bytes > 0 && block->size_bytes - request->bytes >= lead_bytes) {
        struct rs_block *lead = block;
        block = rs_blocks_cut(blocks, lead, lead_bytes);
        block->group = (uint8_t)group;
        rs_blocks_insert_free(blocks, lead);
    }
    if (block->size_bytes > request->rounded_bytes)
        rs_blocks_insert_free(blocks, rs_blocks_cut(blocks, block, request->rounded_bytes));
    RS_ASSERT(block->size_bytes >= request->bytes);
    RS_ASSERT_SLOW(block->address % request->unit == 0 && !block->is_free);
    rs_counter_add(&blocks->live_bytes, block->size_bytes);
    blocks->peak_live_bytes = rs_max(blocks->peak_live_bytes, rs_counter_get(&blocks->live_bytes));
    *out = (struct rs_allocation){block->address, request->bytes, block, NULL};
}

/* Hands out the beginning of the block, or for a small request its upper end.  So free memory
 * gathers between the large blocks at low addresses and the small ones at the upper end. */
RS_HOT_INLINE void hand_out_part(struct rs_blocks *blocks, struct rs_block *block,
                                 const struct rs_block_request *request, struct rs_allocation *out)
{
    size_t lead_bytes = rs_lead_bytes(block->address, request->alignment);
    enum rs_block_group group = (enum rs_block_group)block->group;

    if (takes_end(blocks, block, request)) {
        lead_bytes = bytes_before_end(block, request);
        group = RS_BLOCKS_END;
    }
    hand_out_at(blocks, block, lead_bytes, group, request, out);
}

void rs_blocks_hand_out(struct rs_blocks *blocks, struct rs_block *block, size_t lead_bytes,
                        const struct rs_block_request *request, struct rs_allocation *out)
{
    hand_out_at(blocks, block, lead_bytes, (enum rs_block_group)block->group, request, out);
}

/* Returns a free block for a small request that large requests could not use, or NULL. */
static struct rs_block *find_apart(const struct rs_blocks *blocks,
                                   const struct rs_block_request *request)
{
    const struct rs_block_index *own = &blocks->free_blocks[request->group];
    struct rs_block *block, *end = find_fit(&blocks->free_blocks[RS_BLOCKS_END], request);

    if (request->group == RS_BLOCKS_COMMON || rs_block_index_is_empty(own))
        return end;
    block = find_fit(own, request);
    if (!block || block->size_bytes > request->most_bytes ||
        (request->group == RS_BLOCKS_LARGE && block->size_bytes >= blocks->apart_bytes))
        return end;
    return better_fit(block, end);
}

/* True when the next block in the range, at higher addresses, is small, or there is none. */
static bool is_at_end(const struct rs_blocks *blocks, const struct rs_block *block)
{
    return !block->after || block->after->size_bytes < blocks->apart_bytes;
}

/* Returns the common block from whose upper end a small request is to be cut; NULL if there is
 * none.  Of the large enough blocks that is the smallest with is_at_end, else the one at the
 * highest address.  Few blocks are large enough, so the search is short. */
static struct rs_block *find_end(const struct rs_blocks *blocks,
                                 const struct rs_block_request *request)
{
    const struct rs_block_index *index = &blocks->free_blocks[RS_BLOCKS_COMMON];
    size_t size_bytes =
        rs_max(blocks->apart_bytes, request->rounded_bytes + request->alignment - request->unit);
    struct rs_block *highest = NULL, *block;

    for (block = rs_block_index_best_fit(index, size_bytes); block;
         block = rs_block_index_after(index, block)) {
        if (is_at_end(blocks, block))
            return block;
        if (!highest || block->address > highest->address)
            highest = block;
    }
    return highest;
}

__attribute__((noinline)) static struct rs_block *
find_to_cut(const struct rs_blocks *blocks, const struct rs_block_request *request)
{
    struct rs_block *block = find_block(blocks, request);

    return block && block->size_bytes > request->most_bytes ? find_ample(blocks, request) : block;
}

static struct rs_block *find_small(const struct rs_blocks *blocks,
                                   const struct rs_block_request *request)
{
    struct rs_block *block = find_apart(blocks, request);

    if (block || request->stays_away)
        return block;
    block = find_end(blocks, request);
    return block ? block : find_to_cut(blocks, request);
}

bool rs_blocks_take(struct rs_blocks *blocks, const struct rs_block_request *request,
                    struct rs_allocation *out)
{
    struct rs_block *block =
        request->is_small ? find_small(blocks, request) : find_to_cut(blocks, request);

    if (!block)
        return false;
    hand_out_part(blocks, block, request, out);
    return true;
}

bool rs_blocks_take_any(struct rs_blocks *blocks, const struct rs_block_request *request,
                        struct rs_allocation *out)
{
    struct rs_block *block = NULL;

    for (size_t group = 0; group < RS_BLOCK_GROUPS; group++)
        block = better_fit(block, find_fit(&blocks->free_blocks[group], request));
    if (block)
        hand_out_part(blocks, block, request, out);
    return block != NULL;
}

void rs_blocks_put(struct rs_blocks *blocks, struct rs_block *block)
{
    if (block->after && block->after->is_free) {
        rs_blocks_remove_free(blocks, block->after);
        rs_blocks_merge(blocks, block, block->after);
    }
    if (block->before && block->before->is_free) {
        block = block->before;
        rs_blocks_remove_free(blocks, block);
        rs_blocks_merge(blocks, block, block->after);
    }
    if (block->group == RS_BLOCKS_END && block->size_bytes >= blocks->apart_bytes)
        block->group = RS_BLOCKS_COMMON;
    rs_blocks_insert_free(blocks, block);
    RS_ASSERT_SLOW(!(block->before && block->before->is_free) &&
                   !(block->after && block->after->is_free));
}

void rs_blocks_give(struct rs_blocks *blocks, struct rs_block *block)
{
    RS_ASSERT_SLOW(!block->is_free); /* the block was freed twice */
    rs_counter_subtract(&blocks->live_bytes, block->size_bytes);
    rs_blocks_put(blocks, block);
}

size_t rs_blocks_largest_free_bytes(const struct rs_blocks *blocks)
{
    size_t largest_bytes = 0;

    for (size_t group = 0; group < RS_BLOCK_GROUPS; group++) {
        const struct rs_block *block = rs_block_index_largest(&blocks->free_blocks[group]);
        largest_bytes = rs_max(largest_bytes, block ? block->size_bytes : 0);
    }
    return largest_bytes;
}

bool rs_blocks_index_check(const struct rs_blocks *blocks, size_t *count)
{
    size_t in_group;

    *count = 0;
    for (size_t group = 0; group < RS_BLOCK_GROUPS; group++) {
        if (!rs_block_index_check(&blocks->free_blocks[group], &in_group))
            return false;
        *count += in_group;
    }
    return true;
}
