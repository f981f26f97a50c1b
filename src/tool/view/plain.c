/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/view/plain.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/* Columns of the character that begins there, and its bytes; 0 bytes where the locale has none. */
static int width_of(const char *text, size_t *bytes)
{
    mbstate_t state;
    wchar_t wide;
    size_t count;

    memset(&state, 0, sizeof(state));
    count = mbrtowc(&wide, text, strlen(text), &state);
    *bytes = 0;
    if (count == 0 || count > MB_LEN_MAX || wcwidth(wide) < 0)
        return 1;
    *bytes = count;
    return wcwidth(wide);
}

int plain_fit(char *to, size_t room, const char *text, int columns)
{
    char *end = to + room - 1, *last = to; /* where the character in the last column began */
    int used = 0, used_before = 0;

    while (*text) {
        size_t bytes;
        int width = width_of(text, &bytes);
        if (used + width > columns || to + (bytes ? bytes : 1) > end)
            break;
        if (width > 0) {
            last = to;
            used_before = used;
        }
        if (bytes)
            memcpy(to, text, bytes);
        else
            *to = '?';
        to += bytes ? bytes : 1;
        text += bytes ? bytes : 1;
        used += width;
    }
    if (*text && used > 0) {
        to = last;
        *to++ = '~';
        used = used_before + 1;
    }
    *to = '\0';
    return used;
}
