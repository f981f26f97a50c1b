/* SPDX-License-Identifier: Apache-2.0 */
/* What the groups of driver_facts share: the driver by name, kernels, waiting, and printing. */
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver's exported function of that name, called through a pointer: the program links with no
 * libcuda. CUDA_ERROR_NOT_FOUND where the driver lacks it is not needed: find() ends the group. */
void *facts_find(const char *name);
#define CU(name) ((__typeof__(&name))(uintptr_t)facts_find(#name))

/* One line: group.name value. */
void facts_say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define SAY(name, value)     facts_say(name, "%d", (int)(value))
#define SAY_YES(name, value) facts_say(name, "%s", (value) ? "yes" : "no")

/* Must succeed, or the group ends with a line that says where. */
void facts_need(int result, const char *what, int line);
#define NEED(call) facts_need((int)(call), #call, __LINE__)

/* Device 0's primary context, current. */
CUcontext facts_begin(void);

/* Kernels: fill32(words, count, value), spin_until(flag), fault(). */
CUresult facts_launch(const char *kernel, CUstream stream, void **args);
CUresult facts_fill(CUstream stream, CUdeviceptr words, size_t count, unsigned value);

/* A stream is kept busy until facts_release. */
void facts_hold(CUstream stream);
void facts_release(void);

/* Does the call return only when a held stream is released? A helper releases when it has seen the
 * calling thread stuck for 100 ms. Everything is released and done afterwards. */
bool facts_waits(CUresult (*call)(void *argument), void *argument, CUresult *result);

/* The groups, each in a process of its own. */
void facts_uninitialised(void);
void facts_lookup(void);
void facts_device(void);
void facts_no_context(void);
void facts_alloc(void);
void facts_free(void);
void facts_managed(void);
void facts_pinned(void);
void facts_pointer(void);
void facts_event(void);
void facts_order(void);
void facts_wait(void);
void facts_capture(void);
void facts_context(void);
void facts_pool(void);
void facts_pools(void);
void facts_footprint(void);
void facts_vmm(void);
void facts_ipc(void);
void facts_green(void);
void facts_peer(void);
void facts_fault(void);
void facts_host_function(void);
