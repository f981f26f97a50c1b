/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job_limit.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/path.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NAP_NS = 100 * 1000,         /* between two tries of requests that are in each other's way */
    TRIES_NS = 20 * 1000 * 1000, /* for all of them */
    DEVICE_FREE = 0,
    DEVICE_WRITTEN = 1,
    DEVICE_VALID = 2,
};

/* ---- the file ---- */

void rs_job_limit_init(struct rs_job_limit *job)
{
    snprintf(job->layout, sizeof(job->layout), "%s", RS_JOB_LIMIT_LAYOUT);
}

static int open_named(const char *where)
{
    unsigned long long inode;
    struct stat status;
    char path[64];
    int process, number, fd;

    if (sscanf(where, "%d:%d:%llu", &process, &number, &inode) != 3)
        return -EINVAL;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", process, number);
    fd = rs_file_open_to_change(path);
    if (fd < 0)
        return -ESTALE;
    if (fstat(fd, &status) == 0 && (unsigned long long)status.st_ino == inode)
        return fd;
    rs_file_close(fd);
    return -ESTALE;
}

/* Whoever can write to the file can take the limit away. */
static int open_path(const char *path)
{
    bool created;
    int fd = rs_path_open_untouched(path, &created), result = 0;
    struct stat status;

    if (fd < 0)
        return fd;
    rs_file_close(fd); /* it was opened for writing alone, which a mapping does not do with */
    fd = rs_file_open_to_change(path);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        result = -EINVAL;
    else if (status.st_uid != geteuid() || (status.st_mode & 077))
        result = -EACCES;
    else if (status.st_size == 0 && ftruncate(fd, sizeof(struct rs_job_limit)) != 0)
        result = -errno;
    if (result == 0)
        return fd;
    rs_file_close(fd);
    return result;
}

/* A file that is new has no layout yet; all who find it so write the same. */
static int check(struct rs_job_limit *job, bool may_be_new)
{
    static const char none[sizeof(job->layout)];

    if (may_be_new && memcmp(job->layout, none, sizeof(none)) == 0)
        rs_job_limit_init(job);
    return strncmp(job->layout, RS_JOB_LIMIT_LAYOUT, sizeof(job->layout)) == 0 ? 0 : -EPROTO;
}

