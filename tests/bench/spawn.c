/* SPDX-License-Identifier: Apache-2.0 */
/* Time of a whole process, from its creation until it has ended, without and with libraries to
 * preload.  They take turns, so that what else happens on the machine falls on all alike.
 *
 *   spawn [--core N] COUNT LIBRARY[,LIBRARY...] PROGRAM ARGUMENTS...      a library `-` is none
 *
 * COUNT is how often, less where that would take more than 15 seconds.  Prints for each library
 * `spawn/NUMBER VALUE ns more=NS`: the median, and the median of how much longer it took than the
 * process of the same turn under the first.  Other variables are for all of them; what the
 * processes print goes nowhere.  Exit status: 1 when one of them fails, or prints to standard error
 * what the first does not. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIBRARIES_MAX = 8, COUNT_MAX = 10000, VARIABLES_MAX = 1000, ENOUGH = 5, SECONDS_MAX = 15 };

static int64_t samples_ns[LIBRARIES_MAX][COUNT_MAX];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t median(int64_t *numbers, unsigned count)
{
    qsort(numbers, count, sizeof(numbers[0]), ascending);
    return numbers[count / 2];
}

/* The caller's variables with this LD_PRELOAD instead of its own. */
static char **environment_for(const char *library)
{
    char **variables = calloc(VARIABLES_MAX, sizeof(variables[0]));
    unsigned count = 0;

    if (!variables)
        fail("spawn");
    for (char **at = environ; *at && count < VARIABLES_MAX - 2; at++)
        if (strncmp(*at, "LD_PRELOAD=", 11) != 0)
            variables[count++] = *at;
    if (strcmp(library, "-") != 0 && asprintf(&variables[count], "LD_PRELOAD=%s", library) < 0)
        fail("spawn");
    return variables;
}

static int64_t one(char **command, char **environment, const posix_spawn_file_actions_t *actions)
{
    int64_t begin = now_ns();
    int status = 0;
    pid_t process;

    errno = posix_spawnp(&process, command[0], actions, NULL, command, environment);
    if (errno)
        fail(command[0]);
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    begin = now_ns() - begin;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "spawn: %s ended with wait status %d\n", command[0], status);
        exit(1);
    }
    return begin;
}

static off_t said(int file)
{
    struct stat about;

    if (fstat(file, &about) != 0)
        fail("spawn");
    return about.st_size;
}

int main(int argc, char **argv)
{
    char **environments[LIBRARIES_MAX];
    unsigned libraries = 0, count, rounds = 0;
    posix_spawn_file_actions_t actions;
    off_t said_by_first = 0, before = 0;
    int first = 1, errors;
    int64_t end_ns;
    FILE *error_file = tmpfile();

    if (argc > 3 && strcmp(argv[1], "--core") == 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET((unsigned)atoi(argv[2]), &cores);
        if (sched_setaffinity(0, sizeof(cores), &cores) != 0)
            fail("--core");
        first = 3;
    }
    count = argc > first ? (unsigned)atoi(argv[first]) : 0;
    if (argc < first + 3 || count < 1 || count > COUNT_MAX) {
        fprintf(stderr,
                "usage: spawn [--core N] COUNT LIBRARY[,LIBRARY...] PROGRAM ARGUMENTS...\n");
        return 2;
    }
    for (char *rest = argv[first + 1], *name;
         libraries < LIBRARIES_MAX && (name = strtok_r(rest, ",", &rest));)
        environments[libraries++] = environment_for(name);
    if (!error_file)
        fail("tmpfile");
    errors = fileno(error_file);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
    end_ns = now_ns() + SECONDS_MAX * (int64_t)1000000000;
    for (unsigned i = 0; i <= count && (i <= ENOUGH || now_ns() < end_ns); i++) {
        rounds = i;
        for (unsigned j = 0; j < libraries; j++) {
            unsigned which = i % 2 ? libraries - 1 - j : j;
            int64_t took = one(argv + first + 2, environments[which], &actions);
            if (i) /* the first round fetches files */
                samples_ns[which][i - 1] = took;
            else if (which == 0)
                said_by_first = said(errors) - before;
            if (said(errors) - before != said_by_first) {
                fprintf(stderr, "spawn: library %u makes the program say something else\n", which);
                return 1;
            }
            before = said(errors);
        }
    }
    for (unsigned i = libraries; i-- > 0;) {
        int64_t more[COUNT_MAX];
        for (unsigned j = 0; j < rounds; j++)
            more[j] = samples_ns[i][j] - samples_ns[0][j];
        printf("spawn/%u %lld ns more=%lld count=%u\n", i, (long long)median(samples_ns[i], rounds),
               (long long)median(more, rounds), rounds);
    }
    return 0;
}
