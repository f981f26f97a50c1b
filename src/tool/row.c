/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/row.h"

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

/* Rounds; a process that lies may have counted more in a moment than the number holds. */
static uint64_t whole_number(double number)
{
    return number < (double)INT64_MAX ? (uint64_t)(number + 0.5) : UINT64_MAX;
}

void row_fill(struct row *row, int process, const struct identity *identity,
              const struct publication *page, const struct rs_reported_stack *stack)
{
    const struct rs_published_stack *from = publication_stack(page, stack);

    *row = (struct row){.process = process, .identity = *identity};
    memcpy(row->program, page->program, sizeof(row->program));
    memcpy(row->rank, page->rank, sizeof(row->rank));
    row->device = stack->device;
    row->kind = stack->kind;
    row->device_bytes = from->device_total_bytes;
    row->usage = rs_usage_of(&stack->report, &stack->report);
    put_uuid(row->uuid, from->device_uuid);
    memcpy(row->expression, from->expression, sizeof(row->expression));
}

/* Empty texts are no labels. */
static void put_label(struct rs_node *object, const char *name, const char *text)
{
    rs_node_text(object, name, text)->is_label = *text != '\0';
}

struct rs_node *row_put(struct rs_node *list, const struct row *row)
{
    static const struct rs_metric device_memory = {"rmmshim_device_memory_bytes",
                                                   "All memory of the device, in bytes.", false};
    struct rs_node *object = rs_node_object(list, NULL), *total;

    rs_node_count(object, "pid", (uint64_t)row->process)->is_label = true;
    put_label(object, "user", row->identity.user);
    put_label(object, "program", row->program);
    put_label(object, "script", row->identity.script);
    put_label(object, "rank", row->rank);
    rs_node_count(object, "device", (uint64_t)row->device)->is_label = true;
    put_label(object, "uuid", row->uuid);
    put_label(object, "kind", rs_kind_names[row->kind]);
    total = rs_node_bytes(object, "device_memory", row->device_bytes);
    total->metric = row->device_bytes ? &device_memory : NULL;
    rs_usage_put(object, &row->usage);
    if (row->has_rates) {
        rs_node_count(object, "allocations_per_second", whole_number(row->allocations_per_second));
        rs_node_bytes(object, "bytes_per_second", whole_number(row->bytes_per_second));
    }
    rs_node_text(object, "expression", row->expression);
    return object;
}

enum row_answer row_each(const struct process *process, const struct identity *identity,
                         void (*take)(void *data, const struct row *row), void *data)
{
    static struct publication page;
    static struct row row;
    bool is_read = publication_read(&page, process->file);
    enum row_answer answer = is_read                                    ? ROW_READ
                             : publication_has_directory(process->file) ? ROW_NONSENSE
                                                                        : ROW_NOTHING_YET;

    for (size_t i = 0; is_read && i < page.count; i++) {
        row_fill(&row, process->number, identity, &page, &page.stacks[i]);
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
    struct identity identity;

    identity_read(process, &identity);
    return row_each(process, &identity, take_row, data) != ROW_NONSENSE;
}

size_t rows_of_all(struct rows *rows)
{
    return process_each(take_rows, rows);
}

bool rows_print_json(const struct rows *rows)
{
    static struct rs_document document;
    struct rs_node *list;
    bool is_printed;

    rs_document_begin(&document);
    list = rs_node_list(&document.root, "rows");
    for (size_t i = 0; i < rows->count; i++)
        row_put(list, &rows->rows[i]);
    is_printed = tool_show(list, true);
    rs_document_release(&document);
    return is_printed;
}

void rows_say_none(void)
{
    tool_say("no process of this user has GPU memory served by rmmshim");
}

void rows_say_unreadable(size_t count)
{
    if (count > 0)
        tool_say("%zu process%s served by another version of rmmshim, or with damaged counters: "
                 "left out",
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
