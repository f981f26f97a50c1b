/* SPDX-License-Identifier: Apache-2.0 */
/* Files that another process of the same PID namespace has open, found by its number, a descriptor
 * there, and the inode, as the descriptor may stand for another file by now. */
#pragma once

#include <stdint.h>

/* Opens the file to read and write it.  The new descriptor, or -ESTALE. */
int rs_other_file_open(int process, int fd, uint64_t inode);

/* The same of "PID:DESCRIPTOR:INODE"; -EINVAL for another text. */
int rs_other_file_open_named(const char *where);
