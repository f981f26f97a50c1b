/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names ---- */

/* Only what follows this prefix is compared, to find misspellings. */
static const char prefix[] = "RMM_";

enum { PREFIX = sizeof(prefix) - 1, DEVICE_TEXT_BYTES = 16 };

/* Variables of RAPIDS RMM and of its build, of programs that use it, of other software named RMM,
 * and those that Kubernetes sets in each container for services named rmm, rmm-pool and so on. */
const char *const rs_names_elsewhere[] = {
    "RMM_LOG_FILE",       "RMM_LOG_LEVEL",      "RMM_LOG_DIR",     "RMM_LOGGING*",
    "RMM_DEBUG_LOG_FILE", "RMM_MANAGED_MEMORY", "RMM_ASYNC_ALLOC", "RMM_ALLOCATOR",
    "RMM_DEVICES",        "RMM_JOBS",           "RMM_TREE",        "RMM_*_SERVICE_*",
    "RMM_SERVICE_*",      "RMM_*_PORT*",        "RMM_PORT*",       NULL};

bool rs_name_begins_as_ours(const char *name)
{
    return strncasecmp(name, prefix, PREFIX) == 0;
}

static bool is_foreign(const char *name)
{
    for (size_t i = 0; rs_names_elsewhere[i]; i++)
        if (fnmatch(rs_names_elsewhere[i], name, 0) == 0)
            return true;
    return false;
}

static size_t digits_at_end(const char *name, size_t length)
{
    size_t digits = 0;

    while (digits < length && name[length - 1 - digits] >= '0' && name[length - 1 - digits] <= '9')
        digits++;
    return digits;
}

/* Splits a device's number off a name: for "RMM_POOL_SIZE_1" *device is 1, and the length of
 * "RMM_POOL_SIZE" is returned.  Without a number *device is -1, all devices. */
static size_t split_device(const char *name, int *device)
{
    size_t length = strlen(name), digits = digits_at_end(name, length);

    *device = -1;
    if (digits == 0 || digits > 2 || digits == length || name[length - 1 - digits] != '_')
        return length;
    *device = atoi(name + length - digits);
    return length - digits - 1;
}

/* Returns the index of the row with this name, or -1. */
static int find_variable(const char *name, size_t length)
{
    for (int i = 0; rs_variables[i].option.name; i++)
        if (strlen(rs_variables[i].option.name) == length &&
            strncmp(rs_variables[i].option.name, name, length) == 0)
            return i;
    return -1;
}

/* Returns the index of the row with the longest name that this name begins with, followed by a '_'.
 * -1 if there is none. */
static int find_beginning(const char *name)
{
    int found = -1;

    for (size_t length = strlen(name); found < 0 && length-- > 0;)
        if (name[length] == '_')
            found = find_variable(name, length);
    return found;
}

/* Returns the largest distance (rs_word_distance) at which `name` counts as a misspelling of
 * `known`: 1 below six letters, since RMM_TAG is another program's and no misspelt RMM_LOG; 2
 * above. It is also 2 for five letters of which the first is right: RMM_LMTI means RMM_LIMIT, but
 * RMM_INIT does not. */
static unsigned tolerance(const char *name, const char *known, size_t known_length)
{
    if (known_length == 5 && name[0] == known[0])
        return 2;
    return rs_word_tolerance(known_length);
}

/* Returns the index of the row that this unknown name misspells, or -1. */
static int find_misspelt(const char *name, size_t length)
{
    unsigned least = ~0u;
    int found = -1;

    for (int i = 0; rs_variables[i].option.name; i++) {
        const char *known = rs_variables[i].option.name + PREFIX;
        size_t known_length = strlen(known);
        unsigned distance = rs_word_distance(name + PREFIX, length - PREFIX, known, known_length);
        if (distance <= tolerance(name + PREFIX, known, known_length) && distance < least) {
            least = distance;
            found = i;
        }
    }
    return found;
}

/* Appends to the text of the diagnostic. */
#define ADD(read, ...) rs_text_add((read)->reason, sizeof((read)->reason), __VA_ARGS__)

/* Appends the variable's name for a device, as in "RMM_LIMIT_2"; only the name if `device` is no
 * valid device or the variable is for the whole process. */
