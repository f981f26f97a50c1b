/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim top: who holds memory through rmmshim, as it changes. */
#include "base/check.h"
#include "base/lock.h"
#include "tool/screen/terminal.h"
#include "tool/screen/view.h"
#include "tool/screen/watch.h"
#include "tool/tool.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { SAMPLE_SHARE = 20 }; /* pages are read for no more than 1/20 of the time */

static const double interval_least = 0.1, interval_most = 3600;

struct options {
    struct view view;
    bool is_once, is_json, has_interval;
};

/* ---- once ---- */

static bool put_json(const struct view *view, const struct watch *watch)
{
    struct rows rows = {.count = 0};
    bool is_printed;
    size_t count;
    const struct watched **all = view_rows(view, watch, &count);

    for (size_t i = 0; i < count; i++)
        rows_add(&rows, &all[i]->row);
    is_printed = rows_print_json(&rows);
    rows_release(&rows);
    free(all);
    return is_printed;
}

static void sleep_for(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds};

    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);

    while (nanosleep(&left, &left) != 0)
        continue;
}

static int show_once(struct options *options)
{
    struct watch watch = {.count = 0};
    struct frame frame = {.lines = 0};
    bool is_printed = true;
    int lines, failed = 0;

    watch_sample(&watch);
    if (options->has_interval || options->view.sort == VIEW_RATE) {
        sleep_for(options->view.interval_seconds);
        watch_sample(&watch);
    }
    terminal_size(&frame.columns, &lines);
    if (options->is_json) {
        is_printed = put_json(&options->view, &watch);
    } else {
        view_draw(&options->view, &watch, &frame);
        failed = frame_write(&frame);
    }
    if (watch_process_count(&watch) == 0 && options->is_json)
        rows_say_none();
    rows_say_unreadable(watch_unreadable(&watch));
    watch_release(&watch);
    if (failed)
        tool_say("standard output: %s", strerror(-failed));
    return failed || !is_printed ? TOOL_FINDING : TOOL_OK;
}

/* ---- live ---- */

static void scroll(struct view *view, long rows)
{
    if (rows < 0)
        view->first -= rs_min(view->first, (size_t)-rows);
    else
        view->first += (size_t)rows; /* drawing keeps it in the table */
}

/* False when that ends it. */
static bool take_event(struct view *view, int event)
{
    long page = (long)rs_max(view->visible, 1);

    if (view->shows_help && event >= TERMINAL_KEY_UP && event != TERMINAL_KEY + 'q' &&
        event != TERMINAL_KEY + 'Q') {
        view->shows_help = false;
        return true;
    }
    switch (event) {
    case TERMINAL_END:
    case TERMINAL_KEY + 'q':
    case TERMINAL_KEY + 'Q':
        return false;
    case TERMINAL_KEY + 'p':
    case TERMINAL_KEY + ' ':
        view->is_paused = !view->is_paused;
        break;
    case TERMINAL_KEY + 's':
        view->sort = (enum view_sort)((view->sort + 1) % VIEW_SORTS);
        break;
    case TERMINAL_KEY + 'r':
        view->is_reversed = !view->is_reversed;
        break;
    case TERMINAL_KEY + 'd':
        view->is_by_device = !view->is_by_device;
        view->first = 0;
        break;
    case TERMINAL_KEY + 'h':
    case TERMINAL_KEY + '?':
        view->shows_help = true;
        break;
    case TERMINAL_KEY_UP:
        scroll(view, -1);
        break;
    case TERMINAL_KEY_DOWN:
        scroll(view, 1);
        break;
    case TERMINAL_KEY_PAGE_UP:
        scroll(view, -page);
        break;
    case TERMINAL_KEY_PAGE_DOWN:
        scroll(view, page);
        break;
    case TERMINAL_KEY_HOME:
        view->first = 0;
        break;
    case TERMINAL_KEY_END:
        view->first = SIZE_MAX / 2;
        break;
    default:
        break;
    }
    return true;
}

/* False when the terminal is gone. */
static bool draw(struct view *view, const struct watch *watch, bool has_colors)
{
    struct frame frame = {.is_screen = true, .has_colors = has_colors};

    terminal_size(&frame.columns, &frame.lines);
    view_draw(view, watch, &frame);
    return frame_write(&frame) == 0;
}

/* Reads all pages; the time at which they are to be read again. */
static uint64_t sample(const struct view *view, struct watch *watch)
{
    uint64_t begin_ns = rs_clock_ns();

    watch_sample(watch);
    return rs_max(begin_ns + (uint64_t)(view->interval_seconds * 1e9),
                  rs_clock_ns() + SAMPLE_SHARE * watch->reading_ns);
}

