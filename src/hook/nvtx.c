/* SPDX-License-Identifier: Apache-2.0 */
/* The function that NVTX looks up in the library that NVTX_INJECTION64_PATH names. */
#include "shim/nvtx.h"

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(rs_nvtx_get_table *get_table);

int InitializeInjectionNvtx2(rs_nvtx_get_table *get_table)
{
    return rs_nvtx_attach(get_table);
}
