/* SPDX-License-Identifier: Apache-2.0 */
#include "base/option.h"

#include "base/check.h"
#include "base/output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { EXPANDED_BYTES = 256 }; /* of a size with %q{VAR} */

static const char *const boolean_words[] = {"0",  "1",     "no",   "yes", "off",
                                            "on", "false", "true", NULL};

static bool is_word(const char *begin, const char *end, const char *word)
{
    size_t length = (size_t)(end - begin);

    return strlen(word) == length && strncasecmp(begin, word, length) == 0;
}

static int word_index(const char *const *words, const char *begin, const char *end)
{
    for (int i = 0; words[i]; i++)
        if (is_word(begin, end, words[i]))
            return i;
    return -1;
}

/* Returns the only word that begins with [begin, end), or NULL if there is none or several. */
static const char *completed_word(const char *begin, const char *end, const char *const *words)
{
    size_t length = (size_t)(end - begin);
    const char *found = NULL;

    for (; *words; words++) {
        if (strncasecmp(*words, begin, length) != 0)
            continue;
        if (found)
            return NULL;
        found = *words;
    }
    return found;
}

static bool parse_word(const char *const *words, const struct rs_source *source, const char *begin,
                       const char *end, struct rs_diagnostics *diagnostics, uint64_t *index)
{
    int found = word_index(words, begin, end);
    char known[160] = "";
    const char *nearest;

    if (found >= 0) {
        *index = (uint64_t)found;
        return true;
    }
    nearest = completed_word(begin, end, words);
    if (!nearest)
        nearest = rs_nearest_word(begin, end, words);
    if (nearest) {
        rs_diagnose(diagnostics, source, begin, "unknown value; did you mean '%s'?", nearest);
        return false;
    }
    for (size_t i = 0, length = 0; words[i] && length < sizeof(known); i++)
        length += (size_t)snprintf(known + length, sizeof(known) - length, " %s", words[i]);
    rs_diagnose(diagnostics, source, begin, "unknown value; known are%s", known);
    return false;
}

/* Returns 16 for a character that is no digit. */
static uint64_t digit_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return (uint64_t)(digit - '0');
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? (uint64_t)(digit - 'a') + 10 : 16;
}

static bool parse_count(const struct rs_source *source, const char *begin, const char *end,
                        struct rs_diagnostics *diagnostics, uint64_t *count)
{
    bool hexadecimal = end - begin > 2 && begin[0] == '0' && (begin[1] | 0x20) == 'x';
    uint64_t base = hexadecimal ? 16 : 10;

    *count = 0;
    for (const char *at = begin + (hexadecimal ? 2 : 0); at < end; at++) {
        uint64_t digit = digit_value(*at);
        if (digit >= base || __builtin_mul_overflow(*count, base, count) ||
            __builtin_add_overflow(*count, digit, count)) {
            rs_diagnose(diagnostics, source, at, "expected a whole number");
            return false;
        }
    }
    if (begin == end)
        rs_diagnose(diagnostics, source, begin, "a number is missing");
    return begin < end;
}

/* Suggests a percentage for a fraction of a byte: 12.5% for 0.125.  Digits are copied, since
 * printf of a double would use the locale's decimal point. */
static void ask_for_percentage(const struct rs_source *source, const char *at, const char *number,
                               struct rs_diagnostics *diagnostics)
{
    const char *digits = strchr(number, '.') + 1;
    size_t count = strlen(digits);
    int percent = (count > 0 ? digits[0] - '0' : 0) * 10 + (count > 1 ? digits[1] - '0' : 0);

    rs_diagnose(diagnostics, source, at, "bytes are whole numbers; did you mean %d%s%s%%?", percent,
                count > 2 ? "." : "", count > 2 ? digits + 2 : "");
}

/* Returns the unit that the user probably left out after this number: GiB below 1024, MiB below
 * 1048576, else "". */
