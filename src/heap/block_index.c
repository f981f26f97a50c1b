/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/block_index.h"

#include "base/check.h"
#include "heap/record_slab.h"

_Static_assert(sizeof(struct rs_block) <= RS_RECORD_BYTES, "a block's record is one cache line");

/* ---- classes ---- */

/* Rounds up, so that a request and every block of a multiple of 512 bytes that fits it exactly
 * are in one class.  Only the odd end of a chunk is smaller than its class says. */
static size_t units_of(size_t size_bytes)
{
    return ((size_bytes - 1) >> RS_BLOCK_UNIT_BITS) + 1;
}

static size_t class_of(size_t size_bytes)
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

/* ---- one class's tree: a treap, in order of (size, address), heap of random ranks ---- */

/* MurmurHash3's mixer.  Addresses come at regular distances; a multiplication alone would give
 * some distances monotone ranks and turn the tree into a list. */
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
static void split(struct rs_block *tree, const struct rs_block *block, struct rs_block **before,
                  struct rs_block **after)
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

/* Joins two trees at *root; all blocks of `before` come before those of `after`. */
static void join(struct rs_block *before, struct rs_block *after, struct rs_block **root)
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
    size_t class = class_of(block->size_bytes);
    struct rs_block **link = &index->roots[class];

    RS_ASSERT(block->size_bytes > 0);
    RS_ASSERT_SLOW(block->is_free != block->is_void);
    block->rank = rank_of(block->address);
    if (!*link)
        mark(index, class);
    while (*link && (*link)->rank >= block->rank)
        link = comes_before(block, *link) ? &(*link)->left : &(*link)->right;
    split(*link, block, &block->left, &block->right);
    *link = block;
}

void rs_block_index_remove(struct rs_block_index *index, struct rs_block *block)
{
    size_t class = class_of(block->size_bytes);
    struct rs_block **link = &index->roots[class];

    while (*link != block) {
        RS_ASSERT(*link);
        link = comes_before(block, *link) ? &(*link)->left : &(*link)->right;
    }
    RS_ASSERT_SLOW(!block->left || block->left->rank <= block->rank);
    RS_ASSERT_SLOW(!block->right || block->right->rank <= block->rank);
    join(block->left, block->right, link);
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
    size_t class = class_of(size_bytes);
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
    size_t class = class_of(block->size_bytes);
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
        RS_ASSERT_SLOW(block); /* a class whose bit is set */
        while (block->right)
            block = block->right;
        return block;
    }
    return NULL;
}

/* ---- checks: recursive, as treaps are shallow ---- */

static bool tree_check(const struct rs_block *tree, size_t class, const struct rs_block *above,
                       const struct rs_block *below, size_t *count)
{
    if (!tree)
        return true;
    if (tree->is_free == tree->is_void || class_of(tree->size_bytes) != class)
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

/* True when no class of the word has a block: a quick check for most words of most indexes. */
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

static unsigned tree_height(const struct rs_block *tree)
{
    unsigned left, right;

    if (!tree)
        return 0;
    left = tree_height(tree->left);
    right = tree_height(tree->right);
    return 1 + (left > right ? left : right);
}

unsigned rs_block_index_height(const struct rs_block_index *index)
{
    unsigned highest = 0;

    for (size_t class = 0; class < RS_BLOCK_CLASSES; class ++) {
        unsigned height = tree_height(index->roots[class]);
        highest = height > highest ? height : highest;
    }
    return highest;
}
