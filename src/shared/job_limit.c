/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/output.h"
#include "shared/commands.h"
#include "shared/job_layout.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* The nap between two attempts to lock the file.  It doubles each time, so that 1000 waiting
     * processes leave the processor to the one that has the lock. */
    LOCK_NAP_NS = 100 * 1000,
    LOCK_NAP_MOST_NS = 50 * 1000 * 1000,
    TRIES_AT_ONCE = 64, /* attempts to lock the mutex for a caller that does not wait */
    NS_PER_MS = 1000 * 1000,
    REAP_AT_JOIN = 64, /* the number of entries that a process checks when it has joined */
};

/* ---- the mutex ---- */

uint64_t job_now_ms(void)
{
    return rs_clock_ns() / NS_PER_MS;
}

/* Locks the mutex, also after its owner died: nothing need be repaired, since each entry of the
 * file is either right or that of a dead process. */
bool job_try_lock(struct rs_job_limit *job)
{
    int failed = pthread_mutex_trylock(&job->mutex);

    if (failed == EOWNERDEAD)
        failed = pthread_mutex_consistent(&job->mutex);
    if (failed)
        return false;
    atomic_fetch_add(&job->turns, 1);
    return true;
}

void job_unlock(struct rs_job_limit *job)
{
    int failed = pthread_mutex_unlock(&job->mutex);

    RS_ASSERT(!failed);
    (void)failed;
}

/* True when the thread with this ID is running or runnable (state R in /proc). */
static bool can_run(pid_t thread)
{
    char text[RS_PROCESS_TEXT_BYTES];
    const char *name_end = rs_process_read(thread, "stat", text) ? strrchr(text, ')') : NULL;

    return name_end && strncmp(name_end, ") R", 3) == 0;
}

static int process_of(pid_t thread)
{
    char text[RS_PROCESS_TEXT_BYTES];
    const char *at = rs_process_read(thread, "status", text) ? strstr(text, "\nTgid:") : NULL;
    int process;

    return at && sscanf(at, "\nTgid: %d", &process) == 1 ? process : (int)thread;
}

/* An owner that is able to run does not count as stuck, since it may only lack a processor. */
bool job_is_stuck(struct rs_job_limit *job, struct job_patience *patience)
{
    static _Atomic uint64_t stuck;
    /* glibc's structure is private, but the kernel requires that the lock word of a robust mutex
     * has the owner's thread id, which it reads when a thread that holds the mutex ends. */
    pid_t owner = (pid_t)((uint32_t)__atomic_load_n(&job->mutex.__data.__lock, __ATOMIC_RELAXED) &
                          FUTEX_TID_MASK);
    uint64_t now_ns = rs_clock_ns();
    uint64_t turn = (uint64_t)(uint32_t)owner << 32 | atomic_load(&job->turns);

    if (owner == 0)
        return false;
    if (owner == (pid_t)syscall(SYS_gettid) || turn == atomic_load(&stuck))
        return true;
    if (patience->turn != turn || can_run(owner))
        *patience = (struct job_patience){turn, now_ns};
    if (now_ns - patience->since_ns < (uint64_t)RS_JOB_LIMIT_STUCK_MS * NS_PER_MS)
        return false;
    if (atomic_exchange(&stuck, turn) != turn)
        rs_log(
            "RMM_LIMIT_JOB: requests for memory fail until process %d of the job continues or "
            "ends: it holds the lock of the shared limit, but does not run; perhaps it is stopped",
            process_of(owner));
    return true;
}

bool job_lock(struct rs_job_limit *job, bool waits)
{
    struct job_patience patience = {0};

    for (unsigned turn = 0; !job_try_lock(job); turn++) {
        if (waits ? turn >= JOB_TRIES && job_is_stuck(job, &patience) : turn >= TRIES_AT_ONCE)
            return false;
        rs_pause(turn);
    }
    return true;
}

/* ---- the file ---- */

/* True when the kernel supports robust mutexes. glibc assumes that it does, but qemu-user does not.
 */
static bool can_be_kept(void)
{
    void *list;
    size_t length;

    return syscall(SYS_get_robust_list, 0, &list, &length) == 0 || errno != ENOSYS;
}

