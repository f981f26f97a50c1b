/* SPDX-License-Identifier: Apache-2.0 */
/* Formats that are text: RMM's CSV and folded stacks (tool/export/export.h). */
#include "tool/csv_log.h"
#include "tool/export/export.h"
#include "tool/report/outputs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

/* ---- an event log in RMM's CSV format, as RMM_LOG writes it (resource/adaptor/logging.c) ---- */

/* The time is the local time of day.  A null pointer is "(nil)", as %p prints it. */
static void see_csv(struct analysis_observer *observer, const struct run *run,
                    const struct tool_recording_event *event)
{
    const uint64_t second_ns = 1000000000,
                   real_ns = run->facts.header.begun_real_ns + event->time_ns;
    FILE *to = ((struct export *)observer)->to;
    time_t second = (time_t)(real_ns / second_ns);
    struct tm parts = {.tm_sec = 0};

    if (!csv_log_actions[event->kind])
        return;
    localtime_r(&second, &parts);
    fprintf(to, "%" PRIu32 ",%02d:%02d:%02d.%06u,%s,%p,%" PRIu64 ",%#" PRIx64 "\n", event->thread,
            parts.tm_hour, parts.tm_min, parts.tm_sec, (unsigned)(real_ns % second_ns / 1000),
            csv_log_actions[event->kind], (void *)(uintptr_t)event->address, event->size_bytes,
            event->stream);
}

const struct export_format export_csv = {true, "Thread,Time,Action,Pointer,Size,Stream\n", see_csv,
                                         NULL};

/* ---- folded stacks, outermost frame first, with the bytes that were live at the peak ---- */

/* Writes ':' for each semicolon, which would end the frame. */
static void put_frame(FILE *to, const char *text)
{
    for (; *text; text++)
        putc(*text == ';' ? ':' : *text, to);
}

static void put_site(FILE *to, const struct analysis *analysis, uint32_t site)
{
    const uint32_t *frames = (const void *)analysis->sites.texts[site];

    for (size_t i = analysis->sites.lengths[site] / sizeof(*frames); i-- > 0;) {
        putc(';', to);
        put_frame(to, analysis->frames.texts[frames[i]]);
    }
    if (analysis->sites.lengths[site] == 0)
        fputs(";(no call site was recorded)", to);
}

static void put_series(const struct export *export, const struct run *run, uint32_t number)
{
    char text[SERIES_TEXT_BYTES];
    size_t count;
    struct site_sum *sums = analysis_sites(run, number, &count);

    for (size_t i = 0; i < count; i++) {
        if (sums[i].peak.bytes == 0)
            continue;
        put_frame(export->to, run->title);
        fprintf(export->to, ";%s", series_text(&run->series[number], text));
        put_site(export->to, export->analysis, sums[i].site);
        fprintf(export->to, " %" PRIu64 "\n", sums[i].peak.bytes);
    }
    free(sums);
}

static void end_folded(struct export *export)
{
    for (size_t i = 0; i < export->analysis->run_count; i++)
        for (uint32_t j = 0; j < export->analysis->runs[i]->series_count; j++)
            put_series(export, export->analysis->runs[i], j);
}

const struct export_format export_folded = {false, "", NULL, end_folded};
