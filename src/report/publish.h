/* SPDX-License-Identifier: Apache-2.0 */
/* The page: the data that a served process publishes about itself in its memory file
 * (shared/published.h).  It begins with struct rs_publication, which names the process and the
 * place of its report; its directory lists the fields that make up each counter.  `rmmshim ls`,
 * `top` and `stats` read the page while the process runs, `rmmshim run` after its end.  A layout
 * belongs to one version of the project: readers refuse any other. */
#pragma once

#include "base/output.h"
#include "config/config.h"
#include "resource/expression.h"
#include "resource/report.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define RS_PUBLICATION_LAYOUT "rmmshim " RMMSHIM_VERSION " 5"

enum {
    RS_PUBLISHED_PROGRAM_BYTES = 256,
    RS_PUBLISHED_RESOURCE_BYTES = 24,
    RS_PUBLISHED_NAME_BYTES = 40,
    RS_PUBLISHED_RANK_BYTES = 16,
    RS_PUBLISHED_UUID_BYTES = 16,
    RS_PUBLISHED_REFUSAL_BYTES = 8 << 10,
};

/* The reports that a process will write at exit, as bits of `has_report`. With
 * RS_PUBLISHED_STATISTICS `format` and `path` are set, and for a file also the fields from
 * `file_device` to `changed`. If `format` is RS_STATISTICS_NONE, there is no report all the
 * same. */
enum rs_published_reports { RS_PUBLISHED_STATISTICS = 1, RS_PUBLISHED_LEAKS = 2 };

/* How far the process is with its report at exit. */
enum rs_report_step { RS_REPORT_NOT_BEGUN, RS_REPORT_BEGUN, RS_REPORT_DONE };

/* The report of the latest request that was refused for want of memory.  `sequence` is odd while
 * the text is being written.  A reader's copy is good if `sequence` was even before and is the same
 * after. */
struct rs_published_refusal {
    _Atomic uint32_t sequence; /* 0: no report is kept here */
    char text[RS_PUBLISHED_REFUSAL_BYTES];
};

/* Calls about one kind of memory that no stack served.  Frees of managed memory count in the entry
 * of device memory, since cuMemFree frees both. */
struct rs_published_forwarded {
    _Atomic uint64_t allocations;
    _Atomic uint64_t repeated; /* allocations made after a block was freed; each freed block counts
                                  for one allocation */
    _Atomic uint64_t freed; /* freed blocks that have not yet been counted for a later allocation */
};

/* The beginning of the file. */
struct rs_publication {
    char layout[32];
    int32_t process;
    int32_t format;                   /* enum rs_statistics_format */
    _Atomic uint32_t report;          /* enum rs_report_step */
    _Atomic uint32_t has_report;      /* which reports are asked for (enum rs_published_reports) */
    char path[PATH_MAX];              /* the report's file; empty: stderr */
    uint64_t file_device, file_inode; /* the identity of that file, as the process sees it */
    /* When the report's file was last changed before the process claimed it. */
    struct timespec changed;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    char rank[RS_PUBLISHED_RANK_BYTES]; /* the process's rank in its job; empty: unknown */
    _Atomic uint64_t directory; /* the directory's offset in the file; 0: none yet. A new directory
                                   replaces it */
    struct rs_published_refusal refusal;
    struct rs_published_forwarded forwarded[RS_KINDS];
};

/* A struct rs_term for other processes: it has the offset of the first field in the file instead of
 * the address. */
struct rs_published_term {
    uint64_t offset;
    uint32_t count, stride_bytes;
    int64_t scale;
};

/* A struct rs_counter; `stack` is the index of its stack in the directory. */
struct rs_published_counter {
    char resource[RS_PUBLISHED_RESOURCE_BYTES];
    char name[RS_PUBLISHED_NAME_BYTES];
    uint32_t stack, kind, unit, term_count;
    uint64_t past;
    struct rs_published_term terms[RS_TERMS_MAX];
};

/* The stacks of one kind on one device. */
struct rs_published_stack {
    int32_t device, kind;
    uint64_t device_total_bytes;                        /* 0: unknown */
    unsigned char device_uuid[RS_PUBLISHED_UUID_BYTES]; /* all zero: unknown */
    char expression[RS_EXPRESSION_TEXT_BYTES];
};

/* The header of a directory.  The stacks follow it, then the counters in the order of their stacks.
 */
struct rs_published_directory {
    uint32_t stack_count, counter_count;
};

/* Makes the page, and offers it to the `rmmshim run` under which the process runs, if there is one.
 * Must be called before any object is allocated that will be published. Not thread safe. */
void rs_publish_begin(void);

/* Called after stacks were made or dropped. Writes a new directory. With more than 16 stacks it
 * does so only after more than an eighth of them were made or dropped; until then the directory may
 * list dropped stacks and lack new ones. Accounts and the program's own counters are always up to
 * date. The caller does not hold the contexts' lock. Thread safe. */
void rs_publish_stacks(void);

/* Publishes the report's format and file; a NULL output is stderr. */
void rs_publish_report_file(enum rs_statistics_format format, const struct rs_output *output);

/* Publishes that a leak report is asked for. */
void rs_publish_leak_report(void);

/* True when `rmmshim run` holds the page, which can then be read after this process has ended. */
bool rs_publish_is_held(void);

/* Stores the report of a refused request in the page, in place of the previous one. A text that is
 * too long is cut off. Called only if rs_publish_is_held is true. Not thread safe. */
void rs_publish_refusal(const char *text);

/* Count an allocation or a free of the program that the driver serves. The kind of a free is device
 * or pinned: since cuMemFree frees managed memory too, such a free counts as one of device memory.
 * Called only where stacks serve (config/mode.h). */
void rs_publish_forwarded(enum rs_kind kind);
void rs_publish_forwarded_free(enum rs_kind kind);

/* Publishes how far the process is with its report. */
void rs_publish_report_step(enum rs_report_step step);

/* ---- checks of another process's page before it is used ----
 *
 * The other process may be any program, and may write to the page while it is read.  So the checks
 * must be made on a copy. */

enum { RS_PUBLISHED_STACKS_MAX = RS_DEVICES_MAX * RS_KINDS };

/* Opens the page of the process whose directory in /proc is `process`, and returns what
 * rs_memory_file_find returns. It looks only at descriptors from `first` on, until deadline_ns (0:
 * no limit). */
int rs_published_find(const char *process, int first, uint64_t deadline_ns);

/* True for a file that has a page's length and cannot shrink.  If a mapped file shrinks, reading it
 * raises SIGBUS. */
bool rs_published_check_file(int fd);

/* True when the page has this version's layout. */
bool rs_published_check_layout(const struct rs_publication *head);

/* True when a directory may lie at that offset. */
bool rs_published_check_place(uint64_t at);

/* Returns the length in bytes of a directory that lies at that offset; 0 when it would reach beyond
 * the file, or has more stacks than a process can have. */
uint64_t rs_published_check_directory(uint64_t at, const struct rs_published_directory *directory);

/* True when the device and the kind exist. */
bool rs_published_check_stack(const struct rs_published_stack *stack);

/* True when this version of the library has the counter, its kind and its unit, and the counter's
 * fields lie in the file. */
bool rs_published_check_counter(const struct rs_published_counter *counter);
