/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the page of `rmmshim report`: page.html, which the build has filled with page.css,
 * plots.js and page.js, with the JSON document inserted. The comment at the beginning of page.js
 * describes the document.
 *
 * The document is in an HTML element. Programs chose the texts in it, so these are escaped: none
 * may end the element or begin another one. */
#include "base/check.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUCKETS_TOGETHER = 100000, /* the most buckets of all timelines together: 5 MB */
    BUCKETS_LEAST = 256,       /* the least for each timeline */
    SITES_TOGETHER = 20000,
    SITES_LEAST = 50,
    SPANS_TOGETHER = 100000,
    SPANS_LEAST = 500,
    OCCURRENCES_TOGETHER = 50000,
    OCCURRENCES_LEAST = 20,
    OCCURRENCES_MAX = 1000, /* of a phase */
    PHASES_MAX = 100,
    SURVIVORS_MAX = 50,
    INCIDENTS_MAX = 200,
    FRAMES_MAX = 64,          /* of a site */
    FRAMES_TOGETHER = 500000, /* of all sites; each further site has only its innermost one */
    TEXT_MAX = 400,           /* bytes of a frame */
    TEXT_TOGETHER = 6 << 20,  /* bytes of all frames; the further ones have no text */
};

/* ---- JSON ---- */

/* The sites, or the frames, that the document has. */
struct shown {
    uint32_t *numbers; /* the number in the document, plus 1; 0: not there yet */
    uint32_t *list;    /* the sites or frames, by their numbers in the document */
    uint32_t count;
};

struct json {
    FILE *to;
    bool needs_comma;
    struct shown sites, frames;
    size_t series_count, phase_count; /* of all runs; at least 1 */
};

static void put_name(struct json *json, const char *name)
{
    fputs(json->needs_comma ? "," : "", json->to);
    if (name)
        fprintf(json->to, "\"%s\":", name);
    json->needs_comma = true;
}

static void begin(struct json *json, const char *name, char bracket)
{
    put_name(json, name);
    putc(bracket, json->to);
    json->needs_comma = false;
}

static void end(struct json *json, char bracket)
{
    putc(bracket, json->to);
    json->needs_comma = true;
}

static void put_number(struct json *json, const char *name, uint64_t number)
{
    put_name(json, name);
    fprintf(json->to, "%" PRIu64, number);
}

static void put_numbers(struct json *json, const uint64_t *numbers, size_t count)
{
    begin(json, NULL, '[');
    for (size_t i = 0; i < count; i++) {
        put_name(json, NULL);
        if (numbers[i] == ANALYSIS_NEVER)
            fputs("null", json->to); /* a time that did not come */
        else
            fprintf(json->to, "%" PRIu64, numbers[i]);
    }
    end(json, ']');
}