int rs_job_limit_init(struct rs_job_limit *job, struct rs_size limit)
{
    pthread_mutexattr_t robust;
    int failed;

    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    failed = pthread_mutex_init(&job->mutex, &robust);
    pthread_mutexattr_destroy(&robust);
    if (failed || !can_be_kept())
        return -ENOTSUP;
    rs_process_boot(job->boot);
    atomic_store(&job->home, rs_process_namespace());
    job->limit = limit;
    /* The layout is written last: until then the file counts as new. */
    snprintf(job->layout, sizeof(job->layout), "%s", RS_JOB_LIMIT_LAYOUT);
    return 0;
}

/* Opens the file, and refuses one that other users may write: whoever can write to it can remove
 * the limit. */
static int open_path(const char *path)
{
    bool created;
    int checked = rs_path_open_untouched(path, &created), fd, result;
    struct stat status, of_checked;

    if (checked < 0)
        return checked;
    /* `checked` is not open for reading, which a shared mapping needs too. */
    fd = rs_file_open_to_change(path);
    result = fd < 0 ? -errno : fstat(checked, &of_checked) == 0 ? 0 : -errno;
    rs_file_close(checked);
    if (fd < 0)
        return result;
    if (result != 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        result = -EINVAL;
    else if (status.st_dev != of_checked.st_dev || status.st_ino != of_checked.st_ino)
        result = -EACCES; /* another file, or a link to one, has taken its place */
    else if (status.st_uid != geteuid() || (status.st_mode & 077))
        result = -EACCES;
    else if (status.st_size == 0)
        result = rs_file_allocate(fd, sizeof(struct rs_job_limit));
    if (result == 0)
        return fd;
    rs_file_close(fd);
    return result;
}

/* Locks the file. It waits as long as processes go on joining (`joins` grows), but for one holder
 * of the lock at most RS_JOB_LIMIT_STUCK_MS, since that process may be stopped. */
static int lock_file(int fd, const struct rs_job_limit *job)
{
    uint64_t begin_ns = rs_clock_ns(), nap_ns = LOCK_NAP_NS;
    uint32_t seen = atomic_load(&job->joins), turns;

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        turns = atomic_load(&job->joins);
        if (turns != seen)
            begin_ns = rs_clock_ns();
        else if (rs_clock_ns() - begin_ns > RS_JOB_LIMIT_STUCK_MS * 1000000ull)
            return -EBUSY;
        seen = turns;
        rs_nap(nap_ns);
        nap_ns = rs_min(2 * nap_ns, LOCK_NAP_MOST_NS);
    }
    return 0;
}

static int map_job_file(int fd, struct rs_job_limit **job)
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

/* Returns the value of `owner` in this process's entries; 0 when /proc does not tell the start
 * time. With a wrong start time the other members would take this process for dead, and no longer
 * count what it has taken. */
static uint64_t own_word(void)
{
    long long start = rs_process_start_ticks(0);

    return start < 0 ? 0 : (uint64_t)(uint32_t)getpid() << 32 | (uint32_t)start;
}

/* Stores the owner last: a process that dies before that leaves the entry free. */
struct rs_job_entry *job_take_entry(struct rs_job_limit *job, uint64_t owner,
                                    const uint64_t uuid[2])
{
    uint64_t inode;
    int fd;

    for (uint32_t i = 0; i < RS_JOB_ENTRIES; i++) {
        struct rs_job_entry *entry = &job->entries[i];
        if (job_get(&entry->owner) != 0)
            continue;
        memset(entry, 0, sizeof(*entry));
        job_set(&entry->uuid[0], uuid[0]);
        job_set(&entry->uuid[1], uuid[1]);
        if (rs_commands_where(&fd, &inode)) {
            job_set(&entry->commands_inode, inode);
            job_set(&entry->commands_fd, (uint64_t)fd + 1);
        }
        atomic_store(&job->entries_used, rs_max(atomic_load(&job->entries_used), i + 1));
        atomic_store(&entry->owner, owner);
        return entry;
    }
    return NULL;
}

