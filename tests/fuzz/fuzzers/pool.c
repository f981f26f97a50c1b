/* SPDX-License-Identifier: Apache-2.0 */
/* Allocators over a leaf of little memory that may refuse.  The first byte says which; then come
 * operations: a byte, and what it needs. */
#include "operations.h"

#include "fake_leaf.h"

enum { LEAF_BYTES = 24 << 20, LARGEST_BITS = 23 };

struct subject {
    const struct rs_mr_descriptor *top, *below; /* below: NULL where there is one resource */
    const char *top_options[4], *options[4];
};

static const struct subject subjects[] = {
    {&rs_mr_descriptor_pool, NULL, {NULL}, {NULL}},
    {&rs_mr_descriptor_pool, NULL, {"initial_size=1000192", "growth=rmm"}, {NULL}},
    {&rs_mr_descriptor_pool, NULL, {"maximum_size=5000192"}, {NULL}},
    {&rs_mr_descriptor_pool, &rs_mr_descriptor_pool, {NULL}, {"initial_size=8MiB"}},
    {&rs_mr_descriptor_arena, NULL, {"arena_size=16MiB"}, {NULL}},
    {&rs_mr_descriptor_fixed_size, NULL, {"block_size=64KiB", "blocks_to_preallocate=16"}, {NULL}},
    {&rs_mr_descriptor_binning, &rs_mr_descriptor_pool, {"bins=1000+48KiB+300000+1MiB"}, {NULL}},
    {&rs_mr_descriptor_binning, NULL, {"minimum_size=1KiB", "maximum_size=256KiB"}, {NULL}},
    {&rs_mr_descriptor_limiting, &rs_mr_descriptor_pool, {"limit=4MiB"}, {NULL}},
    {&rs_mr_descriptor_aligned,
     &rs_mr_descriptor_pool,
     {"alignment=4096", "alignment_threshold=1000"},
     {NULL}},
};

static struct fake_leaf *leaf;
static struct rs_mr *mr, *below;

static void make(const struct subject *subject)
{
    int error;

    leaf = fake_leaf_create(LEAF_BYTES);
    below = subject->below ? make_resource(subject->below, &leaf->base, subject->options) : NULL;
    mr = make_resource_at(&fake_environment, subject->top, below ? below : &leaf->base,
                          subject->top_options, &error);
    must(mr, "it cannot be made");
}

static void end(void)
{
    must(rs_mr_check(mr), "a structure is damaged");
    mr->ops.destroy(mr, false);
    if (below)
        below->ops.destroy(below, false);
    must(leaf->live_count == 0 && leaf->wrong_calls == 0, "memory is left, or freed twice");
    must(leaf->peak_bytes <= LEAF_BYTES, "more than there is");
    fake_leaf_destroy(leaf);
}

static void take(size_t size_bytes)
{
    static const struct rs_allocation untouched = {1, 2, NULL, NULL};
    struct rs_allocation allocation = untouched;
    CUresult result = rs_mr_allocate(mr, size_bytes, NULL, &allocation);

    if (result == CUDA_SUCCESS) {
        must(fake_leaf_owns(leaf, allocation.address, size_bytes), "a block that is nobody's");
        model_enter(&allocation, size_bytes, 0, 0);
        return;
    }
    must(result == CUDA_ERROR_OUT_OF_MEMORY, "another error");
    must(memcmp(&allocation, &untouched, sizeof(untouched)) == 0, "a block without success");
}

static void give(size_t at)
{
    struct rs_allocation allocation = model_leave(at);

    must(rs_mr_deallocate(mr, &allocation, NULL) == CUDA_SUCCESS, "a free fails");
}

static void do_one(struct input *input)
{
    unsigned operation = (unsigned)next_number(input, 1), what = operation % 8;

    if (what < 4 && model.count < LIVE_MAX) {
        take(next_size(input, LARGEST_BITS));
    } else if (what < 6 && model.count > 0) {
        give(operation / 8 % model.count);
    } else if (what == 6) {
        (void)rs_mr_trim(mr, next_number(input, 1) << 18);
    } else {
        leaf->fail_at = 1 + operation / 8 % 4;
        leaf->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
    }
    must(leaf->live_bytes >= model.bytes, "less is held than is live");
    if (input->left % 8 == 0)
        must(rs_mr_check(mr), "a structure is damaged");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};

    model_begin();
    make(&subjects[next_number(&input, 1) % RS_ARRAY_LENGTH(subjects)]);
    for (unsigned i = 0; i < OPERATIONS_MAX && input.left > 0; i++)
        do_one(&input);
    while (model.count > 0)
        give(0);
    end();
    return 0;
}
