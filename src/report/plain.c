/* SPDX-License-Identifier: Apache-2.0 */
#include "report/plain.h"

#include "base/check.h"
#include "report/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* First and last of them. */
static const uint32_t not_plain[][2] = {
    {0x0000, 0x001f}, {0x007f, 0x009f}, {0x00ad, 0x00ad}, {0x061c, 0x061c}, {0x200b, 0x200f},
    {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
};

static bool is_plain(const char *text, size_t bytes)
{
    uint32_t character = bytes ? rs_utf8_character(text, bytes) : 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(not_plain); i++)
        if (character >= not_plain[i][0] && character <= not_plain[i][1])
            return false;
    return true;
}

void rs_plain_make(char *text)
{
    size_t length = strlen(text), to = 0;

    for (size_t at = 0, count; at < length; at += count) {
        count = rs_utf8_bytes(text + at, length - at);
        if (is_plain(text + at, count)) {
            memmove(text + to, text + at, count);
            to += count;
        } else {
            text[to++] = '?';
            count += count == 0;
        }
    }
    text[to] = '\0';
}
