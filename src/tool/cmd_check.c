/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim check: shows the stacks that an expression or variables mean, without running a program.
 * rmmshim resources: lists the memory resources that a stack can be made of. */
#include "base/check.h"
#include "config/config.h"
#include "resource/expression.h"
#include "tool/describe.h"
#include "tool/profile.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rmmshim check ---- */

/* Prints a value as a user would write it; percentages stay percentages. */
static void print_value(const struct rs_option *row, const struct rs_option_value *value)
{
    char text[RS_EXPRESSION_TEXT_BYTES];

    if (row->type == RS_OPTION_BOOLEAN)
        printf("%s", value->count ? "yes" : "no");
    else if (row->type == RS_OPTION_TEXT)
        printf("\"%s\"", value->text ? value->text : "");
    else
        printf("%s", rs_option_write(row, value, text, sizeof(text)));
}

static void print_tree(const struct rs_expression *node, int depth)
{
    const struct rs_option *rows = node->descriptor->options;

    printf("%*s%s", depth * 2, "", node->descriptor->name);
    for (size_t i = 0; rows[i].name; i++) {
        printf(" %s=", rows[i].name);
        print_value(&rows[i], &node->values[i]);
    }
    /* An inserted `reuse` has no place (`at`) in the user's expression.  The descriptor is tested
     * too, since in a stack made from sizes (RMM_POOL_SIZE) no node has a place. */
    if (!node->at && node->descriptor == &rs_mr_descriptor_reuse)
        printf("   <- added by rmmshim, so that a freed block is reused only when the GPU is done "
               "with it");
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
    else if (!diagnostics.count)
        tool_end_without_memory();
    rs_expression_free(expression);
    return expression ? TOOL_OK : TOOL_FINDING;
}

/* ---- variables ---- */

/* Prints a line that begins with `whose` and has the limit, as in "every device, at most 8GiB", and
 * below it the stack.  Device -1 stands for all devices without settings of their own. */
static void print_stack(const struct rs_config *config, enum rs_kind kind, int device,
                        const char *whose)
{
    const struct rs_expression *stack = config->stack[kind][device < 0 ? RS_DEVICES_MAX : device];
    const struct rs_size *limit = kind == RS_KIND_DEVICE ? rs_config_limit(config, device) : NULL;
    char text[RS_SIZE_TEXT_BYTES];

    if (!stack)
        return;
    printf("%s%s%s%s\n", whose, rs_kind_texts[kind], limit ? ", at most " : "",
           limit ? rs_size_write(*limit, text) : "");
    print_tree(stack, 1);
}

static void print_stacks(const struct rs_config *config)
{
    bool alone = true;

    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (int kind = 0; kind < RS_KINDS; kind++)
            alone = alone && !config->stack[kind][device];
    for (int device = -1; device < RS_DEVICES_MAX; device++) {
        char whose[32];
        if (device < 0)
            snprintf(whose, sizeof(whose), "every %sdevice", alone ? "" : "other ");
        else
            snprintf(whose, sizeof(whose), "device %d", device);
        for (int kind = 0; kind < RS_KINDS; kind++)
            print_stack(config, (enum rs_kind)kind, device, whose);
    }
    if (!config->anything_set)
        puts("these variables set no limit and no memory resource: every call goes to the driver");
}

/* Returns the length of the name in VARIABLE=VALUE; 0 if the argument is an expression. */
static size_t variable_length(const char *argument)
{
    size_t length = strcspn(argument, "=");

    return rs_name_begins_as_ours(argument) && argument[length] && strcspn(argument, "( ,") > length
               ? length
               : 0;
}

/* True for a variable that rmmshim reads.  The library ignores others silently; here a line says
 * so, since the user has asked about the variable. */
static bool is_our_variable(const char *variable)
{
    char name[RS_NAME_BYTES_MAX];
    struct rs_name read;

    snprintf(name, sizeof(name), "%.*s", (int)variable_length(variable), variable);
    rs_name_read(name, &read);
    if (read.kind != RS_NAME_FOREIGN && variable_length(variable) < sizeof(name))
        return true;
    tool_say("%.100s: %s", variable,
             strncmp(variable, "RMM_LOG", 7) == 0
                 ? "this variable belongs to RAPIDS RMM and is ignored; rmmshim writes a log when "
                   "RMM_LOG is set"
                 : "this is not a variable of rmmshim and is ignored");
    return false;
}

