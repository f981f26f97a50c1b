/* SPDX-License-Identifier: Apache-2.0 */
/* All that happens when the library is loaded. */
#include "base/process.h"

/* By name in scripts/check-exports, which allows no other. */
__attribute__((constructor)) static void keep_environment(void)
{
    rs_environment_keep();
}
