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

enum { EXPANDED_BYTES = 256 }; /* room for a size after each %q{VAR} in it was replaced */

/* The arguments that the parsers below have in common. */
struct parse {
    const struct rs_option *row;
    const struct rs_source *source;
    struct rs_diagnostics *diagnostics;
};

static const char *const boolean_words[] = {RS_OPTION_BOOLEAN_WORDS, NULL};

static bool is_word(const char *begin, const char *end, const char *word)
{
    size_t length = (size_t)(end - begin);

    return strlen(word) == length && strncasecmp(begin, word, length) == 0;
}

int rs_option_word(const char *const *words, const char *begin, const char *end)
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

static bool parse_word(const struct parse *of, const char *const *words, const char *begin,
                       const char *end, uint64_t *index)
{
    int found = rs_option_word(words, begin, end);
    char known[160] = "";
    const char *nearest;

    if (found >= 0) {
        *index = (uint64_t)found;
        return true;
    }
    nearest = completed_word(begin, end, words);
    if (!nearest)
        nearest = rs_nearest_word(begin, end, words);
    if (nearest)
        return rs_diagnose(of->diagnostics, of->source, begin, "unknown value; did you mean '%s'?",
                           nearest);
    for (size_t i = 0, length = 0; words[i] && length < sizeof(known); i++)
        length += (size_t)snprintf(known + length, sizeof(known) - length, "%s %s",
                                   i > 0 ? "," : "", words[i]);
    return rs_diagnose(of->diagnostics, of->source, begin,
                       "unknown value; the possible values are%s", known);
}

/* Returns the value of a hexadecimal digit; 16 for any other character. */
static uint64_t digit_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return (uint64_t)(digit - '0');
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? (uint64_t)(digit - 'a') + 10 : 16;
}

static bool parse_count(const struct parse *of, const char *begin, const char *end, uint64_t *count)
{
    bool hexadecimal = end - begin > 2 && begin[0] == '0' && (begin[1] | 0x20) == 'x';
    uint64_t base = hexadecimal ? 16 : 10;

    *count = 0;
    for (const char *at = begin + (hexadecimal ? 2 : 0); at < end; at++) {
        uint64_t digit = digit_value(*at);
        if (digit >= base || __builtin_mul_overflow(*count, base, count) ||
            __builtin_add_overflow(*count, digit, count))
            return rs_diagnose(of->diagnostics, of->source, at, "expected a whole number");
    }
    return begin < end || rs_diagnose(of->diagnostics, of->source, begin, "a number is missing");
}

/* Suggests a percentage for a fraction of a byte: 12.5% for 0.125.  Digits are copied, since
 * printf of a double would use the locale's decimal point. */
static bool ask_for_percentage(const struct parse *of, const char *at, const char *number)
{
    const char *digits = strchr(number, '.') + 1;
    size_t count = strlen(digits);
    int percent = (count > 0 ? digits[0] - '0' : 0) * 10 + (count > 1 ? digits[1] - '0' : 0);

    return rs_diagnose(of->diagnostics, of->source, at,
                       "a number of bytes has no decimal point; did you mean %d%s%s%%?", percent,
                       count > 2 ? "." : "", count > 2 ? digits + 2 : "");
}

/* Returns the unit that the user probably left out after this number: GiB below 1024, MiB below
 * 1048576, else "". */
static const char *missing_unit(uint64_t bytes)
{
    return bytes < 1024 ? "GiB" : bytes < 1 << 20 ? "MiB" : "";
}

/* Reports a number of bytes with a decimal point, which rounds down to `bytes`. */
static bool ask_about_point(const struct parse *of, const char *at, const char *number,
                            uint64_t bytes)
{
    const char *part = strchr(number, '.') + 1;
    bool is_whole = part[strspn(part, "0")] == '\0';

    if (is_whole ? bytes == 0 : !*missing_unit(bytes))
        return rs_diagnose(of->diagnostics, of->source, at,
                           "a number of bytes has no decimal point");
    if (is_whole)
        return rs_diagnose(of->diagnostics, of->source, at,
                           "a number of bytes has no decimal point; did you mean %s%llu%s?",
                           bytes == 1 ? "100% or " : "", (unsigned long long)bytes,
                           missing_unit(bytes));
    if (bytes == 0)
        return ask_for_percentage(of, at, number);
    return rs_diagnose(of->diagnostics, of->source, at,
                       "a number of bytes has no decimal point; did you mean %s%s?", number,
                       missing_unit(bytes));
}

