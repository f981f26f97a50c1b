/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a document (report/document.h).  False, after a line on stderr, where that failed, or
 * where there was no memory for all of the document.  Not thread safe. */
#pragma once

#include "report/document.h"

bool print_text(const struct rs_node *root);
bool print_json(const struct rs_node *root);

/* To the descriptor; `name` begins the line. */
bool print_metrics(const struct rs_node *root, int fd, const char *name);
