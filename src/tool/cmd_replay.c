/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim replay: a recording through other stacks. */
#include "base/arithmetic.h"
#include "base/size.h"
#include "tool/json.h"
#include "tool/replay/replay.h"
#include "tool/tool.h"
#include "tool/view/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACKS_MAX = 64 };

#define MEMORY_BYTES ((uint64_t)1 << 46)

struct words {
    const char *path;
    const char *resources[STACKS_MAX];
    size_t resource_count;
    int device; /* -1: the busiest */
    bool as_json;
    struct replay_settings settings;
};

/* ---- words ---- */

static bool parse_size(const char *text, uint64_t *bytes)
{
    const char *at, *reason = "a percentage has no meaning here";
    struct rs_size size;

    if (!rs_size_parse(text, text + strlen(text), &size, &at, &reason) ||
        size.kind != RS_SIZE_BYTES) {
        tool_say("--memory=%s: %s", text, reason);
        return false;
    }
    *bytes = size.number;
    return true;
}

static bool parse_free(const char *text, bool *at_once)
{
    *at_once = strcmp(text, "immediate") == 0;
    if (*at_once || strcmp(text, "deferred") == 0)
        return true;
    tool_say_unknown("--free", text, (const char *const[]){"deferred", "immediate", NULL});
    return false;
}

static bool add_resource(struct words *words, const char *text)
{
    if (words->resource_count == STACKS_MAX) {
        tool_say("at most %d resources", STACKS_MAX);
        return false;
    }
    words->resources[words->resource_count++] = text;
    return true;
}

/* Takes the option at **arguments; false after a line. */
static bool take_option(struct words *words, char ***arguments)
{
    static const char *const options[] = {"--resource", "--lag",    "--operation", "--free",
                                          "--device",   "--memory", "--json",      NULL};
    struct replay_settings *settings = &words->settings;
    bool failed = false;
    const char *value;

    if (strcmp(**arguments, "--json") == 0)
        return words->as_json = true;
    if ((value = tool_option_value(arguments, "--resource", &failed)))
        return add_resource(words, value);
    if (!failed && (value = tool_option_value(arguments, "--lag", &failed)))
        return tool_parse_time("--lag", value, &settings->lag_ns);
    if (!failed && (value = tool_option_value(arguments, "--operation", &failed)))
        return tool_parse_time("--operation", value, &settings->operation_ns);
    if (!failed && (value = tool_option_value(arguments, "--free", &failed)))
        return parse_free(value, &settings->frees_at_once);
    if (!failed && (value = tool_option_value(arguments, "--device", &failed)))
        return tool_parse_device(value, &words->device);
    if (!failed && (value = tool_option_value(arguments, "--memory", &failed)))
        return parse_size(value, &settings->capacity_bytes);
    if (!failed)
        tool_say_unknown("option", **arguments, options);
    return false;
}

static bool parse(char **arguments, struct words *words)
{
    for (; *arguments; arguments++) {
        if (**arguments == '-') {
            if (!take_option(words, &arguments))
                return false;
        } else if (words->path) {
            tool_say("one file; `rmmshim replay --help` says how");
            return false;
        } else {
            words->path = *arguments;
        }
    }
    if (words->path && words->resource_count)
        return true;
    tool_say(words->path ? "no --resource, as in --resource 'pool(cuda)'"
                         : "no file; `rmmshim replay --help` says how");
    return false;
}

/* ---- results ---- */

static void put_json(const struct words *words, const struct recording *recording,
                     const struct replay_result *results)
{
    printf("{\"schema\":1,\"events\":%zu,\"lost_events\":%llu,\"device\":%d,\"lag_ns\":%llu,"
           "\"results\":[",
           recording->count, (unsigned long long)recording->lost_events, words->settings.device,
           (unsigned long long)words->settings.lag_ns);
    for (size_t i = 0; i < words->resource_count; i++) {
        const struct replay_result *result = &results[i];
        const struct {
            const char *name;
            uint64_t value;
        } numbers[] = {
            {"allocations", result->allocations},
            {"refusals", result->refusals},
            {"peak_live", result->peak_live_bytes},
            {"peak_held", result->peak_held_bytes},
            {"upstream_allocations", result->upstream_allocations},
            {"upstream_frees", result->upstream_frees},
            {"fences", result->fences},
            {"looks", result->looks},
            {"waits", result->waits},
            {"waited_ns", result->waited_ns},
            {"longer_ppm", result->longer_ppm},
        };
        printf("%s\n{\"resource\":", i ? "," : "");
        json_put_text(words->resources[i]);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(numbers); j++)
            printf(",\"%s\":%llu", numbers[j].name, (unsigned long long)numbers[j].value);
        putchar('}');
    }
    puts("]}");
}

