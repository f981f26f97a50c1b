/* SPDX-License-Identifier: Apache-2.0 */
#include "rmmshim/rmmshim.h"

const char *rmmshim_version(void)
{
    return RMMSHIM_VERSION;
}
