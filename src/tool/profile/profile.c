/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/profile/profile.h"

#include "base/check.h"
#include "config/config.h"
#include "config/variable_name.h"
#include "tool/library.h"
#include "tool/profile/join.h"
#include "tool/profile/profile_line.h"
#include "tool/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".env"

enum { FILE_BYTES_MAX = 64 << 10, LINES_MAX = 512, SUMMARY_BYTES = 256 };

/* The folder of the profiles, relative to the directory of this command: installed, installed
 * without a prefix, and in the build tree. */
static const char *const folders[] = {
    "../" RMMSHIM_DATADIR "/rmmshim/profiles",
    "../share/rmmshim/profiles",
    "profiles",
};

struct profile {
    char path[PATH_MAX];
    char text[FILE_BYTES_MAX + 1]; /* the file; ends of lines have become ends of texts */
    struct profile_line lines[LINES_MAX];
    size_t count;
};

static struct profile *entered;

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

void profile_each(void (*visit)(void *data, const char *name, const char *summary), void *data)
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
static bool find(const char *name, char path[PATH_MAX])
{
    char places[RS_ARRAY_LENGTH(folders)][PATH_MAX];
    const char *pointers[RS_ARRAY_LENGTH(folders)];
    struct names names = {.count = 0};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(folders); i++) {
        snprintf(places[i], PATH_MAX, "%s/%s" SUFFIX, folders[i], name);
        pointers[i] = places[i];
    }
    if (*name && !strchr(name, '/') &&
        library_find_beside(pointers, RS_ARRAY_LENGTH(folders), path))
        return true;
    if (strchr(name, '/') || access(name, F_OK) == 0) {
        snprintf(path, PATH_MAX, "%s", name);
        return true;
    }
    profile_each(add_name, &names);
    tool_say_unknown("profile", name, names.words);
    return false;
}

/* ---- the file ---- */

static bool read_text(struct profile *profile)
{
    int fd = open(profile->path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got = fd < 0 ? -1 : 1;

    while (got > 0 && length < sizeof(profile->text)) {
        got = read(fd, profile->text + length, sizeof(profile->text) - length);
        length += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        tool_say("--profile: %s: %s", profile->path, strerror(errno));
    else if (length > FILE_BYTES_MAX)
        tool_say("--profile: %s: larger than 64 KiB", profile->path);
    else if (memchr(profile->text, '\0', length))
        tool_say("--profile: %s: not a file of text", profile->path);
    if (fd >= 0)
        (void)close(fd);
    return got == 0 && length <= FILE_BYTES_MAX && !memchr(profile->text, '\0', length);
}

/* The line of the same variable, or NULL. */
static const struct profile_line *find_line(const struct profile *profile, int index, int device)
{
    for (size_t i = 0; i < profile->count; i++)
        if (profile->lines[i].index == index && profile->lines[i].device == device)
            return &profile->lines[i];
    return NULL;
}

/* Adds an assignment, or a comment.  False after saying what is wrong. */
static bool add_line(struct profile *profile, char *text, unsigned number)
{
    char reason[PROFILE_REASON_BYTES];
    struct profile_line parsed;
    const struct profile_line *other;

    if (!profile_line_parse(text, &parsed, reason)) {
        tool_say("%s:%u: %s", profile->path, number, reason);
        return false;
    }
    if (!parsed.entry)
        return true;
    other = find_line(profile, parsed.index, parsed.device);
    if (other || profile->count == LINES_MAX) {
        if (other)
            tool_say("%s:%u: line %u sets the same variable", profile->path, number, other->number);
        else
            tool_say("%s:%u: more than %d assignments", profile->path, number, LINES_MAX);
        return false;
    }
    parsed.number = number;
    profile->lines[profile->count++] = parsed;
    return true;
}

static bool split(struct profile *profile)
{
    bool is_good = true;
    unsigned number = 1;
    char *end;

    for (char *line = profile->text; *line; line = end, number++) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        is_good = add_line(profile, line, number) && is_good;
    }
    return is_good;
}

/* What the library says of the lines, taken together as nothing else were set. */
static bool check(struct profile *profile)
{
    struct rs_diagnostics diagnostics = profile_diagnostics(profile);
    struct rs_config config;
    char *alone[LINES_MAX + 1] = {NULL};
    unsigned bad;

    for (size_t i = 0; i < profile->count; i++)
        alone[i] = profile->lines[i].entry;
    bad = rs_config_parse(alone, &diagnostics, &config);
    rs_config_free(&config);
    return bad == 0;
}

struct profile *profile_read(const char *name)
{
    struct profile *profile = calloc(1, sizeof(*profile));

    if (!profile) {
        tool_say("out of memory");
        return NULL;
    }
    if (find(name, profile->path) && read_text(profile) && split(profile) && check(profile))
        return profile;
    profile_free(profile);
    return NULL;
}

void profile_free(struct profile *profile)
{
    free(profile);
}

/* ---- what wins ---- */

char **profile_join(const struct profile *profile, char *const *given)
{
    return profile_join_lines(profile->path, profile->lines, profile->count, given);
}

bool profile_enter(const char *name)
{
    char **joined;

    entered = profile_read(name);
    joined = entered ? profile_join(entered, environ) : NULL;
    if (joined)
        environ = joined; /* what is set later is copied by the C library */
    return joined != NULL;
}

/* ---- diagnostics ---- */

/* True where the line begins with this assignment's variable, and its value is the profile's. */
static bool is_about(const char *line, const struct profile_line *assignment, bool is_entered)
{
    char name[RS_NAME_BYTES_MAX];
    size_t length = strcspn(assignment->entry, "=");

    if (strncmp(assignment->entry, line, length + 1) != 0)
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)length, assignment->entry);
    return !is_entered || getenv(name) == assignment->entry + length + 1;
}

static void print_line(void *data, const char *line)
{
    const struct profile *profile = data ? data : entered;

    for (size_t i = 0; profile && i < profile->count; i++)
        if (is_about(line, &profile->lines[i], !data)) {
            tool_say("%s:%u: %s", profile->path, profile->lines[i].number, line);
            return;
        }
    tool_say("%s", line);
}

struct rs_diagnostics profile_diagnostics(struct profile *profile)
{
    return (struct rs_diagnostics){.write = print_line, .data = profile};
}

/* ---- the help ---- */

static void print_profile(void *data, const char *name, const char *summary)
{
    (void)data;
    printf("  %-7s %s\n", name, summary);
}

void profile_print_help(void)
{
    puts("\n--profile NAME|FILE: a file of RMM_ variables, one VARIABLE=value a line, comments "
         "after "
         "#, as\n"
         "systemd (EnvironmentFile=) and docker (--env-file) read it too.  What options or the "
         "environment\n"
         "set wins.  NAME is one of these:");
    profile_each(print_profile, NULL);
}
