/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program: once to record it, and then under the finalists of a search and without the
 * library, in turns. */
#pragma once

#include "tool/tune/interval.h"
#include "tool/tune/search.h"

#include <limits.h>
#include <signal.h>

enum { TUNE_FINALISTS_MAX = 5, TUNE_ROUNDS_MIN = 2, TUNE_ROUNDS_MAX = 1000 };

struct tune_finalist {
    size_t number;             /* of the candidate; 0: the program without the library */
    double *seconds;           /* of each round */
    struct tune_interval wall; /* of a run, in seconds */
    struct tune_interval more; /* by how much a run took longer than one without the library */
    uint64_t held_bytes;       /* at the peak of the process with most; 0: not known */
    int code;                  /* the exit code of a run that failed, which was the last one */
};

struct tune_measure {
    char **program;
    size_t rounds, count;
    struct tune_finalist finalists[TUNE_FINALISTS_MAX]; /* the first one has no stack */
    const char *limit;                                  /* RMM_LIMIT of all runs; NULL: none */
    char folder[PATH_MAX];                              /* of recordings; empty: none */
    sigset_t run_mask;                                  /* as runs need it */
    int code; /* of a failure: what the command exits with */
};

/* Runs the program and records it: `path` is the file of the process that did most.  False after a
 * line, with the exit code in measure->code.  tune_measure_end is due in any case. */
bool tune_measure_record(struct tune_measure *measure, bool is_mute, char path[PATH_MAX]);

/* Removes the recordings. */
void tune_measure_forget(struct tune_measure *measure);

/* Measures what the search found; `best` are its `count` best ones, or TUNE_NONE. */
bool tune_measure_run(struct tune_measure *measure, const struct tune_search *search,
                      const size_t *best, size_t count);
void tune_measure_end(struct tune_measure *measure);
