/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs while one kernel runs that ends only when the host says so: nothing that was freed
 * meanwhile is clean.  By decades of how many pairs there were before, and then as many again as
 * soon as the kernel has ended.  Allocations in which the library asked the driver for memory are
 * counted apart: the driver takes some tens of microseconds for that.  Each figure is said twice:
 * of all calls, and of those alone in whose pair the kernel of the host had no page to give, which
 * takes some hundreds of microseconds now and then where the host is a virtual machine. */
#include "bench.h"

#include "kernels.h"
#include "sample.h"

#include <cuda.h>
#include <dlfcn.h>
#include <rmmshim/rmmshim.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { LIVE = 64, SLOW_NS = 2000, AFTER = 100000, FIRST_DECADE = 1000 };

static const size_t mixed_bytes[] = {256, 4 << 10, 64 << 10};

/* ---- the kernel ---- */

struct until {
    CUmodule module;
    CUfunction function;
    cudaStream_t stream;
    _Atomic unsigned *flag;
};

static void launch(struct until *until)
{
    __typeof__(&cuLaunchKernel) launch_kernel = bench_driver_function("cuLaunchKernel");
    void *flag = until->flag;

    MUST(launch_kernel(until->function, 1, 1, 1, 1, 1, 1, 0, (CUstream)until->stream,
                       (void *[]){&flag}, NULL));
}

/* Ready to run at once: the driver loads a kernel late. */
static struct until until_open(void)
{
    __typeof__(&cuModuleLoadData) load = bench_driver_function("cuModuleLoadData");
    __typeof__(&cuModuleGetFunction) get = bench_driver_function("cuModuleGetFunction");
    struct until until;
    void *flag;

    MUST(load(&until.module, kernels_ptx));
    MUST(get(&until.function, until.module, "spin_until"));
    MUST(cudaStreamCreateWithFlags(&until.stream, cudaStreamNonBlocking));
    MUST(cudaHostAlloc(&flag, sizeof(*until.flag), cudaHostAllocDefault));
    until.flag = flag;
    *until.flag = 1;
    launch(&until);
    MUST(cudaStreamSynchronize(until.stream));
    *until.flag = 0;
    return until;
}

static void until_close(struct until *until)
{
    __typeof__(&cuModuleUnload) unload = bench_driver_function("cuModuleUnload");

    MUST(cudaStreamDestroy(until->stream));
    MUST(cudaFreeHost(until->flag));
    MUST(unload(until->module));
}

/* ---- samples ---- */

struct sample {
    uint32_t allocate_ns, free_ns, nothing_ns;
    bool grew, faulted;
};

struct run {
    const struct bench_memory *memory;
    size_t bytes; /* 0: mixed */
    struct sequence sequence;
    struct {
        void *at;
        size_t bytes;
    } live[LIVE];
    unsigned turn;
    __typeof__(&rmmshim_get_statistics) get_statistics;
    uint64_t driver_allocations;
};

static uint64_t driver_allocations(const struct run *run)
{
    struct rmmshim_statistics statistics = {.size = sizeof(statistics)};

    if (!run->get_statistics || run->get_statistics(0, &statistics) != 0)
        return 0;
    return statistics.driver_allocations;
}

static long page_faults(void)
{
    struct rusage usage;

    MUST(getrusage(RUSAGE_THREAD, &usage));
    return usage.ru_minflt;
}

