/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/screen/view.h"

#include "base/check.h"
#include "base/size.h"
#include "tool/column.h"
#include "tool/screen/chart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_BYTES = 1024,
    BYTES_WIDTH = 8,    /* "1023 MiB": columns of bytes do not change their width */
    PROGRAM_WIDTH = 24, /* at most, */
    PROGRAM_LEAST = 12, /* and before others have their room */
    CHART_WIDTH = 8,    /* at least */
    METERS_MAX = 4,
    METER_WIDTH = 60, /* at most */
    METER_LINES = 12, /* the screen has at least as many where meters are shown, */
    KEY_LINES = 8,    /* and where the keys are */
};

const char *const view_sort_names[VIEW_SORTS + 1] = {"held", "used", "peak", "rate", "pid", NULL};

/* ---- order ---- */

static const struct view *sorted_for;

static double weight(const struct row *row)
{
    switch (sorted_for->sort) {
    case VIEW_HELD:
        return (double)row->usage.held;
    case VIEW_USED:
        return (double)row->usage.used;
    case VIEW_PEAK:
        return (double)row->usage.used_peak;
    case VIEW_RATE:
        return row->allocations_per_second;
    case VIEW_PID:
    case VIEW_SORTS:
        break;
    }
    return 0;
}

static int by_choice(const void *one, const void *other)
{
    const struct row *a = &(*(const struct watched *const *)one)->row;
    const struct row *b = &(*(const struct watched *const *)other)->row;
    int order = (weight(a) < weight(b)) - (weight(a) > weight(b));

    order = order ? order : row_compare(a, b);
    return sorted_for->is_reversed ? -order : order;
}

const struct watched **view_rows(const struct view *view, const struct watch *watch, size_t *count)
{
    const struct watched **rows = watch_rows(watch, view->is_by_device, count);

    sorted_for = view;
    if (*count > 0)
        qsort(rows, *count, sizeof(struct watched *), by_choice);
    return rows;
}

/* ---- columns ---- */

/* In the order in which they are shown; the chart is behind them. */
struct place {
    const struct column *column;
    int need; /* those with the lowest are shown first where there is little room */
    int least;
    int width; /* 0: not shown */
};

enum { PLACES = COLUMNS + 5, CHART_NEED = 10 };

/* How much they are needed, and their least width.  Those that do not stand here are not shown. */
static const struct place of_processes[] = {
    {&column_process, 1, 3, 0},        {&column_held, 2, BYTES_WIDTH, 0},
    {&column_program, 3, 4, 0},        {&column_device, 4, 0, 0},
    {&column_used, 5, BYTES_WIDTH, 0}, {&column_limit, 6, BYTES_WIDTH, 0},
    {&column_refused, 7, 0, 0},        {&column_spilled, 8, BYTES_WIDTH, 0},
    {&column_peak, 9, BYTES_WIDTH, 0}, {&column_allocation_rate, 11, 7, 0},
    {&column_user, 12, 0, 0},          {&column_job_limit, 13, BYTES_WIDTH, 0},
    {&column_rank, 14, 0, 0},          {&column_byte_rate, 15, BYTES_WIDTH, 0},
    {&column_expression, 16, 0, 0},
};
static const struct place of_devices[] = {
    {&column_device, 1, 0, 0},
    {&column_held, 2, BYTES_WIDTH, 0},
    {&column_device_bytes, 3, BYTES_WIDTH, 0},
    {&column_used, 4, BYTES_WIDTH, 0},
    {&column_allocation_rate, 5, 7, 0},
    {&column_byte_rate, 6, BYTES_WIDTH, 0},
    {&column_limit, 7, BYTES_WIDTH, 0},
    {&column_refused, 8, 0, 0},
    {&column_process_count, 9, 0, 0},
    {&column_spilled, 11, BYTES_WIDTH, 0},
};

/* Behind those that `ls` has too. */
static const struct column *const others[PLACES - COLUMNS] = {
    &column_device_bytes, &column_process_count, &column_allocation_rate,
    &column_byte_rate,    &column_expression,
};

static struct place place_of(const struct column *column, bool is_by_device)
{
    const struct place *known = is_by_device ? of_devices : of_processes;
    size_t count = is_by_device ? RS_ARRAY_LENGTH(of_devices) : RS_ARRAY_LENGTH(of_processes);