static const char *missing_unit(uint64_t bytes)
{
    return bytes < 1024 ? "GiB" : bytes < 1 << 20 ? "MiB" : "";
}

/* Reports a number of bytes with a decimal point, which rounds down to `bytes`. */
static void ask_about_point(const struct rs_source *source, const char *at, const char *number,
                            uint64_t bytes, struct rs_diagnostics *diagnostics)
{
    const char *part = strchr(number, '.') + 1;
    bool is_whole = part[strspn(part, "0")] == '\0';

    if (is_whole && bytes == 0)
        rs_diagnose(diagnostics, source, at, "bytes are whole numbers");
    else if (is_whole)
        rs_diagnose(diagnostics, source, at, "bytes are whole numbers; did you mean %s%llu%s?",
                    bytes == 1 ? "100% or " : "", (unsigned long long)bytes, missing_unit(bytes));
    else if (bytes == 0)
        ask_for_percentage(source, at, number, diagnostics);
    else
        rs_diagnose(diagnostics, source, at, "bytes are whole numbers; did you mean %sGiB?",
                    number);
}

/* Catches sizes whose unit was probably forgotten: 0.5 probably means half of the memory, 1.0
 * all of it, 8 means 8GiB, and 4096 means 4096MiB.  Returns false after a diagnostic that
 * suggests it. */
static bool check_unit(const struct rs_option *row, const struct rs_source *source,
                       const char *begin, const char *end, uint64_t bytes,
                       struct rs_diagnostics *diagnostics)
{
    char number[24]; /* 20 digits (the most of a size), a decimal point, and a zero byte */
    const char *at = begin;
    size_t length = 0, unit_length;

    for (; begin + length < end && length + 1 < sizeof(number); length++) {
        if (!strchr("0123456789.", begin[length]))
            break;
        number[length] = begin[length];
    }
    number[length] = '\0';
    begin += length;
    begin += strspn(begin, " ");
    unit_length = begin < end ? (size_t)(end - begin) : 0;
    if (unit_length > 1 || (unit_length == 1 && *begin != 'B' && *begin != 'b'))
        return true;
    if (strchr(number, '.')) {
        ask_about_point(source, at, number, bytes, diagnostics);
        return false;
    }
    if (unit_length || bytes == 0 || bytes >= row->unit_below)
        return true;
    rs_diagnose(diagnostics, source, at,
                "the unit is missing (%sB is %s bytes); did you mean %s%s?", number, number, number,
                missing_unit(bytes));
    return false;
}

static bool check_share(const struct rs_option *row, const struct rs_source *source,
                        const char *begin, uint64_t share, struct rs_diagnostics *diagnostics)
{
    if (share > RS_SIZE_WHOLE && !row->beyond_whole)
        rs_diagnose(diagnostics, source, begin, "more than 100%%");
    else if (share > 0 || row->minimum == 0)
        return true;
    else
        rs_diagnose(diagnostics, source, begin, "must be more than 0");
    return false;
}

static bool parse_plain_size(const struct rs_option *row, const struct rs_source *source,
                             const char *begin, const char *end, struct rs_diagnostics *diagnostics,
                             struct rs_size *size)
{
    const char *at, *reason;
    uint64_t least = row->minimum;
    char bound[RS_SIZE_TEXT_BYTES];

    if (!rs_size_parse(begin, end, size, &at, &reason)) {
        rs_diagnose(diagnostics, source, at, "%s", reason);
        return false;
    }
    if (size->kind != RS_SIZE_BYTES)
        return check_share(row, source, begin, size->number, diagnostics);
    if (!check_unit(row, source, begin, end, size->number, diagnostics))
        return false;
    if (row->multiple_of && size->number > 0)
        least = rs_max(least, row->multiple_of);
    if (size->number < least) {
        rs_diagnose(diagnostics, source, begin, "less than %s",
                    rs_size_format((size_t)least, bound));
        return false;
    }
    if (row->maximum && size->number > row->maximum) {
        rs_diagnose(diagnostics, source, begin, "more than %s",
                    rs_size_format((size_t)row->maximum, bound));
        return false;
    }
    if (row->multiple_of)
        size->number -= size->number % row->multiple_of;
    return true;
}

