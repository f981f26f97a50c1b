/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that all processes of a job have taken of each device, in a memory file that they
 * share: `rmmshim run --limit-job` holds it and RMMSHIM_LIMIT_JOB names it
 * ("PID:DESCRIPTOR:INODE"), or RMM_JOB names a file of the user's.
 *
 * A process first announces a request in `pending`, then adds up all members: a member's pending
 * bytes before its taken ones.  Both of two requests that do not fit together cannot pass: the
 * later announcement sees the earlier one, as pending or, since these become taken before they are
 * pending no longer, as taken bytes.  No lock is needed, so a process that dies holds none.
 * tests/model goes through every order of these steps.
 *
 * What a dead process had taken stays counted for RS_JOB_LIMIT_SETTLE_MS after its death was first
 * seen: the kernel closes the GPU after it has ended the process's threads. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RS_JOB_LIMIT_LAYOUT   "rmmshim job limit 1"
#define RS_JOB_LIMIT_VARIABLE "RMMSHIM_LIMIT_JOB"
#define RS_JOB_LIMIT_NAME     "rmmshim-limit" /* of the memory file */

enum {
    RS_JOB_MEMBERS = 4096, /* processes at a time */
    RS_JOB_DEVICES = 32,
    RS_JOB_UUID_BYTES = 16,
    RS_JOB_LIMIT_SETTLE_MS = 2000,
};

struct rs_job_device {
    _Atomic uint32_t state; /* 0: free, 1: its UUID is being written, 2: valid */
    unsigned char uuid[RS_JOB_UUID_BYTES];
};

struct rs_job_member {
    _Atomic uint64_t owner; /* process number << 32 | its start in ticks; 0: free */
    _Atomic uint64_t ended; /* when the owner was first seen to be gone (job_limit.c) */
    _Atomic uint64_t pending_bytes[RS_JOB_DEVICES], taken_bytes[RS_JOB_DEVICES];
};

struct rs_job_limit {
    char layout[32];
    _Atomic uint32_t members_used; /* none beyond this one was ever taken */
    struct rs_job_device devices[RS_JOB_DEVICES];
    struct rs_job_member members[RS_JOB_MEMBERS];
};

/* Makes the memory of a new file, which is all zero, a job's. */
void rs_job_limit_init(struct rs_job_limit *job);

/* Opens and maps the file: `where` as RMMSHIM_LIMIT_JOB has it, or NULL, and then `path` (made
 * where there is none, readable by this user alone).  0 and *job, or -errno: -ESTALE when `where`
 * names something else by now, -EPROTO for another version's file, -EACCES for one that others may
 * write. */
int rs_job_limit_open(const char *where, const char *path, struct rs_job_limit **job);

/* Takes a member's place for the calling process.  NULL when all are taken. */
struct rs_job_member *rs_job_limit_join(struct rs_job_limit *job);

/* The number of a device by its UUID, entered if need be; -1 when there are too many. */
int rs_job_limit_device(struct rs_job_limit *job, const unsigned char uuid[RS_JOB_UUID_BYTES]);

/* What a process takes of one device, on behalf of its job. */
struct rs_job_share {
    struct rs_job_limit *job;
    struct rs_job_member *member;
    unsigned device;
    size_t limit_bytes;
};

/* Counts bytes about to be taken.  False, with nothing counted, when all members together would
 * exceed the limit; waits a few milliseconds while that depends on requests under way.  Thread
 * safe. */
bool rs_job_share_take(struct rs_job_share *share, size_t bytes);

/* Counts bytes that are taken already, or, as a negative number, given back. */
void rs_job_share_add(struct rs_job_share *share, size_t bytes);

/* What the other members have taken of the device, and asked for. */
size_t rs_job_share_others(const struct rs_job_share *share);

/* Looks which members are gone, and frees the places of those that have been for long enough.  True
 * while bytes of members that are gone are still counted.  Thread safe, across processes. */
bool rs_job_limit_reap(struct rs_job_limit *job);
