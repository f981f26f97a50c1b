/* SPDX-License-Identifier: Apache-2.0 */
/* The page: what a served process publishes about itself in its memory file (shared/published.h).
 * The page begins with struct rs_publication, which says whose it is and where its report belongs;
 * its directory names the fields that make up each counter.  `rmmshim ls`, `top` and `stats` read
 * the page while the process runs, `rmmshim run` after its end.  A layout belongs to one version of
 * the project: readers refuse another one. */
#pragma once

#include "base/output.h"
#include "config/config.h"
#include "resource/expression.h"
#include "resource/report.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define RS_PUBLICATION_LAYOUT "rmmshim " RMMSHIM_VERSION " 3"

enum {
    RS_PUBLISHED_PROGRAM_BYTES = 256,
    RS_PUBLISHED_RESOURCE_BYTES = 24,
    RS_PUBLISHED_NAME_BYTES = 40,
    RS_PUBLISHED_RANK_BYTES = 16,
    RS_PUBLISHED_UUID_BYTES = 16,
    RS_PUBLISHED_REFUSAL_BYTES = 8 << 10,
};

enum rs_report_step { RS_REPORT_NOT_BEGUN, RS_REPORT_BEGUN, RS_REPORT_DONE };

/* The report of the latest request that was refused for want of memory.  `sequence` is odd while
 * the text is written: a reader's copy counts when it was even before, and is the same after. */
struct rs_published_refusal {
    _Atomic uint32_t sequence; /* 0: none was refused */
    char text[RS_PUBLISHED_REFUSAL_BYTES];
};

/* At the beginning of the file. */
struct rs_publication {
    char layout[32];
    int32_t process;
    int32_t format;              /* enum rs_statistics_format */
    _Atomic uint32_t report;     /* enum rs_report_step */
    _Atomic uint32_t has_report; /* what follows has been filled in */
    char path[PATH_MAX];         /* of the report; empty: stderr */
    struct timespec changed;     /* when that file had been, before it was taken for the report */
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char rank[RS_PUBLISHED_RANK_BYTES]; /* of a job's processes; empty: none is known */
    int64_t began_seconds;              /* since 1970 */
    _Atomic uint64_t directory; /* its offset in the file; 0: none yet.  A new one replaces it */
    struct rs_published_refusal refusal;
};

struct rs_published_term {
    uint64_t offset;
    uint32_t count, stride_bytes;
    int64_t scale;
};

struct rs_published_counter {
    char resource[RS_PUBLISHED_RESOURCE_BYTES];
    char name[RS_PUBLISHED_NAME_BYTES];
    uint32_t stack, kind, unit, term_count;
    uint64_t past;
    struct rs_published_term terms[RS_TERMS_MAX];
};

struct rs_published_stack {
    int32_t device, kind;
    uint64_t device_total_bytes;                        /* 0: not known */
    unsigned char device_uuid[RS_PUBLISHED_UUID_BYTES]; /* all zero: not known */
    char expression[RS_EXPRESSION_TEXT_BYTES];
};

/* Then come stacks and counters, these in the order of their stacks. */
struct rs_published_directory {
    uint32_t stack_count, counter_count;
};

/* Makes the page, and offers it to the `run` that the process descends from, where there is one.
 * Before anything is allocated that is to be published; not thread safe. */
void rs_publish_begin(void);

/* Writes the directory anew, after stacks have come or gone; with more than 16 stacks only when an
 * eighth of them have, and until then the directory names some that are gone.  Accounts and the
 * program's own counters are right all the time.  Without the contexts' lock; thread
 * safe. */
void rs_publish_stacks(void);

/* The report goes there, or to stderr with NULL. */
void rs_publish_report_file(enum rs_statistics_format format, const struct rs_output *output);

/* True when a `run` holds the page, and will outlive the process. */
bool rs_publish_is_held(void);

/* Keeps the text of a refused request's report in the page, in place of the one before; cut off
 * where it is longer than the room.  Not thread safe. */
void rs_publish_refusal(const char *text);

void rs_publish_report_step(enum rs_report_step step);
