/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that all processes of a job have taken of each device, in a memory file that they
 * share: `rmmshim run --limit-job` holds it and gives it to who asks (shared/job.h),
 * or RMM_JOB names a file of the user's.
 *
 * A process first announces a request in `pending`, then adds up all members: a member's pending
 * bytes before its taken ones.  Both of two requests that do not fit together cannot pass: the
 * later announcement sees the earlier one, as pending or, since these become taken before they are
 * pending no longer, as taken bytes.  No lock is needed, so a process that dies holds none.
 * tests/model goes through every order of these steps.
 *
 * What a dead process had taken stays counted for RS_JOB_LIMIT_SETTLE_MS after its death was first
 * seen: the kernel closes the GPU after it has ended the process's threads.
 *
 * A member is found alive or dead by its process number, which means nothing in another PID
 * namespace.  So all members are of the namespace of the first one (the file's home): others are
 * refused while it has members.  A file of an earlier boot begins anew where nobody of it lives.
 * Joining is under a file lock, which the kernel takes back from a process that dies.
 *
 * Each member says how much of a device it has idle.  A member that finds the job full announces
 * what it lacks (`wanted_bytes`), adds to the device's `asked`, and raises RS_ATTENTION_JOB in
 * those that have idle bytes (charge/job.h).  None of these numbers admits a request. */
#pragma once

#include "base/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RS_JOB_LIMIT_LAYOUT "rmmshim job limit 2"
#define RS_JOB_LIMIT_NAME   "rmmshim-limit" /* of the memory file */

enum {
    RS_JOB_MEMBERS = 4096, /* processes at a time */
    RS_JOB_DEVICES = 32,
    RS_JOB_UUID_BYTES = 16,
    RS_JOB_LIMIT_SETTLE_MS = 2000,
};

struct rs_job_device {
    _Atomic uint32_t state; /* 0: free, 1: its UUID is being written, 2: valid */
    unsigned char uuid[RS_JOB_UUID_BYTES];
    _Atomic uint32_t asked;    /* how often members have asked for idle bytes */
    _Atomic uint32_t releases; /* grows when a member gives bytes back; a futex */
};

struct rs_job_member {
    _Atomic uint64_t owner;          /* process number << 32 | its start in ticks; 0: free */
    _Atomic uint64_t ended;          /* when the owner was first seen to be gone (job_limit.c) */
    _Atomic uint64_t commands_inode; /* its file of commands (shared/commands.h), and there the */
    _Atomic uint64_t commands_fd;    /* descriptor + 1; 0: it has none */
    _Atomic uint64_t pending_bytes[RS_JOB_DEVICES], taken_bytes[RS_JOB_DEVICES];
    _Atomic uint64_t idle_bytes[RS_JOB_DEVICES];   /* part of the taken ones that others may have,
                                                      as far as known: the owner says so now and
                                                      then */
    _Atomic uint64_t wanted_bytes[RS_JOB_DEVICES]; /* that requests wait for now */
};

struct rs_job_limit {
    char layout[32];
    _Atomic uint32_t members_used; /* none beyond this one was ever taken */
    struct rs_job_device devices[RS_JOB_DEVICES];
    _Atomic uint32_t turns;   /* how often the file's lock was had */
    _Atomic uint64_t home;    /* the PID namespace of all members; 0: there was none yet */
    char boot[RS_BOOT_BYTES]; /* in which they run */
    struct rs_job_member members[RS_JOB_MEMBERS];
};

/* Makes the memory of a new file, which is all zero, a job's, of the calling process's PID
 * namespace. */
void rs_job_limit_init(struct rs_job_limit *job);

/* Maps the file: the one of a `run` on the descriptor `of_run`, which is closed, or, where that is
 * -1, the one at `path` (made where there is none, readable by this user alone).  With `member` it
 * also takes a member's place for the calling process.  0 and *job, or -errno: -EPROTO for another
 * version's file, -EACCES for one that others may write, -EXDEV when members of another PID
 * namespace may live, -ESRCH when /proc does not tell who this process is, -EBUSY when one process
 * has the file's lock for RS_JOB_LIMIT_SETTLE_MS, -EUSERS when all places are taken. */
int rs_job_limit_open(int of_run, const char *path, struct rs_job_limit **job,
                      struct rs_job_member **member);

/* Takes a member's place for the calling process, in a job of its own PID namespace.  NULL when all
 * are taken. */
struct rs_job_member *rs_job_limit_join(struct rs_job_limit *job);

/* From now on other members can raise RS_ATTENTION_JOB in this process. */
void rs_job_limit_can_be_asked(struct rs_job_member *member);

/* The number of a device by its UUID, entered if need be; -1 when there are too many. */
int rs_job_limit_device(struct rs_job_limit *job, const unsigned char uuid[RS_JOB_UUID_BYTES]);

/* What a process takes of one device, on behalf of its job. */
struct rs_job_share {
    struct rs_job_limit *job;
    struct rs_job_member *member;
    unsigned device;
    size_t limit_bytes;
    _Atomic uint32_t seen_asked; /* the device's `asked` that this process has answered */
};

enum rs_job_answer {
    RS_JOB_FITS,      /* the bytes are announced until rs_job_share_settle */
    RS_JOB_FULL,      /* all members together would exceed the limit */
    RS_JOB_CONTESTED, /* that depends on requests under way: ask again after a nap */
};

/* Announces bytes that are about to be taken, where they fit; otherwise nothing stays counted. Does
 * not wait.  rs_job_share_settle follows at once where they fit: it counts them as taken, or drops
 * them.  Thread safe. */
enum rs_job_answer rs_job_share_announce(struct rs_job_share *share, size_t bytes);
void rs_job_share_settle(struct rs_job_share *share, size_t bytes, bool taken);

/* The naps of one request that is contested; zero at first. */
struct rs_job_contest {
    uint64_t begin_ns;
    unsigned naps;
};

/* Waits for requests of other members: a nap below 0.3 ms.  False, at once, when the request's naps
 * have taken 20 ms.  No lock may be held: the others may be stopped. */
bool rs_job_contest_wait(struct rs_job_contest *contest);

/* Counts bytes as taken where all members together stay below the limit.  May wait for requests of
 * other members that are under way. */
bool rs_job_share_take(struct rs_job_share *share, size_t bytes);

/* Counts bytes that are taken already, or, as a negative number, given back. */
void rs_job_share_add(struct rs_job_share *share, size_t bytes);

/* What the other members have taken of the device, and asked for. */
size_t rs_job_share_others(const struct rs_job_share *share);

/* Looks which members are gone, and frees the places of those that have been for long enough.  True
 * while bytes of members that are gone are still counted.  Thread safe, across processes.  Does
 * nothing in another PID namespace than the members'. */
bool rs_job_limit_reap(struct rs_job_limit *job);

/* ---- idle bytes, from member to member; all thread safe ---- */

/* The owner says how much it has idle, or that so much more was freed.  Seeing that others have
 * asked, the second also raises RS_ATTENTION_JOB here. */
void rs_job_share_set_idle(struct rs_job_share *share, size_t bytes);
void rs_job_share_freed(struct rs_job_share *share, size_t bytes);

/* What the other members have idle by their own words, and not more than they have taken. */
size_t rs_job_share_others_idle(const struct rs_job_share *share);

/* By how much all that is taken, and `bytes` more, exceed the limit. */
size_t rs_job_share_missing(const struct rs_job_share *share, size_t bytes);

/* By how much all that is taken, and all that members want, exceed the limit. */
size_t rs_job_share_wanted(const struct rs_job_share *share);

/* Begins, or as a negative number ends, to want bytes.  A process that dies meanwhile wants them
 * until its place is free. */
void rs_job_share_want(struct rs_job_share *share, size_t bytes);

/* Asks the members that have idle bytes. */
void rs_job_share_ask(struct rs_job_share *share);

/* True once for what was asked since the last call, of all threads' calls. */
bool rs_job_share_is_asked(struct rs_job_share *share);

/* Wakes those that asked: this member has given what it had. */
void rs_job_share_answer(struct rs_job_share *share);

/* The device's number of releases, and a wait of at most wait_ns while it is `seen`. */
uint32_t rs_job_share_releases(const struct rs_job_share *share);
void rs_job_share_wait(struct rs_job_share *share, uint32_t seen, uint64_t wait_ns);
