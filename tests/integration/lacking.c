/* SPDX-License-Identifier: Apache-2.0 */
/* What the library's exports answer where the driver does not have the function: the dynamic linker
 * binds the name to the export, whether a driver has it or not.
 *
 *   lacking        calls each export with arguments of 0
 *   lacking each   the same, each in a process whose driver lacks that function alone
 *
 * Prints each export's name and what it answered. */
#include "driver/cuda.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where the caller leaves arguments of 8 bytes the callee finds all that it has, and 0 in each. */
typedef CUresult any_call(unsigned long long, unsigned long long, unsigned long long,
                          unsigned long long, unsigned long long, unsigned long long,
                          unsigned long long, unsigned long long, unsigned long long,
                          unsigned long long, unsigned long long, unsigned long long,
                          unsigned long long, unsigned long long);

/* A look-up finds nothing where the driver has nothing, so the dynamic linker must bind them. */
#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    extern __typeof__(symbol) symbol __attribute__((weak));
#include "driver/entry_points.def"

static const struct {
    const char *symbol;
    void (*function)(void);
} exports[] = {
#define HOOK(symbol, name, since, until, stream, group, summary) {#symbol, (void (*)(void))symbol},
#include "driver/entry_points.def"
};

static void answer(const char *symbol, any_call *function)
{
    printf("%s %d\n", symbol, (int)function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    fflush(stdout);
}

/* The driver is loaded by the first call, and reads then what it withholds. */
static void answer_without(const char *symbol, any_call *function)
{
    pid_t child = fork();
    int status = 1;

    if (child == 0) {
        setenv("HOSTCUDA_WITHHOLD", symbol, 1);
        answer(symbol, function);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        printf("%s ends its process with %d\n", symbol, status);
}

int main(int argc, char **argv)
{
    bool each = argc > 1 && !strcmp(argv[1], "each");

    for (size_t i = 0; i < sizeof(exports) / sizeof(exports[0]); i++)
        if (exports[i].function)
            (each ? answer_without : answer)(exports[i].symbol, (any_call *)exports[i].function);
    return 0;
}
