/* SPDX-License-Identifier: Apache-2.0 */
/* Adds events up, in one pass (tool/report/analysis.h). */
#include "tool/report/analysis.h"

#include "base/check.h"
#include "report/plain.h"
#include "tool/process.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)RS_KIND_DEVICE == (int)RS_RECORDING_DEVICE &&
                   (int)RS_KIND_PINNED == (int)RS_RECORDING_PINNED &&
                   (int)RS_KIND_MANAGED == (int)RS_RECORDING_MANAGED,
               "kinds of memory are numbered alike");

enum { FIRST_WIDTH_NS = 1024 }; /* the width of the buckets of a new timeline */

/* ---- call sites ---- */

/* Returns the text's number. The first call for a text assigns its number. */
static uint32_t text_number(struct text_table *table, const void *text, size_t length)
{
    uint64_t key = rs_hash_bytes(text, length) | 1;
    size_t found;
    char *copy;

    for (; (found = (size_t)rs_hash_get(&table->by_hash, key)) != 0; key += 2)
        if (table->lengths[found - 1] == length &&
            memcmp(table->texts[found - 1], text, length) == 0)
            return (uint32_t)(found - 1);
    tool_remember(&table->by_hash, key, table->count + 1);
    copy = tool_grow(NULL, length + 1);
    memcpy(copy, text, length);
    copy[length] = '\0';
    table->texts = tool_grow_list(table->texts, table->count, sizeof(*table->texts));
    table->lengths = tool_grow_list(table->lengths, table->count, sizeof(*table->lengths));
    table->texts[table->count] = copy;
    table->lengths[table->count] = length;
    return (uint32_t)table->count++;
}

/* Returns a copy in which each character may be shown by a terminal. */
static char *plain_copy(const char *text)
{
    char *copy = tool_format("%s", text);

    rs_plain_make(copy);
    return copy;
}

uint32_t analysis_frame(struct analysis *analysis, const char *frame)
{
    char *plain = plain_copy(frame);
    uint32_t number = text_number(&analysis->frames, plain, strlen(plain));

    free(plain);
    return number;
}

uint32_t analysis_site(struct analysis *analysis, const uint32_t *frames, size_t count)
{
    return text_number(&analysis->sites, frames, count * sizeof(*frames));
}

/* ---- runs ---- */

struct run *analysis_begin(struct analysis *analysis, const char *path,
                           const struct tool_recording_facts *facts)
{
    struct run *run = tool_grow(NULL, sizeof(*run));
    char script[IDENTITY_SCRIPT_BYTES] = "";

    if (facts->command_bytes)
        identity_script(facts->command, facts->command_bytes, script);
    if (analysis->run_count == 0)
        (void)analysis_site(analysis, (const uint32_t[]){0}, 0); /* gets the number 0 */
    *run = (struct run){.path = plain_copy(path),
                        .facts = *facts,
                        .end_ns = facts->duration_ns,
                        .lost_events = facts->header.lost_events + facts->header.missed_events,
                        .observer = analysis->observer};
    run->facts.program = plain_copy(*script ? script : facts->program);
    run->facts.command = NULL; /* its recording is closed before the next is read */
    run->facts.rank = plain_copy(facts->rank);
    analysis->runs = tool_grow_list(analysis->runs, analysis->run_count, sizeof(struct run *));
    return analysis->runs[analysis->run_count++] = run;
}

struct series *analysis_series(const struct run *run, const struct tool_recording_event *event)
{
    for (size_t i = 0; i < run->series_count; i++)
        if (run->series[i].device == (int)event->device &&
            run->series[i].kind == (enum rs_kind)event->memory)
            return &run->series[i];
    return NULL;
}

static struct series *series_of(struct run *run, const struct tool_recording_event *event)
{
    struct series *series = analysis_series(run, event);

    if (series)
        return series;
    run->series = tool_grow_list(run->series, run->series_count, sizeof(*series));
    series = &run->series[run->series_count++];
    *series = (struct series){.device = (int)event->device, .kind = (enum rs_kind)event->memory};
    return series;
}

/* ---- timelines ---- */

static void merge(struct timeline_bucket *into, const struct timeline_bucket *later)
{
    into->least_used = rs_min(into->least_used, later->least_used);
    into->most_used = rs_max(into->most_used, later->most_used);
    into->last_used = later->last_used;
    into->most_held = rs_max(into->most_held, later->most_held);
    into->last_held = later->last_held;
    into->limit = later->limit;
}

/* Makes each bucket twice as wide. */
static void widen(struct timeline *timeline)
{
    struct timeline_bucket *buckets = timeline->buckets;
    size_t kept = 0;

    for (size_t i = 0; i < timeline->count; i++) {
        buckets[i].index /= 2;
        if (kept > 0 && buckets[kept - 1].index == buckets[i].index)
            merge(&buckets[kept - 1], &buckets[i]);
        else
            buckets[kept++] = buckets[i];
    }
    timeline->count = kept;
    timeline->width_ns *= 2;
}

