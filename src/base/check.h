/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions about our own promises, and a few language helpers.
 *
 * Input and driver results are checked and answered, never asserted: this code lives in other
 * people's processes.  A failed assertion writes one line and aborts; release builds have none. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(NDEBUG) && !defined(RS_KEEP_ASSERTS)
#define RS_ASSERT(condition) ((void)0)
#else
#define RS_ASSERT(condition)                                                                       \
    ((condition) ? (void)0 : rs_assert_failed(#condition, __FILE__, __LINE__))
#endif

/* Walks whole structures; only with -Dslow_asserts=true. */
#ifdef RS_SLOW_ASSERTS
#define RS_ASSERT_SLOW(condition) RS_ASSERT(condition)
#else
#define RS_ASSERT_SLOW(condition) ((void)0)
#endif

#define RS_LIKELY(condition)   __builtin_expect(!!(condition), 1)
#define RS_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
/* For the path of every allocation: the compiler counts uses, not how often they run. */
#define RS_HOT_INLINE static inline __attribute__((always_inline))
/* Functions of that path lie side by side, on two pages instead of nine, away from what is seldom
 * called: between a program's calls others have used the processor's first caches. */
#define RS_HOT __attribute__((hot))
/* Variables of that path that are seldom written lie in one cache line. */
#define RS_HOT_DATA __attribute__((section("rs_hot_data"), visibility("hidden")))
#define RS_COLD     __attribute__((cold, noinline))
/* Differences of which none is usual, or-ed together: one branch instead of several.  After other
 * code has run the processor has forgotten its branches, and guesses many of them wrong. */
#define RS_DIFFER(a, b)        ((uintptr_t)(a) ^ (uintptr_t)(b))
#define RS_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define RS_CONTAINER_OF(pointer, type, member)                                                     \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))
/* For what a sanitizer's own start calls (it looks functions up with dlsym): nothing may be watched
 * before it is ready. */
#define RS_BEFORE_SANITIZERS           __attribute__((no_sanitize("address", "thread", "undefined")))
#define RS_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#define RS_CACHE_LINE                  64

__attribute__((noreturn, cold)) void rs_assert_failed(const char *condition, const char *file,
                                                      int line);