static uint32_t clipped(uint64_t ns)
{
    return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static void take_sample(struct run *run, struct sample *sample)
{
    size_t bytes = run->bytes ? run->bytes : mixed_bytes[sequence_below(&run->sequence, 3)];
    unsigned i = run->turn++ % LIVE;
    uint64_t begin, freed, allocated, end;
    void *old = run->live[i].at;
    long faults = page_faults();

    begin = bench_now_ns();
    if (old)
        MUST(run->memory->deallocate(old, run->live[i].bytes, NULL));
    freed = bench_now_ns();
    MUST(run->memory->allocate(&run->live[i].at, bytes, NULL));
    allocated = bench_now_ns();
    end = bench_now_ns();
    run->live[i].bytes = bytes;
    *sample = (struct sample){clipped(allocated - freed), clipped(freed - begin),
                              clipped(end - allocated), false, page_faults() != faults};
    if (sample->allocate_ns >= SLOW_NS) {
        uint64_t now = driver_allocations(run);
        sample->grew = now != run->driver_allocations;
        run->driver_allocations = now;
    }
}

/* ---- figures ---- */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static uint32_t nth(const uint32_t *sorted, unsigned count, unsigned ten_thousandths)
{
    uint64_t index = (uint64_t)count * ten_thousandths / 10000;

    return count ? sorted[index < count ? index : count - 1] : 0;
}

enum operation { ALLOCATE, FREE, NOTHING };

static uint32_t time_of(const struct sample *sample, enum operation operation)
{
    return operation == ALLOCATE ? sample->allocate_ns
           : operation == FREE   ? sample->free_ns
                                 : sample->nothing_ns;
}

/* Those that count, sorted. */
static unsigned choose(const struct sample *samples, unsigned count, enum operation operation,
                       bool with_faults, uint32_t *ns)
{
    unsigned chosen = 0;

    for (unsigned i = 0; i < count; i++)
        if (!(samples[i].grew && operation == ALLOCATE) && (with_faults || !samples[i].faulted))
            ns[chosen++] = time_of(&samples[i], operation);
    qsort(ns, chosen, sizeof(ns[0]), ascending);
    return chosen;
}

static void print_grown(const struct sample *samples, unsigned count)
{
    uint32_t worst_ns = 0;
    unsigned grown = 0;

    for (unsigned i = 0; i < count; i++) {
        grown += samples[i].grew;
        if (samples[i].grew && samples[i].allocate_ns > worst_ns)
            worst_ns = samples[i].allocate_ns;
    }
    printf(" grown=%u worst_grown=%u", grown, worst_ns);
}

/* nothing: what the clock and the machine are good for. */
static void print_figures(const char *name, const struct sample *samples, unsigned count,
                          uint32_t *ns)
{
    static const char *const names[] = {"allocate", "free", "nothing"};

    for (enum operation operation = ALLOCATE; operation <= NOTHING; operation++) {
        unsigned chosen = choose(samples, count, operation, true, ns);
        printf("%s/%s %u ns count=%u p99=%u p9999=%u worst=%u", name, names[operation],
               nth(ns, chosen, 5000), chosen, nth(ns, chosen, 9900), nth(ns, chosen, 9999),
               nth(ns, chosen, 10000));
        chosen = choose(samples, count, operation, false, ns);
        printf(" unfaulted=%u unfaulted_p9999=%u unfaulted_worst=%u", chosen, nth(ns, chosen, 9999),
               nth(ns, chosen, 10000));
        if (operation == ALLOCATE)
            print_grown(samples, count);
        printf("\n");
    }
}

static void take_decades(struct run *run, const char *size, unsigned pairs, struct sample *samples,
                         uint32_t *ns)
{
    unsigned done = 0;
    char name[64];

    for (unsigned end = FIRST_DECADE; done < pairs; end *= 10) {
        unsigned count = (end < pairs ? end : pairs) - done;
        for (unsigned i = 0; i < count; i++)
            take_sample(run, &samples[i]);
        done += count;
        (void)snprintf(name, sizeof(name), "tails/%s/%u", size, done);
        print_figures(name, samples, count, ns);
    }
}

/* Touched, so that the program's own faults are not measured. */
static void *take_array(size_t bytes)
{
    void *array = malloc(bytes);

    CHECK(array);
    memset(array, 1, bytes);
    return array;
}

void bench_tails(const struct bench_memory *memory, size_t bytes, unsigned pairs)
{
    unsigned room = pairs > AFTER ? pairs : AFTER;
    struct sample *samples = take_array(room * sizeof(samples[0]));
    uint32_t *ns = take_array(room * sizeof(ns[0]));
    struct until until = until_open();
    struct run run = {.memory = memory, .bytes = bytes, .sequence = {1}};
    char size[32], name[64];

    *(void **)&run.get_statistics = dlsym(RTLD_DEFAULT, "rmmshim_get_statistics");
    (void)snprintf(size, sizeof(size), bytes ? "%zu" : "mixed", bytes);
    for (unsigned i = 0; i < 4 * LIVE; i++)
        take_sample(&run, &samples[0]);
    MUST(cudaDeviceSynchronize());
    run.driver_allocations = driver_allocations(&run);
    launch(&until);
    take_decades(&run, size, pairs, samples, ns);
    *until.flag = 1;
    MUST(cudaStreamSynchronize(until.stream));
    for (unsigned i = 0; i < AFTER; i++)
        take_sample(&run, &samples[i]);
    (void)snprintf(name, sizeof(name), "tails_after/%s/%u", size, pairs);
    print_figures(name, samples, AFTER, ns);
    for (unsigned i = 0; i < LIVE; i++)
        MUST(memory->deallocate(run.live[i].at, run.live[i].bytes, NULL));
    until_close(&until);
    free(ns);
    free(samples);
}