    for (size_t i = 0; i < count; i++)
        if (known[i].column == column)
            return known[i];
    return (struct place){.column = NULL};
}

static void places_of(const struct view *view, bool needs_uuids, struct place places[PLACES])
{
    for (size_t i = 0; i < PLACES; i++) {
        places[i] =
            place_of(i < COLUMNS ? column_order[i] : others[i - COLUMNS], view->is_by_device);
        if (places[i].column == &column_device && (needs_uuids || view->is_by_device))
            places[i].column = &column_device_uuid;
    }
}

static int wanted_width(const struct place *place, const struct watched *const *rows, size_t count)
{
    size_t width = 0;

    for (size_t i = 0; i < count; i++)
        width = rs_max(width, (size_t)column_cell_width(place->column, &rows[i]->row));
    if (width == 0)
        return 0; /* all cells are empty */
    if (place->column == &column_program)
        width = rs_min(width, PROGRAM_WIDTH);
    return (int)rs_max(width, rs_max(strlen(place->column->title), (size_t)place->least));
}

static struct place *next_by_need(struct place places[PLACES], int after)
{
    struct place *next = NULL;

    for (size_t i = 0; i < PLACES; i++)
        if (places[i].column && places[i].need > after && (!next || places[i].need < next->need))
            next = &places[i];
    return next;
}

/* What is left over goes to the program's name. */
static void widen_program(struct place places[PLACES], const struct watched *const *rows,
                          size_t count, int *room)
{
    for (size_t i = 0; i < PLACES; i++) {
        int more = places[i].width > 0 && places[i].column == &column_program
                       ? wanted_width(&places[i], rows, count) - places[i].width
                       : 0;
        more = more > *room ? *room : more;
        if (more > 0) {
            places[i].width += more;
            *room -= more;
        }
    }
}

/* Gives widths, and returns the chart's; 0: there is none.  It has a column for each sample at
 * most, so that a line is short, however wide the terminal. */
static int share_room(struct place places[PLACES], const struct watched *const *rows, size_t count,
                      int room, bool has_chart)
{
    struct place *place;
    int chart = 0;
    bool is_chart_due = has_chart;

    for (int need = 0; (place = next_by_need(places, need)); need = place->need) {
        int wanted = wanted_width(place, rows, count), between = room > 0 && need > 0;
        if (is_chart_due && place->need > CHART_NEED) {
            is_chart_due = false;
            chart = room > CHART_WIDTH ? CHART_WIDTH : 0;
            room -= chart ? chart + 1 : 0;
        }
        if (place->column == &column_program && wanted > PROGRAM_LEAST)
            wanted = PROGRAM_LEAST;
        if (wanted + between > room && place->column == &column_program && room > place->least)
            wanted = room - between;
        if (wanted == 0 || (wanted + between > room && need > 0))
            continue;
        place->width = wanted;
        room -= wanted + between;
    }
    widen_program(places, rows, count, &room);
    chart += chart && room > 0 ? room : 0;
    return chart < WATCH_SAMPLES ? chart : WATCH_SAMPLES;
}

/* ---- lines ---- */

static enum frame_style style_of(const struct place *place, const struct row *row)
{
    const struct rs_usage *usage = &row->usage;

    if (place->column == &column_refused && usage->refused > 0)
        return FRAME_ALARM;
    if (place->column != &column_held || usage->limit == 0)
        return FRAME_PLAIN;
    return usage->held >= usage->limit - usage->limit / 10  ? FRAME_ALARM
           : usage->held >= usage->limit - usage->limit / 4 ? FRAME_WARN
                                                            : FRAME_PLAIN;
}

/* The titles are in reverse video to the end of the line. */
static void fill_titles(struct frame *frame)
{
    char blanks[LINE_BYTES];
    int left;

    while (frame->is_screen && (left = frame_columns_left(frame)) > 0) {
        snprintf(blanks, sizeof(blanks), "%*s", (int)rs_min((size_t)left, LINE_BYTES - 1), "");
        frame_put(frame, FRAME_TITLE, blanks);
    }
}