/* Catches sizes whose unit was probably forgotten: 0.5 probably means half of the memory, 1.0
 * all of it, 8 means 8GiB, and 4096 means 4096MiB.  Returns false after a diagnostic that
 * suggests the size with its unit. */
static bool check_unit(const struct parse *of, const char *begin, const char *end, uint64_t bytes)
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
        return ask_about_point(of, at, number, bytes);
    }
    if (unit_length || bytes == 0 || bytes >= of->row->unit_below)
        return true;
    return rs_diagnose(of->diagnostics, of->source, at,
                       "the unit is missing (%sB is %s byte%s); did you mean %s%s?", number, number,
                       bytes == 1 ? "" : "s", number, missing_unit(bytes));
}

static bool check_share(const struct parse *of, const char *begin, uint64_t share)
{
    if (share > RS_SIZE_WHOLE && !of->row->beyond_whole)
        return rs_diagnose(of->diagnostics, of->source, begin, "more than 100%%");
    return share > 0 || of->row->minimum == 0 ||
           rs_diagnose(of->diagnostics, of->source, begin, "the value must be more than 0");
}

static bool parse_plain_size(const struct parse *of, const char *begin, const char *end,
                             struct rs_size *size)
{
    const char *at, *reason;
    uint64_t least = of->row->minimum;
    char bound[RS_SIZE_TEXT_BYTES];

    if (!rs_size_parse(begin, end, size, &at, &reason))
        return rs_diagnose(of->diagnostics, of->source, at, "%s", reason);
    if (size->kind != RS_SIZE_BYTES)
        return check_share(of, begin, size->number);
    if (!check_unit(of, begin, end, size->number))
        return false;
    if (of->row->multiple_of && size->number > 0)
        least = rs_max(least, of->row->multiple_of);
    if (size->number < least)
        return rs_diagnose(of->diagnostics, of->source, begin, "less than %s",
                           rs_size_format((size_t)least, bound));
    if (of->row->maximum && size->number > of->row->maximum)
        return rs_diagnose(of->diagnostics, of->source, begin, "more than %s",
                           rs_size_format((size_t)of->row->maximum, bound));
    if (of->row->multiple_of)
        size->number -= size->number % of->row->multiple_of;
    return true;
}

/* Parses a size that may contain %q{VAR}. A diagnostic about the variable's value shows the text
 * after the replacement. */
static bool parse_any_size(const struct parse *of, const char *begin, const char *end,
                           struct rs_size *size)
{
    const char *at, *reason;
    char text[EXPANDED_BYTES];
    struct rs_source expanded = {of->source->name, text};

    if (!memmem(begin, (size_t)(end - begin), "%q", 2))
        return parse_plain_size(of, begin, end, size);
    if (!rs_path_expand_variables(begin, end, text, sizeof(text), &at, &reason))
        return rs_diagnose(of->diagnostics, of->source, at, "%s", reason);
    return parse_plain_size(&(struct parse){of->row, &expanded, of->diagnostics}, text,
                            text + strlen(text), size);
}

static bool parse_range(const struct parse *of, const char *begin, const char *end,
                        struct rs_option_value *value)
{
    const char *dash = memchr(begin, '-', (size_t)(end - begin));

    if (!dash || dash == begin)
        return rs_diagnose(of->diagnostics, of->source, begin,
                           "expected two sizes, as in 256KiB-4MiB");
    if (!parse_any_size(of, begin, dash, &value->size) ||
        !parse_any_size(of, dash + 1, end, &value->size_to))
        return false;
    if (value->size.kind != RS_SIZE_BYTES || value->size_to.kind != RS_SIZE_BYTES)
        return rs_diagnose(of->diagnostics, of->source,
                           value->size.kind != RS_SIZE_BYTES ? begin : dash + 1,
                           "the sizes of a range must be in bytes, not percentages");
    if (value->size.number > value->size_to.number)
        return rs_diagnose(of->diagnostics, of->source, begin,
                           "the first size of a range must not be larger than the second");
    return true;
}

/* Adds one element of a list: a number of bytes that the list does not have yet.  Returns false
 * after a diagnostic. */