static void add_variable(struct rs_name *read, int index, int device)
{
    ADD(read, "%s", rs_variables[index].option.name);
    if (device >= 0 && device < RS_DEVICES_MAX && rs_variables[index].per_device)
        ADD(read, "_%d", device);
}

static void suggest(struct rs_name *read, enum rs_name_kind kind, int index, int device)
{
    read->kind = kind;
    ADD(read, "unknown variable; did you mean ");
    add_variable(read, index, device);
    ADD(read, "?");
}

/* Handles a guide word (struct rs_guide_word), such as RMM_INITIAL_POOL_SIZE: suggests our variable
 * that means the same, or says how a setting for one device is named. Returns false for any other
 * name. */
static bool suggest_for_guide_word(struct rs_name *read, const char *name, size_t length,
                                   int device)
{
    for (int i = 0; rs_variables[i].option.name; i++)
        for (int j = 0; j < RS_GUIDE_WORDS_MAX && rs_variables[i].guide_words[j].name; j++) {
            const struct rs_guide_word *word = &rs_variables[i].guide_words[j];
            if (strlen(word->name) != length || strncmp(word->name, name, length) != 0)
                continue;
            if (!word->lists_devices) {
                suggest(read, RS_NAME_DOUBTFUL, i, device);
                return true;
            }
            read->kind = RS_NAME_DOUBTFUL;
            ADD(read,
                "unknown variable; a setting for one device ends with the device's number, as in ");
            add_variable(read, i, 0);
            return true;
        }
    return false;
}

/* Suggests the variables of which this name is the beginning, up to a '_': RMM_POOL_SIZE for
 * RMM_POOL.  Returns false when there is none. */
static bool suggest_longer(struct rs_name *read, const char *name, size_t length, int device)
{
    for (int i = 0; rs_variables[i].option.name; i++) {
        const char *known = rs_variables[i].option.name;
        if (length <= PREFIX || strncmp(known, name, length) != 0 || known[length] != '_')
            continue;
        ADD(read, read->kind == RS_NAME_DOUBTFUL ? " or " : "unknown variable; did you mean ");
        read->kind = RS_NAME_DOUBTFUL;
        add_variable(read, i, device);
    }
    if (read->kind == RS_NAME_DOUBTFUL)
        ADD(read, "?");
    return read->kind == RS_NAME_DOUBTFUL;
}

/* True for a suffix that may be meant as a device: GPU0, 100, 007, A, ALL, or nothing.  With any
 * other word the name is another variable, such as RMM_JOB_ID or RMM_LOG_COLOR. */
static bool is_meant_as_device(const char *suffix)
{
    static const char *const words[] = {"GPU", "DEV", "CUDA", "ALL"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(words); i++)
        if (strncasecmp(suffix, words[i], strlen(words[i])) == 0)
            return true;
    return strlen(suffix) <= 1 || (*suffix >= '0' && *suffix <= '9');
}

/* Sets the kind and the reason for a name that is a row's name, '_' and a `suffix` that is no valid
 * device. */
static void refuse_suffix(struct rs_name *read, int index, const char *suffix)
{
    size_t length = strlen(suffix), digits = digits_at_end(suffix, length);
    long number = digits && digits < 10 ? strtol(suffix + length - digits, NULL, 10) : -1;
    int device = number < RS_DEVICES_MAX ? (int)number : -1;

    read->kind = is_meant_as_device(suffix) ? RS_NAME_WRONG : RS_NAME_DOUBTFUL;
    if (!rs_variables[index].per_device) {
        ADD(read, "%s is for the whole process, not for one device",
            rs_variables[index].option.name);
        return;
    }
    if (digits > 0 && digits == length && device < 0) {
        ADD(read, "the number of a device must be below %d: correct it, or set %s for all devices",
            RS_DEVICES_MAX, rs_variables[index].option.name);
        return;
    }
    ADD(read, "'%.40s' is not the number of a device; did you mean ", suffix);
    add_variable(read, index, device);
    ADD(read, "?");
}

/* Fills in *read for a name that is exactly one of ours, with a valid device or without one.
 * Returns false otherwise. */
