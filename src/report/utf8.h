/* SPDX-License-Identifier: Apache-2.0 */
/* Text of UTF-8, as far as outputs need it. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that begins there; 0 when none does. */
static inline size_t rs_utf8_bytes(const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t count = bytes[0] < 0x80 ? 1 : bytes[0] < 0xe0 ? 2 : bytes[0] < 0xf0 ? 3 : 4;
    unsigned second = length > 1 ? bytes[1] : 0;

    if (count > length || (bytes[0] >= 0x80 && bytes[0] < 0xc2) || bytes[0] > 0xf4)
        return 0;
    /* longer than needed, half of a pair, or above the last character there is */
    if ((bytes[0] == 0xe0 && second < 0xa0) || (bytes[0] == 0xed && second > 0x9f) ||
        (bytes[0] == 0xf0 && second < 0x90) || (bytes[0] == 0xf4 && second > 0x8f))
        return 0;
    for (size_t i = 1; i < count; i++)
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
    return count;
}

/* The number of the character of that many bytes. */
static inline uint32_t rs_utf8_character(const char *text, size_t bytes)
{
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t character = (unsigned char)text[0] & first_bits[bytes];

    for (size_t i = 1; i < bytes; i++)
        character = character << 6 | ((unsigned char)text[i] & 0x3f);
    return character;
}

/* True for a character that a terminal only shows: no control character, none that changes the
 * direction of text or is not seen.  False for 0 bytes, which are no character. */
static inline bool rs_utf8_is_plain(const char *text, size_t bytes)
{
    static const uint32_t others[][2] = {
        {0x0000, 0x001f}, {0x007f, 0x009f}, {0x00ad, 0x00ad}, {0x061c, 0x061c}, {0x200b, 0x200f},
        {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
    }; /* first and last of them */
    uint32_t character = bytes ? rs_utf8_character(text, bytes) : 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(others); i++)
        if (character >= others[i][0] && character <= others[i][1])
            return false;
    return true;
}
