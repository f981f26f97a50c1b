/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: what the program holds of ours, found by any address inside. */
#pragma once

#include "config/config.h"
#include "driver/cuda.h"
#include "resource/resource.h"

#include <stdbool.h>

struct rs_context;
struct rs_stack;

/* What observers may know of a block. */
struct rs_block_view {
    CUdeviceptr address;
    size_t size_bytes; /* as requested */
    CUcontext context; /* that owns it */
    CUdevice device;
    bool whole; /* it fills a driver allocation of its own */
    enum rs_kind kind;
};

/* What the program told the driver of a block, and has to be undone before the block is another's:
 * advice about managed memory (cuMemAdvise), and for every kind SYNC_MEMOPS. */
enum {
    RS_ADVISED_READ_MOSTLY = 1 << 0,
    RS_ADVISED_LOCATION = 1 << 1,
    RS_ADVISED_HOST_ACCESS = 1 << 2,
    RS_ADVISED_SYNC_MEMOPS = 1 << 3,
    RS_ADVISED_NO_SYNC_MEMOPS = 1 << 4, /* managed memory starts with it; the other wins */
};

struct rs_advice {
    unsigned advised;         /* RS_ADVISED_... */
    uint64_t device_accesses; /* a bit for each device */
};

/* How a block is exported (rs_block_exported), if not by the number of its slot plus one. */
enum { RS_EXPORTED_NOT = 0, RS_EXPORTED_NATIVE = 0xffff };

struct rs_taken_block {
    struct rs_allocation allocation;
    struct rs_stack *stack;
    struct rs_advice advice;
    unsigned exported;
    unsigned long long exported_id; /* ipc/export.c's own */
};

/* The record that went with a deallocation is no longer kept (rs_environment.forget_holder).  Does
 * nothing when its context ended meanwhile. */
void rs_block_forget_holder(const struct rs_environment *environment, void *holder);

/* The program uses the live block that begins at address on other streams than its own: its free
 * has no stream's order.  Does nothing for other addresses. */
void rs_block_note_other_streams(CUdeviceptr address);
bool rs_block_has_other_streams(CUdeviceptr address);

/* The live block that holds address. */
bool rs_block_find(CUdeviceptr address, struct rs_block_view *view);

/* Adds to what is known to be advised of the live block that holds address.  Thread safe. */
void rs_block_note_advice(CUdeviceptr address, const struct rs_advice *advice);

/* How the live block that holds address is exported (ipc/export.h). */
unsigned rs_block_exported(CUdeviceptr address);

/* Notes how the live block that begins at address is.  False when there is none. */
bool rs_block_note_exported(CUdeviceptr address, unsigned exported);

/* RS_ADVISED_... of the live block that holds address, 0 when there is none.  Thread safe. */
unsigned rs_block_advised(CUdeviceptr address);

/* RS_ADVISED_SYNC_MEMOPS of the live block that holds address; and whether any live block has it in
 * the driver allocation that holds address (which looks at every block).  Thread safe. */
void rs_block_forget_sync_memops(CUdeviceptr address);
bool rs_block_syncs_memops(CUdeviceptr address);
bool rs_block_segment_syncs_memops(CUdeviceptr address);

/* A number for the live block that holds address, which no other allocation of the process has or
 * will have; 0 when there is none. */
uint64_t rs_block_id(CUdeviceptr address);

/* True when a live block holds a byte of the range, or of its first RS_MANAGED_UNIT bytes. */
bool rs_block_is_near(CUdeviceptr address, size_t size_bytes);

/* True when address lies in memory that our stacks took from the driver, in a live block or not. */
bool rs_block_is_our_memory(CUdeviceptr address);

/* Forgets every block of a context whose memory is gone. */
void rs_block_forget_all(struct rs_context *context);
