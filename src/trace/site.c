/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/site.h"

#include "trace/object.h"
#include "trace/python_frames.h"
#include "trace/symbol.h"

#include <stdio.h>
#include <string.h>

enum { CALLERS_MAX = 4 };

/* The CUDA runtime, and this library, whose functions the runtime's callers go through. */
static bool is_between(const void *frame)
{
    const char *path, *slash;
    uintptr_t base;

    if (rs_call_site_is_ours(frame))
        return true;
    if (!rs_object_origin((const char *)frame - 1, &path, &base))
        return false;
    slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, "libcudart", 9) == 0;
}

unsigned rs_site_frames_outside(const struct rs_call_site *site)
{
    unsigned outside = 0;

    while (outside < site->frame_count && is_between(site->frames[outside]))
        outside++;
    return outside < site->frame_count ? outside : 0;
}

/* The file of the object that holds the address, as one text for each object; NULL where none does.
 */
static const char *object_at(const void *address)
{
    const char *path;
    uintptr_t base;

    return address && rs_object_origin(address, &path, &base) ? path : NULL;
}

unsigned rs_site_frames_to_say(const struct rs_call_site *site, unsigned outside,
                               const void *frames[RS_CALL_SITE_FRAMES_MAX])
{
    const char *interpreter = site->line_count ? object_at(rs_python_address()) : NULL;
    const char *c_library = object_at((const void *)(uintptr_t)&snprintf);
    const char *object = NULL, *above;
    bool is_below = false;
    unsigned count = 0;

    for (unsigned i = outside; i < site->frame_count; i++) {
        above = object;
        object = interpreter ? object_at(site->frames[i]) : NULL;
        if (interpreter && object == interpreter)
            is_below = true;
        else if (!is_below)
            frames[count++] = site->frames[i];
        else if (object != c_library && !(above == c_library && i + 1 == site->frame_count))
            frames[count++] = site->frames[i]; /* not the program's _start */
    }
    return count;
}

static size_t add(char *text, size_t room, size_t used, const char *caller)
{
    int added =
        snprintf(text + used, room - used, "%s%s", used ? ", from " : ", allocated at ", caller);

    return added < 0 || used + (size_t)added >= room ? room - 1 : used + (size_t)added;
}

void rs_site_describe(const struct rs_call_site *site, char *text, size_t room)
{
    const void *frames[RS_CALL_SITE_FRAMES_MAX];
    char caller[2 * RS_SYMBOL_NAME_BYTES + 32];
    struct rs_symbol symbol;
    unsigned count, said = 0;
    size_t used = 0;

    text[0] = '\0';
    if (!site)
        return;
    for (; said < site->line_count && said < CALLERS_MAX; said++)
        used = add(text, room, used, site->lines[said]->text);
    if (said)
        return;
    count = rs_site_frames_to_say(site, rs_site_frames_outside(site), frames);
    for (; said < count && said < CALLERS_MAX; said++) {
        rs_symbol_describe_by_file(frames[said], &symbol);
        snprintf(caller, sizeof(caller), "%s%s%s+%#zx%s", symbol.function,
                 symbol.function[0] ? " (" : "", symbol.object, (size_t)symbol.object_offset,
                 symbol.function[0] ? ")" : "");
        used = add(text, room, used, caller);
    }
}
