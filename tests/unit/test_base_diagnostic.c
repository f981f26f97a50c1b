/* SPDX-License-Identifier: Apache-2.0 */
/* Diagnostics: the line, the caret, the nearest word. */
#include "unit.h"

#include "lines.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

TEST(shows_the_place_with_a_caret)
{
    static const struct {
        const char *text;
        int at; /* negative: about the whole */
        const char *line;
    } cases[] = {
        {"10Q", 2, "NAME=10^Q: wrong 7"}, {"10Q", 0, "NAME=^10Q: wrong 7"},
        {"10Q", 3, "NAME=10Q^: wrong 7"}, {"10Q", -1, "NAME=10Q: wrong 7"},
        {"", 0, "NAME=^: wrong 7"},       {"", -1, "NAME=: wrong 7"},
    };
    struct lines lines;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_source source = {"NAME", cases[i].text};
        const char *at = cases[i].at < 0 ? NULL : cases[i].text + cases[i].at;
        rs_diagnose(lines_begin(&lines), &source, at, "wrong %d", 7);
        assert_int_equal(lines.diagnostics.count, 1);
        assert_string_equal(lines.text[0], cases[i].line);
    }
}

TEST(long_texts_are_shown_around_the_place_only)
{
    enum { LENGTH = 10000 };
    char *text = malloc(LENGTH + 1);
    struct rs_source source = {"NAME", text};
    struct lines lines;
    static const int places[] = {-1, 0, 39, 40, 41, 5000, LENGTH - 40, LENGTH - 1, LENGTH};

    memset(text, 'x', LENGTH);
    text[LENGTH] = '\0';
    for (size_t i = 0; i < RS_ARRAY_LENGTH(places); i++) {
        const char *line = lines.text[0], *caret;
        rs_diagnose(lines_begin(&lines), &source, places[i] < 0 ? NULL : text + places[i], "no");
        assert_true(strlen(line) < 110);
        assert_non_null(strstr(line, ": no"));
        caret = strchr(line, '^');
        assert_int_equal(caret != NULL, places[i] >= 0);
        assert_int_equal(strncmp(line, "NAME=...", 8) == 0, places[i] > 40);
        assert_int_equal(strstr(line, "...: no") != NULL, places[i] < LENGTH - 40);
    }
    free(text);
}

TEST(control_bytes_of_a_setting_are_not_echoed)
{
    struct rs_source source = {"NAME", "a\x1b[2Jb\nc\rd\x7f"
                                       "e\tf"};
    struct lines lines;

    rs_diagnose(lines_begin(&lines), &source, source.text + 6, "no");
    assert_string_equal(lines.text[0], "NAME=a?[2Jb^?c?d?e?f: no");
}

TEST(long_reasons_are_cut)
{
    char reason[4000];
    struct rs_source source = {"NAME", "text"};
    struct lines lines;

    memset(reason, 'r', sizeof(reason) - 1);
    reason[sizeof(reason) - 1] = '\0';
    rs_diagnose(lines_begin(&lines), &source, source.text, "%s", reason);
    assert_in_range(strlen(lines.text[0]), 200, 511);
}

TEST(long_names_are_cut)
{
    char name[2000];
    struct rs_source source = {name, "text"};
    struct lines lines;

    for (size_t length = 480; length < sizeof(name); length += length < 530 ? 1 : 700) {
        memset(name, 'n', length);
        name[length] = '\0';
        rs_diagnose(lines_begin(&lines), &source, source.text + 2, "no");
        assert_in_range(strlen(lines.text[0]), 480, 511);
    }
}

TEST(every_diagnostic_counts)
{
    struct rs_source source = {"NAME", "text"};
    struct lines lines;
    struct rs_diagnostics *diagnostics = lines_begin(&lines);

    for (unsigned i = 0; i < 5; i++)
        rs_diagnose(diagnostics, &source, NULL, "%u", i);
    assert_int_equal(diagnostics->count, 5);
    assert_string_equal(lines.text[4], "NAME=text: 4");
}

TEST(distance_counts_single_letter_slips)
{
    static const struct {
        const char *a, *b;
        unsigned distance;
    } cases[] = {
        {"", "", 0},
        {"", "pool", 4},
        {"pool", "", 4},
        {"pool", "pool", 0},
        {"pol", "pool", 1},   /* lost */
        {"poool", "pool", 1}, /* inserted */
        {"pool", "poul", 1},  /* changed */
        {"opol", "pool", 1},  /* swapped */
        {"polo", "pool", 1},
        {"lopo", "pool", 3},
        {"limitnig", "limiting", 1},
        {"iniital_szie", "initial_size", 2},
        {"abc", "xyz", 3},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        const char *a = cases[i].a, *b = cases[i].b;
        if (rs_word_distance(a, strlen(a), b, strlen(b)) != cases[i].distance)
            fail_msg("'%s' to '%s': %u", a, b, rs_word_distance(a, strlen(a), b, strlen(b)));
    }
}

TEST(distance_of_long_words_is_far)
{
    char word[65];

    memset(word, 'a', sizeof(word));
    assert_int_equal(rs_word_distance(word, 64, word, 64), 0);
    assert_true(rs_word_distance(word, 65, word, 65) > 2);
    assert_true(rs_word_distance(word, 1, word, 65) > 2);
}

TEST(nearest_word_forgives_two_letters_or_one_in_short_words)
{
    static const char *const words[] = {"cuda",     "managed", "pool",       "fixed_size",
                                        "limiting", "logging", "statistics", NULL};
    static const struct {
        const char *text, *nearest;
    } cases[] = {
        {"pol", "pool"},
        {"opol", "pool"},
        {"lopo", NULL},
        {"pppl", NULL}, /* two letters are too many in a short word */
        {"", NULL},
        {"p", NULL},
        {"manged", "managed"},
        {"mangaed", "managed"},
        {"mnagad", "managed"},
        {"mnagadx", NULL},
        {"limitting", "limiting"},
        {"loging", "logging"},
        {"fixedsize", "fixed_size"},
        {"stattistic", "statistics"},
        {"something", NULL},
        {"cudda", "cuda"},
        {"CUDA", NULL}, /* the caller decides about case; four letters differ */
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        const char *text = cases[i].text;
        const char *nearest = rs_nearest_word(text, text + strlen(text), words);
        if (!cases[i].nearest)
            assert_null(nearest);
        else if (!nearest || strcmp(nearest, cases[i].nearest) != 0)
            fail_msg("'%s': %s", text, nearest ? nearest : "none");
    }
}

/* Any letter is one letter off: 'y' is no misspelt '0'. */
TEST(a_word_with_no_letter_right_is_not_near)
{
    static const char *const words[] = {"0", "no", "abcdef", NULL};
    static const char *const texts[] = {"y", "00", "", "01", "x"};
    const char *swapped = "on";

    for (size_t i = 0; i < RS_ARRAY_LENGTH(texts); i++)
        assert_null(rs_nearest_word(texts[i], texts[i] + strlen(texts[i]), words));
    assert_string_equal(rs_nearest_word(swapped, swapped + 2, words), "no");
}

TEST(the_nearer_of_two_words_wins)
{
    static const char *const words[] = {"limiting", "limitings", NULL};
    static const char *const reversed[] = {"limitings", "limiting", NULL};
    const char *text = "limitings2";

    assert_string_equal(rs_nearest_word(text, text + strlen(text), words), "limitings");
    assert_string_equal(rs_nearest_word(text, text + strlen(text), reversed), "limitings");
}
