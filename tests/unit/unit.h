/* SPDX-License-Identifier: Apache-2.0 */
/* Includes cmocka, after the headers that it needs. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct unit_test {
    const char *name;
    CMUnitTestFunction run;
    CMFixtureFunction set_up, tear_down; /* NULL: the file's FIXTURE, if it has one */
    bool (*applies)(void);               /* NULL: always */
    bool is_for_cases;
    int line;
    struct unit_test *next;
};

void unit_register(struct unit_test *test);
void unit_fixture(CMFixtureFunction set_up, CMFixtureFunction tear_down);
void unit_group_fixture(CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* The tests of TEST_EACH run once more, with *state as given and the case's name before theirs. */
void unit_add_case(const void *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A file that has something to do before its tests defines this.  Not 0: the program ends with it
 * as its status, and runs no test. */
int unit_prepare(int argc, char **argv);

#define UNIT_TEST(test_name, ...)                                                                  \
    static void test_name(void **state);                                                           \
    __attribute__((constructor)) static void register_##test_name(void)                            \
    {                                                                                              \
        static struct unit_test test = {                                                           \
            .name = #test_name, .run = test_name, .line = __LINE__, __VA_ARGS__};                  \
        unit_register(&test);                                                                      \
    }                                                                                              \
    static void test_name(__attribute__((unused)) void **state)

/* The function that follows is a test; its `state` is what the set-up left in it. */
#define TEST(test_name) UNIT_TEST(test_name, .next = NULL)
/* With a set-up and a tear-down of its own; either may be NULL. */
#define TEST_WITH(before, after, test_name)                                                        \
    UNIT_TEST(test_name, .set_up = before, .tear_down = after)
/* Is run only where the condition, a function, holds. */
#define TEST_IF(condition, test_name) UNIT_TEST(test_name, .applies = condition)
/* The ThreadSanitizer of gcc 13 and later ends a process that goes on where a thread's destructors
 * run, or in a forked child's thread; that of gcc 12 does not. */
static inline bool unit_has_thread_ends(void)
{
#ifdef __SANITIZE_THREAD__
    return __GNUC__ < 13;
#else
    return true;
#endif
}

/* Is run for each case that unit_prepare adds. */
#define TEST_EACH(test_name) UNIT_TEST(test_name, .is_for_cases = true)

/* Around each TEST of the file; either may be NULL. */
#define FIXTURE(before, after) UNIT_FIXTURE(unit_fixture, before, after)
/* Once around all of them. */
#define GROUP_FIXTURE(before, after) UNIT_FIXTURE(unit_group_fixture, before, after)

#define UNIT_FIXTURE(kind, before, after)                                                          \
    __attribute__((constructor)) static void register_##kind(void)                                 \
    {                                                                                              \
        kind(before, after);                                                                       \
    }                                                                                              \
    struct unit_takes_a_semicolon
