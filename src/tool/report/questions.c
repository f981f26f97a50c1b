/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of the blocks of a run (tool/report/analysis.h). */
#include "base/check.h"
#include "tool/report/analysis.h"
#include "tool/tool.h"

#include <stdlib.h>

bool block_is_at_peak(const struct run *run, const struct block *block)
{
    uint64_t peak = run->series[block->series].peak_event;

    return block->begin_event <= peak && block->end_event > peak;
}

/* ---- call sites ---- */

/* How many blocks one with a call site stands for: of a sample by bytes, the smaller blocks are,
 * the fewer of them have one. */
static uint64_t weight_of(const struct run *run, const struct block *block)
{
    uint64_t size = rs_max(block->size_bytes, 1);

    return block->site && run->sample_bytes > size ? (run->sample_bytes + size / 2) / size : 1;
}

/* As often as `weight` says, which may be a negative number, modulo 2^64. */
static void add_to_site(struct site_sum *sum, const struct run *run, const struct block *block,
                        uint64_t weight)
{
    bool is_live = block->end_ns == ANALYSIS_NEVER;

    sum->total_bytes += weight * block->size_bytes;
    sum->total_blocks += weight;
    if (block_is_at_peak(run, block)) {
        sum->peak_bytes += weight * block->size_bytes;
        sum->peak_blocks += weight;
    }
    if (is_live) {
        sum->end_bytes += weight * block->size_bytes;
        sum->end_blocks += weight;
    } else {
        sum->life_ns += weight * (block->end_ns - block->begin_ns);
    }
}

static void keep_above_0(uint64_t *number)
{
    if (*number > INT64_MAX)
        *number = 0;
}

/* A sample may have stood for more than there is. */
static void keep_rest_above_0(struct site_sum *rest)
{
    keep_above_0(&rest->total_bytes);
    keep_above_0(&rest->total_blocks);
    keep_above_0(&rest->peak_bytes);
    keep_above_0(&rest->peak_blocks);
    keep_above_0(&rest->end_bytes);
    keep_above_0(&rest->end_blocks);
    keep_above_0(&rest->life_ns);
}

static int by_peak(const void *one, const void *other)
{
    const struct site_sum *a = one, *b = other;

    if (a->peak_bytes != b->peak_bytes)
        return a->peak_bytes < b->peak_bytes ? 1 : -1;
    if (a->total_bytes != b->total_bytes)
        return a->total_bytes < b->total_bytes ? 1 : -1;
    return (a->site > b->site) - (a->site < b->site);
}

static uint32_t sites_of(const struct run *run)
{
    uint32_t most = 0;

    for (size_t i = 0; i < run->block_count; i++)
        most = (uint32_t)rs_max(most, run->blocks[i].site);
    return most + 1;
}

struct site_sum *analysis_sites(const struct run *run, uint32_t series, size_t *count)
{
    uint32_t room = sites_of(run);
    struct site_sum *sums = tool_grow(NULL, room * sizeof(*sums));

    for (uint32_t i = 0; i < room; i++)
        sums[i] = (struct site_sum){.site = i};
    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        uint64_t weight = weight_of(run, block);
        if (block->series != series)
            continue;
        add_to_site(&sums[block->site], run, block, weight);
        add_to_site(&sums[0], run, block, 1 - weight);
    }
    keep_rest_above_0(&sums[0]);
    *count = 0;
    for (uint32_t i = 0; i < room; i++)
        if (sums[i].total_blocks)
            sums[(*count)++] = sums[i];
    qsort(sums, *count, sizeof(*sums), by_peak);
    return sums;
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
    size_t found = 0;

    for (size_t i = 0; i < run->block_count; i++)
        if (run->blocks[i].series == series && block_is_at_peak(run, &run->blocks[i]))
            blocks[found++] = &run->blocks[i];
    qsort(blocks, found, sizeof(struct block *), by_address);
    *count = found;
    return blocks;
}

/* ---- phases ---- */

/* How many occurrences ended; those that did are the first ones but for nested ones. */
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

/* The last of `count` occurrences that began before the event, plus 1; 0: none. */
static size_t occurrence_at(const struct phase *phase, size_t count, uint64_t event)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (phase->occurrences[middle].begin_event < event)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What is left behind time after time is more of a leak than as much that is left once. */
static int by_weight(const void *one, const void *other)
{
    const struct survivor *a = one, *b = other;
    double left = (double)a->bytes * a->occurrences, right = (double)b->bytes * b->occurrences;

    if (left != right)
        return left < right ? 1 : -1;
    return (a->site > b->site) - (a->site < b->site);
}

static void add_survivors(struct survivor *survivors, const struct run *run,
                          const struct phase *phase)
{
    size_t count = ended(phase);
    uint64_t last_end = phase->occurrences[count - 1].end_event;

    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        struct survivor *survivor = &survivors[block->site];
        size_t at = occurrence_at(phase, count, block->begin_event);
        if (at < 2 || at == count || block->end_event <= last_end ||
            block->begin_event > phase->occurrences[at - 1].end_event)
            continue;
        survivor->bytes += weight_of(run, block) * block->size_bytes;
        survivor->blocks += weight_of(run, block);
        survivor->occurrences += survivor->latest != at;
        survivor->latest = at;
    }
}

struct survivor *analysis_survivors(const struct run *run, const struct phase *phase, size_t *count)
{
    uint32_t room = sites_of(run);
    struct survivor *survivors = tool_grow(NULL, room * sizeof(*survivors));

    for (uint32_t i = 0; i < room; i++)
        survivors[i] = (struct survivor){.site = i};
    if (ended(phase) >= 3)
        add_survivors(survivors, run, phase);
    *count = 0;
    for (uint32_t i = 0; i < room; i++)
        if (survivors[i].blocks)
            survivors[(*count)++] = survivors[i];
    qsort(survivors, *count, sizeof(*survivors), by_weight);
    return survivors;
}

/* ---- sizes and lifetimes ---- */

/* The power of two at or below the number; 0 for 0. */
static unsigned power_of(uint64_t number)
{
    return number ? 63u - (unsigned)__builtin_clzll(number) : 0;
}

void analysis_sizes(const struct run *run, uint32_t series,
                    struct size_cell cells[SIZE_CLASSES][LIFE_CLASSES])
{
    for (size_t i = 0; i < run->block_count; i++) {
        const struct block *block = &run->blocks[i];
        size_t size = rs_min(power_of(block->size_bytes), SIZE_CLASSES - 1);
        size_t life = block->end_ns == ANALYSIS_NEVER
                          ? LIFE_CLASSES - 1
                          : rs_min(power_of(block->end_ns - block->begin_ns), LIFE_CLASSES - 2);
        if (block->series != series)
            continue;
        cells[size][life].blocks++;
        cells[size][life].bytes += block->size_bytes;
    }
}
