/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Returns how many bytes a unit has, in upper or lower case; 0 for a text that is no unit.  An
 * empty unit and B are 1 byte.  K, Ki and KiB are 1024 bytes, KB is 1000 bytes; M, G, T and P are
 * the next powers of these. */
static uint64_t unit_bytes(const char *unit, size_t length)
{
    static const char letters[] = "kmgtp";
    const char *letter = length ? strchr(letters, *unit | 0x20) : NULL;
    size_t used = letter ? 1 : 0, left = length - used;
    bool is_decimal = letter && left == 1 && strncasecmp(unit + used, "b", 1) == 0;
    uint64_t bytes = 1;

    if (left > (letter ? 2 : 1) ||
        strncasecmp(unit + used, letter && !is_decimal ? "ib" : "b", left) != 0)
        return 0;
    for (const char *at = letters; letter && at <= letter; at++)
        bytes *= is_decimal ? 1000 : 1024;
    return bytes;
}

static bool fail_at(const char **at, const char *place, const char **reason, const char *text)
{
    *at = place;
    *reason = text;
    return false;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The number mantissa / divisor.  Decimals are kept exact: 0.1GiB must not depend on the rounding
 * of a double. */
struct decimal {
    uint64_t mantissa, divisor;
};

/* Parses at most 20 digits, the length of the largest uint64_t; a larger number is an error, not
 * a wrapped one. */
static bool decimal_parse(const char **cursor, const char *end, struct decimal *value,
                          const char **at, const char **reason)
{
    const char *begin = *cursor;
    unsigned digits = 0;
    bool point = false;

    *value = (struct decimal){0, 1};
    for (; *cursor < end && (is_digit(**cursor) || (**cursor == '.' && !point)); ++*cursor) {
        if (**cursor == '.') {
            point = true;
            continue;
        }
        if (++digits > 20 ||
            __builtin_mul_overflow(value->mantissa, (uint64_t)10, &value->mantissa) ||
            __builtin_add_overflow(value->mantissa, (uint64_t)(**cursor - '0'), &value->mantissa) ||
            (point && __builtin_mul_overflow(value->divisor, (uint64_t)10, &value->divisor)))
            return fail_at(at, begin, reason, "the number has too many digits");
    }
    if (digits == 0)
        return fail_at(at, begin, reason,
                       begin < end && *begin == '-'
                           ? "a size cannot be negative"
                           : "a size begins with a digit, as in 4GiB or 80%");
    return true;
}

static bool decimal_times(struct decimal value, uint64_t factor, uint64_t *product)
{
    unsigned __int128 exact = (unsigned __int128)value.mantissa * factor / value.divisor;

    *product = (uint64_t)exact;
    return exact <= SIZE_MAX;
}

/* Parses what follows `base` in 2**30, a form used in guides to RMM.  Returns the exponent, or 64
 * if it is 64 or more; -1 if the text has another form. */
static int exponent_parse(struct decimal base, const char *cursor, const char *end)
{
    int exponent = 0;

    if (base.mantissa != 2 || base.divisor != 1 || end - cursor < 3 || cursor[0] != '*' ||
        cursor[1] != '*')
        return -1;
    for (cursor += 2; cursor < end && is_digit(*cursor) && exponent < 64; cursor++)
        exponent = exponent * 10 + (*cursor - '0');
    return exponent >= 64 ? 64 : cursor == end ? exponent : -1;
}

bool rs_size_parse(const char *begin, const char *end, struct rs_size *size, const char **at,
                   const char **reason)
{
    const char *cursor = begin;
    struct decimal value;
    uint64_t unit, bytes;
    size_t unit_length;
    int exponent;

    if (begin == end)
        return fail_at(at, begin, reason, "a size is missing");
    if (!decimal_parse(&cursor, end, &value, at, reason))
        return false;
    while (cursor < end && *cursor == ' ')
        cursor++;
    unit_length = (size_t)(end - cursor);

    if (unit_length > 0 && *cursor == '%') {
        struct rs_size share = {0, RS_SIZE_OF_TOTAL};
        if (unit_length == 5 && strncasecmp(cursor, "%free", 5) == 0)
            share.kind = RS_SIZE_OF_FREE;
        else if (unit_length != 1)
            return fail_at(at, cursor + 1, reason,
                           "after '%' only 'free' may follow, as in 80%free");
        if (!decimal_times(value, RS_SIZE_WHOLE / 100, &share.number) ||
            share.number > (uint64_t)RS_SIZE_WHOLES_MAX * RS_SIZE_WHOLE)
            return fail_at(at, begin, reason, "more than 10000%");
        *size = share;
        return true;
    }
    exponent = exponent_parse(value, cursor, end);
    if (exponent == 64)
        return fail_at(at, begin, reason, "this size is larger than any memory");
    if (exponent >= 0) {
        *size = (struct rs_size){1ull << exponent, RS_SIZE_BYTES};
        return true;
    }
    unit = unit_bytes(cursor, unit_length);
    if (unit && decimal_times(value, unit, &bytes)) {
        *size = (struct rs_size){bytes, RS_SIZE_BYTES};
        return true;
    }
    if (unit)
        return fail_at(at, begin, reason, "this size is larger than any memory");
    return fail_at(at, cursor, reason,
                   "unknown unit; the possible units are B K KB KiB M MB MiB G GB GiB T TB TiB %");
}

size_t rs_size_resolve(struct rs_size size, size_t total_bytes, size_t free_bytes)
{
    size_t whole = size.kind == RS_SIZE_OF_FREE ? free_bytes : total_bytes;
    unsigned __int128 bytes = (unsigned __int128)whole * size.number / RS_SIZE_WHOLE;

    if (size.kind == RS_SIZE_BYTES)
        return (size_t)size.number;
    return rs_round_down(bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX, 2u << 20);
}

const char *rs_size_format(size_t bytes, char text[RS_SIZE_TEXT_BYTES])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < RS_ARRAY_LENGTH(names)) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, RS_SIZE_TEXT_BYTES, "%zu%s", bytes, names[unit]);
    return text;
}

