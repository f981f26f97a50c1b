/* SPDX-License-Identifier: Apache-2.0 */
/* The page of a process that lies.  The input changes a sound page: where (1 byte), the place (2),
 * the number of bytes (1) and the bytes, and so on.  Then all that reads pages reads it. */
#include "around_run.h"
#include "base/check.h"
#include "context/block_counts.h"
#include "fuzzer.h"
#include "report/publish.h"
#include "shared/published.h"

#include <sys/mman.h>
#include <unistd.h>

enum { GUARD_BYTES = 1 << 20, DEVICES = 3, BLOCK_BYTES = 1000, STACKS = DEVICES * RS_KINDS };

/* A private copy of the page, with nothing that may be read on both sides. */
static char *copy;

static void publish_counter(struct rs_published_counter *to, uint32_t stack,
                            const struct rs_counter *counter)
{
    to->stack = stack;
    to->kind = counter->kind;
    to->unit = counter->unit;
    to->term_count = counter->term_count;
    snprintf(to->resource, sizeof(to->resource), "%s", counter->resource);
    snprintf(to->name, sizeof(to->name), "%s", counter->name);
    for (unsigned i = 0; i < counter->term_count; i++)
        to->terms[i] = (struct rs_published_term){
            rs_published_offset(counter->terms[i].first), counter->terms[i].count,
            counter->terms[i].stride_bytes, counter->terms[i].scale};
}

/* As rs_publish_stacks does where there are contexts with stacks. */
static void publish(void)
{
    enum { COUNTERS_MAX = STACKS * 8 };
    struct rs_published_directory *made =
        rs_published_allocate(sizeof(*made) + STACKS * sizeof(struct rs_published_stack) +
                                  COUNTERS_MAX * sizeof(struct rs_published_counter),
                              _Alignof(max_align_t));
    struct rs_published_stack *stack = (void *)(made + 1);
    struct rs_published_counter *to = (void *)(stack + STACKS);

    for (; made->stack_count < STACKS; made->stack_count++, stack++) {
        struct rs_report report = {.count = 0};
        stack->device = (int32_t)(made->stack_count / RS_KINDS);
        stack->kind = (int32_t)(made->stack_count % RS_KINDS);
        rs_block_counts_report((enum rs_kind)stack->kind, stack->device, &report);
        for (size_t i = 0; i < report.count; i++)
            publish_counter(&to[made->counter_count++], made->stack_count, &report.counters[i]);
        rs_report_release(&report);
    }
    atomic_store(&((struct rs_publication *)rs_published_head())->directory,
                 rs_published_offset(made));
}

static void begin(void)
{
    char *room = mmap(NULL, RS_PUBLISHED_BYTES + 2 * GUARD_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    must(room != MAP_FAILED, "no memory");
    rs_publish_begin();
    must(rs_published_head(), "no page");
    rs_block_counts_begin();
    for (int device = 0; device < DEVICES; device++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            rs_block_count_entered(rs_block_counter((enum rs_kind)kind, device), BLOCK_BYTES);
    publish();
    copy = room + GUARD_BYTES;
}

/* Places in the page from which `at` is counted. */
static size_t base_of(unsigned where)
{
    const struct rs_publication *head = rs_published_head();
    size_t directory = atomic_load(&head->directory);
    size_t stacks = directory + sizeof(struct rs_published_directory);
    size_t counters = stacks + STACKS * sizeof(struct rs_published_stack);

    switch (where % 6) {
    case 0:
        return 0;
    case 1:
        return offsetof(struct rs_publication, program);
    case 2:
        return offsetof(struct rs_publication, refusal);
    case 3:
        return directory;
    case 4:
        return stacks + where / 6 % STACKS * sizeof(struct rs_published_stack);
    default:
        return counters + where / 6 * sizeof(struct rs_published_counter);
    }
}

static void change(struct input *input)
{
    size_t at = base_of((unsigned)next_number(input, 1)) + next_number(input, 2);
    size_t bytes = next_number(input, 1) % 32, some = rs_min(bytes, input->left);

    if (some > 0 && at + some <= RS_PUBLISHED_BYTES)
        memcpy(copy + at, input->at, some);
    input->at += some;
    input->left -= some;
}

/* The number of letters of all texts. */
static size_t read_page(void)
{
    static struct publication page;
    size_t letters = 0;

    (void)publication_has_directory(copy);
    if (publication_read(&page, copy)) {
        must(page.count <= RS_PUBLISHED_STACKS_MAX, "too many stacks");
        letters += strlen(page.program) + strlen(page.rank);
        for (size_t i = 0; i < page.count; i++) {
            const struct rs_report *report = &page.stacks[i].report;
            letters += strlen(publication_stack(&page, &page.stacks[i])->expression);
            for (size_t j = 0; j < report->count; j++)
                letters += strlen(report->counters[j].resource) + strlen(report->counters[j].name);
        }
    }
    publication_release(&page);
    return letters;
}

/* As `run` does when the process has ended; the page's report would be written where it says. */
static void sum_up(void)
{
    struct rs_publication *head = (void *)copy;
    struct summary_process known = {.number = getpid(), .has_ended = true};
    struct summary summary = {.count = 0};

    atomic_fetch_and(&head->has_report, ~(uint32_t)RS_PUBLISHED_STATISTICS);
    summary_add(&summary, &known, false, copy);
    must(summary.count == 1 || summary.is_short, "a process is missing");
    for (size_t i = 0; i < summary.count; i++) {
        const struct summary_process *one = &summary.processes[i];
        must(strlen(one->program) < sizeof(one->program), "a program without an end");
        must(!one->refusal || strlen(one->refusal) <= RS_PUBLISHED_REFUSAL_BYTES, "endless text");
    }
    summary_clear(&summary);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};

    if (!copy)
        begin();
    must(mmap(copy, RS_PUBLISHED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
              rs_published_file()->fd, 0) == copy,
         "no mapping");
    while (input.left > 0)
        change(&input);
    if (!rs_published_check_layout((const void *)copy))
        return 0;
    (void)read_page();
    sum_up();
    return 0;
}
