/* SPDX-License-Identifier: Apache-2.0 */
#include "report/published_checks.h"

#include "base/check.h"
#include "base/file.h"
#include "shared/published.h"

#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

bool rs_published_check_file(int fd)
{
    struct stat status;

    return fstat(fd, &status) == 0 && status.st_size == RS_PUBLISHED_BYTES &&
           rs_file_cannot_shrink(fd);
}

bool rs_published_check_layout(const struct rs_publication *head)
{
    return strncmp(head->layout, RS_PUBLICATION_LAYOUT, sizeof(head->layout)) == 0;
}

static bool lies_inside(uint64_t offset, uint64_t bytes)
{
    return offset < RS_PUBLISHED_BYTES && bytes <= RS_PUBLISHED_BYTES - offset;
}

bool rs_published_check_place(uint64_t at)
{
    return at != 0 && at % _Alignof(max_align_t) == 0 &&
           lies_inside(at, sizeof(struct rs_published_directory));
}

uint64_t rs_published_check_directory(uint64_t at, const struct rs_published_directory *directory)
{
    uint64_t bytes = sizeof(*directory) +
                     directory->stack_count * (uint64_t)sizeof(struct rs_published_stack) +
                     directory->counter_count * (uint64_t)sizeof(struct rs_published_counter);

    return directory->stack_count <= RS_PUBLISHED_STACKS_MAX && lies_inside(at, bytes) ? bytes : 0;
}

bool rs_published_check_stack(const struct rs_published_stack *stack)
{
    return stack->device >= 0 && stack->device < RS_DEVICES_MAX && stack->kind >= 0 &&
           stack->kind < RS_KINDS;
}

/* Words by which a metric's name tells its type and unit (promtool knows them too). */
static bool is_reserved(const char *word, size_t length)
{
    static const char *const words[] = {
        "total",   "count",       "sum",          "bucket",       "counter",   "gauge",
        "summary", "histogram",   "bytes",        "bits",         "kilobytes", "megabytes",
        "seconds", "nanoseconds", "milliseconds", "microseconds", "minutes",   "kib",
        "mib",     "ms",          "ns",           "us",
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(words); i++)
        if (strncmp(word, words[i], length) == 0 && !words[i][length])
            return true;
    return false;
}

/* Names are parts of metrics' names: words of lower case and digits, with one '_' in between, and
 * none of them reserved: what a metric's name ends with tells its kind and unit, whoever has it. */
static bool is_name(const char *text, size_t room)
{
    size_t length = strnlen(text, room);

    if (length == 0 || length == room || text[0] < 'a' || text[0] > 'z' ||
        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") != length)
        return false;
    for (size_t at = 0, word; at <= length; at += word + 1) {
        word = strcspn(text + at, "_");
        if (word == 0 || is_reserved(text + at, word))
            return false;
    }
    return true;
}

/* The sum of a counter has no other name. */
static bool is_sum(const struct rs_published_counter *counter)
{
    return counter->kind == RS_COUNTER_TOTAL &&
           strncmp(counter->name, "total", sizeof(counter->name)) == 0;
}

static bool is_sound(const struct rs_published_term *term)
{
    uint64_t span = term->count ? (uint64_t)(term->count - 1) * term->stride_bytes + 8 : 8;

    return term->offset % 8 == 0 && term->stride_bytes % 8 == 0 &&
           lies_inside(term->offset, span) && term->offset != 0;
}

bool rs_published_check_counter(const struct rs_published_counter *counter)
{
    bool is_good = is_name(counter->resource, sizeof(counter->resource)) &&
                   (is_name(counter->name, sizeof(counter->name)) || is_sum(counter)) &&
                   counter->kind <= RS_COUNTER_LARGEST && counter->unit <= RS_UNIT_NANOSECONDS &&
                   counter->term_count <= RS_TERMS_MAX;

    for (uint32_t i = 0; is_good && i < counter->term_count; i++)
        is_good = is_sound(&counter->terms[i]);
    return is_good;
}
