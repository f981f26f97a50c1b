/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes. The caller holds the lock. */
#pragma once

struct hc_ctx;

/* Closes the memory that a context has opened, as the context ends. */
void hc_ipc_close_all(const struct hc_ctx *ctx);
