/* SPDX-License-Identifier: Apache-2.0 */
/* Live blocks of the program that a stack served, found by any address inside them.
 *
 * All functions are thread safe.  `address` may lie anywhere inside the block, except where the
 * comment says that the block begins there. */
#pragma once

#include "config/config.h"
#include "driver/cuda.h"
#include "resource/resource.h"

#include <stdbool.h>

struct rs_context;
struct rs_stack;

/* A live block as `introspect` and `ipc` see it. */
struct rs_block_view {
    CUdeviceptr address;
    size_t size_bytes; /* as requested */
    CUcontext context; /* the context whose stack owns the memory */
    CUdevice device;
    bool whole; /* the block fills a driver allocation of its own, up to less than
                   RS_BLOCK_ALIGNMENT bytes */
    enum rs_kind kind;
    unsigned object; /* that allocated it (trace/object.h); 0: not known */
};

/* What the program told the driver about a block, to be undone before the block is handed out
 * again: advice about managed memory (cuMemAdvise), and SYNC_MEMOPS for every kind.  Bits of
 * rs_advice.advised. */
enum {
    RS_ADVISED_READ_MOSTLY = 1 << 0,
    RS_ADVISED_LOCATION = 1 << 1,
    RS_ADVISED_HOST_ACCESS = 1 << 2,
    RS_ADVISED_SYNC_MEMOPS = 1 << 3,
    RS_ADVISED_NO_SYNC_MEMOPS = 1 << 4, /* SYNC_MEMOPS was unset on a managed block, which starts
                                           with it; RS_ADVISED_SYNC_MEMOPS overrides this bit */
};

struct rs_advice {
    unsigned advised;         /* RS_ADVISED_... */
    uint64_t device_accesses; /* bit i: device i was advised as an accessor (SET_ACCESSED_BY) */
};

/* How a block is exported (rs_block_exported): one of these, or the number of its slot in the IPC
 * table plus one. */
enum { RS_EXPORTED_NOT = 0, RS_EXPORTED_NATIVE = 0xffff };

struct rs_taken_block {
    struct rs_allocation allocation;
    struct rs_stack *stack;
    struct rs_advice advice;
    unsigned exported;
    /* Id of the driver allocation, set and read by ipc/export.c; 0: none. */
    unsigned long long exported_id;
};

/* Releases a block's record that a stack kept with a freed block (rs_environment.forget_holder).
 * Does nothing when the context has ended meanwhile. */
void rs_block_forget_holder(const struct rs_environment *environment, void *holder);

/* Notes that the program uses the live block that begins at address on streams other than its own:
 * its free then waits for the whole context, not for one stream.  Does nothing when no live block
 * begins there. */
void rs_block_note_other_streams(CUdeviceptr address);
bool rs_block_has_other_streams(CUdeviceptr address);

/* Fills in *view for the live block that holds address; false when there is none. */
bool rs_block_find(CUdeviceptr address, struct rs_block_view *view);

/* Adds to the noted advice of the live block that holds address; nothing is removed. */
void rs_block_note_advice(CUdeviceptr address, const struct rs_advice *advice);

/* Returns how the live block that holds address is exported: RS_EXPORTED_... or slot plus one;
 * RS_EXPORTED_NOT when there is none. */
unsigned rs_block_exported(CUdeviceptr address);

/* Notes how the live block that begins at address is exported.  False when there is none. */
bool rs_block_note_exported(CUdeviceptr address, unsigned exported);

/* Returns the RS_ADVISED_... bits of the live block that holds address; 0 when there is none. */
unsigned rs_block_advised(CUdeviceptr address);

/* RS_ADVISED_SYNC_MEMOPS of the live block that holds address: the first clears it, the second
 * reads it.  The third tells whether any live block in the driver allocation around address has it;
 * it visits every block of the process. */
void rs_block_forget_sync_memops(CUdeviceptr address);
bool rs_block_syncs_memops(CUdeviceptr address);
bool rs_block_segment_syncs_memops(CUdeviceptr address);

/* Calls visit for each live block of the process, without a lock; `whole` is not filled in.  Blocks
 * that come or go meanwhile may be missed. */
void rs_block_each(void (*visit)(void *data, const struct rs_block_view *view), void *data);

/* Returns an id for the live block that holds address, unique among all allocations of the process,
 * past and future (the answer to CU_POINTER_ATTRIBUTE_BUFFER_ID); 0 when there is no live block.
 * The id is made at the first call. */
uint64_t rs_block_id(CUdeviceptr address);

/* True when a live block holds one of the first RS_MANAGED_UNIT bytes of the range, looked at every
 * RS_BLOCK_ALIGNMENT bytes from address on. */
bool rs_block_is_near(CUdeviceptr address, size_t size_bytes);

/* True when address lies in a driver allocation that a stack holds, in a live block or not. */
bool rs_block_is_our_memory(CUdeviceptr address);

/* Forgets every block of a context whose memory is gone, and ends their exports. */
void rs_block_forget_all(struct rs_context *context);
