/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors that we keep in somebody else's process: away from the low numbers, and known
 * again, since the program may close what it did not open and get the number for a file of its own.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* A copy with a high number, or -errno. */
int rs_descriptor_duplicate(int fd);

struct rs_kept_descriptor {
    int fd;
    dev_t device;
    ino_t inode;
};

/* Takes the descriptor over (it is closed, a copy is kept).  False when that fails. */
bool rs_descriptor_keep(struct rs_kept_descriptor *kept, int fd);

/* True while the number still stands for that file. */
bool rs_descriptor_is_kept(const struct rs_kept_descriptor *kept);

/* Closes it, unless it stands for another file by now. */
void rs_descriptor_close(const struct rs_kept_descriptor *kept);
