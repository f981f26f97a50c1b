/* SPDX-License-Identifier: Apache-2.0 */
/* THE table of environment variables: parser, options of `rmmshim run`, help and manual come from
 * it. */
#pragma once

#include "base/option.h"

#include <stdbool.h>

enum rs_variable_index {
    RS_VARIABLE_RESOURCE,
    RS_VARIABLE_POOL_SIZE,
    RS_VARIABLE_POOL_MAX_SIZE,
    RS_VARIABLE_ARENA_SIZE,
    RS_VARIABLE_BINNING,
    RS_VARIABLE_MANAGED,
    RS_VARIABLE_ASYNC,
    RS_VARIABLE_FALLBACK,
    RS_VARIABLE_PREFETCH,
    RS_VARIABLE_MEMORY_TYPE,
    RS_VARIABLE_FREE,
    RS_VARIABLE_LIMIT,
    RS_VARIABLE_IPC,
    RS_VARIABLE_PINNED_RESOURCE,
    RS_VARIABLE_PINNED_POOL_SIZE,
    RS_VARIABLE_MANAGED_RESOURCE,
    RS_VARIABLE_MANAGED_POOL_SIZE,
    RS_VARIABLE_STATISTICS,
    RS_VARIABLE_TRACKING,
    RS_VARIABLE_LOG,
    RS_VARIABLE_CONTROL,
    RS_VARIABLE_VERBOSE,
    RS_VARIABLE_ON_ERROR,
    RS_VARIABLE_HOOKS,
};

enum { RS_VARIABLES_MAX = 32, RS_DEVICES_MAX = 64 };

/* Kinds of memory, each with stacks of its own. */
enum rs_kind { RS_KIND_DEVICE, RS_KIND_PINNED, RS_KIND_MANAGED, RS_KINDS };

/* Alignment and unit of blocks of managed memory, 64 KiB, so that no two blocks share a page:
 * advice, residency and prefetching apply to pages.  No machine that CUDA runs on has larger
 * ones (4 KiB; on AArch64 also 64 KiB). */
enum { RS_MANAGED_UNIT = 64 << 10 };

/* Words for reports: "device", "pinned", "managed". */
extern const char *const rs_kind_names[RS_KINDS];

/* Texts that follow "device 0" in a line: "", ", pinned memory", ", managed memory". */
extern const char *const rs_kind_texts[RS_KINDS];

/* A parameter in guides to RMM with the meaning of one of our variables. */
struct rs_guide_word {
    const char *name;   /* written as a variable: "RMM_INITIAL_POOL_SIZE" */
    bool lists_devices; /* where ours has a device's number behind it */
};

enum { RS_GUIDE_WORDS_MAX = 3 };

struct rs_variable {
    struct rs_option option; /* .name is the whole variable's: "RMM_POOL_SIZE" */
    struct rs_guide_word guide_words[RS_GUIDE_WORDS_MAX];
    bool per_device;    /* _<N> may follow */
    bool builds_a_part; /* of the kind's stack, so it contradicts the kind's expression */
    enum rs_kind kind;
};

/* Ended by a row without a name. */
extern const struct rs_variable rs_variables[];
