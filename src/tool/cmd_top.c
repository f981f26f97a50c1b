/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim ls: lists the processes that hold memory through rmmshim. rmmshim top: shows the same
 * list as it changes. */
#include "base/check.h"
#include "base/lock.h"
#include "base/size.h"
#include "tool/row.h"
#include "tool/screen.h"
#include "tool/tool.h"

#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LS_PROGRAM_WIDTH = 32, /* the most columns of a program's name in `ls` */
    PROGRAM_WIDTH = 24,    /* the most columns of a program's name in `top` ... */
    PROGRAM_LEAST = 12,    /* ... and the most that it gets before later columns get room */
    CHART_WIDTH = 8,       /* the least width of the chart */
    COLUMN_CHART = -1,     /* stands in `orders` for the chart of held memory over time */
    METERS_MAX = 4,
    METER_WIDTH = 60, /* the most columns of a meter's bar */
    METER_LINES = 12, /* meters are shown on a screen of at least this many lines, ... */
    KEY_LINES = 8,    /* ... and the line of keys on a screen of at least this many */
};

struct view {
    bool is_by_device, is_reversed, is_paused;
    bool shows_help; /* the help is shown in place of the table */
    enum row_sort sort;
    uint64_t interval_ns;
    size_t first;   /* the first row that is shown, if not all fit */
    size_t visible; /* the number of rows that fitted last time */
    bool has_blocks;
    int widths[COLUMNS]; /* 0: not shown */
    int chart;           /* the width of the chart, which is the last column; 0: not shown */
};

/* ---- columns ---- */

/* The columns for processes, and those for devices, in the order in which they get room on a narrow
 * terminal.  The first column is always shown. */
static const int orders[2][COLUMNS + 1] = {
    {COLUMN_PROCESS, COLUMN_HELD, COLUMN_PROGRAM, COLUMN_DEVICE, COLUMN_USED, COLUMN_LIMIT,
     COLUMN_REFUSED, COLUMN_SPILLED, COLUMN_PEAK, COLUMN_CHART, COLUMN_ALLOCATION_RATE, COLUMN_USER,
     COLUMN_JOB_LIMIT, COLUMN_RANK, COLUMN_BYTE_RATE, COLUMN_EXPRESSION, COLUMNS},
    {COLUMN_DEVICE, COLUMN_HELD, COLUMN_TOTAL, COLUMN_USED, COLUMN_ALLOCATION_RATE,
     COLUMN_BYTE_RATE, COLUMN_LIMIT, COLUMN_REFUSED, COLUMN_PROCESSES, COLUMN_CHART, COLUMN_SPILLED,
     COLUMNS},
};

static int wanted_width(enum column column, const struct row *const *rows, size_t count)
{
    int width = column_width(column, rows, count);

    if (column == COLUMN_PROGRAM)
        width = rs_min(width, PROGRAM_WIDTH);
    return width ? rs_max(width, column_forms[column].least_width) : 0;
}

/* Distributes the room among the columns, in their order, and the chart.  The chart has at most one
 * column for each sample, so that lines stay short on a wide terminal. */
static void share_room(struct view *view, const struct row *const *rows, size_t count, int room,
                       bool has_chart)
{
    const int *order = orders[view->is_by_device];
    int *program = &view->widths[COLUMN_PROGRAM], more;

    view->chart = 0;
    memset(view->widths, 0, sizeof(view->widths));
    for (size_t i = 0; order[i] != COLUMNS; i++) {
        bool is_first = i == 0, is_chart = order[i] == COLUMN_CHART;
        int between = room > 0 && !is_first;
        int wanted = is_chart ? 0 : wanted_width((enum column)order[i], rows, count);
        if (is_chart && has_chart && room > CHART_WIDTH) {
            view->chart = CHART_WIDTH;
            room -= CHART_WIDTH + 1;
        }
        if (order[i] == COLUMN_PROGRAM) {
            wanted = rs_min(wanted, PROGRAM_LEAST);
            if (wanted + between > room && room > column_forms[COLUMN_PROGRAM].least_width)
                wanted = room - between;
        }
        if (wanted == 0 || (wanted + between > room && !is_first))
            continue;
        view->widths[order[i]] = wanted;
        room -= wanted + between;
    }
    /* What is left over goes to the program's name, then to the chart. */
    more = *program ? wanted_width(COLUMN_PROGRAM, rows, count) - *program : 0;
    more = more > room ? room : more;
    if (more > 0) {
        *program += more;
        room -= more;
    }
    view->chart += view->chart && room > 0 ? room : 0;
    view->chart = rs_min(view->chart, ROW_SAMPLES);
}

