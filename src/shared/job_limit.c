/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job_limit.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/path.h"
#include "shared/commands.h"
#include "shared/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NAP_NS = 100 * 1000,         /* between two tries of requests that are in each other's way */
    TRIES_NS = 20 * 1000 * 1000, /* for all of them */
    /* Between two tries to lock the file: twice as long each time, so that 1000 processes that wait
     * leave the processor to the one that has the lock. */
    LOCK_NAP_NS = 100 * 1000,
    LOCK_NAP_MOST_NS = 50 * 1000 * 1000,
    REAP_AT_JOIN = 64, /* places that a process looks at when it has joined */
    DEVICE_FREE = 0,
    DEVICE_WRITTEN = 1,
    DEVICE_VALID = 2,
};

/* ---- the file ---- */

static void set_layout(struct rs_job_limit *job)
{
    snprintf(job->layout, sizeof(job->layout), "%s", RS_JOB_LIMIT_LAYOUT);
}

void rs_job_limit_init(struct rs_job_limit *job)
{
    set_layout(job);
    rs_process_boot(job->boot);
    atomic_store(&job->home, rs_process_namespace());
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
    else if (status.st_size == 0)
        result = rs_file_allocate(fd, sizeof(struct rs_job_limit));
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
        set_layout(job);
    return strncmp(job->layout, RS_JOB_LIMIT_LAYOUT, sizeof(job->layout)) == 0 ? 0 : -EPROTO;
}

/* Waits as long as others have their turns, and for one holder only so long: it may be stopped. */
static int lock_file(int fd, const struct rs_job_limit *job)
{
    uint64_t begin_ns = rs_clock_ns(), nap_ns = LOCK_NAP_NS;
    uint32_t seen = atomic_load(&job->turns), turns;

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        turns = atomic_load(&job->turns);
        if (turns != seen)
            begin_ns = rs_clock_ns();
        else if (rs_clock_ns() - begin_ns > RS_JOB_LIMIT_SETTLE_MS * 1000000ull)
            return -EBUSY;
        seen = turns;
        rs_nap(nap_ns);
        nap_ns = rs_min(2 * nap_ns, LOCK_NAP_MOST_NS);
    }
    return 0;
}

