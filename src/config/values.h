/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the environment variables, as they were written. */
#pragma once

#include "base/log.h"
#include "base/option.h"
#include "config/variables.h"
#include "resource/resource.h"

#include <stdbool.h>
#include <stddef.h>

/* The variables for all devices, or those for one device. */
struct rs_config_scope {
    struct rs_source source[RS_VARIABLE_COUNT]; /* owned texts; .text NULL: not set */
    struct rs_option_value value[RS_VARIABLE_COUNT];
};

struct rs_config_values {
    struct rs_config_scope general;
    struct rs_config_scope *device[RS_DEVICES_MAX];
};

/* Frees the values and all that they own. */
void rs_config_values_free(struct rs_config_values *values);

/* Reads one entry of the environment ("NAME=TEXT") if its name is one of ours, and writes a
 * diagnostic if the name or the value is wrong.  The first of two equal names counts.  True when a
 * name of ours is set. */
bool rs_config_read_entry(struct rs_config_values *values, const char *entry,
                          struct rs_diagnostics *diagnostics);

/* Writes a diagnostic if the name of an entry (its text) may be meant as one of ours; unless
 * `is_error`, it is a line that does not count. */
void rs_config_doubt(const char *text, bool is_error, struct rs_diagnostics *diagnostics);

/* Logs each entry that begins with RMM_ and is none of ours (RMM_VERBOSE). */
void rs_config_say_ignored(char *const *environment);

/* Returns the value that a variable has for the device (-1: for all devices): that of the
 * device's own variable, else that for all devices; NULL when neither is set.  *source, unless
 * `source` is NULL, is the variable that gave it. */
const struct rs_option_value *rs_config_value(const struct rs_config_values *values, int device,
                                              int index, const struct rs_source **source);

/* True when `value`, which rs_config_value returned for the device, is of the device's own
 * variable. */
bool rs_config_is_own(const struct rs_config_values *values, int device,
                      const struct rs_option_value *value);

/* ---- names: ours, other programs', and what may be a misspelling of ours ---- */

/* Ignoring a misspelling in silence could run a job without its limit, and taking it for an error
 * could end a program that has variables of its own. */
enum rs_name_kind {
    RS_NAME_FOREIGN, /* another program's: ignored */
    RS_NAME_OURS,    /* a row of rs_variables */
    RS_NAME_WRONG,   /* one of ours in another case, or with a bad device: an error */
    RS_NAME_DOUBTFUL /* like one of ours: an error where a setting of ours stands beside it */
};

enum { RS_NAME_BYTES_MAX = 128, RS_NAME_REASON_BYTES = 192 };

struct rs_name {
    enum rs_name_kind kind;
    int index;                         /* OURS: the index of its row in rs_variables */
    int device;                        /* OURS: the device that _<N> names; -1: all devices */
    char reason[RS_NAME_REASON_BYTES]; /* WRONG, DOUBTFUL: the diagnostic's text */
};

/* Patterns of names that begin with RMM_ and are in use elsewhere; ended by NULL. */
extern const char *const rs_names_elsewhere[];

/* True for a name that begins with RMM_, in upper or lower case; rs_name_read must judge it. */
bool rs_name_begins_as_ours(const char *name);

/* Judges a name that is shorter than RS_NAME_BYTES_MAX. */
void rs_name_read(const char *name, struct rs_name *read);

/* ---- the variables of HAMi ---- */

/* RMM_COMPAT=hami: CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_MEMORY_LIMIT_<N>, with values as
 * HAMi-core reads them, stand for RMM_LIMIT and RMM_LIMIT_<N>.  Where RMM_LIMIT is set they are not
 * taken.
 *
 * Enters the limits of `environment` into the values, which all RMM_ variables are in, if
 * RMM_COMPAT asks for it. */
void rs_config_read_compat(struct rs_config_values *values, char *const *environment,
                           struct rs_diagnostics *diagnostics);

/* Logs for each such variable of `environment` what it has become (RMM_VERBOSE). */
void rs_config_say_compat(const struct rs_config_values *values, char *const *environment);

/* True for an entry of an environment that sets such a limit, of *device (-1: all); also where the
 * value is malformed, so that the error is found. */
bool rs_config_is_compat_limit(const char *entry, int *device);
