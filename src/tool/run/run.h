/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `rmmshim run` share: its options, the program's parent, the job of the
 * program's processes, and what is said at the end. */
#pragma once

#include "base/size.h"
#include "report/publish.h"
#include "tool/advice.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/wait.h>

/* ---- options: those that set the library's variables, and those of `run` alone ---- */

struct run_options {
    bool becomes;          /* --exec */
    bool is_quiet;         /* --quiet */
    bool fails_on_leak;    /* --fail-on-leak */
    bool finds_min;        /* --find-min */
    bool has_fail_over;    /* --fail-over was given */
    struct rs_size over;   /* --fail-over, when given */
    const char *over_text; /* as the user wrote it */
    const char *profile;   /* --profile: a name or a file; NULL: none */
    const char *json;      /* --json: a path, "-" for stderr; NULL: none */
    bool sets_nothing;     /* no setting has the library serve anything */
};

/* True for a word that is an option of `run`, with a value behind '=' or not. */
bool run_options_has(const char *word);

/* Takes the option at *arguments, which moves to the last word that belongs to it: sets *options,
 * or the option's variable in the environment.  False after saying what is wrong. */
bool run_options_take(char ***arguments, struct run_options *options);

/* When all were taken: checks options and variables that are good alone and not together, and sets
 * what --framework-pools implies.  False after saying what is wrong. */
bool run_options_agree(const struct run_options *options);

/* True where it is set to more than nothing. */
bool run_is_set(const char *name);

/* Print the help about the options that are used most, and about all. */
void run_options_print_help(void);
void run_options_print_all_help(void);

/* ---- the program's parent: it is as if the program were this process.  Signals that are sent to
 * this process go on to it, a stop by the terminal stops both, and its end is this process's ----
 */

/* How the program ended. */
struct parent_result {
    pid_t program;
    int status;          /* as of waitpid */
    bool is_interrupted; /* a signal that ends a job and is not ignored came meanwhile, from the
                          * terminal or for `run` */
};

/* Where the program reads from and writes to. */
enum parent_streams {
    PARENT_STREAMS_OWN,      /* the streams of this process */
    PARENT_STREAMS_NO_INPUT, /* stdin is /dev/null */
    PARENT_STREAMS_MUTE,     /* all three are /dev/null */
};

/* Starts the program and stays until it ends, and with it the job.  False after saying why it could
 * not be started. */
bool parent_run(char **program, enum parent_streams streams, struct parent_result *result);

/* The exit code of a shell for that status: the program's own, or 128 + N after signal N. */
int parent_exit_code(const struct parent_result *result);

/* Ends this process by the signal that ended the program, if one did. */
void parent_end_as(const struct parent_result *result);

/* Becomes the program, as env does.  Returns only after saying why not: the exit code. */
int parent_become(char **program);

/* ---- processes that use CUDA and have no page, looked for in /proc: at most once a second after
 * the first seconds, so one that lives shortly is not seen ---- */

enum { UNSERVED_PROGRAM_BYTES = 32 };

enum unserved_reason {
    UNSERVED_STATIC,     /* no dynamic linker is mapped */
    UNSERVED_NO_PRELOAD, /* the library is not mapped */
    UNSERVED_NO_CALL,    /* the library is mapped, and no allocation has come to it */
    UNSERVED_BEHIND,     /* the same, as LD_PRELOAD names the driver before it */
    UNSERVED_NOT_HELD,   /* it has a page of its own, which did not come here */
};

struct unserved {
    int number;
    enum unserved_reason reason;
    unsigned times; /* that it was seen */
    char program[UNSERVED_PROGRAM_BYTES];
    char script[IDENTITY_SCRIPT_BYTES]; /* that an interpreter runs; empty: none */
};

/* Looks when it is time, and returns the nanoseconds until the next time.  `is_held` is true for
 * the numbers of processes and the inodes of pages that are held.  One thread at a time, as all
 * functions here. */
uint64_t unserved_look(bool (*is_held)(int number, uint64_t page_inode));

/* The process has a page now: that no allocation came to the library is true no longer. */
void unserved_forget(int number);

/* The processes seen, which are forgotten, or NULL without memory.  free() is due. */
struct unserved *unserved_take(size_t *count);

