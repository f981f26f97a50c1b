/* SPDX-License-Identifier: Apache-2.0 */
/* A memory file that processes of a `run` share with it. */
#pragma once

#include <stddef.h>

/* Makes the file, zeroed, and maps it.  *fd stays open.  Returns NULL with errno. */
void *shared_file_make(const char *name, size_t bytes, int *fd);
