/* SPDX-License-Identifier: Apache-2.0 */
/* Other processes that hold memory of a device, as far as their pages tell (report/publish.h):
 * those of the same user that the library serves and /proc shows. */
#pragma once

#include "report/publish.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_NEIGHBOURS_MAX = 8 };

struct rs_neighbour {
    int process;
    char program[RS_PUBLISHED_PROGRAM_BYTES]; /* plain (report/plain.h) */
    uint64_t held_bytes;                      /* what its account of the device has charged */
};

struct rs_neighbours {
    struct rs_neighbour most[RS_NEIGHBOURS_MAX + 1]; /* the most bytes first; the last place is for
                                                        one that has just found none */
    size_t count;
    uint64_t more_bytes, more_processes; /* of those that found no place */
    bool is_cut;                         /* time was over before all processes had been looked at */
};

/* Looks for the processes that hold memory of the device with that UUID, whatever number they have
 * for it.  Takes at most some 20 ms.  It allocates nothing, maps nothing, since a page may be any
 * file, and waits for nobody.  Not thread safe. */
void rs_neighbours_find(struct rs_neighbours *neighbours,
                        const unsigned char uuid[RS_PUBLISHED_UUID_BYTES]);