static void put_table_row(struct table *table, const char *resource,
                          const struct replay_result *result)
{
    uint64_t calls_made = result->upstream_allocations + result->upstream_frees;
    char held[RS_SIZE_TEXT_BYTES], ratio[32], calls[32], waits[64], longer[96], refused[64] = "";

    snprintf(ratio, sizeof(ratio), "%.3f",
             result->peak_live_bytes
                 ? (double)result->peak_held_bytes / (double)result->peak_live_bytes
                 : 0.0);
    snprintf(calls, sizeof(calls), "%llu", (unsigned long long)calls_made);
    snprintf(waits, sizeof(waits), "%llu (%.1f ms)", (unsigned long long)result->waits,
             (double)result->waited_ns / 1e6);
    snprintf(longer, sizeof(longer), "%.2f %%", (double)result->longer_ppm / 1e4);
    if (result->refusals)
        snprintf(refused, sizeof(refused), ", %llu refused", (unsigned long long)result->refusals);
    strncat(longer, refused, sizeof(longer) - strlen(longer) - 1);
    table_row(table, resource, rs_size_format_short(result->peak_held_bytes, held), ratio, calls,
              waits, longer);
}

static void put_table(const struct words *words, const struct replay_result *results)
{
    char live[RS_SIZE_TEXT_BYTES];
    struct table table;

    printf("device %d: %llu allocations, at most %s live\n\n", words->settings.device,
           (unsigned long long)results[0].allocations,
           rs_size_format_short(results[0].peak_live_bytes, live));
    table_begin(&table, "RESOURCE", "HELD", "HELD/LIVE", "DRIVER CALLS", "WAITS", "LONGER", NULL);
    for (size_t i = 0; i < words->resource_count; i++)
        put_table_row(&table, words->resources[i], &results[i]);
    table_print(&table);
}

static int play_all(struct words *words, const struct recording *recording)
{
    struct rs_diagnostics diagnostics = tool_diagnostics();
    static struct replay_result results[STACKS_MAX];

    words->settings.device = words->device < 0 ? replay_busiest_device(recording) : words->device;
    for (size_t i = 0; i < words->resource_count; i++)
        if (!replay_play(recording, &words->settings, words->resources[i], &diagnostics,
                         &results[i])) {
            if (!diagnostics.count)
                tool_say("%s: out of memory", words->resources[i]);
            return TOOL_FINDING;
        }
    if (words->as_json)
        put_json(words, recording, results);
    else
        put_table(words, results);
    return recording->damage[0] ? TOOL_FINDING : TOOL_OK;
}

static int replay(char **arguments)
{
    struct words words = {.device = -1, .settings = {.capacity_bytes = MEMORY_BYTES}};
    struct recording recording;
    int code;

    if (!parse(arguments, &words))
        return TOOL_USAGE;
    if (!recording_open(&recording, words.path))
        return TOOL_FINDING;
    code = play_all(&words, &recording);
    recording_close(&recording);
    return code;
}

static void help(void)
{
    puts(
        "Plays what a recording (RMM_RECORD) or an event log in RMM's CSV has of one device "
        "through\n"
        "other stacks, without a GPU: what each would have taken from the driver at most, beside\n"
        "what was live, how often it would have called the driver, and waited for the GPU.\n\n"
        "  --resource EXPRESSION  a stack; each further one is a further row\n"
        "  --lag TIME        how far the GPU is behind the program when a block is freed (0)\n"
        "  --operation TIME  the program takes this long for each allocation or free, whatever\n"
        "                    the recording says, and the GPU twice as long\n"
        "  --free immediate  freed blocks wait for no fence\n"
        "  --device N        which device; without it the one with the most allocations\n"
        "  --memory SIZE     the device's memory; without it more than any has\n"
        "  --json            one object\n\n"
        "Memory of any leaf is the device's here; what the driver's own pool holds (async) is not\n"
        "known.  LONGER is by which share the run would have got longer for the waits.\n\n"
        "exit codes: 0; 1 the file is damaged, or no recording; 2 wrong usage\n\n"
        "example: rmmshim replay app.rec --resource 'pool(cuda)' --resource virtual --lag 1ms");
}

const struct tool_command tool_replay = {
    .name = "replay",
    .arguments = "FILE --resource EXPRESSION... [--lag TIME] [--operation TIME] "
                 "[--free deferred|immediate] [--device N] [--memory SIZE] [--json]",
    .summary = "Plays a recording through other stacks, without a GPU",
    .run = replay,
    .help = help,
};