/* ---- lines ---- */

static enum frame_style style_of(enum column column, const struct rs_usage *usage)
{
    if (column == COLUMN_REFUSED && usage->refused > 0)
        return FRAME_ALARM;
    if (column != COLUMN_HELD || usage->limit == 0)
        return FRAME_PLAIN;
    return usage->held >= usage->limit - usage->limit / 10  ? FRAME_ALARM
           : usage->held >= usage->limit - usage->limit / 4 ? FRAME_WARN
                                                            : FRAME_PLAIN;
}

/* Adds the cells of a row, or the titles if `row` is NULL. */
static void put_row_cells(struct frame *frame, const int widths[COLUMNS], const char *gap,
                          const struct row *row)
{
    char text[COLUMN_BYTES], aligned[COLUMN_BYTES];
    enum frame_style plain = row ? FRAME_PLAIN : FRAME_TITLE;
    const char *between = "";

    for (enum column i = 0; i < COLUMNS; i++) {
        if (widths[i] == 0)
            continue;
        if (row)
            column_put(i, row, text);
        else
            snprintf(text, sizeof(text), "%s", column_forms[i].title);
        screen_align(aligned, sizeof(aligned), text, widths[i], column_forms[i].is_left);
        frame_put(frame, plain, "%s", between);
        frame_put(frame, row ? style_of(i, &row->usage) : plain, "%s", aligned);
        between = gap;
    }
}

/* ---- rmmshim ls ---- */

static void print_rows(const struct row *const *rows, size_t count)
{
    struct frame frame = {.columns = INT_MAX};
    int widths[COLUMNS] = {0};

    columns_begin(rows, count, false);
    for (enum column i = 0; i < COLUMNS; i++)
        if (i < COLUMN_TOTAL || i == COLUMN_EXPRESSION)
            widths[i] = column_width(i, rows, count);
    widths[COLUMN_PROGRAM] = rs_min(widths[COLUMN_PROGRAM], LS_PROGRAM_WIDTH);
    put_row_cells(&frame, widths, "  ", NULL);
    frame_end_line(&frame);
    for (size_t i = 0; i < count; i++) {
        put_row_cells(&frame, widths, "  ", rows[i]);
        frame_end_line(&frame);
    }
    (void)fwrite(frame.text, 1, frame.length, stdout);
    free(frame.text);
}

static int ls(char **arguments)
{
    bool is_json = false, is_printed = true;
    const struct tool_option options[] = {{.name = "--json", .flag = &is_json}, {.name = NULL}};
    struct watch watch = {.count = 0};
    const struct row **rows;
    size_t count;

    setlocale(LC_CTYPE, "");
    if (!tool_take_options(arguments, false, options))
        return TOOL_USAGE;
    watch_sample(&watch);
    rows = watch_rows(&watch, false, ROW_BY_HELD, false, &count);
    if (is_json)
        is_printed = rows_print_json(rows, count);
    else if (count > 0)
        print_rows(rows, count);
    if (count == 0)
        rows_say_none();
    rows_say_unreadable(&watch);
    free(rows);
    watch_release(&watch);
    return is_printed ? TOOL_OK : TOOL_FINDING;
}

const struct tool_command tool_ls = {
    .name = "ls",
    .arguments = "[--json]",
    .summary = "Lists the processes that have GPU memory served by rmmshim",
    .run = ls,
    .help =
        "Prints a line for each device of each process, and one each for the process's pinned and\n"
        "managed memory. The lines with the most held memory come first.\n\n"
        "PROGRAM    the program's name, or the script's: train.py for python3 train.py\n"
        "DEVICE     the device's number in the process. Where processes number their devices\n"
        "           differently (CUDA_VISIBLE_DEVICES), the beginning of the device's UUID "
        "follows.\n"
        "USED       memory that the program has allocated and not yet freed\n"
        "HELD       memory that was taken from the driver for the program\n"
        "PEAK       the most memory that was used at one time\n"
        "LIMIT      the most that the process may hold (RMM_LIMIT)\n"
        "JOB LIMIT  the most that all processes of a job may hold together (RMM_LIMIT_JOB)\n"
        "REFUSED    out-of-memory errors that the program received\n"
        "SPILLED    memory in use that came from RMM_FALLBACK, because the device's memory or the\n"
        "           limit did not suffice\n\n"
        "--json    print a JSON array, an object for each line, with sizes in bytes;\n"
        "          `limit` is 0 where there is none\n\n"
        "Shows your own processes; root sees everyone's.",
};

