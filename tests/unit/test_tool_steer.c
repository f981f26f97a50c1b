/* SPDX-License-Identifier: Apache-2.0 */
/* A writer of commands.  The process that it commands is this one. */
#include "unit.h"

#include "base/check.h"
#include "shared/commands.h"
#include "tool/steer.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- the writer's mapping, whose first write is seen ---- */

static bool is_watched;
static char *mapping;
static volatile sig_atomic_t first_write; /* its offset in the mapping; -1: none yet */

void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *mapped;

    if (!is_watched || bytes != RS_COMMANDS_BYTES)
        return __real_mmap(address, bytes, protection, flags, fd, offset);
    mapped = __real_mmap(address, bytes, PROT_READ, flags, fd, offset);
    mapping = mapped;
    return mapped;
}

void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return __wrap_mmap(address, bytes, protection, flags, fd, offset);
}

static void see_write(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;

    (void)number;
    (void)context;
    if (!mapping || at < mapping || at >= mapping + RS_COMMANDS_BYTES)
        _exit(1);
    first_write = (sig_atomic_t)(at - mapping);
    mprotect(mapping, RS_COMMANDS_BYTES, PROT_READ | PROT_WRITE);
}

/* ---- the process ---- */

static struct rs_commands *commands;
static struct steer_target target = {.device_count = 1};

static int begin(void **state)
{
    (void)state;
    rs_commands_begin(false);
    commands = (void *)((uintptr_t)rs_attention - offsetof(struct rs_commands, attention));
    target.process.number = getpid();
    target.process.directory = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return target.process.directory < 0;
}

static int end(void **state)
{
    (void)state;
    rs_commands_forget();
    return close(target.process.directory);
}

FIXTURE(begin, end);

/* The process must not take it while it is overwritten. */
TEST(a_command_that_was_left_is_withdrawn_before_anything_is_written)
{
    struct rs_commands command = {.kind = RS_COMMAND_TRIM, .device = 1, .bytes = 2}, taken;
    struct sigaction see = {.sa_sigaction = see_write, .sa_flags = SA_SIGINFO}, before;

    sigaction(SIGSEGV, &see, &before);
    commands->kind = RS_COMMAND_LIMIT;
    commands->bytes = 1;
    atomic_store(&commands->step, RS_COMMAND_ASKED);
    first_write = -1;
    is_watched = true;
    assert_int_equal(steer(&target, &command, NULL), TOOL_LATE);
    is_watched = false;
    sigaction(SIGSEGV, &before, NULL);
    assert_int_equal(first_write, offsetof(struct rs_commands, step));
    assert_int_equal(commands->bytes, 2);
    assert_false(rs_commands_take(&taken)); /* its own is withdrawn, too */
}

TEST(a_command_that_is_being_carried_out_is_waited_for)
{
    struct rs_commands command = {.kind = RS_COMMAND_TRIM, .bytes = 2};

    commands->bytes = 1;
    atomic_store(&commands->step, RS_COMMAND_TAKEN);
    assert_int_equal(steer(&target, &command, NULL), TOOL_LATE);
    assert_int_equal(atomic_load(&commands->step), RS_COMMAND_TAKEN);
    assert_int_equal(commands->bytes, 1);
}

/* What cannot be done for want of something is not taken for another answer. */
static void lacks(void (*take)(void), void (*give)(void))
{
    struct rs_commands command = {.kind = RS_COMMAND_TRIM};
    int kept = dup(STDERR_FILENO), ends[2];
    char said[256] = "";

    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    take();
    assert_int_equal(steer(&target, &command, NULL), TOOL_FINDING);
    give();
    dup2(kept, STDERR_FILENO);
    assert_true(read(ends[0], said, sizeof(said) - 1) > 0);
    assert_non_null(strstr(said, "lacks host memory or file descriptors"));
    close(kept);
    close(ends[0]);
    close(ends[1]);
}

static struct rlimit files;

static void allow_no_files(void)
{
    struct rlimit none;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = files;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
}

static void allow_files(void)
{
    setrlimit(RLIMIT_NOFILE, &files);
}

TEST(a_process_whose_file_cannot_be_opened_has_not_ended)
{
    lacks(allow_no_files, allow_files);
}

static bool refuses_locks;

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation)
{
    if (!refuses_locks)
        return __real_flock(fd, operation);
    errno = ENOLCK;
    return -1;
}

static void refuse_locks(void)
{
    refuses_locks = true;
}

static void allow_locks(void)
{
    refuses_locks = false;
}

TEST(a_process_whose_file_cannot_be_locked_is_not_busy)
{
    lacks(refuse_locks, allow_locks);
}
