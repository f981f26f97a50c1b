/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows: every type, its bounds, defaults, aliases. */
#include "unit.h"

#include "lines.h"

#include "base/check.h"
#include "base/option.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

struct config {
    size_t plain, initial, chunk, limit, most, memory, each;
    struct rs_size_range bins;
    struct rs_sizes sizes;
    uint64_t count;
    bool on, off;
    int mode;
    const char *path, *name;
};

static const char *const modes[] = {"wait", "deferred", "immediate", NULL};

static const struct rs_option rows[] = {
    RS_OPTION_SIZE_ROW(struct config, plain, "1GiB", "any size"),
    RS_OPTION_SIZE_ROW(struct config, initial, "0", "initial size", .maximum = 8ull << 30,
                       .aliases = {{"initial_pool_size", RS_OPTION_SIZE},
                                   {"initial_size_exponent", RS_OPTION_EXPONENT}}),
    RS_OPTION_SIZE_ROW(struct config, chunk, "2MiB", "chunk", .minimum = 4096, .multiple_of = 4096),
    RS_OPTION_SIZE_ROW(struct config, limit, "none", "limit", .none = true),
    RS_OPTION_SIZE_ROW(struct config, most, "0", "what may be managed memory",
                       .beyond_whole = true),
    {
        .name = "bins",
        .type = RS_OPTION_RANGE,
        .offset = RS_OPTION_FIELD(struct config, bins, struct rs_size_range),
        .default_text = "256KiB-4MiB",
        .help = "bins",
        .minimum = 512,
    },
    RS_OPTION_SIZES_ROW(struct config, sizes, "none", "sizes", .minimum = 512, .maximum = GIB),
    RS_OPTION_COUNT_ROW(struct config, count, "128", "blocks", .minimum = 1, .maximum = 1000),
    RS_OPTION_BOOLEAN_ROW(struct config, on, "yes", "switch"),
    RS_OPTION_WORD_ROW(struct config, mode, modes, "deferred", "mode"),
    RS_OPTION_TEXT_ROW(struct config, path, NULL, "file"),
    RS_OPTION_TEXT_ROW(struct config, name, "log.csv", "file"),
    RS_OPTION_SIZE_ROW(struct config, memory, "0", "memory", .unit_below = 1 << 20),
    RS_OPTION_SIZE_ROW(struct config, each, "none", "each", .none = true, .all = true),
    RS_OPTION_BOOLEAN_ROW(struct config, off, "0", "no switch", .only_no = "cannot be switched on"),
    RS_OPTION_END,
};

static const struct rs_option *row_of(const char *name, enum rs_option_type *type)
{
    return rs_option_find(rows, name, name + strlen(name), type);
}

/* Parses "name=text". */
static bool parse(const char *name, const char *text, struct lines *lines,
                  struct rs_option_value *value)
{
    enum rs_option_type type;
    const struct rs_option *row = row_of(name, &type);
    struct rs_source source = {name, text};

    assert_non_null(row);
    return rs_option_parse(row, type, &source, text, text + strlen(text), lines_begin(lines),
                           value);
}

TEST(defaults_parse_and_are_not_given)
{
    struct rs_option_value values[RS_OPTION_ROWS_MAX];
    struct config config;

    assert_int_equal(rs_option_defaults(rows, values), 0);
    for (size_t i = 0; rows[i].name; i++) {
        assert_false(values[i].given);
        rs_option_store(&rows[i], &values[i], &config, 100 * GIB, 50 * GIB);
    }
    assert_int_equal(config.plain, GIB);
    assert_int_equal(config.initial, 0);
    assert_int_equal(config.chunk, 2 * MIB);
    assert_int_equal(config.limit, SIZE_MAX);
    assert_int_equal(config.bins.from_bytes, MIB / 4);
    assert_int_equal(config.bins.to_bytes, 4 * MIB);
    assert_int_equal(config.count, 128);
    assert_true(config.on);
    assert_int_equal(config.mode, 1);
    assert_null(config.path);
    assert_string_equal(config.name, "log.csv");
    for (size_t i = 0; rows[i].name; i++)
        rs_option_value_clear(&values[i]);
}