/* ---- lines of top ---- */

/* Adds the titles, in reverse video up to the end of the line. */
static void put_top_titles(struct frame *frame, const struct view *view)
{
    put_row_cells(frame, view->widths, " ", NULL);
    if (view->chart)
        frame_put(frame, FRAME_TITLE, " %-*.*s", view->chart, view->chart, "HISTORY");
    while (frame->is_screen && frame_columns_left(frame) > 0)
        frame_put(frame, FRAME_TITLE, "%*s", frame_columns_left(frame), "");
    frame_end_line(frame);
}

/* Returns what the full height of the chart means: the limit, or all memory of the device (for
 * pinned memory, of the host), whichever is smaller; 0 if neither is known. */
static uint64_t whole_of_chart(const struct row *row)
{
    uint64_t limit = rs_usage_least_limit(&row->usage), all = row->device_bytes;

    if (row->kind == RS_KIND_PINNED)
        all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit && (all == 0 || limit < all) ? limit : all;
}

static void put_top_row(struct frame *frame, const struct view *view, const struct row *row)
{
    size_t count = rs_min(row->samples, ROW_SAMPLES);
    uint64_t values[ROW_SAMPLES];

    put_row_cells(frame, view->widths, " ", row);
    for (size_t i = 0; i < count; i++)
        values[i] = row->held[(row->samples - count + i) % ROW_SAMPLES];
    if (view->chart) {
        frame_put(frame, FRAME_PLAIN, " ");
        frame_put_chart(frame, values, count, whole_of_chart(row), view->chart, view->has_blocks);
    }
    frame_end_line(frame);
}

/* Adds the line above the table.  The order and the number of unreadable processes come before the
 * sums, since a narrow screen cuts off the end. */
static void put_summary(struct frame *frame, const struct view *view, const struct watch *watch)
{
    char clock[16] = "";
    struct rs_usage sum = {0};
    time_t now = time(NULL);
    struct tm local;

    for (size_t i = 0; i < watch->device_count; i++)
        rs_usage_add(&sum, &watch->devices[i].usage);
    if (localtime_r(&now, &local))
        (void)strftime(clock, sizeof(clock), "%H:%M:%S", &local);
    frame_put(frame, FRAME_PLAIN, "rmmshim top %s", clock);
    if (view->is_paused)
        frame_put(frame, FRAME_WARN, "  paused");
    frame_put(frame, FRAME_PLAIN, "  sorted by %s%s  %zu process%s", row_sort_names[view->sort],
              view->is_reversed ? ", reversed" : "", watch->with_rows,
              watch->with_rows == 1 ? "" : "es");
    if (watch->unreadable + watch->unexamined)
        frame_put(frame, FRAME_WARN, " + %zu unreadable", watch->unreadable + watch->unexamined);
    frame_put(frame, FRAME_PLAIN, "  used %s  held %s", tool_bytes(sum.used), tool_bytes(sum.held));
    frame_end_line(frame);
}

/* Adds a meter that shows how full a device is, by what processes hold through rmmshim. */
static void put_meter(struct frame *frame, const struct row *row)
{
    char numbers[2 * RS_SIZE_TEXT_BYTES];
    int width;

    snprintf(numbers, sizeof(numbers), "] %s of %s", tool_bytes(row->usage.held),
             tool_bytes(row->device_bytes));
    frame_put(frame, FRAME_PLAIN, "device %d %.8s [", row->device, row->uuid);
    width = frame_columns_left(frame) - (int)strlen(numbers);
    width = width < 0 ? 0 : width > METER_WIDTH ? METER_WIDTH : width;
    frame_put_bar(frame, row->usage.held, row->device_bytes, width);
    frame_put(frame, FRAME_PLAIN, "%s", numbers);
    frame_end_line(frame);
}

static void put_meters(struct frame *frame, const struct watch *watch)
{
    int count = 0;

    for (size_t i = 0; i < watch->device_count; i++) {
        const struct row *row = &watch->devices[i];
        if (row->kind == RS_KIND_DEVICE && row->device_bytes && count++ < METERS_MAX)
            put_meter(frame, row);
    }
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
        "h, ?         this help; any key closes this help",
        "",
        "USED     what the program has            HELD     taken from the driver for it",
        "PEAK     the most that was used          LIMIT    the most that may be held",
        "REFUSED  out-of-memory errors that       SPILLED  what did not fit into the",
        "         the program received                     device",
        "HISTORY  a chart of HELD over time; its top is the limit, or all memory if less",
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(lines) && frame_lines_left(frame) > 1; i++) {
        frame_put(frame, FRAME_PLAIN, "%s", lines[i]);
        frame_end_line(frame);
    }
}

