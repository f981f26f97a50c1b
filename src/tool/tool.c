/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

#include "base/check.h"
#include "base/log.h"
#include "report/document.h"
#include "report/plain.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- what is said ---- */

static void print_diagnostic(void *data, const char *line)
{
    (void)data;
    tool_say("%s", line);
}

void tool_ignore_line(void *data, const char *line)
{
    (void)data, (void)line;
}

struct rs_diagnostics tool_diagnostics(void)
{
    return (struct rs_diagnostics){.write = print_diagnostic};
}

static bool is_added[STDERR_FILENO + 1];

void tool_add_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            /* The lowest free number, which open() returns, is fd. */
            is_added[fd] = open("/dev/null", O_RDWR) == fd;
}

void tool_close_added_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (is_added[fd])
            close(fd);
}

void tool_say(const char *format, ...)
{
    char line[TOOL_LINE_BYTES] = "rmmshim: ";
    size_t begin = strlen(line), length;
    va_list arguments;

    (void)fflush(stdout);
    va_start(arguments, format);
    (void)vsnprintf(line + begin, sizeof(line) - begin - 1, format, arguments);
    va_end(arguments);
    /* Paths, words and names of processes may contain any characters. */
    rs_plain_make(line + begin);
    length = strlen(line);
    line[length] = '\n';
    (void)rs_write_all(STDERR_FILENO, line, length + 1);
}

void tool_say_unknown(const char *kind, const char *word, const char *const *words)
{
    const char *nearest = rs_nearest_word(word, word + strlen(word), words);

    if (nearest)
        tool_say("unknown %s '%s'; did you mean '%s'?", kind, word, nearest);
    else
        tool_say("unknown %s '%s'", kind, word);
}

int tool_find_word(const char *kind, const char *word, const char *const *words)
{
    int i = 0;

    while (word && words[i] && strcmp(words[i], word) != 0)
        i++;
    if (words[i])
        return i;
    tool_say_unknown(kind, word, words);
    return -1;
}

/* ---- options ---- */

bool tool_is_help(const char *argument)
{
    return argument && (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0);
}

bool tool_begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Returns the value of an option that is written `--name VALUE` or `--name=VALUE`; *arguments moves
 * to its last word.  Returns NULL if **arguments is another word.  If the option has no value, says
 * so, sets *failed, and returns NULL. */
static const char *option_value(char ***arguments, const char *name, bool *failed)
{
    size_t length = strlen(name);
    const char *word = **arguments, *value;

    if (strncmp(word, name, length) != 0 || (word[length] && word[length] != '='))
        return NULL;
    value = word[length] ? word + length + 1 : (*arguments)[1];
    if (!value || !*value) {
        tool_say("%s needs a value", name);
        *failed = true;
        return NULL;
    }
    *arguments += !word[length];
    return value;
}

/* Stores an option's value.  Returns false after saying that the option was given too often. */
static bool store_value(const struct tool_option *option, const char *value)
{
    const char **place = option->value;

    while (option->room && *place && place < option->value + option->room)
        place++;
    if (option->room && place == option->value + option->room) {
        tool_say("%s can be given at most %zu times", option->name, option->room);
        return false;
    }
    *place = value;
    return true;
}

static bool take_option(char ***arguments, const struct tool_option *options)
{
    const char *known[TOOL_OPTIONS_MAX + 2] = {"--help"}, *value;
    bool failed = false;

    for (size_t i = 0; options[i].name; i++) {
        known[i + 1] = options[i].name;
        if (options[i].flag && strcmp(**arguments, options[i].name) == 0)
            return *options[i].flag = true;
        value = options[i].flag ? NULL : option_value(arguments, options[i].name, &failed);
        if (value && options[i].is_single && *options[i].value) {
            tool_say("%s can be given only once", options[i].name);
            return false;
        }
        if (value)
            return store_value(&options[i], value);
        if (failed)
            return false;
    }
    tool_say_unknown("option", **arguments, known);
    return false;
}

bool tool_take_options(char **arguments, bool has_words, const struct tool_option *options)
{
    char **kept = arguments;

    for (; *arguments; arguments++)
        if (has_words && **arguments != '-')
            *kept++ = *arguments;
        else if (!take_option(&arguments, options))
            return false;
    *kept = NULL;
    return true;
}

char **tool_take_leading_options(char **arguments, const struct tool_option *options)
{
    for (; *arguments && **arguments == '-'; arguments++)
        if (strcmp(*arguments, "--") == 0)
            return arguments + 1;
        else if (!take_option(&arguments, options))
            return NULL;
    return arguments;
}

bool tool_has_no_more(char *const *arguments)
{
    if (*arguments)
        tool_say("unexpected argument '%s'", *arguments);
    return !*arguments;
}

