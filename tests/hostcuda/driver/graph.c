/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/graph.h"

#include "driver/handle.h"
#include "driver/pool.h"

#include <stdlib.h>
#include <string.h>

struct hc_graph *hc_graph_new(void)
{
    struct hc_graph *graph = calloc(1, sizeof(*graph));
    if (!graph)
        return NULL;
    graph->last = &graph->nodes;
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
    hc_graph_memory_unref(graph->memory);
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
    *graph->last = node;
    graph->last = &node->next;
    graph->node_count++;
    hc_handle_add(node, HC_HANDLE_NODE);
    return node;
}

/* Each node is looked at once: mark holds the number of the search that has seen it. */
static bool leads_to(const struct hc_node *node, struct hc_node *const *others, unsigned count,
                     unsigned long long search)
{
    for (unsigned i = 0; i < count; i++) {
        if (others[i] == node)
            return true;
        if (others[i]->mark == search)
            continue;
        others[i]->mark = search;
        if (leads_to(node, others[i]->earlier, others[i]->earlier_count, search))
            return true;
    }
    return false;
}

bool hc_graph_leads_to(const struct hc_node *node, struct hc_node *const *others, unsigned count)
{
    static unsigned long long search;
    return leads_to(node, others, count, ++search);
}

struct hc_graph_memory {
    unsigned refs;
    struct hc_alloc **allocs;
    unsigned count;
};

struct hc_graph_memory *hc_graph_memory_ref(struct hc_graph_memory *memory)
{
    if (memory)
        memory->refs++;
    return memory;
}

void hc_graph_memory_unref(struct hc_graph_memory *memory)
{
    if (!memory || --memory->refs)
        return;
    for (unsigned i = 0; i < memory->count; i++)
        hc_memory_release(memory->allocs[i], HC_RACE_FREE_IN_ORDER);
    free(memory->allocs);
    free(memory);
}

CUresult hc_graph_allocate(struct hc_graph *graph, int device, size_t bytes,
                           struct hc_alloc **alloc)
{
    struct hc_graph_memory *memory = graph->memory;
    if (!memory) {
        memory = graph->memory = calloc(1, sizeof(*memory));
        if (!memory)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memory->refs = 1;
    }
    struct hc_alloc **allocs = realloc(memory->allocs, (memory->count + 1) * sizeof(*allocs));
    if (!allocs)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->allocs = allocs;
    CUresult result = hc_pool_take(hc_pool_default(device), bytes, alloc);
    if (result)
        return result;
    (*alloc)->graph = memory;
    (*alloc)->is_freed = true; /* until a launch */
    memory->allocs[memory->count++] = *alloc;
    return CUDA_SUCCESS;
}

void hc_graph_memory_begin(struct hc_graph_memory *memory)
{
    for (unsigned i = 0; memory && i < memory->count; i++)
        memory->allocs[i]->is_freed = false;
}