static int timeout_until(uint64_t time_ns)
{
    uint64_t now_ns = rs_clock_ns();

    return time_ns <= now_ns ? 0 : (int)((time_ns - now_ns) / 1000000 + 1);
}

static int show_live(struct view *view)
{
    struct watch watch = {.count = 0};
    bool has_colors = terminal_has_colors();
    uint64_t next_ns = 0;
    int event = TERMINAL_CHANGED;

    if (!terminal_begin())
        return TOOL_FINDING;
    do {
        bool is_due = !view->is_paused && rs_clock_ns() >= next_ns;
        if (is_due)
            next_ns = sample(view, &watch);
        if ((is_due || event != TERMINAL_TIMEOUT) && !draw(view, &watch, has_colors))
            break;
        event = terminal_wait(view->is_paused ? -1 : timeout_until(next_ns));
    } while (take_event(view, event));
    terminal_end();
    watch_release(&watch);
    return TOOL_OK;
}

/* ---- the command ---- */

/* The place of the word, or -1 after saying that there is none. */
static int place_of(const char *word, const char *option, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    tool_say_unknown(option, word, words);
    return -1;
}

static bool take_interval(const char *text, struct options *options)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= interval_least && seconds <= interval_most)) {
        tool_say("--interval '%s': a number of seconds from %g to %g", text, interval_least,
                 interval_most);
        return false;
    }
    options->view.interval_seconds = seconds;
    options->has_interval = true;
    return true;
}

static bool take_option(char ***arguments, struct options *options)
{
    static const char *const groups[] = {"process", "device", NULL};
    static const char *const known[] = {"--once", "--json", "--by", "--sort", "--interval", NULL};
    bool failed = false;
    const char *value;
    int place;

    if (strcmp(**arguments, "--once") == 0)
        return options->is_once = true;
    if (strcmp(**arguments, "--json") == 0)
        return options->is_json = options->is_once = true;
    if ((value = tool_option_value(arguments, "--interval", &failed)))
        return take_interval(value, options);
    if ((value = tool_option_value(arguments, "--by", &failed))) {
        place = place_of(value, "--by", groups);
        options->view.is_by_device = place == 1;
        return place >= 0;
    }
    if ((value = tool_option_value(arguments, "--sort", &failed))) {
        place = place_of(value, "--sort", view_sort_names);
        options->view.sort = place < 0 ? VIEW_HELD : (enum view_sort)place;
        return place >= 0;
    }
    if (!failed)
        tool_say_unknown("option", **arguments, known);
    return false;
}

/* A page is mapped and a process's directory is open for each process. */
static void allow_many_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int top(char **arguments)
{
    struct options options = {.view.interval_seconds = 1};

    setlocale(LC_CTYPE, "");
    for (; *arguments; arguments++)
        if (!take_option(&arguments, &options))
            return TOOL_USAGE;
    if (options.is_json && options.view.is_by_device) {
        tool_say("--json has a row for each process, so --by device cannot be used with it");
        return TOOL_USAGE;
    }
    allow_many_files();
    options.view.has_blocks = terminal_has_blocks();
    if (options.is_once || !terminal_is_usable())
        return show_once(&options);
    return show_live(&options.view);
}

static void help(void)
{
    puts(
        "Runs in a terminal until q is pressed; elsewhere, as in a pipe, it prints once.\n\n"
        "--once           print once, without a terminal's control characters\n"
        "--json           the same as JSON: as `rmmshim ls --json`, sorted as asked\n"
        "--by WORD        process (default) or device\n"
        "--sort WORD      held (default), used, peak, rate or pid\n"
        "--interval S     seconds between updates, 0.1 to 3600 (default 1); with --once: prints "
        "after\n"
        "                 this time, so that rates are known\n\n"
        "keys: q quit, p or space pause, s next column to sort by, r reverse, d devices or "
        "processes, h or ? "
        "help,\n"
        "arrows and page keys scroll\n\n"
        "Columns are those of `rmmshim ls`, as many as there is room for, then rates, and HISTORY: "
        "HELD as a\n"
        "part of the limit or of all memory.\n\n"
        "HELD is red from 90 % of the limit on, yellow from 75 %; NO_COLOR turns colours off.");
}

const struct tool_command tool_top = {
    .name = "top",
    .arguments =
        "[--once] [--json] [--by process|device] [--sort held|used|peak|rate|pid] [--interval S]",
    .summary = "Shows the processes that have GPU memory served by rmmshim, as they change",
    .run = top,
    .help = help,
};
