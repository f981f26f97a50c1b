/* SPDX-License-Identifier: Apache-2.0 */
#include "report/document.h"

#include "base/memory.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 256 << 10, ALIGNMENT = 16 };

struct rs_document_chunk {
    struct rs_document_chunk *next;
    size_t bytes;
};

/* ---- memory ---- */

static bool add_chunk(struct rs_document *document, size_t bytes)
{
    struct rs_document_chunk *chunk = NULL;
    size_t all = bytes + ALIGNMENT > CHUNK_BYTES ? bytes + ALIGNMENT : (size_t)CHUNK_BYTES;

    if (all <= RS_DOCUMENT_BYTES_MAX - document->mapped_bytes)
        chunk = rs_map_zeroed(all);
    if (!chunk)
        return false;
    *chunk = (struct rs_document_chunk){document->chunks, all};
    document->chunks = chunk;
    document->mapped_bytes += all;
    document->free = (char *)chunk + ALIGNMENT;
    document->free_bytes = all - ALIGNMENT;
    return true;
}

static void *take(struct rs_document *document, size_t bytes)
{
    char *taken;

    bytes = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (bytes > RS_DOCUMENT_BYTES_MAX / 2 ||
        (bytes > document->free_bytes && !add_chunk(document, bytes))) {
        document->is_short = true;
        return NULL;
    }
    taken = document->free;
    RS_ASSERT(bytes <= document->free_bytes && (uintptr_t)taken % ALIGNMENT == 0);
    document->free += bytes;
    document->free_bytes -= bytes;
    return taken;
}

void rs_document_begin(struct rs_document *document)
{
    document->root = (struct rs_node){.document = document, .value = RS_VALUE_OBJECT};
    document->is_short = false;
    document->chunks = NULL;
    document->mapped_bytes = 0;
    document->free = document->first_bytes;
    document->free_bytes = sizeof(document->first_bytes);
}

void rs_document_release(struct rs_document *document)
{
    while (document->chunks) {
        struct rs_document_chunk *chunk = document->chunks;
        document->chunks = chunk->next;
        munmap(chunk, chunk->bytes);
    }
    document->free_bytes = 0;
}

/* ---- filling ---- */

static struct rs_node *add(struct rs_node *in, const char *name, enum rs_value value)
{
    struct rs_document *document = in->document;
    struct rs_node *node = in == &document->lost ? NULL : take(document, sizeof(*node));

    RS_ASSERT(in == &document->lost ||
              (in->value == RS_VALUE_OBJECT ? name != NULL : in->value == RS_VALUE_LIST && !name));
    if (!node) {
        document->lost = (struct rs_node){.document = document, .value = value};
        return &document->lost;
    }
    *node = (struct rs_node){.document = document, .name = name, .value = value};
    if (in->last)
        in->last->next = node;
    else
        in->first = node;
    in->last = node;
    return node;
}

struct rs_node *rs_node_object(struct rs_node *in, const char *name)
{
    return add(in, name, RS_VALUE_OBJECT);
}

struct rs_node *rs_node_list(struct rs_node *in, const char *name)
{
    return add(in, name, RS_VALUE_LIST);
}

static struct rs_node *add_number(struct rs_node *in, const char *name, enum rs_value value,
                                  uint64_t number)
{
    struct rs_node *node = add(in, name, value);

    node->number = number;
    return node;
}

struct rs_node *rs_node_flag(struct rs_node *in, const char *name, bool flag)
{
    return add_number(in, name, RS_VALUE_FLAG, flag);
}

struct rs_node *rs_node_count(struct rs_node *in, const char *name, uint64_t count)
{
    return add_number(in, name, RS_VALUE_COUNT, count);
}

struct rs_node *rs_node_bytes(struct rs_node *in, const char *name, uint64_t bytes)
{
    return add_number(in, name, RS_VALUE_BYTES, bytes);
}

struct rs_node *rs_node_nanoseconds(struct rs_node *in, const char *name, uint64_t nanoseconds)
{
    return add_number(in, name, RS_VALUE_NANOSECONDS, nanoseconds);
}

