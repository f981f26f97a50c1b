/* SPDX-License-Identifier: Apache-2.0 */
/* A row of `ls` and `top`: one kind of memory of one device in one process. */
#pragma once

#include "report/document.h"
#include "report/usage.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_UUID_BYTES = 40 };

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
};

/* The page of the process as it is now. */
enum row_answer { ROW_READ, ROW_NOTHING_YET, ROW_NONSENSE };

/* Calls `take` for each row of the process. */
enum row_answer row_each(const struct process *process, const struct identity *identity,
                         void (*take)(void *data, const struct row *row), void *data);

/* Fills the row by what a page says of one of its stacks. */
void row_fill(struct row *row, int process, const struct identity *identity,
              const struct publication *page, const struct rs_reported_stack *stack);

/* Adds the row as an object to a list: as `ls --json` prints it, and with its metrics. */
struct rs_node *row_put(struct rs_node *list, const struct row *row);

/* Rows of a machine in one array. */
struct rows {
    struct row *rows;
    size_t count, room;
};

/* Adds a copy; ends the command when there is no memory. */
void rows_add(struct rows *rows, const struct row *row);
void rows_release(struct rows *rows);

/* Adds the rows of all processes of this user.  The number of processes whose pages cannot be
 * read. */
size_t rows_of_all(struct rows *rows);

/* Prints the rows as a JSON array on stdout.  False, after a line, where that failed. */
bool rows_print_json(const struct rows *rows);

/* That no process has memory; and how many cannot be read, if there are any: a line each. */
void rows_say_none(void);
void rows_say_unreadable(size_t count);

/* For sorting: which of two comes first where nothing else decides. */
int row_compare(const struct row *one, const struct row *other);

/* True when one device has several numbers, or one number means several devices: processes may see
 * some devices only, in their own order. */
bool rows_need_uuids(const struct rows *rows);
