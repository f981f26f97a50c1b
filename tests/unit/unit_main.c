/* SPDX-License-Identifier: Apache-2.0 */
/* main() of every test program: runs the tests that registered themselves. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { TESTS_MAX = 1024, CASES_MAX = 512, NAME_BYTES = 160, CASE_NAME_BYTES = 64 };

static struct unit_test *registered; /* in the order of their lines */
static CMFixtureFunction before_each, after_each, before_all, after_all;

static struct test_case {
    char name[CASE_NAME_BYTES];
    const void *state;
} cases[CASES_MAX];
static size_t case_count;

static struct CMUnitTest rows[TESTS_MAX];
static char names[TESTS_MAX][NAME_BYTES];
static size_t row_count;

/* In which order constructors of one file run, the compiler decides. */
void unit_register(struct unit_test *test)
{
    struct unit_test **place = &registered;

    while (*place && (*place)->line < test->line)
        place = &(*place)->next;
    test->next = *place;
    *place = test;
}

void unit_fixture(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    before_each = set_up;
    after_each = tear_down;
}

void unit_group_fixture(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    before_all = set_up;
    after_all = tear_down;
}

static void must_have_room(size_t count, size_t most)
{
    if (count < most)
        return;
    fprintf(stderr, "unit_main.c: more than %zu tests or cases\n", most);
    exit(EXIT_FAILURE);
}

void unit_add_case(const void *state, const char *format, ...)
{
    va_list arguments;

    must_have_room(case_count, CASES_MAX);
    va_start(arguments, format);
    vsnprintf(cases[case_count].name, sizeof(cases[case_count].name), format, arguments);
    va_end(arguments);
    cases[case_count++].state = state;
}

static void add_row(const struct unit_test *test, const struct test_case *test_case)
{
    bool has_own = test->set_up || test->tear_down;

    must_have_room(row_count, TESTS_MAX);
    snprintf(names[row_count], sizeof(names[row_count]), "%s%s%s", test_case ? test_case->name : "",
             test_case ? ": " : "", test->name);
    rows[row_count] = (struct CMUnitTest){
        .name = names[row_count],
        .test_func = test->run,
        .setup_func = has_own ? test->set_up : before_each,
        .teardown_func = has_own ? test->tear_down : after_each,
        .initial_state = test_case ? (void *)(uintptr_t)test_case->state : NULL,
    };
    row_count++;
}

static void list_rows(void)
{
    for (const struct unit_test *test = registered; test; test = test->next) {
        if (test->applies && !test->applies())
            continue;
        if (!test->is_for_cases)
            add_row(test, NULL);
        for (size_t i = 0; test->is_for_cases && i < case_count; i++)
            add_row(test, &cases[i]);
    }
}

__attribute__((weak)) int unit_prepare(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

int main(int argc, char **argv)
{
    int status = unit_prepare(argc, argv);

    if (status != 0)
        return status;
    list_rows();
    if (row_count == 0) {
        fprintf(stderr, "%s has no tests\n", program_invocation_short_name);
        return EXIT_FAILURE;
    }
    return _cmocka_run_group_tests(program_invocation_short_name, rows, row_count, before_all,
                                   after_all);
}