static int map_file(int fd, struct rs_job_limit **job)
{
    struct stat status;
    void *memory;

    if (fstat(fd, &status) != 0 || status.st_size != (off_t)sizeof(**job))
        return -EPROTO;
    memory = mmap(NULL, sizeof(**job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -ENOMEM;
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

void rs_job_limit_can_be_asked(struct rs_job_member *member)
{
    uint64_t inode;
    int fd;

    if (!rs_commands_where(&fd, &inode))
        return;
    atomic_store(&member->commands_inode, inode);
    atomic_store(&member->commands_fd, (uint64_t)fd + 1);
}

/* By the owner alone. */
static void empty_place(struct rs_job_member *member)
{
    for (int i = 0; i < RS_JOB_DEVICES; i++) {
        atomic_store(&member->pending_bytes[i], 0);
        atomic_store(&member->taken_bytes[i], 0);
        atomic_store(&member->idle_bytes[i], 0);
        atomic_store(&member->wanted_bytes[i], 0);
    }
    atomic_store(&member->commands_fd, 0);
}

/* A place that is free is empty, as far as its last owner was really gone.  The note of an end may
 * be that of this process's own, from before an exec(). */
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
        if (!atomic_compare_exchange_strong(&job->members[i].owner, &nobody, own))
            continue;
        empty_place(&job->members[i]);
        atomic_store(&job->members[i].ended, 0);
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

/* That /proc does not tell of a process has other causes too: no descriptor is left to read it. */
static bool is_gone(uint64_t owner)
{
    pid_t process = (pid_t)(owner >> 32);
    long long ticks = rs_process_start_ticks(process);

    if (ticks < 0)
        return kill(process, 0) != 0 && errno == ESRCH;
    return (uint32_t)ticks != (uint32_t)owner || has_ended(process);
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

/* When the owner was first seen to be gone: notes it if nobody has.  The clock is read after the
 * note: what another process noted later than this one's time would seem to be long ago, and with
 * 32 processes on two processors that did happen. */
static uint32_t gone_for_ms(struct rs_job_member *member, uint64_t owner)
{
    uint64_t noted = atomic_load(&member->ended), word = ended_word(owner, rs_clock_ns());

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
    empty_place(member);
    atomic_store(&member->owner, 0);
}

/* True while bytes of an owner that is gone are still counted. */
static bool reap_place(struct rs_job_member *member)
{
    uint64_t owner = atomic_load(&member->owner);

    if (owner == 0 || !is_gone(owner))
        return false;
    if (gone_for_ms(member, owner) < RS_JOB_LIMIT_SETTLE_MS && has_bytes(member))
        return true;
    free_place(member, owner);
    return false;
}

bool rs_job_limit_reap(struct rs_job_limit *job)
{
    uint32_t count = atomic_load(&job->members_used);
    bool waits = false;

    if (atomic_load(&job->home) != rs_process_namespace())
        return false;
    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++)
        waits = reap_place(&job->members[i]) || waits;
    return waits;
}

/* ---- how a process joins ---- */

static bool has_members(const struct rs_job_limit *job)
{
    uint32_t count = atomic_load(&job->members_used);

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++)
        if (atomic_load(&job->members[i].owner) != 0)
            return true;
    return false;
}

static bool has_living_members(const struct rs_job_limit *job)
{
    uint32_t count = atomic_load(&job->members_used);

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++) {
        uint64_t owner = atomic_load(&job->members[i].owner);
        if (owner != 0 && !is_gone(owner))
            return true;
    }
    return false;
}

/* The home is written last: a process that dies before leaves a file that is nobody's. */
static void begin_anew(struct rs_job_limit *job, uint64_t home, const char boot[RS_BOOT_BYTES])
{
    atomic_store(&job->home, 0);
    memset(job->members, 0,
           rs_min(atomic_load(&job->members_used), RS_JOB_MEMBERS) * sizeof(job->members[0]));
    atomic_store(&job->members_used, 0);
    memcpy(job->boot, boot, RS_BOOT_BYTES);
    atomic_store(&job->home, home);
}

/* Makes this process's PID namespace the file's home where nobody lives there.  Members of another
 * one may be dead: that cannot be seen from here, and containers of one kernel may each have a name
 * of the boot.  In this namespace it can, so the name of the boot forgets no living member.  A
 * `run`'s file and its home are `run`'s.  Under the file's lock. */
static int settle_home(struct rs_job_limit *job, bool is_of_run)
{
    uint64_t home = rs_process_namespace(), before = atomic_load(&job->home);
    char boot[RS_BOOT_BYTES];

    if (home == 0 || rs_process_start_ticks(0) < 0)
        return -ESRCH;
    if (is_of_run)
        return before == home ? 0 : -ESTALE;
    if (before != 0 && before != home && has_members(job))
        return -EXDEV;
    rs_process_boot(boot);
    if (before == home && (memcmp(boot, job->boot, sizeof(boot)) == 0 || has_living_members(job)))
        return 0;
    begin_anew(job, home, boot);
    return 0;
}

/* exec() keeps a process's number and start time, and ends its memory: the places of the program
 * that this process was before become those of a process that began at another time and is gone, as
 * the kernel may close the device a little later here too. */
static void leave_earlier_places(struct rs_job_limit *job)
{
    uint64_t own = owner_of(getpid(), rs_process_start_ticks(0)), never = own ^ 0x80000000;
    uint32_t count = atomic_load(&job->members_used);

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++) {
        uint64_t owner = own;
        (void)atomic_compare_exchange_strong(&job->members[i].owner, &owner, never);
    }
}

static int enter(struct rs_job_limit *job, bool is_of_run, struct rs_job_member **member)
{
    int result = settle_home(job, is_of_run);

    if (result != 0)
        return result;
    leave_earlier_places(job);
    *member = rs_job_limit_join(job);
    if (!*member) {
        (void)rs_job_limit_reap(job);
        *member = rs_job_limit_join(job);
    }
    return *member ? 0 : -EUSERS;
}

