/* SPDX-License-Identifier: Apache-2.0 */
/* Whether libraries can be loaded on this machine: tried in child processes, so that one that
 * crashes or hangs is a finding. */
#pragma once

#include "tool/doctor/doctor.h"

/* Loads librmmshim.so from the path. */
void doctor_try_library(struct doctor *doctor, const char *path);

/* True when libcuda.so.1 can be loaded. */
bool driver_can_be_loaded(void);

/* Loads libcuda.so.1 and asks for its version. */
void doctor_try_driver(struct doctor *doctor);