/* A size may hold %q{VAR}.  What is wrong with its value is shown in the value. */
static bool parse_size(const struct rs_option *row, const struct rs_source *source,
                       const char *begin, const char *end, struct rs_diagnostics *diagnostics,
                       struct rs_size *size)
{
    const char *at, *reason;
    char text[EXPANDED_BYTES];
    struct rs_source expanded = {source->name, text};

    if (!memmem(begin, (size_t)(end - begin), "%q", 2))
        return parse_plain_size(row, source, begin, end, diagnostics, size);
    if (!rs_path_expand_variables(begin, end, text, sizeof(text), &at, &reason)) {
        rs_diagnose(diagnostics, source, at, "%s", reason);
        return false;
    }
    return parse_plain_size(row, &expanded, text, text + strlen(text), diagnostics, size);
}

static bool parse_range(const struct rs_option *row, const struct rs_source *source,
                        const char *begin, const char *end, struct rs_diagnostics *diagnostics,
                        struct rs_option_value *value)
{
    const char *dash = memchr(begin, '-', (size_t)(end - begin));

    if (!dash || dash == begin) {
        rs_diagnose(diagnostics, source, begin, "expected two sizes, as in 256KiB-4MiB");
        return false;
    }
    if (!parse_size(row, source, begin, dash, diagnostics, &value->size) ||
        !parse_size(row, source, dash + 1, end, diagnostics, &value->size_to))
        return false;
    if (value->size.kind != RS_SIZE_BYTES || value->size_to.kind != RS_SIZE_BYTES) {
        rs_diagnose(diagnostics, source, value->size.kind != RS_SIZE_BYTES ? begin : dash + 1,
                    "a range takes sizes in bytes, not percentages");
        return false;
    }
    if (value->size.number > value->size_to.number) {
        rs_diagnose(diagnostics, source, begin, "the first size must be the smaller one");
        return false;
    }
    return true;
}

/* Adds one element of a list: a number of bytes that the list does not have yet. */
static bool add_size(const struct rs_option *row, const struct rs_source *source, const char *begin,
                     const char *end, struct rs_diagnostics *diagnostics, struct rs_sizes *sizes)
{
    struct rs_size size;

    while (begin < end && *begin == ' ')
        begin++;
    while (end > begin && end[-1] == ' ')
        end--;
    if (!parse_size(row, source, begin, end, diagnostics, &size))
        return false;
    if (size.kind != RS_SIZE_BYTES) {
        rs_diagnose(diagnostics, source, begin, "a list takes sizes in bytes, not percentages");
        return false;
    }
    if (sizes->count == RS_SIZES_MAX) {
        rs_diagnose(diagnostics, source, begin, "more than %d sizes", RS_SIZES_MAX);
        return false;
    }
    for (size_t i = 0; i < sizes->count; i++)
        if (sizes->bytes[i] == size.number) {
            rs_diagnose(diagnostics, source, begin, "is given twice");
            return false;
        }
    sizes->bytes[sizes->count++] = (size_t)size.number;
    return true;
}

/* Returns the list as text, "256KiB+300000B", or NULL when out of host memory. */
static char *format_sizes(const struct rs_sizes *sizes)
{
    char *text = calloc(sizes->count, RS_SIZE_TEXT_BYTES + 1), size[RS_SIZE_TEXT_BYTES];

    for (size_t i = 0; text && i < sizes->count; i++) {
        if (i > 0)
            strcat(text, "+");
        strcat(text, rs_size_format(sizes->bytes[i], size));
    }
    return text;
}

