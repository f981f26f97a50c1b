/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that all processes of a job have taken of each device, in a memory file that they
 * share: `rmmshim run --limit-job` holds it and gives it to processes that ask (shared/job.h), or
 * RMM_JOB names a file of the user.
 *
 * One robust mutex protects the numbers. They are atomic because some threads read them, or change
 * their own member's, without it. An entry is what one member has of one device. The total of a
 * device is added up from its entries at each request, so a member that dies leaves no wrong total.
 * A member that gives bytes back, or counts bytes that it already has, changes its own entry
 * without the mutex. If the mutex's owner is stopped, requests are refused after 2 s. No system
 * call that can wait is made under the mutex, so an owner that is neither running nor waiting for a
 * processor has been stopped. tests/model goes through every order of these steps.
 *
 * The bytes of a dead process stay counted for RS_JOB_LIMIT_SETTLE_MS after its death was first
 * seen, since the kernel closes the GPU only after it has ended the process's threads.
 *
 * Members are told alive or dead by their process ids, which are only valid in one PID namespace.
 * So all members must be of the namespace of the first one (the file's home); processes of other
 * namespaces are refused while the file has members. The mutex of a file of an earlier boot is
 * useless, so such a file is begun anew when none of its members lives. Therefore a process that
 * opens a user's file also holds a file lock until it has joined.
 *
 * Each member declares how much of a device it has idle. A member that finds the job full announces
 * what it lacks (`wanted_bytes`), adds to `asked`, and raises RS_ATTENTION_JOB in those that have
 * idle bytes (charge/charge.h). What they give back is reserved for the members that wait, first
 * for the one that has waited longest (`ticket`). Reserved bytes count in the total, except for the
 * member for which they are reserved.
 *
 * A job may run inside another job, whose limit also holds. A share then has a `next` share, and
 * bytes are taken in all of them or in none. */
#pragma once

#include "base/size.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_JOBS_MAX = 4 /* the most jobs inside each other */ };

struct rs_job_limit;
struct rs_job_entry;

/* Initialises the memory of a new file, which is all zero, for a job of the calling process's PID
 * namespace. Returns 0, or -ENOTSUP on a kernel without robust mutexes. */
int rs_job_limit_init(struct rs_job_limit *job, struct rs_size limit);

/* Maps the file of a job's limit. `of_run` is the descriptor of a `run`'s file, which this function
 * closes. If it is -1, the file is the one at `path`, which is made if there is none, with the
 * limit *limit and for this user alone. If `member` is not NULL, *member becomes the calling
 * process's entry for itself. Sets *limit to the file's limit, and returns 0 with *job set, or
 * -errno: -EPROTO for another version's file, -EACCES for a file at `path` that other users own or
 * have any access to, or for a `run`'s file that may shrink, -EXDEV when members of another PID
 * namespace may be alive, -ESTALE when a `run` of another PID namespace made the file, -EEXIST for
 * a file at `path` whose living members have another limit, -ESRCH when /proc does not tell who
 * this process is, -EBUSY when another process holds the file lock for 2 s or the mutex is stuck,
 * -EUSERS when all entries are taken, -ENOTSUP as above, or what the system says when the file
 * cannot be opened. */
int rs_job_limit_open(int of_run, const char *path, struct rs_size *limit,
                      struct rs_job_limit **job, struct rs_job_entry **member);

/* Takes an entry for the calling process, in a job of its own PID namespace, and returns it; NULL
 * when all entries are taken, the mutex is stuck, or /proc does not tell who this process is. */
struct rs_job_entry *rs_job_limit_join(struct rs_job_limit *job);

/* Finds dead members, and frees the entries of those that have been dead for long enough. Returns
 * true while bytes of dead members are still counted, and when the mutex could not be had at once
 * for one of them. Safe across threads and processes. Does nothing in a PID namespace other than
 * the members'. */
bool rs_job_limit_reap(struct rs_job_limit *job);

/* What a process takes of one device, on behalf of its job. Whoever makes a share sets the fields
 * up to `uuid` and leaves the others zero; rs_job_share_enter sets `entry`. */
struct rs_job_share {
    struct rs_job_limit *job;
    struct rs_job_entry *member; /* the process's entry for itself */
    struct rs_job_share *next;   /* the share in the job around this one; NULL: there is none */
    size_t limit_bytes;          /* at most that of `next` */
    uint64_t uuid[2];            /* the UUID of the device */
    _Atomic(struct rs_job_entry *) entry; /* NULL: not entered yet, or there was no room */
    _Atomic size_t missed_bytes;          /* bytes counted while the device was not entered */
    /* The value of `asked` that rs_job_share_is_asked last saw. */
    _Atomic uint32_t seen_asked;
};

/* All functions of a share are thread safe, and act on all jobs around its job too. */

/* Enters the device in each job.  If one has no room, logs one line.  Requests for the device are
 * refused as long as it is not entered in all jobs. */
void rs_job_share_enter(struct rs_job_share *share);

/* Takes the bytes in all jobs if they fit in each, and returns whether they did. Enters the device
 * first where it is not entered. Waits for the mutexes. If the owner of a mutex does not run, it
 * logs that and returns false after 2 s; later calls return false at once until the owner runs
 * again. */
bool rs_job_share_take(struct rs_job_share *share, size_t bytes);

/* Counts `bytes` that the process has already; 0 - N counts N bytes as given back. While
 * rs_job_giving is set (the thread gives memory back for other members), bytes given back are
 * reserved for members that wait. Never waits. Returns by how much rs_job_share_releases grew. */
uint32_t rs_job_share_add(struct rs_job_share *share, size_t bytes);

extern __thread bool rs_job_giving;

/* Returns what the other members have taken of the device, and what is reserved for them. If the
 * job runs inside other jobs, the number of each outer job is reduced by how much its limit exceeds
 * this job's, and the largest number is returned. */
size_t rs_job_share_others(const struct rs_job_share *share);

/* Returns the share in the job that leaves this process the fewest bytes: its limit without what
 * the other members have. */
const struct rs_job_share *rs_job_share_tightest(const struct rs_job_share *share);

/* Calls rs_job_limit_reap. Returns true while bytes of dead members are still counted for this
 * device. */
bool rs_job_share_reap(const struct rs_job_share *share);

/* ---- idle bytes, from member to member ---- */

/* rs_job_share_set_idle declares how many bytes this process has idle, and rs_job_share_freed adds
 * to that number. The latter also raises this process's RS_ATTENTION_JOB if others have asked for
 * idle bytes. */
void rs_job_share_set_idle(struct rs_job_share *share, size_t bytes);
void rs_job_share_freed(struct rs_job_share *share, size_t bytes);

/* Returns what the other members have declared idle, but of each at most what it has taken. */
size_t rs_job_share_others_idle(const struct rs_job_share *share);

/* Adds `bytes` to the counted bytes, without those reserved for this member. Returns by how much
 * the sum exceeds the limit, or 0; of several jobs, the largest such number. */
size_t rs_job_share_missing(const struct rs_job_share *share, size_t bytes);

/* Returns by how much the bytes that are counted and those that members still want exceed the limit
 * together; 0 also when no member wants any. Of several jobs, the largest such number. */
size_t rs_job_share_wanted(const struct rs_job_share *share);

/* A request calls rs_job_share_want when it begins to wait for `bytes`, and
 * rs_job_share_want_no_more when it stops waiting. If `are_there`, what was reserved meanwhile is
 * enough for the request and stays reserved for it for a while; if not, it goes to other members
 * that wait. */
void rs_job_share_want(struct rs_job_share *share, size_t bytes);
void rs_job_share_want_no_more(struct rs_job_share *share, size_t bytes, bool are_there);

/* Asks all other members that have idle bytes to give them back. */
void rs_job_share_ask(struct rs_job_share *share);

/* Returns true when members have asked for idle bytes since a thread of this process last called
 * this function. */
bool rs_job_share_is_asked(struct rs_job_share *share);

/* Wakes the members that asked. Called when this member has given back what it had idle. */
void rs_job_share_answer(struct rs_job_share *share);

/* rs_job_share_releases returns how often members have given bytes back; rs_job_share_wait waits
 * while that number is still `seen`, at most wait_ns. */
uint32_t rs_job_share_releases(const struct rs_job_share *share);
void rs_job_share_wait(struct rs_job_share *share, uint32_t seen, uint64_t wait_ns);
