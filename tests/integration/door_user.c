/* SPDX-License-Identifier: Apache-2.0 */
/* Code that calls the CUDA runtime: a program of its own (DOOR_PROGRAM), or a library that another
 * program loads.  It has whatever runtime it was linked with. */
#include "door_user.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DOOR_BY_HANDLE
#include "door_by_handle.h"
#else
#define door_open_runtime() ((void)0)
#endif
#ifdef DOOR_POINTERS
#include "door_pointers.h"
#endif

enum { PAIRS = 200 };

int door_use(const char *name)
{
    unsigned wrong = 0;
    void *blocks[8] = {NULL}, *p = NULL;

    for (int i = 0; i < PAIRS; i++) {
        void **block = &blocks[i % 8];
        if (*block)
            wrong += cudaFree(*block) != cudaSuccess;
        *block = NULL;
        wrong += cudaMalloc(block, 1000 + (size_t)i * 100) != cudaSuccess;
        wrong += !*block || (uintptr_t)*block % 512 != 0;
    }
    for (int i = 0; i < 8; i++)
        wrong += cudaFree(blocks[i]) != cudaSuccess;
    printf("%s: %d pairs, %u wrong, last error %d\n", name, PAIRS, wrong, (int)cudaGetLastError());

    printf("%s: malloc of 0 = %d", name, (int)cudaMalloc(&p, 0));
    printf(" (%s), to nowhere = %d", p ? "a pointer" : "null", (int)cudaMalloc(NULL, 100));
    printf(", last error %d then", (int)cudaGetLastError());
    printf(" %d\n", (int)cudaGetLastError());
    printf("%s: malloc of too much = %d", name, (int)cudaMalloc(&p, (size_t)1 << 60));
    printf(", last error %d then", (int)cudaGetLastError());
    printf(" %d\n", (int)cudaGetLastError());
    printf("%s: free of NULL = %d, of an unknown pointer = %d", name, (int)cudaFree(NULL),
           (int)cudaFree((void *)0x1234000));
    printf(", last error %d then", (int)cudaGetLastError());
    printf(" %d\n", (int)cudaGetLastError());
    wrong += cudaMalloc(&p, 5000) != cudaSuccess;
    printf("%s: free of an interior pointer = %d", name, (int)cudaFree((char *)p + 512));
    printf(", free = %d", (int)cudaFree(p));
    printf(", again = %d", (int)cudaFree(p));
    printf(", last error %d\n", (int)cudaGetLastError());
    wrong += cudaMallocManaged(&p, 4096, cudaMemAttachGlobal) != cudaSuccess;
    memset(p, 1, 4096);
    printf("%s: managed, free = %d, last error %d\n", name, (int)cudaFree(p),
           (int)cudaGetLastError());
    printf("%s: managed of too much = %d", name,
           (int)cudaMallocManaged(&p, (size_t)1 << 60, cudaMemAttachGlobal));
    printf(", last error %d\n", (int)cudaGetLastError());
    return wrong != 0;
}

int door_fail(const char *name)
{
    void *p = NULL;

    printf("%s: malloc of too much = %d\n", name, (int)cudaMalloc(&p, (size_t)1 << 60));
    return 0;
}

int door_last_error(const char *name)
{
    printf("%s: last error %d then", name, (int)cudaGetLastError());
    printf(" %d\n", (int)cudaGetLastError());
    return 0;
}

#ifndef DOOR_PROGRAM /* for libraries alone */

int door_devices(const char *name)
{
    enum { DEVICES = 2, ROUNDS = 20 };
    unsigned wrong = 0;

    for (int round = 0; round < ROUNDS; round++) {
        void *blocks[DEVICES];
        struct cudaPointerAttributes attributes[DEVICES];
        for (int device = 0; device < DEVICES; device++) {
            wrong += cudaSetDevice(device) != cudaSuccess;
            wrong += cudaMalloc(&blocks[device], 10000) != cudaSuccess;
        }
        for (int device = 0; device < DEVICES; device++) {
            wrong += cudaPointerGetAttributes(&attributes[device], blocks[device]) != cudaSuccess;
            wrong += attributes[device].device != device;
            wrong += cudaSetDevice(1 - device) != cudaSuccess;
            wrong += cudaFree(blocks[device]) != cudaSuccess;
        }
        wrong += cudaFree(blocks[0]) != cudaErrorInvalidValue;
        wrong += cudaGetLastError() != cudaErrorInvalidValue;
    }
    wrong += cudaSetDevice(0) != cudaSuccess;
    printf("%s: %d devices, %u wrong, last error %d\n", name, DEVICES, wrong,
           (int)cudaGetLastError());
    return wrong != 0;
}

enum { KEPT = 4 };
static void *kept[KEPT];

int door_keep(const char *name)
{
    unsigned wrong = 0;

    for (int i = 0; i < KEPT; i++)
        wrong += !kept[i] && cudaMalloc(&kept[i], 30000) != cudaSuccess;
    printf("%s: keeps %d, %u wrong\n", name, KEPT, wrong);
    return wrong != 0;
}

/* The runtime may be gone by now (4), or not yet (0). */
__attribute__((destructor)) static void free_kept(void)
{
    for (int i = 0; i < KEPT; i++) {
        int freed = kept[i] ? (int)cudaFree(kept[i]) : 0;
        if (freed != 0 && freed != cudaErrorCudartUnloading)
            printf("a library's last free: %d\n", freed);
    }
}

void *door_make(void)
{
    void *block = NULL;

    return cudaMalloc(&block, 20000) == cudaSuccess ? block : NULL;
}

int door_free(const char *name, void *block)
{
    printf("%s: free of another's = %d,", name, (int)cudaFree(block));
    printf(" again %d, last error %d\n", (int)cudaFree(block), (int)cudaGetLastError());
    return 0;
}

#else
/* What an interposer keeps of 64 MiB (DOOR_KEEPS) leaves room for this only when it is given back.
 */
static int use_kept(void)
{
    void *first = NULL, *second = NULL;
    int wrong = cudaMalloc(&first, 1000) != cudaSuccess;

    printf("program: malloc of what is kept = %d\n", (int)cudaMalloc(&second, 40 << 20));
    return wrong || cudaFree(second) != cudaSuccess || cudaFree(first) != cudaSuccess;
}

int main(int argc, char **argv)
{
    door_open_runtime();
    if (argc > 1 && strcmp(argv[1], "open") == 0)
        return 0;
    if (argc > 1 && strcmp(argv[1], "kept") == 0)
        return use_kept();
    /* Before anything has loaded the driver. */
    if (argc > 1 && strcmp(argv[1], "wrong") == 0)
        printf("program: first a free of an unknown pointer = %d\n",
               (int)cudaFree((void *)0x1234000));
    return door_use("program");
}
#endif
