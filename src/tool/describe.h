/* SPDX-License-Identifier: Apache-2.0 */
/* Texts about descriptors and option rows, for listings and for the manual.  A function with a
 * `text` argument writes there and returns it. */
#pragma once

#include "config/config.h"
#include "resource/resource.h"

enum { DESCRIBE_BYTES = 256 };

/* Returns "leaf", "1 upstream" or "2 upstreams". */
const char *describe_kind(const struct rs_mr_descriptor *descriptor);

/* Returns RMM's names for a resource or an option, separated by ", ". */
const char *describe_aliases(const char *const *aliases, size_t count, char text[DESCRIBE_BYTES]);
const char *describe_option_aliases(const struct rs_option *row, char text[DESCRIBE_BYTES]);

/* Returns the default as a user would write it; "" if there is none. */
const char *describe_default(const struct rs_option *row);

/* Returns the option of `rmmshim run` for a variable: "--pool-size" for RMM_POOL_SIZE. */
const char *describe_option_name(const char *name, char text[DESCRIBE_BYTES]);
const char *describe_run_option(const struct rs_variable *variable, char text[DESCRIBE_BYTES]);

/* True for an option that may stand without a value: --managed means --managed=1, and --statistics
 * means --statistics=1. */
bool describe_is_switch(const struct rs_variable *variable);
