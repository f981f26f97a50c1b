/* SPDX-License-Identifier: Apache-2.0 */
/* A line of a profile gives way to the same variable, and where the library refuses it beside what
 * is set otherwise.  A limit gives way to another limit alone: a program that runs without its
 * limit does more harm than one that does not start. */
#include "tool/profile/join.h"

#include "config/compat.h"
#include "config/config.h"
#include "config/variable_name.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_BYTES = 48, REASON_BYTES = 512 };

struct join {
    const char *path;
    const struct profile_line *lines;
    size_t count;
    char *const *given;
    bool *holds;    /* of each line: it is not overruled */
    bool *is_in;    /* of each line: it is among the entries */
    char **entries; /* what is given, and behind it the lines */
    size_t base;    /* entries that are no lines of the profile */
};

/* RMM_COMPAT has other variables set a limit. */
static bool is_limit(int index)
{
    return index == RS_VARIABLE_LIMIT || index == RS_VARIABLE_LIMIT_JOB ||
           index == RS_VARIABLE_COMPAT;
}

static void say_left_out(const struct join *join, const struct profile_line *line,
                         const char *because, const char *what)
{
    tool_say("%s:%u: %.*s is left out%s%s", join->path, line->number,
             (int)strcspn(line->entry, "="), line->entry, because, what);
}

/* ---- variables that contradict each other, whatever their values ---- */

static bool is_whole(int index)
{
    return index == rs_kind_whole[rs_variables[index].kind];
}

static bool is_pool(int index)
{
    return index == RS_VARIABLE_POOL_SIZE || index == RS_VARIABLE_POOL_MAX_SIZE;
}

/* True for a part of a stack and an expression of the same kind, an arena and a pool.  What is
 * given for all devices wins over the profile's line for one, where the library would take that
 * one. */
static bool contradict(int one, int other)
{
    if (rs_variables[one].kind != rs_variables[other].kind)
        return false;
    return (is_whole(one) && rs_variables[other].builds_a_part) ||
           (is_whole(other) && rs_variables[one].builds_a_part) ||
           (one == RS_VARIABLE_ARENA_SIZE && is_pool(other)) ||
           (other == RS_VARIABLE_ARENA_SIZE && is_pool(one));
}

/* Reads the name of one of our variables.  *value is what it is set to. */
static bool read_entry(const char *entry, char name[RS_NAME_BYTES_MAX], struct rs_name *read,
                       const char **value)
{
    size_t length = strcspn(entry, "=");

    if (!rs_name_begins_as_ours(entry) || length >= RS_NAME_BYTES_MAX || !entry[length])
        return false;
    snprintf(name, RS_NAME_BYTES_MAX, "%.*s", (int)length, entry);
    rs_name_read(name, read);
    *value = entry + length + 1;
    return read->kind == RS_NAME_OURS;
}

/* True where an entry that is given overrules the line, which is told where it is another variable.
 */
static bool is_overruled_by(const struct join *join, const char *entry,
                            const struct profile_line *line)
{
    char name[RS_NAME_BYTES_MAX];
    const char *value;
    struct rs_name read;

    if (!read_entry(entry, name, &read, &value) ||
        (read.device >= 0 && read.device != line->device))
        return false;
    if (read.index == line->index)
        return true;
    /* A name without a value is not set, so it contradicts nothing. */
    if (!*value || !contradict(read.index, line->index))
        return false;
    say_left_out(join, line, ": beside it stands ", name);
    return true;
}

static bool is_overruled(const struct join *join, const struct profile_line *line)
{
    for (char *const *entry = join->given; entry && *entry; entry++)
        if (is_overruled_by(join, *entry, line))
            return true;
    return false;
}

/* ---- limits of another system (RMM_COMPAT) ---- */

/* True where this variable is given with a value, for this device or, with device -1, for all. */
static bool is_given(const struct join *join, int index, int device)
{
    char name[RS_NAME_BYTES_MAX];
    const char *value;
    struct rs_name read;

    for (char *const *entry = join->given; entry && *entry; entry++)
        if (read_entry(*entry, name, &read, &value) && *value && read.index == index &&
            read.device == device)
            return true;
    return false;
}

/* The number of the line of this variable that holds, for this device; join->count: none. */
static size_t find_line(const struct join *join, int index, int device)
{
    size_t i = 0;

    while (i < join->count &&
           !(join->holds[i] && join->lines[i].index == index && join->lines[i].device == device))
        i++;
    return i;
}

static bool is_compat_asked(const struct join *join)
{
    return is_given(join, RS_VARIABLE_COMPAT, -1) ||
           find_line(join, RS_VARIABLE_COMPAT, -1) < join->count;
}

/* A malformed value overrules the limits of all devices, so that the library finds it. */
static void overrule_limits(struct join *join, const char *entry,
                            const struct rs_compat_limit *limit)
{
    char name[RS_NAME_BYTES_MAX];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry, "="), entry);
    for (size_t i = 0; i < join->count; i++) {
        const struct profile_line *line = &join->lines[i];
        if (!join->holds[i] || line->index != RS_VARIABLE_LIMIT ||
            (limit->bytes && limit->device >= 0 && limit->device != line->device))
            continue;
        join->holds[i] = false;
        say_left_out(join, line, ": the limit is that of ", name);
    }
}

