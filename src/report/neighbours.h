/* SPDX-License-Identifier: Apache-2.0 */
/* Finds other processes that hold memory of a device, by their published pages (report/publish.h).
 * It finds processes of the same user that run under the library and that /proc shows. */
#pragma once

#include "report/publish.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_NEIGHBOURS_MAX = 8 };

struct rs_neighbour {
    int process;
    char program[RS_PUBLISHED_PROGRAM_BYTES]; /* plain (report/plain.h) */
    uint64_t held_bytes;                      /* bytes that its account of the device has charged */
};

struct rs_neighbours {
    struct rs_neighbour most[RS_NEIGHBOURS_MAX + 1]; /* the largest first; the last place is only
                                                        used while one is inserted */
    size_t count;
    /* The sum and the number of the processes for which `most` has no place. */
    uint64_t more_bytes, more_processes;
    bool is_cut; /* the time was up before all processes had been looked at */
};

/* Finds the processes that hold memory of the device with that UUID, whatever number the device has
 * in those processes. Takes about 20 ms at most, allocates nothing and waits for nobody. It maps no
 * file, since what looks like a page may be any file. Not thread safe. */
void rs_neighbours_find(struct rs_neighbours *neighbours,
                        const unsigned char uuid[RS_PUBLISHED_UUID_BYTES]);
