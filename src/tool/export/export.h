/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of `rmmshim export`. */
#pragma once

#include "tool/recording/recording.h"

#include <stdio.h>

/* Write the recording.  False when out of memory; errors of the file are its own (ferror). */
bool export_csv(const struct recording *recording, FILE *file);
bool export_folded(const struct recording *recording, FILE *file);
bool export_speedscope(const struct recording *recording, FILE *file);
bool export_pytorch(const struct recording *recording, FILE *file);
bool export_perfetto(const struct recording *recording, FILE *file);
bool export_recording(const struct recording *recording, FILE *file);

/* Writes into an empty file.  False after a line. */
bool export_sqlite(const struct recording *recording, const char *path);

/* ---- bytes by call site ---- */

struct export_sum {
    uint32_t site; /* number; 0: not known */
    int device;
    uint64_t peak_bytes;  /* live when the most was live */
    uint64_t total_bytes; /* allocated at any time */
};

struct export_sums {
    struct export_sum *sums;
    size_t count;
    uint64_t peak_bytes, peak_ns; /* of all devices together */
};

/* False when out of memory. */
bool export_sums_make(const struct recording *recording, struct export_sums *sums);
void export_sums_release(struct export_sums *sums);

/* A JSON string of a text of a recording, in quotes. */
void export_put_json(FILE *file, const char *text);
