/* SPDX-License-Identifier: Apache-2.0 */
/* JSON on stdout. */
#pragma once

#include "tool/view/row.h"

/* A plain text (tool/view/plain.h) in quotes. */
void json_put_text(const char *text);

/* An array of objects as tests/schema/processes.json describes them. */
void json_put_rows(const struct row *rows, size_t count);
