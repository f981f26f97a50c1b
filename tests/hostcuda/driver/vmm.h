/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: reserved addresses, and memory that is mapped there. The caller holds
 * the lock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False if the range lies in reserved addresses and the device has no mapping with this access
 * there. */
bool hc_vmm_is_allowed(uintptr_t address, size_t bytes, int device, bool write);

/* Returns a file for new memory (fd is -1), or another descriptor of fd's; -1: none is left.  It
 * counts as none of the program's. */
int hc_file_keep(int fd, size_t bytes);
