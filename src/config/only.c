/* SPDX-License-Identifier: Apache-2.0 */
#include "config/only.h"

#include "base/check.h"
#include "base/file.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS_BYTES = 4096 }; /* that are looked at; a script's name is among the first words */

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

/* The name of the script or module that an interpreter runs, or NULL. */
static const char *script_of(const char *executable, const char *words, const char *end)
{
    const struct interpreter *interpreter = NULL;
    const char *word = words;

    for (size_t i = 0; !interpreter && i < RS_ARRAY_LENGTH(interpreters); i++)
        if (fnmatch(interpreters[i].executable, executable, 0) == 0)
            interpreter = &interpreters[i];
    if (!interpreter || words == end)
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
    for (; name && *patterns; patterns += *patterns == ',') {
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

bool rs_only_serves(const char *patterns, const char *executable, const char *words, size_t bytes)
{
    const char *end = words + bytes, *name = base_of(executable);

    if (!patterns || !*patterns)
        return true;
    return matches(patterns, name) || (bytes && matches(patterns, base_of(words))) ||
           matches(patterns, script_of(name, words, end));
}

bool rs_only_serves_this_process(const char *patterns)
{
    char executable[PATH_MAX], words[WORDS_BYTES];
    ssize_t length, bytes = 0;
    int fd;

    if (!patterns || !*patterns)
        return true;
    length = readlink("/proc/self/exe", executable, sizeof(executable) - 1);
    executable[length > 0 ? length : 0] = '\0';
    fd = rs_file_open("/proc/self/cmdline");
    if (fd >= 0) {
        bytes = rs_file_read(fd, words, sizeof(words) - 1, 0);
        rs_file_close(fd);
    }
    bytes = bytes > 0 ? bytes : 0;
    if (bytes && words[bytes - 1]) /* the last word is cut off, or a title without an end */
        words[bytes++] = '\0';
    return rs_only_serves(patterns, executable, words, (size_t)bytes);
}
