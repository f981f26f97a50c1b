/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/json.h"

#include "base/check.h"

#include <stdio.h>

void json_put_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void put_named_text(const char *name, const char *text)
{
    printf(",\"%s\":", name);
    json_put_text(text);
}

static void put_usage(const struct usage *usage)
{
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"live", usage->live},         {"held", usage->held},
        {"cached", usage->cached},     {"waiting", usage->waiting},
        {"peak", usage->peak},         {"limit", usage->limit},
        {"refusals", usage->refusals}, {"allocations", usage->allocations},
        {"spilled", usage->spilled},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(numbers); i++)
        printf(",\"%s\":%llu", numbers[i].name, (unsigned long long)numbers[i].value);
}

static void put_row(const struct row *row)
{
    printf("{\"pid\":%d", row->process);
    put_named_text("program", row->program);
    printf(",\"device\":%d", row->device);
    put_named_text("uuid", row->uuid);
    put_named_text("kind", rs_kind_names[row->kind]);
    put_usage(&row->usage);
    if (row->has_rates)
        printf(",\"allocations_per_second\":%.0f,\"bytes_per_second\":%.0f",
               row->allocations_per_second, row->bytes_per_second);
    put_named_text("rank", row->rank);
    put_named_text("expression", row->expression);
    putchar('}');
}

void json_put_rows(const struct row *rows, size_t count)
{
    putchar('[');
    for (size_t i = 0; i < count; i++) {
        fputs(i ? ",\n" : "", stdout);
        put_row(&rows[i]);
    }
    puts("]");
}
