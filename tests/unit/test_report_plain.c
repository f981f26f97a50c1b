/* SPDX-License-Identifier: Apache-2.0 */
/* Text of others, for a terminal and for JSON. */
#include "unit.h"

#include "base/check.h"
#include "report/page.h"
#include "report/plain.h"

#include <stdio.h>
#include <string.h>

/* What is not shown as it stands, and what takes its place. */
static const struct {
    const char *text, *plain;
} cases[] = {
    {"a name, \xc3\xa9\xe2\x96\x88", "a name, \xc3\xa9\xe2\x96\x88"},
    {"\033[2J\x07\t\x7f", "?[2J???"},
    {"C1: \xc2\x9b"
     "2J",
     "C1: ?2J"},
    {"soft\xc2\xad"
     "hyphen",
     "soft?hyphen"},
    {"right to left \xe2\x80\xae", "right to left ?"},
    {"no width \xe2\x80\x8b\xef\xbb\xbf", "no width ??"},
    {"tag \xf3\xa0\x80\x81", "tag ?"},
    {"no UTF-8 \xff\xc3", "no UTF-8 ??"},
    {"half a pair \xed\xa0\x80", "half a pair ???"},
};

TEST(only_characters_that_are_shown_are_left)
{
    char text[64];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        snprintf(text, sizeof(text), "%s\n", cases[i].text);
        rs_plain_make(text);
        assert_memory_equal(text, cases[i].plain, strlen(cases[i].plain));
        assert_string_equal(text + strlen(cases[i].plain), "?");
    }
}

TEST(lines_stay_lines)
{
    char text[64];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        snprintf(text, sizeof(text), "%s\n", cases[i].text);
        rs_plain_make_lines(text);
        assert_memory_equal(text, cases[i].plain, strlen(cases[i].plain));
        assert_string_equal(text + strlen(cases[i].plain), "\n");
    }
}

/* A page goes to stderr, too, and so to a terminal. */
TEST(a_page_has_no_other)
{
    static struct rs_page page;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        rs_page_begin_text(&page);
        assert_true(rs_page_put_plain(&page, cases[i].text, "\"\\") > 0);
        assert_string_equal(page.text, cases[i].plain);
    }
}
