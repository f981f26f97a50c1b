/* SPDX-License-Identifier: Apache-2.0 */
/* Names of environment variables: ours, other programs', and what may be a misspelling of ours.
 * Ignoring that in silence could run a job without its limit, and taking it for an error could end
 * a program that has variables of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum rs_name_kind {
    RS_NAME_FOREIGN, /* another program's: ignored */
    RS_NAME_OURS,    /* a row of rs_variables */
    RS_NAME_WRONG,   /* one of ours in another case, or with a bad device: an error */
    RS_NAME_DOUBTFUL /* like one of ours: an error where a setting of ours stands beside it */
};

enum { RS_NAME_BYTES_MAX = 128, RS_NAME_REASON_BYTES = 192 };

struct rs_name {
    enum rs_name_kind kind;
    int index;                         /* OURS: the index of its row in rs_variables */
    int device;                        /* OURS: the device that _<N> names; -1: all devices */
    char reason[RS_NAME_REASON_BYTES]; /* WRONG, DOUBTFUL: the diagnostic's text */
};

/* Patterns of names that begin with RMM_ and are in use elsewhere; ended by NULL. */
extern const char *const rs_names_elsewhere[];

/* True for a name that begins with RMM_, in upper or lower case; rs_name_read must judge it. */
bool rs_name_begins_as_ours(const char *name);

/* Judges a name that is shorter than RS_NAME_BYTES_MAX. */
void rs_name_read(const char *name, struct rs_name *read);