/* Not under the lock: to look whether a process lives takes 10 us.  Places that are looked at by
 * none of many that join are looked at when a request is refused. */
static void reap_some(struct rs_job_limit *job)
{
    uint32_t count = rs_min(atomic_load(&job->members_used), RS_JOB_MEMBERS);
    uint32_t first = (uint32_t)getpid() % rs_max(count, 1);

    for (uint32_t i = 0; i < count && i < REAP_AT_JOIN; i++)
        (void)reap_place(&job->members[(first + i) % count]);
}

/* The lock ends by name too: a process that another thread forks meanwhile has the descriptor. */
int rs_job_limit_open(int of_run, const char *path, struct rs_job_limit **job,
                      struct rs_job_member **member)
{
    int fd = of_run >= 0 ? of_run : open_path(path), result;
    struct rs_job_limit *mapped = NULL;

    if (fd < 0)
        return fd;
    result = map_file(fd, &mapped);
    if (result == 0)
        result = lock_file(fd, mapped);
    if (result == 0)
        result = check(mapped, of_run < 0);
    if (result == 0)
        atomic_fetch_add(&mapped->turns, 1);
    if (result == 0 && member)
        result = enter(mapped, of_run >= 0, member);
    (void)flock(fd, LOCK_UN);
    rs_file_close(fd);
    if (result != 0) {
        if (mapped)
            munmap(mapped, sizeof(*mapped));
        return result;
    }
    /* A forked child only forwards, until it begins anew and opens the file itself. */
    (void)madvise(mapped, sizeof(*mapped), MADV_DONTFORK);
    if (member)
        reap_some(mapped);
    *job = mapped;
    return 0;
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

/* Taken bytes alone refuse for good; pending ones may be refused yet. */
enum rs_job_answer rs_job_share_announce(struct rs_job_share *share, size_t bytes)
{
    _Atomic uint64_t *pending;
    struct sums sums;

    RS_ASSERT(share->device < RS_JOB_DEVICES && share->member);
    if (bytes > share->limit_bytes)
        return RS_JOB_FULL;
    pending = &share->member->pending_bytes[share->device];
    atomic_fetch_add(pending, bytes);
    sums = add_up(share, NULL);
    if (sums.pending_bytes + sums.taken_bytes <= share->limit_bytes)
        return RS_JOB_FITS;
    atomic_fetch_sub(pending, bytes);
    return sums.taken_bytes + bytes > share->limit_bytes ? RS_JOB_FULL : RS_JOB_CONTESTED;
}

void rs_job_share_settle(struct rs_job_share *share, size_t bytes, bool taken)
{
    if (taken)
        atomic_fetch_add(&share->member->taken_bytes[share->device], bytes);
    atomic_fetch_sub(&share->member->pending_bytes[share->device], bytes);
    if (taken) /* its idle bytes are others now: it says so at its next call */
        atomic_fetch_or(rs_attention, RS_ATTENTION_JOB);
}

/* Naps of different lengths, so that two requests do not stay in step. */
bool rs_job_contest_wait(struct rs_job_contest *contest)
{
    uint64_t now_ns = rs_clock_ns();

    if (contest->naps == 0)
        contest->begin_ns = now_ns;
    if (now_ns - contest->begin_ns >= TRIES_NS)
        return false;
    rs_nap(NAP_NS + (uint64_t)((unsigned)getpid() + contest->naps++) % 8 * (NAP_NS / 4));
    return true;
}

bool rs_job_share_take(struct rs_job_share *share, size_t bytes)
{
    struct rs_job_contest contest = {.naps = 0};
    enum rs_job_answer answer;

    do
        answer = rs_job_share_announce(share, bytes);
    while (answer == RS_JOB_CONTESTED && rs_job_contest_wait(&contest));
    if (answer == RS_JOB_FITS)
        rs_job_share_settle(share, bytes, true);
    return answer == RS_JOB_FITS;
}

static struct rs_job_device *device_of(const struct rs_job_share *share)
{
    return &share->job->devices[share->device];
}

void rs_job_share_add(struct rs_job_share *share, size_t bytes)
{
    atomic_fetch_add(&share->member->taken_bytes[share->device], bytes);
    if (bytes > SIZE_MAX / 2)
        atomic_fetch_add(&device_of(share)->releases, 1);
}

size_t rs_job_share_others(const struct rs_job_share *share)
{
    struct sums sums = add_up(share, share->member);

    return (size_t)(sums.pending_bytes + sums.taken_bytes);
}

/* ---- idle bytes ---- */

void rs_job_share_set_idle(struct rs_job_share *share, size_t bytes)
{
    atomic_store(&share->member->idle_bytes[share->device], bytes);
}

void rs_job_share_freed(struct rs_job_share *share, size_t bytes)
{
    atomic_fetch_add(&share->member->idle_bytes[share->device], bytes);
    if (atomic_load(&device_of(share)->asked) != atomic_load(&share->seen_asked))
        atomic_fetch_or(rs_attention, RS_ATTENTION_JOB);
}

static uint64_t idle_of(const struct rs_job_member *member, unsigned device)
{
    return rs_min(atomic_load(&member->idle_bytes[device]),
                  atomic_load(&member->taken_bytes[device]));
}

size_t rs_job_share_others_idle(const struct rs_job_share *share)
{
    uint32_t count = atomic_load(&share->job->members_used);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++)
        if (&share->job->members[i] != share->member)
            bytes += idle_of(&share->job->members[i], share->device);
    return (size_t)bytes;
}

