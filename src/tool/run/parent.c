/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "tool/process.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* What `run` itself inherited and restores for the program. */
struct inherited {
    sigset_t mask;
    struct sigaction child_action; /* for SIGCHLD, which `run` resets: a process that ignores it
                                      cannot wait for its children */
    struct sigaction pipe_action;  /* for SIGPIPE, which `run` ignores, so that it goes on when its
                                      reader is gone */
    struct rlimit files;
};

int parent_become(char **program)
{
    int failed;

    tool_close_added_streams();
    (void)execvp(program[0], program);
    failed = errno;
    tool_say("%s: %s", program[0], strerror(failed));
    return failed == ENOENT ? TOOL_RUN_NOT_FOUND : TOOL_RUN_NOT_EXECUTABLE;
}

/* Stores the signals that the signalfd takes: SIGCHLD, and those that are passed on.  SIGPIPE and
 * the signals for faults of this process itself are left out. */
static void signals_to_pass(sigset_t *signals)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE};

    sigfillset(signals);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(own); i++)
        sigdelset(signals, own[i]);
}

/* Blocks the signals of signals_to_pass, and returns a signalfd for them, or -1. Also raises the
 * limit of open files. Only the first call changes anything, so that each program of --find-min
 * inherits the same. */
static int begin_to_catch(struct inherited *inherited)
{
    static int caught = -1;
    struct sigaction usual = {.sa_handler = SIG_DFL}, ignored = {.sa_handler = SIG_IGN};
    struct rlimit files;
    sigset_t signals;

    if (caught >= 0)
        return caught;
    signals_to_pass(&signals);
    sigprocmask(SIG_BLOCK, &signals, &inherited->mask);
    sigaction(SIGCHLD, &usual, &inherited->child_action);
    sigaction(SIGPIPE, &ignored, &inherited->pipe_action);
    (void)getrlimit(RLIMIT_NOFILE, &inherited->files);
    files = inherited->files;
    files.rlim_cur = files.rlim_max; /* `run` needs a descriptor for each process of the job */
    (void)setrlimit(RLIMIT_NOFILE, &files);
    return caught = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void redirect(enum parent_streams streams)
{
    int last = streams == PARENT_STREAMS_MUTE ? STDERR_FILENO : STDIN_FILENO;
    int fd = streams == PARENT_STREAMS_OWN ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int stream = STDIN_FILENO; fd >= 0 && stream <= last; stream++)
        if (fd == stream)
            (void)fcntl(fd, F_SETFD, 0);
        else
            (void)dup2(fd, stream);
}

/* The child's part: becomes the program.  If `run` is killed, the kernel kills the program too,
 * since a kill -9 of `run` is meant for it. */
static int be_program(char **program, const struct inherited *inherited, pid_t parent,
                      enum parent_streams streams)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        raise(SIGKILL);
    (void)setrlimit(RLIMIT_NOFILE, &inherited->files);
    sigaction(SIGPIPE, &inherited->pipe_action, NULL);
    sigaction(SIGCHLD, &inherited->child_action, NULL);
    sigprocmask(SIG_SETMASK, &inherited->mask, NULL);
    redirect(streams);
    return parent_become(program);
}

/* ---- signals ---- */

enum { DEPTH_MAX = 64 }; /* the most generations of processes below the program that are searched */

/* True when the kernel has sent the signal to the program too: the terminal sends its signals to
 * all foreground processes (but a hangup only to the session's leader).  Other signals of the
 * kernel (of a timer that was set before this process became `run`, or of a limit on processor
 * time) come to this process alone, and must be passed on. */
static bool has_reached_the_program(const struct signalfd_siginfo *info)
{
    static const int of_terminal[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH};
    int number = (int)info->ssi_signo;

    if (info->ssi_code != SI_KERNEL)
        return false;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(of_terminal); i++)
        if (number == of_terminal[i])
            return true;
    return (number == SIGHUP || number == SIGCONT) && getsid(0) != getpid();
}

/* True when the program or a process below it sent the signal, and both are in this process's
 * group: the signal was then probably sent to the whole group, so that the program has it.  A
 * sender that has ended cannot be checked. */
static bool is_of_program(pid_t program, const struct signalfd_siginfo *info)
{
    pid_t sender = info->ssi_code == SI_USER ? (pid_t)info->ssi_pid : 0, group = getpgrp();

    if (sender <= 0 || getpgid(sender) != group || getpgid(program) != group)
        return false;
    for (int depth = 0; sender > 1 && sender != program && depth < DEPTH_MAX; depth++)
        sender = process_parent(sender);
    return sender == program;
}

