/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `ls` and `top`: one kind of memory of one device in one process each; the processes
 * whose pages are read for them, again and again in `top`, and the columns in which they are shown.
 */
#pragma once

#include "report/counters.h"
#include "report/document.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_UUID_BYTES = 40, ROW_SAMPLES = 128 };

/* A row of a device sums up those of all processes: `process` is their number, and what names one
 * of them is empty. */
struct row {
    int process;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    struct identity identity;
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: none */
    int device;                         /* as the process counts them */
    char uuid[ROW_UUID_BYTES];          /* of the device; empty: not known */
    uint64_t device_bytes;              /* that the device has in all; 0: not known */
    enum rs_kind kind;
    struct rs_usage usage;
    char expression[RS_EXPRESSION_TEXT_BYTES];

    bool has_rates; /* seen twice */
    double allocations_per_second, bytes_per_second;
    uint64_t held[ROW_SAMPLES]; /* what it was; the newest is that of `samples` - 1, modulo */
    size_t samples;
    uint64_t counted_at_ns;
};

/* Adds the row as an object to a list: as `ls --json` prints it, and with its metrics. */
struct rs_node *row_put(struct rs_node *list, const struct row *row);

/* Prints rows as a JSON array on stdout.  False, after a line, where that failed. */
bool rows_print_json(const struct row *const *rows, size_t count);

/* That no process has memory; and how many cannot be read, if there are any: a line each. */
void rows_say_none(void);
void rows_say_unreadable(size_t count);

/* ---- watched processes ---- */

/* A served process.  The page is as it was read last; its rows keep those that it once had. */
struct watched {
    struct process process;
    struct identity identity;
    struct publication page;
    struct row *rows;
    size_t count;
};

/* The served processes of this user, whose pages stay mapped.  All zero at first. */
struct watch {
    struct watched *processes;
    size_t count;
    struct row *devices;
    size_t device_count;
    size_t with_rows, unreadable; /* processes that have rows, or whose page cannot be read */
    size_t of_other_versions;
    uint64_t next_scan_ns;
    uint64_t reading_ns; /* that reading all pages took */
};

/* Looks for processes that have come or gone, where it is time for that, and reads all pages. */
void watch_sample(struct watch *watch);

/* Adds one process, where it is not there yet, and reads all pages.  Those of a watch that is read
 * once have a row for each of their stacks, in that order. */
enum process_answer watch_add(struct watch *watch, int number);
void watch_read(struct watch *watch);

enum row_sort { ROW_BY_HELD, ROW_BY_USED, ROW_BY_PEAK, ROW_BY_RATE, ROW_BY_PID, ROW_SORTS };

extern const char *const row_sort_names[ROW_SORTS + 1]; /* ended by NULL */

/* The rows of all processes, or of all devices, in order; free() is due.  Valid until the next
 * sample. */
const struct row **watch_rows(const struct watch *watch, bool is_by_device, enum row_sort sort,
                              bool is_reversed, size_t *count);

void watch_release(struct watch *watch);

/* ---- columns ---- */

enum { COLUMN_BYTES = RS_EXPRESSION_TEXT_BYTES };

/* In the order in which they are shown; `ls` has those before COLUMN_TOTAL, and the last one. */
enum column {
    COLUMN_PROCESS,
    COLUMN_USER,
    COLUMN_PROGRAM,
    COLUMN_RANK,
    COLUMN_DEVICE,
    COLUMN_USED,
    COLUMN_HELD,
    COLUMN_PEAK,
    COLUMN_LIMIT,
    COLUMN_JOB_LIMIT,
    COLUMN_REFUSED,
    COLUMN_SPILLED,
    COLUMN_TOTAL,
    COLUMN_PROCESSES,
    COLUMN_ALLOCATION_RATE,
    COLUMN_BYTE_RATE,
    COLUMN_EXPRESSION,
    COLUMNS,
};

extern const struct column_form {
    const char *title;
    bool is_left; /* aligned; numbers are aligned on the right */
    int least_width;
    size_t offset; /* in struct row: of a text, or of a number of bytes */
    bool is_bytes; /* then `of_zero` is shown for 0, if it is not NULL */
    const char *of_zero;
} column_forms[COLUMNS];

/* Before rows are shown: the device's column has the UUID, too, where that is asked for, or where
 * one device has several numbers, or one number means several devices: processes may see some
 * devices only, in their own order. */
void columns_begin(const struct row *const *rows, size_t count, bool needs_uuids);

/* Writes a cell's text. */
void column_put(enum column column, const struct row *row, char text[COLUMN_BYTES]);

/* Columns of a terminal that the widest cell takes, title included; 0 where all cells are empty. */
int column_width(enum column column, const struct row *const *rows, size_t count);
