/* SPDX-License-Identifier: Apache-2.0 */
/* What recordings say, added up: their events come in by analysis_add, one recording after the
 * other, each in the order of time; then the sums, the peaks and the blocks can be read.
 *
 * It knows no file: tool/report/input.c feeds it. */
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
    ANALYSIS_INCIDENTS_MAX = 1000, /* that a run keeps one by one, of each kind */
    ANALYSIS_OPEN_MAX = 64,        /* phases that are open at a time; further ones are ignored */
};

/* ---- call sites, the same in all recordings ---- */

/* Texts by number, each once.  A zeroed struct is empty. */
struct text_table {
    char **texts;
    size_t *lengths; /* in bytes: a site's text are the 32-bit numbers of its frames */
    size_t count;
    struct rs_hash_table by_hash; /* number plus 1, by the text's hash or the next free key */
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

/* Only buckets in which something happened are here; until the next one the last values hold.  A
 * zeroed struct is empty. */
struct timeline {
    uint64_t width_ns;               /* 0: empty */
    struct timeline_bucket *buckets; /* TIMELINE_BUCKETS of them */
    size_t count;
};

/* Merges neighbours until at most so many buckets are left. */
void timeline_shrink(struct timeline *timeline, size_t buckets_max);

/* ---- what is added up ---- */

struct block {
    uint64_t address, size_bytes;
    uint64_t begin_ns, end_ns;       /* ANALYSIS_NEVER: live at the end */
    uint64_t begin_event, end_event; /* numbers in the run, in order */
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
    uint64_t used, held, limit; /* now, and after all events: at the end */
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

    /* while events come in */
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

/* Gets the events of a run in their order.  A free of an unknown address is left out.  A block that
 * ends in another way (its address is allocated again, or its stack ends) gets an
 * RS_RECORDING_DEALLOCATE, made up with the time of the event that ended it, in place of an
 * RS_RECORDING_STACK_GONE.  Each RS_RECORDING_DEALLOCATE has the block's address, size and call
 * site.  The call site is a number of analysis_site. */
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

/* The live block of the address; for an observer also the one whose end it sees.  NULL: none. */
struct block *analysis_block(const struct run *run, uint64_t address);

/* What an event is of; NULL: nothing is known of it yet. */
struct series *analysis_series(const struct run *run, const struct tool_recording_event *event);

/* The number of a call site by its frames, innermost first: 0 for none. */
uint32_t analysis_frame(struct analysis *analysis, const char *frame);
uint32_t analysis_site(struct analysis *analysis, const uint32_t *frames, size_t count);

/* ---- questions ---- */

/* What the blocks of a series that one call site has allocated amount to.  Where only a sample of
 * the blocks has call sites, a block stands for the others of its size, too, and what is known of
 * no site is the rest. */
struct site_sum {
    uint32_t site;
    struct rs_block_sum peak;  /* live at the series' peak */
    struct rs_block_sum total; /* ever allocated */
    struct rs_block_sum end;   /* live at the end */
    uint64_t life_ns;          /* of those that were freed, together */
    uint32_t occurrences;      /* of analysis_survivors: in which they were allocated */
    size_t latest;             /* occurrence that was counted, plus 1 */
};

/* Those of all sites, the most at the peak first; free() is due. */
struct site_sum *analysis_sites(const struct run *run, uint32_t series, size_t *count);

/* The blocks at the peak by address; free() is due. */
const struct block **analysis_peak_blocks(const struct run *run, uint32_t series, size_t *count);

/* The same of blocks that a phase leaves behind, in `total`: allocated in one of its occurrences
 * but the first, which warms up, and the last, and live when the last one ended.  Those first that
 * leave the most behind the most often; free() is due. */
struct site_sum *analysis_survivors(const struct run *run, const struct phase *phase,
                                    size_t *count);

/* By how many bytes the memory in use grew per occurrence, from the end of the second one to the
 * end of the last; 0 with fewer than three. */
int64_t phase_growth(const struct phase *phase);

/* Blocks by the powers of two of size and lifetime. */
enum { SIZE_CLASSES = 48, LIFE_CLASSES = 64 }; /* the last lifetime: never freed */

void analysis_sizes(const struct run *run, uint32_t series,
                    struct rs_block_sum cells[SIZE_CLASSES][LIFE_CLASSES]);