static int check_variables(char **variables)
{
    struct rs_diagnostics diagnostics = profile_diagnostics();
    struct rs_config config;
    bool good = rs_config_parse(variables, &diagnostics, &config) == 0;

    for (; *variables; variables++)
        good = is_our_variable(*variables) && good;
    if (good)
        print_stacks(&config);
    rs_config_free(&config);
    return good ? TOOL_OK : TOOL_FINDING;
}

/* Checks the variables together with those assignments of the profile that they do not override. */
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
        tool_say("an expression cannot be combined with variables: write it as a variable too, "
                 "RMM_RESOURCE='%s'",
                 expression);
    else
        tool_say("expected one expression in quotes, as in rmmshim check 'pool(cuda)', or "
                 "variables, as in rmmshim check RMM_POOL_SIZE=4GiB");
    return TOOL_USAGE;
}

static int check_command(char **arguments)
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
    .summary = "Checks a value of RMM_RESOURCE, or variables, and shows the memory resources "
               "that result",
    .run = check_command,
    .help =
        "Prints the memory resources as a tree, each with the values of all its options, and its\n"
        "upstream below it. Given variables (RMM_X=VALUE), it prints such a tree for each device\n"
        "and kind of memory; it ignores the variables of its environment. If something is wrong,\n"
        "a line on stderr says where; the library would print the same line.\n\n"
        "--profile NAME|FILE   add the settings of a file, or of a profile of `rmmshim run`;\n"
        "                      the variables given here take precedence over those settings\n\n"
        "exit codes: 0 all is well; 1 something is wrong; 2 wrong usage\n"
        "example: rmmshim check 'statistics(pool(cuda, initial_size=1GiB, maximum_size=80%))'\n"
        "         rmmshim check RMM_POOL_SIZE=1GiB RMM_LIMIT=80% RMM_LIMIT_1=8GiB",
};

/* ---- rmmshim resources ---- */

/* A function that returns the text of a cell, which it may write to `text`; NULL after the last
 * row. */
typedef const char *table_cell(const struct rs_mr_descriptor *of, size_t row, size_t column,
                               char text[DESCRIBE_BYTES]);

static const char *resource_cell(const struct rs_mr_descriptor *of, size_t row, size_t column,
                                 char text[DESCRIBE_BYTES])
{
    of = rs_mr_descriptors[row];
    if (!of || column == 0)
        return of ? of->name : NULL;
    return column == 1   ? describe_kind(of)
           : column == 2 ? of->summary
                         : describe_aliases(of->aliases, RS_ARRAY_LENGTH(of->aliases), text);
}

static const char *option_cell(const struct rs_mr_descriptor *of, size_t row, size_t column,
                               char text[DESCRIBE_BYTES])
{
    const struct rs_option *option = &of->options[row];

    if (!option->name || column == 0)
        return option->name;
    return column == 1   ? rs_option_type_text(option, text, DESCRIBE_BYTES)
           : column == 2 ? describe_default(option)
           : column == 3 ? option->help
                         : describe_option_aliases(option, text);
}

/* Returns the width of the widest cell, title included; 0 for a column whose cells are all empty.
 */
static size_t table_column_width(const struct rs_mr_descriptor *of, table_cell *cell, size_t column,
                                 const char *title)
{
    char text[DESCRIBE_BYTES];
    const char *found;
    size_t width = 0;

    for (size_t row = 0; (found = cell(of, row, column, text)); row++)
        width = rs_max(width, strlen(found));
    return width ? rs_max(width, strlen(title)) : 0;
}

/* Prints the table whose titles, ended by NULL, are the first row.  Columns without any text are
 * left out. */
static void print_cells(const struct rs_mr_descriptor *of, table_cell *cell,
                        const char *const *titles)
{
    char text[DESCRIBE_BYTES];

    for (size_t row = 0; row == 0 || cell(of, row - 1, 0, text); row++) {
        int blanks = 0;
        for (size_t i = 0; titles[i]; i++) {
            int width = (int)table_column_width(of, cell, i, titles[i]);
            const char *shown = row ? cell(of, row - 1, i, text) : titles[i];
            if (width == 0)
                continue;
            printf("%*s%s", blanks, "", shown);
            blanks = width + 2 - (int)strlen(shown);
        }
        putchar('\n');
    }
}