static bool parse_sizes(const struct rs_option *row, const struct rs_source *source,
                        const char *begin, const char *end, struct rs_diagnostics *diagnostics,
                        char **text)
{
    struct rs_sizes sizes = {.count = 0};

    for (;; begin++) {
        const char *plus = memchr(begin, '+', (size_t)(end - begin));
        if (!add_size(row, source, begin, plus ? plus : end, diagnostics, &sizes))
            return false;
        if (!plus)
            break;
        begin = plus;
    }
    *text = format_sizes(&sizes);
    if (!*text)
        rs_diagnose(diagnostics, source, NULL, "out of host memory");
    return *text;
}

struct rs_sizes rs_option_sizes(const char *text)
{
    struct rs_sizes sizes = {.count = 0};
    const char *at, *reason;
    struct rs_size size;

    while (text && *text && sizes.count < RS_SIZES_MAX) {
        size_t length = strcspn(text, "+");
        bool is_size = rs_size_parse(text, text + length, &size, &at, &reason);
        RS_ASSERT(is_size); /* rs_option_parse accepted this text before */
        (void)is_size;
        sizes.bytes[sizes.count++] = (size_t)size.number;
        text += length + (text[length] == '+');
    }
    return sizes;
}

static bool parse_exponent(const struct rs_option *row, const struct rs_source *source,
                           const char *begin, const char *end, struct rs_diagnostics *diagnostics,
                           struct rs_size *size)
{
    uint64_t exponent;

    if (!parse_count(source, begin, end, diagnostics, &exponent))
        return false;
    if (exponent >= 64) {
        rs_diagnose(diagnostics, source, begin, "expected an exponent of two below 64");
        return false;
    }
    *size = (struct rs_size){1ull << exponent, RS_SIZE_BYTES};
    if (size->number < row->minimum || (row->maximum && size->number > row->maximum)) {
        rs_diagnose(diagnostics, source, begin, "2^%llu is out of bounds for %s",
                    (unsigned long long)exponent, row->name);
        return false;
    }
    return true;
}

bool rs_option_parse(const struct rs_option *row, enum rs_option_type type,
                     const struct rs_source *source, const char *begin, const char *end,
                     struct rs_diagnostics *diagnostics, struct rs_option_value *value)
{
    struct rs_option_value parsed = {.given = true};

    switch (type) {
    case RS_OPTION_SIZE:
        if (row->none && is_word(begin, end, "none"))
            parsed.none = true;
        else if (!parse_size(row, source, begin, end, diagnostics, &parsed.size))
            return false;
        break;
    case RS_OPTION_EXPONENT:
        if (!parse_exponent(row, source, begin, end, diagnostics, &parsed.size))
            return false;
        break;
    case RS_OPTION_SIZES:
        if (!parse_sizes(row, source, begin, end, diagnostics, &parsed.text))
            return false;
        break;
    case RS_OPTION_RANGE:
        if (!parse_range(row, source, begin, end, diagnostics, &parsed))
            return false;
        break;
    case RS_OPTION_COUNT:
        if (!parse_count(source, begin, end, diagnostics, &parsed.count))
            return false;
        if (parsed.count < row->minimum || (row->maximum && parsed.count > row->maximum)) {
            rs_diagnose(diagnostics, source, begin, "out of bounds for %s", row->name);
            return false;
        }
        break;
    case RS_OPTION_BOOLEAN:
        if (!parse_word(boolean_words, source, begin, end, diagnostics, &parsed.count))
            return false;
        parsed.count &= 1; /* the words alternate: no, yes */
        if (parsed.count && row->only_no) {
            rs_diagnose(diagnostics, source, begin, "%s", row->only_no);
            return false;
        }
        break;
    case RS_OPTION_WORD:
        if (!parse_word(row->words, source, begin, end, diagnostics, &parsed.count))
            return false;
        break;
    case RS_OPTION_TEXT:
        if (begin == end) {
            rs_diagnose(diagnostics, source, begin, "%s is empty", row->name);
            return false;
        }
        parsed.text = strndup(begin, (size_t)(end - begin));
        if (!parsed.text) {
            rs_diagnose(diagnostics, source, begin, "out of host memory");
            return false;
        }
        break;
    }
    rs_option_value_clear(value);
    *value = parsed;
    return true;
}

