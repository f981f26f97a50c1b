/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/measure.h"

#include "base/arithmetic.h"
#include "base/clock.h"
#include "config/variable_name.h"
#include "config/variables.h"
#include "tool/library.h"
#include "tool/run/job.h"
#include "tool/run/parent.h"
#include "tool/tool.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 64 };

/* ---- the environment of runs ---- */

/* What a stack of device memory is made of: the search sets it, so nobody else may. */
static bool is_of_stack(int variable)
{
    static const int others[] = {RS_VARIABLE_RESOURCE, RS_VARIABLE_FREE, RS_VARIABLE_IPC,
                                 RS_VARIABLE_LIMIT, RS_VARIABLE_RECORD};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(others); i++)
        if (variable == others[i])
            return true;
    return rs_variables[variable].builds_a_part && rs_variables[variable].kind == RS_KIND_DEVICE;
}

static bool environment_is_free(void)
{
    char name[RS_NAME_BYTES_MAX];
    struct rs_name read;

    for (char **entry = environ; *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        if (length >= sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)length, *entry);
        rs_name_read(name, &read);
        if (read.kind == RS_NAME_WRONG)
            tool_say("%s: %s", name, read.reason);
        else if (read.kind == RS_NAME_OURS && is_of_stack(read.index))
            tool_say("%s is set: --run sets the variables of stacks itself", name);
        else
            continue;
        return false;
    }
    return true;
}

static bool set(const char *name, const char *value)
{
    if ((value ? setenv(name, value, 1) : unsetenv(name)) == 0)
        return true;
    tool_say("%s: %s", name, strerror(errno));
    return false;
}

/* "RMM_POOL_SIZE=1GiB", or with `is_set` false takes it away. */
static bool set_assignment(const char *assignment, bool is_set)
{
    char name[NAME_BYTES];
    const char *value = strchr(assignment, '=');

    snprintf(name, sizeof(name), "%.*s", (int)(value - assignment), assignment);
    return set(name, is_set ? value + 1 : NULL);
}

static bool set_variables(const struct tune_candidate *candidate, bool is_set)
{
    for (size_t i = 0; i < TUNE_VARIABLES_MAX && candidate->variables[i][0]; i++)
        if (!set_assignment(candidate->variables[i], is_set))
            return false;
    return true;
}

/* LD_PRELOAD as it was, and with the library. */
static struct {
    char *plain, *served;
} preload;

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static bool find_library(struct tune_measure *measure)
{
    char library[PATH_MAX];

    measure->code = TOOL_RUN_FAILED;
    if (!environment_is_free()) {
        measure->code = TOOL_USAGE;
        return false;
    }
    if (!library_find(library))
        return false;
    measure->code = library_check_program(library, measure->program[0]);
    if (measure->code)
        return false;
    measure->code = TOOL_RUN_FAILED;
    preload.plain = copy_of(getenv("LD_PRELOAD"));
    if (!library_preload(library))
        return false;
    preload.served = copy_of(getenv("LD_PRELOAD"));
    return preload.served;
}

/* ---- one run ---- */

/* False when it could not be started, or the user wants an end. */
static bool run_once(struct tune_measure *measure, enum parent_streams streams,
                     struct tune_finalist *finalist, double *seconds)
{
    struct parent_result result;
    struct summary summary;
    uint64_t began_ns = rs_clock_ns();

    measure->code = TOOL_RUN_FAILED;
    if (!parent_run(measure->program, streams, &result))
        return false;
    *seconds = (double)(rs_clock_ns() - began_ns) / 1e9;
    job_take_summary(&summary);
    for (size_t i = 0; i < summary.count; i++)
        finalist->held_bytes = rs_max(finalist->held_bytes, summary_peak(&summary.processes[i]));
    summary_clear(&summary);
    finalist->code = parent_exit_code(&result);
    if (!result.is_interrupted)
        return true;
    tool_say("interrupted");
    measure->code = TOOL_FINDING;
    return false;
}

/* ---- recording ---- */

static bool make_folder(struct tune_measure *measure)
{
    const char *parent = getenv("TMPDIR");

    snprintf(measure->folder, sizeof(measure->folder), "%s/rmmshim-tune-XXXXXX",
             parent && *parent ? parent : "/tmp");
    if (mkdtemp(measure->folder))
        return true;
    tool_say("%s: %s", measure->folder, strerror(errno));
    measure->folder[0] = '\0';
    return false;
}

