/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/process.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* What the program finds as if `run` were not there. */
struct inherited {
    sigset_t mask;
    struct sigaction child_action; /* of SIGCHLD: who ignores it has no children to wait for */
    struct sigaction pipe_action;  /* of SIGPIPE: this process goes on when its reader is gone */
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

/* All but those that tell of a mistake of this process's own, and a reader that is gone. */
static void signals_to_pass(sigset_t *signals)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE};

    sigfillset(signals);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(own); i++)
        sigdelset(signals, own[i]);
}

/* Once: a further program inherits what the first one did. */
static void begin_to_catch(struct inherited *inherited)
{
    static bool catches;
    struct sigaction usual = {.sa_handler = SIG_DFL}, ignored = {.sa_handler = SIG_IGN};
    struct rlimit files;
    sigset_t signals;

    if (catches)
        return;
    catches = true;
    signals_to_pass(&signals);
    sigprocmask(SIG_BLOCK, &signals, &inherited->mask);
    sigaction(SIGCHLD, &usual, &inherited->child_action);
    sigaction(SIGPIPE, &ignored, &inherited->pipe_action);
    (void)getrlimit(RLIMIT_NOFILE, &inherited->files);
    files = inherited->files;
    files.rlim_cur = files.rlim_max; /* each process of the job takes one */
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static int open_signals(void)
{
    sigset_t signals;

    signals_to_pass(&signals);
    return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
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

/* A kill -9 of `run` is meant for the program. */
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

enum { DEPTH_MAX = 64 }; /* of processes between the program and one below it */

/* The terminal sends these to all of its foreground processes, and so to the program by itself; a
 * hangup it tells the leader of the session alone.  Whatever else the kernel sends (a timer that
 * was set before this process became `run`, a limit on processor time) is for this process alone,
 * and would have come to the program. */
static bool has_reached_the_program(const struct signalfd_siginfo *info)
{
    switch (info->ssi_signo) {
    case SIGINT:
    case SIGQUIT:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGWINCH:
        return info->ssi_code == SI_KERNEL;
    case SIGHUP:
    case SIGCONT:
        return info->ssi_code == SI_KERNEL && getsid(0) != getpid();
    default:
        return false;
    }
}

/* True when the program, or a process below it, sent the signal, and sender and program are of this
 * process's group: the signal is taken as sent to the group, so the program has it.  A sender that
 * is gone is not known. */
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

/* The stops that job control sends.  Anything else is a SIGSTOP. */
static bool is_of_job_control(int stop)
{
    return stop == SIGTSTP || stop == SIGTTIN || stop == SIGTTOU;
}

/* True where a shell with job control may wait for this process, and expects it to stop: in the
 * background only by a stop of job control, since a SIGSTOP may be for the program alone.  Who is
 * the leader of its session has no shell. */
static bool stops_with(int stop)
{
    int terminal = getsid(0) == getpid() ? -1 : open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    bool stops = terminal >= 0 && (is_of_job_control(stop) || tcgetpgrp(terminal) == getpgrp());

    if (terminal >= 0)
        close(terminal);
    return stops;
}

/* The shell is to see that its job has stopped: it continues only jobs of which it has seen that.
 * Anybody else who stops the program continues it alone, and this process would stay stopped for
 * good. */
static void stop_too(pid_t program, int stop)
{
    if (!stops_with(stop))
        return;
    (void)kill(getpid(), SIGSTOP);
    (void)kill(program, SIGCONT);
}

/* True when the program has ended, with its status.  Orphans below a subreaper or the first process
 * of a PID namespace are this process's children too. */
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

static bool ends_a_job(int number)
{
    return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

/* As it was inherited: this process sets none but SIGCHLD's.  Blocked signals come even so. */
static bool is_ignored(int number)
{
    struct sigaction action;

    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void take_signal(struct parent_result *result, const struct signalfd_siginfo *info)
{
    int number = (int)info->ssi_signo;

    if (number == SIGCHLD || is_of_program(result->program, info))
        return;
    result->is_interrupted |= ends_a_job(number) && !is_ignored(number);
    if (!has_reached_the_program(info))
        pass_on(result->program, info);
}

static void wait_for(struct parent_result *result, int signals)
{
    struct signalfd_siginfo info;

    while (!has_ended(result->program, &result->status)) {
        job_serve_until(signals);
        while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
            take_signal(result, &info);
    }
}

/* ---- the end ---- */

/* The program has left a core file where one was wanted. */
static void end_by(int number)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    struct rlimit none = {0, 0};
    sigset_t only;

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_DUMPABLE, 0); /* nor by a program that the kernel hands cores to */
    sigaction(number, &usual, NULL);
    sigemptyset(&only);
    sigaddset(&only, number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    raise(number);
}

void parent_end_as(const struct parent_result *result)
{
    if (WIFSIGNALED(result->status))
        end_by(WTERMSIG(result->status));
}

int parent_exit_code(const struct parent_result *result)
{
    return WIFSIGNALED(result->status) ? 128 + WTERMSIG(result->status)
                                       : WEXITSTATUS(result->status);
}

bool parent_run(char **program, enum parent_streams streams, struct parent_result *result)
{
    static struct inherited inherited;
    static int signals = -1;
    pid_t parent = getpid();

    *result = (struct parent_result){.program = -1};
    begin_to_catch(&inherited);
    if (signals < 0)
        signals = open_signals();
    if (signals >= 0)
        result->program = fork();
    if (result->program == 0)
        _exit(be_program(program, &inherited, parent, streams));
    if (result->program < 0) {
        tool_say("%s: %s", program[0], strerror(errno));
        return false;
    }
    job_watch();
    wait_for(result, signals);
    job_end();
    return true;
}
