/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors and rows in words, for listings and for the manual. */
#pragma once

#include "config/config.h"
#include "resource/resource.h"

enum { DESCRIBE_BYTES = 256 };

/* "leaf", "over one", "over two". */
const char *describe_kind(const struct rs_mr_descriptor *descriptor);

/* What a caller may expect of its free. */
const char *describe_free(const struct rs_mr_descriptor *descriptor);

/* RMM's names, separated by ", ". */
const char *describe_aliases(const char *const *aliases, size_t count, char text[DESCRIBE_BYTES]);
const char *describe_option_aliases(const struct rs_option *row, char text[DESCRIBE_BYTES]);

/* The default as it would be written; "" where there is none. */
const char *describe_default(const struct rs_option *row);

/* A size or a value as it would be written; percentages stay percentages. */
const char *describe_size(struct rs_size size, char text[DESCRIBE_BYTES]);
const char *describe_value(const struct rs_option *row, const struct rs_option_value *value,
                           char text[DESCRIBE_BYTES]);

/* "--pool-size" of RMM_POOL_SIZE. */
const char *describe_option_name(const char *name, char text[DESCRIBE_BYTES]);
const char *describe_run_option(const struct rs_variable *variable, char text[DESCRIBE_BYTES]);

/* True for what may stand without a value: --managed means --managed=1. */
bool describe_is_switch(const struct rs_variable *variable);
