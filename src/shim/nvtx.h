/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that the program pushes and pops by NVTX (RMM_PHASES=nvtx) become phases.
 *
 * NVTX 3 is a header: each library that includes it has a table of functions of its own, and at its
 * first call loads the library that NVTX_INJECTION64_PATH names and calls InitializeInjectionNvtx2
 * there, with a function that finds this table.  What is declared here of NVTX is the part of that
 * interface which its header declares for tools. */
#pragma once

#include <stdint.h>

/* Returns the export table of that number, or NULL. */
typedef const void *rs_nvtx_get_table(uint32_t table);

/* Fills in the functions that push and pop.  Returns 1, or 0 where ranges are not asked for, stacks
 * do not serve, or the library was not preloaded: NVTX then calls no function of ours. */
int rs_nvtx_attach(rs_nvtx_get_table *get_table);
