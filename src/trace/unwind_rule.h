/* SPDX-License-Identifier: Apache-2.0 */
/* A rule for finding the caller of a frame: one step of an unwinder, as the compiler's tables
 * (.eh_frame, "call frame information" of DWARF) describe it for one return address. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rs_unwind_kind {
    RS_UNWIND_BY_SP, /* the caller's stack pointer is the frame's stack pointer plus the offset */
    RS_UNWIND_BY_FP, /* the caller's stack pointer is the frame pointer plus the offset */
    /* The caller's stack pointer is in memory, at the frame pointer plus the offset, as in a
     * function that aligns its frame. */
    RS_UNWIND_BY_SAVED,
    /* With the kinds below the walk ends. */
    RS_UNWIND_END,     /* the outermost frame */
    RS_UNWIND_SIGNAL,  /* the kernel's frame around a signal handler */
    RS_UNWIND_UNKNOWN, /* the caller cannot be found: the code has no tables, or rare expressions in
                          them, or copies stacks (greenlets) */
    RS_UNWIND_NOWHERE, /* neither an object nor a table has code there: perhaps no return address */
};

enum rs_unwind_fp {
    RS_UNWIND_FP_SAME,   /* the caller's frame pointer is the frame's */
    RS_UNWIND_FP_AT_CFA, /* the caller's frame pointer was saved at a distance from the caller's
                            stack pointer */
    RS_UNWIND_FP_AT_FP,  /* the caller's frame pointer was saved at a distance from the frame's own
                          */
};

/* The caller's stack pointer is what DWARF calls the canonical frame address, CFA.  The rule has
 * eight bytes, which are stored and loaded as one word. */
struct rs_unwind_rule {
#ifdef __x86_64__      /* a call puts the return address one word below CFA */
    int32_t cfa_bytes; /* the offset of the rule */
    int16_t fp_words;  /* the distance from CFA, or from the frame pointer, at which the caller's
                          frame pointer was saved */
    uint8_t kind, fp;
#else
    int64_t cfa_words : 22;
    int64_t fp_words : 18;
    int64_t return_words : 18; /* the distance from CFA at which the return address was saved */
    uint64_t kind : 4;
    uint64_t fp : 2;
#endif
};

_Static_assert(sizeof(struct rs_unwind_rule) == sizeof(uint64_t), "a rule is stored by one store");

static inline intptr_t rs_unwind_cfa_bytes(struct rs_unwind_rule rule)
{
#ifdef __x86_64__
    return rule.cfa_bytes;
#else
    return rule.cfa_words * (intptr_t)sizeof(uintptr_t);
#endif
}

static inline int rs_unwind_return_words(struct rs_unwind_rule rule)
{
#ifdef __x86_64__
    (void)rule;
    return -1;
#else
    return rule.return_words;
#endif
}

/* The type of the system's function _Unwind_Find_FDE, which finds the table entry of the function
 * that contains an address. It returns the entry, and fills in *bases, or returns NULL. */
struct rs_unwind_bases {
    void *text, *data;
    void *function; /* where the function begins */
};
typedef const void *rs_unwind_find(void *address, struct rs_unwind_bases *bases);

enum { RS_UNWIND_SIGNAL_BYTES = 9 }; /* length of the longest code that ends a signal handler */

/* Returns the rule for a frame that will continue at this return address. `find` is
 * _Unwind_Find_FDE. If is_readable is true, RS_UNWIND_SIGNAL_BYTES bytes may be read at the
 * address. */
struct rs_unwind_rule rs_unwind_rule_of(uintptr_t return_address, rs_unwind_find *find,
                                        bool is_readable);
