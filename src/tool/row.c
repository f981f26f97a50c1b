/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/row.h"

#include "base/check.h"
#include "base/lock.h"
#include "tool/screen.h"
#include "tool/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- one row ---- */

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

/* Rounds a rate.  It is bounded, since a faulty process may report any counts. */
static uint64_t whole_number(double number)
{
    return number < (double)INT64_MAX ? (uint64_t)(number + 0.5) : UINT64_MAX;
}

/* Fills in the fields that a page gives; rates and samples stay as they are. */
static void row_fill(struct row *row, const struct watched *of,
                     const struct rs_reported_stack *stack)
{
    const struct rs_published_stack *from = publication_stack(&of->page, stack);

    row->process = of->process.number;
    row->identity = of->identity;
    memcpy(row->program, of->page.program, sizeof(row->program));
    memcpy(row->rank, of->page.rank, sizeof(row->rank));
    row->device = stack->device;
    row->kind = stack->kind;
    row->device_bytes = from->device_total_bytes;
    row->usage = rs_usage_of(&stack->report);
    put_uuid(row->uuid, from->device_uuid);
    memcpy(row->expression, from->expression, sizeof(row->expression));
}

/* Adds a text, which is also a label of the row's metrics unless it is empty. */
static void put_label(struct rs_node *object, const char *name, const char *text)
{
    rs_node_text(object, name, text)->is_label = *text != '\0';
}

struct rs_node *row_put(struct rs_node *list, const struct row *row)
{
    static const struct rs_metric device_memory = {"rmmshim_device_memory_bytes",
                                                   "Size of the device's memory, in bytes.", false};
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

bool rows_print_json(const struct row *const *rows, size_t count)
{
    static struct rs_document document;
    struct rs_node *list;
    bool is_printed;

    rs_document_begin(&document);
    list = rs_node_list(&document.root, "rows");
    for (size_t i = 0; i < count; i++)
        row_put(list, rows[i]);
    is_printed = tool_show(list, true);
    rs_document_release(&document);
    return is_printed;
}

void rows_say_none(void)
{
    tool_say("no process of this user has GPU memory served by rmmshim");
}

void rows_say_unreadable(const struct watch *watch)
{
    if (watch->unreadable > 0)
        tool_say("left out: %zu process%s served by another version of rmmshim, or with damaged "
                 "counters",
                 watch->unreadable, watch->unreadable > 1 ? "es" : "");
    if (watch->unexamined > 0)
        tool_say("left out: %zu process%s, as this command lacks host memory or file descriptors",
                 watch->unexamined, watch->unexamined > 1 ? "es" : "");
}

/* ---- devices ---- */

static bool is_device_of(const struct row *device, const struct row *row)
{
    bool is_same = *row->uuid || *device->uuid ? strcmp(device->uuid, row->uuid) == 0
                                               : device->device == row->device;

    return is_same && device->kind == row->kind;
}

static void clear_device(struct row *row)
{
    row->process = 0;
    row->program[0] = row->rank[0] = row->identity.script[0] = row->identity.user[0] = '\0';
    row->has_rates = false;
    row->allocations_per_second = row->bytes_per_second = 0;
}

static struct row *device_row_of(struct watch *watch, const struct row *row)
{
    struct row *device;

