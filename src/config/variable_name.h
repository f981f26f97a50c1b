/* SPDX-License-Identifier: Apache-2.0 */
/* Names of environment variables: ours, somebody else's, and what nobody but a user of ours writes
 * by mistake: that one would be ignored in silence, and a job run without its limit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum rs_name_kind { RS_NAME_FOREIGN, RS_NAME_OURS, RS_NAME_WRONG };

enum { RS_NAME_BYTES_MAX = 128, RS_NAME_REASON_BYTES = 192 };

struct rs_name {
    enum rs_name_kind kind;
    int index;                         /* OURS: the row of rs_variables */
    int device;                        /* OURS: that _<N> names, or -1: all */
    char reason[RS_NAME_REASON_BYTES]; /* WRONG: what to say */
};

/* True for a name that has to be read: RMM_ in any case. */
bool rs_name_begins_as_ours(const char *name);

/* Reads a name shorter than RS_NAME_BYTES_MAX. */
void rs_name_read(const char *name, struct rs_name *read);
