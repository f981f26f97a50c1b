/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/profile.h"

#include "base/check.h"
#include "config/config.h"
#include "tool/program.h"
#include "tool/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".env"

enum { FILE_BYTES_MAX = 64 << 10, ASSIGNMENTS_MAX = 512, SUMMARY_BYTES = 256 };

/* Where the folder of profiles may be, relative to the directory of this command: at the configured
 * place, at the usual place of an installation, and in the build tree. */
static const char *const folders[] = {
    "../" RMMSHIM_DATADIR "/rmmshim/profiles",
    "../share/rmmshim/profiles",
    "profiles",
};

struct assignment {
    char *entry;     /* VARIABLE=value, in the file's text */
    unsigned number; /* the number of its line, from 1 */
    int index;       /* the variable's row in rs_variables */
    int device;      /* -1: all devices */
    bool is_joined;  /* nothing overrides the assignment, so it is in force */
};

static struct {
    char path[PATH_MAX];
    char text[FILE_BYTES_MAX + 1]; /* the file, with zero bytes in place of line ends */
    struct assignment assignments[ASSIGNMENTS_MAX];
    size_t count;
} profile;

/* ---- the profiles beside this command ---- */

static int is_shipped(const struct dirent *entry)
{
    return fnmatch("?*" SUFFIX, entry->d_name, 0) == 0;
}

/* Reads the summary of a profile, its first comment without the name: "at most 80 %" of "capped: at
 * most 80 %".
 */
static void read_summary(const char *folder, const char *name, char summary[SUMMARY_BYTES])
{
    char path[2 * PATH_MAX], line[SUMMARY_BYTES] = "";
    const char *text = line;
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s" SUFFIX, folder, name);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file) && strncmp(line, "# SPDX", 6) == 0)
        line[0] = '\0';
    if (file)
        (void)fclose(file);
    text += strncmp(text, "# ", 2) == 0 ? 2 : 0;
    if (strncmp(text, name, strlen(name)) == 0 && strncmp(text + strlen(name), ": ", 2) == 0)
        text += strlen(name) + 2;
    snprintf(summary, SUMMARY_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
}

enum { NAMES_MAX = 32 };

/* Lists the names of the installed profiles, ended by NULL.  They live as long as the command. */
static void list_profiles(const char *names[NAMES_MAX + 1], char folder[PATH_MAX])
{
    static struct dirent **entries;
    int count = library_find_beside(folders, RS_ARRAY_LENGTH(folders), folder)
                    ? scandir(folder, &entries, is_shipped, alphasort)
                    : 0;

    memset((void *)names, 0, (NAMES_MAX + 1) * sizeof(*names));
    for (int i = 0; i < count && i < NAMES_MAX; i++) {
        *strrchr(entries[i]->d_name, '.') = '\0';
        names[i] = entries[i]->d_name;
    }
}

/* Finds a profile.  A name with a slash is a path; otherwise an installed profile is preferred to a
 * file of that name. */
static bool find_profile(const char *name)
{
    char folder[PATH_MAX], path[2 * PATH_MAX];
    const char *names[NAMES_MAX + 1];

    if (*name && !strchr(name, '/') &&
        library_find_beside(folders, RS_ARRAY_LENGTH(folders), folder)) {
        snprintf(path, sizeof(path), "%s/%s" SUFFIX, folder, name);
        if (realpath(path, profile.path))
            return true;
    }
    if (strchr(name, '/') || access(name, F_OK) == 0) {
        snprintf(profile.path, sizeof(profile.path), "%s", name);
        return true;
    }
    list_profiles(names, folder);
    tool_say_unknown("profile", name, names);
    return false;
}

/* ---- the file ---- */

static bool read_profile(void)
{
    FILE *file = fopen(profile.path, "re");
    size_t length = file ? fread(profile.text, 1, sizeof(profile.text), file) : 0;
    const char *why = !file || ferror(file)             ? strerror(errno)
                      : length > FILE_BYTES_MAX         ? "the file is larger than 64 KiB"
                      : memchr(profile.text, 0, length) ? "the file is not a text file"
                                                        : NULL;

    if (why)
        tool_say("--profile: %s: %s", profile.path, why);
    if (file)
        (void)fclose(file);
    return !why;
}

static const char *nearest_variable(const char *name)
{
    const char *names[RS_VARIABLE_COUNT + 1] = {NULL};

    for (size_t i = 0; i < RS_VARIABLE_COUNT; i++)
        names[i] = rs_variables[i].option.name;
    return rs_nearest_word(name, name + strlen(name), names);
}

/* The functions that read a part of a line return false after saying what is wrong. */
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
        tool_say("%s:%u: %s is not a variable of rmmshim, and a profile (a file of settings) may "
                 "contain only those%s%s%s",
                 profile.path, assignment->number, name, nearest ? "; did you mean " : "",
                 nearest ? nearest : "", nearest ? "?" : "");
    return read.kind == RS_NAME_OURS;
}

