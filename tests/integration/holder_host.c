/* SPDX-License-Identifier: Apache-2.0 */
/* A program that loads libraries which ask for memory (holder_library.c).  Steps in the order of
 * the arguments:
 *
 *   hold LIBRARY HOW KIB     the library asks, as HOW says; "generated" for LIBRARY: code that this
 *                            program makes asks
 *   free LIBRARY             the library frees the latest block
 *   unload LIBRARY
 *   ask MIB                  the program itself asks the driver; prints the result
 *   where LIBRARY            prints where its function lies */
#include "../samples/sample.h"

#include <cuda.h>
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS_MAX = 64, CODE_BYTES = 4096 };

static void *blocks[BLOCKS_MAX];
static unsigned block_count;

static void *find(const char *library, const char *function)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL); /* never closed but by "unload" */

    if (!handle)
        printf("%s\n", dlerror());
    CHECK(handle);
    return dlsym(handle, function);
}

static void unload(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);

    CHECK(handle);
    while (handle) {
        dlclose(handle);
        handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
        if (handle)
            dlclose(handle);
    }
}

/* Calls the third argument with the first two. */
#ifdef __x86_64__
static const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd2,
                                     0x48, 0x83, 0xc4, 0x08, 0xc3};
#else
static const unsigned char code[] = {0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0x40, 0x00,
                                     0x3f, 0xd6, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6};
#endif

typedef CUresult allocate(CUdeviceptr *address, size_t bytes);

/* The driver's function, or the runtime's ("malloc"), which has the same type to the machine. */
static allocate *function_of(const char *how)
{
    allocate *found = cuMemAlloc;

    if (strcmp(how, "malloc") == 0)
        *(void **)&found = dlsym(RTLD_DEFAULT, "cudaMalloc");
    CHECK(found);
    return found;
}

static void *hold_by_generated_code(const char *how, size_t bytes)
{
    CUresult (*call)(CUdeviceptr *, size_t, allocate *);
    CUdeviceptr address = 0;
    void *at = mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(at != MAP_FAILED);
    memcpy(at, code, sizeof(code));
    CHECK(mprotect(at, CODE_BYTES, PROT_READ | PROT_EXEC) == 0);
    __builtin___clear_cache(at, (char *)at + CODE_BYTES);
    memcpy(&call, &at, sizeof(call));
    CHECK(call(&address, bytes, function_of(how)) == CUDA_SUCCESS);
    return (void *)(uintptr_t)address;
}

static void hold(const char *library, const char *how, size_t bytes)
{
    void *(*ask)(const char *, size_t);

    CHECK(block_count < BLOCKS_MAX);
    if (strcmp(library, "generated") == 0) {
        blocks[block_count] = hold_by_generated_code(how, bytes);
    } else {
        *(void **)&ask = find(library, "hold");
        blocks[block_count] = ask(how, bytes);
    }
    CHECK(blocks[block_count++]);
}

static void release(const char *library)
{
    int (*free_block)(void *);

    *(void **)&free_block = find(library, "release");
    CHECK(block_count > 0 && free_block(blocks[--block_count]) == 0);
}

static void ask(size_t bytes)
{
    CUdeviceptr address;

    printf("%d\n", (int)cuMemAlloc(&address, bytes));
}

int main(int argc, char **argv)
{
    CUcontext context;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (char **at = argv + 1; at < argv + argc; at++) {
        if (strcmp(*at, "hold") == 0) {
            hold(at[1], at[2], strtoul(at[3], NULL, 10) << 10);
            at += 3;
        } else if (strcmp(*at, "free") == 0) {
            release(*++at);
        } else if (strcmp(*at, "unload") == 0) {
            unload(*++at);
        } else if (strcmp(*at, "ask") == 0) {
            ask(strtoul(*++at, NULL, 10) << 20);
        } else {
            CHECK(strcmp(*at, "where") == 0);
            printf("%p\n", find(*++at, "hold"));
        }
    }
    return 0;
}
