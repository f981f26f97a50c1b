/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/site.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define OWN_FRAMES 12 /* at most this many are inside this library */

/* The linker's: first byte of this library, and the end of its code. */
extern const char __ehdr_start __attribute__((visibility("hidden")));
extern const char etext __attribute__((visibility("hidden")));

static int is_own(const void *address)
{
    return (const char *)address >= &__ehdr_start && (const char *)address < &etext;
}

void hc_site_take(struct hc_site *site)
{
    void *frames[OWN_FRAMES + HC_SITE_FRAMES];
    int count = backtrace(frames, OWN_FRAMES + HC_SITE_FRAMES);
    int first = 0;
    while (first < count && !is_own(frames[first])) /* a sanitizer's frame comes before ours */
        first++;
    while (first < count && is_own(frames[first]))
        first++;
    memset(site, 0, sizeof(*site));
    for (int i = 0; i < HC_SITE_FRAMES && first + i < count; i++)
        site->frames[i] = frames[first + i];
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool hc_site_is_in(const struct hc_site *site, const char *file)
{
    Dl_info info;
    return site->frames[0] && dladdr(site->frames[0], &info) && info.dli_fname &&
           !strcmp(base_name(info.dli_fname), file);
}

static int print_frame(void *frame, char *text, size_t bytes)
{
    Dl_info info;
    if (!dladdr(frame, &info) || !info.dli_fname)
        return snprintf(text, bytes, "%p", frame);
    uintptr_t address = (uintptr_t)frame;
    if (!info.dli_sname)
        return snprintf(text, bytes, "%s+%#zx", base_name(info.dli_fname),
                        (size_t)(address - (uintptr_t)info.dli_fbase));
    return snprintf(text, bytes, "%s+%#zx (%s)", info.dli_sname,
                    (size_t)(address - (uintptr_t)info.dli_saddr), base_name(info.dli_fname));
}

void hc_site_print(const struct hc_site *site, char *text, size_t bytes)
{
    size_t at = 0;
    snprintf(text, bytes, "unknown");
    for (int i = 0; i < HC_SITE_FRAMES && site->frames[i] && at + 4 < bytes; i++) {
        if (i)
            at += (size_t)snprintf(text + at, bytes - at, " < ");
        if (at < bytes)
            at += (size_t)print_frame(site->frames[i], text + at, bytes - at);
    }
}
