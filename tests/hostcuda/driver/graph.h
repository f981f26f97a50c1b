/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: work with an order, to be submitted later and often. The caller holds the lock. */
#pragma once

#include "driver/stream.h"

struct hc_node {
    struct hc_work work;
    CUgraphNodeType type;
    struct hc_node **earlier; /* nodes that this one comes after */
    unsigned earlier_count;
    struct hc_graph *graph;
    struct hc_node *next; /* in the order of creation, which every order respects */
};

struct hc_graph {
    struct hc_node *nodes;
    unsigned node_count;
};

struct hc_exec;

struct hc_graph *hc_graph_new(void);
void hc_graph_free(struct hc_graph *graph);

/* Adds a node after others; NULL without memory. */
struct hc_node *hc_graph_add(struct hc_graph *graph, CUgraphNodeType type,
                             const struct hc_work *work, struct hc_node *const *earlier,
                             unsigned earlier_count);

/* True if the node is one of others, or one of them comes after it. */
bool hc_graph_leads_to(const struct hc_node *node, struct hc_node *const *others, unsigned count);