size_t rs_job_share_missing(const struct rs_job_share *share, size_t bytes)
{
    struct sums sums = add_up(share, NULL);
    uint64_t all = sums.pending_bytes + sums.taken_bytes + bytes;

    return all > share->limit_bytes ? (size_t)(all - share->limit_bytes) : 0;
}

size_t rs_job_share_wanted(const struct rs_job_share *share)
{
    uint32_t count = atomic_load(&share->job->members_used);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++)
        bytes += atomic_load(&share->job->members[i].wanted_bytes[share->device]);
    return bytes ? rs_job_share_missing(share, (size_t)bytes) : 0;
}

void rs_job_share_want(struct rs_job_share *share, size_t bytes)
{
    atomic_fetch_add(&share->member->wanted_bytes[share->device], bytes);
}

/* A member whose file of commands cannot be opened sees `asked` when it frees next. */
static void raise_in(const struct rs_job_member *member)
{
    uint64_t fd = atomic_load(&member->commands_fd), owner = atomic_load(&member->owner);

    if (fd != 0 && owner != 0)
        rs_commands_raise((int)(owner >> 32), (int)(fd - 1), atomic_load(&member->commands_inode));
}

void rs_job_share_ask(struct rs_job_share *share)
{
    uint32_t count = atomic_load(&share->job->members_used);

    atomic_fetch_add(&device_of(share)->asked, 1);
    for (uint32_t i = 0; i < count && i < RS_JOB_MEMBERS; i++) {
        const struct rs_job_member *member = &share->job->members[i];
        if (member != share->member && idle_of(member, share->device) > 0)
            raise_in(member);
    }
}

bool rs_job_share_is_asked(struct rs_job_share *share)
{
    uint32_t asked = atomic_load(&device_of(share)->asked);

    return atomic_exchange(&share->seen_asked, asked) != asked;
}

void rs_job_share_answer(struct rs_job_share *share)
{
    atomic_fetch_add(&device_of(share)->releases, 1);
    rs_futex_wake(&device_of(share)->releases);
}

uint32_t rs_job_share_releases(const struct rs_job_share *share)
{
    return atomic_load(&device_of(share)->releases);
}

void rs_job_share_wait(struct rs_job_share *share, uint32_t seen, uint64_t wait_ns)
{
    rs_futex_wait(&device_of(share)->releases, seen, wait_ns);
}