/* ---- the whole ---- */

/* Adds the titles and as many rows as fit.  The chart is shown only on a screen, since elsewhere
 * there are hardly any samples. */
static void put_table(struct view *view, struct frame *frame, const struct row *const *rows,
                      size_t count, size_t room)
{
    view->visible = rs_min(count, room);
    view->first = rs_min(view->first, count - view->visible);
    rows += view->first;
    columns_begin(rows, view->visible, view->is_by_device);
    share_room(view, rows, view->visible, frame->columns, frame->is_screen);
    put_top_titles(frame, view);
    for (size_t i = 0; i < view->visible; i++)
        put_top_row(frame, view, rows[i]);
}

static const struct row **rows_of(const struct view *view, const struct watch *watch, size_t *count)
{
    return watch_rows(watch, view->is_by_device, view->sort, view->is_reversed, count);
}

static void draw_all(struct view *view, const struct watch *watch, struct frame *frame)
{
    size_t count, room;
    const struct row **rows = rows_of(view, watch, &count);
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
    if (has_keys) {
        frame_put(frame, FRAME_FAINT,
                  "q quit  p pause  s sort  r reverse  d devices, processes  h help  arrows "
                  "scroll");
        frame_end_line(frame);
    }
    free(rows);
}

enum { SAMPLE_SHARE = 20 }; /* reading pages takes at most 1/20 of the time */

/* ---- once ---- */

static int show_once(struct view *view, bool is_json, bool has_interval)
{
    struct watch watch = {.count = 0};
    struct frame frame = {.lines = 0};
    const struct row **rows = NULL;
    int lines, failed = 0;
    size_t count;

    watch_sample(&watch);
    if (has_interval || view->sort == ROW_BY_RATE) {
        usleep((useconds_t)(view->interval_ns / 1000));
        watch_sample(&watch);
    }
    terminal_size(&frame.columns, &lines);
    if (is_json) {
        rows = rows_of(view, &watch, &count);
        failed = !rows_print_json(rows, count);
        if (count == 0)
            rows_say_none();
    } else {
        draw_all(view, &watch, &frame);
        failed = frame_write(&frame);
        if (failed)
            tool_say("standard output: %s", strerror(-failed));
    }
    rows_say_unreadable(&watch);
    free(rows);
    watch_release(&watch);
    return failed ? TOOL_FINDING : TOOL_OK;
}

/* ---- live ---- */

/* Moves the first row that is shown; drawing keeps it within the table. */
static void scroll(struct view *view, int event)
{
    size_t page = rs_max(view->visible, 1), end = SIZE_MAX / 2;
    const struct {
        size_t up, down;
    } moves[] = {
        [TERMINAL_KEY_UP] = {1, 0},         [TERMINAL_KEY_DOWN] = {0, 1},
        [TERMINAL_KEY_PAGE_UP] = {page, 0}, [TERMINAL_KEY_PAGE_DOWN] = {0, page},
        [TERMINAL_KEY_HOME] = {end, 0},     [TERMINAL_KEY_END] = {0, end},
    };

    view->first -= rs_min(view->first, moves[event].up);
    view->first += moves[event].down;
}

/* Handles what terminal_wait returned.  Returns false when the command shall end. */
static bool take_event(struct view *view, int event)
{
    int key = event > TERMINAL_KEY ? event - TERMINAL_KEY : 0;

    if (event == TERMINAL_END || key == 'q' || key == 'Q')
        return false;
    if (view->shows_help && event >= TERMINAL_KEY_UP) {
        view->shows_help = false;
        return true;
    }
    view->is_paused ^= key == 'p' || key == ' ';
    view->is_reversed ^= key == 'r';
    view->is_by_device ^= key == 'd';
    view->shows_help |= key == 'h' || key == '?';
    if (key == 's')
        view->sort = (enum row_sort)((view->sort + 1) % ROW_SORTS);
    if (key == 'd')
        view->first = 0;
    if (event >= TERMINAL_KEY_UP && event <= TERMINAL_KEY_END)
        scroll(view, event);
    return true;
}