static void put_titles(struct frame *frame, const struct place places[PLACES], int chart)
{
    char title[COLUMN_BYTES];
    const char *between = "";

    for (size_t i = 0; i < PLACES; i++) {
        if (places[i].width == 0)
            continue;
        column_align(title, sizeof(title), places[i].column->title, places[i].width,
                     places[i].column->is_left);
        frame_put(frame, FRAME_TITLE, between);
        frame_put(frame, FRAME_TITLE, title);
        between = " ";
    }
    if (chart) {
        column_align(title, sizeof(title), "HISTORY", chart, true);
        frame_put(frame, FRAME_TITLE, between);
        frame_put(frame, FRAME_TITLE, title);
    }
    fill_titles(frame);
    frame_end_line(frame);
}

/* What a full column of the chart stands for: a limit, or all that there is. */
static uint64_t whole_of(const struct row *row)
{
    uint64_t limit = rs_usage_least_limit(&row->usage), all = row->device_bytes;

    if (row->kind == RS_KIND_PINNED)
        all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit && (all == 0 || limit < all) ? limit : all;
}

static void put_chart(struct frame *frame, const struct watched *watched, int columns,
                      bool has_blocks)
{
    size_t count = rs_min(watched->samples, WATCH_SAMPLES);
    uint64_t values[WATCH_SAMPLES];
    char text[LINE_BYTES];

    for (size_t i = 0; i < count; i++)
        values[i] = watched->held[(watched->samples - count + i) % WATCH_SAMPLES];
    chart_put(text, sizeof(text), values, count, whole_of(&watched->row), columns, has_blocks);
    frame_put(frame, FRAME_PLAIN, " ");
    frame_put(frame, FRAME_CHART, text);
}

static void put_row(struct frame *frame, const struct view *view, const struct place places[PLACES],
                    int chart, const struct watched *watched)
{
    char text[COLUMN_BYTES], aligned[COLUMN_BYTES];
    const char *between = "";

    for (size_t i = 0; i < PLACES; i++) {
        if (places[i].width == 0)
            continue;
        places[i].column->put(&watched->row, text);
        column_align(aligned, sizeof(aligned), text, places[i].width, places[i].column->is_left);
        frame_put(frame, FRAME_PLAIN, between);
        frame_put(frame, style_of(&places[i], &watched->row), aligned);
        between = " ";
    }
    if (chart)
        put_chart(frame, watched, chart, view->has_blocks);
    frame_end_line(frame);
}

static void put_time(struct frame *frame, const struct view *view)
{
    char line[LINE_BYTES], clock[16] = "";
    time_t now = time(NULL);
    struct tm local;

    if (localtime_r(&now, &local))
        (void)strftime(clock, sizeof(clock), "%H:%M:%S", &local);
    snprintf(line, sizeof(line), "rmmshim top %s", clock);
    frame_put(frame, FRAME_PLAIN, line);
    if (view->is_paused)
        frame_put(frame, FRAME_WARN, "  paused");
    snprintf(line, sizeof(line), "  by %s%s", view_sort_names[view->sort],
             view->is_reversed ? ", reversed" : "");
    frame_put(frame, FRAME_PLAIN, line);
}

/* First what a narrow screen must not cut off: the order, and who is left out. */
static void put_summary(struct frame *frame, const struct view *view, const struct watch *watch)
{
    char held[RS_SIZE_TEXT_BYTES], used[RS_SIZE_TEXT_BYTES], line[LINE_BYTES];
    size_t processes = watch_process_count(watch), unreadable = watch_unreadable(watch);
    struct rs_usage sum = {0};

    for (size_t i = 0; i < watch->device_count; i++)
        rs_usage_add(&sum, &watch->devices[i].row.usage);
    put_time(frame, view);
    snprintf(line, sizeof(line), "  %zu process%s", processes, processes == 1 ? "" : "es");
    frame_put(frame, FRAME_PLAIN, line);
    if (unreadable) {
        snprintf(line, sizeof(line), " + %zu unreadable", unreadable);
        frame_put(frame, FRAME_WARN, line);
    }
    snprintf(line, sizeof(line), "  used %s  held %s", rs_size_format_short(sum.used, used),
             rs_size_format_short(sum.held, held));
    frame_put(frame, FRAME_PLAIN, line);
    frame_end_line(frame);
}