static bool read_ours(struct rs_name *read, const char *name)
{
    size_t length = split_device(name, &read->device);

    read->index = find_variable(name, length);
    if (read->index < 0 || read->device >= RS_DEVICES_MAX ||
        (read->device >= 0 && !rs_variables[read->index].per_device))
        return false;
    read->kind = RS_NAME_OURS;
    return true;
}

/* Judges a name that is not exactly ours; `upper` is the name in upper case. */
static void judge(struct rs_name *read, const char *name, const char *upper)
{
    int device, beginning, misspelt;
    size_t length = split_device(upper, &device);
    int same = find_variable(upper, length);

    if (same >= 0 && strcmp(name, upper) != 0) {
        suggest(read, RS_NAME_WRONG, same, device);
        return;
    }
    /* Any other name with a lower-case prefix (rmm_pool) is another program's. */
    if (strncmp(name, prefix, PREFIX) != 0 || suggest_for_guide_word(read, upper, length, device) ||
        suggest_longer(read, upper, length, device))
        return;
    beginning = find_beginning(upper);
    misspelt = find_misspelt(upper, length);
    if (misspelt >= 0 && misspelt != beginning)
        suggest(read, RS_NAME_DOUBTFUL, misspelt, device);
    else if (beginning >= 0)
        refuse_suffix(read, beginning, name + strlen(rs_variables[beginning].option.name) + 1);
}

void rs_name_read(const char *name, struct rs_name *read)
{
    char upper[RS_NAME_BYTES_MAX];
    size_t length = 0;

    *read = (struct rs_name){.kind = RS_NAME_FOREIGN};
    if (read_ours(read, name) || is_foreign(name))
        return;
    for (; name[length] && length + 1 < sizeof(upper); length++)
        upper[length] =
            name[length] >= 'a' && name[length] <= 'z' ? (char)(name[length] - 32) : name[length];
    upper[length] = '\0';
    judge(read, name, upper);
}

/* ---- values ---- */

static void scope_clear(struct rs_config_scope *scope)
{
    if (!scope)
        return;
    for (size_t i = 0; i < RS_VARIABLE_COUNT; i++) {
        free((void *)(uintptr_t)scope->source[i].name);
        free((void *)(uintptr_t)scope->source[i].text);
        rs_option_value_clear(&scope->value[i]);
    }
}

void rs_config_values_free(struct rs_config_values *values)
{
    if (!values)
        return;
    for (size_t i = 0; i < RS_DEVICES_MAX; i++) {
        scope_clear(values->device[i]);
        free(values->device[i]);
    }
    scope_clear(&values->general);
    free(values);
}

static struct rs_config_scope *scope_for(struct rs_config_values *values, int device)
{
    if (device < 0)
        return &values->general;
    if (!values->device[device])
        values->device[device] = calloc(1, sizeof(struct rs_config_scope));
    return values->device[device];
}

/* Copies `source` into the scope of the device (-1: all), and returns that scope, in which the
 * caller stores the variable's value. Returns NULL if the variable already has a value, as of two
 * equal names the first counts (as for getenv), and, after a diagnostic, when out of host
 * memory. */
static struct rs_config_scope *claim_value(struct rs_config_values *values, int device, int index,
                                           const struct rs_source *source,
                                           struct rs_diagnostics *diagnostics)
{
    struct rs_config_scope *scope = scope_for(values, device);
    struct rs_source copy;

    if (scope && scope->source[index].text)
        return NULL;
    copy = (struct rs_source){strdup(source->name), strdup(source->text)};
    if (scope && copy.name && copy.text) {
        scope->source[index] = copy;
        return scope;
    }
    free((void *)(uintptr_t)copy.name);
    free((void *)(uintptr_t)copy.text);
    rs_diagnose(diagnostics, source, NULL, "no host memory is left to read this setting");
    return NULL;
}

/* An entry of the environment, whose name begins as ours. */
struct entry {
    char name[RS_NAME_BYTES_MAX];
    struct rs_source source;
    struct rs_name read;
};

/* Splits an entry of the environment and judges its name.  Returns false for an entry without a
 * value, or with a name that is too long to be one of ours. */
