/* SPDX-License-Identifier: Apache-2.0 */
/* Turns an expression into a stack: inserts `reuse`, computes the values of options on a device,
 * and writes the canonical text. */
#include "resource/expression.h"

#include <errno.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 512 };

struct rs_expression *rs_expression_find(struct rs_expression *expression,
                                         const struct rs_mr_descriptor *descriptor)
{
    struct rs_expression *found = NULL;

    if (!expression || expression->descriptor == descriptor)
        return expression;
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && !found; i++)
        found = rs_expression_find(expression->upstream[i], descriptor);
    return found;
}

static bool frees_at_once(const struct rs_expression *expression)
{
    if (!expression)
        return false;
    if (expression->descriptor->frees != RS_FREE_AS_UPSTREAM)
        return expression->descriptor->frees == RS_FREE_AT_ONCE;
    return frees_at_once(expression->upstream[0]) || frees_at_once(expression->upstream[1]);
}

struct rs_expression *rs_expression_insert_reuse(struct rs_expression *expression)
{
    if (!frees_at_once(expression))
        return expression;
    /* Adaptors that count, log or limit stay above `reuse`, so that they see each free at once.
     * `fallback`, which has two upstreams, stays below, since its record of a block tells to which
     * upstream a free goes. */
    if (expression->descriptor->frees == RS_FREE_AS_UPSTREAM &&
        expression->descriptor->upstream_count == 1) {
        expression->upstream[0] = rs_expression_insert_reuse(expression->upstream[0]);
        if (expression->upstream[0])
            return expression;
        rs_expression_free(expression);
        return NULL;
    }
    return rs_expression_node(&rs_mr_descriptor_reuse, expression, expression->source);
}

bool rs_expression_frees_are_ready(const struct rs_expression *expression)
{
    bool ready = expression->descriptor->upstream_count > 0;

    if (expression->descriptor == &rs_mr_descriptor_reuse)
        return true;
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i]; i++)
        ready = rs_expression_frees_are_ready(expression->upstream[i]) && ready;
    return ready;
}

bool rs_expression_frees_wait(const struct rs_expression *expression)
{
    const struct rs_mr_descriptor *descriptor = expression->descriptor;

    if (descriptor == &rs_mr_descriptor_reuse)
        return false;
    /* A leaf with no `reuse` above it waits in each free. */
    if (descriptor->frees != RS_FREE_AS_UPSTREAM)
        return descriptor->frees == RS_FREE_WAITS || descriptor->upstream_count == 0;
    return rs_expression_frees_wait(expression->upstream[0]) ||
           (expression->upstream[1] && rs_expression_frees_wait(expression->upstream[1]));
}

static bool is_multiple(const struct rs_option_value *value, size_t unit_bytes)
{
    return value->none || (value->size.kind == RS_SIZE_BYTES && value->size.number > 0 &&
                           value->size.number % unit_bytes == 0);
}

/* Checks that all sizes in the node's lists of sizes are multiples of unit_bytes.  Returns false
 * after reporting one that is not. */
static bool check_lists(const struct rs_expression *expression, size_t unit_bytes,
                        struct rs_diagnostics *diagnostics)
{
    const struct rs_option *rows = expression->descriptor->options;
    char text[RS_SIZE_TEXT_BYTES];

    for (size_t i = 0; rows[i].name; i++) {
        struct rs_sizes sizes = {.count = 0};
        if (rows[i].type == RS_OPTION_SIZES)
            sizes = rs_option_sizes(expression->values[i].text);
        for (size_t j = 0; j < sizes.count; j++) {
            if (sizes.bytes[j] % unit_bytes == 0)
                continue;
            return rs_diagnose(diagnostics, expression->source, expression->at,
                               "each size in '%s' of '%s' must be a multiple of %s for managed "
                               "memory, so that no two blocks share a page",
                               rows[i].name, expression->descriptor->name,
                               rs_size_format(unit_bytes, text));
        }
    }
    return true;
}

bool rs_expression_set_unit(struct rs_expression *expression, size_t unit_bytes,
                            struct rs_diagnostics *diagnostics)
{
    const struct rs_mr_descriptor *descriptor = expression->descriptor;
    struct rs_option_value *value = NULL;
    char text[RS_SIZE_TEXT_BYTES];
    bool good = true;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i] && good; i++)
        good = rs_expression_set_unit(expression->upstream[i], unit_bytes, diagnostics);
    if (!good || descriptor->frees != RS_FREE_AT_ONCE || descriptor->keeps_blocks)
        return good;
    if (!check_lists(expression, unit_bytes, diagnostics))
        return false;
    if (descriptor->unit_option)
        value = rs_expression_value(expression, descriptor->unit_option);
    if (value && !value->given && !is_multiple(value, unit_bytes))
        *value = (struct rs_option_value){
            .given = true,
            .size = {.kind = RS_SIZE_BYTES, .number = unit_bytes},
        };
    rs_size_format(unit_bytes, text);
    if (!value)
        return rs_diagnose(diagnostics, expression->source, expression->at,
                           "'%s' cannot serve managed memory, because two of its blocks could "
                           "share a page (%s): use 'pool'",
                           descriptor->name, text);
    return is_multiple(value, unit_bytes) ||
           rs_diagnose(diagnostics, expression->source, expression->at,
                       "%s of '%s' must be a multiple of %s for managed memory, so that no two "
                       "blocks share a page",
                       descriptor->unit_option, descriptor->name, text);
}

