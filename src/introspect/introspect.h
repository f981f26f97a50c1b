/* SPDX-License-Identifier: Apache-2.0 */
/* What observers are told: a block of ours looks as if the driver had allocated it by itself. */
#pragma once

#include "config/config.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Corrects the driver's answer about memory of the current context's device: what we hold and
 * nobody uses is free, and a limit is the device's size. */
void rs_introspect_memory_info(size_t *free_bytes, size_t *total_bytes);

/* Corrects the driver's answer about the size of a device that has a limit. */
void rs_introspect_total_memory(CUdevice device, size_t *total_bytes);

enum rs_introspected {
    RS_INTROSPECTED_FOREIGN, /* not our memory: forward */
    RS_INTROSPECTED_BLOCK,   /* a live block: its answers are corrected */
    RS_INTROSPECTED_OPENED,  /* another process's block, opened here: its answers are corrected too
                              */
    RS_INTROSPECTED_FREED,   /* our memory, or another process's, but no such block: unknown to the
                            program */
};

struct rs_introspection {
    enum rs_introspected what;
    CUdeviceptr address; /* of the block */
    size_t size_bytes;
    CUcontext context;
    CUdevice device;
    bool whole; /* a driver allocation of its own: native IPC handle */
    enum rs_kind kind;
};

struct rs_introspection rs_introspect(CUdeviceptr address);

/* The same for a caller that has asked whether stacks serve (rs_mode_serving). */
struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address);

/* True for a block that is device memory in the program's eyes, wherever it lies
 * (RMM_MEMORY_TYPE). */
bool rs_introspect_as_requested(const struct rs_introspection *introspection);

/* Corrects the driver's answer (result, and *data with success) to one attribute of an address
 * inside the block.  Returns what the program is answered. */
CUresult rs_introspect_attribute(const struct rs_introspection *introspection, CUdeviceptr address,
                                 CUpointer_attribute attribute, CUresult result, void *data);

/* The same for cuPointerGetAttributes, which answers zero where the question for one fails. */
void rs_introspect_attributes(const struct rs_introspection *introspection, CUdeviceptr address,
                              unsigned count, const CUpointer_attribute *attributes, void **data);

/* An address that the driver knows nothing of, to ask about instead of one inside our free memory.
 */
CUdeviceptr rs_introspect_unknown_address(void);

/* After the driver was asked about that one instead (cuPointerGetAttributes): the address that the
 * program asked about, where the driver gives the pointer back.  It does so (HOST_POINTER) for what
 * it does not know, which is the program's own memory then. */
void rs_introspect_instead(CUdeviceptr asked, CUdeviceptr address, unsigned count,
                           const CUpointer_attribute *attributes, void **data);
