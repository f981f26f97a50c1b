/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: the names that a process has. */
#include "unit.h"

#include "config/only.h"

#include <stdio.h>
#include <string.h>

/* Served, with words that are separated by spaces here. */
static bool serves(const char *patterns, const char *executable, const char *line)
{
    char words[256];
    size_t bytes = strlen(line) + 1;

    memcpy(words, line, bytes);
    for (size_t i = 0; i < bytes; i++)
        words[i] = words[i] == ' ' ? '\0' : words[i];
    return rs_only_serves(patterns, executable, words, bytes);
}

TEST(without_a_pattern_all_are_served)
{
    assert_true(rs_only_serves(NULL, "/bin/a", "", 0));
    assert_true(rs_only_serves("", "/bin/a", "", 0));
    assert_true(rs_only_serves_this_process(NULL));
    assert_false(rs_only_serves_this_process("no_such_name"));
    assert_true(rs_only_serves_this_process("*only*"));
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
    assert_false(serves("train.py", "/bin/cat", "cat train.py"));
    assert_false(rs_only_serves("a", "", "", 0));
}

TEST(blanks_around_a_pattern_are_none_of_it)
{
    static const char *const patterns[] = {"a, train", " train ,a", "\ttrain\t", " , train",
                                           "a , tr?in"};

    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
        if (!serves(patterns[i], "/opt/bin/train", "train"))
            fail_msg("'%s'", patterns[i]);
    assert_true(rs_only_serves("a, my tool", "/opt/my tool", "", 0));
    assert_false(serves("a, my tool", "/opt/mytool", "mytool"));
    assert_false(serves(" ", "/opt/bin/train", "train"));
    assert_false(rs_only_serves(" , ", "", "", 0));
}

TEST(a_pattern_may_be_longer_than_a_name)
{
    char pattern[400];

    snprintf(pattern, sizeof(pattern), "other,[%0300d]rain", 0);
    assert_false(serves(pattern, "/opt/bin/train", "train"));
    snprintf(pattern, sizeof(pattern), "other,[%0300dt]rain", 0);
    assert_true(serves(pattern, "/opt/bin/train", "train"));
}

TEST(an_interpreter_has_the_name_of_its_script)
{
    static const char *const lines[] = {
        "python3 train.py",        "python3 -u /a/train.py --x",    "python3 -W ignore train.py",
        "python3 -X dev train.py", "python3 -Wignore -Bu train.py", "python3 -- train.py",
        "python3 -m train.py",     "python3 -Im train.py x.py",     "python3 -mtrain.py",
    };

    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
        if (!serves("train.py", "/usr/bin/python3.11", lines[i]))
            fail_msg("%s", lines[i]);
    assert_true(serves("run.sh", "/bin/bash", "bash -eo pipefail run.sh"));
    assert_true(serves("run.sh", "/bin/dash", "sh -e +o noglob run.sh"));
    assert_true(serves("a.pl", "/usr/bin/perl5.36", "perl -w -I lib a.pl"));
    assert_true(serves("a.rb", "/usr/bin/ruby", "ruby -rjson a.rb"));
    assert_true(serves("a.js", "/usr/bin/node", "node --inspect --require x a.js"));
    assert_true(serves("a.jar", "/usr/bin/java", "java -Xmx1g -cp b.jar -jar a.jar"));
    assert_true(serves("Main", "/usr/bin/java", "java -cp b.jar Main"));
}

TEST(a_program_on_the_command_line_has_no_script)
{
    static const char *const lines[] = {
        "python3 -c x train.py", "python3 - train.py", "python3", "python3 -m", "python3 -W",
        "python3 -bc x train.py"};

    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
        if (serves("train.py", "/usr/bin/python3", lines[i]))
            fail_msg("%s", lines[i]);
    assert_false(serves("x", "/bin/sh", "sh -c x"));
    assert_false(serves("dev", "/usr/bin/python3", "python3 -X dev train.py"));
    assert_false(serves("b.jar", "/usr/bin/java", "java -cp b.jar -jar a.jar"));
    assert_true(serves("python*", "/usr/bin/python3", "python3 -c x"));
}
