/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of recordings for the terminal (tool/report/outputs.h). */
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "tool/report/outputs.h"
#include "tool/screen.h"
#include "tool/tool.h"

#include <inttypes.h>
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS = 80,
    LINE_BYTES = 4 * 1024,
    SITES_SHOWN = 5,
    PHASES_SHOWN = 8,
    SURVIVORS_SHOWN = 3,
};

const char *series_text(const struct series *series, char text[SERIES_TEXT_BYTES])
{
    snprintf(text, SERIES_TEXT_BYTES, "device %d%s", series->device, rs_kind_texts[series->kind]);
    return text;
}

const char *duration_text(uint64_t ns, char text[DURATION_TEXT_BYTES])
{
    static const struct {
        double ns;
        const char *unit;
    } units[] = {{3600e9, "h"}, {60e9, "min"}, {1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t i = 0;
    int digits = 0;
    double value;

    while (i + 1 < RS_ARRAY_LENGTH(units) && (double)ns < units[i].ns)
        i++;
    value = (double)ns / units[i].ns;
    if (ns >= 1000)
        digits = value < 10 ? 2 : value < 100;
    snprintf(text, DURATION_TEXT_BYTES, "%.*f %s", digits, value, units[i].unit);
    return text;
}

/* ---- lines ---- */

/* Writes a line, cut off at the last column. */
RS_PRINTF(2, 3) static void put_line(FILE *to, const char *format, ...)
{
    char text[LINE_BYTES], fitted[LINE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    (void)screen_fit(fitted, sizeof(fitted), text, COLUMNS);
    fprintf(to, "%s\n", fitted);
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static const char *frame_text(const struct analysis *analysis, uint32_t site, size_t i)
{
    return analysis->frames.texts[((const uint32_t *)(const void *)analysis->sites.texts[site])[i]];
}

/* True for a line of Python: "PATH:LINE in FUNCTION". A frame of C: "FUNCTION+0x1 (OBJECT+0x2)". */
static bool is_line(const char *frame)
{
    const char *function = strstr(frame, " in ");

    return function && function > frame && function[-1] >= '0' && function[-1] <= '9';
}

/* Returns the innermost frames of a site. For a program in Python these are the innermost lines of
 * Python: the frames below them are the framework's allocator at every site. The text lasts until
 * the next call. */
static const char *site_text(const struct analysis *analysis, uint32_t site)
{
    enum { FRAMES_SHOWN = 2 };
    static char text[LINE_BYTES / 2];
    size_t count = analysis->sites.lengths[site] / sizeof(uint32_t), first = 0;

    if (count == 0)
        return "(no call site was recorded)";
    while (first < count && !is_line(frame_text(analysis, site, first)))
        first++;
    first = first < count ? first : 0;
    text[0] = '\0';
    for (size_t i = first; i < rs_min(count, first + FRAMES_SHOWN); i++) {
        const char *frame = frame_text(analysis, site, i);
        rs_text_add(text, sizeof(text), "%s%s", i > first ? " < " : "",
                    is_line(frame) ? rs_file_base_name(frame) : frame);
    }
    return text;
}

/* ---- what is said of a series ---- */

static void put_peak_sites(FILE *to, const struct analysis *analysis, const struct run *run,
                           uint32_t number)
{
    const struct series *series = &run->series[number];
    struct rs_block_sum rest = {0, 0};
    size_t count, i;
    struct site_sum *sums = analysis_sites(run, number, &count);

    for (i = 0; i < count && sums[i].peak.blocks; i++)
        if (i < SITES_SHOWN)
            put_line(
                to, "    %10s %5.1f %% %9" PRIu64 " block%s  %s", tool_bytes(sums[i].peak.bytes),
                100.0 * (double)sums[i].peak.bytes / (double)series->peak_used, sums[i].peak.blocks,
                sums[i].peak.blocks == 1 ? " " : "s", site_text(analysis, sums[i].site));
        else
            rs_block_sum_add(&rest, sums[i].peak);
    if (i > SITES_SHOWN)
        put_line(to, "    %10s %5.1f %% %9" PRIu64 " blocks  from %zu more call site%s",
                 tool_bytes(rest.bytes), 100.0 * (double)rest.bytes / (double)series->peak_used,
                 rest.blocks, i - SITES_SHOWN, plural(i - SITES_SHOWN));
    free(sums);
}

static void put_series(FILE *to, const struct analysis *analysis, const struct run *run,
                       uint32_t number)
{
    const struct series *series = &run->series[number];
    char name[SERIES_TEXT_BYTES], when[DURATION_TEXT_BYTES];

    put_line(to, "  %s", series_text(series, name));
    put_line(to, "    peak: %s used, after %s%s%s%s%s", tool_bytes(series->peak_used),
             duration_text(series->peak_ns, when), series->peak_held ? "; held at most: " : "",
             series->peak_held ? tool_bytes(series->peak_held) : "",
             series->limit ? "; limit: " : "", series->limit ? tool_bytes(series->limit) : "");
    put_line(
        to, "    %" PRIu64 " allocation%s, %s in all; in use at the end: %s in %" PRIu64 " block%s",
        series->allocations, plural(series->allocations), tool_bytes(series->allocated_bytes),
        tool_bytes(series->used), series->live_blocks, plural(series->live_blocks));
    if (series->peak_used)
        put_line(to, "    in use at the peak, by call site:");
    put_peak_sites(to, analysis, run, number);
}

/* ---- what is said of a run ---- */

static void put_phase(FILE *to, const struct analysis *analysis, const struct run *run,
                      const struct phase *phase)
{
    int64_t growth = phase_growth(phase);
    uint64_t peak = 0;
    size_t count;
    struct site_sum *survivors = analysis_survivors(run, phase, &count);

    for (size_t i = 0; i < phase->count; i++)
        peak = rs_max(peak, phase->occurrences[i].peak_used);
    put_line(to, "  phase %s: entered %zu time%s, used up to %s", phase->name, phase->count,
             plural(phase->count), tool_bytes(peak));
    if (growth > 0)
        put_line(to, "    memory in use grows by %s each time", tool_bytes((uint64_t)growth));
    for (size_t i = 0; i < rs_min(count, SURVIVORS_SHOWN) && growth > 0; i++)
        put_line(to,
                 "    %10s in %" PRIu64 " block%s not freed, from %" PRIu32 " of the %zu times  %s",
                 tool_bytes(survivors[i].total.bytes), survivors[i].total.blocks,
                 plural(survivors[i].total.blocks), survivors[i].occurrences, phase->count,
                 site_text(analysis, survivors[i].site));
    free(survivors);
}

static void put_incidents(FILE *to, const struct run *run)
{
    char text[DURATION_TEXT_BYTES];

    if (run->refusals.count)
        put_line(to, "  refused: %" PRIu64 " request%s, %s in all", run->refusals.count,
                 plural(run->refusals.count), tool_bytes(run->refusals.size_bytes));
    if (run->waits.count)
        put_line(to, "  waited for the GPU: %" PRIu64 " time%s, %s in all", run->waits.count,
                 plural(run->waits.count), duration_text(run->waits.duration_ns, text));
    if (run->lost_events)
        put_line(to,
                 "  the recording lacks %" PRIu64
                 " event%s, so figures may be too low; a larger --record-size may keep all",
                 run->lost_events, plural(run->lost_events));
}

static void put_run(FILE *to, const struct analysis *analysis, const struct run *run)
{
    char text[DURATION_TEXT_BYTES];

    put_line(to, "%s: %s, %" PRIu64 " event%s", run->title, duration_text(run->end_ns, text),
             run->events, plural(run->events));
    if (run->facts.sample_bytes)
        put_line(to, "  figures by call site are estimated from one block in each %s allocated",
                 tool_bytes(run->facts.sample_bytes));
    for (uint32_t i = 0; i < run->series_count; i++)
        put_series(to, analysis, run, i);
    for (size_t i = 0; i < rs_min(run->phase_count, PHASES_SHOWN); i++)
        put_phase(to, analysis, run, &run->phases[i]);
    if (run->phase_count > PHASES_SHOWN)
        put_line(to, "  %zu more phases", run->phase_count - PHASES_SHOWN);
    put_incidents(to, run);
}

void summary_write(FILE *to, struct analysis *analysis)
{
    (void)setlocale(LC_CTYPE, ""); /* for the width of characters */
    for (size_t i = 0; i < analysis->run_count; i++)
        put_run(to, analysis, analysis->runs[i]);
}
