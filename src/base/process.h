/* SPDX-License-Identifier: Apache-2.0 */
/* What tells processes apart.  A number alone does not: numbers come back, and each PID namespace
 * has its own. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Ticks since boot at which the kernel started that process (0: the calling one); -1 when there
 * is none, or the kernel does not say. */
long long rs_process_start_ticks(pid_t process);

/* The calling process's PID namespace; 0 when the kernel does not say. */
uint64_t rs_process_namespace(void);

/* When the calling process was started, in seconds since 1970: asked once, so that all files of a
 * process agree. */
long long rs_process_start_seconds(void);

/* The calling process's rank among those of its job, as its launcher says (RANK,
 * OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID); empty where none says. */
const char *rs_process_rank(void);
