/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim-tables: prints the manual's tables in Markdown, from the tables in the code.  Not
 * installed; scripts/manual-tables calls it. */
#include "config/config.h"
#include "report/counters.h"
#include "resource/resource.h"
#include "tool/describe.h"

#include <stdio.h>
#include <string.h>

/* Returns text as code in Markdown; valid until the fourth call after this one. */
static const char *code(const char *text)
{
    static char texts[4][DESCRIBE_BYTES];
    static unsigned next;
    char *quoted = texts[next++ % RS_ARRAY_LENGTH(texts)];

    snprintf(quoted, DESCRIBE_BYTES, *text ? "`%s`" : "%s", text);
    return quoted;
}

/* Prints a row; the cells are ended by NULL.  A '|' would end a cell, so it is escaped.  Returns
 * the number of cells. */
static size_t put_markdown_row(const char *const *cells)
{
    size_t count = 0;

    putchar('|');
    for (; cells[count]; count++) {
        putchar(' ');
        for (const char *at = cells[count]; *at; at++)
            printf(*at == '|' ? "\\%c" : "%c", *at);
        fputs(" |", stdout);
    }
    putchar('\n');
    return count;
}

static void put_markdown_titles(const char *const *cells)
{
    size_t count = put_markdown_row(cells);

    putchar('|');
    while (count-- > 0)
        fputs("---|", stdout);
    putchar('\n');
}

#define PUT_ROW(...)    (void)put_markdown_row((const char *const[]){__VA_ARGS__, NULL})
#define PUT_TITLES(...) put_markdown_titles((const char *const[]){__VA_ARGS__, NULL})

static void print_resources(void)
{
    char aliases[DESCRIBE_BYTES];

    PUT_TITLES("Resource", "Kind", "What it does", "RMM's name");
    for (size_t i = 0; rs_mr_descriptors[i]; i++) {
        const struct rs_mr_descriptor *of = rs_mr_descriptors[i];
        PUT_ROW(code(of->name), describe_kind(of), of->summary,
                describe_aliases(of->aliases, RS_ARRAY_LENGTH(of->aliases), aliases));
    }
}

static void print_options(void)
{
    char type[DESCRIBE_BYTES], aliases[DESCRIBE_BYTES];

    PUT_TITLES("Resource", "Option", "Type", "Default", "Meaning", "RMM's name");
    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        for (const struct rs_option *row = rs_mr_descriptors[i]->options; row->name; row++)
            PUT_ROW(code(rs_mr_descriptors[i]->name), code(row->name),
                    rs_option_type_text(row, type, sizeof(type)), code(describe_default(row)),
                    row->help, describe_option_aliases(row, aliases));
}

static void print_variables(void)
{
    char option[DESCRIBE_BYTES], type[DESCRIBE_BYTES];

    PUT_TITLES("Variable", "`rmmshim run`", "Value", "Meaning");
    for (size_t i = 0; rs_variables[i].option.name; i++)
        PUT_ROW(code(rs_variables[i].option.name),
                code(describe_run_option(&rs_variables[i], option)),
                rs_option_type_text(&rs_variables[i].option, type, sizeof(type)),
                rs_variables[i].option.help);
}

/* What a name is if no setting of rmmshim is given, and what it is if one is. */
static const char *const verdicts[][2] = {
    [RS_NAME_OURS] = {"a setting", "a setting"},
    [RS_NAME_WRONG] = {"an invalid setting", "an invalid setting"},
    [RS_NAME_DOUBTFUL] = {"one line, and ignored", "an invalid setting"},
    [RS_NAME_FOREIGN] = {"ignored", "ignored"},
};

static void print_names(void)
{
    static const struct {
        const char *what, *example;
    } rows[] = {
        {"a variable, also of one device", "RMM_LIMIT_0"},
        {"a variable in another case", "RMM_Limit"},
        {"a variable and what is no device's number", "RMM_LIMIT_GPU0"},
        {"a variable and another word", "RMM_LOG_COLOR"},
        {"one or two letters from a variable", "RMM_POOLSIZE"},
        {"the beginning of a variable", "RMM_POOL"},
        {"a parameter of RMM's", "RMM_INITIAL_POOL_SIZE"},
        {"in use elsewhere", NULL},
        {"any other", "RMM_FOO"},
    };
    char names[DESCRIBE_BYTES] = "";
    struct rs_name read;

    for (size_t i = 0; rs_names_elsewhere[i]; i++)
        rs_text_add(names, sizeof(names), "%s%s", i ? ", " : "", code(rs_names_elsewhere[i]));
    PUT_TITLES("Name", "Example", "Alone", "Beside a setting of ours, or under `rmmshim run`");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(rows); i++) {
        rs_name_read(rows[i].example ? rows[i].example : rs_names_elsewhere[0], &read);
        PUT_ROW(rows[i].what, rows[i].example ? code(rows[i].example) : names,
                verdicts[read.kind][0], verdicts[read.kind][1]);
    }
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

    PUT_TITLES("Function", "Group", "What the hook does");
    for (size_t i = 0; i < RS_ARRAY_LENGTH(rows); i++)
        PUT_ROW(code(rows[i].symbol), rows[i].group, rows[i].summary);
}

static void print_metrics(void)
{
    const struct rs_metric *metric;

    PUT_TITLES("Metric", "Meaning");
    for (size_t i = 0; (metric = rs_usage_metric(i)) != NULL; i++)
        if (metric->name)
            PUT_ROW(code(metric->name), metric->help);
}

static void print_counters(void)
{
    PUT_TITLES("Counter", "Of", "Meaning");
    for (const struct rs_counter_help *row = rs_counter_helps; row->name; row++)
        PUT_ROW(code(row->name), row->resource ? code(row->resource) : "any resource", row->help);
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
