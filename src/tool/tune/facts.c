/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/facts.h"

#include "base/arithmetic.h"
#include "tool/replay/replay.h"

#include <stdlib.h>

enum { BIN_ALIGNMENT = 512 };

struct gathering {
    struct tune_facts *facts;
    const struct recording *recording;
    int device;
    uint64_t live_bytes, first_ns, last_ns;
    size_t live_blocks;
};

static bool visit(void *data, enum recording_step step, const struct recording_event *block,
                  uint64_t ns)
{
    struct gathering *gathering = data;
    struct tune_facts *facts = gathering->facts;

    if (step == RECORDING_OTHER ||
        !replay_is_played(gathering->recording, block, gathering->device))
        return true;
    if (facts->allocations == 0)
        gathering->first_ns = ns;
    gathering->last_ns = rs_max(gathering->last_ns, ns);
    if (step == RECORDING_GIVES) {
        gathering->live_bytes -= block->size_bytes;
        gathering->live_blocks--;
        return true;
    }
    gathering->live_bytes += block->size_bytes;
    gathering->live_blocks++;
    facts->sorted[facts->allocations++] = block->size_bytes;
    facts->peak_live_bytes = rs_max(facts->peak_live_bytes, gathering->live_bytes);
    facts->peak_live_blocks = rs_max(facts->peak_live_blocks, gathering->live_blocks);
    return true;
}

static int compare_bytes(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static int compare_counts(const void *left, const void *right)
{
    const struct tune_size *a = left, *b = right;

    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static void count_sizes(struct tune_facts *facts)
{
    for (size_t i = 0; i < facts->allocations; i++) {
        uint64_t bytes = (facts->sorted[i] + BIN_ALIGNMENT - 1) / BIN_ALIGNMENT * BIN_ALIGNMENT;
        if (!facts->size_count || facts->sizes[facts->size_count - 1].bytes != bytes)
            facts->sizes[facts->size_count++] = (struct tune_size){.bytes = bytes};
        facts->sizes[facts->size_count - 1].count++;
    }
    qsort(facts->sizes, facts->size_count, sizeof(*facts->sizes), compare_counts);
}

bool tune_facts_gather(struct tune_facts *facts, const struct recording *recording, int device)
{
    struct gathering gathering = {.facts = facts, .recording = recording, .device = device};

    *facts = (struct tune_facts){.allocations = 0};
    facts->sorted = calloc(rs_max(recording->count, 1), sizeof(*facts->sorted));
    facts->sizes = calloc(rs_max(recording->count, 1), sizeof(*facts->sizes));
    if (!facts->sorted || !facts->sizes)
        return false;
    (void)recording_walk(recording, visit, &gathering);
    facts->has_times = gathering.last_ns > gathering.first_ns;
    qsort(facts->sorted, facts->allocations, sizeof(*facts->sorted), compare_bytes);
    count_sizes(facts);
    return true;
}

void tune_facts_release(struct tune_facts *facts)
{
    free(facts->sorted);
    free(facts->sizes);
}

uint64_t tune_facts_quantile(const struct tune_facts *facts, unsigned percent)
{
    return facts->sorted[(facts->allocations - 1) * percent / 100];
}