struct rs_job_entry *rs_job_limit_join(struct rs_job_limit *job)
{
    uint64_t own = own_word();
    struct rs_job_entry *entry;

    if (own == 0 || !job_lock(job, true))
        return NULL;
    entry = job_take_entry(job, own, (const uint64_t[2]){0, 0});
    job_unlock(job);
    return entry;
}

/* True when the owner is certainly dead. An unreadable /proc is no proof: this process may be
 * unable to open another file. */
static bool owner_is_gone(uint64_t owner)
{
    pid_t process = (pid_t)(owner >> 32);
    char stat[RS_PROCESS_TEXT_BYTES];

    if (!rs_process_read(process, "stat", stat))
        return kill(process, 0) != 0 && errno == ESRCH;
    return (uint32_t)rs_process_start_ticks_in(stat) != (uint32_t)owner ||
           rs_process_stat_has_ended(stat);
}

/* Checks one entry. A dead owner's wishes and reserved bytes are dropped at once; the bytes that it
 * had taken stay counted for RS_JOB_LIMIT_SETTLE_MS. Returns true while they do, and also when it
 * cannot get the mutex. Times are read under the mutex, so that they never go backwards. *living is
 * the owner that was last found alive: other entries of this owner need no check. */
static bool reap_entry(struct rs_job_limit *job, struct rs_job_entry *entry, uint64_t *living)
{
    uint64_t owner = job_get(&entry->owner), now;
    bool waits = false;

    if (owner == 0 || owner == *living)
        return false;
    if (!owner_is_gone(owner)) {
        *living = owner;
        return false;
    }
    if (!job_lock(job, false))
        return true;
    if (job_get(&entry->owner) == owner) {
        now = job_now_ms();
        if (job_get(&entry->ended_ms) == 0)
            job_set(&entry->ended_ms, now);
        job_set(&entry->kept_bytes, 0);
        job_set(&entry->wanted_bytes, 0);
        job_set(&entry->idle_bytes, 0);
        waits = job_get(&entry->taken_bytes) != 0 &&
                now - job_get(&entry->ended_ms) < RS_JOB_LIMIT_SETTLE_MS;
        if (!waits)
            job_set(&entry->owner, 0);
    }
    job_unlock(job);
    return waits;
}

bool rs_job_limit_reap(struct rs_job_limit *job)
{
    uint64_t living = 0;
    bool waits = false;

    if (atomic_load(&job->home) != rs_process_namespace())
        return false;
    FOR_EACH_ENTRY(entry, job)
    waits = reap_entry(job, entry, &living) || waits;
    return waits;
}

/* ---- how a process joins ---- */

static bool has_members(struct rs_job_limit *job, bool that_live)
{
    FOR_EACH_ENTRY(entry, job)
    if (!that_live || !owner_is_gone(job_get(&entry->owner)))
        return true;
    return false;
}

/* Begins the file anew.  The layout's name is written last: if the process dies before that, the
 * file still counts as new. */
static int begin_file_anew(struct rs_job_limit *job, struct rs_size limit)
{
    atomic_store((_Atomic char *)&job->layout[0], 0);
    memset(job, 0, sizeof(*job));
    return rs_job_limit_init(job, limit);
}

/* Makes the file ready to be joined. A file without living members gets this limit; it is begun
 * anew if it is new, of an earlier boot, or of another PID namespace. A file with members of
 * another namespace is refused, since it cannot be seen from here whether they live. Containers of
 * one kernel may each report another boot, so the boot is compared only when no member of this
 * namespace lives. The caller holds the file lock. */
static int settle_file(struct rs_job_limit *job, struct rs_size limit)
{
    uint64_t home = rs_process_namespace(), before = atomic_load(&job->home);
    char boot[RS_BOOT_BYTES];

    if (home == 0 || rs_process_start_ticks(0) < 0)
        return -ESRCH;
    if (job->layout[0] == 0)
        return begin_file_anew(job, limit);
    if (strncmp(job->layout, RS_JOB_LIMIT_LAYOUT, sizeof(job->layout)) != 0)
        return -EPROTO;
    if (before != home && has_members(job, false))
        return -EXDEV;
    rs_process_boot(boot);
    if (before == home && has_members(job, true))
        return job->limit.number == limit.number && job->limit.kind == limit.kind ? 0 : -EEXIST;
    if (before != home || memcmp(boot, job->boot, sizeof(boot)) != 0)
        return begin_file_anew(job, limit);
    job->limit = limit;
    return 0;
}