/* True for an allocator that cuts blocks, and for `reuse`. */
static bool is_allocator(const struct rs_mr_descriptor *descriptor)
{
    return descriptor == &rs_mr_descriptor_reuse ||
           (descriptor->upstream_count == 1 && descriptor->frees == RS_FREE_AT_ONCE &&
            !descriptor->keeps_blocks);
}

struct rs_expression *rs_expression_without_allocators(struct rs_expression *expression)
{
    struct rs_expression *upstream;

    while (is_allocator(expression->descriptor)) {
        upstream = expression->upstream[0];
        expression->upstream[0] = NULL;
        rs_expression_free(expression);
        expression = upstream;
    }
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i]; i++)
        expression->upstream[i] = rs_expression_without_allocators(expression->upstream[i]);
    return expression;
}

/* ---- sizes ---- */

struct whole {
    size_t total_bytes, free_bytes;
};

/* Returns the size of the memory of which a percentage is a share; 0 bytes without an environment.
 * For managed memory that is the device's memory, to which it migrates when the device uses it. */
static struct whole whole_of(const struct rs_expression *expression, const struct rs_option *row,
                             const struct rs_environment *environment)
{
    while (expression->upstream[0])
        expression = expression->upstream[0];
    if (!environment)
        return (struct whole){0, 0};
    if (expression->descriptor->memory == RS_MEMORY_HOST && !row->of_device)
        return (struct whole){environment->host_total_bytes, environment->host_free_bytes};
    return (struct whole){environment->total_bytes, environment->free_bytes};
}

size_t rs_expression_resolve(const struct rs_expression *expression, const struct rs_option *row,
                             struct rs_size size, const struct rs_environment *environment)
{
    struct whole whole = whole_of(expression, row, environment);

    return rs_size_resolve(size, whole.total_bytes, whole.free_bytes);
}

static void store_values(const struct rs_expression *expression,
                         const struct rs_environment *environment, void *config)
{
    const struct rs_option *rows = expression->descriptor->options;

    RS_ASSERT(expression->descriptor->config_bytes <= CONFIG_BYTES_MAX);
    memset(config, 0, expression->descriptor->config_bytes);
    for (size_t i = 0; rows[i].name; i++) {
        struct whole whole = whole_of(expression, &rows[i], environment);
        rs_option_store(&rows[i], &expression->values[i], config, whole.total_bytes,
                        whole.free_bytes);
    }
}

unsigned rs_expression_memories(const struct rs_expression *expression)
{
    const struct rs_mr_descriptor *descriptor = expression->descriptor;
    _Alignas(16) char config[CONFIG_BYTES_MAX];
    unsigned memories = 0;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i]; i++)
        memories |= rs_expression_memories(expression->upstream[i]);
    if (descriptor->upstream_count > 0)
        return memories;
    if (!descriptor->counted_as)
        return 1u << descriptor->memory;
    store_values(expression, NULL, config);
    return 1u << descriptor->counted_as(config);
}

bool rs_expression_overcommits(const struct rs_expression *expression)
{
    bool overcommits = expression->descriptor->overcommits;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i] && !overcommits; i++)
        overcommits = rs_expression_overcommits(expression->upstream[i]);
    return overcommits;
}

/* Checks that no percentage exceeds 100 %.  Nodes over memory that overcommits are exempt. */
static bool check_shares(const struct rs_expression *expression, struct rs_diagnostics *diagnostics)
{
    const struct rs_option *rows = expression->descriptor->options;

    for (size_t i = 0; rows[i].name; i++) {
        struct rs_size size = expression->values[i].size;
        if (size.kind == RS_SIZE_BYTES || size.number <= RS_SIZE_WHOLE ||
            rs_expression_overcommits(expression))
            continue;
        return rs_diagnose(diagnostics, expression->source, expression->at,
                           "%s of '%s' is more than 100%% of the memory", rows[i].name,
                           expression->descriptor->name);
    }
    return true;
}

/* Fills in `config`, and has descriptor->validate check it.  For this check total_bytes is 0 unless
 * all memory beneath is device memory.  Returns false after a diagnostic. */
