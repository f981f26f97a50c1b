/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the published page: its head, the directory of counters, and the steps of the report at
 * exit. Also checks the pages of other processes. */
#include "report/publish.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/process.h"
#include "driver/driver.h"
#include "report/counters.h"
#include "shared/job.h"
#include "shared/memory_file.h"
#include "shared/published.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_held; /* `rmmshim run` holds the page */

static struct rs_publication *publication(void)
{
    return rs_published_head();
}

void rs_publish_begin(void)
{
    struct rs_publication *head;

    if (rs_published_begin(sizeof(*head)) != 0) {
        (void)rs_run_ask(RS_JOB_HOLD_PAGE, 0, -1, NULL);
        return; /* without memory files the process is served, but not published */
    }
    head = publication();
    head->process = (int32_t)getpid();
    snprintf(head->program, sizeof(head->program), "%s", program_invocation_short_name);
    snprintf(head->rank, sizeof(head->rank), "%s", rs_process_rank());
    snprintf(head->layout, sizeof(head->layout), "%s", RS_PUBLICATION_LAYOUT);
    is_held = rs_run_ask(RS_JOB_HOLD_PAGE, 0, rs_published_file()->fd, NULL) == 0;
}

/* ---- the directory ---- */

/* True when another process can read the counter's fields from the file. */
static bool is_published(const struct rs_counter *counter)
{
    if (counter->is_computed)
        return false;
    for (unsigned i = 0; i < counter->term_count; i++)
        if (!rs_published_offset(counter->terms[i].first))
            return false;
    return true;
}

static void put_counter(struct rs_published_counter *to, uint32_t stack,
                        const struct rs_counter *counter)
{
    *to = (struct rs_published_counter){.stack = stack,
                                        .kind = counter->kind,
                                        .unit = counter->unit,
                                        .term_count = counter->term_count,
                                        .past = counter->past};
    snprintf(to->resource, sizeof(to->resource), "%s", counter->resource);
    snprintf(to->name, sizeof(to->name), "%s", counter->name);
    for (unsigned i = 0; i < counter->term_count; i++) {
        const struct rs_term *term = &counter->terms[i];
        to->terms[i] = (struct rs_published_term){rs_published_offset(term->first), term->count,
                                                  term->stride_bytes, term->scale};
    }
}

static uint32_t put_counters(struct rs_published_counter *to, uint32_t stack,
                             const struct rs_report *report)
{
    uint32_t count = 0;

    for (size_t i = 0; i < report->count; i++)
        if (is_published(&report->counters[i]))
            put_counter(&to[count++], stack, &report->counters[i]);
    return count;
}

/* Identifies the device for other processes by its UUID, since its number is valid in this process
 * only (CUDA_VISIBLE_DEVICES). */
static void put_published_device(struct rs_published_stack *stack)
{
    size_t total_bytes = 0;
    CUuuid uuid;

    if (rs_driver.cuDeviceTotalMem_v2 &&
        rs_driver.cuDeviceTotalMem_v2(&total_bytes, stack->device) == CUDA_SUCCESS)
        stack->device_total_bytes = total_bytes;
    if (rs_driver.cuDeviceGetUuid_v2 &&
        rs_driver.cuDeviceGetUuid_v2(&uuid, stack->device) == CUDA_SUCCESS)
        memcpy(stack->device_uuid, uuid.bytes, sizeof(stack->device_uuid));
}

static size_t directory_bytes(const struct rs_gathered *gathered)
{
    size_t bytes =
        sizeof(struct rs_published_directory) + gathered->count * sizeof(struct rs_published_stack);

    for (size_t i = 0; i < gathered->count; i++)
        bytes += gathered->stacks[i].report.count * sizeof(struct rs_published_counter);
    return bytes;
}

