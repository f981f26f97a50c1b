/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries in /proc/PID/maps that matter to GPU memory. */
#pragma once

#include "tool/doctor/doctor.h"
#include "tool/program/load_order.h"

struct doctor_maps {
    bool has_library, has_driver, has_torch;
    struct load_order files; /* that are mapped with code */
};

/* Reads the text, or NULL, and notes the libraries found with their versions, which are part of
 * their files' names.  load_order_free is due for the files. */
void doctor_maps_read(struct doctor_maps *maps, char *text, struct doctor *doctor);
