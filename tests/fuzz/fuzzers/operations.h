/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a resource, and the plain model that it is held against: a list of what is live,
 * and one of what was freed while work used it. */
#pragma once

#include "unit.h"

#include "base/check.h"
#include "fuzzer.h"
#include "resource/resource.h"

enum { LIVE_MAX = 64, BUSY_MAX = 1024, OPERATIONS_MAX = 200 };

/* A freed block that work numbered up to `work` uses; a later allocation in the order of `stream`
 * (0: none) may have it all the same. */
struct busy {
    CUdeviceptr address;
    size_t size_bytes;
    uint64_t work;
    unsigned stream;
};

static struct {
    struct rs_allocation live[LIVE_MAX];
    size_t count, bytes;
    struct busy busy[BUSY_MAX];
    size_t busy_count;
} model;

static inline void model_begin(void)
{
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* what the fakes assert is a finding */
    model.count = model.bytes = model.busy_count = 0;
}

static inline bool is_apart(CUdeviceptr one, size_t one_bytes, CUdeviceptr other,
                            size_t other_bytes)
{
    return one + one_bytes <= other || other + other_bytes <= one;
}

static inline void add_busy(struct busy busy)
{
    must(model.busy_count < BUSY_MAX, "too many busy blocks");
    model.busy[model.busy_count++] = busy;
}

/* No two blocks share so many bytes. */
static inline size_t whole_units(size_t size_bytes)
{
    return (size_bytes + RS_BLOCK_ALIGNMENT - 1) / RS_BLOCK_ALIGNMENT * RS_BLOCK_ALIGNMENT;
}

/* Who has a block again is asked no more what used it before. */
static inline void cut_busy(CUdeviceptr address, size_t size_bytes)
{
    for (size_t i = model.busy_count; i-- > 0;) {
        struct busy whole = model.busy[i], left = whole, right = whole;
        if (is_apart(address, size_bytes, whole.address, whole.size_bytes))
            continue;
        model.busy[i] = model.busy[--model.busy_count];
        left.size_bytes = address - whole.address;
        right.address = address + size_bytes;
        right.size_bytes = whole.address + whole.size_bytes - right.address;
        if (whole.address < address)
            add_busy(left);
        if (whole.address + whole.size_bytes > right.address)
            add_busy(right);
    }
}

/* `done`: the work up to this number is done. */
static inline void model_enter(const struct rs_allocation *allocation, size_t asked_bytes,
                               uint64_t done, unsigned stream)
{
    must(allocation->size_bytes == asked_bytes, "another size");
    must(allocation->address % RS_BLOCK_ALIGNMENT == 0, "a block at an odd place");
    for (size_t i = 0; i < model.count; i++)
        must(is_apart(allocation->address, asked_bytes, model.live[i].address,
                      model.live[i].size_bytes),
             "two blocks overlap");
    for (size_t i = 0; i < model.busy_count; i++) {
        const struct busy *busy = &model.busy[i];
        must(busy->work <= done || (stream && busy->stream == stream) ||
                 is_apart(allocation->address, asked_bytes, busy->address, busy->size_bytes),
             "a block that work still uses");
    }
    cut_busy(allocation->address, whole_units(asked_bytes));
    must(model.count < LIVE_MAX, "too many blocks");
    model.live[model.count++] = *allocation;
    model.bytes += asked_bytes;
}

/* Takes a block out; the caller frees it. */
static inline struct rs_allocation model_leave(size_t at)
{
    struct rs_allocation allocation = model.live[at];

    model.live[at] = model.live[--model.count];
    model.bytes -= allocation.size_bytes;
    return allocation;
}

/* Before the block is freed.  What is done by now is forgotten first. */
static inline void model_busy(const struct rs_allocation *allocation, uint64_t done, uint64_t work,
                              unsigned stream)
{
    size_t kept = 0;

    for (size_t i = 0; i < model.busy_count; i++)
        if (model.busy[i].work > done)
            model.busy[kept++] = model.busy[i];
    model.busy_count = kept;
    add_busy((struct busy){allocation->address, whole_units(allocation->size_bytes), work, stream});
}

/* Returns a size of 1 byte to 2^most_bits bytes, every order of magnitude alike. */
static inline size_t next_size(struct input *input, unsigned most_bits)
{
    unsigned bits = (unsigned)next_number(input, 1) % (most_bits + 1);

    return 1 + (next_number(input, 3) * 257 & (((size_t)1 << bits) - 1));
}
