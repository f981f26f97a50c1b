/* SPDX-License-Identifier: Apache-2.0 */
/* File names with placeholders: %p process id, %h host, %e program, %t start time (seconds since
 * 1970), %r rank (RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID, else 0), %q{VAR} an
 * environment variable, %% a percent sign. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Relative paths start from the working directory of now, wherever the program goes later.  Not
 * thread safe; before it is called they are left as they are. */
void rs_path_keep_directory(void);

/* Expands `pattern` into `path`.  False with *at at the place and *reason set when a placeholder is
 * unknown, its variable is not set, or the result does not fit. */
bool rs_path_expand(const char *pattern, char *path, size_t path_bytes, const char **at,
                    const char **reason);

/* The same for a file that each device has of its own: "log.dev1.csv", as RMM's Python layer names
 * them, for devices after the first.  Not so /dev/stderr and its like. */
bool rs_path_expand_for_device(const char *pattern, int device, char *path, size_t path_bytes,
                               const char **at, const char **reason);

/* Opens an output file: created or truncated, 0600, close-on-exec, never through a symbolic link
 * that another user planted (O_NOFOLLOW), never a directory or FIFO.  Devices such as /dev/stderr
 * and /dev/null are allowed.  Returns a descriptor or -errno. */
int rs_path_open_output(const char *path);

/* The same, but leaves what the file holds; *created tells whether there was none. */
int rs_path_open_untouched(const char *path, bool *created);

/* True for /dev/stdout and /dev/stderr, which may be a file that the program writes to. */
bool rs_path_is_stream(const char *path);
