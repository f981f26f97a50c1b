/* SPDX-License-Identifier: Apache-2.0 */
/* The settings: what the environment variables (config/variables.def) mean for each device.
 *
 * A stack is a tree of memory resources that serves one kind of memory. RMM_RESOURCE gives it as an
 * expression. Other variables (RMM_POOL_SIZE, for example) give parts of such an expression, so
 * that the common cases need no grammar. A variable with _0, _1 ... at the end of its name is for
 * that device alone. */
#pragma once

#include "resource/expression.h"

/* ---- the variables as data: what config/variables.def lists ---- */

enum rs_variable_index {
#define VARIABLE(name, ...) RS_VARIABLE_##name,
#include "config/variables.def"
    RS_VARIABLE_COUNT,
};

enum { RS_DEVICES_MAX = 64 };

/* Kinds of memory that the program allocates, each with stacks of its own. */
enum rs_kind { RS_KIND_DEVICE, RS_KIND_PINNED, RS_KIND_MANAGED, RS_KINDS };

/* Alignment and unit of blocks of managed memory, 64 KiB, so that no two blocks share a page:
 * advice, residency and prefetching apply to whole pages.  No machine that CUDA runs on has larger
 * pages (4 KiB; on AArch64 also 64 KiB). */
enum { RS_MANAGED_UNIT = 64 << 10 };

/* Words for reports: "device", "pinned", "managed". */
extern const char *const rs_kind_names[RS_KINDS];

/* Texts that follow "device 0" in a line: "", ", pinned memory", ", managed memory". */
extern const char *const rs_kind_texts[RS_KINDS];

/* For each kind, the variable that describes its whole stack. */
extern const int rs_kind_whole[RS_KINDS];

/* A parameter's name in guides to RMM, which means the same as a variable of ours. */
struct rs_guide_word {
    const char *name;   /* written as a variable: "RMM_INITIAL_POOL_SIZE" */
    bool lists_devices; /* the parameter lists a value for each device; the name of our variable
                           ends with the number of one device */
};

enum { RS_GUIDE_WORDS_MAX = 3 };

/* What a variable is for.  The help about variables has a part for each group. */
enum rs_group {
    RS_GROUP_NONE, /* the row names no group: no help shows the variable, and the test
                      `completion_bash` fails */
    RS_GROUP_LIMITS,
    RS_GROUP_STACK, /* the stack of device memory */
    RS_GROUP_OTHER_KINDS,
    RS_GROUP_REPORTS,
    RS_GROUP_PROCESS, /* which processes are served, and what they notice of it */
    RS_GROUPS,
};

/* The arguments of a function that reads a variable's value and fills in fields of `config`. */
struct rs_reading {
    const struct rs_option_value *value;
    const struct rs_source *source;
    struct rs_diagnostics *diagnostics;
    struct rs_config *config;
};

struct rs_variable {
    struct rs_option option; /* .name is the variable's whole name, as in "RMM_POOL_SIZE" */
    bool fills_a_field;      /* the value goes to the field of struct rs_config at .option.offset */
    /* Fills in fields, and reports what is wrong with the text; NULL: the row has no reader. */
    void (*read)(const struct rs_reading *reading);
    struct rs_guide_word guide_words[RS_GUIDE_WORDS_MAX];
    bool is_report; /* the variable asks for a report; its option of `rmmshim run` may stand without
                       a value, as a switch may */
    bool per_device;    /* the name may end in _<N>, for device N alone */
    bool builds_a_part; /* the variable describes a part of its kind's stack, so it cannot be set
                           together with the variable that gives the whole stack as an expression */
    bool is_common;     /* the short help shows the variable */
    enum rs_group group;
    enum rs_kind kind;
};

/* The rows, in the order of config/variables.def; a row without a name ends them. */
extern const struct rs_variable rs_variables[];

/* ---- the settings of a process, as the rest of the library reads them ---- */