struct rs_node *rs_node_ratio(struct rs_node *in, const char *name, double ratio)
{
    struct rs_node *node = add(in, name, RS_VALUE_RATIO);

    node->ratio = ratio;
    return node;
}

struct rs_node *rs_node_word(struct rs_node *in, const char *name, const char *word)
{
    struct rs_node *node = add(in, name, RS_VALUE_TEXT);

    node->text = word;
    return node;
}

struct rs_node *rs_node_text(struct rs_node *in, const char *name, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = in == &in->document->lost ? NULL : take(in->document, bytes);

    return rs_node_word(in, name, copy ? memcpy(copy, text, bytes) : "");
}

const char *rs_document_format(struct rs_document *document, const char *format, ...)
{
    va_list arguments;
    char *text;
    int length;

    va_start(arguments, format);
    length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    text = length < 0 ? NULL : take(document, (size_t)length + 1);
    va_start(arguments, format);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    return text;
}

const char *rs_document_rest(struct rs_document *document, const char *before, size_t bytes,
                             size_t blocks)
{
    char text[RS_SIZE_TEXT_BYTES];

    return blocks ? rs_document_format(document, "%s%s in %zu block%s more\n", before,
                                       rs_size_format_short(bytes, text), blocks,
                                       blocks == 1 ? "" : "s")
                  : NULL;
}

const struct rs_metric *rs_document_metric(struct rs_document *document, const char *name,
                                           const char *help, bool is_total)
{
    struct rs_metric *metric = name ? take(document, sizeof(*metric)) : NULL;

    if (metric)
        *metric = (struct rs_metric){name, help, is_total};
    return metric;
}

const struct rs_node *rs_node_field(const struct rs_node *object, const char *name,
                                    size_t name_length)
{
    if (object->value != RS_VALUE_OBJECT)
        return NULL;
    for (const struct rs_node *field = object->first; field; field = field->next)
        if (strncmp(field->name, name, name_length) == 0 && !field->name[name_length])
            return field;
    return NULL;
}

/* ---- as JSON ---- */

static void put_json(struct rs_page *page, const struct rs_node *node, bool in_one_line);

static void put_children(struct rs_page *page, const struct rs_node *node, bool in_one_line)
{
    for (const struct rs_node *child = node->first; child; child = child->next) {
        rs_page_put(page, "%s%s", child == node->first ? "" : ",",
                    !child->name && child->value == RS_VALUE_OBJECT && !in_one_line ? "\n" : "");
        if (child->name)
            rs_page_put(page, "\"%s\":", child->name);
        put_json(page, child, in_one_line);
    }
}

static void put_json(struct rs_page *page, const struct rs_node *node, bool in_one_line)
{
    switch (node->value) {
    case RS_VALUE_OBJECT:
    case RS_VALUE_LIST:
        rs_page_put(page, node->value == RS_VALUE_LIST ? "[" : "{");
        put_children(page, node, in_one_line);
        if (node == &node->document->root && node->document->is_short)
            rs_page_put(page, ",\"short\":true");
        rs_page_put(page, node->value == RS_VALUE_LIST ? "]" : "}");
        break;
    case RS_VALUE_TEXT:
        rs_page_put(page, "\"");
        rs_page_put_escaped(page, node->text, strlen(node->text));
        rs_page_put(page, "\"");
        break;
    case RS_VALUE_FLAG:
        rs_page_put(page, node->number ? "true" : "false");
        break;
    case RS_VALUE_COUNT:
    case RS_VALUE_BYTES:
    case RS_VALUE_NANOSECONDS:
        rs_page_put(page, "%llu", (unsigned long long)node->number);
        break;
    case RS_VALUE_RATIO:
        rs_page_put(page, "%.6g", node->ratio);
        break;
    }
}

void rs_document_put_json(struct rs_page *page, const struct rs_node *root, bool in_one_line)
{
    put_json(page, root, in_one_line);
    rs_page_put(page, "\n");
}
