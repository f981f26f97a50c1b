/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/parent.h"

#include "tool/gone.h"
#include "tool/job.h"
#include "tool/tool.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
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

static void begin_to_catch(struct inherited *inherited)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t signals;

    signals_to_pass(&signals);
    sigprocmask(SIG_BLOCK, &signals, &inherited->mask);
    sigaction(SIGCHLD, &usual, &inherited->child_action);
}

/* A kill -9 of `run` is meant for the program. */
static int be_program(char **program, const struct inherited *inherited, pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        raise(SIGKILL);
    sigaction(SIGCHLD, &inherited->child_action, NULL);
    sigprocmask(SIG_SETMASK, &inherited->mask, NULL);
    return parent_become(program);
}

/* ---- signals ---- */

/* The terminal sends to all of its foreground processes, and so to the program by itself. */
static void pass_on(pid_t program, const siginfo_t *info)
{
    if (info->si_code == SI_KERNEL)
        return;
    if (info->si_code == SI_QUEUE)
        (void)sigqueue(program, info->si_signo, info->si_value);
    else
        (void)kill(program, info->si_signo);
}

/* The shell is to see that its job has stopped. */
static void stop_too(pid_t program)
{
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
        stop_too(program);
    }
    return changed < 0 && errno == ECHILD;
}

static int wait_for(pid_t program)
{
    sigset_t signals;
    siginfo_t info;
    int status = 0;

    signals_to_pass(&signals);
    while (!has_ended(program, &status)) {
        if (sigwaitinfo(&signals, &info) < 0)
            continue; /* stopped and continued */
        if (info.si_signo != SIGCHLD)
            pass_on(program, &info);
    }
    return status;
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

int parent_run(char **program)
{
    struct inherited inherited;
    pid_t parent = getpid(), child;
    int status;

    if (!job_begin())
        return parent_become(program);
    begin_to_catch(&inherited);
    child = fork();
    if (child == 0)
        _exit(be_program(program, &inherited, parent));
    if (child < 0) {
        tool_say("%s: %s", program[0], strerror(errno));
        return TOOL_RUN_FAILED;
    }
    job_watch();
    status = wait_for(child);
    job_end();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        gone_print_refusals();
    if (WIFSIGNALED(status))
        end_by(WTERMSIG(status));
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