/* RMM_ON_ERROR: what happens after a bad setting. */
enum rs_on_error {
    RS_ON_ERROR_ABORT,       /* the process ends with exit code 78 */
    RS_ON_ERROR_PASSTHROUGH, /* every call goes to the driver */
    RS_ON_ERROR_DENY         /* allocations return CUDA_ERROR_OUT_OF_MEMORY */
};

/* RMM_FREE: when a freed block is reused. */
enum rs_free_mode {
    RS_FREE_MODE_DEFERRED, /* after all earlier work of its context; the free does not wait (with a
                              driver before 555 it does, for pinned memory seldom) */
    RS_FREE_MODE_WAIT,     /* after all earlier work of its context, for which the free waits */
    RS_FREE_MODE_IMMEDIATE /* at once for device memory; for other memory as deferred */
};

/* RMM_IPC: which blocks cudaIpcGetMemHandle can export. */
enum rs_ipc {
    RS_IPC_SHARED,   /* any block; the importing process must run rmmshim, too */
    RS_IPC_DEDICATED /* each block is an allocation of the driver's, which any process can open */
};

/* RMM_MEMORY_TYPE: how pointer attributes describe device memory that lies in other memory. */
enum rs_memory_type_word {
    RS_MEMORY_TYPE_REQUESTED, /* as device memory, for which the program asked */
    RS_MEMORY_TYPE_ACTUAL     /* as the memory in which it lies */
};

/* How the process takes commands from outside (shared/commands.h). */
enum rs_control {
    RS_CONTROL_UNASKED, /* RMM_CONTROL is not set: at its calls, but the process is not served for
                           that alone */
    RS_CONTROL_CALLS,   /* at its calls */
    RS_CONTROL_THREAD,  /* at its calls, and between them in a thread that the library starts */
};

/* RMM_FALLBACK: the memory that serves when the device has none left. */
enum rs_fallback { RS_FALLBACK_MANAGED, RS_FALLBACK_PINNED };

/* RMM_STATISTICS, RMM_TRACKING, RMM_ON_OOM: the format of a report. */
enum rs_statistics_format {
    RS_STATISTICS_NONE, /* no report */
    RS_STATISTICS_TEXT,
    RS_STATISTICS_JSON,
    RS_STATISTICS_PROMETHEUS,
    RS_STATISTICS_PROMETHEUS_ALL, /* with each counter of each resource */
};

/* Groups of entry points that RMM_HOOKS switches on. */
enum {
    RS_HOOK_GROUP_DEVICE = 1 << 0,
    RS_HOOK_GROUP_PINNED = 1 << 1,
    RS_HOOK_GROUP_MANAGED = 1 << 2,
    RS_HOOK_GROUP_RUNTIME = 1 << 3,
    RS_HOOK_GROUP_ASYNC = 1 << 4,
    RS_HOOK_GROUPS_ALL = (1 << 5) - 1,
    /* All but async, for which the user must ask: the driver's stream-ordered memory outlives
     * contexts, is accessible to the devices that its pool names, and is counted in that pool. None
     * of this holds for blocks of a stack. */
    RS_HOOK_GROUPS_DEFAULT = RS_HOOK_GROUPS_ALL & ~RS_HOOK_GROUP_ASYNC,
};

/* The settings of the process.  A field that a row of config/variables.def names is filled in from
 * that variable. */
struct rs_config {
    bool anything_set; /* false: no variable gives a stack, so every call is forwarded */
    const struct rs_source *limit_job; /* RMM_LIMIT_JOB, or NULL */
    struct rs_size limit_job_size;     /* the value of RMM_LIMIT_JOB, if it is set */
    const char *job_path;              /* RMM_JOB, or NULL */
    const struct rs_source *any_limit; /* RMM_LIMIT of some device; NULL: no device has a limit */
    enum rs_on_error on_error;
    bool verbose;
    enum rs_control control;
    bool nvtx_phases; /* RMM_PHASES=nvtx */
    unsigned hook_groups;
    enum rs_statistics_format statistics;
    const char *statistics_path;        /* NULL: stderr */
    enum rs_statistics_format tracking; /* the leak report; never for Prometheus */
    const char *tracking_path;
    enum rs_statistics_format on_oom; /* the report at out-of-memory; never for Prometheus */
    const char *on_oom_path;
    bool on_oom_given; /* false: RMM_ON_OOM is not set, which differs from RMM_ON_OOM=0 */
    enum rs_memory_type_word memory_type;