int rs_job_limit_open(const char *where, const char *path, struct rs_job_limit **job)
{
    int fd = where ? open_named(where) : open_path(path), result = 0;
    void *memory = MAP_FAILED;
    struct stat status;

    if (fd < 0)
        return fd;
    if (fstat(fd, &status) != 0 || status.st_size != (off_t)sizeof(**job))
        result = -EPROTO;
    else
        memory = mmap(NULL, sizeof(**job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rs_file_close(fd);
    if (memory == MAP_FAILED)
        return result ? result : -ENOMEM;
    result = check(memory, !where);
    if (result != 0) {
        munmap(memory, sizeof(**job));
        return result;
    }
    /* A forked child only forwards, until it begins anew and opens the file itself. */
    (void)madvise(memory, sizeof(**job), MADV_DONTFORK);
    *job = memory;
    return 0;
}

/* ---- members ---- */

static uint64_t owner_of(pid_t process, long long ticks)
{
    return (uint64_t)(uint32_t)process << 32 | (uint32_t)ticks;
}

static void note_used(struct rs_job_limit *job, uint32_t count)
{
    uint32_t seen = atomic_load(&job->members_used);

    while (seen < count && !atomic_compare_exchange_weak(&job->members_used, &seen, count))
        ;
}

struct rs_job_member *rs_job_limit_join(struct rs_job_limit *job)
{
    uint64_t own = owner_of(getpid(), rs_process_start_ticks(0));

    RS_ASSERT(own >> 32);
    for (uint32_t i = 0; i < RS_JOB_MEMBERS; i++) {
        uint64_t nobody = 0;
        /* Counted from before it is taken, so that no sum misses it. */
        if (atomic_load(&job->members[i].owner) != 0)
            continue;
        note_used(job, i + 1);
        if (atomic_compare_exchange_strong(&job->members[i].owner, &nobody, own))
            return &job->members[i];
    }
    return NULL;
}

static bool has_ended(pid_t process)
{
    char path[64], stat[1024];
    ssize_t length = -1;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    fd = rs_file_open(path);
    if (fd >= 0) {
        length = rs_file_read(fd, stat, sizeof(stat) - 1, 0);
        rs_file_close(fd);
    }
    if (length <= 0)
        return false;
    stat[length] = '\0';
    return rs_process_stat_has_ended(stat);
}

static bool is_gone(uint64_t owner)
{
    pid_t process = (pid_t)(owner >> 32);
    long long ticks = rs_process_start_ticks(process);

    return ticks < 0 || (uint32_t)ticks != (uint32_t)owner || has_ended(process);
}

static bool has_bytes(const struct rs_job_member *member)
{
    for (int i = 0; i < RS_JOB_DEVICES; i++)
        if (atomic_load(&member->pending_bytes[i]) || atomic_load(&member->taken_bytes[i]))
            return true;
    return false;
}

/* Milliseconds of the clock of all processes, and of whom they were noted, as another process may
 * have the place by the time that somebody notes them. */
static uint64_t ended_word(uint64_t owner, uint64_t now_ns)
{
    return (uint64_t)(uint32_t)(now_ns / 1000000) << 32 |
           (uint32_t)((owner >> 32) * 2654435761u ^ owner);
}

/* When the owner was first seen to be gone: notes it if nobody has. */
static uint32_t gone_for_ms(struct rs_job_member *member, uint64_t owner, uint64_t now_ns)
{
    uint64_t noted = atomic_load(&member->ended), word = ended_word(owner, now_ns);

    if ((uint32_t)noted == (uint32_t)word)
        return (uint32_t)(word >> 32) - (uint32_t)(noted >> 32);
    (void)atomic_compare_exchange_strong(&member->ended, &noted, word);
    return 0;
}

/* Whoever frees the place owns it meanwhile: when that process is gone as well, or stopped, the
 * place is neither lost nor freed twice. */
static void free_place(struct rs_job_member *member, uint64_t owner)
{
    uint64_t own = owner_of(getpid(), rs_process_start_ticks(0));

    if (!atomic_compare_exchange_strong(&member->owner, &owner, own))
        return;
    for (int i = 0; i < RS_JOB_DEVICES; i++) {
        atomic_store(&member->pending_bytes[i], 0);
        atomic_store(&member->taken_bytes[i], 0);
    }
    atomic_store(&member->owner, 0);
}

bool rs_job_limit_reap(struct rs_job_limit *job)
{
    uint32_t count = atomic_load(&job->members_used);
    uint64_t now_ns = rs_clock_ns();
    bool waits = false;

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++) {
        struct rs_job_member *member = &job->members[i];
        uint64_t owner = atomic_load(&member->owner);
        if (owner == 0 || !is_gone(owner))
            continue;
        if (gone_for_ms(member, owner, now_ns) >= RS_JOB_LIMIT_SETTLE_MS || !has_bytes(member))
            free_place(member, owner);
        else
            waits = true;
    }
    return waits;
}

/* ---- devices ---- */

int rs_job_limit_device(struct rs_job_limit *job, const unsigned char uuid[RS_JOB_UUID_BYTES])
{
    for (int i = 0; i < RS_JOB_DEVICES; i++) {
        struct rs_job_device *device = &job->devices[i];
        uint32_t state = DEVICE_FREE;
        if (atomic_compare_exchange_strong(&device->state, &state, DEVICE_WRITTEN)) {
            memcpy(device->uuid, uuid, sizeof(device->uuid));
            atomic_store(&device->state, DEVICE_VALID);
            return i;
        }
        /* A process that died while it wrote leaves a place that nobody uses. */
        for (int tries = 0; tries < 100 && atomic_load(&device->state) == DEVICE_WRITTEN; tries++)
            rs_nap(NAP_NS);
        if (atomic_load(&device->state) == DEVICE_VALID &&
            memcmp(device->uuid, uuid, sizeof(device->uuid)) == 0)
            return i;
    }
    return -1;
}

/* ---- bytes ---- */

struct sums {
    uint64_t pending_bytes, taken_bytes;
};

static struct sums add_up(const struct rs_job_share *share, const struct rs_job_member *but)
{
    uint32_t count = atomic_load(&share->job->members_used);
    struct sums sums = {0, 0};

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++) {
        const struct rs_job_member *member = &share->job->members[i];
        if (member == but)
            continue;
        sums.pending_bytes += atomic_load(&member->pending_bytes[share->device]); /* first */
        sums.taken_bytes += atomic_load(&member->taken_bytes[share->device]);
    }
    return sums;
}

/* True when the request is answered; *taken is the answer. */
static bool try_to_take(struct rs_job_share *share, size_t bytes, bool *taken)
{
    _Atomic uint64_t *pending = &share->member->pending_bytes[share->device];
    struct sums sums;

    atomic_fetch_add(pending, bytes);
    sums = add_up(share, NULL);
    *taken = sums.pending_bytes + sums.taken_bytes <= share->limit_bytes;
    if (*taken)
        atomic_fetch_add(&share->member->taken_bytes[share->device], bytes);
    atomic_fetch_sub(pending, bytes);
    return *taken || sums.taken_bytes + bytes > share->limit_bytes;
}

bool rs_job_share_take(struct rs_job_share *share, size_t bytes)
{
    uint64_t begin_ns = rs_clock_ns();
    unsigned tries = 0;
    bool taken = false;

    RS_ASSERT(share->device < RS_JOB_DEVICES && share->member);
    if (bytes > share->limit_bytes)
        return false;
    while (!try_to_take(share, bytes, &taken) && rs_clock_ns() - begin_ns < TRIES_NS)
        rs_nap(NAP_NS + (uint64_t)((unsigned)getpid() + tries++) % 8 * (NAP_NS / 4));
    return taken;
}

void rs_job_share_add(struct rs_job_share *share, size_t bytes)
{
    atomic_fetch_add(&share->member->taken_bytes[share->device], bytes);
}

size_t rs_job_share_others(const struct rs_job_share *share)
{
    struct sums sums = add_up(share, share->member);

    return (size_t)(sums.pending_bytes + sums.taken_bytes);
}
