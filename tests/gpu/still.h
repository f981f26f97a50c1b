/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a program with status 3, and a line that says which, when one of its threads stands still
 * for two minutes. */
#pragma once

#include "sample.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

enum { STILL_S = 120, STILL_THREADS_MAX = 32 };

static struct progress {
    atomic_ulong steps;
    atomic_bool is_done;
} progress[STILL_THREADS_MAX];

struct still_watch {
    const char *program;
    unsigned count; /* of threads, each with its row of progress */
};

/* A poll once a second: what hangs tells nobody. */
static void *still_watch(void *data)
{
    const struct still_watch *watch = data;
    unsigned long before[STILL_THREADS_MAX] = {0};
    unsigned still_s[STILL_THREADS_MAX] = {0};

    for (;;) {
        sleep(1);
        for (unsigned i = 0; i < watch->count; i++) {
            bool moved = progress[i].steps != before[i] || progress[i].is_done;
            still_s[i] = moved ? 0 : still_s[i] + 1;
            before[i] = progress[i].steps;
            if (still_s[i] < STILL_S)
                continue;
            fprintf(stderr, "%s: thread %u stands still\n", watch->program, i);
            _exit(3);
        }
    }
    return NULL;
}

/* Once in a program. */
static void still_watch_start(const char *program, unsigned count)
{
    static struct still_watch watch;
    pthread_t watcher;

    CHECK(count <= STILL_THREADS_MAX);
    watch = (struct still_watch){program, count};
    CHECK(pthread_create(&watcher, NULL, still_watch, &watch) == 0);
}
