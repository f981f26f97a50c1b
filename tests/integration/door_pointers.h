/* SPDX-License-Identifier: Apache-2.0 */
/* For a library whose calls of its runtime come from elsewhere: from code that it generates, as a
 * compiler at run time does, or from another library that is handed the function. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef DOOR_GENERATED

enum { CODE_BYTES = 4096 };

/* A function that calls another one with the arguments that it was given. */
#if defined(__x86_64__)
/* sub $8,%rsp; movabs $address,%rax; call *%rax; add $8,%rsp; ret */
static const unsigned char door_code[] = {0x48, 0x83, 0xec, 8,    0x48, 0xb8, 0,    0,    0, 0,   0,
                                          0,    0,    0,    0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
enum { ADDRESS_AT = 6 };
#elif defined(__aarch64__)
/* stp x29,x30,[sp,#-16]!; ldr x16,address; blr x16; ldp x29,x30,[sp],#16; ret; address */
static const uint32_t door_code[] = {0xa9bf7bfd, 0x580000b0, 0xd63f0200, 0xa8c17bfd,
                                     0xd65f03c0, 0,          0,          0};
enum { ADDRESS_AT = 24 };
#endif

static void *door_generate(void *function)
{
    unsigned char *code =
        mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (code == MAP_FAILED)
        abort();
    memcpy(code, door_code, sizeof(door_code));
    memcpy(code + ADDRESS_AT, &function, sizeof(function));
    if (mprotect(code, CODE_BYTES, PROT_READ | PROT_EXEC) != 0)
        abort();
    __builtin___clear_cache((char *)code, (char *)code + sizeof(door_code));
    return code;
}

#define DOOR_CALL(function, ...)                                                                   \
    __extension__({                                                                                \
        static __typeof__(&(function)) generated_;                                                 \
        if (!generated_)                                                                           \
            *(void **)&generated_ = door_generate((void *)(uintptr_t)(function));                  \
        generated_(__VA_ARGS__);                                                                   \
    })

#else

/* In a library without a runtime (door_other.c). */
typedef int door_other_function(void *function, void *address, size_t size_bytes, unsigned flags);
extern door_other_function door_other_call;

#define DOOR_CALL(function, ...) DOOR_OTHER((void *)(uintptr_t)(function), __VA_ARGS__, 0, 0, 0)
#define DOOR_OTHER(function, address, size_bytes, flags, ...)                                      \
    (cudaError_t) door_other_call(function, address, size_bytes, flags)

#endif

#define cudaMalloc(...)        DOOR_CALL(cudaMalloc, __VA_ARGS__)
#define cudaFree(...)          DOOR_CALL(cudaFree, __VA_ARGS__)
#define cudaMallocManaged(...) DOOR_CALL(cudaMallocManaged, __VA_ARGS__)
