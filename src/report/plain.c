/* SPDX-License-Identifier: Apache-2.0 */
#include "report/plain.h"

#include "base/check.h"

#include <stdint.h>
#include <string.h>

/* Reads the UTF-8 character at `text`. Returns its length in bytes. Returns 0, with *character 0,
 * for an invalid one: cut off, longer than needed, a surrogate, or above U+10FFFF. */
static size_t read_character(const char *text, uint32_t *character)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    unsigned char first = (unsigned char)text[0];
    size_t count = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint32_t value = first & first_bits[count];

    *character = 0;
    if ((first >= 0x80 && first < 0xc0) || first >= 0xf8)
        return 0;
    for (size_t i = 1; i < count; i++) {
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | ((unsigned char)text[i] & 0x3f);
    }
    if (value < smallest[count] || (value >= 0xd800 && value < 0xe000) || value > 0x10ffff)
        return 0;
    *character = value;
    return count;
}

size_t rs_plain_next(const char *text, bool *is_plain)
{
    static const uint32_t others[][2] = {
        {0x0000, 0x001f}, {0x007f, 0x009f}, {0x00ad, 0x00ad}, {0x061c, 0x061c}, {0x200b, 0x200f},
        {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff},
    }; /* the first and last of each range of characters that are not plain */
    uint32_t character;
    size_t bytes = read_character(text, &character);

    *is_plain = true;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(others); i++)
        if (character >= others[i][0] && character <= others[i][1])
            *is_plain = false;
    return bytes ? bytes : 1;
}

static void make_plain(char *text, bool keeps_lines)
{
    size_t count;
    char *to = text;
    bool is_plain;

    for (; *text; text += count) {
        count = rs_plain_next(text, &is_plain);
        if (is_plain || (keeps_lines && *text == '\n')) {
            memmove(to, text, count);
            to += count;
        } else {
            *to++ = '?';
        }
    }
    *to = '\0';
}

void rs_plain_make(char *text)
{
    make_plain(text, false);
}

void rs_plain_make_lines(char *text)
{
    make_plain(text, true);
}
