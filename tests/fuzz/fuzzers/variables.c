/* SPDX-License-Identifier: Apache-2.0 */
/* An environment, a line each entry, and the settings that follow from it. */
#include "config/config.h"
#include "fuzzer.h"

enum { ENTRIES_MAX = 32 };

static void see(void *data, const char *line)
{
    (void)data;
    must(strlen(line) < RS_LOG_LINE_BYTES && !strchr(line, '\n'), "no single line");
}

static void look_at_stack(const struct rs_config *config, enum rs_kind kind, int device)
{
    const struct rs_expression *stack = rs_config_stack(config, kind, device);
    struct rs_diagnostics diagnostics = {.write = see};
    char text[RS_EXPRESSION_TEXT_BYTES];

    if (!stack)
        return;
    must(strlen(rs_expression_format(stack, NULL, text)) > 0, "an empty stack");
    (void)rs_config_fits_limit(stack, 1 << 30, NULL, &diagnostics);
}

static void try_entries(char *const *entries)
{
    struct rs_diagnostics diagnostics = {.write = see};
    const struct rs_source *first = NULL;
    struct rs_config config;
    int first_device = -1, device;
    unsigned count = rs_config_parse(entries, &diagnostics, &config);

    must(count == diagnostics.count, "another number of errors");
    if (count == 0) {
        for (int kind = 0; kind < RS_KINDS; kind++)
            for (device = 0; device < 3; device++)
                look_at_stack(&config, (enum rs_kind)kind, device);
        look_at_stack(&config, RS_KIND_DEVICE, RS_DEVICES_MAX - 1);
        if (rs_config_count_absent(&config, 1, &first, &first_device) > 0)
            must(first && first_device > 0, "an absent device without its variable");
    }
    (void)rs_config_limit(&config, 0);
    for (size_t i = 0; entries[i]; i++)
        (void)rs_config_is_compat_limit(entries[i], &device);
    rs_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    char *text = copy_of(input, length), *entries[ENTRIES_MAX + 1], *rest = text;
    size_t count = 0;

    while (rest && count < ENTRIES_MAX)
        entries[count++] = strsep(&rest, "\n");
    entries[count] = NULL;
    try_entries(entries);
    free(text);
    return 0;
}
