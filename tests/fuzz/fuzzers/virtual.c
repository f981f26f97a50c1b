/* SPDX-License-Identifier: Apache-2.0 */
/* `virtual` over a driver of little memory whose calls may fail.  The first byte says the options;
 * then come operations: a byte, and what it needs. */
#include "operations.h"

#include "virtual_stack.h"

enum { MEMORY_MIB = 96, LARGEST_BITS = 25 };

static const char *const options[][3] = {
    {"granularity=2MiB", "maximum_size=128MiB", NULL},
    {"granularity=4MiB", "maximum_size=64MiB", NULL},
    {"maximum_size=128MiB", "initial_size=8MiB", NULL},
};

static struct rs_mr *mr;

static void take_one(size_t size_bytes)
{
    struct rs_allocation allocation;

    if (try_take(mr, size_bytes, &allocation) == CUDA_SUCCESS)
        model_enter(&allocation, size_bytes, 0, 0);
}

static void give_one(size_t at)
{
    struct rs_allocation allocation = model_leave(at);

    fake_vmm_watch(allocation.address, allocation.size_bytes, false);
    must(rs_mr_deallocate(mr, &allocation, NULL) == CUDA_SUCCESS, "a free fails");
}

static void do_one(struct input *input)
{
    unsigned operation = (unsigned)next_number(input, 1), what = operation % 8;

    if (what < 4 && model.count < LIVE_MAX) {
        take_one(next_size(input, LARGEST_BITS));
    } else if (what < 6 && model.count > 0) {
        give_one(operation / 8 % model.count);
    } else if (what == 6) {
        (void)rs_mr_trim(mr, next_number(input, 1) << 19);
    } else {
        fake_vmm.fail_at = 1 + operation / 8;
        fake_vmm.fail_with = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (input->left % 32 == 0) /* this looks at the whole space of addresses */
        assert_good(mr);
    must(fake_vmm.wrong_calls == 0, "a call that a driver would refuse");
    must(fake_vmm.created_bytes >= model.bytes, "less is held than is live");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};

    model_begin();
    mr = make(MEMORY_MIB * MIB, options[next_number(&input, 1) % RS_ARRAY_LENGTH(options)]);
    for (unsigned i = 0; i < OPERATIONS_MAX && input.left > 0; i++)
        do_one(&input);
    fake_vmm.fail_at = 0;
    while (model.count > 0)
        give_one(0);
    end(mr);
    return 0;
}