void timeline_shrink(struct timeline *timeline, size_t buckets_max)
{
    while (timeline->count > rs_max(buckets_max, 1))
        widen(timeline);
}

/* Notes the amounts of the series from `ns` on, which is not before the last call's. */
static void note_level(struct series *series, uint64_t ns)
{
    struct timeline *timeline = &series->timeline;
    uint64_t used = series->used, held = series->held;
    struct timeline_bucket bucket = {0, used, used, used, held, held, series->limit}, *last;

    if (!timeline->width_ns) {
        timeline->buckets = tool_grow(NULL, TIMELINE_BUCKETS * sizeof(*timeline->buckets));
        timeline->width_ns = FIRST_WIDTH_NS;
    }
    while (timeline->count == TIMELINE_BUCKETS)
        widen(timeline);
    bucket.index = ns / timeline->width_ns;
    last = timeline->count ? &timeline->buckets[timeline->count - 1] : NULL;
    if (last && last->index >= bucket.index)
        merge(last, &bucket);
    else
        timeline->buckets[timeline->count++] = bucket;
}

/* ---- phases ---- */

static struct phase *phase_of(struct run *run, const char *name)
{
    struct phase *phase = run->phases;
    char *plain = plain_copy(name);

    for (; phase < run->phases + run->phase_count; phase++)
        if (strcmp(phase->name, plain) == 0) {
            free(plain);
            return phase;
        }
    run->phases = tool_grow_list(run->phases, run->phase_count, sizeof(*phase));
    phase = &run->phases[run->phase_count++];
    *phase = (struct phase){.name = plain};
    return phase;
}

static struct occurrence *occurrence_of(struct run *run, size_t open)
{
    return &run->phases[run->open[open].phase].occurrences[run->open[open].occurrence];
}

static void begin_phase(struct run *run, const struct tool_recording_event *event)
{
    struct phase *phase;

    if (run->open_count == ANALYSIS_OPEN_MAX)
        return;
    phase = phase_of(run, event->name);
    phase->occurrences =
        tool_grow_list(phase->occurrences, phase->count, sizeof(struct occurrence));
    phase->occurrences[phase->count] = (struct occurrence){
        .begin_ns = event->time_ns,
        .end_ns = ANALYSIS_NEVER,
        .used_at_begin = run->used,
        .peak_used = run->used,
        .begin_event = run->events,
        .end_event = ANALYSIS_NEVER,
        .thread = event->thread,
    };
    run->open[run->open_count++] =
        (struct open_phase){(uint32_t)(phase - run->phases), (uint32_t)phase->count++};
}

/* Ends the latest open phase of the event's thread. */
static void end_phase(struct run *run, const struct tool_recording_event *event)
{
    for (size_t i = run->open_count; i-- > 0;) {
        struct occurrence *occurrence = occurrence_of(run, i);
        if (occurrence->thread != event->thread)
            continue;
        occurrence->end_ns = event->time_ns;
        occurrence->end_event = run->events;
        occurrence->used_at_end = run->used;
        run->open_count--;
        memmove(run->open + i, run->open + i + 1, (run->open_count - i) * sizeof(*run->open));
        return;
    }
}

static void note_mark(struct run *run, const struct tool_recording_event *event)
{
    if (run->mark_count == ANALYSIS_INCIDENTS_MAX)
        return;
    run->marks = tool_grow_list(run->marks, run->mark_count, sizeof(*run->marks));
    run->marks[run->mark_count++] =
        (struct mark){plain_copy(event->name), event->time_ns, run->used};
}

/* ---- blocks ---- */

static void show(const struct run *run, const struct tool_recording_event *event)
{
    if (run->observer)
        run->observer->see(run->observer, run, event);
}

static void show_end(const struct run *run, const struct block *block,
                     const struct tool_recording_event *by)
{
    struct tool_recording_event event = *by;

    event.kind = RS_RECORDING_DEALLOCATE;
    event.device = (unsigned)run->series[block->series].device;
    event.memory = (enum rs_recording_memory)run->series[block->series].kind;
    event.address = block->address;
    event.size_bytes = block->size_bytes;
    event.site = block->site;
    show(run, &event);
}

static void end_block(struct run *run, struct block *block, const struct tool_recording_event *by)
{
    struct series *series = &run->series[block->series];

    block->end_ns = by->time_ns;
    block->end_event = run->events;
    series->used -= block->size_bytes;
    series->live_blocks--;
    series->frees++;
    run->used -= block->size_bytes;
    note_level(series, by->time_ns);
    show_end(run, block, by);
    (void)rs_hash_take(&run->live, block->address);
}

