/* SPDX-License-Identifier: Apache-2.0 */
/* The importer's side of ipc/server.h: asks the exporter for descriptors and waits for them. */
#pragma once

#include "ipc/pieces.h"
#include "ipc/pool.h"
#include "ipc/table.h"

/* Memory of an exporter that came by descriptors. */
struct rs_fetched {
    struct rs_pooled *pooled; /* NULL: it is in pieces */
    struct rs_mapped_pieces pieces;
    CUdeviceptr base;
    size_t size_bytes;
};

/* Has the memory around the block of a slot, which the caller has locked, for the device of the
 * current context.  Waits for the exporter's answers, each at most 10 s; the caller holds no lock.
 * There is nothing to drop after an error. */
CUresult rs_fetch(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                  struct rs_fetched *fetched);

/* Gives it back.  No work may use it any more. */
CUresult rs_fetched_drop(struct rs_fetched *fetched);
