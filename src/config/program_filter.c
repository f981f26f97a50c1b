/* SPDX-License-Identifier: Apache-2.0 */
#include "config/program_filter.h"

#include "base/check.h"
#include "base/file.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char blanks[] = " \t";

/* True when the name matches one pattern. fnmatch needs a copy of the pattern that ends in a zero
 * byte; the copy is on the heap, since a pattern with [...] may be longer than any name. */
static bool matches_one(const char *begin, size_t length, const char *name)
{
    char *pattern = length ? strndup(begin, length) : NULL;
    bool found = pattern && fnmatch(pattern, name, 0) == 0;

    free(pattern);
    return found;
}

/* True when the name matches one of the patterns in the list.  Blanks around a pattern are ignored,
 * as in "train*, worker". */
static bool matches(const char *patterns, const char *name)
{
    for (; *patterns; patterns += *patterns == ',') {
        size_t length;
        patterns += strspn(patterns, blanks);
        length = strcspn(patterns, ",");
        for (const char *end = patterns + length; length && strchr(blanks, end[-1]); end--)
            length--;
        if (matches_one(patterns, length, name))
            return true;
        patterns += strcspn(patterns, ",");
    }
    return false;
}

const char *rs_program_names_next(const struct rs_program_names *process, size_t *at)
{
    if (*at == 0) {
        *at = 1; /* from now on *at is the offset of the next word plus 1 */
        return rs_file_base_name(process->executable);
    }
    while (*at - 1 < process->bytes) {
        const char *word = process->words + *at - 1;
        bool is_first = *at == 1;
        *at += strlen(word) + 1;
        if (is_first || (word[0] && word[0] != '-'))
            return rs_file_base_name(word);
    }
    return NULL;
}

bool rs_program_filter_serves(const char *patterns, const struct rs_program_names *process)
{
    const char *name;
    size_t at = 0;

    if (!patterns || !*patterns)
        return true;
    while ((name = rs_program_names_next(process, &at)))
        if (matches(patterns, name))
            return true;
    return false;
}

void rs_program_names_read(struct rs_program_names *process, const char *directory)
{
    char path[64];
    ssize_t length, bytes;

    snprintf(path, sizeof(path), "%s/exe", directory);
    length = readlink(path, process->executable, sizeof(process->executable) - 1);
    process->executable[length > 0 ? length : 0] = '\0';
    snprintf(path, sizeof(path), "%s/cmdline", directory);
    bytes = rs_file_text(path, process->words, sizeof(process->words));
    bytes = bytes > 0 ? bytes : 0;
    if (bytes && process->words[bytes - 1]) /* the last word is cut off, or the process has set a
                                               title without a zero byte */
        process->words[bytes++] = '\0';
    process->bytes = (size_t)bytes;
}

bool rs_program_filter_serves_this_process(const char *patterns)
{
    static struct rs_program_names process; /* large; one thread alone reads the settings */

    if (!patterns || !*patterns)
        return true;
    rs_program_names_read(&process, "/proc/self");
    return rs_program_filter_serves(patterns, &process);
}
