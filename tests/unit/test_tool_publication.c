/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the page of a process that lies. */
#include "unit.h"

#include "base/check.h"
#include "context/block_counts.h"
#include "report/publish.h"
#include "shared/published.h"
#include "tool/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { GUARD_BYTES = 1 << 20, ROUNDS = 5000, DEVICES = 3, BLOCK_BYTES = 1000 };

/* A private copy of the page, with nothing that may be read on both sides. */
static char *copy;

static void take_copy(void)
{
    char *at = mmap(copy, RS_PUBLISHED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                    rs_published_file()->fd, 0);

    assert_ptr_equal(at, copy);
}

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
    enum { STACKS = DEVICES * RS_KINDS, COUNTERS_MAX = STACKS * 8 };
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

static int begin(void **state)
{
    char *room = mmap(NULL, RS_PUBLISHED_BYTES + 2 * GUARD_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    copy = room + GUARD_BYTES;
    rs_publish_begin();
    rs_block_counts_begin();
    for (int device = 0; device < DEVICES; device++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            for (int i = 0; i <= device; i++)
                rs_block_count_entered(rs_block_counter((enum rs_kind)kind, device), BLOCK_BYTES);
    publish();
    return room == MAP_FAILED || !rs_published_head() ? -1 : 0;
}

GROUP_FIXTURE(begin, NULL);

static struct rs_publication *head(void)
{
    return (void *)copy;
}

static struct rs_published_directory *directory(void)
{
    return (void *)(copy + atomic_load(&head()->directory));
}

static struct rs_published_stack *stacks(void)
{
    return (void *)(directory() + 1);
}

static struct rs_published_counter *counters(void)
{
    return (void *)(stacks() + directory()->stack_count);
}

/* Reads, and looks at all that the page says.  The number of counters. */
static size_t look(void)
{
    static struct publication page;
    size_t count = 0, letters = 0;

    if (rs_published_check_layout(head()) && publication_read(&page, copy)) {
        letters += strlen(page.program) + strlen(page.rank);
        for (size_t i = 0; i < page.count; i++) {
            const struct rs_report *report = &page.stacks[i].report;
            size_t length = strlen(publication_stack(&page, &page.stacks[i])->expression);
            assert_true(length < RS_EXPRESSION_TEXT_BYTES);
            letters += length;
            for (size_t j = 0; j < report->count; j++)
                letters += strlen(report->counters[j].resource) + strlen(report->counters[j].name);
            count += report->count;
        }
        assert_true(letters > 0);
        publication_release(&page);
    } else if (rs_published_check_layout(head())) {
        publication_release(&page);
    }
    return count;
}

TEST(a_sound_page)
{
    struct publication page;

    take_copy();
    assert_true(rs_published_check_layout(head()));
    assert_true(publication_read(&page, copy));
    assert_int_equal(page.process, getpid());
    assert_int_equal(page.count, DEVICES * RS_KINDS);
    for (size_t i = 0; i < page.count; i++)
        assert_int_equal(rs_report_value(&page.stacks[i].report, RS_PROGRAM, "live", 0),
                         (size_t)(page.stacks[i].device + 1) * BLOCK_BYTES);
    publication_release(&page);
}

/* The command must have descriptors to look at another process: without them the process is there.
 */
TEST(a_process_for_which_descriptors_are_lacking_is_not_gone)
{
    struct process process, again;
    struct rlimit before, few;

    assert_int_equal(process_open(getpid(), &process), PROCESS_SERVED);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (few = before, few.rlim_cur = 0; few.rlim_cur < 1024; few.rlim_cur++) {
        enum process_answer answer;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        assert_false(process_has_ended(&process));
        assert_true(process_has_its_page(&process));
        answer = process_open(getpid(), &again);
        process_close(&again);
        if (answer == PROCESS_SERVED)
            break;
        assert_int_equal(answer, PROCESS_LACKING);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_in_range(few.rlim_cur, 1, 1023);
    process_close(&process);
}

TEST(another_version)
{
    take_copy();
    head()->layout[strlen(head()->layout) - 1]++;
    assert_false(rs_published_check_layout(head()));
}

/* Among them those that are just outside. */
TEST(a_directory_that_is_elsewhere)
{
    static const uint64_t places[] = {
        0,
        8,
        RS_PUBLISHED_BYTES - 16,
        RS_PUBLISHED_BYTES,
        RS_PUBLISHED_BYTES + 16,
        1ull << 32,
        1ull << 47,
        UINT64_MAX - 15,
        UINT64_MAX,
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(places); i++) {
        take_copy();
        atomic_store(&head()->directory, places[i]);
        assert_int_equal(look(), 0);
    }
}

TEST(more_stacks_and_counters_than_fit)
{
    for (int bits = 4; bits < 32; bits++) {
        take_copy();
        directory()->stack_count = 1u << bits;
        (void)look();
        take_copy();
        directory()->counter_count = 1u << bits;
        (void)look();
    }
    take_copy();
    directory()->stack_count = directory()->counter_count = UINT32_MAX;
    assert_int_equal(look(), 0);
}

TEST(texts_without_an_end)
{
    take_copy();
    memset(head()->program, 'x', sizeof(head()->program));
    memset(head()->rank, 'x', sizeof(head()->rank));
    for (uint32_t i = 0; i < directory()->stack_count; i++)
        memset(stacks()[i].expression, 'x', sizeof(stacks()[i].expression));
    assert_true(look() > 0);
    for (uint32_t i = 0; i < directory()->counter_count; i++)
        memset(counters()[i].name, 'x', sizeof(counters()[i].name));
    assert_int_equal(look(), 0);
}

/* The first of two stacks of a device and kind is the one whose expression is shown. */
TEST(two_stacks_of_one_device)
{
    struct publication page;

    take_copy();
    memset(stacks()[0].expression, 'x', sizeof(stacks()[0].expression));
    for (uint32_t i = 1; i < directory()->stack_count; i++) {
        stacks()[i].device = stacks()[0].device;
        stacks()[i].kind = stacks()[0].kind;
    }
    assert_true(look() > 0);
    assert_true(publication_read(&page, copy));
    assert_int_equal(page.count, 1);
    publication_release(&page);
}

TEST(texts_are_plain)
{
    struct publication page;

    take_copy();
    snprintf(head()->program, sizeof(head()->program),
             "a\033]0;x\007\xc2\x9b\xff"
             "\xe2\x80\xae\u00e9\n");
    snprintf(stacks()[0].expression, sizeof(stacks()[0].expression), "pool\r(\033[2J)");
    snprintf(counters()[0].name, sizeof(counters()[0].name), "live\033[2J");
    snprintf(counters()[1].resource, sizeof(counters()[1].resource), "a\"} 1\n");
    assert_true(publication_read(&page, copy));
    assert_string_equal(page.program, "a?]0;x????\u00e9?");
    assert_string_equal(publication_stack(&page, &page.stacks[0])->expression, "pool?(?[2J)");
    for (size_t i = 0; i < page.stacks[0].report.count; i++) {
        assert_null(strchr(page.stacks[0].report.counters[i].name, '\033'));
        assert_null(strchr(page.stacks[0].report.counters[i].resource, '"'));
    }
    publication_release(&page);
}

/* Counters whose fields nobody would come to the end of are left out. */
TEST(sums_of_very_many_fields)
{
    static const uint32_t strides[] = {0, 8};
    size_t all;

    take_copy();
    all = look();
    for (size_t i = 0; i < RS_ARRAY_LENGTH(strides); i++) {
        for (uint32_t j = 0; j < directory()->counter_count; j++) {
            struct rs_published_counter *counter = &counters()[j];
            counter->term_count = RS_TERMS_MAX;
            for (int k = 0; k < RS_TERMS_MAX; k++)
                counter->terms[k] = (struct rs_published_term){
                    8, (uint32_t)(RS_PUBLISHED_BYTES / 8 - 1) >> (i ? 0 : 8), strides[i], 1};
        }
        assert_true(look() < all);
    }
}

/* What follows the counter looks like its terms. */
TEST(a_counter_of_more_terms_than_there_are)
{
    struct rs_published_term sound = {sizeof(uint64_t), 1, sizeof(uint64_t), 1};
    struct rs_published_term *terms;
    size_t count;

    take_copy();
    terms = counters()[0].terms;
    count = (directory()->counter_count - 1) * sizeof(*counters()) / sizeof(*terms);
    for (size_t i = 0; i < count; i++)
        terms[i] = sound;
    counters()[0].term_count = (uint32_t)count;
    assert_int_equal(look(), 0);
}

TEST(counters_of_kinds_and_units_that_there_are_not)
{
    for (int field = 0; field < 2; field++) {
        take_copy();
        for (uint32_t i = 0; i < directory()->counter_count; i++)
            *(field ? &counters()[i].kind : &counters()[i].unit) = 1000;
        assert_int_equal(look(), 0);
    }
}

/* ---- at random ---- */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Of the sizes of things, and of what is just beside them. */
static uint64_t odd_number(void)
{
    static const uint64_t numbers[] = {
        0,
        1,
        7,
        8,
        16,
        UINT64_MAX,
        INT64_MAX,
        UINT32_MAX,
        INT32_MAX,
        1u << 31,
        RS_DEVICES_MAX,
        RS_KINDS,
        RS_TERMS_MAX,
        RS_TERMS_MAX + 1,
        RS_PUBLISHED_BYTES,
        RS_PUBLISHED_BYTES - 8,
    };
    uint64_t number = numbers[random_number() % RS_ARRAY_LENGTH(numbers)];

    return random_number() % 2 ? number : random_number() >> random_number() % 64;
}

static size_t directory_bytes(void)
{
    return sizeof(struct rs_published_directory) +
           directory()->stack_count * sizeof(struct rs_published_stack) +
           directory()->counter_count * sizeof(struct rs_published_counter);
}

static void spoil(char *bytes, size_t length)
{
    uint64_t number = odd_number();
    size_t width = (size_t)1 << random_number() % 4;

    memcpy(bytes + random_number() % (length / width) * width, &number, width);
}

TEST(random_pages)
{
    size_t read = 0;

    for (int round = 0; round < ROUNDS; round++) {
        char *at;
        size_t bytes;
        take_copy();
        at = (char *)directory();
        bytes = directory_bytes();
        for (uint64_t i = random_number() % 16; i > 0; i--)
            spoil(at, bytes);
        if (random_number() % 8 == 0)
            spoil(at, sizeof(struct rs_published_directory));
        if (random_number() % 8 == 0)
            spoil(copy + sizeof(head()->layout), sizeof(*head()) - sizeof(head()->layout));
        read += look() > 0;
    }
    assert_in_range(read, ROUNDS / 4, ROUNDS); /* not all of them are refused at once */
}

/* The page is the user's to write, and a reader's copy counts only where `sequence` is even. */
TEST(a_refusal_ends_even_whatever_others_wrote)
{
    struct rs_published_refusal *refusal = &((struct rs_publication *)rs_published_head())->refusal;

    for (uint32_t before = 0; before < 4; before++) {
        atomic_store(&refusal->sequence, before);
        rs_publish_refusal("out of memory");
        assert_int_equal(atomic_load(&refusal->sequence) % 2, 0);
        assert_int_not_equal(atomic_load(&refusal->sequence), before);
        assert_string_equal(refusal->text, "out of memory");
    }
}
