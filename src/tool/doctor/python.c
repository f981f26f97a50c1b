/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/doctor/python.h"

#include "tool/program/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SECONDS = 20 }; /* a script that hangs says nothing */

/* With -I and -S no file of the user's is run beside the script. */
static void become(const char *path, int to)
{
    int nothing = open("/dev/null", O_RDWR);

    signal(SIGALRM, SIG_DFL);
    alarm(CHILD_SECONDS);
    dup2(nothing, STDIN_FILENO);
    dup2(to, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execl(path, path, "-I", "-S", "-c", "import sys; print(sys.executable, end='')", (char *)NULL);
    _exit(1);
}

static size_t read_all(int from, char *text, size_t room)
{
    size_t length = 0;
    ssize_t got;

    while (length < room - 1 && (got = read(from, text + length, room - 1 - length)) != 0)
        if (got > 0)
            length += (size_t)got;
        else if (errno != EINTR)
            break;
    text[length] = '\0';
    return length;
}

bool python_find(const char *path, char found[PATH_MAX])
{
    char runner[PATH_MAX];
    int ends[2], status;
    pid_t child;

    if (strncmp(program_base_name(path), "python", strlen("python")) != 0 ||
        !program_find_runner(path, runner) || pipe2(ends, O_CLOEXEC) != 0)
        return false;
    (void)fflush(stdout);
    child = fork();
    if (child == 0)
        become(path, ends[1]);
    close(ends[1]);
    *found = '\0';
    if (child > 0)
        (void)read_all(ends[0], found, PATH_MAX);
    close(ends[0]);
    if (child > 0)
        (void)waitpid(child, &status, 0);
    return *found == '/' && access(found, X_OK) == 0;
}
