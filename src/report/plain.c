/* SPDX-License-Identifier: Apache-2.0 */
#include "report/plain.h"

#include "report/utf8.h"

#include <stdbool.h>
#include <string.h>

static void make_plain(char *text, bool keeps_lines)
{
    size_t length = strlen(text), to = 0;

    for (size_t at = 0, count; at < length; at += count) {
        count = rs_utf8_bytes(text + at, length - at);
        if (rs_utf8_is_plain(text + at, count) || (keeps_lines && text[at] == '\n')) {
            memmove(text + to, text + at, count);
            to += count;
        } else {
            text[to++] = '?';
            count += count == 0;
        }
    }
    text[to] = '\0';
}

void rs_plain_make(char *text)
{
    make_plain(text, false);
}

void rs_plain_make_lines(char *text)
{
    make_plain(text, true);
}
