/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a document's metrics in Prometheus' text format. */
#include "report/document.h"

#include <string.h>

struct scope {
    const struct rs_node *node;
    const struct scope *around;
};

/* Calls visit for each metric below, in order, until it returns false. */
static bool each_metric(const struct scope *scope,
                        bool (*visit)(void *data, const struct scope *metric), void *data)
{
    const struct rs_node *node = scope->node;

    if (node->value != RS_VALUE_OBJECT && node->value != RS_VALUE_LIST)
        return !node->metric || visit(data, scope);
    for (const struct rs_node *child = node->first; child; child = child->next)
        if (!each_metric(&(struct scope){child, scope}, visit, data))
            return false;
    return true;
}

static void put_labels(struct rs_page *page, const struct rs_node *object, const char **between)
{
    for (const struct rs_node *field = object->first; field; field = field->next) {
        if (!field->is_label)
            continue;
        rs_page_put(page, "%s%s=\"", *between, field->name);
        if (field->value == RS_VALUE_TEXT)
            rs_page_put_escaped(page, field->text, strlen(field->text));
        else
            rs_page_put(page, "%llu", (unsigned long long)field->number);
        rs_page_put(page, "\"");
        *between = ",";
    }
}

/* The labels of the object that the value is in come last. */
static void put_sample(struct rs_page *page, const struct scope *scope)
{
    const struct rs_node *node = scope->node, *object = scope->around->node;
    const char *between = "{";
    unsigned long long number = node->number;

    RS_ASSERT(node->value != RS_VALUE_TEXT && object->value == RS_VALUE_OBJECT);
    rs_page_put(page, "%s", node->metric->name);
    for (const struct scope *outer = scope->around->around; outer; outer = outer->around)
        put_labels(page, outer->node, &between);
    put_labels(page, object, &between);
    rs_page_put(page, "%s", *between == ',' ? "} " : " ");
    if (node->value == RS_VALUE_RATIO)
        rs_page_put(page, "%.6g\n", node->ratio);
    else if (node->value == RS_VALUE_NANOSECONDS)
        rs_page_put(page, "%llu.%09llu\n", number / 1000000000, number % 1000000000);
    else
        rs_page_put(page, "%llu\n", number);
}

struct printing {
    struct rs_page *page;
    const struct rs_node *root, *first; /* first: the first sample of a metric */
    bool is_said;
};

static bool is_same_metric(const struct rs_node *one, const struct rs_node *other)
{
    return one->metric == other->metric || strcmp(one->metric->name, other->metric->name) == 0;
}

static bool look_before(void *data, const struct scope *scope)
{
    struct printing *printing = data;

    if (scope->node == printing->first)
        return false;
    printing->is_said = is_same_metric(scope->node, printing->first);
    return !printing->is_said;
}

static bool put_if_same(void *data, const struct scope *scope)
{
    const struct printing *printing = data;

    if (is_same_metric(scope->node, printing->first) &&
        scope->node->value == printing->first->value &&
        scope->node->metric->is_total == printing->first->metric->is_total)
        put_sample(printing->page, scope);
    return true;
}

static bool put_new_metric(void *data, const struct scope *scope)
{
    struct printing *printing = data;
    const struct rs_metric *metric = scope->node->metric;
    const struct scope root = {printing->root, NULL};

    printing->first = scope->node;
    printing->is_said = false;
    (void)each_metric(&root, look_before, printing);
    if (printing->is_said)
        return true;
    rs_page_put(printing->page, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help,
                metric->name, metric->is_total ? "counter" : "gauge");
    (void)each_metric(&root, put_if_same, printing);
    return true;
}

void rs_document_put_metrics(struct rs_page *page, const struct rs_node *root)
{
    struct printing printing = {.page = page, .root = root};

    (void)each_metric(&(struct scope){root, NULL}, put_new_metric, &printing);
}