static bool take_apart(const char *text, struct entry *entry)
{
    size_t length = strcspn(text, "=");

    if (length >= sizeof(entry->name) || !text[length] ||
        !text[length + 1]) /* NAME= counts as not set */
        return false;
    memcpy(entry->name, text, length);
    entry->name[length] = '\0';
    entry->source = (struct rs_source){entry->name, text + length + 1};
    rs_name_read(entry->name, &entry->read);
    return true;
}

bool rs_config_read_entry(struct rs_config_values *values, const char *text,
                          struct rs_diagnostics *diagnostics)
{
    const struct rs_variable *variable;
    struct rs_config_scope *scope;
    struct entry entry;
    int index;

    if (!take_apart(text, &entry))
        return false;
    if (entry.read.kind == RS_NAME_WRONG)
        rs_diagnose(diagnostics, &entry.source, NULL, "%s", entry.read.reason);
    if (entry.read.kind != RS_NAME_OURS)
        return false;
    index = entry.read.index;
    variable = &rs_variables[index];
    scope = claim_value(values, entry.read.device, index, &entry.source, diagnostics);
    if (scope)
        (void)rs_option_parse(&variable->option, variable->option.type, &scope->source[index],
                              scope->source[index].text,
                              scope->source[index].text + strlen(scope->source[index].text),
                              diagnostics, &scope->value[index]);
    return true;
}

void rs_config_doubt(const char *text, bool is_error, struct rs_diagnostics *diagnostics)
{
    struct entry entry;

    if (!take_apart(text, &entry) || entry.read.kind != RS_NAME_DOUBTFUL)
        return;
    rs_diagnose(diagnostics, &entry.source, NULL, "%s%s",
                is_error ? "" : "ignored: ", entry.read.reason);
    diagnostics->count -= !is_error;
}

static void log_asked(void *data, const char *line)
{
    (void)data;
    rs_log_asked("%s", line);
}

void rs_config_say_ignored(char *const *environment)
{
    struct rs_diagnostics asked = {.write = log_asked};
    struct entry entry;

    for (; *environment; environment++)
        if (rs_name_begins_as_ours(*environment) && take_apart(*environment, &entry) &&
            entry.read.kind == RS_NAME_FOREIGN)
            rs_diagnose(&asked, &entry.source, NULL, "%s",
                        strncmp(*environment, "RMM_LOG", 7) == 0
                            ? "this variable belongs to RAPIDS RMM and is ignored; rmmshim writes "
                              "a log when RMM_LOG is set"
                            : "this is not a variable of rmmshim and is ignored");
}

struct rs_setting rs_config_value(const struct rs_config_values *values, int device, int index)
{
    const struct rs_config_scope *own = device >= 0 ? values->device[device] : NULL;
    bool is_own = own && own->value[index].given;
    const struct rs_config_scope *scope = is_own ? own : &values->general;

    if (!scope->value[index].given)
        return (struct rs_setting){.value = NULL};
    return (struct rs_setting){&scope->value[index], &scope->source[index], is_own};
}

/* ---- the variables of HAMi ---- */

static const char compat_prefix[] = "CUDA_DEVICE_MEMORY_LIMIT";

enum { ALIAS_BYTES = sizeof(compat_prefix) + 3 /* _63 */ };

/* One of HAMi's variables. */
struct alias {
    char name[ALIAS_BYTES];
    int device; /* -1: all */
    const char *text;
};

/* Reads an entry of the environment.  Returns false if it is none of HAMi's variables, or has no
 * value. */
static bool read_alias(const char *entry, struct alias *alias)
{
    size_t length = strcspn(entry, "="), begin = sizeof(compat_prefix) - 1;

    if (strncmp(entry, compat_prefix, begin) != 0 || length >= sizeof(alias->name) ||
        !entry[length] || !entry[length + 1])
        return false;
    snprintf(alias->name, sizeof(alias->name), "%.*s", (int)length, entry);
    alias->text = entry + length + 1;
    /* HAMi writes _1, so _01 is another variable. */
    return split_device(alias->name, &alias->device) == begin && alias->device < RS_DEVICES_MAX &&
           (length <= begin + 2 || alias->name[begin + 1] != '0');
}

