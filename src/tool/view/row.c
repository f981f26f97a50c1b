/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/view/row.h"

#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_uuid(char text[ROW_UUID_BYTES], const unsigned char uuid[RS_PUBLISHED_UUID_BYTES])
{
    static const unsigned char none[RS_PUBLISHED_UUID_BYTES];
    char *to = text;

    *to = '\0';
    if (memcmp(uuid, none, sizeof(none)) == 0)
        return;
    for (size_t i = 0; i < RS_PUBLISHED_UUID_BYTES; i++)
        to += snprintf(to, 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

static void fill(struct row *row, const struct publication *page,
                 const struct rs_reported_stack *stack)
{
    const struct rs_published_stack *from = publication_stack(page, stack);

    row->device = stack->device;
    row->kind = stack->kind;
    row->device_bytes = from->device_total_bytes;
    row->usage = usage_of(&stack->report);
    put_uuid(row->uuid, from->device_uuid);
    memcpy(row->expression, from->expression, sizeof(row->expression));
}

enum row_answer row_each(const struct process *process,
                         void (*take)(void *data, const struct row *row), void *data)
{
    static struct publication page;
    static struct row row;
    bool is_read = publication_read(&page, process->file);
    enum row_answer answer = is_read                                    ? ROW_READ
                             : publication_has_directory(process->file) ? ROW_NONSENSE
                                                                        : ROW_NOTHING_YET;

    row.process = process->number;
    memcpy(row.program, page.program, sizeof(row.program));
    memcpy(row.rank, page.rank, sizeof(row.rank));
    for (size_t i = 0; is_read && i < page.count; i++) {
        fill(&row, &page, &page.stacks[i]);
        take(data, &row);
    }
    publication_release(&page);
    return answer;
}

void rows_add(struct rows *rows, const struct row *row)
{
    if (rows->count == rows->room) {
        rows->room = rows->room ? 2 * rows->room : 64;
        rows->rows = realloc(rows->rows, rows->room * sizeof(*row));
        if (!rows->rows) {
            tool_say("out of memory");
            exit(TOOL_FINDING);
        }
    }
    rows->rows[rows->count++] = *row;
}

void rows_release(struct rows *rows)
{
    free(rows->rows);
    *rows = (struct rows){.count = 0};
}

static void take_row(void *data, const struct row *row)
{
    rows_add(data, row);
}

static bool take_rows(void *data, const struct process *process)
{
    return row_each(process, take_row, data) != ROW_NONSENSE;
}

size_t rows_of_all(struct rows *rows)
{
    return process_each(take_rows, rows);
}

void rows_say_none(void)
{
    tool_say("no process of this user has memory through rmmshim");
}

void rows_say_unreadable(size_t count)
{
    if (count > 0)
        tool_say("%zu process%s served by another version of rmmshim, or with a page that makes no "
                 "sense: left out",
                 count, count > 1 ? "es" : "");
}

int row_compare(const struct row *one, const struct row *other)
{
    int difference = (one->process > other->process) - (one->process < other->process);

    if (!difference)
        difference = (one->device > other->device) - (one->device < other->device);
    return difference ? difference : (int)one->kind - (int)other->kind;
}

bool rows_need_uuids(const struct rows *rows)
{
    const char *uuids[RS_DEVICES_MAX] = {NULL};
    bool is_new;

    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->rows[i];
        is_new = !uuids[row->device];
        if (!is_new && strcmp(uuids[row->device], row->uuid) != 0)
            return true;
        for (int device = 0; is_new && device < RS_DEVICES_MAX; device++)
            if (uuids[device] && *row->uuid && strcmp(uuids[device], row->uuid) == 0)
                return true;
        uuids[row->device] = row->uuid;
    }
    return false;
}
