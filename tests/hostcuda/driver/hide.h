/* SPDX-License-Identifier: Apache-2.0 */
/* Makes this library look as old as HOSTCUDA_DRIVER_VERSION says: exports that came later, and
 * those of HOSTCUDA_WITHHOLD, are not found by the dynamic linker. */
#pragma once

#include "driver/entry_table.h"

void hc_hide_exports(void);

/* True if a driver of the set version has the row's function. */
bool hc_entry_is_offered(const struct hc_entry *entry);