/* Gives up the entries of the program that this process ran before exec(): the process keeps its
 * number and start time, but has lost that program's memory. The entries become those of a dead
 * process with another start time, since the kernel may close the device a little later here too.
 */
static bool leave_earlier_places(struct rs_job_limit *job, uint64_t own)
{
    if (!job_lock(job, true))
        return false;
    FOR_EACH_ENTRY(entry, job)
    if (job_get(&entry->owner) == own)
        job_set(&entry->owner, own ^ 0x80000000);
    job_unlock(job);
    return true;
}

static int enter_job(struct rs_job_limit *job, struct rs_job_entry **member)
{
    uint64_t own = own_word();

    if (own == 0)
        return -ESRCH;
    if (!leave_earlier_places(job, own))
        return -EBUSY;
    *member = rs_job_limit_join(job);
    if (!*member) {
        (void)rs_job_limit_reap(job);
        *member = rs_job_limit_join(job);
    }
    return *member ? 0 : -EUSERS;
}

/* Checks some entries.  A check takes 10 us, so each process that joins checks only a few; the
 * others are checked when a request is refused. */
static void reap_some(struct rs_job_limit *job)
{
    uint32_t count = rs_min(atomic_load(&job->entries_used), RS_JOB_ENTRIES);
    uint32_t first = (uint32_t)getpid() % rs_max(count, 1);
    uint64_t living = 0;

    for (uint32_t i = 0; i < count && i < REAP_AT_JOIN; i++)
        (void)reap_entry(job, &job->entries[(first + i) % count], &living);
}

/* Checks a file that a `run` has made and initialised. Returns 0 or -errno. */
static int check_of_run(const struct rs_job_limit *job, int fd, bool joins)
{
    if (!rs_file_cannot_shrink(fd))
        return -EACCES;
    if (strncmp(job->layout, RS_JOB_LIMIT_LAYOUT, sizeof(job->layout)) != 0)
        return -EPROTO;
    if (joins && (rs_process_namespace() == 0 || rs_process_start_ticks(0) < 0))
        return -ESRCH;
    return joins && atomic_load(&job->home) != rs_process_namespace() ? -ESTALE : 0;
}

/* The file is unlocked before it is closed: a child that another thread forks meanwhile has a copy
 * of the descriptor, and closing alone would leave the file locked until that is closed too. */
int rs_job_limit_open(int of_run, const char *path, struct rs_size *limit,
                      struct rs_job_limit **job, struct rs_job_entry **member)
{
    int fd = of_run >= 0 ? of_run : open_path(path), result;
    struct rs_job_limit *mapped = NULL;

    RS_ASSERT(of_run >= 0 || path);
    if (fd < 0)
        return fd;
    result = can_be_kept() ? map_job_file(fd, &mapped) : -ENOTSUP;
    if (result == 0 && of_run >= 0)
        result = check_of_run(mapped, fd, member != NULL);
    else if (result == 0 && (result = lock_file(fd, mapped)) == 0) {
        result = settle_file(mapped, *limit);
        atomic_fetch_add(&mapped->joins, 1);
    }
    if (mapped)
        *limit = mapped->limit;
    if (result == 0 && member)
        result = enter_job(mapped, member);
    if (of_run < 0)
        (void)flock(fd, LOCK_UN);
    rs_file_close(fd);
    if (result != 0) {
        if (mapped)
            munmap(mapped, sizeof(*mapped));
        return result;
    }
    /* A forked child serves nothing, or begins anew and opens the file itself. */
    (void)madvise(mapped, sizeof(*mapped), MADV_DONTFORK);
    if (member)
        reap_some(mapped);
    *job = mapped;
    return 0;
}
