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
