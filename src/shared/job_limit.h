/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that all processes of a job have taken of each device, in a memory file that they
 * share: `rmmshim run --limit-job` holds it and gives it to who asks (shared/job.h),
 * or RMM_JOB names a file of the user's.
 *
 * The file has one robust mutex, and plain numbers under it; they are atomic only for those who
 * read them without it.  An entry is what one member has of one device, and what a device has is
 * the sum of its entries, added up anew for each request: so whoever dies leaves nothing wrong, and
 * what is given back, or taken already, changes the member's own entry without the mutex.  An owner
 * of the mutex that is stopped does not get on: then requests are refused after 2 s.  No system
 * call that can wait is made under the mutex, so a busy machine's owner is one that could run.
 * tests/model goes through every order of these steps.
 *
 * What a dead process had taken stays counted for RS_JOB_LIMIT_SETTLE_MS after its death was first
 * seen: the kernel closes the GPU after it has ended the process's threads.
 *
 * A member is found alive or dead by its process number, which means nothing in another PID
 * namespace.  So all members are of the namespace of the first one (the file's home): others are
 * refused while it has members.  A file of an earlier boot, whose mutex means nothing, begins anew
 * where nobody of it lives.  So who opens a user's file has a file lock too until it has joined.
 *
 * Each member says how much of a device it has idle.  A member that finds the job full announces
 * what it lacks (`wanted_bytes`), adds to `asked`, and raises RS_ATTENTION_JOB in
 * those that have idle bytes (charge/charge.h).  What these give back is kept for those that wait,
 * in the order in which they began to (`ticket`): it is part of the total, but for the one for whom
 * it is kept.
 *
 * A job may be in another one, whose limit holds too: a share has a `next` one then, and bytes are
 * taken in all or in none. */
#pragma once

#include "base/size.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_JOBS_MAX = 4 /* nested in each other */ };

struct rs_job_limit;
struct rs_job_entry;

/* Makes the memory of a new file, which is all zero, a job's, of the calling process's PID
 * namespace.  0, or -ENOTSUP on a kernel without robust mutexes. */
int rs_job_limit_init(struct rs_job_limit *job, struct rs_size limit);

/* Maps the file: the one of a `run` on the descriptor `of_run`, which is closed, or, where that is
 * -1, the one at `path` (made where there is none, readable by this user alone) with this limit.
 * With `member` it also takes a member's place for the calling process.  0, *job and the file's
 * limit, or -errno: -EPROTO for another version's file, -EACCES for one that others may write, or
 * that may shrink, -EXDEV when members of another PID namespace may live, -EEXIST with *limit for a
 * file at `path` whose members have another one, -ESRCH when /proc does not tell who this process
 * is, -EBUSY when one process has a lock of the file for 2 s, -EUSERS when all places are taken,
 * -ENOTSUP as above. */
int rs_job_limit_open(int of_run, const char *path, struct rs_size *limit,
                      struct rs_job_limit **job, struct rs_job_entry **member);

/* Takes a member's place for the calling process, in a job of its own PID namespace.  NULL when all
 * are taken, or with the mutex stuck. */
struct rs_job_entry *rs_job_limit_join(struct rs_job_limit *job);

/* Looks which members are gone, and frees the places of those that have been for long enough.  True
 * while bytes of members that are gone are still counted.  Thread safe, across processes.  Does
 * nothing in another PID namespace than the members'. */
bool rs_job_limit_reap(struct rs_job_limit *job);

/* What a process takes of one device, on behalf of its job.  All zero but the first members until
 * rs_job_share_enter. */
struct rs_job_share {
    struct rs_job_limit *job;
    struct rs_job_entry *member;          /* the process's own */
    struct rs_job_share *next;            /* of the job around this one; NULL: there is none */
    size_t limit_bytes;                   /* not above that of `next` */
    uint64_t uuid[2];                     /* of the device */
    _Atomic(struct rs_job_entry *) entry; /* NULL: there is none yet, or no room */
    _Atomic uint32_t seen_asked; /* the `asked` that this process has answered for the device */
};

/* All functions of a share are thread safe, and hold for the jobs in which its job is. */

/* Enters the device, or says in one line that there is no room: then nothing is had of it. */
void rs_job_share_enter(struct rs_job_share *share);

/* Takes bytes where they fit.  Waits while others have their turns, and for one that is stopped
 * for 2 s, once, after which it says so. */
bool rs_job_share_take(struct rs_job_share *share, size_t bytes);

/* Counts bytes that are taken already, or, as a negative number, given back; while rs_job_giving,
 * for those that wait for them.  Never waits.  Returns by how much rs_job_share_releases grew. */
uint32_t rs_job_share_add(struct rs_job_share *share, size_t bytes);

extern __thread bool rs_job_giving;

/* What the other members have taken of the device, and what is kept for them.  Where the job is
 * in another one, the other job's numbers are converted to this one's limit, and the largest
 * counts. */
size_t rs_job_share_others(const struct rs_job_share *share);

/* The share of the job that has the least left. */
const struct rs_job_share *rs_job_share_tightest(const struct rs_job_share *share);

/* Calls rs_job_limit_reap.  True while bytes of this device are still counted that members had
 * which are gone. */
bool rs_job_share_reap(const struct rs_job_share *share);

/* ---- idle bytes, from member to member ---- */

/* This process says how many bytes it has idle, or that it has so many more.  The second also
 * raises this process's RS_ATTENTION_JOB where others have asked for idle bytes. */
void rs_job_share_set_idle(struct rs_job_share *share, size_t bytes);
void rs_job_share_freed(struct rs_job_share *share, size_t bytes);

/* What the other members say that they have idle; of each at most what it has taken. */
size_t rs_job_share_others_idle(const struct rs_job_share *share);

/* By how much what is taken, and `bytes` more, exceed the limit. */
size_t rs_job_share_missing(const struct rs_job_share *share, size_t bytes);

/* By how much what is taken, and what members want, exceed the limit. */
size_t rs_job_share_wanted(const struct rs_job_share *share);

/* Begins to want bytes, and ends to.  What was kept meanwhile stays for a while where the bytes are
 * there, and goes to others where they are not. */
void rs_job_share_want(struct rs_job_share *share, size_t bytes);
void rs_job_share_want_no_more(struct rs_job_share *share, size_t bytes, bool are_there);

/* Asks the members that have idle bytes. */
void rs_job_share_ask(struct rs_job_share *share);

/* True when members have asked since the last call, by whichever thread. */
bool rs_job_share_is_asked(struct rs_job_share *share);

/* Wakes those that asked: this member has given what it had. */
void rs_job_share_answer(struct rs_job_share *share);

/* The number of releases, and a wait of at most wait_ns while it is `seen`. */
uint32_t rs_job_share_releases(const struct rs_job_share *share);
void rs_job_share_wait(struct rs_job_share *share, uint32_t seen, uint64_t wait_ns);
