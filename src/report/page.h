/* SPDX-License-Identifier: Apache-2.0 */
/* A page: the buffer through which a report is written, whole lines at a time, so that ranks that
 * share a terminal seldom mix their lines. A page is usually a static variable, since at exit no
 * memory may be allocated. */
#pragma once

#include "base/check.h"
#include "base/output.h"

#include <stdbool.h>
#include <stddef.h>

enum { RS_PAGE_BYTES = 8 << 10 };

/* The file that a page goes to. */
struct rs_page_file {
    const char *variable; /* the environment variable that names the file; each log line about the
                             file begins with its name */
    enum { RS_PAGE_FILE_UNKNOWN, RS_PAGE_FILE_CLAIMED, RS_PAGE_FILE_NONE } state;
    int error; /* 0, or the last error of the file, as -errno */
    struct rs_output output;
};

/* Claims the file that the pattern `path` names (base/output.h) for this process, long before it is
 * written, so that no other process writes there meanwhile. Does nothing if `path` is NULL, or if
 * the file was claimed or given up before. An error is logged as one line. */
void rs_page_claim(struct rs_page_file *file, const char *path);

/* A page that is being written.  At most one thread uses it. */
struct rs_page {
    struct rs_page_file *file;
    const char *path;
    size_t length;
    int fd;
    bool is_open, is_off; /* is_off: further text is dropped, since the file cannot be written,
                             which was logged, or, with is_kept, since the text is full */
    bool is_kept;         /* begun by rs_page_begin_text: the page is never written */
    char text[RS_PAGE_BYTES];
};

/* Begins a page that goes to the file of the pattern `path`, or to stderr if `path` is NULL. The
 * file is opened when the first bytes are written, so an empty page makes no file. */
void rs_page_begin(struct rs_page *page, struct rs_page_file *file, const char *path);

/* Begins a page that is only kept as text and never written.  The text ends before the first piece
 * that does not fit.
 */
void rs_page_begin_text(struct rs_page *page);

/* Adds formatted text. A piece of more than RS_PAGE_BYTES - 1 bytes is cut off. */
void rs_page_put(struct rs_page *page, const char *format, ...) RS_PRINTF(2, 3);

/* Adds text that does not come from the library. Characters that are not plain (report/plain.h)
 * become '?', and each character in `escaped` gets a backslash before it, as in JSON strings and
 * Prometheus labels. Returns the number of characters. */
int rs_page_put_plain(struct rs_page *page, const char *text, const char *escaped);

/* Writes what has been put so far; more may follow. */
void rs_page_flush(struct rs_page *page);

/* Writes the rest of the page, and closes its file. An empty file that this process created is
 * deleted. No other page can go to that file afterwards. */
void rs_page_end(struct rs_page *page);
