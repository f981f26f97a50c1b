/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/screen/watch.h"

#include "base/check.h"
#include "base/lock.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum {
    SCAN_NS = 1000 * 1000 * 1000, /* /proc is looked through no more often than this, */
    SCAN_SHARE = 20,              /* and for no more than 1/20 of the time */
};

struct watched_process {
    struct process process;
    struct identity identity;
    struct watched *rows; /* it keeps those that it once had */
    size_t count;
};

static void *grown(void *memory, size_t count, size_t bytes)
{
    void *more = realloc(memory, (count ? count : 1) * bytes);

    if (!more) {
        tool_say("out of memory");
        exit(TOOL_FINDING);
    }
    return more;
}

/* ---- rows ---- */

static void set_rates(struct watched *watched, const struct rs_usage *before, uint64_t now_ns)
{
    double seconds = (double)(now_ns - watched->counted_at_ns) / 1e9;
    const struct rs_usage *usage = &watched->row.usage;

    watched->row.has_rates = watched->samples > 0 && seconds > 0;
    if (!watched->row.has_rates)
        return;
    watched->row.allocations_per_second =
        (double)(usage->allocations - rs_min(usage->allocations, before->allocations)) / seconds;
    watched->row.bytes_per_second =
        (double)(usage->allocated - rs_min(usage->allocated, before->allocated)) / seconds;
}

static void add_sample(struct watched *watched)
{
    watched->held[watched->samples++ % WATCH_SAMPLES] = watched->row.usage.held;
}

static struct watched *row_like(struct watched_process *of, const struct row *row)
{
    for (size_t i = 0; i < of->count; i++)
        if (of->rows[i].row.device == row->device && of->rows[i].row.kind == row->kind)
            return &of->rows[i];
    of->rows = grown(of->rows, of->count + 1, sizeof(*of->rows));
    memset(&of->rows[of->count], 0, sizeof(*of->rows));
    return &of->rows[of->count++];
}

static void take_row(void *data, const struct row *row)
{
    struct watched *watched = row_like(data, row);
    struct rs_usage before = watched->row.usage;
    uint64_t now_ns = rs_clock_ns();

    watched->row = *row;
    set_rates(watched, &before, now_ns);
    watched->counted_at_ns = now_ns;
    add_sample(watched);
}

/* ---- devices ---- */

static bool is_device_of(const struct row *device, const struct row *row)
{
    bool is_same = *row->uuid || *device->uuid ? strcmp(device->uuid, row->uuid) == 0
                                               : device->device == row->device;

    return is_same && device->kind == row->kind;
}

static struct watched *device_of(struct watch *watch, const struct row *row)
{
    struct watched *device;

    for (size_t i = 0; i < watch->device_count; i++)
        if (is_device_of(&watch->devices[i].row, row))
            return &watch->devices[i];
    if (watch->device_count == watch->device_room) {
        watch->device_room = 2 * watch->device_room + 8;
        watch->devices = grown(watch->devices, watch->device_room, sizeof(*watch->devices));
    }
    device = &watch->devices[watch->device_count++];
    *device = (struct watched){.row = *row};
    device->row.process = 0;
    return device;
}

