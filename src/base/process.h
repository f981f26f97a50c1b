/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of processes.  A process id does not suffice, since the kernel reuses ids and each PID
 * namespace has its own.  Also the environment with which the calling process was started. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { RS_PROCESS_TEXT_BYTES = 1024 };

/* Reads the beginning of /proc/PID/NAME of a process (0: the calling one), ended by a zero byte.
 * Returns false when the file is empty or cannot be read: the process may have ended. */
bool rs_process_read(pid_t process, const char *name, char text[RS_PROCESS_TEXT_BYTES]);

/* Returns the start time of a process (0: the calling one) in clock ticks since boot; -1 when there
 * is no such process or /proc does not tell. */
long long rs_process_start_ticks(pid_t process);

/* Finds the start time in the text of /proc/PID/stat; -1 when the text does not have it. */
long long rs_process_start_ticks_in(const char *stat);

/* Returns the kernel's number of the calling thread, as gettid() does. */
pid_t rs_process_thread(void);

/* Returns the inode number of the calling process's PID namespace; 0 when /proc does not tell. */
uint64_t rs_process_namespace(void);

enum { RS_BOOT_BYTES = 40 };

/* Writes the kernel's boot_id, which is new at each boot, into `text` and fills the rest with
 * zeros; all zeros when /proc does not tell. */
void rs_process_boot(char text[RS_BOOT_BYTES]);

/* Returns the start time of the calling process in seconds since 1970; computed once, so that all
 * files of a process get the same time.  Thread safe. */
long long rs_process_start_seconds(void);

/* Returns the rank that the launcher gave the calling process, from RANK, OMPI_COMM_WORLD_RANK,
 * PMI_RANK or SLURM_PROCID; "" when none is set. */
const char *rs_process_rank(void);

/* Returns the number that a process has in its own PID namespace; 0 where the kernel does not say.
 * `directory` is the process's directory in /proc: "/proc/4711".  Not thread safe. */
int rs_process_own_number(const char *directory);

/* Parses a process id, which is the name of a folder in /proc.  Returns 0 for any other text. */
int rs_process_parse(const char *text);

/* True when the text of /proc/PID/stat shows that the process has ended: it is a zombie and has no
 * other threads.  (The kernel also shows a process as a zombie whose first thread has ended while
 * others run.) */
bool rs_process_stat_has_ended(const char *stat);

/* ---- the environment ---- */

/* Any thread of the program may change the environment at any time, and libc may then move the
 * array.  So the variables that the library reads are copied once, before the program runs, and the
 * library does not look at environ for them later. */

/* Copies the variables that the library reads, if any variable begins with RMM_.  Only the first
 * call does anything; no other thread may change the environment meanwhile.  It takes memory from
 * the kernel, and calls neither malloc nor getenv, which the program may have replaced. */
void rs_environment_keep(void);

/* Returns the copied variables as an array like environ, which is empty if no variable began with
 * RMM_.  Returns environ itself if there is no copy: before rs_environment_keep, which the tool
 * never calls, and when rs_environment_keep was out of memory. */
char *const *rs_environment(void);

/* Returns the value that the variable had when the environment was copied; NULL if it was not set
 * then.  A variable that the library neither copied nor reads for itself is looked up by getenv
 * now: %q{VAR} in a text that the program passes to the C API may name any variable. */
const char *rs_environment_get(const char *name);