static bool is_part(const char *name)
{
    size_t length = strlen(name), end = strlen(".part");

    return length > end && strcmp(name + length - end, ".part") == 0;
}

static off_t size_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? status.st_size : 0;
}

/* Calls `visit` for each file of the folder. */
static void each_file(const struct tune_measure *measure,
                      void (*visit)(void *data, const char *path), void *data)
{
    DIR *folder = measure->folder[0] ? opendir(measure->folder) : NULL;
    const struct dirent *entry;
    char path[PATH_MAX];

    while (folder && (entry = readdir(folder)))
        if (entry->d_name[0] != '.' && snprintf(path, sizeof(path), "%s/%s", measure->folder,
                                                entry->d_name) < (int)sizeof(path))
            visit(data, path);
    if (folder)
        closedir(folder);
}

struct largest {
    char *path;
    off_t bytes;
    size_t count;
};

static void look_at(void *data, const char *path)
{
    struct largest *largest = data;
    off_t bytes = size_of(path);

    if (is_part(path))
        return;
    largest->count++;
    if (largest->count > 1 && bytes <= largest->bytes)
        return;
    largest->bytes = bytes;
    snprintf(largest->path, PATH_MAX, "%s", path);
}

static bool find_recording(struct tune_measure *measure, char path[PATH_MAX])
{
    struct largest largest = {.path = path};

    each_file(measure, look_at, &largest);
    if (largest.count > 1)
        tool_say("%zu processes were recorded; the one with the largest recording is tuned",
                 largest.count);
    if (largest.count)
        return true;
    measure->code = TOOL_FINDING;
    tool_say("%s allocated no memory through CUDA, so there is nothing to tune",
             measure->program[0]);
    return false;
}

static bool record(struct tune_measure *measure, bool is_mute, struct tune_finalist *recorded)
{
    char path[PATH_MAX + sizeof("/recording")];
    double seconds;
    bool is_good;

    snprintf(path, sizeof(path), "%s/recording", measure->folder);
    is_good = set("RMM_RECORD", path) &&
              run_once(measure, is_mute ? PARENT_STREAMS_MUTE : PARENT_STREAMS_NO_INPUT, recorded,
                       &seconds);
    return set("RMM_RECORD", NULL) && is_good;
}

bool tune_measure_record(struct tune_measure *measure, bool is_mute, char path[PATH_MAX])
{
    struct tune_finalist recorded = {.number = 0};
    sigset_t signals;
    bool is_good;

    measure->code = TOOL_RUN_FAILED;
    if (!find_library(measure) || !make_folder(measure) || !job_begin())
        return false;
    sigprocmask(SIG_BLOCK, NULL, &signals);
    is_good = record(measure, is_mute, &recorded);
    /* parent_run has signals blocked from its first run on, and waits for them in each; the search
     * between the runs is to end by Ctrl-C. */
    sigprocmask(SIG_SETMASK, &signals, &measure->run_mask);
    if (is_good && recorded.code) {
        tool_say("%s failed with status %d while it was recorded", measure->program[0],
                 recorded.code);
        measure->code = recorded.code;
        return false;
    }
    return is_good && find_recording(measure, path);
}

static void remove_file(void *data, const char *path)
{
    (void)data;
    (void)unlink(path);
}

void tune_measure_forget(struct tune_measure *measure)
{
    each_file(measure, remove_file, NULL);
    if (measure->folder[0])
        (void)rmdir(measure->folder);
    measure->folder[0] = '\0';
}

void tune_measure_end(struct tune_measure *measure)
{
    tune_measure_forget(measure);
    for (size_t i = 0; i < measure->count; i++)
        free(measure->finalists[i].seconds);
    measure->count = 0;
    free(preload.plain);
    free(preload.served);
    preload.plain = preload.served = NULL;
}

/* ---- finalists ---- */

static bool has_template(const struct tune_measure *measure, const struct tune_search *search,
                         size_t number)
{
    for (size_t i = 0; i < measure->count; i++)
        if (search->candidates[measure->finalists[i].number].of == search->candidates[number].of)
            return true;
    return false;
}

