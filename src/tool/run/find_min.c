/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/size.h"
#include "config/variables.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The driver's granularity of large blocks; a device has less than the limit that stands for none,
 * which is set as without any setting nothing is counted. */
enum { STEP_BYTES = 2 << 20, PERCENT = 100, RAISES_MAX = 8 };
#define NO_LIMIT_BYTES ((size_t)1 << 46)

struct search {
    char **program;
    const struct run_options *options;
    struct parent_result result; /* of the latest run */
    unsigned runs;
    size_t fails_bytes, succeeds_bytes; /* the limits known to be too small and enough */
    bool empty_pools;                   /* pools that would decide the result begin empty */
};

/* False when the program could not be started, or the user wants an end. */
static bool run_with(struct search *search, size_t limit_bytes)
{
    enum parent_streams streams = search->runs ? PARENT_STREAMS_MUTE : PARENT_STREAMS_NO_INPUT;
    char text[RS_SIZE_TEXT_BYTES];

    if (setenv("RMM_LIMIT", rs_size_format(limit_bytes, text), 1) != 0) {
        tool_say("RMM_LIMIT: %s", strerror(errno));
        return false;
    }
    search->runs++;
    return parent_run(search->program, streams, &search->result) && !search->result.is_interrupted;
}

static bool has_succeeded(const struct search *search)
{
    return parent_exit_code(&search->result) == 0;
}

static void say_step(const struct search *search, size_t limit_bytes)
{
    char text[RS_SIZE_TEXT_BYTES];
    int status = search->result.status;

    if (search->options->is_quiet)
        return;
    rs_size_format_short(limit_bytes, text);
    if (has_succeeded(search))
        tool_say("with limit %s: the program succeeds", text);
    else if (WIFSIGNALED(status))
        tool_say("with limit %s: the program is ended by signal %d", text, WTERMSIG(status));
    else
        tool_say("with limit %s: the program fails with exit status %d", text, WEXITSTATUS(status));
}

static bool try_limit(struct search *search, size_t limit_bytes)
{
    if (!run_with(search, limit_bytes))
        return false;
    say_step(search, limit_bytes);
    if (has_succeeded(search))
        search->succeeds_bytes = limit_bytes;
    else
        search->fails_bytes = limit_bytes;
    return true;
}

/* Most of any process on any device. */
static struct summary_device highest(const struct summary *summary)
{
    struct summary_device most = {.total_bytes = 0};

    for (size_t i = 0; i < summary->count; i++)
        for (size_t j = 0; j < summary->processes[i].device_count; j++) {
            const struct summary_device *device = &summary->processes[i].devices[j];
            most.used_peak_bytes = rs_max(most.used_peak_bytes, device->used_peak_bytes);
            most.held_peak_bytes = rs_max(most.held_peak_bytes, device->held_peak_bytes);
            most.total_bytes = rs_max(most.total_bytes, device->total_bytes);
        }
    return most;
}

/* A pool that takes more at its beginning than the program ever uses would be all that the search
 * finds: a limit below it is a bad setting.  In the limited runs such pools begin empty. */
static bool empty_pools(struct search *search, const struct summary_device *most)
{
    static const enum rs_variable_index pools[] = {RS_VARIABLE_POOL_SIZE,
                                                   RS_VARIABLE_MANAGED_POOL_SIZE};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(pools); i++) {
        const char *name = rs_variables[pools[i]].option.name, *text = getenv(name), *at, *reason;
        struct rs_size size;
        if (!text || !rs_size_parse(text, text + strlen(text), &size, &at, &reason) ||
            rs_size_resolve(size, most->total_bytes, most->total_bytes) <= most->used_peak_bytes)
            continue;
        if (!search->options->is_quiet)
            tool_say("%s=%s is more than the program uses: the search starts with an empty pool",
                     name, text);
        if (setenv(name, "0", 1) != 0) {
            tool_say("%s: %s", name, strerror(errno));
            return false;
        }
        search->empty_pools = true;
    }
    return true;
}

