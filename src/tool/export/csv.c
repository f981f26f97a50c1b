/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's event log, as RMM_LOG writes it (resource/adaptor/logging.c). */
#include "recording/format.h"
#include "tool/export/export.h"

#include <time.h>

/* A log has the local time of day. */
static void put_time(const struct recording *recording, uint64_t ns, FILE *file)
{
    uint64_t real_ns = recording->begun_real_ns + ns;
    time_t second = (time_t)(real_ns / 1000000000u);
    struct tm parts;

    if (recording->is_log)
        gmtime_r(&second, &parts); /* it is local already */
    else
        localtime_r(&second, &parts);
    fprintf(file, "%02d:%02d:%02d.%06u", parts.tm_hour, parts.tm_min, parts.tm_sec,
            (unsigned)(real_ns % 1000000000u / 1000));
}

static void put_row(const struct recording *recording, const struct recording_event *event,
                    const char *action, FILE *file)
{
    uint64_t stream = recording_stream(recording, event);

    fprintf(file, "%u,", recording_thread(recording, event));
    put_time(recording, event->ns, file);
    fprintf(file, ",%s,", action);
    if (event->address)
        fprintf(file, "0x%llx", (unsigned long long)event->address);
    else
        fputs("(nil)", file);
    fprintf(file, stream ? ",%llu,0x%llx\n" : ",%llu,%llx\n", (unsigned long long)event->size_bytes,
            (unsigned long long)stream);
}

bool export_csv(const struct recording *recording, FILE *file)
{
    static const char *const actions[RS_RECORDING_EVENT_KINDS] = {
        [RS_RECORDING_ALLOCATE] = "allocate",
        [RS_RECORDING_FREE] = "free",
        [RS_RECORDING_REFUSED] = "allocate failure",
    };

    fputs("Thread,Time,Action,Pointer,Size,Stream\n", file);
    for (size_t i = 0; i < recording->count; i++)
        if (actions[recording->events[i].kind])
            put_row(recording, &recording->events[i], actions[recording->events[i].kind], file);
    return true;
}
