/* SPDX-License-Identifier: Apache-2.0 */
/* Size of the host's memory. */
#pragma once

#include <stddef.h>

/* Stores the host's physical memory in *total_bytes, and in *available_bytes the memory that can
 * still be taken without swapping (MemAvailable of /proc/meminfo; the total where the kernel
 * does not report it). */
void rs_host_memory(size_t *total_bytes, size_t *available_bytes);