    /* The stacks, by kind and device; NULL: the driver's own allocations.  The last element is
     * for devices without settings of their own. */
    struct rs_expression *stack[RS_KINDS][RS_DEVICES_MAX + 1];

    struct rs_config_values *values; /* private */
};

/* Reads `environment`, an array like environ, into *config.  Writes a diagnostic for each bad
 * setting.  Returns the number of diagnostics; config->on_error is valid in any case.  The
 * config lives until rs_config_free. */
unsigned rs_config_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                         struct rs_config *config);

/* Frees all that the config owns and leaves it empty, so that it may be freed again. */
void rs_config_free(struct rs_config *config);

/* Returns the expression for a kind of memory on a device; NULL: the driver's own allocations
 * serve. */
const struct rs_expression *rs_config_stack(const struct rs_config *config, enum rs_kind kind,
                                            int device);

/* Returns how many variables are set for devices that do not exist, with numbers of `devices` or
 * more. If there are any, *first is the first of these variables and *first_device its device. */
unsigned rs_config_count_absent(const struct rs_config *config, int devices,
                                const struct rs_source **first, int *first_device);

/* Returns RMM_LIMIT for the device (-1: for all devices) as it was written, not resolved to
 * bytes; NULL when it is not set. */
const struct rs_size *rs_config_limit(const struct rs_config *config, int device);

/* True for a text that may be the value of a variable that asks for a report: 0, 1, none, text,
 * json:PATH and so on.  What follows the colon is not checked. */
bool rs_config_is_report(const char *text);

/* Parses a text that asks for a report, as RMM_STATISTICS does ("json:PATH").  Returns the format,
 * and stores the path in *path, which is unchanged for stderr.  Returns RS_STATISTICS_NONE if the
 * text asks for no report, or after a diagnostic about the format.  After a diagnostic about the
 * path it returns the format, and *path is unchanged. */
enum rs_statistics_format rs_config_report(const struct rs_source *source, const char **path,
                                           struct rs_diagnostics *diagnostics);

/* If compute-sanitizer runs this process and blocks share driver allocations, logs once how to give
 * each block an allocation of its own. compute-sanitizer checks accesses against driver
 * allocations, so it misses an access from one block to another in the same allocation. */
void rs_sanitizer_advise(const struct rs_config *config);

/* ---- expressions from the settings (config/stacks.c) ---- */

/* Builds the stack for a kind of memory on a device (-1: for devices without settings of their
 * own), if the settings ask for one, and stores it in config->stack.  The stack stays NULL after a
 * diagnostic, or when out of host memory. */
void rs_config_build_stack(struct rs_config *config, enum rs_kind kind, int device,
                           struct rs_diagnostics *diagnostics);

/* Builds a stack for device memory from an expression that the process itself gives. Applies
 * RMM_FREE and RMM_IPC as set for all devices. Returns NULL after a diagnostic, or when out of host
 * memory. `source` and `config` must outlive the result. */
struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_diagnostics *diagnostics);

/* Checks that no resource of the stack has an initial size above limit_bytes (0: no limit). If one
 * has, writes a diagnostic and returns false. If `environment` is NULL, initial sizes in percent
 * are not checked, since their bytes depend on the device. */
bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_environment *environment,
                          struct rs_diagnostics *diagnostics);

/* ---- the variables' values, as they were written (config/values.c) ---- */

/* The variables for all devices, or those for one device. */
struct rs_config_scope {
    struct rs_source source[RS_VARIABLE_COUNT]; /* the texts are owned; .text is NULL if the
                                                   variable is not set */
    struct rs_option_value value[RS_VARIABLE_COUNT];
};

struct rs_config_values {
    struct rs_config_scope general;
    struct rs_config_scope *device[RS_DEVICES_MAX];
};

