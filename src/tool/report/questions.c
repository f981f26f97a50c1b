/* SPDX-License-Identifier: Apache-2.0 */
/* Answers questions about the blocks of a run (tool/report/analysis.h). */
#include "base/check.h"
#include "tool/report/analysis.h"
#include "tool/tool.h"

#include <stdlib.h>

/* True when the block was live at the peak of its series. */
static bool block_is_at_peak(const struct run *run, const struct block *block)
{
    uint64_t peak = run->series[block->series].peak_event;

    return block->begin_event <= peak && block->end_event > peak;
}

/* ---- call sites ---- */

/* Returns how many blocks a block with a call site stands for: a sample is taken every so many
 * bytes, so the smaller blocks are, the fewer of them have a call site. */
static uint64_t weight_of(const struct run *run, const struct block *block)
{
    uint64_t size = rs_max(block->size_bytes, 1);

    return block->site && run->facts.sample_bytes > size
               ? (run->facts.sample_bytes + size / 2) / size
               : 1;
}

/* Adds a block `weight` times. For site 0 the weight may be negative: sums are modulo 2^64. */
static void add_to_site(struct site_sum *sum, const struct run *run, const struct block *block,
                        uint64_t weight)
{
    struct rs_block_sum amount = {weight * block->size_bytes, weight};

    rs_block_sum_add(&sum->total, amount);
    if (block_is_at_peak(run, block))
        rs_block_sum_add(&sum->peak, amount);
    if (block->end_ns == ANALYSIS_NEVER)
        rs_block_sum_add(&sum->end, amount);
    else
        sum->life_ns += weight * (block->end_ns - block->begin_ns);
}

static uint64_t above_0(uint64_t number)
{
    return number > INT64_MAX ? 0 : number;
}

static void keep_above_0(struct rs_block_sum *sum)
{
    *sum = (struct rs_block_sum){above_0(sum->bytes), above_0(sum->blocks)};
}

static int by_peak(const void *one, const void *other)
{
    const struct site_sum *a = one, *b = other;

    if (a->peak.bytes != b->peak.bytes)
        return a->peak.bytes < b->peak.bytes ? 1 : -1;
    if (a->total.bytes != b->total.bytes)
        return a->total.bytes < b->total.bytes ? 1 : -1;
    return (a->site > b->site) - (a->site < b->site);
}

/* Makes an empty sum for each site of the run's blocks. */
static struct site_sum *begin_sums(const struct run *run, size_t *count)
{
    struct site_sum *sums;

    *count = 0;
    for (size_t i = 0; i < run->block_count; i++)
        *count = rs_max(*count, run->blocks[i].site);
    sums = tool_grow(NULL, ++*count * sizeof(*sums));
    for (uint32_t i = 0; i < *count; i++)
        sums[i] = (struct site_sum){.site = i};
    return sums;
}

/* Keeps the sums that have blocks, and sorts them. */
static struct site_sum *end_sums(struct site_sum *sums, size_t *count,
                                 int (*compare)(const void *one, const void *other))
{
    size_t room = *count;

    *count = 0;
    for (size_t i = 0; i < room; i++)
        if (sums[i].total.blocks)
            sums[(*count)++] = sums[i];
    qsort(sums, *count, sizeof(*sums), compare);
    return sums;
}

struct site_sum *analysis_sites(const struct run *run, uint32_t series, size_t *count)
{
    struct site_sum *sums = begin_sums(run, count);

    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        uint64_t weight = weight_of(run, block);
        if (block->series != series)
            continue;
        add_to_site(&sums[block->site], run, block, weight);
        add_to_site(&sums[0], run, block, 1 - weight);
    }
    /* The sampled blocks may stand for more blocks than there are. */
    keep_above_0(&sums[0].peak);
    keep_above_0(&sums[0].total);
    keep_above_0(&sums[0].end);
    sums[0].life_ns = above_0(sums[0].life_ns);
    return end_sums(sums, count, by_peak);
}

