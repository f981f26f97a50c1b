/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables as data: what config/variables.def lists. */
#pragma once

#include "base/option.h"

#include <stdbool.h>

enum rs_variable_index {
#define VARIABLE(name, ...) RS_VARIABLE_##name,
#include "config/variables.def"
    RS_VARIABLE_COUNT,
};

enum { RS_DEVICES_MAX = 64 };

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

/* The variable of each kind that gives all of its stack. */
extern const int rs_kind_whole[RS_KINDS];

/* A parameter in guides to RMM with the meaning of one of our variables. */
struct rs_guide_word {
    const char *name;   /* written as a variable: "RMM_INITIAL_POOL_SIZE" */
    bool lists_devices; /* where ours has a device's number behind it */
};

enum { RS_GUIDE_WORDS_MAX = 3 };

/* What variables are for: the parts of the help about them. */
enum rs_group {
    RS_GROUP_LIMITS,
    RS_GROUP_STACK, /* of device memory */
    RS_GROUP_OTHER_KINDS,
    RS_GROUP_REPORTS,
    RS_GROUP_PROCESS, /* which processes are served, and what they notice of it */
    RS_GROUPS,
};

struct rs_config;

/* What a reader of a variable is given, of which it fills the fields of `config`. */
struct rs_reading {
    const struct rs_option_value *value;
    const struct rs_source *source;
    struct rs_diagnostics *diagnostics;
    struct rs_config *config;
};

struct rs_variable {
    struct rs_option option; /* .name is the whole variable's: "RMM_POOL_SIZE" */
    bool fills_a_field;      /* .option.offset is that of the field of struct rs_config */
    /* Fills the fields, and reports what is wrong with the text; NULL: no such function. */
    void (*read)(const struct rs_reading *reading);
    struct rs_guide_word guide_words[RS_GUIDE_WORDS_MAX];
    bool is_report;     /* an option of `rmmshim run` may stand without a value, as a switch may */
    bool per_device;    /* _<N> may follow */
    bool builds_a_part; /* of the kind's stack, so it contradicts the kind's expression */
    bool is_common;     /* among the few that a newcomer is shown */
    enum rs_group group;
    enum rs_kind kind;
};

/* Ended by a row without a name. */
extern const struct rs_variable rs_variables[];
