/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that asks for memory while another one reads the library's settings.  A real-time thread
 * on one processor with an ordinary one must sleep now and then, since yielding does not leave the
 * processor to that one.  So the program stands in for the calls by which a thread waits, and the
 * settings are not read to their end before the other thread has slept. */
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAPS = 3, YIELDS_MAX = 100, LOOK_NS = 1000 * 1000, LOOKS_MAX = 120 * 1000 };

static __thread bool waits;
static atomic_bool is_reading, is_over;
static atomic_uint naps, yields;

/* By a system call, as the program's own nanosleep is below. */
static void look_later(void)
{
    static atomic_uint looks;

    if (atomic_fetch_add(&looks, 1) > LOOKS_MAX) {
        printf("nothing happens\n");
        exit(1);
    }
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

int sched_yield(void)
{
    if (waits)
        atomic_fetch_add(&yields, 1);
    return (int)syscall(SYS_sched_yield);
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (waits)
        atomic_fetch_add(&naps, 1);
    return (int)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, time, left);
}

/* What the library asks while it reads its settings. */
char *getcwd(char *text, size_t bytes)
{
    char *(*real)(char *, size_t);
    void *symbol = dlsym(RTLD_NEXT, "getcwd");

    memcpy(&real, &symbol, sizeof(real));
    atomic_store(&is_reading, true);
    while (atomic_load(&naps) < NAPS && atomic_load(&yields) <= YIELDS_MAX)
        look_later();
    return real(text, bytes);
}

static void *ask_meanwhile(void *data)
{
    CUdeviceptr address;

    while (!atomic_load(&is_reading) && !atomic_load(&is_over))
        look_later();
    waits = true;
    (void)cuMemAlloc(&address, 1000); /* this thread has no context */
    return data;
}

int main(void)
{
    CUcontext context;
    CUdevice device;
    CUdeviceptr address;
    pthread_t thread;

    if (pthread_create(&thread, NULL, ask_meanwhile, NULL) != 0 || cuInit(0) ||
        cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context) || cuMemAlloc(&address, 1000))
        return 1;
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    printf("%s\n", atomic_load(&yields) > YIELDS_MAX ? "yields without end"
                   : atomic_load(&is_reading)        ? "naps"
                                                     : "does not wait");
    return 0;
}