/* ---- the peak ---- */

static int by_address(const void *one, const void *other)
{
    const struct block *a = *(const struct block *const *)one;
    const struct block *b = *(const struct block *const *)other;

    return (a->address > b->address) - (a->address < b->address);
}

const struct block **analysis_peak_blocks(const struct run *run, uint32_t series, size_t *count)
{
    const struct block **blocks = tool_grow(NULL, run->block_count * sizeof(void *));

    *count = 0;
    for (size_t i = 0; i < run->block_count; i++)
        if (run->blocks[i].series == series && block_is_at_peak(run, &run->blocks[i]))
            blocks[(*count)++] = &run->blocks[i];
    qsort(blocks, *count, sizeof(struct block *), by_address);
    return blocks;
}

/* ---- phases ---- */

/* Returns the number of occurrences up to the last one that ended.  Nested ones end first, so one
 * before it may not have ended. */
static size_t ended(const struct phase *phase)
{
    size_t count = phase->count;

    while (count > 0 && phase->occurrences[count - 1].end_ns == ANALYSIS_NEVER)
        count--;
    return count;
}

int64_t phase_growth(const struct phase *phase)
{
    size_t count = ended(phase);

    if (count < 3)
        return 0;
    return ((int64_t)phase->occurrences[count - 1].used_at_end -
            (int64_t)phase->occurrences[1].used_at_end) /
           (int64_t)(count - 2);
}

/* Bytes left behind in many occurrences are more of a leak than as many left in one. */
static int by_weight(const void *one, const void *other)
{
    const struct site_sum *a = one, *b = other;
    double left = (double)a->total.bytes * a->occurrences,
           right = (double)b->total.bytes * b->occurrences;

    if (left != right)
        return left < right ? 1 : -1;
    return (a->site > b->site) - (a->site < b->site);
}

/* Adds the blocks left behind. Blocks and occurrences are both in the order in which they begin. */
static void add_survivors(struct site_sum *survivors, const struct run *run,
                          const struct phase *phase)
{
    size_t count = ended(phase);
    uint64_t last_end = phase->occurrences[count - 1].end_event;
    size_t at = 0; /* how many occurrences had begun before the block */

    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        struct site_sum *survivor = &survivors[block->site];
        uint64_t weight = weight_of(run, block);
        while (at < count && phase->occurrences[at].begin_event < block->begin_event)
            at++;
        if (at < 2 || at == count || block->end_event <= last_end ||
            block->begin_event > phase->occurrences[at - 1].end_event)
            continue;
        rs_block_sum_add(&survivor->total,
                         (struct rs_block_sum){weight * block->size_bytes, weight});
        survivor->occurrences += survivor->latest != at;
        survivor->latest = at;
    }
}

struct site_sum *analysis_survivors(const struct run *run, const struct phase *phase, size_t *count)
{
    struct site_sum *survivors = begin_sums(run, count);

    if (ended(phase) >= 3)
        add_survivors(survivors, run, phase);
    return end_sums(survivors, count, by_weight);
}

/* ---- sizes and lifetimes ---- */

/* Returns the exponent of the largest power of two at or below the number; 0 for 0. */
static unsigned power_of(uint64_t number)
{
    return number ? 63u - (unsigned)__builtin_clzll(number) : 0;
}

void analysis_sizes(const struct run *run, uint32_t series,
                    struct rs_block_sum cells[SIZE_CLASSES][LIFE_CLASSES])
{
    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        size_t size = rs_min(power_of(block->size_bytes), SIZE_CLASSES - 1);
        size_t life = block->end_ns == ANALYSIS_NEVER
                          ? LIFE_CLASSES - 1
                          : rs_min(power_of(block->end_ns - block->begin_ns), LIFE_CLASSES - 2);
        if (block->series == series)
            rs_block_sum_add(&cells[size][life], (struct rs_block_sum){block->size_bytes, 1});
    }
}
