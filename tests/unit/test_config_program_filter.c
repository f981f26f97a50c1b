/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: the names that a process has. */
#include "unit.h"

#include "config/program_filter.h"

#include <stdio.h>
#include <string.h>

/* A process with words that are separated by spaces here. */
static struct rs_program_names process_of(const char *executable, const char *line)
{
    struct rs_program_names process = {.bytes = *line ? strlen(line) + 1 : 0};

    snprintf(process.executable, sizeof(process.executable), "%s", executable);
    snprintf(process.words, sizeof(process.words), "%s", line);
    for (size_t i = 0; i < process.bytes; i++)
        process.words[i] = process.words[i] == ' ' ? '\0' : process.words[i];
    return process;
}

static bool serves(const char *patterns, const char *executable, const char *line)
{
    struct rs_program_names process = process_of(executable, line);

    return rs_program_filter_serves(patterns, &process);
}

TEST(without_a_pattern_all_are_served)
{
    assert_true(serves(NULL, "/bin/a", ""));
    assert_true(serves("", "/bin/a", ""));
    assert_true(rs_program_filter_serves_this_process(NULL));
    assert_false(rs_program_filter_serves_this_process("no_such_name"));
    assert_true(rs_program_filter_serves_this_process("*program_filter*"));
}

TEST(a_pattern_matches_the_whole_base_name)
{
    assert_true(serves("train", "/opt/bin/train", "/opt/bin/train"));
    assert_true(serves("tr*n", "/opt/bin/train", "train"));
    assert_true(serves("other,train", "/opt/bin/train", "train"));
    assert_true(serves("busy", "/bin/box", "/usr/bin/busy"));
    assert_false(serves("trai", "/opt/bin/train", "train"));
    assert_false(serves("opt", "/opt/bin/train", "train"));
    assert_false(serves(",", "/opt/bin/train", "train"));
    assert_false(serves("a", "", ""));
    assert_true(serves("*", "", ""));
}

TEST(blanks_around_a_pattern_are_none_of_it)
{
    static const char *const patterns[] = {"a, train", " train ,a", "\ttrain\t", " , train",
                                           "a , tr?in"};

    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
        if (!serves(patterns[i], "/opt/bin/train", "train"))
            fail_msg("'%s'", patterns[i]);
    assert_true(serves("a, my tool", "/opt/my tool", ""));
    assert_false(serves("a, my tool", "/opt/mytool", "mytool"));
    assert_false(serves(" ", "/opt/bin/train", "train"));
    assert_false(serves(" , ", "", ""));
}

TEST(a_pattern_may_be_longer_than_a_name)
{
    char pattern[400];

    snprintf(pattern, sizeof(pattern), "other,[%0300d]rain", 0);
    assert_false(serves(pattern, "/opt/bin/train", "train"));
    snprintf(pattern, sizeof(pattern), "other,[%0300dt]rain", 0);
    assert_true(serves(pattern, "/opt/bin/train", "train"));
}

TEST(each_word_that_is_no_option_is_a_name)
{
    static const struct {
        const char *pattern, *executable, *line;
        bool is_served;
    } cases[] = {
        {"train.py", "/usr/bin/python3.11", "python3 train.py", true},
        {"train.py", "/usr/bin/python3.11", "python3 -W ignore -u /a/train.py --x", true},
        {"train", "/usr/bin/python3.11", "python3 -m train x.py", true},
        {"train", "/usr/bin/python3.11", "python3 -mtrain", false},
        {"train", "/usr/bin/python3.11", "python3 train.py", false},
        {"run.sh", "/bin/bash", "bash -eo pipefail ./run.sh", true},
        {"a.jar", "/usr/bin/java", "java -Xmx1g -jar lib/a.jar", true},
        {"-u", "/usr/bin/python3.11", "python3 -u train.py", false},
        {"--train", "/usr/bin/python3.11", "python3 x.py --train", false},
        {"train.py", "/bin/cat", "cat /a/train.py", true}, /* an argument that has the same name */
        {"train.py", "/bin/cat", "cat --file=/a/train.py", false},
        {"-bash", "/bin/bash", "-bash", true}, /* a shell that was started by login(1) */
        {"x", "/bin/sh", "sh -c x", true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (serves(cases[i].pattern, cases[i].executable, cases[i].line) != cases[i].is_served)
            fail_msg("%s: %s", cases[i].pattern, cases[i].line);
}

static void expect_names(const char *executable, const char *line, const char *const *expected)
{
    struct rs_program_names process = process_of(executable, line);
    const char *name;
    size_t at = 0;

    while ((name = rs_program_names_next(&process, &at))) {
        assert_non_null(*expected);
        assert_string_equal(name, *expected++);
    }
    assert_null(*expected);
    assert_null(rs_program_names_next(&process, &at));
}

TEST(the_names_one_after_the_other)
{
    expect_names("/usr/bin/python3.11", "python3 -u /a/train.py",
                 (const char *const[]){"python3.11", "python3", "train.py", NULL});
    expect_names("/opt/train", "./train --x", (const char *const[]){"train", "train", NULL});
    expect_names("/opt/train", "train  a", (const char *const[]){"train", "train", "a", NULL});
    expect_names("/bin/busybox", "", (const char *const[]){"busybox", NULL});
    expect_names("", "", (const char *const[]){"", NULL});
}
