/* SPDX-License-Identifier: Apache-2.0 */
/* Where a program called from. */
#pragma once

#include <stddef.h>

#define HC_SITE_FRAMES 4

struct hc_site {
    void *frames[HC_SITE_FRAMES]; /* innermost first, without this library's; NULL past the last */
};

/* The calling thread's frames outside this library. */
void hc_site_take(struct hc_site *site);

/* Writes "function+0x1c (program) < caller+0x20 (program)". */
void hc_site_print(const struct hc_site *site, char *text, size_t bytes);
