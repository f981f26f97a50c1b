/* SPDX-License-Identifier: Apache-2.0 */
/* How a random program ends where something is that never may be: with its seed, by which it runs
 * again.  PROGRAM is its name. */
#pragma once

#include <stdio.h>
#include <unistd.h>

extern unsigned long long seed;

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, PROGRAM ": seed %llu, %s:%d: ", seed, __FILE__, __LINE__);                 \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        _exit(1);                                                                                  \
    } while (0)

#define OK(call)                                                                                   \
    do {                                                                                           \
        int answer_ = (int)(call);                                                                 \
        if (answer_)                                                                               \
            FAIL("%s: %d", #call, answer_);                                                        \
    } while (0)