/* How full a device is, by what processes hold through rmmshim. */
static void put_meter(struct frame *frame, const struct row *row)
{
    char held[RS_SIZE_TEXT_BYTES], total[RS_SIZE_TEXT_BYTES], line[LINE_BYTES], bar[LINE_BYTES];
    char numbers[2 * RS_SIZE_TEXT_BYTES];
    int width;

    snprintf(line, sizeof(line), "device %d %.8s [", row->device, row->uuid);
    snprintf(numbers, sizeof(numbers), "] %s of %s", rs_size_format_short(row->usage.held, held),
             rs_size_format_short(row->device_bytes, total));
    frame_put(frame, FRAME_PLAIN, line);
    width = frame_columns_left(frame) - (int)strlen(numbers);
    width = width < 0 ? 0 : width > METER_WIDTH ? METER_WIDTH : width;
    chart_put_part(bar, sizeof(bar), row->usage.held, row->device_bytes, width);
    frame_put(frame, FRAME_CHART, bar);
    frame_put(frame, FRAME_PLAIN, numbers);
    frame_end_line(frame);
}

static void put_meters(struct frame *frame, const struct watch *watch)
{
    int count = 0;

    for (size_t i = 0; i < watch->device_count && count < METERS_MAX; i++) {
        const struct row *row = &watch->devices[i].row;
        if (row->kind != RS_KIND_DEVICE || row->device_bytes == 0)
            continue;
        put_meter(frame, row);
        count++;
    }
}

static void put_keys(struct frame *frame)
{
    frame_put(frame, FRAME_FAINT,
              "q quit  p pause  s sort  r reverse  d devices, processes  h help  arrows scroll");
    frame_end_line(frame);
}

static void put_help(struct frame *frame)
{
    static const char *const lines[] = {
        "q            quit",
        "p, space     pause or continue",
        "s            sort by the next of held, used, peak, rate, pid",
        "r            reverse the order",
        "d            show devices or processes",
        "arrows, page up, page down, home, end    scroll",
        "h, ?         this help; any key ends it",
        "",
        "USED     what the program has            HELD     taken from the driver for it",
        "PEAK     the most that was used          LIMIT    the most that may be held",
        "REFUSED  out-of-memory errors that       SPILLED  what did not fit into the",
        "         the program received                     device",
        "HISTORY  HELD, as a part of the limit or of all memory",
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(lines) && frame_lines_left(frame) > 1; i++) {
        frame_put(frame, FRAME_PLAIN, lines[i]);
        frame_end_line(frame);
    }
}

/* ---- the whole ---- */

/* Titles and as many rows as fit; the chart needs more than one sample. */
static void put_table(struct view *view, struct frame *frame, const struct watched *const *rows,
                      size_t count, size_t room)
{
    struct place places[PLACES];
    struct rows some = {.count = 0};
    size_t shown;
    int chart;

    view->visible = rs_min(count, room);
    view->first = rs_min(view->first, count - view->visible);
    rows += view->first;
    shown = view->visible;
    for (size_t i = 0; i < shown; i++)
        rows_add(&some, &rows[i]->row);
    places_of(view, rows_need_uuids(&some), places);
    rows_release(&some);
    chart = share_room(places, rows, shown, frame->columns, frame->is_screen);
    put_titles(frame, places, chart);
    for (size_t i = 0; i < shown; i++)
        put_row(frame, view, places, chart, rows[i]);
}

void view_draw(struct view *view, const struct watch *watch, struct frame *frame)
{
    size_t count, room;
    const struct watched **rows = view_rows(view, watch, &count);
    bool has_keys = frame->is_screen && frame->lines >= KEY_LINES;
    int left;

    put_summary(frame, view, watch);
    if (frame->lines == 0 || frame->lines >= METER_LINES)
        put_meters(frame, watch);
    left = frame_lines_left(frame) - 1 - has_keys;
    room = left > 0 ? (size_t)left : 0;
    if (view->shows_help) {
        put_help(frame);
    } else if (count == 0) {
        frame_put(frame, FRAME_PLAIN, "no process of this user has GPU memory served by rmmshim");
        frame_end_line(frame);
    } else if (frame_lines_left(frame) > 0) {
        put_table(view, frame, rows, count, room);
    }
    while (has_keys && frame_lines_left(frame) > 1)
        frame_end_line(frame);
    if (has_keys)
        put_keys(frame);
    free(rows);
}
