/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/graph.h"

#include "driver/handle.h"

#include <stdlib.h>
#include <string.h>

struct hc_graph *hc_graph_new(void)
{
    struct hc_graph *graph = calloc(1, sizeof(*graph));
    if (graph)
        hc_handle_add(graph, HC_HANDLE_GRAPH);
    return graph;
}

void hc_graph_free(struct hc_graph *graph)
{
    while (graph->nodes) {
        struct hc_node *node = graph->nodes;
        graph->nodes = node->next;
        hc_handle_remove(node);
        free(node->earlier);
        free(node);
    }
    hc_handle_remove(graph);
    free(graph);
}

struct hc_node *hc_graph_add(struct hc_graph *graph, CUgraphNodeType type,
                             const struct hc_work *work, struct hc_node *const *earlier,
                             unsigned earlier_count)
{
    struct hc_node *node = calloc(1, sizeof(*node));
    if (!node)
        return NULL;
    node->earlier = calloc(earlier_count + 1, sizeof(*node->earlier));
    if (!node->earlier) {
        free(node);
        return NULL;
    }
    if (earlier_count)
        memcpy(node->earlier, earlier, earlier_count * sizeof(*earlier));
    node->earlier_count = earlier_count;
    node->type = type;
    node->graph = graph;
    if (work)
        node->work = *work;
    struct hc_node **link = &graph->nodes;
    while (*link)
        link = &(*link)->next;
    *link = node;
    graph->node_count++;
    hc_handle_add(node, HC_HANDLE_NODE);
    return node;
}

bool hc_graph_leads_to(const struct hc_node *node, struct hc_node *const *others, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (others[i] == node ||
            hc_graph_leads_to(node, others[i]->earlier, others[i]->earlier_count))
            return true;
    }
    return false;
}