/* Finds a limit that suffices: what the program used in the first run, else what was held for it,
 * or more where runs differ. */
static bool find_upper(struct search *search, size_t used_bytes, size_t held_bytes)
{
    size_t limit_bytes;

    if (!rs_round_up(held_bytes, STEP_BYTES, &held_bytes) ||
        !rs_round_up(used_bytes, STEP_BYTES, &limit_bytes))
        return false;
    for (int i = 0; i < RAISES_MAX && !search->succeeds_bytes; i++) {
        if (!try_limit(search, limit_bytes))
            return false;
        limit_bytes = i == 0 && limit_bytes < held_bytes
                          ? held_bytes
                          : rs_round_down(limit_bytes + limit_bytes / 4, STEP_BYTES) + STEP_BYTES;
    }
    return true;
}

static bool bisect(struct search *search)
{
    for (;;) {
        size_t between = search->succeeds_bytes - search->fails_bytes;
        size_t step = rs_round_down(between / 2, STEP_BYTES);
        if (between <= rs_max(STEP_BYTES, search->succeeds_bytes / PERCENT) || !step)
            return true;
        if (!try_limit(search, search->fails_bytes + step))
            return false;
    }
}

/* The exit code of a search that came to nothing. */
static int give_up(const struct search *search)
{
    if (search->result.program < 0)
        return TOOL_RUN_FAILED;
    if (search->result.is_interrupted)
        tool_say("--find-min: interrupted in run %u", search->runs);
    parent_end_as(&search->result);
    return search->result.is_interrupted && has_succeeded(search)
               ? TOOL_FINDING
               : parent_exit_code(&search->result);
}

static int say_found(const struct search *search, struct run_outcome *first)
{
    char text[RS_SIZE_TEXT_BYTES];

    if (!search->succeeds_bytes) {
        tool_say("--find-min: the program fails with every limit, even with %s",
                 rs_size_format_short(search->fails_bytes, text));
        return TOOL_FINDING;
    }
    tool_say("the smallest limit with which it succeeds is %s (%s%u runs)",
             rs_size_format_short(search->succeeds_bytes, text),
             search->empty_pools ? "with a pool that starts empty; " : "", search->runs);
    first->smallest_limit_bytes = search->succeeds_bytes;
    first->runs = search->runs;
    return run_end(search->options, search->program, first);
}

/* After the first run, which succeeded. */
static int search_from(struct search *search, struct run_outcome *first)
{
    struct summary_device most = highest(&first->summary);
    size_t used_bytes = most.used_peak_bytes, held_bytes = most.held_peak_bytes;
    char used[RS_SIZE_TEXT_BYTES], held[RS_SIZE_TEXT_BYTES];

    if (!held_bytes) {
        tool_say("--find-min: no process had GPU memory served by rmmshim");
        return TOOL_FINDING;
    }
    if (!search->options->is_quiet)
        tool_say("without a limit: the program succeeds; it used up to %s, held up to %s",
                 rs_size_format_short(used_bytes, used), rs_size_format_short(held_bytes, held));
    if (!empty_pools(search, &most) || !find_upper(search, rs_max(used_bytes, 1), held_bytes) ||
        (search->succeeds_bytes && !bisect(search)))
        return give_up(search);
    return say_found(search, first);
}

int find_min(char **program, const struct run_options *options)
{
    struct search search = {.program = program, .options = options};
    struct run_outcome first = {.runs = 0};
    int code;

    if (!run_with(&search, NO_LIMIT_BYTES))
        return give_up(&search);
    if (!has_succeeded(&search)) {
        tool_say("--find-min: the program fails even without a limit");
        return give_up(&search);
    }
    first.result = search.result;
    job_take_summary(&first.summary);
    code = search_from(&search, &first);
    summary_clear(&first.summary);
    return code;
}