static void pass_on(pid_t program, const struct signalfd_siginfo *info)
{
    union sigval value = {.sival_ptr = (void *)(uintptr_t)info->ssi_ptr};

    if (info->ssi_code == SI_QUEUE)
        (void)sigqueue(program, (int)info->ssi_signo, value);
    else
        (void)kill(program, (int)info->ssi_signo);
}

/* True when a shell with job control may wait for this process and expect it to stop.  In the
 * background only stops of job control count, since a SIGSTOP may be meant for the program alone.
 * The leader of a session has no shell. */
static bool stops_with(int stop)
{
    int terminal = getsid(0) == getpid() ? -1 : open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    bool is_of_job_control = stop == SIGTSTP || stop == SIGTTIN || stop == SIGTTOU;
    bool stops = terminal >= 0 && (is_of_job_control || tcgetpgrp(terminal) == getpgrp());

    if (terminal >= 0)
        close(terminal);
    return stops;
}

/* Stops this process with the program, so that the shell sees that its job has stopped; it only
 * continues jobs that it saw stop.  Without such a shell, whoever stopped the program will continue
 * only the program, and this process would stay stopped for good, so it does not stop. */
static void stop_too(pid_t program, int stop)
{
    if (!stops_with(stop))
        return;
    (void)kill(getpid(), SIGSTOP);
    (void)kill(program, SIGCONT);
}

/* Reaps all children: as a subreaper or as the first process of a PID namespace, this process also
 * gets orphans. Stores the program's status. True when the program has ended or no child is left.
 */
static bool has_ended(pid_t program, int *status)
{
    bool ended = false;
    pid_t changed;
    int how;

    while ((changed = waitpid(-1, &how, WNOHANG | WUNTRACED)) > 0) {
        if (changed != program)
            continue;
        *status = how;
        if (WIFSTOPPED(how))
            stop_too(program, WSTOPSIG(how));
        else
            ended = true;
    }
    return ended || (changed < 0 && errno == ECHILD);
}

static void take_signal(struct parent_result *result, const struct signalfd_siginfo *info)
{
    int number = (int)info->ssi_signo;
    struct sigaction action; /* the inherited action, since this process changes only those for
                                SIGCHLD and SIGPIPE */

    if (number == SIGCHLD || is_of_program(result->program, info))
        return;
    /* A signalfd also reports blocked signals that are ignored. */
    result->is_interrupted |=
        (number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT) &&
        !(sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN);
    if (!has_reached_the_program(info))
        pass_on(result->program, info);
}

/* ---- the end ---- */

/* This process must leave no core file; the program has left its own if one was wanted. */
void parent_end_as(const struct parent_result *result)
{
    struct rlimit none = {0, 0};

    if (!WIFSIGNALED(result->status))
        return;
    (void)setrlimit(RLIMIT_CORE, &none);
    /* This keeps the kernel from passing a core to a program that handles cores. */
    (void)prctl(PR_SET_DUMPABLE, 0);
    tool_end_by(WTERMSIG(result->status));
}

int parent_exit_code(const struct parent_result *result)
{
    return WIFSIGNALED(result->status) ? 128 + WTERMSIG(result->status)
                                       : WEXITSTATUS(result->status);
}

bool parent_run(char **program, enum parent_streams streams, struct parent_result *result)
{
    static struct inherited inherited;
    struct signalfd_siginfo info;
    pid_t parent = getpid();
    int signals = begin_to_catch(&inherited);

    job_watch(); /* before the program can say anything to the job */
    *result = (struct parent_result){.program = signals < 0 ? -1 : fork()};
    if (result->program == 0)
        _exit(be_program(program, &inherited, parent, streams));
    if (result->program < 0) {
        tool_say("%s: %s", program[0], strerror(errno));
        return false;
    }
    while (!has_ended(result->program, &result->status)) {
        job_serve_until(signals);
        while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
            take_signal(result, &info);
    }
    job_end();
    return true;
}

/* ---- --find-min ---- */

/* STEP_BYTES is the driver's granularity of large blocks. NO_LIMIT_BYTES, the limit of the run
 * without a limit, is larger than any device; without a setting nothing would be counted. */
enum { STEP_BYTES = 2 << 20, PERCENT = 100, RAISES_MAX = 8 };
#define NO_LIMIT_BYTES ((size_t)1 << 46)

struct search {
    char **program;
    const struct run_options *options;
    struct parent_result result; /* the result of the latest run */
    unsigned runs;
    /* The largest limit that is known to be too small, and the smallest that is known to suffice;
     * 0: none is known yet. */
    size_t fails_bytes, succeeds_bytes;
    bool empty_pools; /* pools whose initial size would decide the result begin empty */
};

