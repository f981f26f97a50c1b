/* SPDX-License-Identifier: Apache-2.0 */
/* Folded stacks, the input of flame graphs: a line for each call site, outermost frame first, with
 * the bytes that it held when the most was live. */
#include "tool/export/export.h"

static void put_frame(const char *text, FILE *file)
{
    for (; *text; text++)
        putc(*text == ';' ? ':' : *text, file);
}

static void put_site(const struct recording *recording, uint32_t number, FILE *file)
{
    struct recording_site site = recording_site(recording, number);

    if (site.count == 0)
        fputs(";(not recorded)", file);
    for (uint32_t i = site.count; i-- > 0;) {
        const struct recording_item *frame = recording_item(&recording->frames, site.frames[i]);
        putc(';', file);
        put_frame(frame ? frame->text : "?", file);
    }
}

bool export_folded(const struct recording *recording, FILE *file)
{
    struct export_sums sums;

    if (!export_sums_make(recording, &sums))
        return false;
    for (size_t i = 0; i < sums.count; i++) {
        if (sums.sums[i].peak_bytes == 0)
            continue;
        fprintf(file, "device %d", sums.sums[i].device);
        put_site(recording, sums.sums[i].site, file);
        fprintf(file, " %llu\n", (unsigned long long)sums.sums[i].peak_bytes);
    }
    export_sums_release(&sums);
    return true;
}
