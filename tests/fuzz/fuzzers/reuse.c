/* SPDX-License-Identifier: Apache-2.0 */
/* `reuse` over a pool, with work on streams.  The first byte says the driver and the options; then
 * come operations: a byte, and what it needs. */
#include "operations.h"

#include "reuse_stack.h"

#include <time.h>

enum { LEAF_MIB = 24, LARGEST_BITS = 22, STREAMS = 3, PATIENCE = 64 };

static struct stack stack;
static struct fake_stream streams[STREAMS];

/* Time stands, and who waits gets what it waits for after so many queries, so nobody need sleep. */
int __wrap_nanosleep(const struct timespec *duration, struct timespec *left);

int __wrap_nanosleep(const struct timespec *duration, struct timespec *left)
{
    (void)duration;
    (void)left;
    return 0;
}

/* Stream 0 is none. */
static CUstream stream_of(unsigned number)
{
    return number == 0 ? NULL : handle_of(&streams[number - 1]);
}

static void begin(unsigned how)
{
    static const char *const modes[] = {"free=deferred", "free=wait"};

    start_device(how % 4 != 3);
    stack =
        stack_over(how / 4 % 2 ? &rs_mr_descriptor_binning : &rs_mr_descriptor_pool, LEAF_MIB * MIB,
                   how / 4 % 2 ? OPTIONS("minimum_size=1KiB", "maximum_size=256KiB")
                               : OPTIONS("initial_size=2MiB"),
                   modes[how / 8 % 2]);
    for (unsigned i = 0; i < STREAMS; i++)
        streams[i] = (struct fake_stream){.id = i + 1};
}

static void take_one(size_t size_bytes, unsigned stream)
{
    struct rs_allocation allocation;
    CUresult result;

    charge(&stack);
    result = rs_mr_allocate(stack.mr, size_bytes, stream_of(stream), &allocation);
    must(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "another error");
    if (result != CUDA_SUCCESS)
        return;
    must(fake_leaf_owns(stack.leaf, allocation.address, size_bytes), "a block that is nobody's");
    model_enter(&allocation, size_bytes, atomic_load(&completed), stream);
}

static void give_one(size_t at, unsigned stream)
{
    struct rs_allocation allocation = model_leave(at);

    model_busy(&allocation, atomic_load(&completed), submit(), stream);
    charge(&stack);
    must(rs_mr_deallocate(stack.mr, &allocation, stream_of(stream)) == CUDA_SUCCESS,
         "a free fails");
}

static void fail_at(unsigned call)
{
    stack.leaf->fail_at = call;
    stack.leaf->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
}

static void do_one(struct input *input)
{
    unsigned operation = (unsigned)next_number(input, 1), what = operation % 8;
    unsigned stream = operation / 8 % (STREAMS + 1);
    uint64_t now = atomic_load(&submitted);

    complete_in(PATIENCE);
    if (what < 3 && model.count < LIVE_MAX)
        take_one(next_size(input, LARGEST_BITS), stream);
    else if (what < 6 && model.count > 0)
        give_one(next_number(input, 1) % model.count, stream);
    else if (what == 6)
        complete_to(now - rs_min(now, (uint64_t)operation / 8));
    else if (operation / 8 % 4 == 0)
        turn(&stack);
    else if (operation / 8 % 4 == 1)
        seal(&stack);
    else if (operation / 8 % 4 == 2)
        fail_at(1 + operation / 32);
    else
        (void)rs_mr_trim(stack.mr, (size_t)operation << 16);
    must(stack.leaf->live_bytes >= model.bytes, "less is held than is live");
    if (input->left % 8 == 0)
        must(rs_mr_check(stack.mr), "a structure is damaged");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};

    model_begin();
    begin((unsigned)next_number(&input, 1));
    for (unsigned i = 0; i < OPERATIONS_MAX && input.left > 0; i++)
        do_one(&input);
    complete_all();
    while (model.count > 0)
        give_one(0, 0);
    complete_all();
    end(&stack);
    return 0;
}
