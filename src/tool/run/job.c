/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job.h"
#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/process.h"
#include "report/publish.h"
#include "shared/job_layout.h"
#include "shared/job_limit.h"
#include "shared/memory_file.h"
#include "shared/published.h"
#include "tool/process.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    LOOK_MS = 1000, /* the loop checks at least this often which processes have ended */
    NS_PER_MS = 1000 * 1000,
    NAP_MS = 10,           /* the nap while this process has no descriptors left */
    SILENT_MS = 60 * 1000, /* how long a connection may wait for its request */
    AT_ONCE = 64,          /* the most events that are taken at a time */
    WORD_LENGTH = RS_JOB_WORD_BYTES - 1,
    RANDOM_BYTES = WORD_LENGTH / 2,
};

/* ---- jobs with a limit: this one, and those of each `run` above ---- */

/* The jobs with a limit, the innermost one first. */
static struct {
    struct rs_job_limit *job;
    struct rs_size limit;
    int file;
} jobs[RS_JOBS_MAX];

static uint32_t job_count;

static const char *why_no_job(int error)
{
    return error == E2BIG ? "more than 4 `rmmshim run --limit-job` are nested in each other"
           : error == EPROTO
               ? "that command has another version; use one version of rmmshim for both"
           : error == ENOTSUP
               ? "this kernel has no robust mutexes; use --limit, a limit for each process"
           : error == ETIMEDOUT
               ? "that command does not answer, so it is stopped or has ended; start the job again"
               : strerror(error);
}

/* Opens the job of an enclosing `run` by its file.  Returns 0 or -errno. */
static int open_one_above(int file)
{
    int copy = job_count < RS_JOBS_MAX ? fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1;

    if (copy < 0)
        return job_count < RS_JOBS_MAX ? -errno : -E2BIG;
    return rs_job_limit_open(copy, NULL, &jobs[job_count].limit, &jobs[job_count].job, NULL);
}

/* Opens the jobs of the enclosing `run`s. False after saying why one of them cannot be joined. */
static bool have_those_above(void)
{
    int more, file, failed;

    do {
        more = rs_run_ask(RS_JOB_GIVE_LIMIT, job_count, -1, &file);
        if (more == -ENOENT || more == -EACCES || more == -ESTALE)
            return true;
        failed = more < 0 ? more : open_one_above(file);
        if (failed) {
            tool_say("RMM_LIMIT_JOB: cannot share the limit of the enclosing `rmmshim run`: %s",
                     why_no_job(-failed));
            return false;
        }
        jobs[job_count++].file = file;
    } while (more > 0);
    return true;
}

static bool make_job(struct rs_size limit)
{
    int file = -E2BIG, failed;
    void *memory;

    if (job_count < RS_JOBS_MAX)
        file = rs_memory_file_make(RS_JOB_LIMIT_NAME, sizeof(struct rs_job_limit), &memory);
    failed = file < 0 ? file : rs_job_limit_init(memory, limit);
    if (failed) {
        tool_say("RMM_LIMIT_JOB: cannot make the shared limit: %s", why_no_job(-failed));
        return false;
    }
    memmove(&jobs[1], &jobs[0], job_count++ * sizeof(jobs[0]));
    jobs[0].job = memory;
    jobs[0].file = file;
    return true;
}

/* True when the innermost enclosing job has this limit (then the variable was inherited) or a
 * smaller one, which then applies. Prints a line if it is smaller. */
static bool is_held_above(struct rs_size limit)
{
    char text[RS_SIZE_TEXT_BYTES];

    if (job_count == 0 || limit.kind != jobs[0].limit.kind || limit.number < jobs[0].limit.number)
        return false;
    if (limit.number > jobs[0].limit.number)
        tool_say("RMM_LIMIT_JOB=%s: the job of the enclosing `rmmshim run` has a limit of %s, "
                 "which applies instead",
                 getenv("RMM_LIMIT_JOB"), rs_size_write(jobs[0].limit, text));
    return true;
}

bool limit_job_begin(bool becomes)
{
    const char *text = getenv("RMM_LIMIT_JOB"), *at, *reason;
    struct rs_size limit;

    if (!run_is_set("RMM_LIMIT_JOB") || !rs_size_parse(text, strchr(text, 0), &limit, &at, &reason))
        return true;
    if (!have_those_above())
        return false;
    if (run_is_set("RMM_JOB") || is_held_above(limit))
        return true;
    if (!becomes)
        return make_job(limit);
    tool_say("RMM_LIMIT_JOB: with --exec no parent process is left to keep the shared limit; add "
             "--job FILE, which then keeps it");
    return false;
}