static bool is_valid(const char *text)
{
    struct rs_source source = {"EXAMPLE", text};
    struct rs_diagnostics nobody = {.write = tool_ignore_line};
    struct rs_expression *expression = rs_expression_parse(&source, &nobody);
    bool valid = expression && rs_expression_validate(expression, NULL, &nobody);

    rs_expression_free(expression);
    return valid;
}

/* Prints an example expression with the first option at its default, or "..." in place of a default
 * that is not a valid value. */
static void print_example(const struct rs_mr_descriptor *descriptor)
{
    static const char *const upstreams[] = {"", "cuda", "cuda, managed"};
    const char *upstream = upstreams[descriptor->upstream_count];
    const struct rs_option *row = descriptor->options;
    const char *between = *upstream && row->name ? ", " : "";
    char text[2 * DESCRIBE_BYTES];

    if (!*upstream && !row->name) {
        snprintf(text, sizeof(text), "%s", descriptor->name);
    } else {
        snprintf(text, sizeof(text), "%s(%s%s%s%s%s)", descriptor->name, upstream, between,
                 row->name ? row->name : "", row->name ? "=" : "",
                 row->name ? describe_default(row) : "");
        if (!is_valid(text))
            snprintf(text, sizeof(text), "%s(%s%s%s=...)", descriptor->name, upstream, between,
                     row->name);
    }
    printf("written:  %s\n", text);
}

static void describe_one(const struct rs_mr_descriptor *descriptor)
{
    static const char *const frees[] = {
        [RS_FREE_WAITS] = "each free waits for all earlier GPU work of its CUDA context",
        [RS_FREE_AT_ONCE] =
            ("a free does not wait for the GPU, and its block is reused only when the GPU is done "
             "with it: for this, rmmshim adds the memory resource 'reuse' by itself"),
        [RS_FREE_AS_UPSTREAM] =
            "each free is passed on to the upstream, which decides whether it waits for the GPU",
    };
    static const char *const titles[] = {"OPTION",  "TYPE",        "DEFAULT",
                                         "MEANING", "NAME IN RMM", NULL};
    const char *of_free = frees[descriptor->frees];
    char text[DESCRIBE_BYTES];

    if (descriptor == &rs_mr_descriptor_reuse)
        of_free = "a freed block is reused only when the GPU is done with it; the option 'free', "
                  "as in reuse(cuda, free=wait), says whether the free itself waits for that";
    printf("%s: %s\n", descriptor->name, descriptor->summary);
    printf("kind:     %s\n", describe_kind(descriptor));
    printf("freeing:  %s\n", of_free);
    if (descriptor->aliases[0])
        printf("RMM:      %s\n",
               describe_aliases(descriptor->aliases, RS_ARRAY_LENGTH(descriptor->aliases), text));
    print_example(descriptor);
    if (!descriptor->options[0].name)
        return;
    putchar('\n');
    print_cells(descriptor, option_cell, titles);
}

static int say_unknown_resource(const char *name)
{
    const char *names[64] = {NULL};

    for (size_t i = 0; rs_mr_descriptors[i] && i + 1 < RS_ARRAY_LENGTH(names); i++)
        names[i] = rs_mr_descriptors[i]->name;
    tool_say_unknown("memory resource", name, names);
    return TOOL_USAGE;
}

static int resources(char **arguments)
{
    static const char *const titles[] = {"RESOURCE", "KIND", "WHAT IT DOES", "NAME IN RMM", NULL};
    const struct rs_mr_descriptor *descriptor;
    const char *name = arguments[0];

    if (!name) {
        print_cells(NULL, resource_cell, titles);
        return TOOL_OK;
    }
    if (arguments[1]) {
        tool_say("give at most one name of a memory resource; see `rmmshim resources --help`");
        return TOOL_USAGE;
    }
    descriptor = rs_mr_find(name, name + strlen(name));
    if (!descriptor)
        return say_unknown_resource(name);
    describe_one(descriptor);
    return TOOL_OK;
}

const struct tool_command tool_resources = {
    .name = "resources",
    .arguments = "[RESOURCE]",
    .summary = "Lists the memory resources, or the options of one memory resource",
    .run = resources,
};
