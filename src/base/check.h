/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions about the library's own invariants, a few language helpers, and size arithmetic.
 *
 * Input and driver results are checked and answered, never asserted: this code runs in other
 * people's processes.  A failed assertion writes one line and aborts; release builds (NDEBUG)
 * contain no assertions, unless RS_KEEP_ASSERTS is defined. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(NDEBUG) && !defined(RS_KEEP_ASSERTS)
#define RS_ASSERT(condition) ((void)0)
#else
#define RS_ASSERT(condition)                                                                       \
    ((condition) ? (void)0 : rs_assert_failed(#condition, __FILE__, __LINE__))
#endif

/* RS_ASSERT_SLOW is for checks that walk whole structures, or that run in every allocation; it is
 * compiled only with -Dslow_asserts=true. */
#ifdef RS_SLOW_ASSERTS
#define RS_ASSERT_SLOW(condition) RS_ASSERT(condition)
#else
#define RS_ASSERT_SLOW(condition) ((void)0)
#endif

#define RS_LIKELY(condition)   __builtin_expect(!!(condition), 1)
#define RS_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
/* Functions that are always inlined.  The compiler alone would decide by the number of call sites,
 * and cannot know that these functions run in every allocation. */
#define RS_HOT_INLINE static inline __attribute__((always_inline))
/* Places the functions of the hot path side by side, on two pages instead of nine, apart from
 * seldom called ones.  That matters since between two of the program's calls other code evicts them
 * from the processor's first-level caches, and each call loads them again. */
#define RS_HOT __attribute__((hot))
/* Variables of the hot path that are seldom written share one cache line. */
#define RS_HOT_DATA __attribute__((section("rs_hot_data"), visibility("hidden")))
#define RS_COLD     __attribute__((cold, noinline))
/* Nonzero when a and b differ.  Conditions that nearly always all hold are or-ed together, so that
 * they need a single branch: after other code has run, the branch predictor has forgotten our
 * branches and mispredicts many of them. */
#define RS_DIFFER(a, b)        ((uintptr_t)(a) ^ (uintptr_t)(b))
#define RS_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define RS_CONTAINER_OF(pointer, type, member)                                                     \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))
/* For functions that a sanitizer's own start-up calls (it looks functions up with dlsym):
 * instrumented code must not run before the sanitizer is initialised. */
#define RS_BEFORE_SANITIZERS           __attribute__((no_sanitize("address", "thread", "undefined")))
#define RS_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#define RS_CACHE_LINE                  64

/* Declares a guard: a variable for which the function `end` is called when its block is left, also
 * by return or goto.  (The Linux kernel's guard() does the same.)  The line's number makes the
 * variable's name.  RS_MUTEX_GUARD and the other guards begin with this macro. */
#define RS_GUARD_NAME_OF(line) guard_of_line_##line
#define RS_GUARD_NAME(line)    RS_GUARD_NAME_OF(line)
#define RS_GUARD(type, end)    type RS_GUARD_NAME(__LINE__) __attribute__((cleanup(end), unused))

/* Writes the condition and its place to stderr, then aborts.  Called by RS_ASSERT. */
__attribute__((noreturn, cold)) void rs_assert_failed(const char *condition, const char *file,
                                                      int line);

/* ---- size arithmetic: overflow is reported to the caller ---- */

static inline bool rs_is_power_of_two(size_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Rounds value up to a multiple of unit (a power of two).  Returns false when the result would
 * exceed SIZE_MAX; *rounded is then undefined. */
static inline bool rs_round_up(size_t value, size_t unit, size_t *rounded)
{
    RS_ASSERT_SLOW(rs_is_power_of_two(unit));
    if (__builtin_add_overflow(value, unit - 1, rounded))
        return false;
    *rounded &= ~(unit - 1);
    return true;
}

/* Rounds value down to a multiple of unit (a power of two). */
static inline size_t rs_round_down(size_t value, size_t unit)
{
    RS_ASSERT_SLOW(rs_is_power_of_two(unit));
    return value & ~(unit - 1);
}

static inline size_t rs_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t rs_max(size_t a, size_t b)
{
    return a > b ? a : b;
}
