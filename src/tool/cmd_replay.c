/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim replay: what a recording's requests would have taken from other stacks. */
#include "tool/replay/replay.h"
#include "tool/tool.h"

#include <stdio.h>

enum { STACKS_MAX = 64, HELD_BYTES = 64 };

static void put_result(struct rs_node *one, const struct replay_result *result, const char *rest)
{
    double ratio = (double)result->held_peak / (double)rs_max(result->used_peak, 1);
    char held[HELD_BYTES] = "         -         -";

    if (result->held_peak)
        snprintf(held, sizeof(held), "{held_peak_bytes:10} %9.3f", ratio);
    rs_node_bytes(one, "used_peak_bytes", result->used_peak);
    rs_node_bytes(one, "held_peak_bytes", result->held_peak);
    rs_node_count(one, "refused", result->refusals);
    one->line = rs_document_format(one->document, "{used_peak_bytes:10} %s %s\n", held, rest);
}

struct rs_node *replay_put_list(struct rs_node *root, const char *name)
{
    struct rs_node *list = rs_node_list(root, name);

    list->line = "      USED       HELD HELD/USED DRIVER CALLS  WAITS REFUSED  RESOURCE\n";
    return list;
}

struct rs_node *replay_put(struct rs_node *list, const char *resource,
                           const struct replay_result *result)
{
    struct rs_node *one = rs_node_object(list, NULL);

    rs_node_text(one, "resource", resource);
    put_result(one, result, "{driver_calls:12} {waits:6} {refused:7}  {resource}");
    rs_node_count(one, "driver_calls", result->driver_calls);
    rs_node_count(one, "waits", result->waits);
    rs_node_nanoseconds(one, "waited_nanoseconds", result->waited_ns);
    rs_node_nanoseconds(one, "longer_nanoseconds", result->longer_ns);
    return one;
}

void replay_put_recorded(struct rs_node *root, const struct sequence *sequence)
{
    put_result(rs_node_object(root, "recorded"), &sequence->recorded,
               "           -      - {refused:7}  (as recorded)");
}

struct rs_node *replay_begin(const struct sequence *sequence)
{
    static struct rs_document document;

    rs_document_begin(&document);
    rs_node_count(&document.root, "schema", 1);
    rs_node_count(&document.root, "device", sequence->device);
    rs_node_count(&document.root, "lost_events", sequence->lost);
    return &document.root;
}

/* ---- the command ---- */

bool replay_parse(char **arguments, struct tool_option own, struct replay_wanted *wanted)
{
    const char *lag = NULL, *device = NULL;
    const struct tool_option options[] = {
        own,
        {.name = "--lag", .value = &lag},
        {.name = "--device", .value = &device},
        {.name = "--json", .flag = &wanted->as_json},
        {.name = NULL},
    };

    wanted->device = -1;
    wanted->settings.lag_ns = REPLAY_LAG_NS;
    if (!tool_take_options(arguments, true, options) ||
        (lag && !tool_parse_seconds("--lag", lag, 0, &wanted->settings.lag_ns)) ||
        (device && !tool_parse_device(device, &wanted->device)))
        return false;
    wanted->path = *arguments;
    return !wanted->path || tool_has_no_more(arguments + 1);
}

static int play_all(const struct sequence *sequence, const char *const *resources,
                    const struct replay_wanted *wanted)
{
    struct rs_diagnostics diagnostics = tool_diagnostics();
    struct rs_node *root = replay_begin(sequence), *list = replay_put_list(root, "replays");
    struct replay_result result;

    for (; *resources; resources++) {
        if (!replay_play(sequence, *resources, &wanted->settings, &diagnostics, &result))
            return TOOL_USAGE;
        replay_put(list, *resources, &result);
    }
    replay_put_recorded(root, sequence);
    return tool_show(root, wanted->as_json) ? TOOL_OK : TOOL_FINDING;
}

static int run(char **arguments)
{
    const char *resources[STACKS_MAX + 1] = {NULL};
    struct tool_option own = {.name = "--resource", .value = resources, .room = STACKS_MAX};
    struct replay_wanted wanted = {.path = NULL};
    static struct sequence sequence;
    int code, played = TOOL_OK;

    if (!replay_parse(arguments, own, &wanted))
        return TOOL_USAGE;
    if (!wanted.path || !resources[0]) {
        tool_say("replay needs %s; see `rmmshim replay --help`",
                 wanted.path ? "a --resource" : "the FILE of a recording");
        return TOOL_USAGE;
    }
    code = sequence_read(&sequence, wanted.path, wanted.device);
    if (sequence.event_count > 0)
        played = play_all(&sequence, resources, &wanted);
    return rs_max(code, played);
}

const struct tool_command tool_replay = {
    .name = "replay",
    .arguments = "FILE --resource EXPRESSION... [--lag SECONDS] [--device N] [--json]",
    .summary = "Replays the requests of a recording with other memory resources, without a GPU",
    .run = run,
    .help =
        "Reads the requests for device memory from a recording (rmmshim run --record FILE), or\n"
        "from an event log in RMM's CSV format (RMM_LOG). Repeats them on a simulated device,\n"
        "once for each --resource, and prints a row for each; the last row is the recorded run\n"
        "itself.\n\n"
        "  USED          the most memory that was allocated and not yet freed at one time\n"
        "  HELD          the most memory that was taken from the driver at one time\n"
        "  HELD/USED     HELD divided by USED\n"
        "  DRIVER CALLS  driver calls that allocate or free memory\n"
        "  WAITS         allocations and frees that wait until the GPU is done with freed\n"
        "                memory\n"
        "  REFUSED       requests that fail because memory runs out\n\n"
        "  --resource EXPRESSION  the memory resources to simulate, written as in RMM_RESOURCE;\n"
        "                         their memory must come from `cuda` or `virtual`; can be given\n"
        "                         repeatedly\n"
        "  --lag SECONDS          how far behind the program the simulated GPU can be; until it\n"
        "                         has caught up, it still uses memory that the program has\n"
        "                         freed (default 0.001; 0: it is never behind)\n"
        "  --device N             replay the requests for this device; default: the device with\n"
        "                         the most allocations\n"
        "  --json                 print a JSON object, with sizes in bytes\n\n"
        "All threads of the program are replayed as one. The replay assumes that the GPU was busy\n"
        "during the whole recording, and that the program's own CPU work took half of that time.\n"
        "The simulated program gets ahead of the GPU, but by the SECONDS of --lag at\n"
        "most: then it waits. The simulated device has as much memory as the recorded one; for an\n"
        "event log, which does not say how much that was, it has 8 TiB. Pinned and managed memory\n"
        "are left out, and so is device memory that the driver allocated without rmmshim.\n\n"
        "exit codes: 0 replayed; 1 the file cannot be read, has no requests for device memory, or\n"
        "is damaged (its undamaged parts are used); 2 wrong usage\n\n"
        "example: rmmshim replay app.rec --resource 'pool(cuda)' --resource virtual",
};
