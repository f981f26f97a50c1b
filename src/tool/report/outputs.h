/* SPDX-License-Identifier: Apache-2.0 */
/* What `rmmshim report` writes of an analysis, and how it reads recordings.
 *
 * No header here may have the name of one in src/report: #include looks beside src/tool/cmd_*.c
 * first. */
#pragma once

#include "tool/report/analysis.h"

#include <stdbool.h>
#include <stdio.h>

/* Adds recordings, and says in a line what is wrong with one.  TOOL_OK; or TOOL_FINDING, where not
 * all of them could be used. */
int input_read(struct analysis *analysis, char *const *files);

/* ---- files to write ---- */

/* All of a file is made in memory first. */
struct output {
    FILE *to;
    char *bytes; /* after output_end free() is due */
    size_t length;
};

/* Both end the command where there is no memory. */
void output_begin(struct output *output);
void output_end(struct output *output);

/* Ends it, and writes a file, or standard output where there is no path.  An existing file is
 * replaced when the new one is complete.  False after a line. */
bool output_write(struct output *output, const char *path);

bool output_is_same(const char *one, const char *other);

/* True, after a line, where what is written would take the place of one of the files to read. */
bool output_is_input(const char *output, char *const *files);

/* The page, with all that it shows; one plot; and a summary of at most 80 columns.  Of
 * timelines, the page and the plot keep as much as they show. */
void page_write(FILE *to, struct analysis *analysis);
void plot_write(FILE *to, struct analysis *analysis);
void summary_write(FILE *to, struct analysis *analysis);

/* The text of which the page is made (page.html, with others in their places). */
extern const char page_html[];
extern const size_t page_html_length;

/* Writes a text, up to the first character from `most` bytes on, so that no character of it means
 * something in JSON or in SVG, and none is but for terminals.  Returns what is left of it. */
const char *put_escaped(FILE *to, const char *text, size_t most, bool is_json);

/* ---- for people ---- */

/* "device 0", "device 0, pinned memory" */
enum { SERIES_TEXT_BYTES = 64 };
const char *series_text(const struct series *series, char text[SERIES_TEXT_BYTES]);

/* A duration with three digits and a unit: "12.3 ms". */
enum { DURATION_TEXT_BYTES = 32 };
const char *duration_text(uint64_t ns, char text[DURATION_TEXT_BYTES]);

/* Shows on stderr, if that is a terminal and the work takes long, how much of it is done. */
void progress_show(const char *what, uint64_t done, uint64_t all);
void progress_clear(void);
