/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of stack expressions.  The depth of its recursion is bounded, as the text comes from
 * the environment. */
#include "resource/expression.h"

#include <stdlib.h>
#include <string.h>

struct parser {
    const struct rs_source *source;
    struct rs_diagnostics *diagnostics;
    const char *cursor;
    unsigned depth;
};

#define DIAGNOSE(parser, at, ...)                                                                  \
    rs_diagnose((parser)->diagnostics, (parser)->source, at, __VA_ARGS__)

struct rs_expression *rs_expression_node(const struct rs_mr_descriptor *descriptor,
                                         struct rs_expression *upstream,
                                         const struct rs_source *source)
{
    struct rs_expression *node = calloc(1, sizeof(*node));

    if (node && rs_option_defaults(descriptor->options, node->values) == 0) {
        node->descriptor = descriptor;
        node->source = source;
        node->upstream[0] = upstream;
        return node;
    }
    free(node);
    rs_expression_free(upstream);
    return NULL;
}

void rs_expression_free(struct rs_expression *expression)
{
    if (!expression)
        return;
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX; i++)
        rs_expression_free(expression->upstream[i]);
    for (size_t i = 0; expression->descriptor->options[i].name; i++)
        rs_option_value_clear(&expression->values[i]);
    free(expression);
}

struct rs_option_value *rs_expression_value(struct rs_expression *expression, const char *option)
{
    const struct rs_option *rows = expression->descriptor->options;

