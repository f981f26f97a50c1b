/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/handle.h"

#include <assert.h>
#include <search.h>
#include <stdint.h>
#include <stdlib.h>

struct handle {
    uintptr_t address;
    enum hc_handle_type type;
};

static void *handles; /* a tree of struct handle, by address */

static int compare(const void *a, const void *b)
{
    uintptr_t left = ((const struct handle *)a)->address;
    uintptr_t right = ((const struct handle *)b)->address;
    return (left > right) - (left < right);
}

void hc_handle_add(const void *handle, enum hc_handle_type type)
{
    struct handle *entry = malloc(sizeof(*entry));
    if (!entry)
        abort();
    *entry = (struct handle){(uintptr_t)handle, type};
    struct handle **found = tsearch(entry, &handles, compare);
    if (!found)
        abort();
    assert(*found == entry);
}

static struct handle *find(const void *handle)
{
    struct handle key = {(uintptr_t)handle, 0};
    struct handle **found = tfind(&key, &handles, compare);
    return found ? *found : NULL;
}

void hc_handle_remove(const void *handle)
{
    struct handle *entry = find(handle);
    if (!entry)
        return;
    tdelete(entry, &handles, compare);
    free(entry);
}

bool hc_handle_is(const void *handle, enum hc_handle_type type)
{
    const struct handle *entry = find(handle);
    return entry && entry->type == type;
}
