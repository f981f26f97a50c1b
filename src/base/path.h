/* SPDX-License-Identifier: Apache-2.0 */
/* File names with placeholders: %p process id, %h host, %e program ('/' in its name becomes
 * '_'), %t start time of the process (seconds since 1970), %r rank (RANK, OMPI_COMM_WORLD_RANK,
 * PMI_RANK or SLURM_PROCID, else 0), %q{VAR} an environment variable, %% a percent sign. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A buffer of PATH_MAX bytes until the end of the block: NULL when memory is short.  Not on the
 * stack, of which a thread or a coroutine of 16 KiB has too little for it: the functions that the
 * path is for need some 4 KiB. */
#define RS_PATH_BUFFER(name)                                                                       \
    char *const name __attribute__((cleanup(rs_path_buffer_give))) = rs_path_buffer_take()

char *rs_path_buffer_take(void);
void rs_path_buffer_give(char *const *buffer);

/* From now on rs_path_expand makes relative paths absolute, from the present working directory,
 * wherever the program changes to later.  Before this call they stay relative.  Not thread safe. */
void rs_path_keep_directory(void);

/* Expands `pattern` into `path`.  Returns false, with *at pointing to the place in `pattern` and
 * *reason to a static text, when a placeholder is unknown, its variable is not set, or the
 * result does not fit path_bytes. */
bool rs_path_expand(const char *pattern, char *path, size_t path_bytes, const char **at,
                    const char **reason);

/* Expands each %q{VAR} of [begin, end), and nothing else, into `text`.  False as rs_path_expand. */
bool rs_path_expand_variables(const char *begin, const char *end, char *text, size_t text_bytes,
                              const char **at, const char **reason);

/* Expands a pattern as rs_path_expand does, for a file of its own per device: device 1 gets
 * "log.dev1.csv" for "log.csv", the name that RMM's Python layer gives it.  Device 0 and paths
 * below /dev/ keep their name. */
bool rs_path_expand_for_device(const char *pattern, int device, char *path, size_t path_bytes,
                               const char **at, const char **reason);

/* Opens an output file for writing: creates it with mode 0600 or truncates it; close-on-exec.
 * Refuses symbolic links (O_NOFOLLOW), directories and FIFOs (-EINVAL), a file of another user
 * (-EPERM) and one with several hard links (-EMLINK): another user may have planted them.
 * Character devices such as /dev/null are allowed; /dev/stdout and /dev/stderr are duplicated.
 * Returns a descriptor or -errno. */
int rs_path_open_output(const char *path);

/* Opens an output file as rs_path_open_output does, but keeps its contents.  *created tells
 * whether this call created it. */
int rs_path_open_untouched(const char *path, bool *created);

/* True for /dev/stdout and /dev/stderr, which may lead to a file that the program writes to. */
bool rs_path_is_stream(const char *path);