    for (size_t i = 0; i < watch->device_count; i++)
        if (is_device_of(&watch->devices[i], row))
            return &watch->devices[i];
    watch->devices = tool_grow(watch->devices, (watch->device_count + 1) * sizeof(*device));
    device = &watch->devices[watch->device_count++];
    *device = *row;
    device->samples = 0;
    clear_device(device);
    return device;
}

static void add_to_device(struct row *sum, const struct row *row)
{
    bool is_first = sum->process == 0;

    sum->process++;
    sum->has_rates = (is_first || sum->has_rates) && row->has_rates;
    sum->allocations_per_second += row->allocations_per_second;
    sum->bytes_per_second += row->bytes_per_second;
    if (is_first)
        sum->usage = row->usage;
    else
        rs_usage_add(&sum->usage, &row->usage);
}

static void add_sample(struct row *row)
{
    row->held[row->samples++ % ROW_SAMPLES] = row->usage.held;
}

/* ---- watched processes ---- */

enum {
    SCAN_NS = 1000 * 1000 * 1000, /* /proc is searched at most once in this time, ... */
    SCAN_SHARE = 20,              /* ... and searching takes at most 1/20 of the time */
};

/* Sums the rows of processes for each device.  A device that no process uses any more is dropped.
 */
static void sum_devices(struct watch *watch)
{
    size_t kept = 0;

    for (size_t i = 0; i < watch->device_count; i++)
        clear_device(&watch->devices[i]);
    for (size_t i = 0; i < watch->count; i++)
        for (size_t j = 0; j < watch->processes[i].count; j++)
            add_to_device(device_row_of(watch, &watch->processes[i].rows[j]),
                          &watch->processes[i].rows[j]);
    for (size_t i = 0; i < watch->device_count; i++)
        if (watch->devices[i].process > 0) {
            add_sample(&watch->devices[i]);
            watch->devices[kept++] = watch->devices[i];
        }
    watch->device_count = kept;
}

static struct row *row_of(struct watched *of, const struct rs_reported_stack *stack)
{
    for (size_t i = 0; i < of->count; i++)
        if (of->rows[i].device == stack->device && of->rows[i].kind == stack->kind)
            return &of->rows[i];
    of->rows = tool_grow(of->rows, (of->count + 1) * sizeof(*of->rows));
    memset(&of->rows[of->count], 0, sizeof(*of->rows));
    return &of->rows[of->count++];
}

static void update(struct row *row, const struct watched *of, const struct rs_reported_stack *stack)
{
    uint64_t now_ns = rs_clock_ns();
    double seconds = (double)(now_ns - row->counted_at_ns) / 1e9;
    struct rs_usage before = row->usage, *usage = &row->usage;

    row_fill(row, of, stack);
    row->has_rates = row->samples > 0 && seconds > 0;
    if (row->has_rates) {
        row->allocations_per_second =
            (double)(usage->allocations - rs_min(usage->allocations, before.allocations)) / seconds;
        row->bytes_per_second =
            (double)(usage->allocated - rs_min(usage->allocated, before.allocated)) / seconds;
    }
    row->counted_at_ns = now_ns;
    add_sample(row);
}

static void read_page(struct watch *watch, struct watched *of)
{
    publication_release(&of->page);
    if (!publication_read_all(&of->page, of->process.file))
        watch->unreadable += publication_has_directory(of->process.file);
    for (size_t i = 0; i < of->page.count; i++)
        update(row_of(of, &of->page.stacks[i]), of, &of->page.stacks[i]);
    watch->with_rows += of->count > 0;
}

static void forget_watched(struct watched *watched)
{
    process_close(&watched->process);
    publication_release(&watched->page);
    free(watched->rows);
}

static void drop_ended(struct watch *watch)
{
    size_t kept = 0;

    for (size_t i = 0; i < watch->count; i++)
        if (!process_has_ended(&watch->processes[i].process) &&
            process_has_its_page(&watch->processes[i].process))
            watch->processes[kept++] = watch->processes[i];
        else
            forget_watched(&watch->processes[i]);
    watch->count = kept;
}

enum process_answer watch_add(struct watch *watch, int number)
{
    struct watched *watched;
    struct process process;
    enum process_answer answer;

