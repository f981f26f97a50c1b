/* SPDX-License-Identifier: Apache-2.0 */
/* A memory file that this process holds for those below it, which open it by /proc as an
 * environment variable says: "PID:DESCRIPTOR:INODE". */
#pragma once

#include <stddef.h>

/* Makes the file, zeroed, and sets the variable.  The memory, or NULL with errno.  The descriptor
 * stays open until this process ends. */
void *shared_file_make(const char *name, size_t bytes, const char *variable);
