/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim-tables: prints the manual's tables in Markdown, from the tables in the code.  Not
 * installed; scripts/manual-tables calls it. */
#include "config/config.h"
#include "config/values.h"
#include "report/counters.h"
#include "resource/resource.h"
#include "tool/describe.h"
#include "tool/table.h"

#include <stdio.h>
#include <string.h>

static const char *code(const char *text, char buffer[DESCRIBE_BYTES])
{
    if (!*text)
        return "";
    snprintf(buffer, DESCRIBE_BYTES, "`%s`", text);
    return buffer;
}

static void print_resources(void)
{
    struct table table;
    char name[DESCRIBE_BYTES], aliases[DESCRIBE_BYTES];

    table_begin(&table, "Resource", "Kind", "What it does", "RMM's name", NULL);
    for (size_t i = 0; rs_mr_descriptors[i]; i++) {
        const struct rs_mr_descriptor *descriptor = rs_mr_descriptors[i];
        table_row(
            &table, code(descriptor->name, name), describe_kind(descriptor), descriptor->summary,
            describe_aliases(descriptor->aliases, RS_ARRAY_LENGTH(descriptor->aliases), aliases));
    }
    table_print_markdown(&table);
}

static void add_options_of(struct table *table, const struct rs_mr_descriptor *descriptor)
{
    char resource[DESCRIBE_BYTES], name[DESCRIBE_BYTES], value[DESCRIBE_BYTES];
    char type[DESCRIBE_BYTES], aliases[DESCRIBE_BYTES];

    for (const struct rs_option *row = descriptor->options; row->name; row++)
        table_row(table, code(descriptor->name, resource), code(row->name, name),
                  rs_option_type_text(row, type, sizeof(type)), code(describe_default(row), value),
                  row->help, describe_option_aliases(row, aliases));
}

static void print_options(void)
{
    struct table table;

    table_begin(&table, "Resource", "Option", "Type", "Default", "Meaning", "RMM's name", NULL);
    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        add_options_of(&table, rs_mr_descriptors[i]);
    table_print_markdown(&table);
}

static void print_variables(void)
{
    struct table table;
    char name[DESCRIBE_BYTES], option[DESCRIBE_BYTES], quoted[DESCRIBE_BYTES], type[DESCRIBE_BYTES];

    table_begin(&table, "Variable", "`rmmshim run`", "Value", "Meaning", NULL);
    for (size_t i = 0; rs_variables[i].option.name; i++) {
        table_row(&table, code(rs_variables[i].option.name, name),
                  code(describe_run_option(&rs_variables[i], option), quoted),
                  rs_option_type_text(&rs_variables[i].option, type, sizeof(type)),
                  rs_variables[i].option.help);
    }
    table_print_markdown(&table);
}

static const char *verdict(enum rs_name_kind kind, bool beside)
{
    switch (kind) {
    case RS_NAME_OURS:
        return "a setting";
    case RS_NAME_WRONG:
        return "an invalid setting";
    case RS_NAME_DOUBTFUL:
        return beside ? "an invalid setting" : "one line, and ignored";
    case RS_NAME_FOREIGN:
        break;
    }
    return "ignored";
}

static void add_name(struct table *table, const char *what, const char *example, const char *names)
{
    char quoted[DESCRIBE_BYTES];
    struct rs_name read;

    rs_name_read(example, &read);
    table_row(table, what, names ? names : code(example, quoted), verdict(read.kind, false),
              verdict(read.kind, true));
}

static void print_names(void)
{
    char names[DESCRIBE_BYTES] = "", quoted[DESCRIBE_BYTES];
    struct table table;

    for (size_t i = 0, length = 0; rs_names_elsewhere[i] && length < sizeof(names); i++)
        length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s", i ? ", " : "",
                                   code(rs_names_elsewhere[i], quoted));
    table_begin(&table, "Name", "Example", "Alone",
                "Beside a setting of ours, or under `rmmshim run`", NULL);
    add_name(&table, "a variable, also of one device", "RMM_LIMIT_0", NULL);
    add_name(&table, "a variable in another case", "RMM_Limit", NULL);
    add_name(&table, "a variable and what is no device's number", "RMM_LIMIT_GPU0", NULL);
    add_name(&table, "a variable and another word", "RMM_LOG_COLOR", NULL);
    add_name(&table, "one or two letters from a variable", "RMM_POOLSIZE", NULL);
    add_name(&table, "the beginning of a variable", "RMM_POOL", NULL);
    add_name(&table, "a parameter of RMM's", "RMM_INITIAL_POOL_SIZE", NULL);
    add_name(&table, "in use elsewhere", rs_names_elsewhere[0], names);
    add_name(&table, "any other", "RMM_FOO", NULL);
    table_print_markdown(&table);
}

static void print_entry_points(void)
{
    static const struct {
        const char *symbol, *group, *summary;
    } rows[] = {
#define HOOK(symbol, name, since, until, stream, group, summary) {#symbol, #group, summary},
#define RUNTIME(symbol, group, summary)                          {#symbol, #group, summary},
#include "driver/entry_points.def"
    };
    struct table table;
    char symbol[DESCRIBE_BYTES];

    table_begin(&table, "Function", "Group", "What the hook does", NULL);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(rows); i++)
        table_row(&table, code(rows[i].symbol, symbol), rows[i].group, rows[i].summary);
    table_print_markdown(&table);
}

static void print_metrics(void)
{
    struct table table;
    char name[DESCRIBE_BYTES];
    const struct rs_metric *metric;

    table_begin(&table, "Metric", "Meaning", NULL);
    for (size_t i = 0; (metric = rs_usage_metric(i)) != NULL; i++)
        if (metric->name)
            table_row(&table, code(metric->name, name), metric->help);
    table_print_markdown(&table);
}

static void print_counters(void)
{
    struct table table;
    char name[DESCRIBE_BYTES], resource[DESCRIBE_BYTES];

    table_begin(&table, "Counter", "Of", "Meaning", NULL);
    for (const struct rs_counter_help *row = rs_counter_helps; row->name; row++)
        table_row(&table, code(row->name, name),
                  row->resource ? code(row->resource, resource) : "any resource", row->help);
    table_print_markdown(&table);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } tables[] = {
        {"resources", print_resources},       {"options", print_options},
        {"variables", print_variables},       {"names", print_names},
        {"entry-points", print_entry_points}, {"metrics", print_metrics},
        {"counters", print_counters},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(tables); i++) {
        if (argc < 2) {
            puts(tables[i].name);
        } else if (strcmp(argv[1], tables[i].name) == 0) {
            tables[i].print();
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
