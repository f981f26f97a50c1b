/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory the host has. */
#pragma once

#include <stddef.h>

/* All of it, and what programs may still take without swapping (Linux's MemAvailable); where that
 * is not told, all of it. */
void rs_host_memory(size_t *total_bytes, size_t *available_bytes);
