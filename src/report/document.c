/* SPDX-License-Identifier: Apache-2.0 */
#include "report/document.h"

#include "base/memory.h"
#include "base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 256 << 10, ALIGNMENT = 16 };

struct rs_document_chunk {
    struct rs_document_chunk *next;
    size_t bytes;
};

/* ---- memory ---- */

static bool add_document_chunk(struct rs_document *document, size_t bytes)
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

static void *take_memory(struct rs_document *document, size_t bytes)
{
    char *taken;

    bytes = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (bytes > RS_DOCUMENT_BYTES_MAX / 2 ||
        (bytes > document->free_bytes && !add_document_chunk(document, bytes))) {
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

static struct rs_node *add_node(struct rs_node *in, const char *name, enum rs_value value)
{
    struct rs_document *document = in->document;
    struct rs_node *node = in == &document->lost ? NULL : take_memory(document, sizeof(*node));

    RS_ASSERT(in == &document->lost ||
              (in->value == RS_VALUE_OBJECT ? name != NULL : in->value == RS_VALUE_LIST && !name));
    if (!node) {
        document->lost = (struct rs_node){.document = document, .in = in, .value = value};
        return &document->lost;
    }
    *node = (struct rs_node){.document = document, .in = in, .name = name, .value = value};
    if (in->last)
        in->last->next = node;
    else
        in->first = node;
    in->last = node;
    return node;
}

struct rs_node *rs_node_object(struct rs_node *in, const char *name)
{
    return add_node(in, name, RS_VALUE_OBJECT);
}

struct rs_node *rs_node_list(struct rs_node *in, const char *name)
{
    return add_node(in, name, RS_VALUE_LIST);
}

struct rs_node *rs_node_number(struct rs_node *in, const char *name, enum rs_value value,
                               uint64_t number)
{
    struct rs_node *node = add_node(in, name, value);

    node->number = number;
    return node;
}

void rs_node_block_sum(struct rs_node *in, struct rs_block_sum amount)
{
    rs_node_bytes(in, "bytes", amount.bytes);
    rs_node_count(in, "blocks", amount.blocks);
}

struct rs_node *rs_node_word(struct rs_node *in, const char *name, const char *word)
{
    struct rs_node *node = add_node(in, name, RS_VALUE_TEXT);

    node->text = word;
    return node;
}

struct rs_node *rs_node_text(struct rs_node *in, const char *name, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = in == &in->document->lost ? NULL : take_memory(in->document, bytes);

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
    text = length < 0 ? NULL : take_memory(document, (size_t)length + 1);
    va_start(arguments, format);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    return text;
}

const char *rs_document_rest(struct rs_document *document, const char *before,
                             struct rs_block_sum amount)
{
    char text[RS_SIZE_TEXT_BYTES];

    return amount.blocks ? rs_document_format(document, "%sand %s in %zu more block%s\n", before,
                                              rs_size_format_short(amount.bytes, text),
                                              amount.blocks, amount.blocks == 1 ? "" : "s")
                         : NULL;
}

const struct rs_metric *rs_document_metric(struct rs_document *document, const char *name,
                                           const char *help, bool is_total)
{
    struct rs_metric *metric = name ? take_memory(document, sizeof(*metric)) : NULL;

    if (metric)
        *metric = (struct rs_metric){name, help, is_total};
    return metric;
}

/* ---- as text ---- */

/* Returns the field `name` of the object `node`, or of the nearest object around it that has such a
 * field; NULL if there is none. With length 0 it returns `node`. */
static const struct rs_node *find_field(const struct rs_node *node, const char *name, size_t length)
{
    for (const struct rs_node *in = node; in && length; in = in->in)
        for (const struct rs_node *field = in->value == RS_VALUE_OBJECT ? in->first : NULL; field;
             field = field->next)
            if (strncmp(field->name, name, length) == 0 && !field->name[length])
                return field;
    return length ? NULL : node;
}

static bool is_nothing(const struct rs_node *node)
{
    if (!node)
        return true;
    if (node->value == RS_VALUE_TEXT)
        return !*node->text;
    return node->value <= RS_VALUE_LIST ? !node->first : !node->number;
}

/* A parsed {...}: the node that it names, the option between the name and '}', and the text after
 * the brace. */
struct field {
    const struct rs_node *node; /* NULL: no such node */
    const char *option, *after;
};

static struct field read_field(const char *at, const struct rs_node *around)
{
    size_t length = strcspn(at + 1, "?!:|}");
    struct field field = {find_field(around, at + 1, length), at + 1 + length, NULL};

    field.after = strchr(field.option, '}') + 1;
    RS_ASSERT(*at == '{' && field.after > field.option);
    return field;
}

static void put_number(struct rs_page *page, const struct rs_node *node, const char *option)
{
    unsigned long long number = node->number;
    int columns = *option == ':' ? atoi(option + 1) : 0;
    char text[RS_SIZE_TEXT_BYTES];

    if (strncmp(option, ":x", 2) == 0)
        rs_page_put(page, "%#llx", number);
    else if (node->value == RS_VALUE_BYTES)
        rs_page_put(page, "%*s", columns, rs_size_format_short(number, text));
    else if (node->value == RS_VALUE_NANOSECONDS)
        rs_page_put(page, "%llu.%03llu ms", number / 1000000, number / 1000 % 1000);
    else
        rs_page_put(page, "%*llu", columns, number);
}

/* Writes one of the two words of an option "|block|blocks}": the first if the number is 1. */
static void put_one_or_many(struct rs_page *page, const struct rs_node *node, const char *words)
{
    const char *one = words + 1, *many = strchr(one, '|') + 1;

    if (node && node->number == 1)
        rs_page_put(page, "%.*s", (int)(many - 1 - one), one);
    else
        rs_page_put(page, "%.*s", (int)strcspn(many, "}"), many);
}

static void put_field(struct rs_page *page, const struct field *field)
{
    const struct rs_node *node = field->node;
    int columns;

    if (*field->option == '|') {
        put_one_or_many(page, node, field->option);
    } else if (*field->option == '?' || *field->option == '!' || !node) {
        return;
    } else if (node->value == RS_VALUE_TEXT) {
        columns = *field->option == ':' ? atoi(field->option + 1) : 0;
        columns -= rs_page_put_plain(page, node->text, "");
        rs_page_put(page, "%*s", columns > 0 ? columns : 0, "");
    } else {
        put_number(page, node, field->option);
    }
}

/* True when all conditions of the group that begins at `at` hold. */
static bool holds(const char *at, const struct rs_node *node)
{
    struct field field;

    for (at += strcspn(at, "{]"); *at == '{'; at += strcspn(at, "{]")) {
        field = read_field(at, node);
        if (strchr("?!}", *field.option) && is_nothing(field.node) != (*field.option == '!'))
            return false;
        at = field.after;
    }
    return true;
}

static void put_line(struct rs_page *page, const char *at, const struct rs_node *node)
{
    while (at && *at) {
        size_t length = strcspn(at, "{[]");
        struct field field;
        rs_page_put(page, "%.*s", (int)length, at);
        at += length;
        if (at[0] && at[0] != '{' && at[0] == at[1]) {
            rs_page_put(page, "%c", *at);
            at += 2;
        } else if (*at == '{') {
            field = read_field(at, node);
            put_field(page, &field);
            at = field.after;
        } else if (*at == '[' && !holds(at + 1, node)) {
            at += strcspn(at, "]") + (strchr(at, ']') != NULL);
        } else if (*at) {
            at++;
        }
    }
}

static void put_as_text(struct rs_page *page, const struct rs_node *node)
{
    put_line(page, node->line, node);
    for (const struct rs_node *child = node->first; child; child = child->next)
        put_as_text(page, child);
    put_line(page, node->end, node);
}

void rs_document_put_text(struct rs_page *page, const struct rs_node *root)
{
    put_as_text(page, root);
    if (root->document->is_short)
        rs_page_put(page, "This report is incomplete, because host memory ran out.\n");
}

/* ---- as JSON ---- */

static void put_as_json(struct rs_page *page, const struct rs_node *node, bool in_one_line)
{
    if (node->value == RS_VALUE_TEXT) {
        rs_page_put(page, "\"");
        rs_page_put_plain(page, node->text, "\"\\");
        rs_page_put(page, "\"");
    } else if (node->value == RS_VALUE_FLAG) {
        rs_page_put(page, node->number ? "true" : "false");
    } else if (node->value > RS_VALUE_LIST) {
        rs_page_put(page, "%llu", (unsigned long long)node->number);
    } else {
        rs_page_put(page, node->value == RS_VALUE_LIST ? "[" : "{");
        for (const struct rs_node *child = node->first; child; child = child->next) {
            bool begins_line = !child->name && child->value == RS_VALUE_OBJECT && !in_one_line;
            rs_page_put(page, "%s%s", child == node->first ? "" : ",", begins_line ? "\n" : "");
            if (child->name)
                rs_page_put(page, "\"%s\":", child->name);
            put_as_json(page, child, in_one_line);
        }
        if (node == &node->document->root && node->document->is_short)
            rs_page_put(page, ",\"short\":true");
        rs_page_put(page, node->value == RS_VALUE_LIST ? "]" : "}");
    }
}

void rs_document_put_json(struct rs_page *page, const struct rs_node *root, bool in_one_line)
{
    put_as_json(page, root, in_one_line);
    rs_page_put(page, "\n");
}

/* ---- as metrics, in Prometheus' text format ---- */

/* Returns the next node, in the order of the text, that is a metric; NULL: there is none. */
static const struct rs_node *next_metric(const struct rs_node *node)
{
    do {
        const struct rs_node *inner = node->first;
        while (!inner && node && !node->next)
            node = node->in;
        node = inner ? inner : node ? node->next : NULL;
    } while (node && !node->metric);
    return node;
}

static void put_labels(struct rs_page *page, const struct rs_node *object, const char **between)
{
    for (const struct rs_node *field = object->first; field; field = field->next) {
        if (!field->is_label)
            continue;
        rs_page_put(page, "%s%s=\"", *between, field->name);
        if (field->value == RS_VALUE_TEXT)
            rs_page_put_plain(page, field->text, "\"\\");
        else
            rs_page_put(page, "%llu", (unsigned long long)field->number);
        rs_page_put(page, "\"");
        *between = ",";
    }
}

/* Prints a sample.  The labels of the object that has the value come last. */
static void put_sample(struct rs_page *page, const struct rs_node *node)
{
    const char *between = "{";
    unsigned long long number = node->number;

    RS_ASSERT(node->value > RS_VALUE_TEXT && node->in->value == RS_VALUE_OBJECT);
    rs_page_put(page, "%s", node->metric->name);
    for (const struct rs_node *outer = node->in->in; outer; outer = outer->in)
        put_labels(page, outer, &between);
    put_labels(page, node->in, &between);
    rs_page_put(page, "%s", *between == ',' ? "} " : " ");
    if (node->value == RS_VALUE_NANOSECONDS)
        rs_page_put(page, "%llu.%09llu\n", number / 1000000000, number % 1000000000);
    else
        rs_page_put(page, "%llu\n", number);
}

/* Returns the first metric from `at` on that has the same name as `as`, or NULL. */
static const struct rs_node *same_metric(const struct rs_node *at, const struct rs_node *as)
{
    while (at && at->metric != as->metric && strcmp(at->metric->name, as->metric->name) != 0)
        at = next_metric(at);
    return at;
}

void rs_document_put_metrics(struct rs_page *page, const struct rs_node *root)
{
    const struct rs_node *first = next_metric(root);

    for (const struct rs_node *node = first; node; node = next_metric(node)) {
        const struct rs_metric *metric = node->metric;
        if (same_metric(first, node) != node)
            continue; /* the sample was printed together with the first metric of its name */
        rs_page_put(page, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name,
                    metric->is_total ? "counter" : "gauge");
        for (const struct rs_node *same = node; same; same = same_metric(next_metric(same), node))
            if (same->value == node->value && same->metric->is_total == metric->is_total)
                put_sample(page, same);
    }
}