/* Runs the program with a limit.  False when it could not be started, or the user has interrupted
 * the search. */
static bool run_with(struct search *search, size_t limit_bytes)
{
    enum parent_streams streams = search->runs ? PARENT_STREAMS_MUTE : PARENT_STREAMS_NO_INPUT;
    char text[RS_SIZE_TEXT_BYTES];

    if (!tool_set("RMM_LIMIT", rs_size_format(limit_bytes, text)))
        return false;
    search->runs++;
    return parent_run(search->program, streams, &search->result) && !search->result.is_interrupted;
}

static bool has_succeeded(const struct search *search)
{
    return parent_exit_code(&search->result) == 0;
}

static void say_step(const struct search *search, size_t limit_bytes)
{
    const char *text = tool_bytes(limit_bytes);
    int status = search->result.status;

    if (search->options->is_quiet)
        return;
    if (has_succeeded(search))
        tool_say("with a limit of %s: the program succeeds", text);
    else if (WIFSIGNALED(status))
        tool_say("with a limit of %s: the program is ended by signal %d", text, WTERMSIG(status));
    else
        tool_say("with a limit of %s: the program fails with exit code %d", text,
                 WEXITSTATUS(status));
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

/* Returns the highest peaks of any process on any device. */
static struct summary_device highest_peaks(const struct summary *summary)
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

/* Makes pools whose initial size is more than the program ever uses begin empty in the runs with a
 * limit. A limit below an initial size is a bad setting, so the search would only find that size.
 * Returns false after saying why a variable could not be set. */
static bool empty_pools(struct search *search, const struct summary_device *most)
{
    static const char *const pools[] = {"RMM_POOL_SIZE", "RMM_MANAGED_POOL_SIZE"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(pools); i++) {
        const char *name = pools[i], *text = getenv(name), *at, *reason;
        struct rs_size size;
        if (!text || !rs_size_parse(text, text + strlen(text), &size, &at, &reason) ||
            rs_size_resolve(size, most->total_bytes, most->total_bytes) <= most->used_peak_bytes)
            continue;
        if (!search->options->is_quiet)
            tool_say(
                "--find-min: %s=%s is more than the program uses, so the pool starts empty in the "
                "runs with a limit",
                name, text);
        if (!tool_set(name, "0"))
            return false;
        search->empty_pools = true;
    }
    return true;
}

/* Finds a limit that suffices: tries what the program used in the first run, then what was held for
 * it, then more, since runs may differ.  If none of them suffices, succeeds_bytes stays 0.  Returns
 * false when a run could not be started, or the user has interrupted the search. */
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

/* Returns the exit code of a search without a result. */
static int give_up(const struct search *search)
{
    if (search->result.program < 0)
        return TOOL_RUN_FAILED;
    if (search->result.is_interrupted)
        tool_say("--find-min: interrupted in run %u, so no limit was found", search->runs);
    parent_end_as(&search->result);
    return search->result.is_interrupted && has_succeeded(search)
               ? TOOL_FINDING
               : parent_exit_code(&search->result);
}

static int say_found(const struct search *search, struct run_outcome *first)
{
    if (!search->succeeds_bytes) {
        tool_say(
            "--find-min: the program succeeds without a limit, but fails with every limit that "
            "was tried, up to %s; run the program without --find-min to try a larger --limit",
            tool_bytes(search->fails_bytes));
        return TOOL_FINDING;
    }
    tool_say("the smallest limit with which the program succeeded is %s (%s%u runs)",
             tool_bytes(search->succeeds_bytes),
             search->empty_pools ? "with a pool that starts empty; " : "", search->runs);
    first->smallest_limit_bytes = search->succeeds_bytes;
    first->runs = search->runs;
    return run_end(search->options, search->program, first);
}

/* Searches, after a first run that succeeded. */
static int search_from(struct search *search, struct run_outcome *first)
{
    struct summary_device most = highest_peaks(&first->summary);
    size_t used_bytes = most.used_peak_bytes, held_bytes = most.held_peak_bytes;

    if (!held_bytes) {
        tool_say("--find-min: no process had GPU memory served by rmmshim, so there is no limit to "
                 "find; `rmmshim doctor PROGRAM` may say why");
        return TOOL_FINDING;
    }
    if (!search->options->is_quiet)
        tool_say("without a limit: the program succeeds; it used up to %s, held up to %s",
                 tool_bytes(used_bytes), tool_bytes(held_bytes));
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
