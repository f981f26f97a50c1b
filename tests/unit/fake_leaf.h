/* SPDX-License-Identifier: Apache-2.0 */
/* A leaf for tests: addresses without memory, a capacity, failures on demand, and a record of every
 * live allocation, so that a test can check what a resource does to its upstream. */
#pragma once

#include "resource/resource.h"

#include <pthread.h>

enum { FAKE_LEAF_LIVE_MAX = 1 << 16, FAKE_LEAF_FIRST_ADDRESS = 0x10000000 };

struct fake_leaf {
    struct rs_mr base;
    pthread_mutex_t lock; /* protects all fields below */
    size_t capacity_bytes;
    size_t live_bytes, peak_bytes;
    size_t largest_bytes; /* larger requests are refused */
    CUdeviceptr next_address;
    uint64_t allocations, deallocations, refusals; /* calls */
    size_t held_bytes;     /* requests for held memory get so much of it, and are neither */
    enum rs_effort effort; /* of the last request */
    uint64_t fail_at;      /* this allocate call (1 is the next) fails with ... */
    CUresult fail_with;    /* ... this */
    CUresult fail_deallocations_with; /* when not CUDA_SUCCESS */
    unsigned wrong_calls;             /* deallocations of what is not live, or with another size or
                                         record */
    unsigned pause_us;                /* each allocation takes this long, outside the lock */
    bool is_tight;                    /* allocations follow each other without a gap */
    bool deallocates_in_order;        /* what it says of itself */
    struct rs_block_record *record;   /* comes with each allocation; NULL: none */
    void (*on_call)(void *data);      /* called once, in the next allocate before it is answered */
    void *on_call_data;
    void (*on_deallocate)(void *data); /* called inside each deallocate, before it is answered */
    void *on_deallocate_data;
    size_t live_count;
    struct rs_allocation live[FAKE_LEAF_LIVE_MAX];
};

/* Makes a leaf.  It never gives an address out twice, and leaves gaps between allocations unless
 * is_tight. */
struct fake_leaf *fake_leaf_create(size_t capacity_bytes);

/* Frees the leaf; rs_mr_destroy of a resource over it frees it too. */
void fake_leaf_destroy(struct fake_leaf *leaf);

/* True when [address, address + size_bytes) lies inside one live allocation. */
bool fake_leaf_owns(struct fake_leaf *leaf, CUdeviceptr address, size_t size_bytes);

extern const struct rs_mr_descriptor fake_leaf_descriptor;
extern const struct rs_environment fake_environment;        /* the first context on its device */
extern const struct rs_environment fake_second_environment; /* another context on that device */

/* Makes a resource over `upstream` in `environment`, with options as "name=value" (a
 * NULL-terminated list, or NULL for none).  Returns NULL on failure, with the reason in *error. */
struct rs_mr *make_resource_at(const struct rs_environment *environment,
                               const struct rs_mr_descriptor *descriptor, struct rs_mr *upstream,
                               const char *const *options, int *error);

/* As make_resource_at, over two upstreams. */
struct rs_mr *make_resource_of_two(const struct rs_environment *environment,
                                   const struct rs_mr_descriptor *descriptor, struct rs_mr *first,
                                   struct rs_mr *second, const char *const *options, int *error);

/* As make_resource_at, over up to RS_MR_UPSTREAMS_MAX upstreams; NULL stands behind the last. */
struct rs_mr *make_resource_over(const struct rs_environment *environment,
                                 const struct rs_mr_descriptor *descriptor,
                                 struct rs_mr *const *upstream, const char *const *options,
                                 int *error);

/* As make_resource_at in fake_environment; the test fails when it fails. */
struct rs_mr *make_resource(const struct rs_mr_descriptor *descriptor, struct rs_mr *upstream,
                            const char *const *options);
/* Returns the next number of a sequence that is the same in every run. */
static inline uint64_t test_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Parses and validates options without making a resource; writes the reported diagnostics to
 * `line`. */
bool options_are_valid(const struct rs_mr_descriptor *descriptor,
                       const struct rs_environment *environment, const char *const *options,
                       char *line, size_t line_bytes);
