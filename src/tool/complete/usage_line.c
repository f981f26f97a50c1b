/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/complete/usage_line.h"

#include <string.h>

/* The next group of the line, without brackets, behind which *line is then; `begin` is NULL at the
 * end. */
static struct usage_words next_group(const char **line)
{
    const char *begin = *line + strspn(*line, " ");
    bool is_bracketed = *begin == '[';
    size_t length;

    begin += is_bracketed;
    length = strcspn(begin, is_bracketed ? "]" : " ");
    *line = begin + length + (is_bracketed && begin[length]);
    return (struct usage_words){length ? begin : NULL, length};
}

static bool is_option(struct usage_words group)
{
    return group.length > 2 && strncmp(group.begin, "--", 2) == 0 && group.begin[2] != ' ';
}

/* Parts of a group of options: "--json|--prom", "--by process|device". */
static void visit_options(struct usage_words group,
                          void (*visit)(void *data, struct usage_words name,
                                        struct usage_words value),
                          void *data)
{
    const char *blank = memchr(group.begin, ' ', group.length);
    struct usage_words name;

    if (blank) {
        name = (struct usage_words){group.begin, (size_t)(blank - group.begin)};
        visit(data, name, (struct usage_words){blank + 1, group.length - name.length - 1});
        return;
    }
    while (usage_words_next(&group, &name))
        visit(data, name, (struct usage_words){NULL, 0});
}

void usage_line_options(const char *line,
                        void (*visit)(void *data, struct usage_words name,
                                      struct usage_words value),
                        void *data)
{
    struct usage_words group;

    while ((group = next_group(&line)).begin)
        if (is_option(group))
            visit_options(group, visit, data);
}

struct search {
    struct usage_words name, value;
    bool is_found;
};

static void compare(void *data, struct usage_words name, struct usage_words value)
{
    struct search *search = data;

    if (name.length != search->name.length ||
        strncmp(name.begin, search->name.begin, name.length) != 0)
        return;
    search->value = value;
    search->is_found = true;
}

bool usage_line_find(const char *line, const char *name, size_t length, struct usage_words *value)
{
    struct search search = {.name = {name, length}};

    usage_line_options(line, compare, &search);
    *value = search.value;
    return search.is_found;
}

struct usage_words usage_line_argument(const char *line, size_t number)
{
    struct usage_words group;
    size_t dots = strlen("...");

    while ((group = next_group(&line)).begin) {
        bool is_last =
            group.length > dots && strncmp(group.begin + group.length - dots, "...", dots) == 0;
        if (strncmp(group.begin, "--", 2) == 0)
            continue;
        group.length -= is_last ? dots : 0;
        if (is_last || number-- == 0)
            return group;
    }
    return group;
}

bool usage_words_next(struct usage_words *alternatives, struct usage_words *first)
{
    const char *bar;

    if (!alternatives->begin)
        return false;
    bar = memchr(alternatives->begin, '|', alternatives->length);
    *first = *alternatives;
    if (bar) {
        first->length = (size_t)(bar - first->begin);
        alternatives->begin = bar + 1;
        alternatives->length -= first->length + 1;
    } else {
        *alternatives = (struct usage_words){NULL, 0};
    }
    return true;
}
