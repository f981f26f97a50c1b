/* SPDX-License-Identifier: Apache-2.0 */
/* A job inside another job: the limit of each holds. */
#include "job_shares.h"

#include <fcntl.h>
#include <unistd.h>

int unit_prepare(int argc, char **argv)
{
    (void)argc, (void)argv;
    return skip_without_robust_mutexes();
}

TEST(bytes_are_taken_of_both_jobs_or_of_none)
{
    struct rs_job_limit *inner = new_job(), *outer = new_job();
    struct rs_job_share above = share_of(outer, first_uuid, LIMIT);
    struct rs_job_share beside = share_of(outer, first_uuid, LIMIT);
    struct rs_job_share below = share_of(inner, first_uuid, 600);
    struct rs_job_share besides = share_of(inner, first_uuid, 600);

    below.next = &above;
    assert_true(rs_job_share_take(&beside, 500));
    assert_false(rs_job_share_take(&below, 501)); /* the outer one refuses */
    assert_int_equal(rs_job_share_others(&besides), 0);
    assert_int_equal(rs_job_share_others(&below), 100); /* 600 less what is left */
    assert_ptr_equal(rs_job_share_tightest(&below), &above);
    assert_true(rs_job_share_take(&below, 500));
    assert_int_equal(rs_job_share_others(&besides), 500);
    rs_job_share_add(&beside, (size_t)-500);
    assert_false(rs_job_share_take(&below, 101)); /* and now the inner one */
    assert_int_equal(rs_job_share_others(&beside), 500);
    assert_int_equal(rs_job_share_missing(&below, 101), 1);
    assert_ptr_equal(rs_job_share_tightest(&below), &below);
    rs_job_share_add(&below, (size_t)-500);
    assert_int_equal(total_in(inner), 0);
    assert_int_equal(total_in(outer), 0);
}

/* A share in a job within another one, whose table is full: the device is not entered there. */
static void enter_below_a_full_job(struct rs_job_share *below, struct rs_job_share *above,
                                   struct rs_job_entry **last)
{
    struct rs_job_limit *outer = new_job();

    *above = (struct rs_job_share){
        .job = outer, .member = rs_job_limit_join(outer), .limit_bytes = LIMIT};
    memcpy(above->uuid, first_uuid, sizeof(above->uuid));
    for (uint32_t i = 1; i < RS_JOB_ENTRIES; i++)
        *last = job_take_entry(outer, above->member->owner, (const uint64_t[2]){i, 0});
    assert_non_null(*last);
    *below = share_of(new_job(), first_uuid, 600);
    below->next = above;
    rs_job_share_enter(below);
    assert_null(above->entry);
}

/* The first test that fills a job, since the line is written once in a process. */
TEST(a_device_for_which_an_outer_job_had_no_room_is_entered_later)
{
    struct rs_job_share below, above;
    struct rs_job_entry *last = NULL;
    int pipe_ends[2], kept = dup(STDERR_FILENO);
    char said[4096];
    ssize_t length;

    assert_int_equal(pipe2(pipe_ends, O_NONBLOCK), 0);
    dup2(pipe_ends[1], STDERR_FILENO);
    enter_below_a_full_job(&below, &above, &last);
    for (unsigned i = 0; i < 3; i++)
        assert_false(rs_job_share_take(&below, 1));
    dup2(kept, STDERR_FILENO);
    length = read(pipe_ends[0], said, sizeof(said));
    assert_true(length > 0);
    assert_ptr_equal(memchr(said, '\n', (size_t)length), said + length - 1); /* one line */
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    close(kept);
    last->owner = 0; /* as when its member is gone */
    assert_true(rs_job_share_take(&below, 600));
    assert_int_equal(total_in(above.job), 600);
}

/* What a process has without having asked is counted in each job once the device is entered. */
TEST(bytes_that_a_process_had_before_are_counted_when_its_device_is_entered)
{
    struct rs_job_share below, above;
    struct rs_job_entry *last = NULL;

    enter_below_a_full_job(&below, &above, &last);
    rs_job_share_add(&below, 500);
    rs_job_share_add(&below, 0 - (size_t)100);
    last->owner = 0;
    assert_true(rs_job_share_take(&below, 200));
    assert_int_equal(total_in(below.job), 600);
    assert_int_equal(total_in(above.job), 600);
    rs_job_share_add(&below, 0 - (size_t)600);
    assert_int_equal(total_in(above.job), 0);
}

TEST(a_device_that_a_stuck_mutex_kept_out_of_an_outer_job_is_entered_later)
{
    struct rs_job_share above = {.job = new_job(), .limit_bytes = LIMIT};
    struct rs_job_share below = share_of(new_job(), first_uuid, 600);

    above.member = rs_job_limit_join(above.job);
    below.next = &above;
    assert_true(job_lock(above.job, true)); /* nobody waits for a mutex that it has itself */
    rs_job_share_enter(&below);
    assert_null(above.entry);
    job_unlock(above.job);
    assert_true(rs_job_share_take(&below, 600));
    assert_int_equal(total_in(above.job), 600);
}
