/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up what recordings say. Their events are passed to analysis_add, one recording after the
 * other, each in the order of time; then the sums, the peaks and the blocks can be read. It reads
 * no file: tool/report/input.c does. */
#pragma once

#include "base/hash_table.h"
#include "config/config.h"
#include "report/document.h"
#include "tool/recording.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANALYSIS_NEVER UINT64_MAX /* a time that did not come */

enum {
    ANALYSIS_INCIDENTS_MAX = 1000, /* the most refusals, waits or marks that a run keeps */
    ANALYSIS_OPEN_MAX = 64,        /* the most phases that are open at a time; others are ignored */
};

/* ---- call sites, the same in all recordings ---- */

/* Texts by number, each once.  A zeroed struct is empty. */
struct text_table {
    char **texts;
    size_t *lengths; /* in bytes; the text of a site is the array of its frames' 32-bit numbers */
    size_t count;
    struct rs_hash_table by_hash; /* the number plus 1, by the hash or the next free key */
};

/* ---- memory over time: a bounded number of buckets, each with its least and its greatest value,
 * so that a peak is kept however short it was ---- */

enum { TIMELINE_BUCKETS = 8192 };

/* Amounts in bytes. */
struct timeline_bucket {
    uint64_t index; /* the bucket begins at index * width_ns */
    uint64_t least_used, most_used, last_used;
    uint64_t most_held, last_held;
    uint64_t limit; /* the last one; 0: none */
};

/* Has only the buckets in which something happened; in the time after a bucket, its last values
 * hold. A zeroed struct is empty. */
struct timeline {
    uint64_t width_ns;               /* 0: empty */
    struct timeline_bucket *buckets; /* TIMELINE_BUCKETS of them */
    size_t count;
};

/* Merges neighbours until at most buckets_max buckets are left. */
void timeline_shrink(struct timeline *timeline, size_t buckets_max);

/* ---- what is added up ---- */

struct block {
    uint64_t address, size_bytes;
    uint64_t begin_ns, end_ns;       /* ANALYSIS_NEVER: live at the end */
    uint64_t begin_event, end_event; /* numbers of events of the run; ANALYSIS_NEVER as above */
    uint64_t stream;
    uint32_t site; /* 0: not recorded */
    uint32_t series;
    unsigned stack;
};

/* The memory of one kind on one device. */
struct series {
    int device;
    enum rs_kind kind;
    struct timeline timeline;
    uint64_t used, held, limit; /* after the events that were added so far */
    uint64_t peak_used, peak_ns, peak_event;
    uint64_t peak_held, live_blocks;
    uint64_t allocations, frees, allocated_bytes;
};

/* One time that the program was in a phase. */
struct occurrence {
    uint64_t begin_ns, end_ns; /* ANALYSIS_NEVER: it did not end */
    uint64_t used_at_begin, used_at_end, peak_used;
    uint64_t begin_event, end_event;
    uint32_t thread;
};

struct phase {
    char *name;
    struct occurrence *occurrences;
    size_t count;
};

/* A refused request, or a wait. */
struct incident {
    uint64_t ns, duration_ns, size_bytes;
    uint32_t site, series;
};

struct incidents {
    uint64_t count, duration_ns, size_bytes;
    struct incident kept[ANALYSIS_INCIDENTS_MAX];
    size_t kept_count;
};

/* A moment that the program named. */
struct mark {
    char *name;
    uint64_t ns, used;
};

struct analysis_observer;

/* What one recording says. */
struct run {
    char *path;
    char *title;                       /* the program, its process and rank, for people */
    struct tool_recording_facts facts; /* with texts that are plain */
    uint64_t end_ns;
    uint64_t events, lost_events;
    uint64_t missing_events; /* frees of unknown blocks, and lost frees */
    char damage[320];        /* a line, or empty */

    struct series *series;
    size_t series_count;
    struct block *blocks;
    size_t block_count;
    struct phase *phases;
    size_t phase_count;
    struct mark *marks; /* the first ANALYSIS_INCIDENTS_MAX */
    size_t mark_count;
    struct incidents refusals, waits;