TEST(good_values_reach_their_field)
{
    static const struct {
        const char *name, *text;
        size_t offset;
        uint64_t expected; /* of the first 8 bytes; of 1 for on, of 4 for mode */
    } cases[] = {
        {"plain", "80%", offsetof(struct config, plain), 80 * GIB},
        {"plain", "80%free", offsetof(struct config, plain), 40 * GIB},
        {"plain", "12.5%", offsetof(struct config, plain), 100 * GIB / 8},
        {"most", "250%", offsetof(struct config, most), 250 * GIB},
        {"PLAIN", "1.5GiB", offsetof(struct config, plain), 3 * GIB / 2},
        {"initial", "8GiB", offsetof(struct config, initial), 8 * GIB},
        {"initial_pool_size", "4G", offsetof(struct config, initial), 4 * GIB},
        {"initial_size_exponent", "20", offsetof(struct config, initial), MIB},
        {"initial_size_exponent", "33", offsetof(struct config, initial), 8 * GIB},
        {"chunk", "8K", offsetof(struct config, chunk), 8192},
        {"chunk", "50%", offsetof(struct config, chunk), 50 * GIB},
        {"limit", "none", offsetof(struct config, limit), SIZE_MAX},
        {"each", "all", offsetof(struct config, each), 1},
        {"each", "none", offsetof(struct config, each), SIZE_MAX},
        {"limit", "NONE", offsetof(struct config, limit), SIZE_MAX},
        {"limit", "1GiB", offsetof(struct config, limit), GIB},
        {"memory", "0", offsetof(struct config, memory), 0},
        {"memory", "0%", offsetof(struct config, memory), 0},
        {"memory", "8B", offsetof(struct config, memory), 8},
        {"memory", "8 b", offsetof(struct config, memory), 8},
        {"memory", "0.5KiB", offsetof(struct config, memory), 512},
        {"memory", "1048576", offsetof(struct config, memory), MIB},
        {"plain", "8", offsetof(struct config, plain), 8},
        {"bins", "512-1KiB", offsetof(struct config, bins), 512},
        {"bins", "1KiB-1KiB", offsetof(struct config, bins), 1024},
        {"count", "1", offsetof(struct config, count), 1},
        {"count", "1000", offsetof(struct config, count), 1000},
        {"count", "007", offsetof(struct config, count), 7},
        {"count", "0x3e8", offsetof(struct config, count), 1000},
        {"count", "0X3E7", offsetof(struct config, count), 999},
    };
    static const struct {
        const char *text;
        bool on;
    } switches[] = {{"1", true},    {"0", false},   {"yes", true},  {"no", false},   {"on", true},
                    {"off", false}, {"true", true}, {"TRUE", true}, {"False", false}};
    struct lines lines;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_option_value value = {0};
        struct config config = {0};
        enum rs_option_type type;
        uint64_t got;
        if (!parse(cases[i].name, cases[i].text, &lines, &value))
            fail_msg("%s", lines.text[0]);
        assert_true(value.given);
        rs_option_store(row_of(cases[i].name, &type), &value, &config, 100 * GIB, 50 * GIB);
        memcpy(&got, (char *)&config + cases[i].offset, sizeof(got));
        if (got != cases[i].expected)
            fail_msg("%s=%s became %llu", cases[i].name, cases[i].text, (unsigned long long)got);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(switches); i++) {
        struct rs_option_value value = {0};
        struct config config = {.on = !switches[i].on};
        enum rs_option_type type;
        assert_true(parse("on", switches[i].text, &lines, &value));
        rs_option_store(row_of("on", &type), &value, &config, 0, 0);
        assert_int_equal(config.on, switches[i].on);
    }
    for (int i = 0; modes[i]; i++) {
        struct rs_option_value value = {0};
        struct config config;
        enum rs_option_type type;
        assert_true(parse("mode", modes[i], &lines, &value));
        rs_option_store(row_of("mode", &type), &value, &config, 0, 0);
        assert_int_equal(config.mode, i);
    }
}

TEST(both_ends_of_a_range_are_stored)
{
    struct rs_option_value value = {0};
    struct config config;
    enum rs_option_type type;
    struct lines lines;

    assert_true(parse("bins", "1MiB-0.5GiB", &lines, &value));
    rs_option_store(row_of("bins", &type), &value, &config, GIB, 0);
    assert_int_equal(config.bins.from_bytes, MIB);
    assert_int_equal(config.bins.to_bytes, GIB / 2);
}

