/* SPDX-License-Identifier: Apache-2.0 */
/* Call sites of the program. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define HC_SITE_FRAMES 4

struct hc_site {
    void *frames[HC_SITE_FRAMES]; /* innermost first, without this library's; NULL past the last */
};

/* Fills in the calling thread's frames outside this library. */
void hc_site_take(struct hc_site *site);

/* True if the innermost frame lies in a program or library of that file name. */
bool hc_site_is_in(const struct hc_site *site, const char *file);

/* Writes "function+0x1c (program) < caller+0x20 (program)". */
void hc_site_print(const struct hc_site *site, char *text, size_t bytes);
