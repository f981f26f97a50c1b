/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/column.h"

#include "base/check.h"
#include "base/size.h"
#include "tool/plain.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- cells ---- */

static void put_bytes(char text[COLUMN_BYTES], uint64_t bytes)
{
    char size[RS_SIZE_TEXT_BYTES];

    snprintf(text, COLUMN_BYTES, "%s", rs_size_format_short(bytes, size));
}

static void put_count(char text[COLUMN_BYTES], uint64_t count)
{
    snprintf(text, COLUMN_BYTES, "%llu", (unsigned long long)count);
}

static void put_process(const struct row *row, char text[COLUMN_BYTES])
{
    snprintf(text, COLUMN_BYTES, "%d", row->process);
}

static void put_user(const struct row *row, char text[COLUMN_BYTES])
{
    snprintf(text, COLUMN_BYTES, "%s", row->identity.user);
}

/* The script, where the program is an interpreter. */
static void put_program(const struct row *row, char text[COLUMN_BYTES])
{
    snprintf(text, COLUMN_BYTES, "%s", *row->identity.script ? row->identity.script : row->program);
}

static void put_device(const struct row *row, char text[COLUMN_BYTES])
{
    bool is_named = row->kind != RS_KIND_DEVICE;

    snprintf(text, COLUMN_BYTES, "%d%s%s", row->device, is_named ? " " : "",
             is_named ? rs_kind_names[row->kind] : "");
}

static void put_device_uuid(const struct row *row, char text[COLUMN_BYTES])
{
    put_device(row, text);
    snprintf(text + strlen(text), COLUMN_BYTES - strlen(text), " %.8s", row->uuid);
}

#define PUT_BYTES(field)                                                                           \
    static void put_##field(const struct row *row, char text[COLUMN_BYTES])                        \
    {                                                                                              \
        put_bytes(text, row->usage.field);                                                         \
    }
PUT_BYTES(used)
PUT_BYTES(held)
PUT_BYTES(used_peak)
#undef PUT_BYTES

static void put_limit(const struct row *row, char text[COLUMN_BYTES])
{
    if (row->usage.limit)
        put_bytes(text, row->usage.limit);
    else
        snprintf(text, COLUMN_BYTES, "-");
}

/* Empty where there is none, so that a column without any is left out. */
static void put_job_limit(const struct row *row, char text[COLUMN_BYTES])
{
    *text = '\0';
    if (row->usage.job_limit)
        put_bytes(text, row->usage.job_limit);
}

static void put_spilled(const struct row *row, char text[COLUMN_BYTES])
{
    *text = '\0';
    if (row->usage.spilled)
        put_bytes(text, row->usage.spilled);
}

static void put_refused(const struct row *row, char text[COLUMN_BYTES])
{
    put_count(text, row->usage.refused);
}

static void put_device_bytes(const struct row *row, char text[COLUMN_BYTES])
{
    if (row->device_bytes)
        put_bytes(text, row->device_bytes);
    else
        snprintf(text, COLUMN_BYTES, "-");
}

static void put_rank(const struct row *row, char text[COLUMN_BYTES])
{
    snprintf(text, COLUMN_BYTES, "%s", row->rank);
}

static void put_allocation_rate(const struct row *row, char text[COLUMN_BYTES])
{
    if (row->has_rates && row->allocations_per_second > 0 && row->allocations_per_second < 9.95)
        snprintf(text, COLUMN_BYTES, "%.1f", row->allocations_per_second);
    else if (row->has_rates)
        snprintf(text, COLUMN_BYTES, "%.0f", row->allocations_per_second);
    else
        snprintf(text, COLUMN_BYTES, "-");
}

/* A process that lies may have counted more in a moment than the number holds. */
static uint64_t whole_number(double number)
{
    return number < (double)INT64_MAX ? (uint64_t)number : UINT64_MAX;
}

static void put_byte_rate(const struct row *row, char text[COLUMN_BYTES])
{
    if (row->has_rates)
        put_bytes(text, whole_number(row->bytes_per_second));
    else
        snprintf(text, COLUMN_BYTES, "-");
}

static void put_expression(const struct row *row, char text[COLUMN_BYTES])
{
    memcpy(text, row->expression, COLUMN_BYTES);
}

const struct column column_process = {"PID", false, put_process};
const struct column column_user = {"USER", true, put_user};
const struct column column_program = {"PROGRAM", true, put_program};
const struct column column_rank = {"RANK", false, put_rank};
const struct column column_device = {"DEVICE", true, put_device};
const struct column column_device_uuid = {"DEVICE", true, put_device_uuid};
const struct column column_used = {"USED", false, put_used};
const struct column column_held = {"HELD", false, put_held};
const struct column column_peak = {"PEAK", false, put_used_peak};
const struct column column_limit = {"LIMIT", false, put_limit};
const struct column column_job_limit = {"JOB LIMIT", false, put_job_limit};
const struct column column_refused = {"REFUSED", false, put_refused};
const struct column column_spilled = {"SPILLED", false, put_spilled};
const struct column column_process_count = {"PROCESSES", false, put_process};
const struct column column_device_bytes = {"TOTAL", false, put_device_bytes};
const struct column column_allocation_rate = {"ALLOC/S", false, put_allocation_rate};
const struct column column_byte_rate = {"BYTES/S", false, put_byte_rate};
const struct column column_expression = {"EXPRESSION", true, put_expression};

const struct column *const column_order[COLUMNS] = {
    &column_process, &column_user,      &column_program, &column_rank,
    &column_device,  &column_used,      &column_held,    &column_peak,
    &column_limit,   &column_job_limit, &column_refused, &column_spilled,
};

/* ---- columns ---- */

int column_cell_width(const struct column *column, const struct row *row)
{
    char text[COLUMN_BYTES], fitted[COLUMN_BYTES];

    column->put(row, text);
    return plain_fit(fitted, sizeof(fitted), text, INT_MAX);
}

int column_width(const struct column *column, const struct row *rows, size_t count)
{
    size_t width = 0;

    for (size_t i = 0; i < count; i++)
        width = rs_max(width, (size_t)column_cell_width(column, &rows[i]));
    return width ? (int)rs_max(width, strlen(column->title)) : 0;
}

char *column_align(char *to, size_t room, const char *text, int width, bool is_left)
{
    char fitted[COLUMN_BYTES];
    int used = plain_fit(fitted, rs_min(sizeof(fitted), room), text, width);
    int blanks = width - used;
    int put =
        snprintf(to, room, "%*s%s%*s", is_left ? 0 : blanks, "", fitted, is_left ? blanks : 0, "");

    return to + rs_min((size_t)(put < 0 ? 0 : put), room - 1);
}
