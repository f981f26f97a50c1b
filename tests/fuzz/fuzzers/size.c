/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, and values of options of each type.  The first byte says which. */
#include "base/check.h"
#include "base/option.h"
#include "fuzzer.h"

enum { TEXT_BYTES = 4096 };

static const char *const words[] = {"wait", "immediate", "deferred", NULL};

static const struct rs_option rows[] = {
    {.name = "size", .type = RS_OPTION_SIZE, .none = true, .all = true, .maximum = 1ull << 47},
    {.name = "whole", .type = RS_OPTION_SIZE, .multiple_of = 512, .unit_below = 1 << 20},
    {.name = "beyond", .type = RS_OPTION_SIZE, .beyond_whole = true},
    {.name = "exponent", .type = RS_OPTION_EXPONENT, .maximum = 1ull << 47},
    {.name = "sizes", .type = RS_OPTION_SIZES, .minimum = 1, .maximum = 1ull << 47},
    {.name = "range", .type = RS_OPTION_RANGE, .minimum = 256, .maximum = 1ull << 47},
    {.name = "count", .type = RS_OPTION_COUNT},
    {.name = "few", .type = RS_OPTION_COUNT, .minimum = 3, .maximum = 10},
    {.name = "switch", .type = RS_OPTION_BOOLEAN},
    {.name = "word", .type = RS_OPTION_WORD, .words = words},
    {.name = "text", .type = RS_OPTION_TEXT},
};

static void try_size(const char *begin, const char *end)
{
    char text[RS_SIZE_TEXT_BYTES];
    const char *at = NULL, *reason = NULL;
    struct rs_size size, again;

    if (!rs_size_parse(begin, end, &size, &at, &reason)) {
        must(at >= begin && at <= end, "a place outside the text");
        must(reason && reason[0], "no reason");
        return;
    }
    rs_size_write(size, text);
    must(rs_size_parse(text, strchr(text, 0), &again, &at, &reason), "its own text is refused");
    must(again.kind == size.kind && again.number == size.number, "its own text is another size");
    if (size.kind != RS_SIZE_BYTES && size.number <= RS_SIZE_WHOLE)
        must(rs_size_resolve(size, 80ull << 30, 79ull << 30) <= 80ull << 30, "more than there is");
    (void)rs_size_resolve(size, SIZE_MAX, SIZE_MAX);
    must(strlen(rs_size_format_short(size.number, text)) < RS_SIZE_TEXT_BYTES, "a long text");
}

static void must_be_alike(const struct rs_option_value *one, const struct rs_option_value *other)
{
    must(one->none == other->none && one->count == other->count &&
             one->size.kind == other->size.kind && one->size.number == other->size.number &&
             one->size_to.number == other->size_to.number &&
             strcmp(one->text ? one->text : "", other->text ? other->text : "") == 0,
         "its own text is another value");
}

/* A value is written as it can be read; but a text is written as it is, also with blanks and quotes
 * around it. */
static void try_option(const struct rs_option *row, const char *text, size_t length)
{
    char written[TEXT_BYTES];
    struct rs_source source = {"RMM_TEST", text}, own = {"RMM_TEST", written};
    struct rs_diagnostics diagnostics = {.count = 0};
    struct rs_option_value value = {.given = false}, again = {.given = false};
    struct rs_sizes sizes;

    if (!rs_option_parse(row, row->type, &source, text, text + length, &diagnostics, &value)) {
        must(diagnostics.count == 1, "not one diagnostic");
        return;
    }
    must(diagnostics.count == 0, "a diagnostic without an error");
    if (row->type == RS_OPTION_SIZES) {
        sizes = rs_option_sizes(value.text);
        must(sizes.count <= RS_SIZES_MAX, "too many sizes");
    }
    rs_option_write(row, &value, written, sizeof(written));
    if (row->type != RS_OPTION_TEXT && row->type != RS_OPTION_EXPONENT) {
        must(rs_option_parse(row, row->type, &own, written, strchr(written, 0), &diagnostics,
                             &again),
             "its own text is refused");
        must_be_alike(&value, &again);
        rs_option_value_clear(&again);
    }
    rs_option_value_clear(&value);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    size_t which;
    char *text;

    if (length == 0)
        return 0;
    which = input[0] % (RS_ARRAY_LENGTH(rows) + 1);
    text = copy_of(input + 1, length - 1);
    if (which == 0)
        try_size(text, text + length - 1);
    else if (length < TEXT_BYTES)
        try_option(&rows[which - 1], text, strlen(text));
    free(text);
    return 0;
}