static void add_to_device(struct watched *device, const struct row *row)
{
    struct row *sum = &device->row;
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

/* A device that nobody uses any more is forgotten. */
static void drop_unused_devices(struct watch *watch)
{
    size_t kept = 0;

    for (size_t i = 0; i < watch->device_count; i++)
        if (watch->devices[i].row.process > 0)
            watch->devices[kept++] = watch->devices[i];
    watch->device_count = kept;
}

static void clear_device(struct row *row)
{
    row->process = 0;
    row->program[0] = row->rank[0] = row->identity.script[0] = row->identity.user[0] = '\0';
    row->has_rates = false;
    row->allocations_per_second = row->bytes_per_second = 0;
}

static void sum_devices(struct watch *watch)
{
    for (size_t i = 0; i < watch->device_count; i++)
        clear_device(&watch->devices[i].row);
    for (size_t i = 0; i < watch->count; i++)
        for (size_t j = 0; j < watch->processes[i].count; j++) {
            const struct row *row = &watch->processes[i].rows[j].row;
            size_t before = watch->device_count;
            struct watched *device = device_of(watch, row);
            if (watch->device_count > before)
                clear_device(&device->row);
            add_to_device(device, row);
        }
    drop_unused_devices(watch);
    for (size_t i = 0; i < watch->device_count; i++)
        add_sample(&watch->devices[i]);
}

/* ---- processes ---- */

static void forget(struct watched_process *process)
{
    process_close(&process->process);
    free(process->rows);
}

static bool is_there(const struct watched_process *process)
{
    return !process_has_ended(&process->process) && process_has_its_page(&process->process);
}

static void drop_gone(struct watch *watch)
{
    size_t kept = 0;

    for (size_t i = 0; i < watch->count; i++)
        if (is_there(&watch->processes[i]))
            watch->processes[kept++] = watch->processes[i];
        else
            forget(&watch->processes[i]);
    watch->count = kept;
}

/* `known` is where in the processes of before the number may be: both ascend. */
static void look_at(struct watch *watch, int number, size_t before, size_t *known)
{
    struct process process;
    enum process_answer answer;

    while (*known < before && watch->processes[*known].process.number < number)
        ++*known;
    if (*known < before && watch->processes[*known].process.number == number)
        return;
    answer = process_open(number, &process);
    watch->of_other_versions += answer == PROCESS_UNREADABLE;
    if (answer != PROCESS_SERVED) {
        process_close(&process);
        return;
    }
    watch->processes = grown(watch->processes, watch->count + 1, sizeof(*watch->processes));
    watch->processes[watch->count] = (struct watched_process){.process = process};
    identity_read(&process, &watch->processes[watch->count++].identity);
}

static int by_number(const void *one, const void *other)
{
    int a = ((const struct watched_process *)one)->process.number;
    int b = ((const struct watched_process *)other)->process.number;

    return (a > b) - (a < b);
}

static void scan(struct watch *watch)
{
    uint64_t begin_ns = rs_clock_ns(), end_ns;
    size_t count, before, known = 0;
    int *numbers = process_list(&count);

    drop_gone(watch);
    watch->of_other_versions = 0;
    before = watch->count;
    for (size_t i = 0; numbers && i < count; i++)
        look_at(watch, numbers[i], before, &known);
    free(numbers);
    if (watch->count > before)
        qsort(watch->processes, watch->count, sizeof(*watch->processes), by_number);
    end_ns = rs_clock_ns();
    watch->next_scan_ns = end_ns + rs_max(SCAN_NS, SCAN_SHARE * (end_ns - begin_ns));
}

void watch_sample(struct watch *watch)
{
    uint64_t begin_ns;

    if (rs_clock_ns() >= watch->next_scan_ns)
        scan(watch);
    begin_ns = rs_clock_ns();
    watch->nonsense = 0;
    for (size_t i = 0; i < watch->count; i++)
        watch->nonsense += row_each(&watch->processes[i].process, &watch->processes[i].identity,
                                    take_row, &watch->processes[i]) == ROW_NONSENSE;
    sum_devices(watch);
    watch->reading_ns = rs_clock_ns() - begin_ns;
}

size_t watch_process_count(const struct watch *watch)
{
    size_t count = 0;

    for (size_t i = 0; i < watch->count; i++)
        count += watch->processes[i].count > 0;
    return count;
}

size_t watch_unreadable(const struct watch *watch)
{
    return watch->of_other_versions + watch->nonsense;
}

static size_t row_count(const struct watch *watch)
{
    size_t count = 0;

    for (size_t i = 0; i < watch->count; i++)
        count += watch->processes[i].count;
    return count;
}

const struct watched **watch_rows(const struct watch *watch, bool is_by_device, size_t *count)
{
    const struct watched **rows;
    size_t at = 0;

    *count = is_by_device ? watch->device_count : row_count(watch);
    rows = grown(NULL, *count, sizeof(struct watched *));
    for (size_t i = 0; is_by_device && i < *count; i++)
        rows[at++] = &watch->devices[i];
    for (size_t i = 0; !is_by_device && i < watch->count; i++)
        for (size_t j = 0; j < watch->processes[i].count; j++)
            rows[at++] = &watch->processes[i].rows[j];
    return rows;
}

void watch_release(struct watch *watch)
{
    for (size_t i = 0; i < watch->count; i++)
        forget(&watch->processes[i]);
    free(watch->processes);
    free(watch->devices);
    *watch = (struct watch){.count = 0};
}
