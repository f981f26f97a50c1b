/* SPDX-License-Identifier: Apache-2.0 */
/* What `rmmshim report` writes of an analysis, and how it reads recordings.
 *
 * No header in this folder may have the name of one in src/report: the files src/tool/cmd_*.c would
 * include it instead, since #include looks in their own folder first. */
#pragma once

#include "tool/report/analysis.h"

#include <stdbool.h>
#include <stdio.h>

/* Adds the recordings in these files; NULL ends the list.  Returns TOOL_OK, or TOOL_FINDING, after
 * a line for each, if a file could not be read or is damaged. */
int input_read(struct analysis *analysis, char *const *files);

/* ---- files to write ---- */

/* A file whose contents are made in memory first. */
struct output {
    FILE *to;
    char *bytes; /* the caller of output_end frees them */
    size_t length;
};

/* Open and close `to`, a stream to memory. Both end the command when out of memory. */
void output_begin(struct output *output);
void output_end(struct output *output);

/* Ends the output, writes it to a file (NULL: to standard output), and frees it.  An existing file
 * is replaced when the new one is complete.  False after saying what failed. */
bool output_write(struct output *output, const char *path);

/* True if both paths lead to the same regular file, or, if one of them cannot be examined, are the
 * same text. */
bool output_is_same(const char *one, const char *other);

/* True, after a line, if `output` (NULL: none) is one of the files to read: writing would replace
 * that file. */
bool output_is_input(const char *output, char *const *files);

/* Write the page, a plot in SVG, and a summary of at most 80 columns.  page_write and plot_write
 * reduce the timelines to what they show. */
void page_write(FILE *to, struct analysis *analysis);
void plot_write(FILE *to, struct analysis *analysis);
void summary_write(FILE *to, struct analysis *analysis);

/* page.html with page.css, plots.js and page.js inserted. */
extern const char page_html[];
extern const size_t page_html_length;

/* Writes a text, with the characters escaped that have a meaning in JSON (is_json) or SVG, and `?`
 * for each that a terminal would not show as text. Stops after `most` bytes of the text, and
 * returns the rest. */
const char *put_escaped(FILE *to, const char *text, size_t most, bool is_json);

/* ---- for people ---- */

/* Writes the name of a series to text, and returns it: "device 0" or "device 0, pinned memory". */
enum { SERIES_TEXT_BYTES = 64 };
const char *series_text(const struct series *series, char text[SERIES_TEXT_BYTES]);

/* Writes a duration to text, and returns it: three digits and a unit, as in "12.3 ms"; below 1 us,
 * whole ns. */
enum { DURATION_TEXT_BYTES = 32 };
const char *duration_text(uint64_t ns, char text[DURATION_TEXT_BYTES]);

/* Shows on stderr, if that is a terminal and the work takes long, how much of it is done. */
void progress_show(const char *what, uint64_t done, uint64_t all);
void progress_clear(void);
