/* SPDX-License-Identifier: Apache-2.0 */
/* How the caller of a frame is found: one step of an unwinder, as the compiler's tables (.eh_frame,
 * "call frame information" of DWARF) describe it for one return address. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rs_unwind_kind {
    RS_UNWIND_BY_SP, /* the caller's stack pointer is the frame's, plus the offset */
    RS_UNWIND_BY_FP, /* it is the frame pointer plus the offset */
    /* It lies in memory at the frame pointer plus the offset: a function that aligns its frame. */
    RS_UNWIND_BY_SAVED,
    /* With the others no step goes on. */
    RS_UNWIND_END,     /* the outermost frame */
    RS_UNWIND_SIGNAL,  /* the kernel's, around a signal's handler */
    RS_UNWIND_UNKNOWN, /* code without tables, or with a rare expression in them */
    RS_UNWIND_NOWHERE, /* no code: not a return address */
};

enum rs_unwind_fp {
    RS_UNWIND_FP_SAME,   /* the caller's frame pointer is the frame's */
    RS_UNWIND_FP_AT_CFA, /* it was saved, at a distance from the caller's stack pointer */
    RS_UNWIND_FP_AT_FP,  /* or from the frame pointer */
};

/* The caller's stack pointer is what DWARF calls the canonical frame address, CFA.  Eight bytes,
 * which are stored and loaded as one. */
struct rs_unwind_rule {
#ifdef __x86_64__      /* a call puts the return address one word below CFA */
    int32_t cfa_bytes; /* the offset */
    int16_t fp_words;  /* how far from CFA, or the frame pointer, that of the caller was saved */
    uint8_t kind, fp;
#else
    int64_t cfa_words : 22;
    int64_t fp_words : 18;
    int64_t return_words : 18; /* how far from CFA the return address was saved */
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

/* Finds the description of the function that an address lies in, as the system's unwinder does:
 * _Unwind_Find_FDE. */
struct rs_unwind_bases {
    void *text, *data;
    void *function; /* where the function begins */
};
typedef const void *rs_unwind_find(void *address, struct rs_unwind_bases *bases);

enum { RS_UNWIND_SIGNAL_BYTES = 9 }; /* of the code that returns from a handler, at most */

/* Returns the rule for a frame that goes on at this return address.  is_readable: so many bytes of
 * code may be read there. */
struct rs_unwind_rule rs_unwind_rule_of(uintptr_t return_address, rs_unwind_find *find,
                                        bool is_readable);
