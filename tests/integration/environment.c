/* SPDX-License-Identifier: Apache-2.0 */
/* What a program does to its environment before and after its first allocation.
 *
 *   environment set NAME=VALUE...      sets variables, then allocates
 *   environment unreadable [WAY...]    reading the environment is a crash from here on: it
 * allocates, frees and ends as WAY says
 *
 * WAY: refused (a request that no device can serve), forked (in a child), overwritten (the texts
 * that the process was started with are gone, as a program that changes its title leaves them). */
#include "../samples/sample.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 4 << 20 };

static bool has(char **words, const char *word)
{
    for (; *words; words++)
        if (strcmp(*words, word) == 0)
            return true;
    return false;
}

/* As another thread's setenv() may leave it for a moment: an entry that points nowhere. */
static void make_unreadable(bool overwrites)
{
    static char *entries[3];
    char *nowhere = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (nowhere == MAP_FAILED)
        exit(2);
    for (char **entry = environ; overwrites && *entry; entry++)
        memset(*entry, 'x', strlen(*entry));
    entries[0] = entries[1] = nowhere;
    environ = entries;
}

static void allocate(bool refused)
{
    CUdeviceptr blocks[2] = {0, 0};

    for (int i = 0; i < 2; i++)
        printf("alloc = %d\n", (int)cuMemAlloc(&blocks[i], BYTES));
    for (int i = 0; i < 2; i++)
        printf("free = %d\n", (int)cuMemFree(blocks[i]));
    if (refused)
        printf("refused = %d\n", (int)cuMemAlloc(&blocks[0], (size_t)1 << 45));
    (void)fflush(stdout);
}

static void start(void)
{
    CUcontext context;

    tzset(); /* libc looks for TZ when somebody asks for the local time first */
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}

static int set(char **words)
{
    for (; *words; words++)
        if (putenv(*words) != 0)
            return 2;
    start();
    allocate(false);
    return 0;
}

static int unreadable(char **words)
{
    int status;

    /* The device reads settings of its own when it starts. */
    if (!has(words, "forked"))
        start();
    else if (fork() > 0)
        return wait(&status) > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    else
        start();
    make_unreadable(has(words, "overwritten"));
    allocate(has(words, "refused"));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "set") == 0)
        return set(argv + 2);
    if (argc > 1 && strcmp(argv[1], "unreadable") == 0)
        return unreadable(argv + 2);
    return 2;
}
