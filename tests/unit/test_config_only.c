/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_ONLY: the names that a process has. */
#include "unit.h"

#include "config/only.h"

#include <stdio.h>
#include <string.h>

/* A process with words that are separated by spaces here. */
static struct rs_only_process process_of(const char *executable, const char *line)
{
    struct rs_only_process process = {.bytes = *line ? strlen(line) + 1 : 0};

    snprintf(process.executable, sizeof(process.executable), "%s", executable);
    snprintf(process.words, sizeof(process.words), "%s", line);
    for (size_t i = 0; i < process.bytes; i++)
        process.words[i] = process.words[i] == ' ' ? '\0' : process.words[i];
    return process;
}

static bool serves(const char *patterns, const char *executable, const char *line)
{
    struct rs_only_process process = process_of(executable, line);

    return rs_only_serves(patterns, &process);
}

TEST(without_a_pattern_all_are_served)
{
    assert_true(serves(NULL, "/bin/a", ""));
    assert_true(serves("", "/bin/a", ""));
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

static void expect_script(const char *script, const char *executable, const char *line)
{
    if (!serves(script, executable, line))
        fail_msg("%s: %s is not its script", line, script);
}

static void expect_no_script(const char *word, const char *executable, const char *line)
{
    if (serves(word, executable, line))
        fail_msg("%s: %s is no script", line, word);
}

TEST(options_of_java_that_take_the_next_word)
{
    static const char *const options[] = {"--add-opens java.base/java.nio=ALL-UNNAMED",
                                          "--add-opens=java.base/java.nio=ALL-UNNAMED",
                                          "--add-exports java.base/sun.nio=ALL-UNNAMED",
                                          "--add-reads a=b",
                                          "--source 17",
                                          "--patch-module a=b.jar",
                                          "--limit-modules a",
                                          "--upgrade-module-path lib",
                                          "--enable-native-access a",
                                          "--class-path=lib",
                                          "-XX:+UseG1GC",
                                          "-Dmodule=e"};
    char line[256];

    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        snprintf(line, sizeof(line), "java %s -jar lib/train.jar", options[i]);
        expect_script("train.jar", "/usr/bin/java", line);
        expect_no_script("java.nio=ALL-UNNAMED", "/usr/bin/java", line);
        snprintf(line, sizeof(line), "java %s Main", options[i]);
        expect_script("Main", "/usr/bin/java", line);
    }
    expect_script("Main", "/usr/bin/java", "java -p lib --module=train/Main");
}

TEST(options_of_node_that_take_the_next_word)
{
    static const char *const lines[] = {
        "node --loader ./x.mjs app.js",       "node -C dev app.js",
        "node --conditions dev app.js",       "node --experimental-loader ./x.mjs app.js",
        "node --env-file .env app.js",        "node --env-file=.env app.js",
        "node --import=x --title dev app.js", "node --max-old-space-size=4096 app.js"};

    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
        expect_script("app.js", "/usr/bin/node", lines[i]);
    expect_no_script("app.js", "/usr/bin/node", "node --eval x app.js");
    expect_no_script("app.js", "/usr/bin/node", "node --print=x app.js");
    expect_no_script("app.js", "/usr/bin/node", "node -pe x app.js");
}

TEST(letters_whose_value_is_the_rest_of_their_word)
{
    static const char *const perl[] = {
        "perl -MData::Dumper train.pl", "perl -mPOSIX=ceil train.pl", "perl -i.pure train.pl",
        "perl -d:NYTProf train.pl",     "perl -F/e/ train.pl",        "perl -CSDE train.pl",
        "perl -wMstrict train.pl",      "perl -l012 -I e train.pl",   "perl -x/home/e train.pl"};
    static const char *const ruby[] = {"ruby -W:no-deprecated app.rb",
                                       "ruby -W2 app.rb",
                                       "ruby -Ke app.rb",
                                       "ruby -E utf-8 app.rb",
                                       "ruby -Eutf-8 app.rb",
                                       "ruby -i.re app.rb",
                                       "ruby -Fe app.rb",
                                       "ruby --encoding utf-8 app.rb",
                                       "ruby --disable gems app.rb"};

    for (size_t i = 0; i < sizeof(perl) / sizeof(*perl); i++)
        expect_script("train.pl", "/usr/bin/perl", perl[i]);
    for (size_t i = 0; i < sizeof(ruby) / sizeof(*ruby); i++)
        expect_script("app.rb", "/usr/bin/ruby3.1", ruby[i]);
    expect_no_script("train.pl", "/usr/bin/perl", "perl -de 0 train.pl");
    expect_no_script("train.pl", "/usr/bin/perl", "perl -0777ne x train.pl");
    expect_no_script("app.rb", "/usr/bin/ruby", "ruby -W0e x app.rb");
}

TEST(other_shells_and_julia)
{
    expect_script("train.sh", "/usr/bin/zsh", "zsh train.sh");
    expect_script("train.sh", "/bin/zsh-5.9", "zsh --emulate sh -eo pipefail train.sh");
    expect_script("train.sh", "/bin/ksh93", "ksh -o pipefail train.sh");
    expect_script("train.sh", "/bin/mksh", "ksh train.sh");
    expect_no_script("train.sh", "/usr/bin/zsh", "zsh -fc x train.sh");
    expect_no_script("train.sh", "/usr/bin/ksh93", "ksh -c x train.sh");
    expect_no_script("train.sh", "/bin/bash", "bash -s train.sh");
    expect_script("train.py", "/opt/pypy/bin/pypy3", "pypy3 --jit off train.py");
    expect_script("train.jl", "/usr/bin/julia", "julia train.jl");
    expect_script("train.jl", "/usr/bin/julia",
                  "julia -t 4 -O3 --project=e --threads=2 -L setup.jl --color yes train.jl");
    expect_script("Train", "/usr/bin/julia", "julia -m Train x.jl");
    expect_no_script("train.jl", "/usr/bin/julia", "julia -e x train.jl");
    expect_no_script("train.jl", "/usr/bin/julia", "julia --eval=x train.jl");
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

static void expect_names(const char *executable, const char *line, const char *const *expected)
{
    struct rs_only_process process = process_of(executable, line);
    const char *names[RS_ONLY_NAMES];
    size_t count = rs_only_names(&process, names);

    for (size_t i = 0; i < count; i++) {
        assert_non_null(expected[i]);
        assert_string_equal(names[i], expected[i]);
    }
    assert_null(expected[count]);
}

TEST(each_name_is_there_once)
{
    expect_names("/usr/bin/python3.11", "python3 -u /a/train.py",
                 (const char *const[]){"python3.11", "python3", "train.py", NULL});
    expect_names("/opt/train", "./train --x", (const char *const[]){"train", NULL});
    expect_names("/bin/busybox", "", (const char *const[]){"busybox", NULL});
    expect_names("", "", (const char *const[]){"", NULL});
}

TEST(an_interpreter_alone_lacks_a_script)
{
    static const struct {
        const char *executable, *line;
        bool lacks;
    } cases[] = {
        {"/usr/bin/python3", "python3", true},       {"/usr/bin/python3", "python3 a.py", false},
        {"/usr/bin/python3", "python3 -c x", false}, {"/usr/bin/java", "java", true},
        {"/usr/bin/train", "python3", false},        {"/usr/bin/cat", "cat", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct rs_only_process process = process_of(cases[i].executable, cases[i].line);
        assert_int_equal(rs_only_lacks_script(&process), cases[i].lacks);
    }
}