/* ---- what the processes did, gathered from their pages when they are gone ---- */

/* What one process did on one device.  Counts are of all kinds of memory. */
struct summary_device {
    int device;
    uint64_t used_peak_bytes;    /* most that the program had allocated, pinned memory left out */
    uint64_t held_peak_bytes;    /* most that was taken from the driver for it */
    uint64_t spilled_peak_bytes; /* of what is used: most that did not fit on the device */
    uint64_t limit_bytes;        /* 0: none */
    uint64_t total_bytes;        /* of the device; 0: not known */
    uint64_t refused;            /* out-of-memory errors that the program received */
    uint64_t internal_refusals;  /* as in report/counters.h */
    uint64_t allocations;
    uint64_t waited_ns;
    uint64_t unfreed_bytes, unfreed_blocks; /* allocated by the program, served and not freed */
};

struct summary_process {
    int number;
    bool has_ended;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char script[IDENTITY_SCRIPT_BYTES]; /* empty: of no interpreter */
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: none is known */
    struct summary_device *devices;     /* in ascending order of `device` */
    size_t device_count;

    /* What it left unsaid. */
    char *refusal; /* the report of the latest request that was refused to it; NULL: none */
    bool lacks_leak_report, has_begun_report;
    struct advice advices[RS_KINDS];
    size_t advice_count;
};

struct summary {
    struct summary_process *processes; /* in the order in which they ended */
    size_t count;
    struct unserved *unserved; /* seen without the library */
    size_t unserved_count;
    size_t missed; /* processes that were served and whose page is not held */
    bool is_short; /* there was no memory for all, or nothing could be held */
};

/* Adds a process: of which its number, script and whether it has ended are known, the rest by its
 * page.  Of one that is gone, unless a `run` below holds it too, the report is written that it
 * could not write, and what it left unsaid is noted.  Without memory the summary says so. */
void summary_add(struct summary *summary, const struct summary_process *known, bool is_below,
                 const void *file);

/* Empties it and frees its memory. */
void summary_clear(struct summary *summary);

/* ---- the job: holds what its processes publish (shared/job.h), so that it outlives them, and
 * writes the reports that they no longer can.  One thread ---- */

/* Makes a memory file of a job with a limit (shared/job_limit.h) where RMM_LIMIT_JOB asks for one
 * and RMM_JOB names none; a job with a smaller limit above is this one too, which is said.
 * `becomes`: this process is about to become the program, and can hold nothing.  False after saying
 * what is wrong. */
bool limit_job_begin(bool becomes);

/* Makes the job and puts it into the environment.  Where it cannot be made, which is said, the
 * program runs all the same, and its summary is incomplete. */
void job_begin(void);

/* Begins to hold.  A job that has ended may be begun anew, for a further program. */
void job_watch(void);

/* Serves the job until the descriptor can be read. */
void job_serve_until(int readable);

/* Writes what is left to write of processes that are gone, and ends the job.  The others write
 * their own. */
void job_end(void);

/* Hands over what its processes did from job_watch to job_end, and what those did that still run,
 * and which were seen without the library.  summary_clear is due. */
void job_take_summary(struct summary *taken);

/* ---- the end: lines on stderr, a JSON file, and whether a check of the user's failed ---- */

/* What happened. */
struct run_outcome {
    struct parent_result result;
    struct summary summary;
    size_t smallest_limit_bytes; /* that --find-min found */
    unsigned runs;               /* of --find-min; 0: it was not given */
};

/* Takes the file of --json, so that a path that cannot be written is an error before the program
 * starts.  False after saying so. */
bool run_end_begin(const struct run_options *options);

/* Says and writes what happened to the program `words[0]`.  The exit code: the program's, or
 * TOOL_FINDING when that is 0 and a check failed. */
int run_end(const struct run_options *options, char *const *words, struct run_outcome *outcome);

/* --find-min: runs the program without a limit, then with RMM_LIMIT until the smallest one with
 * which it succeeds is known to within 1 % or 2 MiB, and says so.  The exit code; ends this process
 * by the signal that ended the program, where that stopped the search. */
int find_min(char **program, const struct run_options *options);
