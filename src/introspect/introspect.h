/* SPDX-License-Identifier: Apache-2.0 */
/* Corrects the driver's answers about memory: a block of ours looks as if the driver had allocated
 * it by itself.  All functions are thread safe. */
#pragma once

#include "config/config.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Corrects the driver's answer to cuMemGetInfo for the current context's device, in bytes: idle
 * memory of stacks counts as free, and a limit as the device's size.  Does nothing when this
 * process does not serve. */
void rs_introspect_memory_info(size_t *free_bytes, size_t *total_bytes);

/* Corrects the driver's answer about the size of a device, in bytes: at most its limit. */
void rs_introspect_total_memory(CUdevice device, size_t *total_bytes);

enum rs_introspected {
    RS_INTROSPECTED_FOREIGN, /* the memory is not ours: forward the call */
    RS_INTROSPECTED_BLOCK,   /* the address lies in a live block: correct the answers */
    RS_INTROSPECTED_OPENED,  /* the address lies in another process's block that is open here:
                                correct the range */
    RS_INTROSPECTED_FREED, /* the memory is ours or another process's, but in no live block: answer
                              as for an unknown address */
};

struct rs_introspection {
    enum rs_introspected what;
    CUdeviceptr address; /* start of the block */
    size_t size_bytes;
    CUcontext context;
    CUdevice device;
    bool whole; /* the block fills a driver allocation of its own */
    enum rs_kind kind;
};

struct rs_introspection rs_introspect(CUdeviceptr address);

/* The same for a caller that has asked whether stacks serve (rs_mode_serving). */
struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address);

/* True for a block that must answer as device memory although it may lie elsewhere
 * (RMM_MEMORY_TYPE=requested). */
bool rs_introspect_as_requested(const struct rs_introspection *introspection);

/* Corrects the driver's answer to cuPointerGetAttribute about an address inside the block:
 * `result`, and *data on success.  Returns the result for the program. */
CUresult rs_introspect_attribute(const struct rs_introspection *introspection, CUdeviceptr address,
                                 CUpointer_attribute attribute, CUresult result, void *data);

/* As rs_introspect_attribute, for the answer to cuPointerGetAttributes, which is zero for an
 * attribute whose single question fails. */
void rs_introspect_attributes(const struct rs_introspection *introspection, CUdeviceptr address,
                              unsigned count, const CUpointer_attribute *attributes, void **data);

/* Returns an address that the driver does not know, to ask about in place of one inside our idle
 * memory. */
CUdeviceptr rs_introspect_unknown_address(void);

/* Corrects the answer of cuPointerGetAttributes to the unknown address `asked`: puts the program's
 * `address` where the driver returned `asked`.  It does so for HOST_POINTER and DEVICE_POINTER of
 * memory that it does not know, which it takes for the program's own. */
void rs_introspect_instead(CUdeviceptr asked, CUdeviceptr address, unsigned count,
                           const CUpointer_attribute *attributes, void **data);
