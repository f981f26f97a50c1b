/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim check: shows the stacks that an expression or variables mean, without running a program.
 */
#include "config/config.h"
#include "config/values.h"
#include "resource/expression.h"
#include "tool/describe.h"
#include "tool/profile.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_tree(const struct rs_expression *node, int depth)
{
    const struct rs_option *rows = node->descriptor->options;
    char text[DESCRIBE_BYTES];

    printf("%*s%s", depth * 2, "", node->descriptor->name);
    for (size_t i = 0; rows[i].name; i++)
        printf(" %s=%s", rows[i].name, describe_value(&rows[i], &node->values[i], text));
    /* A node of the text knows its place there; a `reuse` that was put in has none.  In a stack
     * made from variables no node has one. */
    if (!node->at && node->descriptor == &rs_mr_descriptor_reuse)
        printf("   <- added by rmmshim: blocks below are reused only when earlier work is done");
    putchar('\n');
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX; i++)
        if (node->upstream[i])
            print_tree(node->upstream[i], depth + 1);
}

static int check_expression(const char *text)
{
    struct rs_source source = {"EXPRESSION", text};
    struct rs_diagnostics diagnostics = tool_diagnostics();
    struct rs_expression *expression;
    struct rs_config nothing_set;

    (void)rs_config_parse(NULL, &diagnostics, &nothing_set);
    expression = rs_config_expression(&nothing_set, &source, &diagnostics);
    if (expression)
        print_tree(expression, 0);
    rs_expression_free(expression);
    return expression ? TOOL_OK : TOOL_FINDING;
}

/* ---- variables ---- */

/* Prints `whose`, as in "every device, at most 8GiB", and the stack below it.  Device -1 stands for
 * all devices without settings of their own. */
static void print_stack(const struct rs_config *config, enum rs_kind kind, int device,
                        const char *whose)
{
    const struct rs_expression *stack = config->stack[kind][device < 0 ? RS_DEVICES_MAX : device];
    const struct rs_size *limit = kind == RS_KIND_DEVICE ? rs_config_limit(config, device) : NULL;
    char text[DESCRIBE_BYTES];

    if (!stack)
        return;
    printf("%s%s%s%s\n", whose, rs_kind_texts[kind], limit ? ", at most " : "",
           limit ? describe_size(*limit, text) : "");
    print_tree(stack, 1);
}

static void print_stacks(const struct rs_config *config)
{
    bool alone = true;

    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            alone = alone && !config->stack[kind][device];
    for (int device = -1; device < RS_DEVICES_MAX; device++) {
        char whose[DESCRIBE_BYTES];
        if (device < 0)
            snprintf(whose, sizeof(whose), "every %sdevice", alone ? "" : "other ");
        else
            snprintf(whose, sizeof(whose), "device %d", device);
        for (int kind = 0; kind < RS_KINDS; kind++)
            print_stack(config, (enum rs_kind)kind, device, whose);
    }
    if (!config->anything_set)
        puts("nothing set: every call goes to the driver");
}

/* Returns the length of the variable's name in front of a '='; 0: the argument is an expression. */
static size_t variable_length(const char *argument)
{
    size_t length = strcspn(argument, "=");

    return rs_name_begins_as_ours(argument) && argument[length] && strcspn(argument, "( ,") > length
               ? length
               : 0;
}

/* True for a variable that rmmshim reads.  The library ignores others silently, but here the user
 * has asked about this one. */
static bool is_known(const char *variable)
{
    char name[RS_NAME_BYTES_MAX];
    struct rs_name read;

    snprintf(name, sizeof(name), "%.*s", (int)variable_length(variable), variable);
    rs_name_read(name, &read);
    if (read.kind != RS_NAME_FOREIGN && variable_length(variable) < sizeof(name))
        return true;
    tool_say("%.100s: %s; it is ignored", variable,
             strncmp(variable, "RMM_LOG", 7) == 0
                 ? "belongs to RAPIDS RMM (rmmshim's event log is RMM_LOG)"
                 : "not a variable of rmmshim");
    return false;
}

static int check_variables(char **variables)
{
    struct rs_diagnostics diagnostics = profile_diagnostics();
    struct rs_config config;
    bool good = rs_config_parse(variables, &diagnostics, &config) == 0;

    for (; *variables; variables++)
        good = is_known(*variables) && good;
    if (good)
        print_stacks(&config);
    rs_config_free(&config);
    return good ? TOOL_OK : TOOL_FINDING;
}

/* The variables and, behind them, what they do not override of the profile. */
static int check_profile(const char *name, char **variables)
{
    char **all = profile_join(name, variables);
    int code = all ? check_variables(all) : TOOL_FINDING;

    free((void *)all);
    return code;
}

static int check_arguments(char **arguments, const char *profile)
{
    const char *expression = NULL;
    size_t count = 0, variables = 0;

    for (; arguments[count]; count++) {
        if (variable_length(arguments[count]))
            variables++;
        else
            expression = arguments[count];
    }
    if (profile && variables == count)
        return check_profile(profile, arguments);
    if (count > 0 && variables == count)
        return check_variables(arguments);
    if (count == 1 && !profile)
        return check_expression(expression);
    if (variables > 0 || profile)
        tool_say("beside variables, write the expression as a variable too: RMM_RESOURCE='%s'",
                 expression);
    else
        tool_say("expected one expression in quotes, or variables: rmmshim check 'pool(cuda)', "
                 "rmmshim check RMM_POOL_SIZE=4GiB");
    return TOOL_USAGE;
}

static int check(char **arguments)
{
    const char *profile = NULL;
    const struct tool_option options[] = {
        {.name = "--profile", .value = &profile, .is_single = true},
        {.name = NULL},
    };

    return tool_take_options(arguments, true, options) ? check_arguments(arguments, profile)
                                                       : TOOL_USAGE;
}

const struct tool_command tool_check = {
    .name = "check",
    .arguments = "[--profile NAME|FILE] EXPRESSION|VARIABLE=VALUE...",
    .summary =
        "Checks an expression for RMM_RESOURCE, or variables, and shows the stacks they mean",
    .run = check,
    .help =
        "Prints the stack as a tree, the top first, every option with its value.  For variables\n"
        "it prints the stacks that they mean for each device and kind of memory; variables of\n"
        "the environment are not read.  Exit code 1 when something is wrong, with a line that\n"
        "shows where: all that RMM_RESOURCE refuses is wrong here too.\n\n"
        "--profile NAME|FILE   also the settings of a profile of `rmmshim run` or of a file; the\n"
        "                      variables given here win\n\n"
        "example: rmmshim check 'statistics(pool(cuda, initial_size=1GiB, maximum_size=80%))'\n"
        "         rmmshim check RMM_POOL_SIZE=1GiB RMM_LIMIT=80% RMM_LIMIT_1=8GiB",
};
