/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that have a form of their own.  The readers that rows of config/variables.def name
 * (READ_BY) are declared in config/variables.h; where the variable is not set none is called. */
#pragma once

#include "config/settings.h"

/* True for a text that names a report, or none: 0, 1, json:PATH ... */
bool rs_config_is_report(const char *text);

/* What report a text asks for ("json:PATH"), as RMM_STATISTICS's or (without Prometheus's format)
 * RMM_TRACKING's does; *path is left alone where it is stderr.  RS_STATISTICS_NONE where none is,
 * or after reporting it. */
enum rs_statistics_format rs_config_report(const struct rs_source *source, bool prometheus,
                                           const char **path, struct rs_diagnostics *diagnostics);