/* ---- what is held ---- */

/* A descriptor that epoll watches.  It is the first member of the structure to which it belongs. */
struct watched {
    enum { OF_PROGRAM, OF_LISTENER, OF_CONNECTION, OF_PROCESS } kind;
    int fd; /* -1: none */
};

/* A connection of a process that has not sent its request yet. */
struct connection {
    struct watched watched;
    struct connection *next;
    uint64_t since_ns;
};

/* A held page.  A process that has become another program by exec() has several. */
struct held {
    struct watched watched; /* a pidfd, if the kernel has them */
    struct held *next;
    bool is_below; /* a `run` below this one holds the page too, and writes its report */
    const void *page;
    uint64_t inode; /* the inode of the page */
    /* known.number is 0 for a process in a PID namespace that cannot be seen from here. */
    struct summary_process known;
};

static struct watched listener = {OF_LISTENER, -1}, program = {OF_PROGRAM, -1};
static int events = -1; /* the descriptor of epoll */
static char token[RS_JOB_WORD_BYTES];
static char *above; /* RMMSHIM_JOB of the `run` above; NULL: there is none */
/* The number of pages that could not be sent by the socket; NULL: not known. */
static _Atomic uint32_t *unheld;
static struct connection *connections;
static bool is_full; /* a connection waits, and there was no descriptor or memory to accept it */
static struct held *all_held;
static struct summary summary;

/* Adds a descriptor to epoll, or removes it. Does nothing if there is none.  Returns false if it is
 * not watched. */
static bool watch(int operation, struct watched *watched)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = watched};

    return epoll_ctl(events, operation, watched->fd, &event) == 0 || errno == EEXIST;
}

static bool can_be_read(int fd)
{
    struct pollfd one = {fd, POLLIN, 0};

    return poll(&one, 1, 0) == 1;
}

/* ---- pages ---- */

static void unmap_page(const void *page)
{
    if (page)
        munmap((void *)(uintptr_t)page, RS_PUBLISHED_BYTES);
}

/* Holds a page, even if its process has ended meanwhile.  False when the descriptor is of no valid
 * page, or without memory. */
static bool hold_page(const struct ucred *sender, pid_t process, int fd, bool is_below)
{
    struct stat status;
    uint64_t inode;
    const void *page = fd < 0 ? NULL : process_map_page(fd, &inode);
    struct held *held = page && rs_published_check_layout(page) ? calloc(1, sizeof(*held)) : NULL;

    if (!held) {
        unmap_page(page);
        return false;
    }
    *held = (struct held){
        .watched = {OF_PROCESS, process ? (int)syscall(SYS_pidfd_open, process, 0) : -1},
        .next = all_held,
        .is_below = is_below,
        .page = page,
        .inode = inode,
        .known.number = process,
        /* The user who made the page may still have it mapped. */
        .known.is_anothers =
            sender->uid != geteuid() || fstat(fd, &status) != 0 || status.st_uid != geteuid()};
    held->known.has_ended = process && held->watched.fd < 0 && errno == ESRCH;
    if (process)
        identity_script_of(process, held->known.script);
    (void)watch(EPOLL_CTL_ADD, &held->watched);
    all_held = held;
    unserved_forget(process);
    return true;
}

static void report_gone(void)
{
    struct held **at = &all_held;

    while (*at) {
        struct held *held = *at;
        if (held->watched.fd >= 0)
            held->known.has_ended |= can_be_read(held->watched.fd);
        else if (held->known.number)
            held->known.has_ended |= kill(held->known.number, 0) != 0 && errno == ESRCH;
        if (!held->known.has_ended) {
            at = &held->next;
            continue;
        }
        *at = held->next;
        summary_add(&summary, &held->known, held->is_below, held->page);
        unmap_page(held->page);
        if (held->watched.fd >= 0)
            close(held->watched.fd);
        free(held);
    }
}

static bool is_page_held(int number, uint64_t page_inode)
{
    const struct held *held = all_held;

    while (held && held->known.number != number && held->inode != page_inode)
        held = held->next;
    return held;
}

/* ---- requests ---- */

static struct ucred sender_of(int connection)
{
    struct ucred sender;
    socklen_t bytes = sizeof(sender);

    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &sender, &bytes) != 0)
        sender = (struct ucred){.pid = 0, .uid = (uid_t)-1};
    return sender;
}

