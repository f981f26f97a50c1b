/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one line for each behaviour of the CUDA driver that the project relies on. It runs on a
 * real driver and on the device in host memory; compare_facts.py compares the two. Sizes are small,
 * no device is reset but by its own process's primary context, and each group runs in a process of
 * its own, so that a crash costs its group only. Arguments: names of groups, default all.
 * DRIVER_FACTS_LIBRARY: the driver, default libcuda.so.1. */
#include "facts.h"

#include "../unit/until.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HOLD_NS = 100 * 1000 * 1000,
    POLLS = 1000, /* sleeps of a call that asks again and again */
    THREADS_MAX = 256,
    GROUP_SECONDS = 240,
};

static const char *group_name;
static unsigned *hold_flag; /* pinned: kernels wait for it */

void *facts_find(const char *name)
{
    static void *handle;
    if (!handle) {
        const char *library = getenv("DRIVER_FACTS_LIBRARY");
        handle = dlopen(library ? library : "libcuda.so.1", RTLD_NOW);
    }
    void *address = handle ? dlsym(handle, name) : NULL;
    if (!address) {
        facts_say(handle ? name : "driver", "missing");
        exit(0);
    }
    return address;
}

void facts_say(const char *name, const char *format, ...)
{
    va_list args;
    printf("%s.%s ", group_name, name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

void facts_need(int result, const char *what, int line)
{
    if (!result)
        return;
    facts_say("stopped", "%d at %s, line %d", result, what, line);
    exit(0);
}

CUcontext facts_begin(void)
{
    CUcontext ctx;
    NEED(CU(cuInit)(0));
    NEED(CU(cuDevicePrimaryCtxRetain)(&ctx, 0));
    NEED(CU(cuCtxSetCurrent)(ctx));
    return ctx;
}

/* clang-format off */
static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry fill32(.param .u64 words, .param .u64 count, .param .u32 value) {\n"
    ".reg .u64 %p, %n; .reg .u32 %v; .reg .pred %q;\n"
    "ld.param.u64 %p, [words]; ld.param.u64 %n, [count]; ld.param.u32 %v, [value];\n"
    "again: setp.eq.u64 %q, %n, 0; @%q bra done;\n"
    "st.global.u32 [%p], %v; add.u64 %p, %p, 4; sub.u64 %n, %n, 1; bra again;\n"
    "done: ret;\n}\n"
    ".visible .entry spin_until(.param .u64 flag) {\n"
    ".reg .u64 %p; .reg .u32 %v; .reg .pred %q;\n"
    "ld.param.u64 %p, [flag];\n"
    "again: ld.volatile.global.u32 %v, [%p]; setp.eq.u32 %q, %v, 0; @%q bra again;\n"
    "ret;\n}\n"
    ".visible .entry fault() {\n"
    ".reg .u64 %p; .reg .u32 %v;\n"
    "mov.u64 %p, 64; mov.u32 %v, 1; st.global.u32 [%p], %v;\n"
    "ret;\n}\n";
/* clang-format on */

/* A module belongs to a context: one for each that launches. */
static CUfunction kernel_in_current(const char *name)
{
    static struct {
        CUcontext ctx;
        CUmodule module;
    } loaded[16];
    CUcontext ctx = NULL;
    CUfunction function;
    unsigned at = 0;
    NEED(CU(cuCtxGetCurrent)(&ctx));
    while (at < 15 && loaded[at].ctx && loaded[at].ctx != ctx)
        at++;
    if (!loaded[at].ctx) {
        NEED(CU(cuModuleLoadData)(&loaded[at].module, ptx));
        loaded[at].ctx = ctx;
    }
    NEED(CU(cuModuleGetFunction)(&function, loaded[at].module, name));
    return function;
}

CUresult facts_launch(const char *kernel, CUstream stream, void **args)
{
    return CU(cuLaunchKernel)(kernel_in_current(kernel), 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

CUresult facts_fill(CUstream stream, CUdeviceptr words, size_t count, unsigned value)
{
    void *args[] = {&words, &count, &value};
    return facts_launch("fill32", stream, args);
}

void facts_hold(CUstream stream)
{
    if (!hold_flag) {
        void *memory;
        NEED(CU(cuMemHostAlloc)(&memory, 64, CU_MEMHOSTALLOC_PORTABLE));
        hold_flag = memory;
    }
    __atomic_store_n(hold_flag, 0, __ATOMIC_SEQ_CST);
    void *args[] = {&hold_flag};
    NEED(facts_launch("spin_until", stream, args));
}

void facts_release(void)
{
    __atomic_store_n(hold_flag, 1, __ATOMIC_SEQ_CST);
}

/* ---- does a call wait? ---- */

/* The thread that makes the call, which a helper looks at from beside. */
static struct {
    pid_t id;
    clockid_t cpu; /* the time that it ran */
    atomic_bool is_back;
} caller;
static atomic_bool is_released;

/* What the helper has seen. */
struct looks {
    uint64_t cpu_ns, asleep_since_ns;
    unsigned long first_sleeps, sleeps; /* the caller's number of sleeps so far */
    pid_t others[THREADS_MAX]; /* threads that were asleep at some time during the caller's sleep */
    unsigned other_count;
};

static uint64_t clock_of(clockid_t clock)
{
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool has_slept(const struct looks *looks, pid_t thread)
{
    for (unsigned i = 0; i < looks->other_count; i++) {
        if (looks->others[i] == thread)
            return true;
    }
    return false;
}

/* Has each other thread been asleep since the caller is, so that none of them is still at what the
 * caller would wait for a moment only? */
static bool others_have_slept(struct looks *looks)
{
    bool all = true;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    while (tasks && (task = readdir(tasks))) {
        pid_t thread = (pid_t)strtol(task->d_name, NULL, 10);
        if (thread <= 0 || thread == caller.id || thread == gettid() || has_slept(looks, thread))
            continue;
        if (looks->other_count < THREADS_MAX && is_asleep(thread, NULL))
            looks->others[looks->other_count++] = thread;
        else
            all = false;
    }
    if (tasks)
        closedir(tasks);
    return all;
}

/* The caller is stuck when it has slept through HOLD_NS, or ran for so long, or woke so often to
 * ask: on a busy machine that time passes without it, and then says nothing. */
static bool is_stuck(struct looks *looks)
{
    unsigned long sleeps = looks->sleeps;
    uint64_t now_ns = clock_of(CLOCK_MONOTONIC);
    if (!is_asleep(caller.id, &sleeps) || sleeps != looks->sleeps) {
        looks->sleeps = sleeps;
        looks->asleep_since_ns = now_ns;
        looks->other_count = 0;
    }
    if (clock_of(caller.cpu) - looks->cpu_ns >= HOLD_NS)
        return true;
    if (looks->sleeps - looks->first_sleeps >= POLLS)
        return true;
    return others_have_slept(looks) && now_ns - looks->asleep_since_ns >= HOLD_NS;
}

static void *release_late(void *unused)
{
    (void)unused;
    struct looks looks = {.cpu_ns = clock_of(caller.cpu),
                          .asleep_since_ns = clock_of(CLOCK_MONOTONIC)};
    is_asleep(caller.id, &looks.first_sleeps);
    looks.sleeps = looks.first_sleeps;
    while (!atomic_load(&caller.is_back) && !is_stuck(&looks))
        nanosleep(&(struct timespec){0, HOLD_NS / 50}, NULL);
    atomic_store(&is_released, true);
    facts_release();
    return NULL;
}

bool facts_waits(CUresult (*call)(void *argument), void *argument, CUresult *result)
{
    pthread_t helper;
    CUresult ignored;
    caller.id = gettid();
    if (pthread_getcpuclockid(pthread_self(), &caller.cpu))
        abort();
    atomic_store(&caller.is_back, false);
    atomic_store(&is_released, false);
    if (pthread_create(&helper, NULL, release_late, NULL))
        abort();
    *(result ? result : &ignored) = call(argument);
    bool waited = atomic_load(&is_released);
    atomic_store(&caller.is_back, true);
    pthread_join(helper, NULL);
    return waited;
}

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {
    {"uninitialised", facts_uninitialised},
    {"lookup", facts_lookup},
    {"device", facts_device},
    {"no_context", facts_no_context},
    {"alloc", facts_alloc},
    {"free", facts_free},
    {"managed", facts_managed},
    {"pinned", facts_pinned},
    {"pointer", facts_pointer},
    {"event", facts_event},
    {"order", facts_order},
    {"wait", facts_wait},
    {"capture", facts_capture},
    {"context", facts_context},
    {"pool", facts_pool},
    {"pools", facts_pools},
    {"footprint", facts_footprint},
    {"vmm", facts_vmm},
    {"ipc", facts_ipc},
    {"green", facts_green},
    {"peer", facts_peer},
    {"fault", facts_fault},
    {"host_function", facts_host_function},
};

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name))
            return true;
    }
    return argc < 2;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        int status = 0;
        group_name = groups[i].name;
        if (!is_wanted(group_name, argc, argv))
            continue;
        fflush(stdout);
        pid_t child = fork(); /* the parent never touches the driver */
        if (!child) {
            alarm(GROUP_SECONDS);
            groups[i].run();
            fflush(stdout);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 1;
        if (WIFSIGNALED(status))
            facts_say("stopped", "by signal %d", WTERMSIG(status));
    }
    return 0;
}
