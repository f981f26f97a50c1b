/* SPDX-License-Identifier: Apache-2.0 */
/* The race detector where HOSTCUDA_RACE_OWNER names this program: it may fill what is freed. */
#include "race_fixture.h"

TEST(owner_may_fill_what_is_freed_but_must_order_it)
{
    hostcuda_note_free((void *)words);
    OK(fill32(a, words, 16, 1));
    expect_silence();
    let_finish();
    hostcuda_note_allocate((void *)words, 4096);
    expect_report("reuse before earlier work is ordered");
}

/* Two parts of what was one block; only one of them is being filled. */
TEST(owner_may_fill_a_part_and_hand_out_another)
{
    hostcuda_note_free((void *)words);
    OK(fill32(a, words + 1024, 16, 1)); /* bytes 1024 to 1088 */
    let_finish();
    hostcuda_note_allocate((void *)words, 1024);
    hostcuda_note_allocate((void *)(words + 1088), 1024);
    expect_silence();
    hostcuda_note_allocate((void *)(words + 1084), 2);
    expect_report("reuse before earlier work is ordered");
}

/* The parts know what was done to the whole. */
TEST(owners_fill_does_not_hide_earlier_work)
{
    OK(fill32(b, words, 1024, 1));
    hostcuda_note_free((void *)words);
    OK(fill32(a, words + 1024, 16, 1));
    OK(cuStreamSynchronize(a));
    hostcuda_note_allocate((void *)(words + 1024), 64);
    expect_report("reuse before earlier work is ordered");
}