/* Passes a page to the `run` above, if any. With the fd -1, that `run` counts a page as missed. */
static void pass_on(pid_t process, int fd)
{
    if (above)
        (void)rs_run_ask_at(above, RS_JOB_PASS_PAGE, (uint32_t)process, fd, NULL);
}

static void answer_job_request(int connection, const struct rs_job_request *request, int fd)
{
    uint32_t granted = 0;
    struct ucred sender = sender_of(connection);
    pid_t process = sender.pid;
    bool is_below = request->wish == RS_JOB_PASS_PAGE && process;
    int given = -1;

    if (is_below)
        process = (pid_t)request->number;
    if (request->wish == RS_JOB_GIVE_LIMIT && request->number < job_count) {
        granted = job_count - request->number;
        given = jobs[request->number].file;
    } else if (request->wish == RS_JOB_HOLD_PAGE || request->wish == RS_JOB_PASS_PAGE) {
        granted = hold_page(&sender, process, fd, request->wish == RS_JOB_PASS_PAGE);
        summary.missed += !granted;
    }
    (void)rs_job_send(connection, &granted, sizeof(granted), given);
    if (request->wish != RS_JOB_GIVE_LIMIT)
        pass_on(process, fd);
}

/* Counts a process that is served by a library of another version. Its request for a limit is not
 * counted, so that the process counts once. */
static void miss_other_version(const struct rs_job_request *request)
{
    if (request->wish == RS_JOB_GIVE_LIMIT)
        return;
    summary.missed++;
    pass_on(0, -1);
}

/* Handles a request.  Any process may connect; the token shows that it belongs to this job. */
static void take_request(int connection)
{
    struct rs_job_request request;
    int fd, failed = rs_job_receive(connection, &request, sizeof(request), &fd);

    if (failed && failed != -EMFILE) /* -EMFILE: a page without its descriptor is missed */
        return;
    if (memcmp(request.token, token, sizeof(token)) == 0) {
        if (strncmp(request.layout, RS_JOB_LAYOUT, sizeof(request.layout)) == 0)
            answer_job_request(connection, &request, fd);
        else
            miss_other_version(&request);
    }
    if (fd >= 0)
        close(fd);
}

static void end_connection(struct connection *ended)
{
    struct connection **at = &connections;

    while (*at != ended) {
        RS_ASSERT(*at); /* a connection stays in the list until it is ended here */
        at = &(*at)->next;
    }
    *at = ended->next;
    close(ended->watched.fd);
    free(ended);
}

/* Accepts a waiting connection.  False when there is none, or no room for it (is_full). */
static bool accept_one(void)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    int fd = connection ? accept4(listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;

    is_full = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
    if (is_full)
        (void)poll(NULL, 0, NAP_MS); /* the connection stays in the queue, and its process waits */
    if (fd < 0) {
        free(connection);
        return false;
    }
    *connection = (struct connection){{OF_CONNECTION, fd}, connections, rs_clock_ns()};
    connections = connection;
    (void)watch(EPOLL_CTL_ADD, &connection->watched);
    return true;
}

/* Closes the connections that have waited for more than `most_ms` without a request. A request that
 * has just come is still taken. Processes of the job send theirs at once, or seconds later on a
 * busy machine. Other processes may connect only to use up descriptors. */
static void end_silent_connections(uint64_t most_ms)
{
    uint64_t now_ns = rs_clock_ns();

    for (struct connection *one = connections, *next; one; one = next) {
        next = one->next;
        if (now_ns - one->since_ns <= most_ms * NS_PER_MS)
            continue;
        (void)shutdown(one->watched.fd, SHUT_RD); /* from here on the process cannot send */
        take_request(one->watched.fd);
        end_connection(one);
    }
}

/* ---- the loop ---- */

/* Waits for events, timeout_ms at most, and handles them. False when the descriptor of `program`
 * can be read. */
static bool serve_some(int timeout_ms)
{
    struct epoll_event some[AT_ONCE];
    int count = epoll_wait(events, some, AT_ONCE, timeout_ms);
    bool goes_on = true, is_one_gone = count == 0;

    for (int i = 0; i < count; i++) {
        struct watched *watched = some[i].data.ptr;
        goes_on = goes_on && watched->kind != OF_PROGRAM;
        is_one_gone = is_one_gone || watched->kind == OF_PROCESS;
        while (watched->kind == OF_LISTENER && accept_one())
            continue;
        if (watched->kind == OF_CONNECTION) {
            take_request(watched->fd);
            end_connection((struct connection *)watched);
        }
    }
    if (is_one_gone)
        report_gone();
    return goes_on;
}

