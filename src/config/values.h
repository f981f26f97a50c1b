/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the variables, as they were written. */
#pragma once

#include "base/diagnostic.h"
#include "base/option.h"
#include "config/variables.h"
#include "resource/resource.h"

#include <stdbool.h>

/* The variables for all devices, or for one. */
struct rs_config_scope {
    struct rs_source source[RS_VARIABLE_COUNT]; /* owned texts; .text NULL: not set */
    struct rs_option_value value[RS_VARIABLE_COUNT];
};

struct rs_config_values {
    struct rs_config_scope general;
    struct rs_config_scope *device[RS_DEVICES_MAX];
};

void rs_config_values_free(struct rs_config_values *values);

/* Reads one entry of the environment ("NAME=TEXT"), if it is one of ours.  Reports what is
 * wrong with it. */
void rs_config_read_entry(struct rs_config_values *values, const char *entry,
                          struct rs_diagnostics *diagnostics);

/* What the variable is set to for the device (-1: for all devices), NULL: it is not.  *source,
 * where that is asked for, is the variable that says so. */
const struct rs_option_value *rs_config_value(const struct rs_config_values *values, int device,
                                              int index, const struct rs_source **source);

/* True when a device's own variable says so, and not the one for all devices. */
bool rs_config_is_own(const struct rs_config_values *values, int device,
                      const struct rs_option_value *value);
