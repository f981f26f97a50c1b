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
    RS_UNWIND_END,     /* the outermost frame, or code without tables */
    RS_UNWIND_UNKNOWN, /* the frame needs the system's unwinder: a signal's, or a rare expression */
};

enum rs_unwind_fp {
    RS_UNWIND_FP_SAME,   /* the caller's frame pointer is the frame's */
    RS_UNWIND_FP_AT_CFA, /* it was saved, at a distance from the caller's stack pointer */
    RS_UNWIND_FP_AT_FP,  /* or from the frame pointer */
};

/* The caller's stack pointer is what DWARF calls the canonical frame address, CFA. */
struct rs_unwind_rule {
    int32_t cfa_bytes : 24;
    uint32_t kind : 4;
    uint32_t fp : 4;
    int16_t return_words; /* the return address lies at CFA plus so many words */
    int16_t fp_words;
};

_Static_assert(sizeof(struct rs_unwind_rule) == sizeof(uint64_t), "a rule is stored by one store");

/* Finds the description of the function that an address lies in, as the system's unwinder does:
 * _Unwind_Find_FDE. */
struct rs_unwind_bases {
    void *text, *data;
    void *function; /* where the function begins */
};
typedef const void *rs_unwind_find(void *address, struct rs_unwind_bases *bases);

/* Returns the rule for a frame that goes on at this return address. */
struct rs_unwind_rule rs_unwind_rule_of(uintptr_t return_address, rs_unwind_find *find);
