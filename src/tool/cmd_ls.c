/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim ls: who holds memory through rmmshim. */
#include "tool/column.h"
#include "tool/plain.h"
#include "tool/tool.h"

#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROGRAM_WIDTH_MAX = 32 };

static int by_held(const void *one, const void *other)
{
    const struct row *a = one, *b = other;

    if (a->usage.held != b->usage.held)
        return a->usage.held < b->usage.held ? 1 : -1;
    return row_compare(a, b);
}

static void print_line(const struct column *const *columns, const int *widths, size_t count,
                       const struct row *row)
{
    char text[COLUMN_BYTES], aligned[2 * COLUMN_BYTES];
    const char *between = "";

    for (size_t i = 0; i < count; i++) {
        if (widths[i] == 0)
            continue;
        if (row)
            columns[i]->put(row, text);
        else
            snprintf(text, sizeof(text), "%s", columns[i]->title);
        if (i + 1 == count)
            plain_fit(aligned, sizeof(aligned), text, INT_MAX); /* nothing to align with */
        else
            column_align(aligned, sizeof(aligned), text, widths[i], columns[i]->is_left);
        printf("%s%s", between, aligned);
        between = "  ";
    }
    putchar('\n');
}

static void print_table(const struct rows *rows)
{
    enum { ALL = COLUMNS + 1 };
    const struct column *columns[ALL];
    int widths[ALL];

    memcpy(columns, column_order, sizeof(column_order));
    columns[COLUMNS] = &column_expression;
    for (size_t i = 0; i < ALL; i++) {
        if (columns[i] == &column_device && rows_need_uuids(rows))
            columns[i] = &column_device_uuid;
        widths[i] = column_width(columns[i], rows->rows, rows->count);
        if (columns[i] == &column_program && widths[i] > PROGRAM_WIDTH_MAX)
            widths[i] = PROGRAM_WIDTH_MAX;
    }
    print_line(columns, widths, ALL, NULL);
    for (size_t i = 0; i < rows->count; i++)
        print_line(columns, widths, ALL, &rows->rows[i]);
}

static int list(bool is_json)
{
    struct rows rows = {.count = 0};
    size_t unreadable = rows_of_all(&rows);
    bool is_printed = true;

    if (rows.count > 0)
        qsort(rows.rows, rows.count, sizeof(*rows.rows), by_held);
    if (is_json)
        is_printed = rows_print_json(&rows);
    else if (rows.count > 0)
        print_table(&rows);
    if (rows.count == 0)
        rows_say_none();
    rows_say_unreadable(unreadable);
    rows_release(&rows);
    return is_printed ? TOOL_OK : TOOL_FINDING;
}

static int ls(char **arguments)
{
    bool is_json = false;

    setlocale(LC_CTYPE, "");
    for (; *arguments; arguments++) {
        if (strcmp(*arguments, "--json") != 0) {
            tool_say_unknown("option", *arguments, (const char *const[]){"--json", NULL});
            return TOOL_USAGE;
        }
        is_json = true;
    }
    return list(is_json);
}

static void help(void)
{
    puts("A line for each process and device, and for each kind of memory but the device's own; "
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
         "Shows your own processes; root sees everyone's.");
}

const struct tool_command tool_ls = {
    .name = "ls",
    .arguments = "[--json]",
    .summary = "Lists the processes that have GPU memory served by rmmshim",
    .run = ls,
    .help = help,
};