/* Puts its numbers as an array. */
#define PUT_ROW(json, ...)                                                                         \
    put_numbers(json, (const uint64_t[]){__VA_ARGS__},                                             \
                sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void put_text(struct json *json, const char *name, const char *text)
{
    put_name(json, name);
    putc('"', json->to);
    fputs(*put_escaped(json->to, text, TEXT_MAX, true) ? "...\"" : "\"", json->to);
}

/* ---- call sites ---- */

/* Returns the number in the document. The first call for each site or frame assigns it. */
static uint32_t number_in(struct shown *shown, uint32_t one)
{
    if (!shown->numbers[one]) {
        shown->list[shown->count] = one;
        shown->numbers[one] = ++shown->count;
    }
    return shown->numbers[one] - 1;
}

/* Writes the numbers of a site's frames, and returns how many. */
static size_t put_stack(struct json *json, const struct analysis *analysis, uint32_t site,
                        size_t most)
{
    const uint32_t *frames = (const void *)analysis->sites.texts[site];
    size_t count = rs_min(analysis->sites.lengths[site] / sizeof(*frames), most);

    begin(json, NULL, '[');
    for (size_t i = 0; i < count; i++)
        put_number(json, NULL, number_in(&json->frames, frames[i]));
    end(json, ']');
    return count;
}

static void put_frames(struct json *json, const struct analysis *analysis)
{
    size_t all = 0, bytes = 0;

    begin(json, "sites", '[');
    for (uint32_t i = 0; i < json->sites.count; i++)
        all +=
            put_stack(json, analysis, json->sites.list[i], all < FRAMES_TOGETHER ? FRAMES_MAX : 1);
    end(json, ']');
    begin(json, "frames", '[');
    for (uint32_t i = 0; i < json->frames.count; i++) {
        const char *text = analysis->frames.texts[json->frames.list[i]];
        put_text(json, NULL,
                 bytes < TEXT_TOGETHER ? text
                                       : "(name left out: the page has too many long names)");
        bytes += rs_min(strlen(text), TEXT_MAX);
    }
    end(json, ']');
}

static void put_sites(struct json *json, const struct run *run, uint32_t series, size_t most)
{
    size_t count;
    struct site_sum *sums = analysis_sites(run, series, &count);

    put_number(json, "site_count", count);
    begin(json, "sites", '[');
    for (size_t i = 0; i < rs_min(count, most); i++) {
        const struct site_sum *sum = &sums[i];
        PUT_ROW(json, number_in(&json->sites, sum->site), sum->peak.bytes, sum->peak.blocks,
                sum->total.bytes, sum->total.blocks, sum->end.bytes, sum->end.blocks, sum->life_ns);
    }
    end(json, ']');
    free(sums);
}

/* ---- a series ---- */

static void put_timeline(struct json *json, const struct timeline *timeline)
{
    put_number(json, "bucket_ns", timeline->width_ns);
    begin(json, "timeline", '[');
    for (size_t i = 0; i < timeline->count; i++) {
        const struct timeline_bucket *bucket = &timeline->buckets[i];
        PUT_ROW(json, bucket->index, bucket->least_used, bucket->most_used, bucket->last_used,
                bucket->most_held, bucket->last_held, bucket->limit);
    }
    end(json, ']');
}

/* A block, or several neighbours with less than `gap` bytes between each and the next; `site` is
 * that of the first one. */
struct span {
    uint64_t address, length, used;
    uint32_t site;
};

/* Stores the spans, and returns their number, or room + 1 if there are more.  With gap 0 each block
 * is a span. */
static size_t find_spans(const struct block **blocks, size_t count, uint64_t gap,
                         struct span *spans, size_t room)
{
    uint64_t end_before = 0;
    size_t found = 0;

    for (size_t i = 0; i < count; i++) {
        const struct block *block = blocks[i];
        uint64_t block_end = block->address + block->size_bytes;
        if (found == 0 || gap == 0 || block->address - end_before >= gap) {
            if (++found > room)
                return found;
            spans[found - 1] = (struct span){.address = block->address, .site = block->site};
            end_before = block_end;
        }
        end_before = rs_max(end_before, block_end);
        spans[found - 1].length = end_before - spans[found - 1].address;
        spans[found - 1].used += block->size_bytes;
    }
    return found;
}

/* Puts the blocks at the peak by address. If there are too many, joins neighbours to one span. */
static void put_spans(struct json *json, const struct run *run, uint32_t series, size_t most)
{
    size_t count, found;
    const struct block **blocks = analysis_peak_blocks(run, series, &count);
    struct span *spans = tool_grow(NULL, most * sizeof(*spans));
    uint64_t gap = 0;

    while ((found = find_spans(blocks, count, gap, spans, most)) > most)
        gap = gap ? 2 * gap : 512;
    put_number(json, "peak_blocks", count);
    put_number(json, "merged_below", gap);
    begin(json, "spans", '[');
    for (size_t i = 0; i < found; i++)
        PUT_ROW(json, spans[i].address, spans[i].length, spans[i].used,
                number_in(&json->sites, spans[i].site));
    end(json, ']');
    free(spans);
    free(blocks);
}

static void put_sizes(struct json *json, const struct run *run, uint32_t series)
{
    static struct rs_block_sum cells[SIZE_CLASSES][LIFE_CLASSES];

    memset(cells, 0, sizeof(cells));
    analysis_sizes(run, series, cells);
    begin(json, "sizes", '[');
    for (unsigned size = 0; size < SIZE_CLASSES; size++)
        for (unsigned life = 0; life < LIFE_CLASSES; life++)
            if (cells[size][life].blocks)
                PUT_ROW(json, size, life, cells[size][life].blocks, cells[size][life].bytes);
    end(json, ']');
}

static void put_series(struct json *json, const struct run *run, uint32_t number)
{
    struct series *series = &run->series[number];

    begin(json, NULL, '{');
    put_number(json, "device", (uint64_t)series->device);
    put_text(json, "kind", rs_kind_names[series->kind]);
    put_number(json, "peak_used", series->peak_used);
    put_number(json, "peak_ns", series->peak_ns);
    put_number(json, "peak_held", series->peak_held);
    put_number(json, "limit", series->limit);
    put_number(json, "end_used", series->used);
    put_number(json, "end_held", series->held);
    put_number(json, "end_blocks", series->live_blocks);
    put_number(json, "allocations", series->allocations);
    put_number(json, "frees", series->frees);
    put_number(json, "allocated_bytes", series->allocated_bytes);
    timeline_shrink(&series->timeline,
                    rs_max(BUCKETS_TOGETHER / json->series_count, BUCKETS_LEAST));
    put_timeline(json, &series->timeline);
    put_sites(json, run, number, rs_max(SITES_TOGETHER / json->series_count, SITES_LEAST));
    put_spans(json, run, number, rs_max(SPANS_TOGETHER / json->series_count, SPANS_LEAST));
    put_sizes(json, run, number);
    end(json, '}');
}

/* ---- the rest of a run ---- */

static void put_survivors(struct json *json, const struct run *run, const struct phase *phase)
{
    size_t count;
    struct site_sum *survivors = analysis_survivors(run, phase, &count);

    begin(json, "survivors", '[');
    for (size_t i = 0; i < rs_min(count, SURVIVORS_MAX); i++)
        PUT_ROW(json, number_in(&json->sites, survivors[i].site), survivors[i].total.bytes,
                survivors[i].total.blocks, survivors[i].occurrences);
    end(json, ']');
    free(survivors);
}

/* Puts the occurrences. If there are too many, puts some at even distances, with the first and the
 * last. */
static void put_occurrences(struct json *json, const struct phase *phase)
{
    size_t most = rs_max(OCCURRENCES_TOGETHER / json->phase_count, OCCURRENCES_LEAST);
    size_t shown = rs_min(phase->count, rs_min(most, OCCURRENCES_MAX));

    begin(json, "occurrences", '[');
    for (size_t i = 0; i < shown; i++) {
        size_t at = shown > 1 ? i * (phase->count - 1) / (shown - 1) : 0;
        const struct occurrence *one = &phase->occurrences[at];
        PUT_ROW(json, one->begin_ns, one->end_ns, one->used_at_begin, one->used_at_end,
                one->peak_used);
    }
    end(json, ']');
}

static void put_phase(struct json *json, const struct run *run, const struct phase *phase)
{
    begin(json, NULL, '{');
    put_text(json, "name", phase->name);
    put_number(json, "count", phase->count);
    put_name(json, "growth");
    fprintf(json->to, "%" PRId64, phase_growth(phase));
    put_occurrences(json, phase);
    put_survivors(json, run, phase);
    end(json, '}');
}

static void put_marks(struct json *json, const struct run *run)
{
    begin(json, "marks", '[');
    for (size_t i = 0; i < run->mark_count; i++) {
        begin(json, NULL, '[');
        put_number(json, NULL, run->marks[i].ns);
        put_text(json, NULL, run->marks[i].name);
        put_number(json, NULL, run->marks[i].used);
        end(json, ']');
    }
    end(json, ']');
}

static void put_incidents(struct json *json, const char *name, const struct incidents *incidents)
{
    begin(json, name, '{');
    put_number(json, "count", incidents->count);
    put_number(json, "duration_ns", incidents->duration_ns);
    put_number(json, "bytes", incidents->size_bytes);
    begin(json, "first", '[');
    for (size_t i = 0; i < rs_min(incidents->kept_count, INCIDENTS_MAX); i++) {
        const struct incident *one = &incidents->kept[i];
        PUT_ROW(json, one->ns, one->duration_ns, one->size_bytes, one->series,
                number_in(&json->sites, one->site));
    }
    end(json, ']');
    end(json, '}');
}

static void put_run(struct json *json, const struct run *run)
{
    begin(json, NULL, '{');
    put_text(json, "file", run->path);
    put_text(json, "program", run->facts.program);
    put_number(json, "process", run->facts.header.process);
    put_text(json, "rank", run->facts.rank);
    put_number(json, "begun_ms", run->facts.header.begun_real_ns / 1000000);
    put_number(json, "end_ns", run->end_ns);
    put_number(json, "events", run->events);
    put_number(json, "lost_events", run->lost_events);
    put_number(json, "sample_bytes", run->facts.sample_bytes);
    put_text(json, "damage", run->damage);
    begin(json, "series", '[');
    for (uint32_t i = 0; i < run->series_count; i++)
        put_series(json, run, i);
    end(json, ']');
    put_number(json, "phase_count", run->phase_count);
    begin(json, "phases", '[');
    for (size_t i = 0; i < rs_min(run->phase_count, PHASES_MAX); i++)
        put_phase(json, run, &run->phases[i]);
    end(json, ']');
    put_marks(json, run);
    put_incidents(json, "refusals", &run->refusals);
    put_incidents(json, "waits", &run->waits);
    end(json, '}');
}

static void put_document(struct json *json, struct analysis *analysis)
{
    begin(json, NULL, '{');
    put_number(json, "schema", 1);
    put_text(json, "version", RMMSHIM_VERSION);
    begin(json, "runs", '[');
    for (size_t i = 0; i < analysis->run_count; i++) {
        progress_show("writing", i, analysis->run_count);
        put_run(json, analysis->runs[i]);
    }
    end(json, ']');
    put_frames(json, analysis);
    end(json, '}');
}

static struct shown none_of(size_t count)
{
    uint32_t *numbers = tool_grow(NULL, 2 * count * sizeof(*numbers));

    memset(numbers, 0, count * sizeof(*numbers));
    return (struct shown){numbers, numbers + count, 0};
}

static void write_document(FILE *to, struct analysis *analysis)
{
    struct json json = {to, false, none_of(analysis->sites.count), none_of(analysis->frames.count),
                        0,  0};

    for (size_t i = 0; i < analysis->run_count; i++) {
        json.series_count += analysis->runs[i]->series_count;
        json.phase_count += rs_min(analysis->runs[i]->phase_count, PHASES_MAX);
    }
    json.series_count = rs_max(json.series_count, 1);
    json.phase_count = rs_max(json.phase_count, 1);
    put_document(&json, analysis);
    free(json.sites.numbers);
    free(json.frames.numbers);
}

/* ---- the page ---- */

void page_write(FILE *to, struct analysis *analysis)
{
    static const char place[] = "{\"schema\": 1}";
    const char *at = memmem(page_html, page_html_length, place, sizeof(place) - 1);

    RS_ASSERT(at);
    fwrite(page_html, 1, (size_t)(at - page_html), to);
    write_document(to, analysis);
    at += sizeof(place) - 1;
    fwrite(at, 1, (size_t)(page_html + page_html_length - at), to);
    progress_clear();
}