TEST(sizes_of_a_list_are_stored_as_they_stand)
{
    static const struct {
        const char *text, *canonical;
        size_t count, bytes[3];
    } cases[] = {
        {"1MiB", "1MiB", 1, {MIB}},
        {"256KiB+300000+1MiB", "256KiB+300000B+1MiB", 3, {MIB / 4, 300000, MIB}},
        {"1G + 2**20 ", "1GiB+1MiB", 2, {GIB, MIB}},
        {" 1.5MiB+1024", "1536KiB+1KiB", 2, {3 * MIB / 2, 1024}},
        {"None", "none", 0, {0}},
    };
    enum rs_option_type type;
    struct lines lines;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_option_value value = {0};
        struct config config;
        char written[64];
        if (!parse("sizes", cases[i].text, &lines, &value))
            fail_msg("%s: %s", cases[i].text, lines.text[0]);
        assert_string_equal(
            rs_option_write(row_of("sizes", &type), &value, written, sizeof(written)),
            cases[i].canonical);
        rs_option_store(row_of("sizes", &type), &value, &config, GIB, 0);
        assert_int_equal(config.sizes.count, cases[i].count);
        for (size_t j = 0; j < cases[i].count; j++)
            assert_int_equal(config.sizes.bytes[j], cases[i].bytes[j]);
        rs_option_value_clear(&value);
    }
}

TEST(a_list_has_room_for_so_many_and_no_more)
{
    struct rs_option_value value = {0};
    char text[RS_SIZES_MAX * 8] = "1024";
    enum rs_option_type type;
    struct config config;
    struct lines lines;

    for (size_t i = 1; i < RS_SIZES_MAX; i++)
        (void)sprintf(text + strlen(text), "+%zu", 1024 + i);
    assert_true(parse("sizes", text, &lines, &value));
    rs_option_store(row_of("sizes", &type), &value, &config, GIB, 0);
    assert_int_equal(config.sizes.count, RS_SIZES_MAX);
    assert_int_equal(config.sizes.bytes[RS_SIZES_MAX - 1], 1023 + RS_SIZES_MAX);
    rs_option_value_clear(&value);
    strcat(text, "+2MiB");
    assert_false(parse("sizes", text, &lines, &value));
    assert_non_null(strstr(lines.text[0], "a list can have at most 32 sizes"));
}