static bool has_entry(const struct join *join, const char *text)
{
    for (size_t i = 0; i < join->base; i++)
        if (join->entries[i] == text)
            return true;
    return false;
}

/* The library takes no limit of another system where RMM_LIMIT is set.  Where the profile's
 * RMM_LIMIT holds for the other devices, the device's limit is written as RMM_LIMIT_<N>.  Of two
 * equal names the first one counts, as for getenv. */
static void add_limit(struct join *join, const struct rs_compat_limit *limit)
{
    static char texts[RS_DEVICES_MAX][LIMIT_BYTES]; /* of the environment, so for good */
    char *text = limit->device >= 0 ? texts[limit->device] : NULL;

    if (!text || has_entry(join, text) || is_given(join, RS_VARIABLE_LIMIT, limit->device) ||
        find_line(join, RS_VARIABLE_LIMIT, -1) == join->count)
        return;
    snprintf(text, LIMIT_BYTES, "RMM_LIMIT_%d=%lluB", limit->device,
             (unsigned long long)limit->bytes);
    join->entries[join->base++] = text;
}

static void take_compat_limits(struct join *join)
{
    struct rs_compat_limit limit;

    if (!is_compat_asked(join))
        return;
    for (char *const *entry = join->given; entry && *entry; entry++)
        if (rs_config_read_compat_limit(*entry, &limit))
            overrule_limits(join, *entry, &limit);
    for (char *const *entry = join->given; entry && *entry; entry++)
        if (rs_config_read_compat_limit(*entry, &limit))
            add_limit(join, &limit);
}

/* ---- what the library refuses together, by its values ---- */

static void keep_first(void *data, const char *line)
{
    char *reason = data;

    if (!*reason)
        snprintf(reason, REASON_BYTES, "%s", line);
}

static void fill(struct join *join)
{
    size_t count = join->base;

    for (size_t i = 0; i < join->count; i++)
        if (join->is_in[i])
            join->entries[count++] = join->lines[i].entry;
    join->entries[count] = NULL;
}

/* Has the library judge the entries; what it says first is the reason. */
static bool is_good(struct join *join, char reason[REASON_BYTES])
{
    struct rs_diagnostics diagnostics = {.write = keep_first, .data = reason};
    struct rs_config config;
    unsigned bad;

    reason[0] = '\0';
    fill(join);
    bad = rs_config_parse(join->entries, &diagnostics, &config);
    rs_config_free(&config);
    return bad == 0;
}

/* One pass: takes in each line that is good beside those that are in.  True when one was. */
static bool take_in(struct join *join, bool says_why)
{
    char reason[REASON_BYTES];
    bool has_new = false;

    for (size_t i = 0; i < join->count; i++) {
        if (!join->holds[i] || join->is_in[i])
            continue;
        join->is_in[i] = true;
        if (is_good(join, reason)) {
            has_new = true;
            continue;
        }
        join->is_in[i] = false;
        if (says_why)
            say_left_out(join, &join->lines[i], ": ", reason);
    }
    return has_new;
}

/* Leaves out what the library refuses beside what is given.  Where that is bad by itself, or beside
 * the profile's limits, all lines stay, and the library says what is wrong. */
static void choose(struct join *join)
{
    char reason[REASON_BYTES];

    memcpy(join->is_in, join->holds, join->count * sizeof(*join->holds));
    if (is_good(join, reason))
        return;
    for (size_t i = 0; i < join->count; i++)
        join->is_in[i] = join->holds[i] && is_limit(join->lines[i].index);
    if (!is_good(join, reason)) {
        memcpy(join->is_in, join->holds, join->count * sizeof(*join->holds));
        return;
    }
    while (take_in(join, false)) /* one line may need another one that stands below it */
        ;
    (void)take_in(join, true);
}

/* ---- all ---- */

static void begin(struct join *join)
{
    for (; join->given && join->given[join->base]; join->base++)
        join->entries[join->base] = join->given[join->base];
    for (size_t i = 0; i < join->count; i++)
        join->holds[i] = !is_overruled(join, &join->lines[i]);
}

char **profile_join_lines(const char *path, const struct profile_line *lines, size_t count,
                          char *const *given)
{
    struct join join = {.path = path, .lines = lines, .count = count, .given = given};
    size_t given_count = 0;

    while (given && given[given_count])
        given_count++;
    join.entries = calloc(given_count + count + RS_DEVICES_MAX + 1, sizeof(*join.entries));
    join.holds = calloc(count + 1, sizeof(*join.holds));
    join.is_in = calloc(count + 1, sizeof(*join.is_in));
    if (join.entries && join.holds && join.is_in) {
        begin(&join);
        take_compat_limits(&join);
        choose(&join);
        fill(&join);
    } else {
        tool_say("out of memory");
        free((void *)join.entries);
        join.entries = NULL;
    }
    free(join.holds);
    free(join.is_in);
    return join.entries;
}
