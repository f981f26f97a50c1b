/* SPDX-License-Identifier: Apache-2.0 */
#include "report/libraries.h"

#include "base/check.h"
#include "base/size.h"
#include "config/variables.h"
#include "trace/object.h"

#include <stdbool.h>
#include <stdint.h>

enum { TEXT_SIZES_MAX = 4 };

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

/* ---- a library in a report ---- */

static void add_size(struct rs_node *sizes, const struct rs_size_class *class, bool is_said)
{
    struct rs_node *size = rs_node_object(sizes, NULL);

    rs_node_bytes(size, "bytes", class->bytes);
    rs_node_count(size, "blocks", class->blocks);
    rs_node_bytes(size, "smallest", class->smallest_bytes);
    rs_node_bytes(size, "largest", class->largest_bytes);
    if (is_said)
        size->line = class->smallest_bytes == class->largest_bytes
                         ? "    {bytes} in {blocks} block{blocks||s} of {largest}\n"
                         : "    {bytes} in {blocks} block{blocks||s} of {smallest} to {largest}\n";
}

void rs_library_fill(struct rs_node *list, const struct rs_library *library, enum rs_kind usual,
                     bool is_said)
{
    struct rs_node *holder = rs_node_object(list, NULL);
    bool has_sizes = library->class_count > 1;
    size_t bytes = 0, blocks = 0;
    struct rs_node *sizes;
    char of[RS_SIZE_TEXT_BYTES], to[RS_SIZE_TEXT_BYTES];
    const struct rs_size_class *only = library->classes;

    rs_node_word(holder, "kind", rs_kind_names[library->kind]);
    rs_node_bytes(holder, "bytes", library->bytes);
    rs_node_count(holder, "blocks", library->blocks);
    if (library->name)
        rs_node_text(holder, "library", library->name);
    if (is_said)
        holder->line = rs_document_format(
            list->document, "  {bytes} in {blocks} block{blocks||s}%s%s%s%s%s, allocated by %s\n",
            has_sizes ? "" : " of ",
            has_sizes ? "" : rs_size_format_short(only->smallest_bytes, of),
            has_sizes || only->smallest_bytes == only->largest_bytes ? "" : " to ",
            has_sizes || only->smallest_bytes == only->largest_bytes
                ? ""
                : rs_size_format_short(only->largest_bytes, to),
            library->kind == usual ? "" : rs_kind_texts[library->kind],
            library->name ? "{library}" : "an unknown library");
    sizes = rs_node_list(holder, "sizes");
    for (size_t i = 0; i < library->class_count; i++) {
        bool has_line = i < TEXT_SIZES_MAX;
        add_size(sizes, &library->classes[i], is_said && has_sizes && has_line);
        bytes += has_line ? 0 : library->classes[i].bytes;
        blocks += has_line ? 0 : library->classes[i].blocks;
    }
    if (is_said)
        sizes->end = rs_document_rest(list->document, "    ", bytes, blocks);
}
