/* SPDX-License-Identifier: Apache-2.0 */
/* A report in the making: written as it fills, whole lines at a time, so that ranks that share a
 * terminal seldom mix their lines.  Its room is static, since at exit nothing may fail for want of
 * memory. */
#pragma once

#include "base/check.h"
#include "base/output.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum { RS_PAGE_BYTES = 8 << 10 };

/* The file that a page goes to. */
struct rs_page_file {
    const char *variable; /* that names it; each line about it begins with this name */
    enum { RS_PAGE_FILE_UNKNOWN, RS_PAGE_FILE_CLAIMED, RS_PAGE_FILE_NONE } state;
    int error; /* 0, or -errno of what went wrong last */
    struct rs_output output;
};

/* Takes the file of a pattern (base/path.h) for this process, long before it is written, so that no
 * other process writes there meanwhile.  Nothing with path NULL.  What goes wrong is one line. */
void rs_page_claim(struct rs_page_file *file, const char *path);

struct rs_page {
    struct rs_page_file *file;
    const char *path;
    size_t length;
    int fd;
    bool is_open, is_off; /* off: it cannot be written, and that has been said */
    bool is_kept;         /* rs_page_begin_text: it is never written */
    char text[RS_PAGE_BYTES];
};

/* It goes to the file of the pattern, or to stderr with path NULL.  An empty page leaves no file.
 */
void rs_page_begin(struct rs_page *page, struct rs_page_file *file, const char *path);

/* The page is no more than its text, which ends before the first piece that does not fit. */
void rs_page_begin_text(struct rs_page *page);

/* A piece of more than RS_PAGE_BYTES - 1 is cut off. */
void rs_page_put(struct rs_page *page, const char *format, ...) RS_PRINTF(2, 3);
void rs_page_vput(struct rs_page *page, const char *format, va_list arguments) RS_PRINTF(2, 0);

/* For JSON strings and Prometheus labels, which share these escapes; other control bytes, and bytes
 * that are not UTF-8, become '?'. */
void rs_page_put_escaped(struct rs_page *page, const char *text, size_t length);

/* Writes what has been put; more may follow. */
void rs_page_flush(struct rs_page *page);

void rs_page_end(struct rs_page *page);
