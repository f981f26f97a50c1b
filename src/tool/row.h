/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `ls` and `top`: each is one kind of memory on one device in one process.  Also the
 * processes whose pages are read to make the rows (in `top` again and again), and the columns in
 * which rows are shown. */
#pragma once

#include "report/counters.h"
#include "report/document.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_UUID_BYTES = 40, ROW_SAMPLES = 128 };

/* One row.  A row for a device is the sum over all processes that use the device: `process` is then
 * the number of these processes, and the fields that identify one process are empty. */
struct row {
    int process;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    struct identity identity;
    char rank[RS_PUBLISHED_RANK_BYTES]; /* the process's rank; empty: none */
    int device;                         /* the device's number in the process */
    char uuid[ROW_UUID_BYTES];          /* the device's UUID; empty: not known */
    uint64_t device_bytes;              /* the device's total memory; 0: not known */
    enum rs_kind kind;
    struct rs_usage usage;
    char expression[RS_EXPRESSION_TEXT_BYTES];

    bool has_rates; /* the row was read at least twice */
    double allocations_per_second, bytes_per_second;
    uint64_t held[ROW_SAMPLES]; /* a ring of samples of usage.held; the newest is at index
                                   (samples - 1) % ROW_SAMPLES */
    size_t samples;
    uint64_t counted_at_ns;
};

/* Adds the row as an object to a list, with the members of `ls --json` and with metrics. */
struct rs_node *row_put(struct rs_node *list, const struct row *row);

/* Prints rows as a JSON array on stdout.  Returns false after saying why it failed. */
bool rows_print_json(const struct row *const *rows, size_t count);

struct watch;

/* rows_say_none prints that no process has memory; rows_say_unreadable prints how many processes
 * cannot be read, and how many cannot be examined, if there are any. */
void rows_say_none(void);
void rows_say_unreadable(const struct watch *watch);

/* ---- watched processes ---- */

/* A served process, with its page as it was last read.  A row stays for as long as the process is
 * watched, even after its stack is gone. */
struct watched {
    struct process process;
    struct identity identity;
    struct publication page;
    struct row *rows;
    size_t count;
};

/* The served processes whose pages this user may read (root: those of all users).  The pages stay
 * mapped.  All zero at first. */
struct watch {
    struct watched *processes;
    size_t count;
    struct row *devices;
    size_t device_count;
    size_t with_rows, unreadable; /* the numbers of processes that have rows, and of those whose
                                     page cannot be read */
    size_t of_other_versions;     /* those among `unreadable` that another version serves */
    size_t unexamined;            /* PROCESS_LACKING was the answer */
    uint64_t next_scan_ns;
    uint64_t reading_ns; /* how long reading all pages took */
};

/* Reads all pages.  Now and then it also looks for new processes and for processes that have ended.
 */
void watch_sample(struct watch *watch);

/* watch_add adds a process, unless it is there already; it returns PROCESS_SERVED, or why the
 * process cannot be added. watch_read reads all pages.  In a watch that is read only once, a
 * process has a row for each of its stacks, in their order. */
enum process_answer watch_add(struct watch *watch, int number);
void watch_read(struct watch *watch);

enum row_sort { ROW_BY_HELD, ROW_BY_USED, ROW_BY_PEAK, ROW_BY_RATE, ROW_BY_PID, ROW_SORTS };

extern const char *const row_sort_names[ROW_SORTS + 1]; /* ended by NULL */

/* Returns the rows of all processes, or of all devices, sorted.  The caller frees the array; the
 * rows are valid until the next sample. */
const struct row **watch_rows(const struct watch *watch, bool is_by_device, enum row_sort sort,
                              bool is_reversed, size_t *count);

void watch_release(struct watch *watch);

/* ---- columns ---- */

enum { COLUMN_BYTES = RS_EXPRESSION_TEXT_BYTES };

/* The columns in the order in which they are shown.  `ls` shows those before COLUMN_TOTAL, and the
 * last one. */
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
    bool is_left; /* the cells are aligned on the left; numbers are aligned on the right */
    int least_width;
    size_t offset; /* the offset in struct row of a text, or of a number of bytes */
    bool is_bytes; /* the field is a number of bytes; for 0 `of_zero` is shown, if it is not NULL */
    const char *of_zero;
} column_forms[COLUMNS];

/* Decides, before rows are shown, whether the device's column also has the beginning of the UUID:
 * if needs_uuids is true, or if numbers are ambiguous, since processes may see only some devices,
 * in their own order. */
void columns_begin(const struct row *const *rows, size_t count, bool needs_uuids);

/* Writes a cell's text. */
void column_put(enum column column, const struct row *row, char text[COLUMN_BYTES]);

/* Returns the columns of a terminal that the widest cell needs, title included; 0 if all cells are
 * empty. */
int column_width(enum column column, const struct row *const *rows, size_t count);
