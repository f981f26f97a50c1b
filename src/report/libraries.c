/* SPDX-License-Identifier: Apache-2.0 */
#include "report/libraries.h"

#include "base/check.h"
#include "trace/object.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- gathering ---- */

static unsigned highest_bit(size_t bytes)
{
    return 63 - (unsigned)__builtin_clzll(bytes | 1);
}

static bool is_of(const struct rs_size_class *class, unsigned object, enum rs_kind kind,
                  unsigned bit)
{
    return class->object == object && class->kind == kind && class->highest_bit == bit;
}

/* The class, or the empty place where it belongs. */
static struct rs_size_class *find(struct rs_libraries *libraries, unsigned object,
                                  enum rs_kind kind, unsigned bit)
{
    uint64_t hash = (uint64_t)object * 256 + (uint64_t)kind * 64 + bit;
    size_t at = (size_t)((hash * 11400714819323198485u) >> 40) % RS_SIZE_CLASSES_MAX;

    RS_ASSERT(libraries->used < RS_SIZE_CLASSES_MAX); /* there is an empty place */
    while (libraries->classes[at].blocks && !is_of(&libraries->classes[at], object, kind, bit))
        at = (at + 1) % RS_SIZE_CLASSES_MAX;
    return &libraries->classes[at];
}

void rs_libraries_add(struct rs_libraries *libraries, const struct rs_block_view *view)
{
    unsigned object = rs_object_name(view->object) ? view->object : 0;
    unsigned bit = highest_bit(view->size_bytes);
    struct rs_size_class *class = find(libraries, object, view->kind, bit);

    if (!class->blocks && libraries->used == RS_SIZE_CLASSES_USED_MAX) {
        libraries->others_bytes += view->size_bytes;
        libraries->others_blocks++;
        return;
    }
    if (!class->blocks) {
        *class = (struct rs_size_class){object, view->kind, bit, 0, 0, SIZE_MAX, 0};
        libraries->used++;
    }
    if (view->size_bytes < class->smallest_bytes)
        class->smallest_bytes = view->size_bytes;
    if (view->size_bytes > class->largest_bytes)
        class->largest_bytes = view->size_bytes;
    class->bytes += view->size_bytes;
    class->blocks++;
}

/* ---- sorting ---- */

static bool is_of_one_library(const struct rs_size_class *a, const struct rs_size_class *b)
{
    return a->object == b->object && a->kind == b->kind;
}

/* By object, then by kind, then the most bytes first. */
static bool precedes(const struct rs_size_class *a, const struct rs_size_class *b)
{
    if (a->object != b->object)
        return a->object < b->object;
    return a->kind != b->kind ? a->kind < b->kind : a->bytes > b->bytes;
}

/* Packs the used places to the front, in order. */
static size_t sort_classes(struct rs_size_class *classes)
{
    size_t count = 0;

    for (size_t i = 0; i < RS_SIZE_CLASSES_MAX; i++) {
        struct rs_size_class class = classes[i];
        size_t at = count;
        if (!class.blocks)
            continue;
        for (; at > 0 && precedes(&class, &classes[at - 1]); at--)
            classes[at] = classes[at - 1];
        classes[at] = class;
        count++;
    }
    return count;
}

/* The classes of one library, which lie together. */
static struct rs_library sum(const struct rs_size_class *first, const struct rs_size_class *end)
{
    struct rs_library library = {rs_object_name(first->object), first->kind, 0, 0, first, 0};

    for (const struct rs_size_class *class = first; class < end && is_of_one_library(class, first);
         class ++) {
        library.bytes += class->bytes;
        library.blocks += class->blocks;
        library.class_count++;
    }
    return library;
}

void rs_libraries_sort(struct rs_libraries *libraries)
{
    const struct rs_size_class *class = libraries->classes;
    const struct rs_size_class *end = class + sort_classes(libraries->classes);

    RS_ASSERT(end == class + libraries->used);
    for (libraries->count = 0; class < end; libraries->count++) {
        struct rs_library library = sum(class, end);
        size_t at = libraries->count;
        for (; at > 0 && libraries->libraries[at - 1].bytes < library.bytes; at--)
            libraries->libraries[at] = libraries->libraries[at - 1];
        libraries->libraries[at] = library;
        class += library.class_count;
    }
}
