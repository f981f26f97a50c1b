/* SPDX-License-Identifier: Apache-2.0 */
/* What is found between any two instructions.  (A thread that races with another one meets a gap of
 * a few instructions too seldom on a busy machine.)  meson.build leaves tests with it out for other
 * processors, and under ThreadSanitizer, which delivers signals late. */
#pragma once

#include <stdbool.h>

/* The processor's trap flag: with `on`, SIGTRAP comes after each instruction. */
static inline void step(bool on)
{
    if (on) /* beyond the red zone */
        __asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq;"
                         "lea 128(%%rsp), %%rsp" ::
                             : "memory", "cc");
    else
        __asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq;"
                         "lea 128(%%rsp), %%rsp" ::
                             : "memory", "cc");
}
