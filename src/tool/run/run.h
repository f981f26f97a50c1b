/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `rmmshim run` share: its options, the program's parent, the job of the
 * program's processes, and the summary at the end. */
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
    bool sets_nothing;     /* no setting asks the library for anything */
};

/* True for a word that is an option of `run`, with or without a value after '='. */
bool run_options_has(const char *word);

/* Takes the option at *arguments, which moves to the last word that belongs to it: sets *options,
 * or the option's variable in the environment.  False after saying what is wrong. */
bool run_options_take(char ***arguments, struct run_options *options);

/* Called when all options were taken: checks for options and variables that contradict each other,
 * and sets what --framework-pools implies.  False after saying what is wrong. */
bool run_options_agree(const struct run_options *options);

/* True when the variable is set and not empty. */
bool run_is_set(const char *name);

/* Print the help about the most used options, and about all options. */
void run_options_print_help(void);
void run_options_print_all_help(void);

/* ---- the program's parent: to others this process looks like the program.  It passes signals that
 * are sent to it on to the program, a stop by the terminal stops both, and it ends as the program
 * ends ----
 */

/* How the program ended. */
struct parent_result {
    pid_t program;
    int status;          /* the status of waitpid */
    bool is_interrupted; /* while the program ran, a signal that usually ends a job came from the
                            terminal or was sent to `run`, and was not ignored */
};

/* The program's stdin, stdout and stderr. */
enum parent_streams {
    PARENT_STREAMS_OWN,      /* the streams of this process */
    PARENT_STREAMS_NO_INPUT, /* stdin is /dev/null */
    PARENT_STREAMS_MUTE,     /* all three are /dev/null */
};

/* Starts the program, and returns when it has ended, after job_end; other processes of the job may
 * still run.  False after saying why the program could not be started. */
bool parent_run(char **program, enum parent_streams streams, struct parent_result *result);

/* Returns the exit code that a shell would give: the program's own, or 128 + N after signal N. */
int parent_exit_code(const struct parent_result *result);

/* Ends this process by the signal that ended the program, if one did. */
void parent_end_as(const struct parent_result *result);

/* Replaces this process by the program, as env does.  Returns only on failure: an exit code, after
 * saying why. */
int parent_become(char **program);

/* ---- processes that use CUDA, found in /proc, whose page (the memory in which a process publishes
 * its counters) is not held. After the first seconds they are looked for at most once a second, so
 * a short-lived one may not be seen ---- */

enum { UNSERVED_PROGRAM_BYTES = 32 };

enum unserved_reason {
    UNSERVED_STATIC,     /* no dynamic linker is mapped */
    UNSERVED_NO_PRELOAD, /* the library is not mapped */
    UNSERVED_NO_CALL,    /* the library is mapped, and no allocation has come to it */
    UNSERVED_BEHIND,     /* as UNSERVED_NO_CALL, and LD_PRELOAD names the driver first */
    UNSERVED_NOT_HELD, /* the process has a page of its own, which it did not send to this `run` */
};

struct unserved {
    int number;
    enum unserved_reason reason;
    unsigned times; /* how often the process was seen */
    char program[UNSERVED_PROGRAM_BYTES];
    char script[IDENTITY_SCRIPT_BYTES]; /* the script that an interpreter runs; empty: none */
};

/* Looks for unserved processes when it is time, and returns the nanoseconds until the next time.
 * `is_held` tells whether a page of the process, or the page with this inode, is held; with the
 * inode 0 only the process counts. The functions here are called by one thread at a time. */
uint64_t unserved_look(bool (*is_held)(int number, uint64_t page_inode));

/* Called when a page of the process is held. Forgets the process if it was seen with
 * UNSERVED_NO_CALL or a later reason, since that reason no longer holds. */
void unserved_forget(int number);

/* Returns the processes that were seen, and forgets them; NULL without memory. A process with the
 * library that was seen only once is left out. Looks again if the latest look lacked memory or
 * descriptors, and sets *is_short if there are none still. The caller frees the list. */
struct unserved *unserved_take(bool (*is_held)(int number, uint64_t page_inode), size_t *count,
                               bool *is_short);

/* ---- what the processes did, gathered from their pages when they are gone ---- */

/* What one process did on one device: the kinds of memory are taken together, unless a field says
 * otherwise. */
