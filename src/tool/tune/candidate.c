/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/candidate.h"

#include "base/arithmetic.h"
#include "base/size.h"
#include "config/config.h"

#include <stdio.h>
#include <string.h>

enum {
    RANGE_MAX = 32,
    UNIT_BYTES = 2 << 20, /* what the driver takes for larger blocks */
    FEW_SIZES = 4,        /* of a program for `fixed_size` */
    LISTED_MAX = 16,      /* bins of sizes of their own */
};

/* ---- ranges ---- */

/* The values that a place takes at first. */
struct tune_range {
    size_t (*fill)(const struct tune_facts *facts, uint64_t values[RANGE_MAX]);
    void (*put)(const struct tune_facts *facts, uint64_t value, char *text, size_t room);
    bool is_refined; /* sizes between two that were tried are tried too */
};

static void put_size(const struct tune_facts *facts, uint64_t value, char *text, size_t room)
{
    char size[RS_SIZE_TEXT_BYTES];

    (void)facts;
    snprintf(text, room, "%s", rs_size_format(value, size));
}

static void put_number(const struct tune_facts *facts, uint64_t value, char *text, size_t room)
{
    (void)facts;
    snprintf(text, room, "%llu", (unsigned long long)value);
}

/* So many of the most frequent sizes: "512B+3MiB". */
static void put_sizes(const struct tune_facts *facts, uint64_t value, char *text, size_t room)
{
    char size[RS_SIZE_TEXT_BYTES];
    size_t length = 0;

    for (size_t i = 0; i < value && length < room; i++)
        length += (size_t)snprintf(text + length, room - length, "%s%s", i ? "+" : "",
                                   rs_size_format(facts->sizes[i].bytes, size));
}

/* Values in ascending order come once. */
static size_t add(uint64_t values[RANGE_MAX], size_t count, uint64_t value)
{
    if (count < RANGE_MAX && (count == 0 || values[count - 1] < value))
        values[count++] = value;
    return count;
}

