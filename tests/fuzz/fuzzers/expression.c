/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions: what is parsed is written as it can be read again, and so is what is made of it. */
#include "resource/expression.h"
#include "fuzzer.h"

enum { UNIT_BYTES = 64 << 10 };

static void see(void *data, const char *line)
{
    (void)data;
    must(strlen(line) < RS_LOG_LINE_BYTES && !strchr(line, '\n'), "no single line");
}

static struct rs_expression *parse(struct rs_source *source, const char *text)
{
    struct rs_diagnostics diagnostics = {.write = see};
    struct rs_expression *expression;

    *source = (struct rs_source){"RMM_RESOURCE", text};
    expression = rs_expression_parse(source, &diagnostics);
    must((diagnostics.count == 0) == (expression != NULL), "an error without a diagnostic");
    return expression;
}

/* A longer text is cut off. */
static void must_read_back(const struct rs_expression *expression)
{
    char text[RS_EXPRESSION_TEXT_BYTES], again[RS_EXPRESSION_TEXT_BYTES];
    struct rs_expression *other;
    struct rs_source source;

    rs_expression_format(expression, NULL, text);
    if (strlen(text) + 1 == sizeof(text))
        return;
    other = parse(&source, text);
    must(other, "its own text is refused");
    must(strcmp(rs_expression_format(other, NULL, again), text) == 0, "its own text is another");
    rs_expression_free(other);
}

static void look_at(const struct rs_expression *expression)
{
    struct rs_environment environment = {.total_bytes = 80ull << 30,
                                         .free_bytes = 79ull << 30,
                                         .host_total_bytes = 64ull << 30,
                                         .host_free_bytes = 1ull << 30};
    struct rs_diagnostics diagnostics = {.write = see};
    char text[RS_EXPRESSION_TEXT_BYTES];

    (void)rs_expression_validate(expression, NULL, &diagnostics);
    (void)rs_expression_validate(expression, &environment, &diagnostics);
    (void)rs_expression_frees_are_ready(expression);
    (void)rs_expression_frees_wait(expression);
    (void)rs_expression_memories(expression);
    (void)rs_expression_overcommits(expression);
    (void)rs_expression_format(expression, &environment, text);
    must_read_back(expression);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    char *text = copy_of(input, length);
    struct rs_diagnostics diagnostics = {.write = see};
    struct rs_source source;
    struct rs_expression *expression = parse(&source, text);

    if (expression) {
        look_at(expression);
        if (rs_expression_set_unit(expression, UNIT_BYTES, &diagnostics))
            look_at(expression);
        expression = rs_expression_insert_reuse(expression);
        must(expression, "no memory");
        look_at(expression);
        expression = rs_expression_without_allocators(expression);
        look_at(expression);
        rs_expression_free(expression);
    }
    free(text);
    return 0;
}