/* Refuses what systemd and docker read differently: blanks around a value, a quote at its
 * beginning, and backslashes and carriage returns anywhere. */
static bool check_value(const char *value, const struct assignment *assignment)
{
    size_t length = strlen(value);
    bool is_plain = length == 0 || (!strchr(" \t\"'", value[0]) && !strpbrk(value, "\\\r") &&
                                    !strchr(" \t", value[length - 1]));

    if (!is_plain)
        tool_say("%s:%u: remove backslashes and carriage returns, and quotes and blanks around the "
                 "value: systemd and docker read them differently",
                 profile.path, assignment->number);
    return is_plain;
}

static bool check_first(const struct assignment *assignment)
{
    for (size_t i = 0; i < profile.count; i++) {
        const struct assignment *other = &profile.assignments[i];
        if (other->index != assignment->index || other->device != assignment->device)
            continue;
        tool_say("%s:%u: line %u sets the same variable: remove one of the two lines", profile.path,
                 assignment->number, other->number);
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
        tool_say("%s:%u: at most %d variables can be set", profile.path, number, ASSIGNMENTS_MAX);
        return false;
    }
    profile.assignments[profile.count++] = assignment;
    return true;
}

static bool split_lines(void)
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

/* Looks in `given` for a limit of another system (RMM_COMPAT) that concerns a device of the
 * assignment, which sets RMM_LIMIT.  If there is one, prints that the assignment is ignored, and
 * returns true.  In force, the assignment would make the library ignore the other system's limit.
 */
static bool has_compat_limit(char *const *given, const struct assignment *assignment)
{
    const char *asked = tool_variable(given, rs_variables[RS_VARIABLE_COMPAT].option.name);
    int device;

    for (; asked && *asked && *given; given++) {
        if (!rs_config_is_compat_limit(*given, &device) ||
            (device >= 0 && assignment->device >= 0 && device != assignment->device))
            continue;
        tool_say("%s:%u: %.*s is ignored, because the environment sets %.*s, which RMM_COMPAT has "
                 "rmmshim obey: unset %.*s to use the profile's limit",
                 profile.path, assignment->number, (int)strcspn(assignment->entry, "="),
                 assignment->entry, (int)strcspn(*given, "="), *given, (int)strcspn(*given, "="),
                 *given);
        return true;
    }
    return false;
}

static bool is_overridden(char *const *given, const struct assignment *assignment)
{
    char name[RS_NAME_BYTES_MAX];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(assignment->entry, "="), assignment->entry);
    return tool_variable(given, name) ||
           tool_variable(given, rs_variables[assignment->index].option.name) ||
           (assignment->index == RS_VARIABLE_LIMIT && has_compat_limit(given, assignment));
}

char **profile_join(const char *name, char *const *given)
{
    size_t count = 0;
    char **joined;

    if (!find_profile(name) || !read_profile() || !split_lines())
        return NULL;
    while (given[count])
        count++;
    joined = tool_grow(NULL, (count + profile.count + 1) * sizeof(*joined));
    memcpy((void *)joined, (const void *)given, count * sizeof(*joined));
    for (size_t i = 0; i < profile.count; i++) {
        struct assignment *assignment = &profile.assignments[i];
        assignment->is_joined = !is_overridden(given, assignment);
        if (assignment->is_joined)
            joined[count++] = assignment->entry;
    }
    joined[count] = NULL;
    return joined;
}

bool profile_enter(const char *name)
{
    char **joined = profile_join(name, environ);

    if (joined)
        environ = joined; /* the array stays in use; the C library copies it when a variable is set
                             later */
    return joined != NULL;
}

/* ---- diagnostics ---- */

static void print_profile_line(void *data, const char *line)
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
    return (struct rs_diagnostics){.write = print_profile_line, .doubts_are_errors = true};
}

/* ---- the help ---- */

void profile_print_help(void)
{
    char folder[PATH_MAX], summary[SUMMARY_BYTES];
    const char *names[NAMES_MAX + 1];

    puts("\n"
         "Profiles, files of settings that come with rmmshim (NAME of --profile):");
    list_profiles(names, folder);
    for (size_t i = 0; names[i]; i++) {
        read_summary(folder, names[i], summary);
        tool_print_term(names[i], summary);
    }
    putchar('\n');
    tool_print_paragraph(
        "A FILE for --profile sets RMM_ variables, with one VARIABLE=value on each line and "
        "comments after #; systemd (EnvironmentFile=) and docker (--env-file) can read it too. "
        "Options and environment variables, even empty ones, take precedence over the file.");
}
