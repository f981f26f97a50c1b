/* SPDX-License-Identifier: Apache-2.0 */
/* A file of speedscope's own format (https://www.speedscope.app/file-format-schema.json): what was
 * live at the peak, and all that was allocated, by call site. */
#include "tool/export/export.h"

/* Frame 0 is "(not recorded)", frame n that of number n. */
static void put_frames(const struct recording *recording, FILE *file)
{
    fputs("\"shared\":{\"frames\":[{\"name\":\"(not recorded)\"}", file);
    for (uint32_t i = 1; i <= recording->frames.count; i++) {
        const struct recording_item *frame = recording_item(&recording->frames, i);
        fputs(",\n{\"name\":", file);
        export_put_json(file, frame ? frame->text : "?");
        putc('}', file);
    }
    fputs("]}", file);
}

static uint64_t weight_of(const struct export_sum *sum, bool of_peak)
{
    return of_peak ? sum->peak_bytes : sum->total_bytes;
}

static bool is_of(const struct export_sum *sum, int device, bool of_peak)
{
    return sum->device == device && weight_of(sum, of_peak);
}

static void put_sample(const struct recording *recording, uint32_t number, FILE *file)
{
    struct recording_site site = recording_site(recording, number);

    putc('[', file);
    if (site.count == 0)
        putc('0', file);
    for (uint32_t i = site.count; i-- > 0;)
        fprintf(file, "%s%u", i + 1 < site.count ? "," : "",
                recording_item(&recording->frames, site.frames[i]) ? site.frames[i] : 0);
    putc(']', file);
}

static void put_profile(const struct recording *recording, const struct export_sums *sums,
                        int device, bool of_peak, FILE *file)
{
    const char *comma = "";
    uint64_t end = 0;

    fprintf(file,
            "{\"type\":\"sampled\",\"name\":\"device %d: %s\",\"unit\":\"bytes\",\"samples\":[",
            device, of_peak ? "live at the peak" : "allocated in all");
    for (size_t i = 0; i < sums->count; i++) {
        if (!is_of(&sums->sums[i], device, of_peak))
            continue;
        fputs(comma, file);
        put_sample(recording, sums->sums[i].site, file);
        comma = ",\n";
    }
    fputs("],\"weights\":[", file);
    comma = "";
    for (size_t i = 0; i < sums->count; i++) {
        if (!is_of(&sums->sums[i], device, of_peak))
            continue;
        fprintf(file, "%s%llu", comma, (unsigned long long)weight_of(&sums->sums[i], of_peak));
        end += weight_of(&sums->sums[i], of_peak);
        comma = ",";
    }
    fprintf(file, "],\"startValue\":0,\"endValue\":%llu}", (unsigned long long)end);
}

static bool has_device(const struct export_sums *sums, int device)
{
    for (size_t i = 0; i < sums->count; i++)
        if (sums->sums[i].device == device)
            return true;
    return false;
}

bool export_speedscope(const struct recording *recording, FILE *file)
{
    enum { DEVICES = 1024 };
    struct export_sums sums;
    const char *comma = "";

    if (!export_sums_make(recording, &sums))
        return false;
    fputs("{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":"
          "\"rmmshim " RMMSHIM_VERSION "\",\"name\":",
          file);
    export_put_json(file, recording->program);
    fputs(",\n", file);
    put_frames(recording, file);
    fputs(",\n\"profiles\":[", file);
    for (int device = 0; device < DEVICES; device++) {
        if (!has_device(&sums, device))
            continue;
        for (int of_peak = 1; of_peak >= 0; of_peak--) {
            fputs(comma, file);
            put_profile(recording, &sums, device, of_peak, file);
            comma = ",\n";
        }
    }
    fputs("]}\n", file);
    export_sums_release(&sums);
    return true;
}
