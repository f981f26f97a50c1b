/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for what must come, without a word about how long it takes. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

/* A minute of naps. They are counted, as some tests lead the clock. */
enum { UNTIL_NAP_NS = 100 * 1000, UNTIL_NAPS_MAX = 60 * 10000 };

/* False, at once, after the last nap. */
static inline bool until_nap(unsigned *naps)
{
    if (*naps >= UNTIL_NAPS_MAX)
        return false;
    ++*naps;
    nanosleep(&(struct timespec){.tv_nsec = UNTIL_NAP_NS}, NULL);
    return true;
}

/* Asks until the condition holds, for a minute at least; the value is its last answer. */
#define UNTIL(condition)                                                                           \
    __extension__({                                                                                \
        unsigned until_naps_ = 0;                                                                  \
        bool until_so_;                                                                            \
        while (!(until_so_ = (condition)) && until_nap(&until_naps_))                              \
            ;                                                                                      \
        until_so_;                                                                                 \
    })

/* Whether a thread of this process sleeps, and how often it has gone to sleep of its own accord.
 * False: it runs, or would if it were given a processor or its page were read. */
static inline bool is_asleep(pid_t id, unsigned long *sleeps)
{
    static const char count[] = "voluntary_ctxt_switches:";
    char path[64], line[128], state = 'R';
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)id);
    file = fopen(path, "r");
    if (!file)
        return true; /* it has ended */
    while (fgets(line, sizeof(line), file)) {
        if (!strncmp(line, "State:", 6))
            state = line[7];
        if (sleeps && !strncmp(line, count, sizeof(count) - 1))
            *sleeps = strtoul(line + sizeof(count), NULL, 10);
    }
    fclose(file);
    return state == 'S';
}
