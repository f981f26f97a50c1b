/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of processes, for which a process id does not suffice: the kernel reuses it, and each
 * PID namespace has its own.  And the environment with which this one was started. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { RS_PROCESS_TEXT_BYTES = 1024 };

/* Reads the beginning of /proc/PID/NAME of that process (0: the calling one), ended by a zero.
 * False when there is no such process or /proc does not tell. */
bool rs_process_read(pid_t process, const char *name, char text[RS_PROCESS_TEXT_BYTES]);

/* Returns the start time of that process (0: the calling one) in clock ticks since boot; -1 when
 * there is no such process or /proc does not tell. */
long long rs_process_start_ticks(pid_t process);

/* The same from the text of /proc/PID/stat. */
long long rs_process_start_ticks_in(const char *stat);

/* Returns the kernel's number of the calling thread. */
pid_t rs_process_thread(void);

/* Returns the inode number of the calling process's PID namespace; 0 when /proc does not tell. */
uint64_t rs_process_namespace(void);

enum { RS_BOOT_BYTES = 40 };

/* Writes the kernel's name of this boot into `text`, the rest of it zero; all zero when /proc does
 * not tell. */
void rs_process_boot(char text[RS_BOOT_BYTES]);

/* Returns the start time of the calling process in seconds since 1970; computed once, so that all
 * files of a process get the same time.  Thread safe. */
long long rs_process_start_seconds(void);

/* Returns the rank that the launcher gave the calling process, from RANK, OMPI_COMM_WORLD_RANK,
 * PMI_RANK or SLURM_PROCID; "" when none is set. */
const char *rs_process_rank(void);

/* Returns the number that a process has in its own PID namespace; 0 where the kernel does not say.
 * `directory` is the process's in /proc: "/proc/4711".  Not thread safe. */
int rs_process_own_number(const char *directory);

/* Parses the number of a process, a folder's name in /proc.  0 where the text is none. */
int rs_process_parse(const char *text);

/* True when the text of /proc/PID/stat is that of a process that has ended: of a zombie without
 * other threads.  A process whose first thread has ended before the others is a zombie to the
 * kernel, too. */
bool rs_process_stat_has_ended(const char *stat);

/* ---- the environment ----
 *
 * Any thread of the program may change the environment at any time, and libc moves it then.  So
 * what the library reads of it is copied once, before the program runs, and nothing of the library
 * looks at environ later. */

/* Keeps what the library reads, if there is a variable that begins with RMM_.  Only the first call
 * does; no other thread may change the environment meanwhile.  Asks nothing but the kernel, for
 * memory. */
void rs_environment_keep(void);

/* What has been kept, as an array like environ.  Where nothing has been, as in the tool: environ.
 */
char *const *rs_environment(void);

/* As getenv, of rs_environment().  %q{VAR} of the program's own calls may name another variable
 * than was kept: that one is read now. */
const char *rs_environment_get(const char *name);
