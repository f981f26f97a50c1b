/* SPDX-License-Identifier: Apache-2.0 */
/* Which stack is best for a wish, and why, in a sentence. */
#pragma once

#include "tool/tune/measure.h"

enum { TUNE_REASON_BYTES = 768 };

struct tune_choice {
    struct tune_wish wish;
    size_t number;                  /* of the candidate; 0: no stack; TUNE_NONE: nothing does */
    char reason[TUNE_REASON_BYTES]; /* without a period */
};

extern const char *const tune_wish_names[]; /* by kind, ended by NULL */

/* Fills in number and reason.  What was measured decides about speed; `measure` may be NULL. */
void tune_choose(const struct tune_search *search, const struct tune_measure *measure,
                 struct tune_choice *choice);

/* The same by the replay alone, without the reason. */
size_t tune_best_replayed(const struct tune_search *search, const struct tune_wish *wish);
