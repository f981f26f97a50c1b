/* SPDX-License-Identifier: Apache-2.0 */
/* An allocation: one range of addresses that the driver handed out. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hc_array;
struct hc_ctx;
struct hc_graph_memory;
struct hc_pool;

enum hc_kind {
    HC_DEVICE,     /* cuMemAlloc and cuMemAllocPitch */
    HC_ASYNC,      /* cuMemAllocAsync */
    HC_MANAGED,    /* cuMemAllocManaged */
    HC_PINNED,     /* cuMemHostAlloc and cuMemAllocHost */
    HC_REGISTERED, /* cuMemHostRegister */
    HC_IMPORTED,   /* cuIpcOpenMemHandle */
    HC_MAPPED,     /* cuMemMap */
    HC_ARRAY,      /* cuArrayCreate and its kin; the program does not learn its address */
};

struct hc_alloc {
    uintptr_t base;
    size_t size;           /* as asked for */
    size_t reserved_bytes; /* bytes that it takes, with rounding */
    enum hc_kind kind;
    int device;
    unsigned flags;
    bool is_freed;         /* freed in the order of a stream that has not reached the free yet */
    bool syncs_memops;     /* the attribute SYNC_MEMOPS */
    bool is_rdma_capable;  /* GPUDirect */
    unsigned handle_types; /* by which its memory can be shared; CU_MEM_HANDLE_TYPE_... */
    unsigned long long id; /* never used twice in a process */
    struct hc_ctx *ctx; /* the context that frees it at its end; NULL: it belongs to the device */
    struct hc_pool *pool;
    unsigned long long exported_id; /* of memory of an imported pool: its id in the other process */
    struct hc_alloc *next_imported; /* in the imported pool's list */
    struct hc_array *array;
    struct hc_graph_memory *graph; /* the graph that owns it and frees it at its end; NULL: none */
    struct hc_alloc *next, **link; /* in the context's list */
};