/* Writes number / 10^digits.  The program's locale decides which decimal point printf writes for a
 * double, so the digits are written as whole numbers. */
static void put_decimal(char text[RS_SIZE_TEXT_BYTES], uint64_t number, int digits)
{
    uint64_t scale = 1;

    for (int i = 0; i < digits; i++)
        scale *= 10;
    snprintf(text, RS_SIZE_TEXT_BYTES, "%" PRIu64 "%s%.*" PRIu64, number / scale, digits ? "." : "",
             digits, number % scale);
}

const char *rs_size_write(struct rs_size size, char text[RS_SIZE_TEXT_BYTES])
{
    uint64_t number = size.number;
    int digits = 4; /* a percentage with 4 decimals has parts per million */

    if (size.kind == RS_SIZE_BYTES)
        return rs_size_format((size_t)number, text);
    for (; digits > 0 && number % 10 == 0; digits--)
        number /= 10;
    put_decimal(text, number, digits);
    return strcat(text, size.kind == RS_SIZE_OF_FREE ? "%free" : "%");
}

/* Returns bytes * factor / 1024^unit, rounded. */
static uint64_t in_unit(uint64_t bytes, size_t unit, unsigned factor)
{
    return (uint64_t)((((unsigned __int128)bytes * factor * 2 >> (10 * unit)) + 1) / 2);
}

const char *rs_size_format_short(uint64_t bytes, char text[RS_SIZE_TEXT_BYTES])
{
    static const char *const names[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    static const unsigned factors[] = {1, 10, 100};
    int digits = 2;
    size_t unit = 0;

    while (in_unit(bytes, unit, 1) >= 1024 && unit + 1 < RS_ARRAY_LENGTH(names))
        unit++;
    while (digits > 0 && (unit == 0 || in_unit(bytes, unit, factors[digits]) >= 1000))
        digits--;
    put_decimal(text, in_unit(bytes, unit, factors[digits]), digits);
    return strcat(text, names[unit]);
}
