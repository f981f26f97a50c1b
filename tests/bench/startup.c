/* SPDX-License-Identifier: Apache-2.0 */
/* A program's first CUDA calls: how long each takes and, on the device in host memory, how many
 * calls of the driver it makes.
 *
 *   startup [EXPORTS]    EXPORTS: the list of that driver's functions (tests/hostcuda/exports.txt)
 *
 * Prints `startup/STEP VALUE ns` and, with a list, `startup/STEP COUNT calls`; the steps are init
 * (the runtime and the context), first (the first allocation), second, and free. */
#include "bench.h"

#include "sample.h"

#include <dlfcn.h>

enum { BYTES = 1 << 20, NAMES_MAX = 2048, NAME_MAX_LENGTH = 128 };

static char names[NAMES_MAX][NAME_MAX_LENGTH];
static unsigned name_count;

static void read_names(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256], name[NAME_MAX_LENGTH];

    CHECK(file);
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, " %127[A-Za-z0-9_]", name) == 1 && name_count < NAMES_MAX)
            snprintf(names[name_count++], NAME_MAX_LENGTH, "%s", name);
    fclose(file);
    CHECK(name_count && name_count < NAMES_MAX);
}

/* All calls so far; none where the driver does not count. */
static unsigned long long calls(void)
{
    static unsigned long long (*count)(const char *);
    unsigned long long sum = 0;

    if (!count && name_count) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (driver)
            *(void **)&count = dlsym(driver, "hostcuda_call_count");
        CHECK(count);
    }
    for (unsigned i = 0; count && i < name_count; i++)
        sum += count(names[i]);
    return sum;
}

static uint64_t begin_ns;
static unsigned long long begin_calls;

static void begin(void)
{
    begin_ns = bench_now_ns();
}

static void report(const char *step)
{
    uint64_t took_ns = bench_now_ns() - begin_ns;
    unsigned long long now;

    printf("startup/%s %llu ns\n", step, (unsigned long long)took_ns);
    if (!name_count)
        return;
    now = calls();
    printf("startup/%s %llu calls\n", step, now - begin_calls);
    begin_calls = now;
}

int main(int argc, char **argv)
{
    void *blocks[2];

    if (argc > 2) {
        fprintf(stderr, "usage: startup [EXPORTS]\n");
        return 2;
    }
    if (argc == 2)
        read_names(argv[1]);
    begin();
    MUST(cudaFree(NULL));
    report("init");
    begin();
    MUST(cudaMalloc(&blocks[0], BYTES));
    report("first");
    begin();
    MUST(cudaMalloc(&blocks[1], BYTES));
    report("second");
    begin();
    MUST(cudaFree(blocks[1]));
    report("free");
    MUST(cudaFree(blocks[0]));
    return 0;
}