static bool configure(const struct rs_expression *expression,
                      const struct rs_environment *environment, void *config,
                      struct rs_diagnostics *diagnostics)
{
    const struct rs_mr_descriptor *descriptor = expression->descriptor;
    struct rs_environment bounded =
        environment ? *environment : (struct rs_environment){.device = 0};

    store_values(expression, environment, config);
    if (!descriptor->validate)
        return true;
    if (rs_expression_memories(expression) != 1u << RS_MEMORY_DEVICE)
        bounded.total_bytes = 0;
    return descriptor->validate(config, &(struct rs_validation){environment ? &bounded : NULL,
                                                                expression->source, diagnostics});
}

static bool has_percentage(const struct rs_expression *expression)
{
    for (size_t i = 0; expression->descriptor->options[i].name; i++)
        if (expression->values[i].size.kind != RS_SIZE_BYTES)
            return true;
    return false;
}

bool rs_expression_validate(const struct rs_expression *expression,
                            const struct rs_environment *environment,
                            struct rs_diagnostics *diagnostics)
{
    _Alignas(16) char config[CONFIG_BYTES_MAX];
    bool good = true;

    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i]; i++)
        good = rs_expression_validate(expression->upstream[i], environment, diagnostics) && good;
    good = check_shares(expression, diagnostics) && good;
    if (!environment && has_percentage(expression))
        return good;
    return configure(expression, environment, config, diagnostics) && good;
}

int rs_expression_build(const struct rs_expression *expression,
                        const struct rs_environment *environment,
                        struct rs_diagnostics *diagnostics, struct rs_mr **out)
{
    const struct rs_mr_descriptor *descriptor = expression->descriptor;
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX] = {NULL};
    _Alignas(16) char config[CONFIG_BYTES_MAX];
    int result = 0;

    if (!configure(expression, environment, config, diagnostics))
        return -EINVAL;
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i] && result == 0; i++)
        result =
            rs_expression_build(expression->upstream[i], environment, diagnostics, &upstream[i]);
    if (result == 0)
        result = rs_mr_create(descriptor, environment, config, upstream, out);
    if (result != 0)
        for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX; i++)
            rs_mr_destroy(upstream[i], false);
    return result;
}

struct writer {
    char *text; /* of RS_EXPRESSION_TEXT_BYTES */
    const struct rs_environment *environment;
};

#define PUT(writer, ...) rs_text_add((writer)->text, RS_EXPRESSION_TEXT_BYTES, __VA_ARGS__)

/* Returns the size, with a percentage changed into bytes if there is an environment. */
static struct rs_size resolved(const struct writer *writer, const struct rs_expression *expression,
                               const struct rs_option *row, struct rs_size size)
{
    if (size.kind == RS_SIZE_BYTES || !writer->environment)
        return size;
    return (struct rs_size){.number =
                                rs_expression_resolve(expression, row, size, writer->environment)};
}

/* Returns the quote to put around the text so that the parser reads it again, or "" for none.  A
 * text that contains quotes of both kinds needs none: the parser has read it without quotes. */
static const char *quote_for(const char *text)
{
    if (!strpbrk(text, ",) \t\"'"))
        return "";
    if (!strchr(text, '"'))
        return "\"";
    return strchr(text, '\'') ? "" : "'";
}

static void put_value(struct writer *writer, const struct rs_expression *expression,
                      const struct rs_option *row, const struct rs_option_value *value)
{
    struct rs_option_value of = *value;
    char text[RS_EXPRESSION_TEXT_BYTES];
    const char *quote;

    of.size = resolved(writer, expression, row, value->size);
    of.size_to = resolved(writer, expression, row, value->size_to);
    rs_option_write(row, &of, text, sizeof(text));
    quote = row->type == RS_OPTION_TEXT ? quote_for(text) : "";
    PUT(writer, "%s%s%s", quote, text, quote);
}

static void put_expression(struct writer *writer, const struct rs_expression *expression)
{
    const struct rs_option *rows = expression->descriptor->options;
    const char *between = "(";

    PUT(writer, "%s", expression->descriptor->name);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && expression->upstream[i]; i++) {
        PUT(writer, "%s", between);
        put_expression(writer, expression->upstream[i]);
        between = ", ";
    }
    for (size_t i = 0; rows[i].name; i++) {
        if (!expression->values[i].given)
            continue;
        PUT(writer, "%s%s=", between, rows[i].name);
        put_value(writer, expression, &rows[i], &expression->values[i]);
        between = ", ";
    }
    if (between[0] == ',')
        PUT(writer, ")");
}

const char *rs_expression_format(const struct rs_expression *expression,
                                 const struct rs_environment *environment,
                                 char text[RS_EXPRESSION_TEXT_BYTES])
{
    struct writer writer = {text, environment};

    text[0] = '\0';
    put_expression(&writer, expression);
    return text;
}
