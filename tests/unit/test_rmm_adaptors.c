/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's own tests of its adaptors, except statistics and tracking. */
#include "rmm_stack.h"

#include "driver/stream.h"
#include "placing_driver.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- prefetch, headroom ---- */

static struct rs_own_stream placing_stream;

static struct stack prefetching_stack(enum rs_memory memory)
{
    static const struct rs_environment environment = {
        .device = PLACING_DEVICE, .context = PLACING_CONTEXT, .own_stream = &placing_stream};
    struct stack stack;
    int error;

    placing_start(false);
    placing_stream = (struct rs_own_stream){NULL};
    stack.leaf = placing_leaf(memory);
    stack.mr =
        make_resource_at(&environment, &rs_mr_descriptor_prefetch, &stack.leaf->base, NULL, &error);
    return stack;
}

/* The driver's view of the last prefetch is the gpu suite's; here: what it is told. */
TEST(line_53_each_block_is_prefetched_to_the_device)
{
    struct stack stack = prefetching_stack(RS_MEMORY_MANAGED);
    struct rs_allocation allocation = take(&stack, MIB);

    assert_int_equal(placing.count, 1);
    assert_placed(0, PREFETCH, allocation.address, MIB, PLACING_DEVICE);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_54_other_memory_is_not_prefetched_and_no_error)
{
    struct stack stack = prefetching_stack(RS_MEMORY_HOST);
    struct rs_allocation allocation;

    placing.answer = CUDA_ERROR_INVALID_VALUE; /* the driver's for memory that is not managed */
    allocation = take(&stack, MIB);
    give(&stack, &allocation);
    end(&stack);
}

TEST(line_55_headroom_above_all_free_memory_keeps_it_on_the_host)
{
    struct stack stack;
    struct rs_allocation allocation;
    int error;

    placing_start(false);
    placing.free_bytes = 80 * GIB - 1;
    stack.leaf = placing_leaf(RS_MEMORY_HOST);
    stack.mr =
        make_resource_at(&placing_environment, rs_mr_find("sam_headroom", &"sam_headroom"[12]),
                         &stack.leaf->base, OPTIONS("headroom=80GiB"), &error);
    allocation = take(&stack, MIB);
    assert_int_equal(placing.count, 1);
    assert_placed(0, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, allocation.address, MIB, CU_DEVICE_CPU);
    give(&stack, &allocation);
    end(&stack);
}

/* ---- aligned ---- */

static bool alignment_is_valid(const char *alignment)
{
    char line[300];

    return options_are_valid(&rs_mr_descriptor_aligned, NULL, OPTIONS(alignment), line,
                             sizeof(line));
}

TEST(line_72_powers_of_two_only_and_small_ones_are_raised)
{
    static const char *const small[] = {"alignment=32", "alignment=64", "alignment=128"};

    assert_false(alignment_is_valid("alignment=255"));
    assert_false(alignment_is_valid("alignment=768"));
    assert_true(alignment_is_valid("alignment=256"));
    for (size_t i = 0; i < RS_ARRAY_LENGTH(small); i++) {
        struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_aligned, OPTIONS(small[i]));
        assert_int_equal(take(&stack, 5).address % 256, 0);
        end(&stack);
    }
}

static void passes_through(const char *const *options, size_t size_bytes)
{
    struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_aligned, options);
    struct rs_allocation allocation = take(&stack, size_bytes);

    assert_int_equal(stack.leaf->live[0].address, allocation.address);
    assert_int_equal(stack.leaf->live[0].size_bytes, size_bytes);
    give(&stack, &allocation);
    assert_int_equal(stack.leaf->live_count, 0);
    end(&stack);
}

TEST(line_73_default_alignment_and_small_sizes_pass_unchanged)
{
    passes_through(NULL, 5);
    passes_through(OPTIONS("alignment=256"), 5);
    passes_through(OPTIONS("alignment=4096", "alignment_threshold=65536"), 65535);
}

/* RMM's numbers with its base alignment of 256 replaced by ours: it says + 3840. */
TEST(line_74_the_upstream_is_asked_for_room_and_gets_its_own_back)
{
    static const size_t asked[][2] = {{65536, 65536}, {73728, 73728}, {77800, 77824}};
    const size_t extra_bytes = 4096 - RS_BLOCK_ALIGNMENT;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(asked); i++) {
        struct stack stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_aligned,
                                        OPTIONS("alignment=4096", "alignment_threshold=65536"));
        struct rs_allocation allocation;

        stack.leaf->next_address = 0x10000200;
        allocation = take(&stack, asked[i][0]);
        assert_int_equal(stack.leaf->live[0].size_bytes, asked[i][1] + extra_bytes);
        assert_int_equal(allocation.address, 0x10001000);
        give(&stack, &allocation);
        assert_int_equal(stack.leaf->live_count, 0);
        assert_int_equal(stack.leaf->wrong_calls, 0);
        end(&stack);
    }
}

/* ---- fallback ---- */

static struct stack failing_stack(CUresult error, struct fake_leaf **second)
{
    struct stack stack = {.leaf = fake_leaf_create(DEVICE_BYTES)};
    int failed;

    *second = fake_leaf_create(DEVICE_BYTES);
    (*second)->next_address = (CUdeviceptr)1 << 40;
    stack.mr = make_resource_of_two(&fake_environment, &rs_mr_descriptor_fallback,
                                    &stack.leaf->base, &(*second)->base, NULL, &failed);
    stack.leaf->fail_at = 1;
    stack.leaf->fail_with = error;
    return stack;
}

