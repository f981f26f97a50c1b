/* SPDX-License-Identifier: Apache-2.0 */
/* The table of live handles: a stale or made-up handle gets an error and not a crash. The caller
 * holds the lock. */
#pragma once

#include <stdbool.h>

enum hc_handle_type {
    HC_HANDLE_CONTEXT = 1,
    HC_HANDLE_GREEN,
    HC_HANDLE_STREAM,
    HC_HANDLE_EVENT,
    HC_HANDLE_MODULE,
    HC_HANDLE_FUNCTION,
    HC_HANDLE_GRAPH,
    HC_HANDLE_NODE,
    HC_HANDLE_EXEC,
    HC_HANDLE_POOL,
    HC_HANDLE_MEMORY,
    HC_HANDLE_DESC,
    HC_HANDLE_ARRAY,
    HC_HANDLE_MIPMAPPED,
};

void hc_handle_add(const void *handle, enum hc_handle_type type);
void hc_handle_remove(const void *handle);
bool hc_handle_is(const void *handle, enum hc_handle_type type);
