/* SPDX-License-Identifier: Apache-2.0 */
/* A report in the making: built in memory and written at once, so that ranks that share a terminal
 * do not mix their lines.  Pages are static, since at exit nothing may fail for want of memory. */
#pragma once

#include "base/check.h"

#include <stdarg.h>
#include <stddef.h>

struct rs_page {
    char *text;
    size_t text_bytes; /* what is too long is cut off */
    size_t length;
};

void rs_page_put(struct rs_page *page, const char *format, ...) RS_PRINTF(2, 3);
void rs_page_vput(struct rs_page *page, const char *format, va_list arguments) RS_PRINTF(2, 0);

/* For JSON strings and Prometheus labels, which share these escapes; other control bytes become
 * '?'. */
void rs_page_put_escaped(struct rs_page *page, const char *text, size_t length);

/* Writes the page to a file named by a pattern (base/path.h), or to stderr with path NULL.  What
 * goes wrong is one line that names the variable. */
void rs_page_write(const struct rs_page *page, const char *variable, const char *path);