struct summary_device {
    int device;
    uint64_t used_peak_bytes;    /* the most that the program had allocated of each kind of memory,
                                    added up, without pinned memory */
    uint64_t held_peak_bytes;    /* the most that was taken from the driver for the process */
    uint64_t spilled_peak_bytes; /* the most memory that did not fit on the device, of each kind,
                                    added up */
    uint64_t limit_bytes;        /* the process's own limit, not its job's; 0: none */
    uint64_t total_bytes;        /* the device's memory; 0: not known */
    uint64_t refused;            /* out-of-memory errors that the program received */
    uint64_t internal_refusals;  /* as in report/counters.h */
    uint64_t allocations;
    uint64_t waited_ns;
    uint64_t unfreed_bytes, unfreed_blocks; /* what stacks served and the program has not freed */
};

struct summary_process {
    int number;
    bool has_ended;
    bool is_anothers; /* the process, or its page, belongs to another user than this command */
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char script[IDENTITY_SCRIPT_BYTES]; /* empty: the program is no interpreter */
    char rank[RS_PUBLISHED_RANK_BYTES]; /* empty: not known */
    struct summary_device *devices;     /* in ascending order of `device` */
    size_t device_count;

    /* What the process could not report itself. */
    char *refusal; /* the report of its latest refused request; NULL: none */
    bool lacks_leak_report, has_begun_report;
    struct advice advices[RS_KINDS];
    size_t advice_count;
};

struct summary {
    struct summary_process *processes; /* as they were added; run_end sorts them */
    size_t count;
    struct unserved *unserved; /* processes that used CUDA without the library */
    size_t unserved_count;
    size_t missed; /* the number of processes that were served and whose page is not held */
    bool is_short; /* the summary is incomplete: there was not enough memory, or pages could not be
                      held, or processes not listed */
};

/* Adds a process. `known` has its number, its script, whether it has ended and whether it is
 * another user's; the rest is read from its page, which is `file`.  If the process has ended and no
 * `run` below holds its page too (is_below), this writes the report that the process could not
 * write, and notes what it could not report.  Without memory the summary is marked as short. */
void summary_add(struct summary *summary, const struct summary_process *known, bool is_below,
                 const void *file);

/* Empties the summary and frees its memory. */
void summary_clear(struct summary *summary);

/* ---- the job: holds the pages that its processes publish (shared/job.h), so that a page outlives
 * its process, and writes the reports that ended processes could not write.  One thread uses it
 * ---- */

/* Makes the memory file of a job's limit (shared/job_limit.h) if RMM_LIMIT_JOB asks for one and
 * RMM_JOB names no file. If the job of an enclosing `run` has a smaller limit, that limit applies,
 * and a line says so. `becomes`: this process is about to become the program, and cannot hold a
 * file. False after saying what is wrong. */
bool limit_job_begin(bool becomes);

/* Makes the job and puts it into the environment.  If that fails, a line says so; the program still
 * runs, but its summary is incomplete. */
void job_begin(void);

/* Begins to hold pages.  May be called again after job_end, for another program. */
void job_watch(void);

/* Serves the job until the descriptor can be read. */
void job_serve_until(int readable);

/* Writes the reports that ended processes could not write, and ends the job.  Processes that still
 * run write their own. */
void job_end(void);

/* Stores in *taken the summary of the job's processes from job_watch to job_end: those that ended,
 * those that still run, and those that were seen without the library.  The caller calls
 * summary_clear. */
void job_take_summary(struct summary *taken);

/* ---- the end: lines on stderr, a JSON file, and whether a check of the user's failed ---- */

/* What the program and its processes did. */
struct run_outcome {
    struct parent_result result;
    struct summary summary;
    size_t smallest_limit_bytes; /* the result of --find-min */
    unsigned runs;               /* the number of runs of --find-min; 0: it was not given */
};

/* Opens the file of --json before the program starts, so that a path that cannot be written is
 * found at once.  False after saying so. */
bool run_end_begin(const struct run_options *options);

/* Prints the summary of the program `words[0]`, and writes the file of --json.  Returns the exit
 * code: the program's, or TOOL_FINDING when that is 0 and a check failed. */
int run_end(const struct run_options *options, char *const *words, struct run_outcome *outcome);

/* --find-min: runs the program without a limit, and then with different RMM_LIMITs, until the
 * smallest limit with which it succeeds is known to within 1 % or 2 MiB, and prints that.  Returns
 * the exit code.  If a signal ended the program and so the search, it ends this process by that
 * signal. */
int find_min(char **program, const struct run_options *options);
