/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes. The caller holds the lock. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct hc_ctx;

/* Maps the blocks that hold a range of another process's memory file, at an address that keeps its
 * place in the block; NULL if that fails. */
void *hc_ipc_map(int pid, int fd, uint64_t offset, uint64_t size, size_t *bytes);

/* Closes the memory that a context has opened, as the context ends. */
void hc_ipc_close_all(const struct hc_ctx *ctx);
