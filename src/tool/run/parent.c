/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/parent.h"

#include "tool/process.h"
#include "tool/run/job.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

/* What the program finds as if `run` were not there. */
struct inherited {
    sigset_t mask;
    struct sigaction child_action; /* of SIGCHLD: who ignores it has no children to wait for */
};

int parent_become(char **program)
{
    int failed;

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
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t signals;

    if (catches)
        return;
    catches = true;
    signals_to_pass(&signals);
    sigprocmask(SIG_BLOCK, &signals, &inherited->mask);
    sigaction(SIGCHLD, &usual, &inherited->child_action);
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
    sigaction(SIGCHLD, &inherited->child_action, NULL);
    sigprocmask(SIG_SETMASK, &inherited->mask, NULL);
    redirect(streams);
    return parent_become(program);
}

/* ---- signals ---- */

enum { DEPTH_MAX = 64 }; /* of processes between the program and one below it */

/* The terminal sends to all of its foreground processes, and so to the program by itself. */
static bool is_of_terminal(const siginfo_t *info)
{
    return info->si_code == SI_KERNEL;
}

/* True when the program, or a process below it, sent the signal, and sender and program are of this
 * process's group: the signal is taken as sent to the group, so the program has it.  A sender that
 * is gone is not known. */
static bool is_of_program(pid_t program, const siginfo_t *info)
{
    pid_t sender = info->si_code == SI_USER ? info->si_pid : 0, group = getpgrp();

    if (sender <= 0 || getpgid(sender) != group || getpgid(program) != group)
        return false;
    for (int depth = 0; sender > 1 && sender != program && depth < DEPTH_MAX; depth++)
        sender = process_parent(sender);
    return sender == program;
}

static void pass_on(pid_t program, const siginfo_t *info)
{
    if (info->si_code == SI_QUEUE)
        (void)sigqueue(program, info->si_signo, info->si_value);
    else
        (void)kill(program, info->si_signo);
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

/* True when the program has ended, with its status. */
static bool has_ended(pid_t program, int *status)
{
    pid_t changed;

    while ((changed = waitpid(program, status, WNOHANG | WUNTRACED)) == program) {
        if (!WIFSTOPPED(*status))
            return true;
        stop_too(program, WSTOPSIG(*status));
    }
    return changed < 0 && errno == ECHILD;
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

static void wait_for(struct parent_result *result)
{
    sigset_t signals;
    siginfo_t info;

    signals_to_pass(&signals);
    while (!has_ended(result->program, &result->status)) {
        if (sigwaitinfo(&signals, &info) < 0)
            continue; /* stopped and continued */
        if (info.si_signo == SIGCHLD || is_of_program(result->program, &info))
            continue;
        result->is_interrupted |= ends_a_job(info.si_signo) && !is_ignored(info.si_signo);
        if (!is_of_terminal(&info))
            pass_on(result->program, &info);
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
    pid_t parent = getpid();

    *result = (struct parent_result){.program = -1};
    begin_to_catch(&inherited);
    result->program = fork();
    if (result->program == 0)
        _exit(be_program(program, &inherited, parent, streams));
    if (result->program < 0) {
        tool_say("%s: %s", program[0], strerror(errno));
        return false;
    }
    job_watch();
    wait_for(result);
    job_end();
    return true;
}
