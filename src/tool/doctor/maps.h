/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries in /proc/PID/maps that matter to GPU memory. */
#pragma once

#include "tool/doctor/doctor.h"

struct doctor_maps {
    bool has_library, has_driver, has_torch;
};

/* Reads the text, or NULL, and notes the libraries found with their versions, which are part of
 * their files' names. */
void doctor_maps_read(struct doctor_maps *maps, char *text, struct doctor *doctor);