TEST(bad_values_get_one_line_with_the_place)
{
    static const struct {
        const char *name, *text, *line; /* line: its beginning */
    } cases[] = {
        {"plain", "10Q", "plain=10^Q: unknown unit"},
        {"plain", "-1", "plain=^-1: a size cannot be negative"},
        {"plain", "200%", "plain=^200%: more than 100%"},
        {"chunk", "100.01%free", "chunk=^100.01%free: more than 100%"},
        {"most", "10001%", "most=^10001%: more than 10000%"},
        {"plain", "none", "plain=^none: "},
        {"limit", "all", "limit=^all: "},
        {"plain", "", "plain=^: a size is missing"},
        {"initial", "8193MiB", "initial=^8193MiB: more than 8GiB"},
        {"initial_size_exponent", "34",
         "initial_size_exponent=^34: this exponent makes initial 2^34 bytes, which is more than "
         "8GiB"},
        {"initial_size_exponent", "64", "initial_size_exponent=^64: "},
        {"initial_size_exponent", "18446744073709551616",
         "initial_size_exponent=1844674407370955161^6: "},
        {"initial_size_exponent", "1MiB", "initial_size_exponent=1^MiB: expected a whole number"},
        {"chunk", "2K", "chunk=^2K: less than 4KiB"},
        {"chunk", "0%", "chunk=^0%: the value must be more than 0"},
        {"chunk", "0.00001%free", "chunk=^0.00001%free: the value must be more than 0"},
        {"limit", "non", "limit=^non: "},
        {"off", "on", "off=^on: cannot be switched on"},
        {"memory", "8", "memory=^8: the unit is missing (8B is 8 bytes); did you mean 8GiB?"},
        {"memory", "1023",
         "memory=^1023: the unit is missing (1023B is 1023 bytes); did you mean 1023GiB?"},
        {"memory", "1024",
         "memory=^1024: the unit is missing (1024B is 1024 bytes); did you mean 1024MiB?"},
        {"memory", "1048575",
         "memory=^1048575: the unit is missing (1048575B is 1048575 bytes); did you mean "
         "1048575MiB?"},
        {"memory", "1 ", "memory=^1 : the unit is missing (1B is 1 byte); did you mean 1GiB?"},
        {"memory", "0.5", "memory=^0.5: a number of bytes has no decimal point; did you mean 50%?"},
        {"memory", "0.125",
         "memory=^0.125: a number of bytes has no decimal point; did you mean 12.5%?"},
        {"memory", ".9", "memory=^.9: a number of bytes has no decimal point; did you mean 90%?"},
        {"memory", "1.5",
         "memory=^1.5: a number of bytes has no decimal point; did you mean 1.5GiB?"},
        {"memory", "1.0",
         "memory=^1.0: a number of bytes has no decimal point; did you mean 100% or 1GiB?"},
        {"memory", "1.",
         "memory=^1.: a number of bytes has no decimal point; did you mean 100% or 1GiB?"},
        {"memory", "2.00",
         "memory=^2.00: a number of bytes has no decimal point; did you mean 2GiB?"},
        {"memory", "0.0", "memory=^0.0: a number of bytes has no decimal point"},
        {"memory", "4096.5",
         "memory=^4096.5: a number of bytes has no decimal point; did you mean 4096.5MiB?"},
        {"memory", "1048576.5", "memory=^1048576.5: a number of bytes has no decimal point"},
        {"memory", "4096.0",
         "memory=^4096.0: a number of bytes has no decimal point; did you mean 4096MiB?"},
        {"memory", "1073741824.0",
         "memory=^1073741824.0: a number of bytes has no decimal point; did you mean 1073741824?"},
        {"memory", "0.5B",
         "memory=^0.5B: a number of bytes has no decimal point; did you mean 50%?"},
        {"memory", "1.5 B",
         "memory=^1.5 B: a number of bytes has no decimal point; did you mean 1.5GiB?"},
        {"plain", "1.0",
         "plain=^1.0: a number of bytes has no decimal point; did you mean 100% or 1GiB?"},
        {"plain", "0.5", "plain=^0.5: a number of bytes has no decimal point; did you mean 50%?"},
        {"bins", "1MiB", "bins=^1MiB: expected two sizes"},
        {"bins", "-1MiB", "bins=^-1MiB: expected two sizes"},
        {"bins", "1MiB-", "bins=1MiB-^: a size is missing"},
        {"bins", "2MiB-1MiB",
         "bins=^2MiB-1MiB: the first size of a range must not be larger than the second"},
        {"bins", "1MiB-2MiB-3MiB", "bins=1MiB-2^MiB-3MiB: "},
        {"bins", "100-1MiB", "bins=^100-1MiB: less than 512B"},
        /* cannot be compared before a device is known */
        {"bins", "50%-1MiB",
         "bins=^50%-1MiB: the sizes of a range must be in bytes, not percentages"},
        {"bins", "1MiB-50%",
         "bins=1MiB-^50%: the sizes of a range must be in bytes, not percentages"},
        {"sizes", "", "sizes=^: a size is missing"},
        {"sizes", "1MiB+", "sizes=1MiB+^: a size is missing"},
        {"sizes", "+1MiB", "sizes=^+1MiB: a size is missing"},
        {"sizes", "1MiB++2MiB", "sizes=1MiB+^+2MiB: a size is missing"},
        {"sizes", "1MiB+1Q", "sizes=1MiB+1^Q: unknown unit"},
        {"sizes", "%q{ONE+%q{TWO}", "sizes=^%q{ONE+%q{TWO}: expected %q{VARIABLE}"},
        {"sizes", "%q+{TWO}", "sizes=^%q+{TWO}: expected %q{VARIABLE}"},
        {"sizes", "1MiB+100", "sizes=1MiB+^100: less than 512B"},
        {"sizes", "1MiB+2GiB", "sizes=1MiB+^2GiB: more than 1GiB"},
        {"sizes", "1MiB+50%", "sizes=1MiB+^50%: the sizes of a list cannot be percentages"},
        {"sizes", "1MiB+2MiB+1024KiB", "sizes=1MiB+2MiB+^1024KiB: the same size is given twice"},
        {"sizes", "1MiB,2MiB", "sizes=1^MiB,2MiB: unknown unit"},
        {"count", "", "count=^: a number is missing"},
        {"count", "0", "count=^0: count must be at least 1"},
        {"count", "1001", "count=^1001: count must be at most 1000"},
        {"count", "-1", "count=^-1: expected a whole number"},
        {"count", "12x", "count=12^x: expected a whole number"},
        {"count", "12a", "count=12^a: expected a whole number"},
        {"count", "0x", "count=0^x: expected a whole number"},
        {"count", "0x1g", "count=0x1^g: expected a whole number"},
        {"count", "0x10000000000000000", "count=0x1000000000000000^0: "},
        {"count", "99999999999999999999", "count=9999999999999999999^9: "},
        {"on", "ye", "on=^ye: unknown value; did you mean 'yes'?"},
        {"on", "", "on=^: unknown value; the possible values are"},
        {"on", "perhaps",
         "on=^perhaps: unknown value; the possible values are 0, 1, no, yes, off, on, false, true"},
        {"on", "2", "on=^2: unknown value; the possible values are"},
        {"on", "10", "on=^10: unknown value; the possible values are"},
        {"on", "y", "on=^y: unknown value; did you mean 'yes'?"},
        {"on", "Y", "on=^Y: unknown value; did you mean 'yes'?"},
        {"on", "n", "on=^n: unknown value; did you mean 'no'?"},
        {"on", "T", "on=^T: unknown value; did you mean 'true'?"},
        {"on", "f", "on=^f: unknown value; did you mean 'false'?"},
        {"on", "o", "on=^o: unknown value; the possible values are"}, /* on, off */
        {"mode", "defer", "mode=^defer: unknown value; did you mean 'deferred'?"},
        {"mode", "defered", "mode=^defered: unknown value; did you mean 'deferred'?"},
        {"mode", "later",
         "mode=^later: unknown value; the possible values are wait, deferred, immediate"},
        {"name", "", "name=^: name is empty"},
    };
    struct lines lines;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_option_value value = {.count = 42};
        if (parse(cases[i].name, cases[i].text, &lines, &value))
            fail_msg("%s=%s was taken", cases[i].name, cases[i].text);
        assert_int_equal(lines.diagnostics.count, 1);
        if (strncmp(lines.text[0], cases[i].line, strlen(cases[i].line)) != 0)
            fail_msg("%s", lines.text[0]);
        assert_int_equal(value.count, 42); /* outputs only on success */
        assert_false(value.given);
    }
}

