/* SPDX-License-Identifier: Apache-2.0 */
/* arena, which is a pool whose initial and maximum size are arena_size.  What a pool does is
 * tested by the tests of `pool`. */
#include "stack.h"

#include "resource/report.h"

#include <string.h>

#define MIB        ((size_t)1 << 20)
#define LEAF_BYTES (512 * MIB)

static struct stack make_arena(size_t leaf_bytes, const char *size)
{
    return make_stack(&rs_mr_descriptor_arena, leaf_bytes, OPTIONS(size));
}

static void refuse(struct stack *stack, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, NULL, &allocation),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(rs_mr_check(stack->mr));
}

TEST(the_first_context_takes_it_at_once_and_keeps_it)
{
    struct stack stack = make_arena(LEAF_BYTES, "arena_size=64MiB");

    assert_int_equal(stack.leaf->allocations, 1);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(stack.leaf->live_bytes, 64 * MIB);
    end_stack(&stack);
}

TEST(it_never_holds_more)
{
    struct stack stack = make_arena(LEAF_BYTES, "arena_size=64MiB");
    struct rs_allocation whole = take(&stack, 64 * MIB);

    refuse(&stack, 1);
    give(&stack, &whole);
    refuse(&stack, 64 * MIB + 1);
    (void)take(&stack, 33 * MIB);
    refuse(&stack, 32 * MIB);
    assert_int_equal(stack.leaf->peak_bytes, 64 * MIB);
    end_stack(&stack);
}

TEST(another_context_takes_it_at_need_and_never_more)
{
    struct stack stack = {.leaf = fake_leaf_create(LEAF_BYTES)};
    struct rs_allocation block;
    int error;

    stack.mr = make_resource_at(&fake_second_environment, &rs_mr_descriptor_arena,
                                &stack.leaf->base, OPTIONS("arena_size=64MiB"), &error);
    assert_non_null(stack.mr);
    assert_int_equal(stack.leaf->live_bytes, 0);
    block = take(&stack, 60 * MIB);
    refuse(&stack, 5 * MIB);
    give(&stack, &block);
    assert_true(rs_mr_trim(stack.mr, 0) >= 60 * MIB);
    assert_int_equal(stack.leaf->live_bytes, 0);
    end_stack(&stack);
}

TEST(where_less_is_free_it_begins_with_that_and_takes_the_rest_at_need)
{
    struct stack stack = make_arena(20 * MIB, "arena_size=64MiB");
    struct rs_allocation block = take(&stack, 15 * MIB);

    assert_in_range(stack.leaf->live_bytes, 16 * MIB, 20 * MIB);
    refuse(&stack, 6 * MIB); /* not there */
    stack.leaf->capacity_bytes = LEAF_BYTES;
    (void)take(&stack, 40 * MIB);
    refuse(&stack, 40 * MIB); /* never */
    assert_in_range(stack.leaf->live_bytes, 56 * MIB, 64 * MIB);
    give(&stack, &block);
    end_stack(&stack);
}

TEST(a_size_in_no_unit_is_rounded_down)
{
    struct stack stack = make_arena(LEAF_BYTES, "arena_size=1048679");

    assert_int_equal(stack.leaf->live_bytes, MIB);
    end_stack(&stack);
}

TEST(its_counters_have_its_name)
{
    struct stack stack = make_arena(LEAF_BYTES, "arena_size=64MiB");
    struct rs_report report = {.count = 0};

    stack.mr->ops.report(stack.mr, &report);
    assert_int_equal(rs_report_value(&report, "arena", "held", 0), 64 * MIB);
    assert_int_equal(rs_report_value(&report, "pool", "held", 0), 0);
    rs_report_release(&report);
    end_stack(&stack);
}

/* ---- options ---- */

TEST(bad_options_are_refused)
{
    static const struct {
        const char *option;
        const char *line;
    } cases[] = {
        {"arena_size=1MiB", ""},
        {"arena_size=1048575", "1MiB"},
        {"arena_size=129TiB", "128TiB"},
        {"arena_size=81GiB", "larger than the device's memory"},
        {"dump_log_on_failure=no", ""},
        {"dump_log_on_failure=1",
         "dump_log_on_failure=^1: this option of 'arena' has no effect in rmmshim"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        const char *const options[] = {cases[i].option, NULL};
        char line[300];
        bool valid = options_are_valid(&rs_mr_descriptor_arena, &fake_environment, options, line,
                                       sizeof(line));
        if (valid != !*cases[i].line || !strstr(line, cases[i].line))
            fail_msg("case %zu: %s", i, line);
    }
}