    for (size_t i = 0; rows[i].name; i++)
        if (strcmp(rows[i].name, option) == 0)
            return &expression->values[i];
    return NULL;
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void skip_blanks(struct parser *parser)
{
    while (*parser->cursor == ' ' || *parser->cursor == '\t' || *parser->cursor == '\n')
        parser->cursor++;
}

/* Returns the end of the name that begins at `begin`. */
static const char *name_end(const char *begin)
{
    while (is_name_byte(*begin))
        begin++;
    return begin;
}

/* Skips the name of RMM's Python module or C++ namespace, which has no meaning here. */
static void skip_namespace(struct parser *parser)
{
    static const char *const namespaces[] = {"rmm.mr.", "mr.", "rmm::mr::"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(namespaces); i++) {
        size_t length = strlen(namespaces[i]);
        if (strncmp(parser->cursor, namespaces[i], length) == 0) {
            parser->cursor += length;
            return;
        }
    }
}

static bool parse_resource_name(struct parser *parser, const struct rs_mr_descriptor **descriptor)
{
    const char *begin = parser->cursor, *end = name_end(begin);
    const char *names[64];
    size_t count = 0;
    const char *nearest;

    if (begin == end)
        return DIAGNOSE(parser, begin,
                        *begin ? "a memory resource is expected here, as in pool(cuda)"
                               : "the text ends where a memory resource is expected");
    *descriptor = rs_mr_find(begin, end);
    if (*descriptor) {
        parser->cursor = end;
        return true;
    }
    for (; rs_mr_descriptors[count] && count + 1 < RS_ARRAY_LENGTH(names); count++)
        names[count] = rs_mr_descriptors[count]->name;
    names[count] = NULL;
    nearest = rs_nearest_word(begin, rs_mr_word_end(begin, end), names);
    if (nearest)
        return DIAGNOSE(parser, begin,
                        "there is no memory resource of this name; did you mean '%s'?", nearest);
    return DIAGNOSE(parser, begin,
                    "there is no memory resource of this name; `rmmshim resources` lists them");
}

/* Reports that the resource has no option of the name [begin, end), and returns false. */
static bool diagnose_option(struct parser *parser, const struct rs_mr_descriptor *descriptor,
                            const char *begin, const char *end)
{
    const char *names[RS_OPTION_ROWS_MAX + 1];
    size_t count = 0;
    const char *nearest, *beginning_so = NULL;
    const struct rs_mr_descriptor *resource = rs_mr_find(begin, end);

    for (; descriptor->options[count].name; count++) {
        names[count] = descriptor->options[count].name;
        /* The text may be the beginning of an option's name, such as initial= for initial_size=. */
        if (!beginning_so && strncmp(names[count], begin, (size_t)(end - begin)) == 0)
            beginning_so = names[count];
    }
    names[count] = NULL;
    nearest = rs_nearest_word(begin, end, names);
    if (nearest || beginning_so)
        return DIAGNOSE(parser, begin, "'%s' has no option of this name; did you mean '%s'?",
                        descriptor->name, nearest ? nearest : beginning_so);
    /* The option may have the name of a resource, as in RMM's reinitialize(managed_memory=True). */
    if (resource && descriptor->upstream_count)
        return DIAGNOSE(parser, begin, "'%s' is a memory resource; did you mean %s(%s)?",
                        resource->name, descriptor->name, resource->name);
    if (count == 0)
        return DIAGNOSE(parser, begin, "'%s' has no options", descriptor->name);
    return DIAGNOSE(parser, begin,
                    "'%s' has no option of this name; `rmmshim resources %s` lists them",
                    descriptor->name, descriptor->name);
}

/* Returns the end of the value at `begin`.  That is the next ',' or ')', or, for a value in quotes
 * (*quoted), the place after the closing quote.  Returns NULL if the closing quote is missing. */
static const char *value_end(const char *begin, bool *quoted)
{
    *quoted = *begin == '"' || *begin == '\'';
    if (*quoted) {
        const char *quote = strchr(begin + 1, *begin);
        return quote ? quote + 1 : NULL;
    }
    return begin + strcspn(begin, ",)");
}

static bool parse_option(struct parser *parser, struct rs_expression *node)
{
    const char *begin = parser->cursor, *end = name_end(begin), *last;
    enum rs_option_type type;
    const struct rs_option *row = rs_option_find(node->descriptor->options, begin, end, &type);
    struct rs_option_value *value;
    bool quoted;

    if (!row)
        return diagnose_option(parser, node->descriptor, begin, end);
    value = &node->values[row - node->descriptor->options];
    if (value->given)
        return DIAGNOSE(parser, begin, "the option '%s' is given twice", row->name);
    parser->cursor = end;
    skip_blanks(parser);
    parser->cursor++; /* skips the '=' that the caller saw */
    skip_blanks(parser);
    begin = parser->cursor;
    end = value_end(begin, &quoted);
    if (!end)
        return DIAGNOSE(parser, begin, "the closing quote is missing");
    parser->cursor = end;
    for (last = end; !quoted && last > begin && (last[-1] == ' ' || last[-1] == '\t');)
        last--;
    return rs_option_parse(row, type, parser->source, begin + quoted, last - quoted,
                           parser->diagnostics, value);
}

/* Returns the '=' behind the name at the cursor, or NULL. */
static const char *equals_behind_name(const struct parser *parser)
{
    const char *after = name_end(parser->cursor);

    while (*after == ' ' || *after == '\t')
        after++;
    return after > parser->cursor && *after == '=' ? after : NULL;
}

/* Skips "upstream=", "upstream_mr=" and "bin_resource=", RMM's names of arguments that need none
 * here.  True when there was one. */
static bool skip_upstream_name(struct parser *parser)
{
    static const char *const names[] = {"upstream", "upstream_mr", "bin_resource"};
    const char *equals = equals_behind_name(parser);
    size_t length = (size_t)(name_end(parser->cursor) - parser->cursor);

    for (size_t i = 0; equals && i < RS_ARRAY_LENGTH(names); i++) {
        if (strlen(names[i]) != length || strncmp(names[i], parser->cursor, length) != 0)
            continue;
        parser->cursor = equals + 1;
        skip_blanks(parser);
        return true;
    }
    return false;
}

/* If a value without a name is at the cursor, as RMM's positional arguments are, reports it and
 * returns true.  The report suggests the option `row`. */
static bool diagnose_bare_value(struct parser *parser, const struct rs_option *row)
{
    const char *begin = parser->cursor, *name = row->name;
    const char *end;
    bool quoted;

    if (!name || !*begin || !strchr("0123456789.\"'", *begin))
        return false;
    end = value_end(begin, &quoted);
    if (!end)
        return false;
    if (row->aliases[0].type == RS_OPTION_EXPONENT && row->aliases[0].name &&
        begin + strspn(begin, "0123456789") == end)
        name = row->aliases[0].name;
    DIAGNOSE(parser, begin, "options need names; did you mean %s=%.*s?", name, (int)(end - begin),
             begin);
    return true;
}

/* Reports a further upstream, which the resource cannot have, and returns false. */
static bool diagnose_surplus(struct parser *parser, const struct rs_mr_descriptor *descriptor)
{
    const struct rs_option *row = descriptor->options;
    const char *at = parser->cursor;
    char type[64];

    if (!*at)
        return DIAGNOSE(parser, at,
                        "the text ends inside '%s(', where option=value or ')' is expected",
                        descriptor->name);
    if (diagnose_bare_value(parser, row))
        return false;
    if (!descriptor->upstream_count)
        return DIAGNOSE(parser, at,
                        "no other memory resource can stand inside the parentheses of '%s'",
                        descriptor->name);
    if (descriptor->branch)
        return DIAGNOSE(parser, at,
                        "'%s' already has a memory resource inside its parentheses; only %ss and "
                        "options may follow, as in "
                        "%s(pool(cuda), size=1MiB)",
                        descriptor->name, descriptor->branch->name, descriptor->branch->name);
    if (!row->name)
        return DIAGNOSE(
            parser, at,
            descriptor->upstream_count == 1
                ? "'%s' already has a memory resource inside its parentheses, and has no options"
                : "'%s' already has two memory resources inside its parentheses, and has no "
                  "options",
            descriptor->name);
    return DIAGNOSE(parser, at,
                    "'%s' already has a memory resource inside its parentheses; options need "
                    "names, as in %s=%s",
                    descriptor->name, row->name,
                    row->type == RS_OPTION_SIZE ? "1GiB"
                                                : rs_option_type_text(row, type, sizeof(type)));
}

static bool parse_resource(struct parser *parser, struct rs_expression **out);

/* True when the name at the cursor is that of the descriptor's branches (`bin` of `binning`). */
static bool is_branch(const struct parser *parser, const struct rs_mr_descriptor *descriptor)
{
    return descriptor->branch &&
           rs_mr_find(parser->cursor, name_end(parser->cursor)) == descriptor->branch;
}

static bool parse_upstream(struct parser *parser, struct rs_expression *node)
{
    const struct rs_mr_descriptor *descriptor = node->descriptor;
    unsigned upstreams = 0;

    while (upstreams < RS_MR_UPSTREAMS_MAX && node->upstream[upstreams])
        upstreams++;
    if (upstreams < descriptor->upstream_count) {
        if (diagnose_bare_value(parser, descriptor->options))
            return false;
    } else if (!is_branch(parser, descriptor)) {
        return diagnose_surplus(parser, descriptor);
    } else if (upstreams == RS_MR_UPSTREAMS_MAX) {
        return DIAGNOSE(parser, parser->cursor,
                        "at most %d %ss can have a memory resource of their own",
                        RS_MR_UPSTREAMS_MAX - 1, descriptor->branch->name);
    }
    return parse_resource(parser, &node->upstream[upstreams]);
}

static bool parse_argument(struct parser *parser, struct rs_expression *node, bool *options_begun)
{
    if (skip_upstream_name(parser))
        return parse_upstream(parser, node);
    if (equals_behind_name(parser)) {
        *options_begun = true;
        return parse_option(parser, node);
    }
    if (!*options_begun)
        return parse_upstream(parser, node);
    return DIAGNOSE(parser, parser->cursor,
                    *parser->cursor ? "expected option=value here"
                                    : "the text ends where option=value or ')' is expected");
}

static bool parse_arguments(struct parser *parser, struct rs_expression *node)
{
    bool options_begun = false;

    parser->cursor++; /* skips the '(' */
    skip_blanks(parser);
    while (*parser->cursor != ')') {
        if (!parse_argument(parser, node, &options_begun))
            return false;
        skip_blanks(parser);
        if (*parser->cursor == ',') {
            parser->cursor++;
            skip_blanks(parser);
        } else if (*parser->cursor != ')') {
            return DIAGNOSE(parser, parser->cursor,
                            *parser->cursor ? "expected ',' or ')' here"
                                            : "the text ends where ',' or ')' is expected");
        }
    }
    parser->cursor++;
    return true;
}

/* Parses a node and its upstreams into *out.  Returns false after reporting a mistake; *out then
 * has what was parsed before the mistake.  The caller frees *out in either case. */
static bool parse_resource(struct parser *parser, struct rs_expression **out)
{
    const struct rs_mr_descriptor *descriptor;
    struct rs_expression *node;
    const char *begin;

    skip_namespace(parser);
    begin = parser->cursor;
    if (parser->depth == RS_EXPRESSION_DEPTH_MAX)
        return DIAGNOSE(parser, begin, "the expression is nested more than %d levels deep",
                        RS_EXPRESSION_DEPTH_MAX);
    if (!parse_resource_name(parser, &descriptor))
        return false;
    node = *out = rs_expression_node(descriptor, NULL, parser->source);
    if (!node)
        return DIAGNOSE(parser, begin, "no host memory is left to read this setting");
    node->at = begin;
    parser->depth++;
    skip_blanks(parser);
    if (*parser->cursor == '(' && !parse_arguments(parser, node))
        return false;
    parser->depth--;
    return !descriptor->upstream_count || node->upstream[descriptor->upstream_count - 1] ||
           DIAGNOSE(parser, begin,
                    descriptor->upstream_count == 1
                        ? "'%s' needs a memory resource inside its parentheses, as in %s(cuda)"
                        : "'%s' needs two memory resources inside its parentheses, as in %s(cuda, "
                          "managed)",
                    descriptor->name, descriptor->name);
}

struct rs_expression *rs_expression_parse(const struct rs_source *source,
                                          struct rs_diagnostics *diagnostics)
{
    struct parser parser = {source, diagnostics, source->text, 0};
    struct rs_expression *expression = NULL;

    skip_blanks(&parser);
    if (parse_resource(&parser, &expression)) {
        skip_blanks(&parser);
        if (!*parser.cursor)
            return expression;
        DIAGNOSE(&parser, parser.cursor, "unexpected text after the expression");
    }
    rs_expression_free(expression);
    return NULL;
}