static uint64_t unit_of(char suffix)
{
    switch (suffix | 0x20) {
    case 'g':
        return 1ull << 30;
    case 'm':
        return 1ull << 20;
    case 'k':
        return 1ull << 10;
    default:
        return 1;
    }
}

/* Reads a number as strtoul does with base 0 (0x: hexadecimal, 0: octal); one of the letters g, m
 * and k may follow. HAMi-core stops at the first character that it does not expect, and so reads
 * 8GiB as 8 bytes; here that is an error. Returns false after a diagnostic. */
static bool read_alias_bytes(const struct rs_source *source, struct rs_diagnostics *diagnostics,
                             uint64_t *bytes)
{
    const char *text = source->text;
    uint64_t unit;
    char *end;

    errno = 0;
    *bytes = strtoull(text, &end, 0);
    unit = unit_of(*end);
    if (text[0] < '0' || text[0] > '9')
        rs_diagnose(diagnostics, source, text, "a whole number is expected, as in 8g or 8192m");
    else if (end[0] && (unit == 1 || end[1]))
        rs_diagnose(diagnostics, source, unit > 1 ? end + 1 : end,
                    "only one of the letters g, m and k may follow the number, as in 8192m");
    else if (errno == ERANGE || __builtin_mul_overflow(*bytes, unit, bytes) ||
             *bytes > RS_SIZE_ADDRESSABLE)
        rs_diagnose(diagnostics, source, text, "this size is larger than any memory");
    else
        return true;
    return false;
}

bool rs_config_is_compat_limit(const char *entry, int *device)
{
    struct rs_diagnostics diagnostics = {.write = NULL};
    struct rs_source source;
    struct alias alias;
    uint64_t bytes;

    if (!read_alias(entry, &alias))
        return false;
    source = (struct rs_source){alias.name, alias.text};
    *device = alias.device;
    return !read_alias_bytes(&source, &diagnostics, &bytes) || bytes > 0;
}

static bool is_asked(const struct rs_config_values *values)
{
    return rs_config_value(values, -1, RS_VARIABLE_COMPAT).value;
}

/* Returns the name of RMM_LIMIT_<N> or RMM_LIMIT if it sets the device's limit, so that HAMi's
 * variable is ignored; else NULL. */
static const char *limit_in_front(const struct rs_config_values *values, int device)
{
    const struct rs_source *source = rs_config_value(values, device, RS_VARIABLE_LIMIT).source;

    return source && source->name[0] == 'R' ? source->name : NULL;
}

void rs_config_read_compat(struct rs_config_values *values, char *const *environment,
                           struct rs_diagnostics *diagnostics)
{
    struct rs_config_scope *scope;
    struct alias alias;

    if (!is_asked(values))
        return;
    for (; *environment; environment++) {
        struct rs_option_value value = {.given = true, .size = {.kind = RS_SIZE_BYTES}};
        struct rs_source source = {alias.name, NULL};

        if (!read_alias(*environment, &alias) || limit_in_front(values, alias.device))
            continue;
        source.text = alias.text;
        if (read_alias_bytes(&source, diagnostics, &value.size.number) && value.size.number > 0 &&
            (scope = claim_value(values, alias.device, RS_VARIABLE_LIMIT, &source, diagnostics)))
            scope->value[RS_VARIABLE_LIMIT] = value;
    }
}

void rs_config_say_compat(const struct rs_config_values *values, char *const *environment)
{
    struct alias alias;

    for (; is_asked(values) && *environment; environment++) {
        const struct rs_source *source;
        const char *front;

        if (!read_alias(*environment, &alias))
            continue;
        front = limit_in_front(values, alias.device);
        source = rs_config_value(values, alias.device, RS_VARIABLE_LIMIT).source;
        if (front)
            rs_log_asked("RMM_COMPAT: %s=%s is ignored, because %s is set", alias.name, alias.text,
                         front);
        else if (source && strcmp(source->name, alias.name) == 0)
            rs_log_asked("RMM_COMPAT: %s=%s is read as RMM_LIMIT%s", alias.name, alias.text,
                         alias.name + sizeof(compat_prefix) - 1);
        else
            rs_log_asked("RMM_COMPAT: %s=%s is ignored, because 0 means no limit", alias.name,
                         alias.text);
    }
}
