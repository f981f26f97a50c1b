/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of tool/run call of others, which are no part of a fuzzer. */
#pragma once

#include "tool/doctor/doctor.h"
#include "tool/run/run.h"

#include <stdlib.h>

bool driver_can_be_loaded(void)
{
    return true;
}

bool run_is_set(const char *name)
{
    const char *value = getenv(name);

    return value && *value;
}
