/* SPDX-License-Identifier: Apache-2.0 */
/* Control of the CUDA device in host memory, for tests. The functions are exported by libcuda.so.1
 * of this folder; on a real driver they do not exist. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How often the driver function of that exported name was called; 0 for an unknown name. */
unsigned long long hostcuda_call_count(const char *symbol);

/* How often functions were called that this device does not implement. */
unsigned long long hostcuda_unsupported_count(void);

/* What is alive in this process: allocations of every kind, events. For tests that leave nothing.
 */
unsigned hostcuda_live_allocations(void);
unsigned hostcuda_live_events(void);

/* ---- The stream-order race detector, on with HOSTCUDA_RACE=1 ----
 * A program with reports prints them to stderr and exits with status 66. */
unsigned long long hostcuda_race_count(void);
void hostcuda_race_reset(void);

/* What the latest report says in a few words, NULL if there is none. */
const char *hostcuda_race_last(void);

/* What a driver cannot see: blocks that a pool hands out of the driver's memory. Call the first
 * when an allocation has returned, the second before the free is called. The test runtime does both
 * for cudaMalloc and its kin. */
void hostcuda_note_allocate(const void *pointer, size_t bytes);
void hostcuda_note_free(const void *pointer);

/* The same for blocks whose allocation and free are in the order of a stream (a CUstream). */
void hostcuda_note_allocate_on(const void *pointer, size_t bytes, void *stream);
void hostcuda_note_free_on(const void *pointer, void *stream);

/* The free that was noted has failed: the block lives on, unless an earlier free had freed it. */
void hostcuda_note_free_failed(const void *pointer);

/* ---- Faults ----
 * Rules, separated by semicolons, also from HOSTCUDA_FAULT. A rule is names and options:
 *   cuMemAlloc,cuMemFree_v2:nth=3:count=1:code=2
 * Names: exported symbols, base names (all versions), or *. Options: nth (first call, from 1),
 * count (how many calls, default all), percent and seed, code (the CUresult to answer instead of
 * doing anything; 0: none), sticky (the current context fails with it from then on), before_us and
 * after_us (delays). Returns 0, or -1 if a rule cannot be read. */
int hostcuda_fault_add(const char *rules);
void hostcuda_fault_clear(void);
unsigned long long hostcuda_fault_hits(void);

/* How many 2 MiB blocks of managed memory moved to a device and back to the host. */
void hostcuda_migrations(unsigned long long *to_device, unsigned long long *to_host);

/* ---- Schedules ----
 * HOSTCUDA_SCHEDULE=stepped: an operation runs only in a thread that waits for it or in
 * hostcuda_step, which runs the oldest ready one of a stream (a CUstream; NULL: of any) and returns
 * 0 if there is none. random:SEED: operations start late by random times. */
int hostcuda_step(void *stream);
unsigned hostcuda_ready_count(void);

#ifdef __cplusplus
}
#endif