TEST(a_text_value_is_replaced_and_freed)
{
    struct rs_option_value value = {0};
    struct config config;
    enum rs_option_type type;
    struct lines lines;

    assert_true(parse("path", "first", &lines, &value));
    assert_true(parse("path", "second", &lines, &value)); /* leaks show in sanitizer builds */
    rs_option_store(row_of("path", &type), &value, &config, 0, 0);
    assert_string_equal(config.path, "second");
    rs_option_value_clear(&value);
    assert_null(value.text);
    rs_option_value_clear(&value);
}

TEST(only_a_part_of_the_text_may_be_the_value)
{
    const char *text = "pool(cuda, name=abc, plain=4GiB)";
    struct rs_source source = {"RMM_RESOURCE", text};
    struct rs_option_value value = {0};
    enum rs_option_type type;
    struct lines lines;

    assert_true(rs_option_parse(row_of("name", &type), RS_OPTION_TEXT, &source, text + 16,
                                text + 19, lines_begin(&lines), &value));
    assert_string_equal(value.text, "abc");
    rs_option_value_clear(&value);
    assert_true(rs_option_parse(row_of("plain", &type), RS_OPTION_SIZE, &source, text + 27,
                                text + 31, lines_begin(&lines), &value));
    assert_int_equal(value.size.number, 4 * GIB);
    assert_false(rs_option_parse(row_of("plain", &type), RS_OPTION_SIZE, &source, text + 27,
                                 text + 32, lines_begin(&lines), &value));
    assert_memory_equal(lines.text[0], "RMM_RESOURCE=pool(cuda, name=abc, plain=4^GiB): unknown",
                        strlen("RMM_RESOURCE=pool(cuda, name=abc, plain=4^GiB): unknown"));
}

TEST(names_and_aliases_are_found_in_any_case)
{
    enum rs_option_type type = RS_OPTION_TEXT;

    assert_ptr_equal(row_of("initial", &type), &rows[1]);
    assert_int_equal(type, RS_OPTION_SIZE);
    assert_ptr_equal(row_of("Initial_Size_EXPONENT", &type), &rows[1]);
    assert_int_equal(type, RS_OPTION_EXPONENT);
    assert_null(row_of("initial_", &type));
    assert_null(row_of("initia", &type));
    assert_null(row_of("", &type));
}

TEST(type_texts_say_what_to_write)
{
    static const char *const words[] = {RS_OPTION_BOOLEAN_WORDS, "auto", NULL};
    static const struct rs_option third = {.type = RS_OPTION_WORD, .words = words};
    static const char *const expected[] = {
        "SIZE",      "SIZE",          "SIZE",  "SIZE|none",     "SIZE",
        "SIZE-SIZE", "SIZE+SIZE+...", "COUNT", "0|1",           "wait|deferred|immediate",
        "TEXT",      "TEXT",          "SIZE",  "SIZE|none|all", "0"};
    char buffer[64], small[8];

    for (size_t i = 0; rows[i].name; i++)
        assert_string_equal(rs_option_type_text(&rows[i], buffer, sizeof(buffer)), expected[i]);
    assert_true(strlen(rs_option_type_text(&rows[9], small, sizeof(small))) < sizeof(small));
    assert_string_equal(rs_option_type_text(&third, buffer, sizeof(buffer)), "0|1|auto");
}