/* Draws the screen.  Returns false when the terminal is gone. */
static bool draw(struct view *view, const struct watch *watch, bool has_colors)
{
    struct frame frame = {.is_screen = true, .has_colors = has_colors};

    terminal_size(&frame.columns, &frame.lines);
    draw_all(view, watch, &frame);
    return frame_write(&frame) == 0;
}

/* Reads all pages.  Returns the time at which to read them again. */
static uint64_t sample(const struct view *view, struct watch *watch)
{
    uint64_t begin_ns = rs_clock_ns();

    watch_sample(watch);
    return rs_max(begin_ns + view->interval_ns, rs_clock_ns() + SAMPLE_SHARE * watch->reading_ns);
}

static int timeout_until(uint64_t time_ns)
{
    uint64_t now_ns = rs_clock_ns();

    return time_ns <= now_ns ? 0 : (int)((time_ns - now_ns) / 1000000 + 1);
}

static int show_live(struct view *view)
{
    struct watch watch = {.count = 0};
    bool has_colors = terminal_has_colors();
    uint64_t next_ns = 0;
    int event = TERMINAL_CHANGED;

    if (!terminal_begin())
        return TOOL_FINDING;
    do {
        bool is_due = !view->is_paused && rs_clock_ns() >= next_ns;
        if (is_due)
            next_ns = sample(view, &watch);
        if ((is_due || event != TERMINAL_TIMEOUT) && !draw(view, &watch, has_colors))
            break;
        event = terminal_wait(view->is_paused ? -1 : timeout_until(next_ns));
    } while (take_event(view, event));
    terminal_end();
    watch_release(&watch);
    return TOOL_OK;
}

/* ---- the command ---- */

static int top(char **arguments)
{
    static const char *const groups[] = {"process", "device", NULL};
    const char *by = NULL, *sort = NULL, *interval = NULL;
    bool is_once = false, is_json = false;
    const struct tool_option options[] = {
        {.name = "--once", .flag = &is_once},
        {.name = "--json", .flag = &is_json},
        {.name = "--by", .value = &by},
        {.name = "--sort", .value = &sort},
        {.name = "--interval", .value = &interval},
        {.name = NULL},
    };
    struct view view = {.interval_ns = 1000000000};
    int group, order;

    setlocale(LC_CTYPE, "");
    if (!tool_take_options(arguments, false, options) ||
        (interval && !tool_parse_seconds("--interval", interval, 0.1, &view.interval_ns)) ||
        (group = tool_find_word("--by", by, groups)) < 0 ||
        (order = tool_find_word("--sort", sort, row_sort_names)) < 0)
        return TOOL_USAGE;
    view.is_by_device = group == 1;
    view.sort = (enum row_sort)order;
    if (is_json && view.is_by_device) {
        tool_say("--by device cannot be used with --json, which lists processes, not devices");
        return TOOL_USAGE;
    }
    view.has_blocks = terminal_has_blocks();
    if (is_once || is_json || !terminal_is_usable())
        return show_once(&view, is_json, interval != NULL);
    return show_live(&view);
}

const struct tool_command tool_top = {
    .name = "top",
    .arguments = "[--once] [--json] [--by process|device] [--sort held|used|peak|rate|pid] "
                 "[--interval SECONDS]",
    .summary = "Shows the processes that have GPU memory served by rmmshim, as they change",
    .run = top,
    .help =
        "Runs in a terminal until q is pressed; elsewhere, as in a pipe, it prints once.\n\n"
        "--once              print once, without a terminal's control characters\n"
        "--json              print once as JSON, as `rmmshim ls --json` does, sorted by --sort\n"
        "--by WORD           process (default): a line for each device of each process; device: a\n"
        "                    line for each device\n"
        "--sort WORD         sort by held (default), used, peak, rate (ALLOC/S) or pid\n"
        "--interval SECONDS  seconds between updates, 0.1 to 3600 (default 1); with --once: how\n"
        "                    long it measures rates before it prints\n\n"
        "keys: q quit, p or space pause, s next column to sort by, r reverse, d devices or "
        "processes, h or ? help,\n"
        "arrows and page keys scroll\n\n"
        "The columns are those of `rmmshim ls`, as far as there is room, then rates, and\n"
        "HISTORY, a chart of HELD over time. Its full height is the smaller of the\n"
        "limit and all memory of the device.\n\n"
        "HELD is red from 90 % of the limit on, yellow from 75 %; NO_COLOR turns colours off.",
};