static bool has_number(const struct tune_measure *measure, size_t number)
{
    for (size_t i = 0; i < measure->count; i++)
        if (measure->finalists[i].number == number)
            return true;
    return false;
}

static void add_finalist(struct tune_measure *measure, size_t number)
{
    if (number != TUNE_NONE && measure->count < TUNE_FINALISTS_MAX && !has_number(measure, number))
        measure->finalists[measure->count++] = (struct tune_finalist){.number = number};
}

/* Of the templates that no finalist has, the candidate with the fewest stops: the replay does not
 * know what an allocation costs in time, so finalists differ in kind. */
static size_t best_of_others(const struct tune_measure *measure, const struct tune_search *search,
                             uint64_t limit_bytes)
{
    const struct tune_point *points = search->points;
    size_t best = TUNE_NONE;

    for (size_t i = 0; i < search->count; i++)
        if (!points[i].is_out && points[i].held_bytes <= limit_bytes &&
            !search->candidates[i].of->is_bounded && !has_template(measure, search, i) &&
            (best == TUNE_NONE || points[i].stops < points[best].stops))
            best = i;
    return best;
}

static void choose_finalists(struct tune_measure *measure, const struct tune_search *search,
                             const size_t *best, size_t count)
{
    uint64_t limit_bytes = UINT64_MAX;
    size_t other;

    add_finalist(measure, 0);
    for (size_t i = 0; i < count; i++)
        add_finalist(measure, best[i]);
    if (measure->limit && measure->count > 1)
        limit_bytes = search->points[measure->finalists[1].number].held_bytes;
    while (measure->count < TUNE_FINALISTS_MAX &&
           (other = best_of_others(measure, search, limit_bytes)) != TUNE_NONE)
        add_finalist(measure, other);
}

/* ---- rounds ---- */

static bool run_finalist(struct tune_measure *measure, const struct tune_search *search,
                         struct tune_finalist *finalist, size_t round)
{
    const struct tune_candidate *candidate = &search->candidates[finalist->number];
    bool is_served = finalist->number != 0, is_good;

    is_good = set("LD_PRELOAD", is_served ? preload.served : preload.plain) &&
              set("RMM_LIMIT", is_served ? measure->limit : NULL) &&
              set_variables(candidate, true) &&
              run_once(measure, PARENT_STREAMS_MUTE, finalist, &finalist->seconds[round]);
    return set_variables(candidate, false) && is_good;
}

static void say_progress(const struct tune_measure *measure, size_t runs)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\rrmmshim: run %zu of %zu", runs + 1, measure->rounds * measure->count);
}

static void end_progress(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* Each round begins with another finalist, so that no one always runs after the same one. */
static bool run_round(struct tune_measure *measure, const struct tune_search *search, size_t round)
{
    for (size_t i = 0; i < measure->count; i++) {
        struct tune_finalist *finalist = &measure->finalists[(i + round) % measure->count];
        if (finalist->code)
            continue;
        say_progress(measure, round * measure->count + i);
        if (!run_finalist(measure, search, finalist, round))
            return false;
    }
    if (!measure->finalists[0].code)
        return true;
    end_progress();
    tool_say("%s failed with status %d without the library", measure->program[0],
             measure->finalists[0].code);
    measure->code = TOOL_FINDING;
    return false;
}

bool tune_measure_run(struct tune_measure *measure, const struct tune_search *search,
                      const size_t *best, size_t count)
{
    const double *plain;

    measure->code = TOOL_RUN_FAILED;
    sigprocmask(SIG_SETMASK, &measure->run_mask, NULL);
    choose_finalists(measure, search, best, count);
    for (size_t i = 0; i < measure->count; i++) {
        measure->finalists[i].seconds = calloc(measure->rounds, sizeof(double));
        if (!measure->finalists[i].seconds) {
            tool_say("out of memory");
            return false;
        }
    }
    for (size_t round = 0; round < measure->rounds; round++)
        if (!run_round(measure, search, round))
            return false;
    end_progress();
    plain = measure->finalists[0].seconds;
    for (size_t i = 0; i < measure->count; i++) {
        struct tune_finalist *finalist = &measure->finalists[i];
        finalist->wall = tune_interval_of(finalist->seconds, measure->rounds);
        finalist->more = tune_interval_of_pairs(finalist->seconds, plain, measure->rounds);
    }
    return true;
}