    /* The fields below are used while events come in. */
    struct analysis_observer *observer;
    const struct tool_recording *recording;
    uint64_t used;             /* of all series */
    struct rs_hash_table live; /* by address: the block's number plus 1 */
    struct open_phase {
        uint32_t phase, occurrence;
    } open[ANALYSIS_OPEN_MAX]; /* the latest one last */
    size_t open_count;
};

struct analysis {
    struct run **runs;
    size_t run_count;
    struct text_table frames, sites;
    struct analysis_observer *observer; /* of the runs that begin from now on; NULL: none */
};

/* ---- events ---- */

/* Gets the events of a run in their order, but no free of an unknown address and no
 * RS_RECORDING_STACK_GONE.  For a block that ends without a free (its address is allocated again,
 * or its stack ends) it gets an RS_RECORDING_DEALLOCATE with the time of the event that ended the
 * block.  Each RS_RECORDING_DEALLOCATE has the block's device, address, size and call site.  The
 * call site is a number of analysis_site. */
struct analysis_observer {
    void (*see)(struct analysis_observer *observer, const struct run *run,
                const struct tool_recording_event *event);
};

/* Begins a recording.  Runs and texts live until the command ends. */
struct run *analysis_begin(struct analysis *analysis, const char *path,
                           const struct tool_recording_facts *facts);

/* Adds an event, whose call site is a number of analysis_site. */
void analysis_add(struct run *run, const struct tool_recording_event *event);

void analysis_end(struct run *run);

/* Returns the live block at the address; NULL if there is none. An observer that sees the end of a
 * block still finds the block. */
struct block *analysis_block(const struct run *run, uint64_t address);

/* Returns the series of the event's device and kind of memory; NULL if there is none yet. */
struct series *analysis_series(const struct run *run, const struct tool_recording_event *event);

/* Return the number of a frame, given its text, and of a call site, given the numbers of its
 * frames, innermost first. The call site without frames has the number 0. */
uint32_t analysis_frame(struct analysis *analysis, const char *frame);
uint32_t analysis_site(struct analysis *analysis, const uint32_t *frames, size_t count);

/* ---- questions ---- */

/* The sums of the blocks that one call site has allocated. If only a sample of the blocks has call
 * sites, each of these counts several times, for others of its size, and site 0 gets the remaining
 * blocks. */
struct site_sum {
    uint32_t site;
    struct rs_block_sum peak;  /* live at the series' peak */
    struct rs_block_sum total; /* ever allocated */
    struct rs_block_sum end;   /* live at the end */
    uint64_t life_ns;          /* the lifetimes of the freed blocks, added up */
    uint32_t occurrences; /* for analysis_survivors: in how many occurrences they were allocated */
    size_t latest;        /* for analysis_survivors: the latest of these occurrences, plus 1 */
};

/* Returns the sums of all sites that allocated blocks of the series; those with the most bytes at
 * the peak come first.  The caller frees them. */
struct site_sum *analysis_sites(const struct run *run, uint32_t series, size_t *count);

/* Returns the blocks that were live at the series' peak, in the order of their addresses.  The
 * caller frees the list. */
const struct block **analysis_peak_blocks(const struct run *run, uint32_t series, size_t *count);

/* Returns for each site, in `total`, the blocks of all series that a phase leaves behind: those
 * that were allocated in any occurrence but the first (which warms up) and the last, and were live
 * when the last one ended. With fewer than three occurrences there are none. Sites are sorted by
 * bytes times `occurrences`, the largest first. The caller frees them. */
struct site_sum *analysis_survivors(const struct run *run, const struct phase *phase,
                                    size_t *count);

/* Returns by how many bytes the used memory grew per occurrence, from the end of the second one to
 * the end of the last; 0 with fewer than three. */
int64_t phase_growth(const struct phase *phase);

/* Blocks are counted by the power of two of their size in bytes and of their lifetime in ns. Larger
 * sizes count in the last class.  The counts are added to `cells`. */
enum { SIZE_CLASSES = 48, LIFE_CLASSES = 64 }; /* the last lifetime: never freed */

void analysis_sizes(const struct run *run, uint32_t series,
                    struct rs_block_sum cells[SIZE_CLASSES][LIFE_CLASSES]);