static void fill_directory(struct rs_published_directory *directory,
                           const struct rs_gathered *gathered)
{
    struct rs_published_stack *stacks = (void *)(directory + 1);
    struct rs_published_counter *counters = (void *)(stacks + gathered->count);

    directory->stack_count = (uint32_t)gathered->count;
    for (uint32_t i = 0; i < directory->stack_count; i++) {
        const struct rs_reported_stack *stack = &gathered->stacks[i];
        stacks[i].device = stack->device;
        stacks[i].kind = (int32_t)stack->kind;
        put_published_device(&stacks[i]);
        (void)rs_gathered_expression(stack, stacks[i].expression);
        directory->counter_count +=
            put_counters(counters + directory->counter_count, i, &stack->report);
    }
}

/* Replaces the directory.  The old one stays until the next replacement, since another process may
 * be reading it. */
static void replace(struct rs_published_directory *directory)
{
    static struct rs_published_directory *current, *before;

    rs_published_free(before);
    before = current;
    current = directory;
    atomic_store(&publication()->directory, rs_published_offset(directory));
}

/* With up to 16 stacks each change writes a new directory. With more stacks, more than 1/8 of them
 * must have changed; before this rule, making 600 contexts took twice as long. */
enum { EACH_CHANGE = 16, CHANGED_DIVISOR = 8 };

/* Counts a change of the stacks, and returns true when a new directory must be written. The caller
 * holds the lock. */
static bool is_due(const struct rs_gathered *before)
{
    static size_t changes;

    if (++changes <= before->made_stacks / CHANGED_DIVISOR && before->made_stacks > EACH_CHANGE)
        return false;
    changes = 0;
    return true;
}

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_REPORT); /* held while a directory is made */
RS_RESET_IN_CHILD(report_publish, lock);

void rs_publish_stacks(void)
{
    static struct rs_gathered gathered; /* protected by the lock */
    struct rs_published_directory *directory;

    if (!publication())
        return;
    RS_MUTEX_GUARD(&lock);
    if (!is_due(&gathered))
        return;
    rs_gather(&gathered, true);
    directory = rs_published_allocate(directory_bytes(&gathered), _Alignof(max_align_t));
    if (rs_published_offset(directory)) {
        fill_directory(directory, &gathered);
        replace(directory);
    } else {
        rs_published_free(directory); /* the file is full */
    }
}

/* ---- the report ---- */

void rs_publish_report_file(enum rs_statistics_format format, const struct rs_output *output)
{
    struct rs_publication *head = publication();
    struct stat status;

    if (!head)
        return;
    head->format = (int32_t)format;
    snprintf(head->path, sizeof(head->path), "%s", output ? output->path : "");
    if (output && fstat(output->file.fd, &status) == 0) {
        head->file_device = status.st_dev;
        head->file_inode = status.st_ino;
        head->changed = status.st_mtim;
    }
    atomic_fetch_or(&head->has_report, RS_PUBLISHED_STATISTICS);
}

void rs_publish_leak_report(void)
{
    if (publication())
        atomic_fetch_or(&publication()->has_report, RS_PUBLISHED_LEAKS);
}

/* Counts an allocation that the driver serves, and whether it could have reused a freed block.
 * Sizes are not compared, so the number does not tell how many allocations a pool would have
 * served. */
void rs_publish_forwarded(enum rs_kind kind)
{
    struct rs_publication *head = publication();
    _Atomic uint64_t *freed;
    uint64_t left;

    if (!head)
        return;
    freed = &head->forwarded[kind == RS_KIND_PINNED ? kind : RS_KIND_DEVICE].freed;
    left = atomic_load_explicit(freed, memory_order_relaxed);
    atomic_fetch_add_explicit(&head->forwarded[kind].allocations, 1, memory_order_relaxed);
    while (left > 0 && !atomic_compare_exchange_weak_explicit(
                           freed, &left, left - 1, memory_order_relaxed, memory_order_relaxed))
        continue;
    if (left > 0)
        atomic_fetch_add_explicit(&head->forwarded[kind].repeated, 1, memory_order_relaxed);
}

void rs_publish_forwarded_free(enum rs_kind kind)
{
    struct rs_publication *head = publication();

    if (head)
        atomic_fetch_add_explicit(&head->forwarded[kind].freed, 1, memory_order_relaxed);
}

void rs_publish_report_step(enum rs_report_step step)
{
    if (publication())
        atomic_store(&publication()->report, (uint32_t)step);
}

