/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before the library under test, makes a program of one thread the same in every run:
 * time passes only by what the thread does, and the device of tests/hostcuda
 * (HOSTCUDA_SCHEDULE=stepped) works only while that thread waits, naps or writes a line of its log.
 *
 * The log, ORACLE_LOG, has a line for each call whose answer the program tells by oracle_note: what
 * it was, then how much device memory was held after it and how many driver calls there had been.
 * At the end come the most that was held, and the number of calls of each driver function. */
#include "hostcuda.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ORACLE_API __attribute__((visibility("default")))
#define SECOND_NS  1000000000ull

enum { LOOK_NS = 200, YIELD_NS = 2000, NOTE_NS = 10000, OPERATION_NS = 5000, NOTE_OPERATIONS = 12 };

ORACLE_API int clock_gettime(clockid_t clock, struct timespec *now);
ORACLE_API int nanosleep(const struct timespec *wanted, struct timespec *left);
ORACLE_API int sched_yield(void);
ORACLE_API int usleep(useconds_t microseconds);
ORACLE_API void oracle_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static _Atomic uint64_t now_ns = 1000 * SECOND_NS;
static uint64_t random_state = 1;
static bool is_stepping; /* what a kernel sleeps or looks is time, and moves nothing else */
static FILE *file;

static void step(uint64_t operations)
{
    if (is_stepping)
        return;
    is_stepping = true;
    while (operations-- > 0 && hostcuda_step(NULL))
        ;
    is_stepping = false;
}

static void pass(uint64_t ns)
{
    now_ns += ns;
    step(1 + ns / OPERATION_NS);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    uint64_t ns = atomic_fetch_add(&now_ns, LOOK_NS);

    (void)clock;
    *now = (struct timespec){(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    return 0;
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    pass((uint64_t)wanted->tv_sec * SECOND_NS + (uint64_t)wanted->tv_nsec);
    return 0;
}

int sched_yield(void)
{
    pass(YIELD_NS);
    return 0;
}

int usleep(useconds_t microseconds)
{
    pass(microseconds * 1000ull);
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ORACLE_LOG");

    file = path ? fopen(path, "w") : NULL;
    if (file)
        setvbuf(file, NULL, _IOLBF, 0); /* a program that fails ends by _exit */
}

/* The device does a random part of what waits, so that frees of the program come while it is
 * behind. */
void oracle_note(const char *format, ...)
{
    va_list arguments;

    if (file) {
        va_start(arguments, format);
        vfprintf(file, format, arguments);
        va_end(arguments);
        fprintf(file, "\t%zu\t%llu\n", hostcuda_used_bytes(0), hostcuda_all_calls(NULL));
    }
    now_ns += NOTE_NS;
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    step((random_state >> 33) % NOTE_OPERATIONS);
}

__attribute__((destructor)) static void end(void)
{
    if (!file)
        return;
    fprintf(file, "peak %zu\n", hostcuda_peak_bytes(0));
    (void)hostcuda_all_calls(file);
    fclose(file);
}
