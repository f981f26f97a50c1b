/* SPDX-License-Identifier: Apache-2.0 */
/* recording: which events of its stack it writes. */
#include "stack.h"

#include "folder.h"
#include "recording/recorder.h"
#include "tool/recording.h"

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

#define MIB ((size_t)1 << 20)

TEST(each_allocation_refusal_free_and_trim_is_recorded)
{
    struct stack stack =
        make_stack(&rs_mr_descriptor_recording, 4 * MIB, OPTIONS("path=events.rec", "size=4MiB"));
    struct rs_allocation block = take(&stack, MIB), refused;
    const struct tool_recording_event expected[] = {
        {.kind = RS_RECORDING_STACK, .size_bytes = fake_environment.total_bytes},
        {.kind = RS_RECORDING_ALLOCATE, .address = block.address, .size_bytes = MIB},
        {.kind = RS_RECORDING_REFUSED, .size_bytes = 4 * MIB},
        {.kind = RS_RECORDING_DEALLOCATE, .address = block.address, .size_bytes = MIB},
        {.kind = RS_RECORDING_TRIM},
    };
    struct tool_recording_event event;
    struct tool_recording *recording;
    char reason[TOOL_REASON_BYTES];

    assert_int_equal(rs_mr_allocate_with(stack.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &refused),
                     CUDA_ERROR_NOT_READY); /* which is asked again, and no event */
    assert_int_equal(rs_mr_allocate(stack.mr, 4 * MIB, NULL, &refused), CUDA_ERROR_OUT_OF_MEMORY);
    give(&stack, &block);
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    end_stack(&stack);
    rs_recorder_end();
    recording = tool_recording_open("events.rec", reason);
    assert_non_null(recording);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(expected); i++) {
        assert_true(tool_recording_next(recording, &event));
        assert_int_equal(event.kind, expected[i].kind);
        assert_int_equal(event.address, expected[i].address);
        assert_int_equal(event.size_bytes, expected[i].size_bytes);
    }
    assert_false(tool_recording_next(recording, &event));
    tool_recording_close(recording);
}