/* ---- what was refused ---- */

bool rs_publish_is_held(void)
{
    return is_held && publication();
}

void rs_publish_refusal(const char *text)
{
    struct rs_published_refusal *refusal = &publication()->refusal;
    uint32_t sequence;

    RS_ASSERT(publication()); /* only a process with a page keeps the text */
    sequence = atomic_load_explicit(&refusal->sequence, memory_order_relaxed);
    /* The number may be odd although no text is being written: before Linux 5.1 any program of the
     * user can write to the page. */
    sequence -= sequence % 2;
    atomic_store_explicit(&refusal->sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    snprintf(refusal->text, sizeof(refusal->text), "%s", text);
    atomic_store_explicit(&refusal->sequence, sequence + 2, memory_order_release);
}

/* ---- checks of another process's page ---- */

bool rs_published_check_file(int fd)
{
    struct stat status;

    return fstat(fd, &status) == 0 && status.st_size == RS_PUBLISHED_BYTES &&
           rs_file_cannot_shrink(fd);
}

/* True when the file is the page of the process whose directory in /proc is `process`. A forked
 * child also has its parent's page open, and `run` has those of all its processes, so the number in
 * the page is compared. If the process's own number is not known, any page is accepted. */
static bool is_page_of(int fd, const void *process)
{
    int own = rs_process_own_number(process);
    int32_t number;

    return rs_published_check_file(fd) &&
           rs_file_read(fd, &number, sizeof(number), offsetof(struct rs_publication, process)) ==
               (ssize_t)sizeof(number) &&
           (!own || number == own);
}

int rs_published_find(const char *process, int first, uint64_t deadline_ns)
{
    return rs_memory_file_find(&(struct rs_memory_file_search){
        .process = process,
        .name = RS_PUBLISHED_NAME,
        .first = first,
        .deadline_ns = deadline_ns,
        .accepts = is_page_of,
        .data = process,
    });
}

bool rs_published_check_layout(const struct rs_publication *head)
{
    return strncmp(head->layout, RS_PUBLICATION_LAYOUT, sizeof(head->layout)) == 0;
}

static bool lies_inside(uint64_t offset, uint64_t bytes)
{
    return offset < RS_PUBLISHED_BYTES && bytes <= RS_PUBLISHED_BYTES - offset;
}

bool rs_published_check_place(uint64_t at)
{
    return at != 0 && at % _Alignof(max_align_t) == 0 &&
           lies_inside(at, sizeof(struct rs_published_directory));
}

uint64_t rs_published_check_directory(uint64_t at, const struct rs_published_directory *directory)
{
    uint64_t bytes = sizeof(*directory) +
                     directory->stack_count * (uint64_t)sizeof(struct rs_published_stack) +
                     directory->counter_count * (uint64_t)sizeof(struct rs_published_counter);

    return directory->stack_count <= RS_PUBLISHED_STACKS_MAX && lies_inside(at, bytes) ? bytes : 0;
}

bool rs_published_check_stack(const struct rs_published_stack *stack)
{
    return stack->device >= 0 && stack->device < RS_DEVICES_MAX && stack->kind >= 0 &&
           stack->kind < RS_KINDS;
}

static bool is_sound(const struct rs_published_term *term)
{
    uint64_t span = term->count ? (uint64_t)(term->count - 1) * term->stride_bytes + 8 : 8;

    return term->offset % 8 == 0 && term->stride_bytes % 8 == 0 &&
           lies_inside(term->offset, span) && term->offset != 0;
}

bool rs_published_check_counter(const struct rs_published_counter *counter)
{
    bool is_good = memchr(counter->resource, '\0', sizeof(counter->resource)) &&
                   memchr(counter->name, '\0', sizeof(counter->name)) &&
                   rs_counter_is_known(counter->resource, counter->name) &&
                   counter->kind <= RS_COUNTER_LARGEST && counter->unit <= RS_UNIT_NANOSECONDS &&
                   counter->term_count <= RS_TERMS_MAX;

    for (uint32_t i = 0; is_good && i < counter->term_count; i++)
        is_good = is_sound(&counter->terms[i]);
    return is_good;
}
