/* SPDX-License-Identifier: Apache-2.0 */
#include "config/only.h"

#include "base/check.h"
#include "base/file.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char blanks[] = " \t";

/* How an interpreter's options tell its script.  A letter may stand in a group (-Im); what belongs
 * to it is the rest of its word or, where that is empty, the next word.  A long option may have its
 * value behind '='. */
struct interpreter {
    const char *executable; /* a pattern */
    const char *takes;      /* letters with something behind them that is not the script */
    const char *rest;       /* letters that end a group: what belongs to them is in the same word */
    const char *no_script;  /* letters that bring the program itself, or read it from stdin */
    const char *names;      /* letters with the script's name behind them */
    const char *const *long_takes, *const *long_no_script, *const *long_names;
};

static const char *const none[] = {NULL};
static const char *const python_takes[] = {"--check-hash-based-pycs", NULL};
static const char *const pypy_takes[] = {"--check-hash-based-pycs", "--jit", NULL};
static const char *const bash_takes[] = {"--rcfile", "--init-file", NULL};
static const char *const zsh_takes[] = {"--emulate", NULL};
static const char *const ruby_takes[] = {"--encoding", "--external-encoding", "--internal-encoding",
                                         "--enable",   "--disable",           "--backtrace-limit",
                                         NULL};
/* Those of `node --help` (v20) whose value may be the next word. */
static const char *const node_takes[] = {"--require",
                                         "--import",
                                         "--loader",
                                         "--experimental-loader",
                                         "--conditions",
                                         "--title",
                                         "--env-file",
                                         "--env-file-if-exists",
                                         "--input-type",
                                         "--experimental-default-type",
                                         "--inspect-port",
                                         "--debug-port",
                                         "--inspect-publish-uid",
                                         "--watch-path",
                                         "--icu-data-dir",
                                         "--diagnostic-dir",
                                         "--redirect-warnings",
                                         "--disable-warning",
                                         "--disable-proto",
                                         "--unhandled-rejections",
                                         "--dns-result-order",
                                         "--max-http-header-size",
                                         "--openssl-config",
                                         "--secure-heap",
                                         "--secure-heap-min",
                                         "--tls-cipher-list",
                                         "--tls-keylog",
                                         "--network-family-autoselection-attempt-timeout",
                                         "--use-largepages",
                                         "--v8-pool-size",
                                         "--cpu-prof-dir",
                                         "--cpu-prof-interval",
                                         "--cpu-prof-name",
                                         "--heap-prof-dir",
                                         "--heap-prof-interval",
                                         "--heap-prof-name",
                                         "--heapsnapshot-near-heap-limit",
                                         "--heapsnapshot-signal",
                                         "--report-directory",
                                         "--report-dir",
                                         "--report-filename",
                                         "--report-signal",
                                         "--trace-event-categories",
                                         "--trace-event-file-pattern",
                                         "--snapshot-blob",
                                         "--experimental-policy",
                                         "--policy-integrity",
                                         "--allow-fs-read",
                                         "--allow-fs-write",
                                         "--test-concurrency",
                                         "--test-name-pattern",
                                         "--test-reporter",
                                         "--test-reporter-destination",
                                         "--test-shard",
                                         "--test-timeout",
                                         NULL};
static const char *const node_no_script[] = {"--eval", "--print", "--run", NULL};
/* Those of the launcher whose value is the next word. */
static const char *const java_takes[] = {"-cp",
                                         "-classpath",
                                         "--class-path",
                                         "-p",
                                         "--module-path",
                                         "--upgrade-module-path",
                                         "--add-modules",
                                         "--add-exports",
                                         "--add-opens",
                                         "--add-reads",
                                         "--limit-modules",
                                         "--patch-module",
                                         "--enable-native-access",
                                         "--source",
                                         NULL};
