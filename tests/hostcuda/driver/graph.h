/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: ordered work that can be launched often. The caller holds the lock. */
#pragma once

#include "driver/alloc.h"
#include "driver/stream.h"

struct hc_node {
    struct hc_work work;
    CUgraphNodeType type;
    struct hc_node **earlier; /* nodes that this one comes after */
    unsigned earlier_count;
    struct hc_graph *graph;
    unsigned long long mark; /* number of the latest search that reached this node */
    /* List in the order of creation, in which a node follows all that it depends on. */
    struct hc_node *next;
};

struct hc_graph {
    struct hc_node *nodes, **last;
    unsigned node_count;
    struct hc_graph_memory *memory; /* memory that its nodes allocate, or NULL */
};

struct hc_graph *hc_graph_new(void);
void hc_graph_free(struct hc_graph *graph);

/* Adds a node after others; NULL without memory. */
struct hc_node *hc_graph_add(struct hc_graph *graph, CUgraphNodeType type,
                             const struct hc_work *work, struct hc_node *const *earlier,
                             unsigned earlier_count);

/* True if the node is one of others, or one of them comes after it. */
bool hc_graph_leads_to(const struct hc_node *node, struct hc_node *const *others, unsigned count);

/* Allocations of a graph. They get their addresses when their node is made and keep them until the
 * graph and everything made from it are gone. */
struct hc_graph_memory *hc_graph_memory_ref(struct hc_graph_memory *memory);
void hc_graph_memory_unref(struct hc_graph_memory *memory);
CUresult hc_graph_allocate(struct hc_graph *graph, int device, size_t bytes,
                           struct hc_alloc **alloc);

/* Makes the graph's allocations live again, at a launch. */
void hc_graph_memory_begin(struct hc_graph_memory *memory);