/* Frees the values and all that they own. */
void rs_config_values_free(struct rs_config_values *values);

/* Reads one entry of the environment ("NAME=TEXT") if its name is one of ours, and writes a
 * diagnostic if the name or the value is wrong.  The first of two equal names counts.  Returns true
 * when the name is one of ours and TEXT is not empty. */
bool rs_config_read_entry(struct rs_config_values *values, const char *entry,
                          struct rs_diagnostics *diagnostics);

/* Writes a diagnostic if the name in `text`, an entry of the environment, may be a misspelt name of
 * ours. If is_error is false, the diagnostic says that the variable is ignored, and does not count
 * as one. */
void rs_config_doubt(const char *text, bool is_error, struct rs_diagnostics *diagnostics);

/* Logs each entry that begins with RMM_ and belongs to another program (RS_NAME_FOREIGN). Called
 * for RMM_VERBOSE. */
void rs_config_say_ignored(char *const *environment);

/* What a variable is set to.  Both pointers are NULL if it is not set. */
struct rs_setting {
    const struct rs_option_value *value;
    const struct rs_source *source; /* the variable that gave it */
    bool is_own; /* the value is from the device's own variable, not from the one for all devices */
};

/* Returns what a variable is set to for the device (-1: for all devices): by the device's own
 * variable, else by the variable for all devices. */
struct rs_setting rs_config_value(const struct rs_config_values *values, int device, int index);

/* ---- names: ours, other programs', and what may be a misspelling of ours ---- */

/* How a name that begins with RMM_ is judged.  If misspelt names were ignored silently, a job could
 * run without its limit; if every unknown name were an error, a program that has RMM_ variables of
 * its own could not run. */
enum rs_name_kind {
    RS_NAME_FOREIGN, /* another program's: ignored */
    RS_NAME_OURS,    /* a row of rs_variables */
    RS_NAME_WRONG,   /* one of ours in another case, or with a bad device: an error */
    RS_NAME_DOUBTFUL /* similar to one of ours: an error if a variable of ours is set too or
                        `rmmshim run` has started the process, else ignored with a warning */
};

enum { RS_NAME_BYTES_MAX = 128, RS_NAME_REASON_BYTES = 192 };

struct rs_name {
    enum rs_name_kind kind;
    int index;                         /* OURS: the index of its row in rs_variables */
    int device;                        /* OURS: the device that _<N> names; -1: all devices */
    char reason[RS_NAME_REASON_BYTES]; /* WRONG, DOUBTFUL: the diagnostic's text */
};

/* Patterns of names that begin with RMM_ and belong to other software; ended by NULL. */
extern const char *const rs_names_elsewhere[];

/* True for a name that begins with RMM_, in upper or lower case. Such a name may still be another
 * program's (rs_name_read). */
bool rs_name_begins_as_ours(const char *name);

/* Judges a name that is shorter than RS_NAME_BYTES_MAX. */
void rs_name_read(const char *name, struct rs_name *read);

/* ---- the variables of HAMi ---- */

/* RMM_COMPAT=hami: CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_MEMORY_LIMIT_<N>, with values as
 * HAMi-core reads them, stand for RMM_LIMIT and RMM_LIMIT_<N>. If RMM_LIMIT is set, all of HAMi's
 * variables are ignored. If RMM_LIMIT_<N> is set, that of device N is.
 *
 * Adds the limits of `environment` to the values if RMM_COMPAT asks for that. Must be called after
 * all RMM_ variables have been read. */
void rs_config_read_compat(struct rs_config_values *values, char *const *environment,
                           struct rs_diagnostics *diagnostics);

/* Logs for each of HAMi's variables in `environment` how it is read, or why it is ignored
 * (RMM_VERBOSE). */
void rs_config_say_compat(const struct rs_config_values *values, char *const *environment);

/* True for an entry of an environment by which HAMi sets a limit, or tries to with a malformed
 * value, so that it is reported. *device is then the limit's device (-1: all devices). */
bool rs_config_is_compat_limit(const char *entry, int *device);