static const char *const java_names[] = {"-jar", "-m", "--module", NULL};
static const char *const julia_takes[] = {"--sysimage",
                                          "--home",
                                          "--load",
                                          "--threads",
                                          "--gcthreads",
                                          "--procs",
                                          "--machine-file",
                                          "--cpu-target",
                                          "--startup-file",
                                          "--handle-signals",
                                          "--sysimage-native-code",
                                          "--compiled-modules",
                                          "--pkgimages",
                                          "--banner",
                                          "--color",
                                          "--history-file",
                                          "--depwarn",
                                          "--warn-overwrite",
                                          "--warn-scope",
                                          "--min-optlevel",
                                          "--inline",
                                          "--check-bounds",
                                          "--math-mode",
                                          "--bug-report",
                                          "--heap-size-hint",
                                          "--compile",
                                          NULL};
static const char *const julia_no_script[] = {"--eval", "--print", NULL};
static const char *const julia_names[] = {"--module", NULL};

/* ':' ends a group where letters have values behind it: perl -d:NYTProf, ruby -W:no-deprecated. */
static const struct interpreter interpreters[] = {
    {"python*", "WXQ", "", "c", "m", python_takes, none, none},
    {"pypy*", "WXQ", "", "c", "m", pypy_takes, none, none},
    {"sh", "o", "", "cs", "", none, none, none},
    {"dash", "o", "", "cs", "", none, none, none},
    {"bash", "oO", "", "cs", "", bash_takes, none, none},
    {"zsh*", "o", "", "cs", "", zsh_takes, none, none},
    {"ksh*", "o", "", "cs", "", none, none, none},
    {"mksh*", "o", "", "cs", "", none, none, none},
    {"perl*", "I", "CDFMimx:", "eE", "", none, none, none},
    {"ruby*", "CEIXr", "FKix:", "e", "", ruby_takes, none, none},
    {"node*", "Cr", "", "ep", "", node_takes, node_no_script, none},
    {"java", "", "", "", "", java_takes, none, java_names}, /* its options are words, not letters */
    {"julia*", "CHJLpt", "Og", "Ee", "m", julia_takes, julia_no_script, julia_names},
};

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* What stands behind the name of the option, if it is one of these: "" or "=value"; else NULL. */
static const char *behind(const char *option, const char *const *names)
{
    for (; *names; names++) {
        size_t length = strlen(*names);
        if (strncmp(option, *names, length) == 0 && (!option[length] || option[length] == '='))
            return option + length;
    }
    return NULL;
}

static const char *next_word(const char *word, const char *end)
{
    const char *next = word + strlen(word) + 1;

    return next < end ? next : NULL;
}

static const char *pass_letters(const struct interpreter *interpreter, const char **word,
                                const char *end)
{
    const char *letter = *word + 1;
    bool names;

    while (*letter && !strchr(interpreter->rest, *letter) && !strchr(interpreter->takes, *letter) &&
           !strchr(interpreter->no_script, *letter) && !strchr(interpreter->names, *letter))
        letter++;
    if (!*letter || strchr(interpreter->rest, *letter))
        return NULL;
    if (strchr(interpreter->no_script, *letter))
        return *word = NULL;
    names = strchr(interpreter->names, *letter);
    if (!letter[1])
        *word = next_word(*word, end);
    return !names ? NULL : letter[1] ? letter + 1 : *word;
}

/* Goes over one option.  Returns the script's name if it tells that, and moves *word to the last
 * word that belongs to it; *word is NULL when there is no script. */
static const char *pass_option(const struct interpreter *interpreter, const char **word,
                               const char *end)
{
    const char *option = *word, *value;

    if ((value = behind(option, interpreter->long_names)))
        return *word = *value ? value + 1 : next_word(option, end);
    if (behind(option, interpreter->long_no_script))
        return *word = NULL;
    if ((value = behind(option, interpreter->long_takes))) {
        *word = *value ? option : next_word(option, end);
        return NULL;
    }
    return option[1] == '-' ? NULL : pass_letters(interpreter, word, end);
}