TEST(line_75_the_second_is_asked_for_the_size_else_the_error_is_the_original)
{
    struct fake_leaf *second;
    struct stack stack = failing_stack(CUDA_ERROR_OUT_OF_MEMORY, &second);
    struct rs_allocation allocation = take(&stack, 5 * MIB);

    assert_int_equal(second->live[0].size_bytes, 5 * MIB);
    give(&stack, &allocation);
    assert_int_equal(second->live_count, 0);
    stack.leaf->capacity_bytes = second->capacity_bytes = 0;
    refuse(&stack, MIB);
    end(&stack);
}

TEST(line_76_only_out_of_memory_falls_back_and_new_errors_surface)
{
    struct rs_allocation allocation;
    struct fake_leaf *second;
    struct stack stack = failing_stack(CUDA_ERROR_UNKNOWN, &second);

    assert_int_equal(rs_mr_allocate(stack.mr, MIB, NULL, &allocation), CUDA_ERROR_UNKNOWN);
    assert_int_equal(second->allocations + second->refusals, 0);
    end(&stack);
    stack = failing_stack(CUDA_ERROR_OUT_OF_MEMORY, &second);
    second->fail_at = 1;
    second->fail_with = CUDA_ERROR_ILLEGAL_STATE;
    assert_int_equal(rs_mr_allocate(stack.mr, MIB, NULL, &allocation), CUDA_ERROR_ILLEGAL_STATE);
    end(&stack);
}

/* ---- limiting ---- */

static uint64_t used(struct rs_mr *mr)
{
    return counter(mr, "limiting", "live");
}

TEST(line_56_one_byte_above_the_limit_is_refused)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=10MiB"));

    refuse(&stack, 10 * MIB + 1);
    assert_int_equal(used(stack.mr), 0);
    end(&stack);
}

TEST(line_57_an_inner_refusal_passes_through)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=5MiB"));
    struct rs_mr *inner = stack.mr;

    stack.mr = over(&rs_mr_descriptor_limiting, inner, OPTIONS("limit=10MiB"));
    (void)take(&stack, MIB);
    refuse(&stack, 5 * MIB);
    assert_int_equal(used(stack.mr), MIB);
    assert_int_equal(used(inner), MIB);
    end(&stack);
}

TEST(line_58_fills_exactly_and_counts_each_step)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=10MiB"));
    struct rs_allocation first = take(&stack, 4 * MIB), second = take(&stack, 4 * MIB), third;

    assert_int_equal(used(stack.mr), 8 * MIB);
    give(&stack, &first);
    assert_int_equal(used(stack.mr), 4 * MIB);
    third = take(&stack, 6 * MIB);
    assert_int_equal(used(stack.mr), 10 * MIB);
    give(&stack, &second);
    give(&stack, &third);
    assert_int_equal(used(stack.mr), 0);
    end(&stack);
}

TEST(line_59_a_refusal_leaves_the_counters)
{
    struct stack stack =
        stack_over(DEVICE_BYTES, &rs_mr_descriptor_limiting, OPTIONS("limit=10MiB"));

    (void)take(&stack, 4 * MIB);
    refuse(&stack, 7 * MIB);
    assert_int_equal(used(stack.mr), 4 * MIB);
    (void)take(&stack, 6 * MIB);
    refuse(&stack, 1);
    assert_int_equal(used(stack.mr), 10 * MIB);
    end(&stack);
}

/* ---- logging ---- */

static void read_and_remove(const char *path, char *text, size_t text_bytes)
{
    FILE *file = fopen(path, "r");
    size_t length;

    assert_non_null(file);
    length = fread(text, 1, text_bytes - 1, file);
    text[length] = '\0';
    fclose(file);
    unlink(path);
}

/* Takes a row of *text apart and compares all but thread and time. */
static void assert_row(char **text, const char *expected)
{
    char *row = strsep(text, "\n");

    assert_non_null(row);
    row = strchr(row, ',');
    assert_non_null(row);
    row = strchr(row + 1, ',');
    assert_non_null(row);
    assert_string_equal(row + 1, expected);
}

TEST(line_60_and_61_header_and_rows_are_exact)
{
    char path[] = "/tmp/rmmshim-conformance-XXXXXX", option[64], text[1000], expected[100];
    char *at = text;
    int fd = mkstemp(path);
    struct stack stack;
    struct rs_allocation first, second;

    assert_true(fd >= 0);
    close(fd);
    snprintf(option, sizeof(option), "path=%s", path);
    stack = stack_over(DEVICE_BYTES, &rs_mr_descriptor_logging, OPTIONS(option));
    first = take(&stack, 100);
    second = take(&stack, 42);
    give(&stack, &first);
    give(&stack, &second);
    refuse(&stack, (size_t)1 << 40);
    end(&stack);

    read_and_remove(path, text, sizeof(text));
    assert_string_equal(strsep(&at, "\n"), "Thread,Time,Action,Pointer,Size,Stream");
    snprintf(expected, sizeof(expected), "allocate,0x%llx,100,0", first.address);
    assert_row(&at, expected);
    snprintf(expected, sizeof(expected), "allocate,0x%llx,42,0", second.address);
    assert_row(&at, expected);
    snprintf(expected, sizeof(expected), "free,0x%llx,100,0", first.address);
    assert_row(&at, expected);
    snprintf(expected, sizeof(expected), "free,0x%llx,42,0", second.address);
    assert_row(&at, expected);
    assert_row(&at, "allocate failure,(nil),1099511627776,0");
    assert_string_equal(at, "");
}
