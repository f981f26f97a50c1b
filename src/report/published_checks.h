/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of another process's page (report/publish.h) before it is used: the process may
 * have been anything, and may write to the page while it is read.  So what is checked must be a
 * copy. */
#pragma once

#include "report/publish.h"

#include <stdbool.h>
#include <stdint.h>

enum { RS_PUBLISHED_STACKS_MAX = RS_DEVICES_MAX * RS_KINDS };

/* True for a file of a page's length that cannot shrink: a file that can would be a signal for who
 * has it mapped. */
bool rs_published_check_file(int fd);

/* True when the page is of this version's layout. */
bool rs_published_check_layout(const struct rs_publication *head);

/* True when a directory may lie at that offset. */
bool rs_published_check_place(uint64_t at);

/* The bytes of a directory that lies at that offset; 0 when it would reach beyond the file, or has
 * more stacks than there are. */
uint64_t rs_published_check_directory(uint64_t at, const struct rs_published_directory *directory);

/* True when the device and the kind exist. */
bool rs_published_check_stack(const struct rs_published_stack *stack);

/* True when names, kind and unit exist, and the fields lie in the file. */
bool rs_published_check_counter(const struct rs_published_counter *counter);
