/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/profile.h"

#include "base/check.h"
#include "config/values.h"
#include "config/variables.h"
#include "tool/program.h"
#include "tool/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".env"

enum { FILE_BYTES_MAX = 64 << 10, ASSIGNMENTS_MAX = 512, SUMMARY_BYTES = 256 };

/* The folder of the profiles, relative to the directory of this command: installed, installed
 * without a prefix, and in the build tree. */
static const char *const folders[] = {
    "../" RMMSHIM_DATADIR "/rmmshim/profiles",
    "../share/rmmshim/profiles",
    "profiles",
};

struct assignment {
    char *entry;     /* VARIABLE=value, in the file's text */
    unsigned number; /* of its line, from 1 */
    int index;       /* the variable's row in rs_variables */
    int device;      /* -1: all */
    bool is_joined;  /* nothing overrides it */
};

static struct {
    char path[PATH_MAX];
    char text[FILE_BYTES_MAX + 1]; /* the file; ends of lines have become ends of texts */
    struct assignment assignments[ASSIGNMENTS_MAX];
    size_t count;
} profile;

/* ---- the profiles beside this command ---- */

static int is_shipped(const struct dirent *entry)
{
    const char *suffix = strrchr(entry->d_name, '.');

    return suffix && suffix > entry->d_name && strcmp(suffix, SUFFIX) == 0;
}

static void read_summary(const char *path, char summary[SUMMARY_BYTES])
{
    FILE *file = fopen(path, "re");

    summary[0] = '\0';
    while (file && fgets(summary, SUMMARY_BYTES, file) && strncmp(summary, "# SPDX", 6) == 0)
        summary[0] = '\0';
    if (file)
        (void)fclose(file);
    if (strncmp(summary, "# ", 2) == 0)
        memmove(summary, summary + 2, strlen(summary + 2) + 1);
    summary[strcspn(summary, "\n")] = '\0';
}

/* "at most 80 %" of "capped: at most 80 %". */
static const char *behind_name(const char *summary, const char *name)
{
    size_t length = strlen(name);

    return strncmp(summary, name, length) == 0 && strncmp(summary + length, ": ", 2) == 0
               ? summary + length + 2
               : summary;
}

/* Calls `visit` for each profile that lies beside this command, by name, with the first comment of
 * its file. */
static void each(void (*visit)(void *data, const char *name, const char *summary), void *data)
{
    char folder[PATH_MAX], path[2 * PATH_MAX], summary[SUMMARY_BYTES];
    struct dirent **entries = NULL;
    int count = library_find_beside(folders, RS_ARRAY_LENGTH(folders), folder)
                    ? scandir(folder, &entries, is_shipped, alphasort)
                    : 0;

    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        read_summary(path, summary);
        *strrchr(entries[i]->d_name, '.') = '\0';
        visit(data, entries[i]->d_name, behind_name(summary, entries[i]->d_name));
        free(entries[i]);
    }
    free((void *)entries);
}

enum { NAMES_MAX = 32, NAME_BYTES = 64 };

struct names {
    char text[NAMES_MAX][NAME_BYTES];
    const char *words[NAMES_MAX + 1];
    size_t count;
};

static void add_name(void *data, const char *name, const char *summary)
{
    struct names *names = data;

    (void)summary;
    if (names->count == NAMES_MAX)
        return;
    snprintf(names->text[names->count], NAME_BYTES, "%s", name);
    names->words[names->count] = names->text[names->count];
    names->count++;
}

/* A name with a slash is a path; else a profile of that name comes before a file of that name. */
static bool find(const char *name)
{
    char places[RS_ARRAY_LENGTH(folders)][PATH_MAX];
    const char *pointers[RS_ARRAY_LENGTH(folders)];
    struct names names = {.count = 0};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(folders); i++) {
        snprintf(places[i], PATH_MAX, "%s/%s" SUFFIX, folders[i], name);
        pointers[i] = places[i];
    }
    if (*name && !strchr(name, '/') &&
        library_find_beside(pointers, RS_ARRAY_LENGTH(folders), profile.path))
        return true;
    if (strchr(name, '/') || access(name, F_OK) == 0) {
        snprintf(profile.path, sizeof(profile.path), "%s", name);
        return true;
    }
    each(add_name, &names);
    tool_say_unknown("profile", name, names.words);
    return false;
}