static size_t fill_shares(const struct tune_facts *facts, const unsigned *percents, size_t shares,
                          uint64_t values[RANGE_MAX])
{
    size_t count = 0;

    for (size_t i = 0; i < shares; i++) {
        uint64_t bytes = facts->peak_live_bytes / 100 * percents[i];
        count = add(values, count, (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES);
    }
    return count;
}

static size_t fill_initial(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    static const unsigned percents[] = {0, 25, 50, 75, 90, 101, 105, 110, 115, 120, 130, 150};

    return fill_shares(facts, percents, RS_ARRAY_LENGTH(percents), values);
}

static size_t fill_few_initial(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    static const unsigned percents[] = {0, 101, 110};

    return fill_shares(facts, percents, RS_ARRAY_LENGTH(percents), values);
}

static size_t fill_arena(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    static const unsigned percents[] = {101, 105, 110, 115, 120, 130, 140, 160, 200, 300};

    return fill_shares(facts, percents, RS_ARRAY_LENGTH(percents), values);
}

static size_t fill_quantiles(const struct tune_facts *facts, const unsigned *percents,
                             size_t quantiles, uint64_t values[RANGE_MAX])
{
    enum { SMALLEST = 512 };
    size_t count = 0;

    for (size_t i = 0; facts->allocations && i < quantiles; i++) {
        uint64_t size = tune_facts_quantile(facts, percents[i]), power = SMALLEST;
        while (power < size && power < RS_SIZE_ADDRESSABLE / 2)
            power *= 2;
        count = add(values, count, power);
    }
    return count;
}

static size_t fill_bins_from(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    static const unsigned percents[] = {0, 25, 50, 75};

    return fill_quantiles(facts, percents, RS_ARRAY_LENGTH(percents), values);
}

static size_t fill_bins_to(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    static const unsigned percents[] = {10, 25, 50, 75, 90, 97};

    return fill_quantiles(facts, percents, RS_ARRAY_LENGTH(percents), values);
}

static size_t fill_listed(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    size_t count = 0;

    for (uint64_t listed = 1; listed <= LISTED_MAX && listed <= facts->size_count; listed *= 2)
        count = add(values, count, listed);
    return count;
}

static size_t fill_granularity(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    size_t count = 0;

    (void)facts;
    for (uint64_t bytes = UNIT_BYTES; bytes <= 16 * UNIT_BYTES; bytes *= 2)
        count = add(values, count, bytes);
    return count;
}

static size_t fill_fine_granularity(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    return fill_granularity(facts, values) ? 2 : 0;
}

/* A program of few sizes: its largest one. */
static size_t fill_largest(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    uint64_t largest = 0;

    if (facts->size_count > FEW_SIZES)
        return 0;
    for (size_t i = 0; i < facts->size_count; i++)
        largest = rs_max(largest, facts->sizes[i].bytes);
    return largest ? add(values, 0, largest) : 0;
}

static size_t fill_preallocated(const struct tune_facts *facts, uint64_t values[RANGE_MAX])
{
    size_t count = 0;

    for (uint64_t blocks = 1; blocks <= 1024 && blocks < facts->peak_live_blocks; blocks *= 4)
        count = add(values, count, blocks);
    return add(values, count, rs_max(facts->peak_live_blocks, 1));
}

static const struct tune_range initial = {fill_initial, put_size, true},
                               few_initial = {fill_few_initial, put_size, true},
                               arena_size = {fill_arena, put_size, true},
                               bins_from = {fill_bins_from, put_size, false},
                               bins_to = {fill_bins_to, put_size, false},
                               listed_sizes = {fill_listed, put_sizes, false},
                               granularity = {fill_granularity, put_size, false},
                               fine_granularity = {fill_fine_granularity, put_size, false},
                               largest_size = {fill_largest, put_size, false},
                               preallocated = {fill_preallocated, put_number, false};

/* ---- the table ---- */

const struct tune_template tune_templates[] = {
    {"no stack", .why = "takes each block from the driver and gives it back", .is_none = true},
    {"cuda",
     {"RMM_RESOURCE=cuda"},
     .why = "takes each block from the driver, whose free waits for the GPU"},
    {"virtual",
     {"RMM_RESOURCE=virtual(granularity=$1, initial_size=$2)"},
     {&granularity, &few_initial},
     .why = "moves free memory to where a request needs it"},
    {"pool",
     {"RMM_POOL_SIZE=$1"},
     {&initial},
     .why = "cuts blocks out of few large ones, and grows by little more than a request"},
    {"pool, RMM's growth",
     {"RMM_RESOURCE=pool(cuda, initial_size=$1, growth=rmm)"},
     {&initial},
     .why = "cuts blocks out of few large ones, and grows as RMM's does"},
    {"pool, bins",
     {"RMM_POOL_SIZE=$1", "RMM_BINNING=$2-$3"},
     {&few_initial, &bins_from, &bins_to},
     .why = "serves small requests from bins of equal blocks"},
    {"pool, bins of sizes",
     {"RMM_RESOURCE=binning(pool(cuda, initial_size=$1), bins=$2)"},
     {&few_initial, &listed_sizes},
     .why = "has bins of the sizes that the program asks for most"},
    {"virtual, bins",
     {"RMM_RESOURCE=binning(virtual(granularity=$1), minimum_size=$2, maximum_size=$3)"},
     {&fine_granularity, &bins_from, &bins_to},
     .why = "moves free memory to where a request needs it, below bins of equal blocks"},
    {"virtual, bins of sizes",
     {"RMM_RESOURCE=binning(virtual(granularity=$1), bins=$2)"},
     {&granularity, &listed_sizes},
     .why = "moves free memory to where a request needs it, below bins of the most frequent sizes"},
    {"fixed_size",
     {"RMM_RESOURCE=fixed_size(cuda, block_size=$1, blocks_to_preallocate=$2)"},
     {&largest_size, &preallocated},
     .why = "gives each request a block of the one size",
     .is_bounded = true},
    {"arena",
     {"RMM_ARENA_SIZE=$1"},
     {&arena_size},
     .why = "cuts all blocks out of one, which never grows",
     .is_bounded = true},
    {"arena, size classes",
     {"RMM_RESOURCE=arena(cuda, arena_size=$1, size_classes=1)"},
     {&arena_size},
     .why = "cuts all blocks out of one, which never grows, in rounded sizes",
     .is_bounded = true},
    {NULL},
};

/* ---- candidates ---- */

static void say_nothing(void *data, const char *line)
{
    (void)data;
    (void)line;
}

static void put_variable(const struct tune_facts *facts, const struct tune_candidate *candidate,
                         const char *form, char text[TUNE_TEXT_BYTES])
{
    size_t length = 0;

    text[0] = '\0';
    for (; *form && length + 1 < TUNE_TEXT_BYTES; form++) {
        if (*form == '$') {
            size_t place = (size_t)(*++form - '1');
            candidate->of->ranges[place]->put(facts, candidate->values[place], text + length,
                                              TUNE_TEXT_BYTES - length);
            length += strlen(text + length);
        } else {
            text[length++] = *form;
            text[length] = '\0';
        }
    }
}

/* False where the parser refuses the variables, as bins whose range ends before it begins. */
static bool read_variables(struct tune_candidate *candidate)
{
    struct rs_diagnostics nobody = {.write = say_nothing};
    char *environment[TUNE_VARIABLES_MAX + 1] = {NULL}, text[RS_EXPRESSION_TEXT_BYTES];
    const struct rs_expression *stack;
    struct rs_config config;
    bool is_good;

    for (size_t i = 0; i < TUNE_VARIABLES_MAX && candidate->variables[i][0]; i++)
        environment[i] = candidate->variables[i];
    is_good = rs_config_parse(environment, &nobody, &config) == 0;
    stack = is_good ? rs_config_stack(&config, RS_KIND_DEVICE, 0) : NULL;
    is_good = stack && strlen(rs_expression_format(stack, NULL, text)) < TUNE_TEXT_BYTES;
    if (is_good)
        memcpy(candidate->expression, text, strlen(text) + 1);
    rs_config_free(&config);
    return is_good;
}

static bool make(const struct tune_facts *facts, const struct tune_template *of,
                 const uint64_t values[TUNE_VALUES_MAX], struct tune_candidate *candidate)
{
    *candidate = (struct tune_candidate){.of = of};
    memcpy(candidate->values, values, sizeof(candidate->values));
    for (size_t i = 0; i < TUNE_VARIABLES_MAX && of->variables[i]; i++)
        put_variable(facts, candidate, of->variables[i], candidate->variables[i]);
    if (!of->is_none)
        return read_variables(candidate);
    snprintf(candidate->expression, sizeof(candidate->expression), "cuda");
    return true;
}

/* All values of the template's places, the last place's fastest. */
static size_t make_all(const struct tune_facts *facts, const struct tune_template *of,
                       struct tune_candidate *candidates, size_t room)
{
    uint64_t ranges[TUNE_VALUES_MAX][RANGE_MAX], values[TUNE_VALUES_MAX] = {0};
    size_t counts[TUNE_VALUES_MAX], all = 1, made = 0, rest;

    for (size_t i = 0; i < TUNE_VALUES_MAX; i++) {
        counts[i] = of->ranges[i] ? of->ranges[i]->fill(facts, ranges[i]) : 1;
        all *= counts[i];
    }
    for (size_t number = 0; number < all && made < room; number++) {
        rest = number;
        for (size_t i = TUNE_VALUES_MAX; i-- > 0; rest /= counts[i])
            values[i] = of->ranges[i] ? ranges[i][rest % counts[i]] : 0;
        made += make(facts, of, values, &candidates[made]);
    }
    return made;
}

size_t tune_candidates_make(const struct tune_facts *facts, struct tune_candidate *candidates,
                            size_t room)
{
    size_t count = 0;

    for (const struct tune_template *of = tune_templates; of->name; of++)
        count += make_all(facts, of, candidates + count, room - count);
    return count;
}

/* ---- refinement ---- */

static bool differs_only_at(const struct tune_candidate *a, const struct tune_candidate *b,
                            size_t place)
{
    for (size_t i = 0; i < TUNE_VALUES_MAX; i++)
        if ((i == place) != (a->values[i] != b->values[i]))
            return false;
    return a->of == b->of;
}

/* Half way to the nearest lower (or higher) value that was tried; the own value where nothing lies
 * between. */
static uint64_t between(const struct tune_candidate *candidates, size_t count,
                        const struct tune_candidate *from, size_t place, bool is_higher)
{
    uint64_t own = from->values[place], nearest = own, other, middle;

    for (size_t i = 0; i < count; i++) {
        other = candidates[i].values[place];
        if (!differs_only_at(&candidates[i], from, place) || (other > own) != is_higher)
            continue;
        if (nearest == own || (is_higher ? other < nearest : other > nearest))
            nearest = other;
    }
    middle = (own + nearest) / 2 / UNIT_BYTES * UNIT_BYTES;
    return middle == nearest ? own : middle;
}

size_t tune_candidates_refine(const struct tune_facts *facts, struct tune_candidate *candidates,
                              size_t count, size_t room, size_t number)
{
    const struct tune_candidate *from = &candidates[number];
    uint64_t values[TUNE_VALUES_MAX];

    for (size_t place = 0; place < TUNE_VALUES_MAX; place++)
        for (int is_higher = 0; is_higher < 2; is_higher++) {
            if (count == room || !from->of->ranges[place] || !from->of->ranges[place]->is_refined)
                continue;
            memcpy(values, from->values, sizeof(values));
            values[place] = between(candidates, count, from, place, is_higher);
            if (values[place] != from->values[place])
                count += make(facts, from->of, values, &candidates[count]);
        }
    return count;
}