static void look_now_and_then(void)
{
    static uint64_t due_ns;
    uint64_t now_ns = rs_clock_ns();

    if (now_ns < due_ns)
        return;
    due_ns = now_ns + (uint64_t)LOOK_MS * NS_PER_MS;
    end_silent_connections(is_full ? RS_JOB_ANSWER_MS : SILENT_MS);
    report_gone();
    for (uint32_t i = 0; i < job_count; i++)
        (void)rs_job_limit_reap(jobs[i].job);
}

void job_serve_until(int readable)
{
    struct pollfd alone = {readable, POLLIN, 0};

    program.fd = readable;
    if (!watch(EPOLL_CTL_ADD, &program)) {
        (void)poll(&alone, 1, -1); /* what processes of the job say waits until job_end */
        return;
    }
    while (serve_some((int)rs_min(unserved_look(is_page_held) / NS_PER_MS + 1, (uint64_t)LOOK_MS)))
        look_now_and_then();
}

/* ---- the job ---- */

static bool make_word(char word[RS_JOB_WORD_BYTES])
{
    unsigned char bytes[RANDOM_BYTES];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return false;
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(word + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

static bool listen_for_job(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path + 1, name, WORD_LENGTH);
    listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return listener.fd >= 0 &&
           bind(listener.fd, (const struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + WORD_LENGTH)) == 0 &&
           listen(listener.fd, SOMAXCONN) == 0;
}

/* Puts the job into the environment.  If the memory file cannot be made, the only loss is that
 * processes which cannot reach the socket go unnoticed. */
static bool put_into_environment(const char *name)
{
    struct stat status = {.st_ino = 0};
    char text[2 * RS_JOB_WORD_BYTES + 96];
    void *memory;
    int fd = rs_memory_file_make(RS_JOB_FILE, sizeof(*unheld), &memory);

    unheld = fd < 0 ? NULL : memory;
    (void)fstat(fd, &status);
    snprintf(text, sizeof(text), "%s:%s:%d:%d:%llu:%lld", name, token, (int)getpid(), fd,
             (unsigned long long)status.st_ino, rs_process_start_ticks(0));
    return setenv(RS_JOB_VARIABLE, text, 1) == 0;
}

void job_begin(void)
{
    const char *variable = getenv(RS_JOB_VARIABLE);
    char name[RS_JOB_WORD_BYTES];

    above = variable ? strdup(variable) : NULL;
    events = epoll_create1(EPOLL_CLOEXEC);
    if (events >= 0 && make_word(name) && make_word(token) && listen_for_job(name) &&
        put_into_environment(name))
        return;
    tool_say("cannot observe the program's processes, so their memory use is not shown at the end: "
             "%s",
             strerror(errno));
    (void)rs_run_ask(RS_JOB_PASS_PAGE, 0, -1, NULL);
    unsetenv(RS_JOB_VARIABLE); /* the variable of a `run` above */
    listener.fd = -1;
}

void job_watch(void)
{
    summary_clear(&summary);
    if (unheld)
        atomic_store(unheld, 0);
    (void)watch(EPOLL_CTL_ADD, &listener);
}

/* Requests that have been sent are still handled, also those of processes that have ended. */
void job_end(void)
{
    bool any;

    (void)watch(EPOLL_CTL_DEL, &program);
    (void)watch(EPOLL_CTL_DEL, &listener);
    do { /* again when the connections that ended here have made room for waiting ones */
        while (accept_one())
            continue;
        any = connections;
        for (; connections; end_silent_connections(RS_JOB_ANSWER_MS))
            (void)serve_some(NAP_MS);
        report_gone();
    } while (any && is_full);
    summary.is_short |= is_full;
    for (uint32_t i = 0; above && unheld && i < atomic_load(unheld); i++)
        pass_on(0, -1);
    for (const struct held *held = all_held; held; held = held->next)
        summary_add(&summary, &held->known, held->is_below, held->page);
}

void job_take_summary(struct summary *taken)
{
    *taken = summary;
    taken->unserved = unserved_take(is_page_held, &taken->unserved_count, &taken->is_short);
    taken->missed += unheld ? atomic_load(unheld) : 0;
    taken->is_short |= listener.fd < 0;
    summary = (struct summary){.count = 0};
}
