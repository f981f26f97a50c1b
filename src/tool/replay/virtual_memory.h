/* SPDX-License-Identifier: Apache-2.0 */
/* A driver's virtual memory management for a replay: addresses without memory, in units of 2 MiB.
 * Its caller is the library, so wrong calls are not looked for. */
#pragma once

#include <stddef.h>

struct replay_virtual_memory {
    size_t capacity_bytes, created_bytes, peak_bytes;
    unsigned long long creations, releases;
};

extern struct replay_virtual_memory replay_virtual_memory;

/* Puts it into rs_driver, as new. */
void replay_virtual_memory_install(size_t capacity_bytes);
