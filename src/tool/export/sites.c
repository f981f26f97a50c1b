/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/export/export.h"

#include "base/arithmetic.h"
#include "recording/format.h"

#include <stdlib.h>
#include <string.h>

struct adding {
    const struct recording *recording;
    struct export_sums *sums;
    uint32_t *slots; /* hash of site and device to the index of a sum + 1 */
    size_t slot_count;
    uint64_t live_bytes;
    size_t step, peak_step, step_count; /* of walks */
    bool is_at_peak;
};

static bool is_block(enum recording_step step, const struct recording_event *block)
{
    return step != RECORDING_OTHER && block->size_bytes;
}

/* The first walk finds the peak's moment. */
static bool find_peak(void *data, enum recording_step step, const struct recording_event *block,
                      uint64_t ns)
{
    struct adding *adding = data;

    adding->step++;
    if (!is_block(step, block))
        return true;
    adding->live_bytes += step == RECORDING_TAKES ? block->size_bytes : -block->size_bytes;
    if (step == RECORDING_TAKES && adding->live_bytes > adding->sums->peak_bytes) {
        adding->sums->peak_bytes = adding->live_bytes;
        adding->sums->peak_ns = ns;
        adding->peak_step = adding->step;
    }
    return true;
}

static bool make_slots(struct adding *adding)
{
    size_t count = adding->slot_count ? 2 * adding->slot_count : 1 << 10;
    uint32_t *slots = calloc(count, sizeof(*slots));
    struct export_sum *sums =
        reallocarray(adding->sums->sums, count / 2, sizeof(*adding->sums->sums));

    if (sums)
        adding->sums->sums = sums;
    if (!slots || !sums) {
        free(slots);
        return false;
    }
    for (size_t i = 0; i < adding->slot_count; i++) {
        uint32_t index = adding->slots[i];
        size_t at;
        if (!index)
            continue;
        at = ((size_t)sums[index - 1].site * 1024 + (size_t)sums[index - 1].device) *
             0x9e3779b97f4a7c15u % count;
        while (slots[at])
            at = (at + 1) % count;
        slots[at] = index;
    }
    free(adding->slots);
    adding->slots = slots;
    adding->slot_count = count;
    return true;
}

static struct export_sum *sum_of(struct adding *adding, const struct recording_event *block)
{
    int device = recording_device(adding->recording, block);
    uint32_t site = block->kind == RS_RECORDING_ALLOCATE ? block->site_or_name : 0;
    size_t at;

    if (2 * (adding->sums->count + 1) > adding->slot_count && !make_slots(adding))
        return NULL;
    at = ((size_t)site * 1024 + (size_t)device) * 0x9e3779b97f4a7c15u % adding->slot_count;
    for (; adding->slots[at]; at = (at + 1) % adding->slot_count) {
        struct export_sum *sum = &adding->sums->sums[adding->slots[at] - 1];
        if (sum->site == site && sum->device == device)
            return sum;
    }
    adding->sums->sums[adding->sums->count] = (struct export_sum){.site = site, .device = device};
    adding->slots[at] = (uint32_t)++adding->sums->count;
    return &adding->sums->sums[adding->sums->count - 1];
}

static bool add(void *data, enum recording_step step, const struct recording_event *block,
                uint64_t ns)
{
    struct adding *adding = data;
    struct export_sum *sum = is_block(step, block) ? sum_of(adding, block) : NULL;

    (void)ns;
    adding->step++;
    if (!is_block(step, block))
        return true;
    if (!sum)
        return false;
    if (step == RECORDING_TAKES)
        sum->total_bytes += block->size_bytes;
    if (adding->step <= adding->peak_step)
        sum->peak_bytes += step == RECORDING_TAKES ? block->size_bytes : -block->size_bytes;
    return true;
}

bool export_sums_make(const struct recording *recording, struct export_sums *sums)
{
    struct adding adding = {.recording = recording, .sums = sums};
    bool good;

    *sums = (struct export_sums){.count = 0};
    (void)recording_walk(recording, find_peak, &adding);
    adding.step = 0;
    good = recording_walk(recording, add, &adding);
    free(adding.slots);
    if (!good)
        export_sums_release(sums);
    return good;
}

void export_sums_release(struct export_sums *sums)
{
    free(sums->sums);
    *sums = (struct export_sums){.count = 0};
}

void export_put_json(FILE *file, const char *text)
{
    putc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', file);
        putc(*text, file);
    }
    putc('"', file);
}
