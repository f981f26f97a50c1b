/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes. The caller holds the lock. */
#pragma once

struct hc_ctx;

/* The context goes, and with it what it opened. */
void hc_ipc_close_all(const struct hc_ctx *ctx);