bool tool_parse_device(const char *text, int *device)
{
    char *end;
    long number = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;

    if (number < 0 || *end || number >= RS_DEVICES_MAX) {
        tool_say("--device %s: this is not the number of a device", text);
        return false;
    }
    *device = (int)number;
    return true;
}

bool tool_parse_seconds(const char *option, const char *text, double least, uint64_t *ns)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= least && seconds <= 3600)) {
        tool_say("%s %s: expected a number of seconds from %g to 3600", option, text, least);
        return false;
    }
    *ns = (uint64_t)(seconds * 1e9);
    return true;
}

const char *tool_variable(char *const *environment, const char *name)
{
    size_t length = strlen(name);

    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

bool tool_set(const char *name, const char *value)
{
    bool is_set = setenv(name, value, 1) == 0;

    if (!is_set)
        tool_say("%s: %s", name, strerror(errno));
    return is_set;
}

/* The path may be the first word already, as in `rmmshim run rmmshim run`. */
bool tool_set_first(const char *name, const char *path, const char *ends)
{
    const char *before = getenv(name);
    size_t length = strlen(path);
    char *joined;
    bool is_set;

    if (strpbrk(path, ends)) {
        tool_say("%s: %s cannot hold a path with a %scolon; install rmmshim under another path",
                 path, name, strchr(ends, ' ') ? "blank or a " : "");
        return false;
    }
    if (!before || !*before)
        return tool_set(name, path);
    if (strncmp(before, path, length) == 0 && (!before[length] || strchr(ends, before[length])))
        return true;
    joined = tool_format("%s:%s", path, before);
    is_set = tool_set(name, joined);
    free(joined);
    return is_set;
}

/* ---- documents ---- */

bool tool_print(const struct rs_node *root, enum rs_statistics_format format, int fd,
                const char *name)
{
    static struct rs_page page;
    struct rs_page_file file = {.variable = name, .state = RS_PAGE_FILE_NONE};

    (void)fflush(stdout);
    rs_page_begin(&page, &file, NULL);
    page.fd = fd;
    if (format == RS_STATISTICS_PROMETHEUS)
        rs_document_put_metrics(&page, root);
    else if (format == RS_STATISTICS_JSON)
        rs_document_put_json(&page, root, false);
    else
        rs_document_put_text(&page, root);
    rs_page_end(&page);
    if (root->document->is_short)
        tool_say("%s: the output is incomplete, because host memory ran out", name);
    return file.error == 0 && !root->document->is_short;
}

bool tool_show(const struct rs_node *root, bool as_json)
{
    return tool_print(root, as_json ? RS_STATISTICS_JSON : RS_STATISTICS_TEXT, STDOUT_FILENO,
                      "standard output");
}

const char *tool_bytes(uint64_t bytes)
{
    static char texts[8][RS_SIZE_TEXT_BYTES];
    static unsigned next;

    return rs_size_format_short(bytes, texts[next++ % RS_ARRAY_LENGTH(texts)]);
}

/* ---- memory and other programs ---- */

void tool_end_without_memory(void)
{
    tool_say("out of host memory");
    exit(TOOL_FINDING);
}

void *tool_grow(void *memory, size_t bytes)
{
    void *more = realloc(memory, bytes ? bytes : 1);

    if (!more)
        tool_end_without_memory();
    return more;
}

void *tool_grow_list(void *list, size_t count, size_t entry_bytes)
{
    if (count & (count - 1))
        return list;
    return tool_grow(list, (count ? 2 * count : 1) * entry_bytes);
}

void tool_remember(struct rs_hash_table *table, uint64_t key, size_t number)
{
    if (!rs_hash_reserve(table, 1) || !rs_hash_put(table, key, (void *)number))
        tool_end_without_memory();
}

char *tool_format(const char *format, ...)
{
    char *text = NULL;
    va_list arguments;

    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        tool_end_without_memory();
    va_end(arguments);
    return text;
}

void tool_let_end(int number)
{
    sigset_t only;

    signal(number, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
}

void tool_end_by(int number)
{
    tool_let_end(number);
    raise(number);
}

static void become(char *const *words, char *const *environment, unsigned seconds, int to)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    tool_let_end(SIGALRM);
    alarm(seconds);
    dup2(nothing, STDIN_FILENO);
    dup2(to, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execvpe(words[0], words, environment);
    _exit(1);
}

FILE *tool_start(char *const *words, char *const *environment, unsigned seconds, pid_t *child)
{
    FILE *output;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return NULL;
    output = fdopen(ends[0], "r");
    *child = output ? fork() : -1;
    if (*child == 0)
        become(words, environment, seconds, ends[1]);
    close(ends[1]);
    if (*child > 0)
        return output;
    (void)(output ? fclose(output) : close(ends[0]));
    return NULL;
}

void tool_end(FILE *output, pid_t child)
{
    (void)fclose(output);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}