static bool add_listed_size(const struct parse *of, const char *begin, const char *end,
                            struct rs_sizes *sizes)
{
    struct rs_size size;

    while (begin < end && *begin == ' ')
        begin++;
    while (end > begin && end[-1] == ' ')
        end--;
    if (!parse_any_size(of, begin, end, &size))
        return false;
    if (size.kind != RS_SIZE_BYTES)
        return rs_diagnose(of->diagnostics, of->source, begin,
                           "the sizes of a list cannot be percentages");
    if (sizes->count == RS_SIZES_MAX)
        return rs_diagnose(of->diagnostics, of->source, begin, "a list can have at most %d sizes",
                           RS_SIZES_MAX);
    for (size_t i = 0; i < sizes->count; i++)
        if (sizes->bytes[i] == size.number)
            return rs_diagnose(of->diagnostics, of->source, begin, "the same size is given twice");
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

static bool parse_sizes(const struct parse *of, const char *begin, const char *end, char **text)
{
    struct rs_sizes sizes = {.count = 0};

    for (;; begin++) {
        const char *plus = memchr(begin, '+', (size_t)(end - begin));
        if (!add_listed_size(of, begin, plus ? plus : end, &sizes))
            return false;
        if (!plus)
            break;
        begin = plus;
    }
    *text = format_sizes(&sizes);
    return *text || rs_diagnose(of->diagnostics, of->source, NULL,
                                "no host memory is left to read this setting");
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

static bool parse_exponent(const struct parse *of, const char *begin, const char *end,
                           struct rs_size *size)
{
    char bound[RS_SIZE_TEXT_BYTES];
    uint64_t exponent;
    bool is_less;

    if (!parse_count(of, begin, end, &exponent))
        return false;
    if (exponent >= 64)
        return rs_diagnose(of->diagnostics, of->source, begin,
                           "expected the exponent of a power of two, a whole number from 0 to 63");
    *size = (struct rs_size){1ull << exponent, RS_SIZE_BYTES};
    is_less = size->number < of->row->minimum;
    return (!is_less && (!of->row->maximum || size->number <= of->row->maximum)) ||
           rs_diagnose(
               of->diagnostics, of->source, begin,
               "this exponent makes %s 2^%llu bytes, which is %s than %s", of->row->name,
               (unsigned long long)exponent, is_less ? "less" : "more",
               rs_size_format((size_t)(is_less ? of->row->minimum : of->row->maximum), bound));
}

static bool parse_bounded_count(const struct parse *of, const char *begin, const char *end,
                                uint64_t *count)
{
    bool is_less;

    if (!parse_count(of, begin, end, count))
        return false;
    is_less = *count < of->row->minimum;
    return (!is_less && (!of->row->maximum || *count <= of->row->maximum)) ||
           rs_diagnose(of->diagnostics, of->source, begin, "%s must be at %s %" PRIu64,
                       of->row->name, is_less ? "least" : "most",
                       is_less ? of->row->minimum : of->row->maximum);
}

static bool parse_boolean(const struct parse *of, const char *begin, const char *end,
                          uint64_t *value)
{
    if (!parse_word(of, boolean_words, begin, end, value))
        return false;
    *value &= 1; /* the words alternate: no, yes */
    return !*value || !of->row->only_no ||
           rs_diagnose(of->diagnostics, of->source, begin, "%s", of->row->only_no);
}

static bool parse_text(const struct parse *of, const char *begin, const char *end, char **text)
{
    if (begin == end)
        return rs_diagnose(of->diagnostics, of->source, begin, "%s is empty", of->row->name);
    *text = strndup(begin, (size_t)(end - begin));
    return *text || rs_diagnose(of->diagnostics, of->source, begin,
                                "no host memory is left to read this setting");
}

static bool parse_as(enum rs_option_type type, const struct parse *of, const char *begin,
                     const char *end, struct rs_option_value *value)
{
    switch (type) {
    case RS_OPTION_SIZE:
        value->none = of->row->none && is_word(begin, end, "none");
        if (of->row->all && is_word(begin, end, "all"))
            value->size = (struct rs_size){.number = 1, .kind = RS_SIZE_BYTES};
        else if (!value->none)
            return parse_any_size(of, begin, end, &value->size);
        return true;
    case RS_OPTION_EXPONENT:
        return parse_exponent(of, begin, end, &value->size);
    case RS_OPTION_SIZES:
        return is_word(begin, end, "none") || parse_sizes(of, begin, end, &value->text);
    case RS_OPTION_RANGE:
        return parse_range(of, begin, end, value);
    case RS_OPTION_COUNT:
        return parse_bounded_count(of, begin, end, &value->count);
    case RS_OPTION_BOOLEAN:
        return parse_boolean(of, begin, end, &value->count);
    case RS_OPTION_WORD:
        return parse_word(of, of->row->words, begin, end, &value->count);
    case RS_OPTION_TEXT:
        return parse_text(of, begin, end, &value->text);
    }
    return false;
}

bool rs_option_parse(const struct rs_option *row, enum rs_option_type type,
                     const struct rs_source *source, const char *begin, const char *end,
                     struct rs_diagnostics *diagnostics, struct rs_option_value *value)
{
    struct rs_option_value parsed = {.given = true};

    if (!parse_as(type, &(struct parse){row, source, diagnostics}, begin, end, &parsed))
        return false;
    rs_option_value_clear(value);
    *value = parsed;
    return true;
}

int rs_option_defaults(const struct rs_option *rows, struct rs_option_value *values)
{
    struct rs_diagnostics nobody = {.write = NULL};

    for (size_t i = 0; rows[i].name; i++) {
        const char *text = rows[i].default_text;
        struct rs_source source = {rows[i].name, text};

        values[i] = (struct rs_option_value){.given = false};
        if (!text || (!*text && rows[i].type == RS_OPTION_TEXT))
            continue;
        if (!rs_option_parse(&rows[i], rows[i].type, &source, text, text + strlen(text), &nobody,
                             &values[i]))
            return -ENOMEM; /* a unit test parses every default, so only memory can be missing */
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
    static const char *const texts[] = {
        [RS_OPTION_SIZE] = "SIZE",           [RS_OPTION_EXPONENT] = "EXPONENT",
        [RS_OPTION_SIZES] = "SIZE+SIZE+...", [RS_OPTION_RANGE] = "SIZE-SIZE",
        [RS_OPTION_COUNT] = "COUNT",         [RS_OPTION_BOOLEAN] = "0|1",
        [RS_OPTION_TEXT] = "TEXT",
    };
    size_t length = 0;

    if (row->all)
        return "SIZE|none|all";
    if (row->type != RS_OPTION_WORD)
        return row->none && !row->is_required ? "SIZE|none" : row->only_no ? "0" : texts[row->type];
    buffer[0] = '\0';
    for (size_t i = 0; row->words[i] && length < buffer_bytes; i++) {
        bool is_synonym = i > 1 && i + 1 < RS_ARRAY_LENGTH(boolean_words) &&
                          strcmp(row->words[i], boolean_words[i]) == 0;
        if (!is_synonym)
            length += (size_t)snprintf(buffer + length, buffer_bytes - length, "%s%s", i ? "|" : "",
                                       row->words[i]);
    }
    return buffer;
}

const char *rs_option_write(const struct rs_option *row, const struct rs_option_value *value,
                            char *buffer, size_t buffer_bytes)
{
    char size[RS_SIZE_TEXT_BYTES], size_to[RS_SIZE_TEXT_BYTES];

    switch (row->type) {
    case RS_OPTION_SIZE:
    case RS_OPTION_EXPONENT:
        snprintf(buffer, buffer_bytes, "%s",
                 value->none ? "none" : rs_size_write(value->size, size));
        break;
    case RS_OPTION_RANGE:
        snprintf(buffer, buffer_bytes, "%s-%s", rs_size_write(value->size, size),
                 rs_size_write(value->size_to, size_to));
        break;
    case RS_OPTION_COUNT:
    case RS_OPTION_BOOLEAN:
        snprintf(buffer, buffer_bytes, "%llu", (unsigned long long)value->count);
        break;
    case RS_OPTION_WORD:
        snprintf(buffer, buffer_bytes, "%s", row->words[value->count]);
        break;
    case RS_OPTION_SIZES:
    case RS_OPTION_TEXT:
        snprintf(buffer, buffer_bytes, "%s",
                 value->text                    ? value->text
                 : row->type == RS_OPTION_SIZES ? "none"
                                                : "");
        break;
    }
    return buffer;
}
