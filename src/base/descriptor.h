/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors that the library keeps open in the program's process.  They get high numbers,
 * away from the program's, and are recognised before use: the program may close a descriptor
 * that it did not open and get the same number for a file of its own. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { RS_DESCRIPTOR_HIGH = 500 };

/* Duplicates fd to a number of RS_DESCRIPTOR_HIGH or more, or to any above stderr's where
 * RLIMIT_NOFILE is lower; close-on-exec.  Returns the copy, or -errno. */
int rs_descriptor_duplicate(int fd);

/* A descriptor and the file that it stood for when it was kept. */
struct rs_kept_descriptor {
    int fd;
    dev_t device;
    ino_t inode;
};

/* Takes fd over: closes it and keeps a high-numbered copy.  Returns false when the copy cannot
 * be made; fd is closed then too. */
bool rs_descriptor_keep(struct rs_kept_descriptor *kept, int fd);

/* Returns true while the number still stands for the file that was kept. */
bool rs_descriptor_is_kept(const struct rs_kept_descriptor *kept);

/* Closes the descriptor, unless its number stands for another file by now. */
void rs_descriptor_close(const struct rs_kept_descriptor *kept);
