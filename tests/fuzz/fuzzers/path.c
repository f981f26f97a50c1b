/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of file names, and patterns of programs' names.  The first byte is the room for the
 * result, the second the device; the bytes behind a line's end are a command line. */
#include "base/output.h"
#include "config/program_filter.h"
#include "fuzzer.h"

static void expand(const char *pattern, size_t room, int device)
{
    const char *end = strchr(pattern, 0), *at, *reason;
    char *path = malloc(room);

    must(path, "no memory");
    for (unsigned i = 0; i < 3; i++) {
        bool good = i == 0   ? rs_path_expand(pattern, path, room, &at, &reason)
                    : i == 1 ? rs_path_expand_variables(pattern, end, path, room, &at, &reason)
                             : rs_path_expand_for_device(pattern, device, path, room, &at, &reason);
        if (good)
            must(strlen(path) < room, "a path that is too long");
        else
            must(at >= pattern && at <= end && reason[0], "no place, or no reason");
    }
    (void)rs_path_is_stream(pattern);
    free(path);
}

static void match(const char *patterns, const char *line, size_t length)
{
    static struct rs_program_names names;
    const char *name;
    size_t at = 0;

    names.bytes = length < sizeof(names.words) ? length : sizeof(names.words);
    memcpy(names.words, line, names.bytes);
    snprintf(names.executable, sizeof(names.executable), "/usr/bin/%.*s", (int)names.bytes, line);
    while ((name = rs_program_names_next(&names, &at)))
        must(strlen(name) < sizeof(names.executable), "a name without an end");
    (void)rs_program_filter_serves(patterns, &names);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
    char *text, *line;

    if (length < 2)
        return 0;
    setenv("RS_ONE", "a/b", 1);
    setenv("RS_EMPTY", "", 1);
    text = copy_of(input + 2, length - 2);
    line = memchr(text, '\n', length - 2);
    if (line) {
        *line++ = '\0';
        match(text, line, length - 2 - (size_t)(line - text));
    }
    expand(text, 1u + input[0], input[1] % 64);
    free(text);
    return 0;
}