/* ---- the file ---- */

static bool read_text(void)
{
    int fd = open(profile.path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got = fd < 0 ? -1 : 1;

    while (got > 0 && length < sizeof(profile.text)) {
        got = read(fd, profile.text + length, sizeof(profile.text) - length);
        length += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        tool_say("--profile: %s: %s", profile.path, strerror(errno));
    else if (length > FILE_BYTES_MAX)
        tool_say("--profile: %s: larger than 64 KiB", profile.path);
    else if (memchr(profile.text, '\0', length))
        tool_say("--profile: %s: not a text file", profile.path);
    if (fd >= 0)
        (void)close(fd);
    return got == 0 && length <= FILE_BYTES_MAX && !memchr(profile.text, '\0', length);
}

static const char *nearest_variable(const char *name)
{
    const char *names[RS_VARIABLE_COUNT + 1] = {NULL};

    for (size_t i = 0; i < RS_VARIABLE_COUNT; i++)
        names[i] = rs_variables[i].option.name;
    return rs_nearest_word(name, name + strlen(name), names);
}

/* Each of these functions returns false after saying what is wrong with the line. */
static bool read_name(const char *name, struct assignment *assignment)
{
    const char *nearest = nearest_variable(name);
    struct rs_name read;

    rs_name_read(name, &read);
    assignment->index = read.index;
    assignment->device = read.device;
    if (read.kind == RS_NAME_WRONG || read.kind == RS_NAME_DOUBTFUL)
        tool_say("%s:%u: %s: %s", profile.path, assignment->number, name, read.reason);
    else if (read.kind != RS_NAME_OURS)
        tool_say("%s:%u: %s is not a variable of rmmshim, and a profile sets nothing else%s%s%s",
                 profile.path, assignment->number, name, nearest ? "; did you mean " : "",
                 nearest ? nearest : "", nearest ? "?" : "");
    return read.kind == RS_NAME_OURS;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* systemd takes quotes, backslashes and blanks around a value away, docker leaves them. */
static bool check_value(const char *value, const struct assignment *assignment)
{
    size_t length = strlen(value);
    bool is_plain = length == 0 || (!is_blank(value[0]) && value[0] != '"' && value[0] != '\'' &&
                                    !is_blank(value[length - 1]) && !strpbrk(value, "\\\r"));

    if (!is_plain)
        tool_say("%s:%u: remove quotes and blanks around the value, backslashes and carriage "
                 "returns: systemd and docker read them differently",
                 profile.path, assignment->number);
    return is_plain;
}

static bool check_first(const struct assignment *assignment)
{
    for (size_t i = 0; i < profile.count; i++) {
        const struct assignment *other = &profile.assignments[i];
        if (other->index != assignment->index || other->device != assignment->device)
            continue;
        tool_say("%s:%u: line %u sets the same variable", profile.path, assignment->number,
                 other->number);
        return false;
    }
    return true;
}

static bool add_assignment(char *entry, unsigned number)
{
    struct assignment assignment = {.entry = entry, .number = number};
    size_t length = strcspn(entry, "= \t\r");
    char name[RS_NAME_BYTES_MAX];

    if (entry[length] != '=' || length == 0 || length >= sizeof(name)) {
        tool_say("%s:%u: expected VARIABLE=value, or a comment after #", profile.path, number);
        return false;
    }
    snprintf(name, sizeof(name), "%.*s", (int)length, entry);
    if (!read_name(name, &assignment) || !check_value(entry + length + 1, &assignment) ||
        !check_first(&assignment))
        return false;
    if (profile.count == ASSIGNMENTS_MAX) {
        tool_say("%s:%u: more than %d assignments", profile.path, number, ASSIGNMENTS_MAX);
        return false;
    }
    profile.assignments[profile.count++] = assignment;
    return true;
}

static bool split(void)
{
    bool is_good = true;
    unsigned number = 1;
    char *end;

    for (char *line = profile.text; *line; line = end, number++) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        line += strspn(line, " \t");
        if (*line && *line != '#')
            is_good = add_assignment(line, number) && is_good;
    }
    return is_good;
}

/* ---- what overrides it ---- */

/* What the variable is set to, or NULL. */
static const char *value_of(char *const *given, const char *name)
{
    size_t length = strlen(name);

    for (; *given; given++)
        if (strncmp(*given, name, length) == 0 && (*given)[length] == '=')
            return *given + length + 1;
    return NULL;
}

/* The library takes no limit of another system where RMM_LIMIT is set for its device or for all. */
static bool has_compat_limit(char *const *given, const struct assignment *assignment)
{
    const char *asked = value_of(given, rs_variables[RS_VARIABLE_COMPAT].option.name);
    int device;

    for (; asked && *asked && *given; given++) {
        if (!rs_config_is_compat_limit(*given, &device) ||
            (device >= 0 && assignment->device >= 0 && device != assignment->device))
            continue;
        tool_say("%s:%u: %.*s is ignored, as %.*s sets a limit", profile.path, assignment->number,
                 (int)strcspn(assignment->entry, "="), assignment->entry, (int)strcspn(*given, "="),
                 *given);
        return true;
    }
    return false;
}

static bool is_overridden(char *const *given, const struct assignment *assignment)
{
    char name[RS_NAME_BYTES_MAX];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(assignment->entry, "="), assignment->entry);
    return value_of(given, name) || value_of(given, rs_variables[assignment->index].option.name) ||
           (assignment->index == RS_VARIABLE_LIMIT && has_compat_limit(given, assignment));
}

char **profile_join(const char *name, char *const *given)
{
    size_t count = 0;
    char **joined;

    if (!find(name) || !read_text() || !split())
        return NULL;
    while (given[count])
        count++;
    joined = calloc(count + profile.count + 1, sizeof(*joined));
    if (!joined) {
        tool_say("out of memory");
        return NULL;
    }
    memcpy((void *)joined, (const void *)given, count * sizeof(*joined));
    for (size_t i = 0; i < profile.count; i++) {
        struct assignment *assignment = &profile.assignments[i];
        assignment->is_joined = !is_overridden(given, assignment);
        if (assignment->is_joined)
            joined[count++] = assignment->entry;
    }
    return joined;
}

bool profile_enter(const char *name)
{
    char **joined = profile_join(name, environ);

    if (joined)
        environ = joined; /* what is set later is copied by the C library */
    return joined != NULL;
}

/* ---- diagnostics ---- */

static void print_line(void *data, const char *line)
{
    (void)data;
    for (size_t i = 0; i < profile.count; i++) {
        const struct assignment *assignment = &profile.assignments[i];
        if (assignment->is_joined &&
            strncmp(assignment->entry, line, strcspn(assignment->entry, "=") + 1) == 0) {
            tool_say("%s:%u: %s", profile.path, assignment->number, line);
            return;
        }
    }
    tool_say("%s", line);
}

struct rs_diagnostics profile_diagnostics(void)
{
    return (struct rs_diagnostics){.write = print_line, .doubts_are_errors = true};
}

/* ---- the help ---- */

static void print_profile(void *data, const char *name, const char *summary)
{
    (void)data;
    tool_print_term(name, summary);
}

void profile_print_help(void)
{
    puts("\nProfiles (NAME of --profile):");
    each(print_profile, NULL);
    putchar('\n');
    tool_print_paragraph(
        "A FILE for --profile has RMM_ variables, one VARIABLE=value a line, comments after #, as "
        "systemd (EnvironmentFile=) and docker (--env-file) read it too. An option wins over it, "
        "and so does a variable of the environment, also an empty one.");
}