static const struct interpreter *interpreter_of(const struct rs_only_process *process)
{
    const char *executable = base_of(process->executable);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(interpreters); i++)
        if (fnmatch(interpreters[i].executable, executable, 0) == 0)
            return &interpreters[i];
    return NULL;
}

/* The name of the script or module that an interpreter runs, or NULL. */
static const char *script_of(const struct rs_only_process *process)
{
    const struct interpreter *interpreter = interpreter_of(process);
    const char *word = process->words, *end = word + process->bytes;

    if (!interpreter || word == end)
        return NULL;
    while ((word = next_word(word, end)) != NULL) {
        const char *name;
        if (strcmp(word, "--") == 0) {
            word = next_word(word, end);
            return word ? base_of(word) : NULL;
        }
        if ((word[0] != '-' && word[0] != '+') || !word[1])
            return word[0] == '-' ? NULL : base_of(word); /* "-" reads stdin */
        name = pass_option(interpreter, &word, end);
        if (name || !word)
            return name ? base_of(name) : NULL;
    }
    return NULL;
}

/* On the heap: a pattern may be longer than any name ([...]). */
static bool matches_one(const char *begin, size_t length, const char *name)
{
    char *pattern = length ? strndup(begin, length) : NULL;
    bool found = pattern && fnmatch(pattern, name, 0) == 0;

    free(pattern);
    return found;
}

/* Blanks around a pattern are none of it: in "train*, worker" nobody means one. */
static bool matches(const char *patterns, const char *name)
{
    for (; *patterns; patterns += *patterns == ',') {
        size_t length;
        patterns += strspn(patterns, blanks);
        length = strcspn(patterns, ",");
        for (const char *end = patterns + length; length && strchr(blanks, end[-1]); end--)
            length--;
        if (matches_one(patterns, length, name))
            return true;
        patterns += strcspn(patterns, ",");
    }
    return false;
}

size_t rs_only_names(const struct rs_only_process *process, const char *names[RS_ONLY_NAMES])
{
    const char *all[RS_ONLY_NAMES] = {
        base_of(process->executable),
        process->bytes ? base_of(process->words) : NULL,
        script_of(process),
    };
    size_t count = 0;

    for (size_t i = 0; i < RS_ONLY_NAMES; i++) {
        bool is_new = all[i] != NULL;
        for (size_t j = 0; is_new && j < count; j++)
            is_new = strcmp(names[j], all[i]) != 0;
        if (is_new)
            names[count++] = all[i];
    }
    return count;
}

bool rs_only_serves(const char *patterns, const struct rs_only_process *process)
{
    const char *names[RS_ONLY_NAMES];
    size_t count;

    if (!patterns || !*patterns)
        return true;
    count = rs_only_names(process, names);
    for (size_t i = 0; i < count; i++)
        if (matches(patterns, names[i]))
            return true;
    return false;
}

bool rs_only_lacks_script(const struct rs_only_process *process)
{
    return interpreter_of(process) && process->bytes == strlen(process->words) + 1;
}

void rs_only_read(struct rs_only_process *process, const char *directory)
{
    char path[PATH_MAX];
    ssize_t length, bytes = 0;
    int fd;

    snprintf(path, sizeof(path), "%s/exe", directory);
    length = readlink(path, process->executable, sizeof(process->executable) - 1);
    process->executable[length > 0 ? length : 0] = '\0';
    snprintf(path, sizeof(path), "%s/cmdline", directory);
    fd = rs_file_open(path);
    if (fd >= 0) {
        bytes = rs_file_read(fd, process->words, sizeof(process->words) - 1, 0);
        rs_file_close(fd);
    }
    bytes = bytes > 0 ? bytes : 0;
    if (bytes &&
        process->words[bytes - 1]) /* the last word is cut off, or a title without an end */
        process->words[bytes++] = '\0';
    process->bytes = (size_t)bytes;
}

bool rs_only_serves_this_process(const char *patterns)
{
    struct rs_only_process process;

    if (!patterns || !*patterns)
        return true;
    rs_only_read(&process, "/proc/self");
    return rs_only_serves(patterns, &process);
}
