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
 * to it is the rest of its word or, where that is empty, the next word. */
struct interpreter {
    const char *executable; /* a pattern */
    const char *takes;      /* letters with something behind them that is not the script */
    const char *no_script;  /* letters that bring the program itself */
    const char *names;      /* letters with the script's name behind them */
    const char *const *long_takes, *const *long_names;
};

static const char *const none[] = {NULL};
static const char *const python_takes[] = {"--check-hash-based-pycs", NULL};
static const char *const bash_takes[] = {"--rcfile", "--init-file", NULL};
static const char *const node_takes[] = {"--require", "--import", NULL};
static const char *const java_takes[] = {
    "-cp", "-classpath", "--class-path", "-p", "--module-path", "--add-modules", NULL};
static const char *const java_names[] = {"-jar", "-m", "--module", NULL};

static const struct interpreter interpreters[] = {
    {"python*", "WXQ", "c", "m", python_takes, none},
    {"sh", "o", "c", "", none, none},
    {"dash", "o", "c", "", none, none},
    {"bash", "oO", "c", "", bash_takes, none},
    {"perl*", "I", "eE", "", none, none},
    {"ruby*", "IrC", "e", "", none, none},
    {"node*", "r", "ep", "", node_takes, none},
    {"java", "", "", "", java_takes, java_names}, /* its options are words, not letters */
};

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static bool is_in(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

static const char *next_word(const char *word, const char *end)
{
    const char *next = word + strlen(word) + 1;

    return next < end ? next : NULL;
}

/* Goes over one option.  Returns the script's name if it tells that, and moves *word to the last
 * word that belongs to it; *word is NULL when there is no script. */
static const char *pass_option(const struct interpreter *interpreter, const char **word,
                               const char *end)
{
    const char *option = *word;

    if (is_in(option, interpreter->long_names))
        return *word = next_word(option, end);
    if (is_in(option, interpreter->long_takes))
        *word = next_word(option, end);
    else if (option[1] != '-')
        for (const char *letter = option + 1; *letter; letter++) {
            bool names = strchr(interpreter->names, *letter);
            if (strchr(interpreter->no_script, *letter))
                return *word = NULL;
            if (!names && !strchr(interpreter->takes, *letter))
                continue;
            if (!letter[1])
                *word = next_word(option, end);
            return !names ? NULL : letter[1] ? letter + 1 : *word;
        }
    return NULL;
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
