/* SPDX-License-Identifier: Apache-2.0 */
/* What a search found, for people and as JSON (tests/schema/tune.json). */
#pragma once

#include "tool/tune/choice.h"

struct tune_findings {
    const struct tune_search *search;
    const struct tune_measure *measure; /* NULL: nothing was measured */
    const struct tune_choice *choices;
    size_t choice_count;
    const char *limit; /* RMM_LIMIT as the user gave it, or NULL */
};

void tune_show(const struct tune_findings *findings);
void tune_show_json(const struct tune_findings *findings);
