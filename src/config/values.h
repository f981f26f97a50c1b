/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the environment variables, as they were written. */
#pragma once

#include "base/log.h"
#include "base/option.h"
#include "config/variables.h"
#include "resource/resource.h"

#include <stdbool.h>

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

/* Enters a value that another variable, `source`, gives for one of ours, unless there is one. */
void rs_config_enter(struct rs_config_values *values, int device, int index,
                     const struct rs_source *source, const struct rs_option_value *value);

/* Returns the value that a variable has for the device (-1: for all devices): that of the
 * device's own variable, else that for all devices; NULL when neither is set.  *source, unless
 * `source` is NULL, is the variable that gave it. */
const struct rs_option_value *rs_config_value(const struct rs_config_values *values, int device,
                                              int index, const struct rs_source **source);

/* True when `value`, which rs_config_value returned for the device, is of the device's own
 * variable. */
bool rs_config_is_own(const struct rs_config_values *values, int device,
                      const struct rs_option_value *value);