static void ignore_line(void *data, const char *line)
{
    (void)data;
    (void)line;
}

int rs_option_defaults(const struct rs_option *rows, struct rs_option_value *values)
{
    struct rs_diagnostics nobody = {.write = ignore_line};

    for (size_t i = 0; rows[i].name; i++) {
        const char *text = rows[i].default_text;
        struct rs_source source = {rows[i].name, text};

        values[i] = (struct rs_option_value){.given = false};
        if (!text ||
            (!*text && (rows[i].type == RS_OPTION_TEXT || rows[i].type == RS_OPTION_SIZES)))
            continue;
        if (!rs_option_parse(&rows[i], rows[i].type, &source, text, text + strlen(text), &nobody,
                             &values[i]))
            return -ENOMEM; /* a unit test parses every default: only memory can be missing */
        values[i].given = false;
    }
    return 0;
}

void rs_option_value_clear(struct rs_option_value *value)
{
    free(value->text);
    value->text = NULL;
}

void rs_option_store(const struct rs_option *row, const struct rs_option_value *value, void *config,
                     size_t total_bytes, size_t free_bytes)
{
    void *field = (char *)config + row->offset;

    switch (row->type) {
    case RS_OPTION_SIZE:
    case RS_OPTION_EXPONENT:
        *(size_t *)field =
            value->none ? SIZE_MAX : rs_size_resolve(value->size, total_bytes, free_bytes);
        break;
    case RS_OPTION_SIZES:
        *(struct rs_sizes *)field = rs_option_sizes(value->text);
        break;
    case RS_OPTION_RANGE:
        *(struct rs_size_range *)field = (struct rs_size_range){
            rs_size_resolve(value->size, total_bytes, free_bytes),
            rs_size_resolve(value->size_to, total_bytes, free_bytes),
        };
        break;
    case RS_OPTION_COUNT:
        *(uint64_t *)field = value->count;
        break;
    case RS_OPTION_BOOLEAN:
        *(bool *)field = value->count != 0;
        break;
    case RS_OPTION_WORD:
        *(int *)field = (int)value->count;
        break;
    case RS_OPTION_TEXT:
        *(const char **)field = value->text;
        break;
    }
}

const struct rs_option *rs_option_find(const struct rs_option *rows, const char *begin,
                                       const char *end, enum rs_option_type *type)
{
    for (; rows->name; rows++) {
        if (is_word(begin, end, rows->name)) {
            *type = rows->type;
            return rows;
        }
        for (size_t i = 0; i < RS_OPTION_ALIASES_MAX && rows->aliases[i].name; i++) {
            if (is_word(begin, end, rows->aliases[i].name)) {
                *type = rows->aliases[i].type;
                return rows;
            }
        }
    }
    return NULL;
}

const char *rs_option_type_text(const struct rs_option *row, char *buffer, size_t buffer_bytes)
{
    size_t length = 0;

    switch (row->type) {
    case RS_OPTION_SIZE:
        return row->none ? "SIZE|none" : "SIZE";
    case RS_OPTION_EXPONENT:
        return "EXPONENT";
    case RS_OPTION_SIZES:
        return "SIZE+SIZE+...";
    case RS_OPTION_RANGE:
        return "SIZE-SIZE";
    case RS_OPTION_COUNT:
        return "COUNT";
    case RS_OPTION_BOOLEAN:
        return row->only_no ? "0" : "0|1";
    case RS_OPTION_TEXT:
        return "TEXT";
    case RS_OPTION_WORD:
        break;
    }
    buffer[0] = '\0';
    for (size_t i = 0; row->words[i] && length < buffer_bytes; i++)
        length += (size_t)snprintf(buffer + length, buffer_bytes - length, "%s%s", i ? "|" : "",
                                   row->words[i]);
    return buffer;
}