struct block *analysis_block(const struct run *run, uint64_t address)
{
    size_t found = address ? (size_t)rs_hash_get(&run->live, address) : 0;

    return found ? &run->blocks[found - 1] : NULL;
}

static void count_block(struct run *run, struct series *series, const struct block *block)
{
    series->used += block->size_bytes;
    series->allocated_bytes += block->size_bytes;
    series->allocations++;
    series->live_blocks++;
    run->used += block->size_bytes;
    if (series->used > series->peak_used) {
        series->peak_used = series->used;
        series->peak_ns = block->begin_ns;
        series->peak_event = run->events;
    }
    for (size_t i = 0; i < run->open_count; i++) {
        struct occurrence *open = occurrence_of(run, i);
        open->peak_used = rs_max(open->peak_used, run->used);
    }
    note_level(series, block->begin_ns);
}

/* A block whose address is allocated again has ended, although the recording lacks its free. */
static void begin_block(struct run *run, const struct tool_recording_event *event)
{
    struct series *series = series_of(run, event);
    struct block *before = analysis_block(run, event->address), *block;

    if (!event->address)
        return;
    if (before) {
        run->missing_events++;
        end_block(run, before, event);
    }
    run->blocks = tool_grow_list(run->blocks, run->block_count, sizeof(*block));
    block = &run->blocks[run->block_count];
    *block = (struct block){
        .address = event->address,
        .size_bytes = event->size_bytes,
        .begin_ns = event->time_ns,
        .end_ns = ANALYSIS_NEVER,
        .begin_event = run->events,
        .end_event = ANALYSIS_NEVER,
        .stream = event->stream,
        .site = event->site,
        .series = (uint32_t)(series - run->series),
        .stack = event->stack,
    };
    tool_remember(&run->live, event->address, ++run->block_count);
    count_block(run, series, block);
    show(run, event);
}

static void end_stack(struct run *run, const struct tool_recording_event *event)
{
    uint32_t series = (uint32_t)(series_of(run, event) - run->series);

    for (size_t slot = 0; slot < run->live.slot_count;) {
        size_t found = (size_t)rs_hash_at(&run->live, slot);
        if (found && run->blocks[found - 1].series == series &&
            run->blocks[found - 1].stack == event->stack)
            end_block(run, &run->blocks[found - 1], event); /* another block may move here */
        else
            slot++;
    }
}

/* ---- events ---- */

static void note_incident(struct run *run, struct incidents *incidents,
                          const struct tool_recording_event *event)
{
    incidents->count++;
    incidents->duration_ns += event->address;
    incidents->size_bytes += event->size_bytes;
    if (incidents->kept_count < ANALYSIS_INCIDENTS_MAX)
        incidents->kept[incidents->kept_count++] = (struct incident){
            .ns = event->time_ns,
            .duration_ns = event->address,
            .size_bytes = event->size_bytes,
            .site = event->site,
            .series = (uint32_t)(series_of(run, event) - run->series),
        };
}

static void note_held(struct run *run, const struct tool_recording_event *event)
{
    struct series *series = series_of(run, event);

    series->held = event->size_bytes;
    series->limit = event->address;
    series->peak_held = rs_max(series->peak_held, series->held);
    note_level(series, event->time_ns);
}

void analysis_add(struct run *run, const struct tool_recording_event *event)
{
    struct block *block;

    run->events += event->kind != RS_RECORDING_STACK && event->kind != RS_RECORDING_TRIM;
    run->end_ns = rs_max(run->end_ns, event->time_ns);
    switch (event->kind) {
    case RS_RECORDING_ALLOCATE:
        begin_block(run, event);
        return;
    case RS_RECORDING_DEALLOCATE:
        block = analysis_block(run, event->address);
        if (block)
            end_block(run, block, event);
        else
            run->missing_events++;
        return;
    case RS_RECORDING_HELD:
        note_held(run, event);
        break;
    case RS_RECORDING_REFUSED:
        note_incident(run, &run->refusals, event);
        break;
    case RS_RECORDING_SLOW:
        note_incident(run, &run->waits, event);
        break;
    case RS_RECORDING_PHASE_BEGIN:
        begin_phase(run, event);
        break;
    case RS_RECORDING_PHASE_END:
        end_phase(run, event);
        break;
    case RS_RECORDING_MARK:
        note_mark(run, event);
        break;
    case RS_RECORDING_STACK_GONE:
        end_stack(run, event);
        return;
    case RS_RECORDING_STACK:
    case RS_RECORDING_TRIM:
    case RS_RECORDING_EVENT_KINDS:
        break;
    }
    show(run, event);
}

void analysis_end(struct run *run)
{
    for (size_t i = 0; i < run->open_count; i++)
        occurrence_of(run, i)->used_at_end = run->used;
    rs_hash_clear(&run->live);
    run->recording = NULL;
}
