/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for the user.  Each is built on the stack and written by one write(2); logging takes no
 * lock, does not call malloc, and keeps errno.
 *
 * What the library writes unasked (of a bad setting, an output that could not be opened, a call
 * that it refused) counts against RS_LOG_LINES_MAX lines per process.  One more line then says that
 * further messages are suppressed. */
#pragma once

#include "base/check.h"

enum { RS_LOG_LINES_MAX = 40, RS_LOG_LINE_BYTES = 1024 };

/* Writes "rmmshim[pid]: <text>\n" to stderr.  Counts against RS_LOG_LINES_MAX.  Thread safe. */
void rs_log(const char *format, ...) RS_PRINTF(1, 2);

/* A line for rs_log_once_serving.  The caller makes it static, and sets only `text`. */
struct rs_late_line {
    const char *text;
    bool said;
    char name[64];
    struct rs_late_line *next;
};

/* Logs "<name><text>" at the first call with this line, or keeps the line until rs_log_serving is
 * called: a look-up of a function may find something to report before it is known whether this
 * process has settings at all.  `name` is copied, at most 63 bytes of it.  Thread safe. */
void rs_log_once_serving(struct rs_late_line *line, const char *name);

/* Called when the library begins to serve allocations in this process: logs the lines that
 * rs_log_once_serving has kept. */
void rs_log_serving(void);

/* Writes a line as rs_log does, without counting it: for lines that the user asked for
 * (RMM_VERBOSE, the report at exit). */
void rs_log_asked(const char *format, ...) RS_PRINTF(1, 2);

/* Returns true for the first call with this flag, which starts as false.  For lines that are
 * written once.  Thread safe. */
bool rs_log_once(bool *said);

/* Writes all bytes to fd, in several calls if needed.  When a non-blocking fd takes nothing, it
 * waits up to a second each time.  Returns 0 or -errno.  Keeps errno, is no cancellation point, and
 * raises no SIGPIPE or SIGXFSZ. */
int rs_write_all(int fd, const void *bytes, size_t length_bytes);

/* ---- diagnostics ---- */

/* Diagnostics are about settings.  Each is one line that names the variable, shows the place in its
 * text and, if there is one, suggests the nearest valid word.  The library sends them to its log,
 * the tool to stderr, tests to a buffer. */

struct rs_diagnostics {
    void (*write)(void *data, const char *line); /* NULL: they are only counted */
    void *data;
    unsigned count;         /* errors written so far */
    bool doubts_are_errors; /* names that may belong to another program (config/config.h) count as
                               errors, as in `rmmshim check` */
};

/* Where a text came from: the name of the variable or argument, and its whole text. */
struct rs_source {
    const char *name;
    const char *text;
};

/* Writes one line about source->text and adds 1 to diagnostics->count.  `at` points to the place
 * inside source->text, shown as '^' in front of it: "RMM_POOL_SIZE=10^Q: unknown unit";
 * NULL: the diagnostic is about the whole text.  At most 40 characters are shown on either side
 * of the place.  Returns false, which most callers return. */
bool rs_diagnose(struct rs_diagnostics *diagnostics, const struct rs_source *source, const char *at,
                 const char *format, ...) RS_PRINTF(4, 5);

/* Appends to the string in `text`, which has `room` bytes in all; what does not fit is cut off. */
void rs_text_add(char *text, size_t room, const char *format, ...) RS_PRINTF(3, 4);

/* Returns the word of `words` (NULL-terminated) that is nearest to [begin, end), or NULL when none
 * is near.  A word is near if its distance is at most rs_word_tolerance of its length, and less
 * than the length of either text. */
const char *rs_nearest_word(const char *begin, const char *end, const char *const *words);

/* Returns how many letters must be inserted, removed, changed or swapped with their neighbour to
 * turn b into a.  Returns 64 when either is longer than 64 letters. */
unsigned rs_word_distance(const char *a, size_t a_length, const char *b, size_t b_length);

/* Returns the largest distance at which a text still counts as a misspelling of a word of this
 * length: 1 below six letters, else 2. */
unsigned rs_word_tolerance(size_t length);
