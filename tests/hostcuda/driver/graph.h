/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: work with an order, to be submitted later and often. The caller holds the lock. */
#pragma once

#include "driver/alloc.h"
#include "driver/stream.h"

struct hc_node {
    struct hc_work work;
    CUgraphNodeType type;
    struct hc_node **earlier; /* nodes that this one comes after */
    unsigned earlier_count;
    struct hc_graph *graph;
    unsigned long long mark; /* the latest search that came here */
    struct hc_node *next;    /* in the order of creation, which every order respects */
};

struct hc_graph {
    struct hc_node *nodes, **last;
    unsigned node_count;
    struct hc_graph_memory *memory; /* what its nodes allocate, or NULL */
};

struct hc_graph *hc_graph_new(void);
void hc_graph_free(struct hc_graph *graph);

/* Adds a node after others; NULL without memory. */
struct hc_node *hc_graph_add(struct hc_graph *graph, CUgraphNodeType type,
                             const struct hc_work *work, struct hc_node *const *earlier,
                             unsigned earlier_count);

/* True if the node is one of others, or one of them comes after it. */
bool hc_graph_leads_to(const struct hc_node *node, struct hc_node *const *others, unsigned count);

/* Allocations of a graph. They have their addresses from the start, and keep them until the graph
 * and all that was made of it are gone. */
struct hc_graph_memory *hc_graph_memory_ref(struct hc_graph_memory *memory);
void hc_graph_memory_unref(struct hc_graph_memory *memory);
CUresult hc_graph_allocate(struct hc_graph *graph, int device, size_t bytes,
                           struct hc_alloc **alloc);

/* A launch: the graph's allocations live again. */
void hc_graph_memory_begin(struct hc_graph_memory *memory);