    for (size_t i = 0; i < watch->count; i++)
        if (watch->processes[i].process.number == number)
            return PROCESS_SERVED;
    answer = process_open(number, &process);
    watch->of_other_versions += answer == PROCESS_UNREADABLE;
    watch->unexamined += answer == PROCESS_LACKING;
    if (answer != PROCESS_SERVED) {
        process_close(&process);
        return answer;
    }
    watch->processes = tool_grow(watch->processes, (watch->count + 1) * sizeof(*watched));
    watched = &watch->processes[watch->count++];
    memset(watched, 0, sizeof(*watched));
    watched->process = process;
    identity_read(&process, &watched->identity);
    return answer;
}

/* Raises the limit on open files, since the directory of each process stays open. */
static void allow_many_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void scan(struct watch *watch)
{
    uint64_t begin_ns = rs_clock_ns(), end_ns;
    size_t count;
    int *numbers = process_list(&count);

    if (!numbers)
        tool_say("/proc: %s", strerror(errno));
    allow_many_files();
    drop_ended(watch);
    watch->of_other_versions = watch->unexamined = 0;
    for (size_t i = 0; numbers && i < count; i++)
        (void)watch_add(watch, numbers[i]);
    free(numbers);
    end_ns = rs_clock_ns();
    watch->next_scan_ns = end_ns + rs_max(SCAN_NS, SCAN_SHARE * (end_ns - begin_ns));
}

void watch_read(struct watch *watch)
{
    uint64_t begin_ns = rs_clock_ns();

    watch->unreadable = watch->of_other_versions;
    watch->with_rows = 0;
    for (size_t i = 0; i < watch->count; i++)
        read_page(watch, &watch->processes[i]);
    sum_devices(watch);
    watch->reading_ns = rs_clock_ns() - begin_ns;
}

void watch_sample(struct watch *watch)
{
    if (rs_clock_ns() >= watch->next_scan_ns)
        scan(watch);
    watch_read(watch);
}

void watch_release(struct watch *watch)
{
    for (size_t i = 0; i < watch->count; i++)
        forget_watched(&watch->processes[i]);
    free(watch->processes);
    free(watch->devices);
    *watch = (struct watch){.count = 0};
}

/* ---- their order ---- */

const char *const row_sort_names[ROW_SORTS + 1] = {"held", "used", "peak", "rate", "pid", NULL};

static enum row_sort sorted_by;
static bool sorts_reversed;

static double weight(const struct row *row)
{
    const double weights[ROW_SORTS] = {
        [ROW_BY_HELD] = (double)row->usage.held,
        [ROW_BY_USED] = (double)row->usage.used,
        [ROW_BY_PEAK] = (double)row->usage.used_peak,
        [ROW_BY_RATE] = row->allocations_per_second,
    };

    return weights[sorted_by];
}

static int by_choice(const void *one, const void *other)
{
    const struct row *a = *(const struct row *const *)one, *b = *(const struct row *const *)other;
    int order = (weight(a) < weight(b)) - (weight(a) > weight(b));

    order = order ? order : (a->process > b->process) - (a->process < b->process);
    order = order ? order : (a->device > b->device) - (a->device < b->device);
    order = order ? order : (int)a->kind - (int)b->kind;
    return sorts_reversed ? -order : order;
}

const struct row **watch_rows(const struct watch *watch, bool is_by_device, enum row_sort sort,
                              bool is_reversed, size_t *count)
{
    size_t most = watch->device_count;
    const struct row **rows;

    for (size_t i = 0; i < watch->count; i++)
        most += watch->processes[i].count;
    rows = tool_grow(NULL, most * sizeof(struct row *));
    *count = 0;
    for (size_t i = 0; is_by_device && i < watch->device_count; i++)
        rows[(*count)++] = &watch->devices[i];
    for (size_t i = 0; !is_by_device && i < watch->count; i++)
        for (size_t j = 0; j < watch->processes[i].count; j++)
            rows[(*count)++] = &watch->processes[i].rows[j];
    sorted_by = sort;
    sorts_reversed = is_reversed;
    qsort(rows, *count, sizeof(struct row *), by_choice);
    return rows;
}

/* ---- columns ---- */

enum { BYTES_WIDTH = 8 }; /* "1023 MiB": columns of bytes do not change their width */

#define TEXT(field)           offsetof(struct row, field), false, NULL
#define BYTES(field, of_zero) BYTES_WIDTH, offsetof(struct row, field), true, of_zero

/* For columns whose offset is 0, column_put makes the text from other fields. */
const struct column_form column_forms[COLUMNS] = {
    [COLUMN_PROCESS] = {"PID", false, 3, 0, false, NULL},
    [COLUMN_USER] = {"USER", true, 0, TEXT(identity.user)},
    [COLUMN_PROGRAM] = {"PROGRAM", true, 4, TEXT(program)},
    [COLUMN_RANK] = {"RANK", false, 0, TEXT(rank)},
    [COLUMN_DEVICE] = {"DEVICE", true, 0, 0, false, NULL},
    [COLUMN_USED] = {"USED", false, BYTES(usage.used, NULL)},
    [COLUMN_HELD] = {"HELD", false, BYTES(usage.held, NULL)},
    [COLUMN_PEAK] = {"PEAK", false, BYTES(usage.used_peak, NULL)},
    [COLUMN_LIMIT] = {"LIMIT", false, BYTES(usage.limit, "-")},
    [COLUMN_JOB_LIMIT] = {"JOB LIMIT", false, BYTES(usage.job_limit, "")},
    [COLUMN_REFUSED] = {"REFUSED", false, 0, 0, false, NULL},
    [COLUMN_SPILLED] = {"SPILLED", false, BYTES(usage.spilled, "")},
    [COLUMN_TOTAL] = {"TOTAL", false, BYTES(device_bytes, "-")},
    [COLUMN_PROCESSES] = {"PROCESSES", false, 0, 0, false, NULL},
    [COLUMN_ALLOCATION_RATE] = {"ALLOC/S", false, 7, 0, false, NULL},
    [COLUMN_BYTE_RATE] = {"BYTES/S", false, BYTES_WIDTH, 0, false, NULL},
    [COLUMN_EXPRESSION] = {"EXPRESSION", true, 0, TEXT(expression)},
};

static bool shows_uuids;

void columns_begin(const struct row *const *rows, size_t count, bool needs_uuids)
{
    const char *uuids[RS_DEVICES_MAX] = {NULL};

    shows_uuids = needs_uuids;
    for (size_t i = 0; i < count; i++) {
        const struct row *row = rows[i];
        bool is_new;
        RS_ASSERT(row->device >= 0 && row->device < RS_DEVICES_MAX);
        is_new = !uuids[row->device];
        shows_uuids |= !is_new && strcmp(uuids[row->device], row->uuid) != 0;
        for (int device = 0; is_new && device < RS_DEVICES_MAX; device++)
            shows_uuids |= uuids[device] && *row->uuid && strcmp(uuids[device], row->uuid) == 0;
        uuids[row->device] = row->uuid;
    }
}

static void put_device_cell(const struct row *row, char text[COLUMN_BYTES])
{
    bool is_named = row->kind != RS_KIND_DEVICE;

    snprintf(text, COLUMN_BYTES, "%d%s%s%s%.8s", row->device, is_named ? " " : "",
             is_named ? rs_kind_names[row->kind] : "", shows_uuids ? " " : "",
             shows_uuids ? row->uuid : "");
}

static void put_rate(enum column column, const struct row *row, char text[COLUMN_BYTES])
{
    double rate = row->allocations_per_second;

    if (!row->has_rates)
        snprintf(text, COLUMN_BYTES, "-");
    else if (column == COLUMN_BYTE_RATE)
        snprintf(text, COLUMN_BYTES, "%s", tool_bytes(whole_number(row->bytes_per_second)));
    else
        snprintf(text, COLUMN_BYTES, rate > 0 && rate < 9.95 ? "%.1f" : "%.0f", rate);
}

void column_put(enum column column, const struct row *row, char text[COLUMN_BYTES])
{
    const struct column_form *form = &column_forms[column];
    const char *field = (const char *)row + form->offset;
    uint64_t bytes = 0;

    if (form->is_bytes)
        memcpy(&bytes, field, sizeof(bytes));
    if (column == COLUMN_PROCESS || column == COLUMN_PROCESSES)
        snprintf(text, COLUMN_BYTES, "%d", row->process);
    else if (column == COLUMN_REFUSED)
        snprintf(text, COLUMN_BYTES, "%llu", (unsigned long long)row->usage.refused);
    else if (column == COLUMN_DEVICE)
        put_device_cell(row, text);
    else if (column == COLUMN_ALLOCATION_RATE || column == COLUMN_BYTE_RATE)
        put_rate(column, row, text);
    else if (form->is_bytes && (bytes > 0 || !form->of_zero))
        snprintf(text, COLUMN_BYTES, "%s", tool_bytes(bytes));
    else if (column == COLUMN_PROGRAM && *row->identity.script)
        snprintf(text, COLUMN_BYTES, "%s", row->identity.script);
    else
        snprintf(text, COLUMN_BYTES, "%s", form->is_bytes ? form->of_zero : field);
}

int column_width(enum column column, const struct row *const *rows, size_t count)
{
    char text[COLUMN_BYTES], fitted[COLUMN_BYTES];
    size_t width = 0;

    for (size_t i = 0; i < count; i++) {
        column_put(column, rows[i], text);
        width = rs_max(width, (size_t)screen_fit(fitted, sizeof(fitted), text, INT_MAX));
    }
    return width ? (int)rs_max(width, strlen(column_forms[column].title)) : 0;
}
