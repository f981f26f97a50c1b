/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim ls: who holds memory through rmmshim. */
#include "base/check.h"
#include "tool/row.h"
#include "tool/screen.h"
#include "tool/tool.h"

#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROGRAM_WIDTH_MAX = 32 };

/* One row, or without one the titles. */
static void print_line(const int widths[COLUMNS], const struct row *row)
{
    char text[COLUMN_BYTES], aligned[2 * COLUMN_BYTES];
    const char *between = "";

    for (enum column i = 0; i < COLUMNS; i++) {
        if (widths[i] == 0)
            continue;
        if (row)
            column_put(i, row, text);
        else
            snprintf(text, sizeof(text), "%s", column_forms[i].title);
        if (i == COLUMN_EXPRESSION)
            screen_fit(aligned, sizeof(aligned), text, INT_MAX); /* nothing to align with */
        else
            screen_align(aligned, sizeof(aligned), text, widths[i], column_forms[i].is_left);
        printf("%s%s", between, aligned);
        between = "  ";
    }
    putchar('\n');
}

static void print_table(const struct row *const *rows, size_t count)
{
    int widths[COLUMNS] = {0};

    columns_begin(rows, count, false);
    for (enum column i = 0; i < COLUMNS; i++)
        if (i < COLUMN_TOTAL || i == COLUMN_EXPRESSION)
            widths[i] = column_width(i, rows, count);
    widths[COLUMN_PROGRAM] = rs_min(widths[COLUMN_PROGRAM], PROGRAM_WIDTH_MAX);
    print_line(widths, NULL);
    for (size_t i = 0; i < count; i++)
        print_line(widths, rows[i]);
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
        print_table(rows, count);
    if (count == 0)
        rows_say_none();
    rows_say_unreadable(watch.unreadable);
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
        "A line for each process and device, and for each kind of memory but the device's own; "
        "most\n"
        "held bytes first.\n\n"
        "PROGRAM    the script where the program is an interpreter: python3 train.py is train.py\n"
        "DEVICE     the process's own number of the device, and the beginning of its UUID where\n"
        "           the number alone is ambiguous\n"
        "USED       what the program has\n"
        "HELD       what was taken from the driver for it\n"
        "PEAK       the most that was used\n"
        "LIMIT      of the process; JOB LIMIT: of all processes of its job together\n"
        "REFUSED    out-of-memory errors that the program received\n"
        "SPILLED    what did not fit into the device\n\n"
        "--json    an array of objects, bytes as integers, `limit` 0 where there is none\n\n"
        "Shows your own processes; root sees everyone's.",
};
