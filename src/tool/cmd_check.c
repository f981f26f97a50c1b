/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim check: what an expression means, before anything runs on it. */
#include "resource/expression.h"
#include "tool/describe.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>

static void print_tree(const struct rs_expression *node, int depth)
{
    const struct rs_option *rows = node->descriptor->options;
    char text[DESCRIBE_BYTES];

    printf("%*s%s", depth * 2, "", node->descriptor->name);
    for (size_t i = 0; rows[i].name; i++)
        printf(" %s=%s", rows[i].name, describe_value(&rows[i], &node->values[i], text));
    /* Only a node that the text did not ask for has no place in it. */
    if (!node->at)
        printf("   <- put here: blocks below are reused only when earlier work is done");
    putchar('\n');
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX; i++)
        if (node->upstream[i])
            print_tree(node->upstream[i], depth + 1);
}

static int check(char **arguments)
{
    struct rs_source source = {"EXPRESSION", arguments[0]};
    struct rs_complaints complaints = tool_complaints();
    struct rs_expression *expression;

    if (!arguments[0] || arguments[1]) {
        tool_say("one expression is expected, in quotes: rmmshim check 'pool(cuda)'");
        return TOOL_USAGE;
    }
    expression = rs_expression_parse(&source, &complaints);
    if (expression)
        expression = rs_expression_insert_reuse(expression);
    if (expression && rs_expression_validate(expression, NULL, &complaints))
        print_tree(expression, 0);
    rs_expression_free(expression);
    return expression && complaints.count == 0 ? TOOL_OK : TOOL_FINDING;
}

static void help(void)
{
    puts("Prints the stack as a tree, the top first, every option with its value.  Exit code 1 "
         "when\n"
         "the expression is wrong, with a line that shows where.\n\n"
         "example: rmmshim check 'statistics(pool(cuda, initial_size=1GiB, maximum_size=80%))'");
}

const struct tool_command tool_check = {
    .name = "check",
    .arguments = "EXPRESSION",
    .summary = "Checks an expression for RMM_RESOURCE and shows the stack that it means",
    .run = check,
    .help = help,
};
