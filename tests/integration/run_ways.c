/* SPDX-License-Identifier: Apache-2.0 */
/* A process that takes 8 MiB and keeps them, after it began in some way and before it ends in some
 * other: run_ways STEP...  A step that this machine does not allow ends it with 77. */
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILED = 76, NOT_HERE = 77, NOBODY = 65534, TAKEN_BYTES = 8 << 20 };

static void must(int failed, int status, const char *step)
{
    if (!failed)
        return;
    fprintf(stderr, "run_ways: %s: %d, %s\n", step, failed, strerror(errno));
    _exit(status);
}

static void start(void)
{
    CUcontext context;
    CUdevice device;

    must(cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
             cuCtxSetCurrent(context),
         FAILED, "init");
}

static void take(void)
{
    CUdeviceptr block;

    must((int)cuMemAlloc(&block, TAKEN_BYTES), FAILED, "take");
}

static void limit(int resource, const char *value)
{
    rlim_t most = strtoul(value, NULL, 10) * (resource == RLIMIT_FSIZE ? 1024 : 1);

    must(setrlimit(resource, &(struct rlimit){most, most}), NOT_HERE, "limit");
}

static void without(long call, int error)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(rules) / sizeof(*rules), rules};

    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
             prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program),
         NOT_HERE, "seccomp");
}

/* The children do the steps that follow, all at once; their first other status is this process's.
 */
static void fork_children(int count)
{
    int begin[2], status, result = 0;

    must(pipe(begin), FAILED, "pipe");
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        must(child < 0, NOT_HERE, "fork");
        if (child == 0) {
            char none;
            close(begin[1]);
            (void)!read(begin[0], &none, 1); /* until the last one is there */
            close(begin[0]);
            return;
        }
    }
    close(begin[0]);
    close(begin[1]);
    while (wait(&status) > 0)
        if (WIFEXITED(status) && WEXITSTATUS(status))
            result = WEXITSTATUS(status);
    _exit(result);
}

static void enter(int flags, const char *step)
{
    must(unshare(flags), NOT_HERE, step);
    if (flags & CLONE_NEWPID)
        fork_children(1);
}

static void hide_proc(void)
{
    must(unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
             mount("none", "/proc", "tmpfs", 0, NULL),
         NOT_HERE, "no-proc");
}

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};

    must((int)syscall(SYS_capset, &header, none), NOT_HERE, "no-capabilities");
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *step = argv[i], *value = strchr(step, ':') ? strchr(step, ':') + 1 : "";
        size_t length = strcspn(step, ":");
#define IS(name) (length == strlen(name) && strncmp(step, name, length) == 0)
        if (IS("init"))
            start();
        else if (IS("take"))
            take();
        else if (IS("fork"))
            fork_children(atoi(value));
        else if (IS("uid"))
            must(setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) ||
                     setresuid(NOBODY, NOBODY, NOBODY),
                 NOT_HERE, step);
        else if (IS("no-capabilities"))
            drop_capabilities();
        else if (IS("files"))
            limit(RLIMIT_NOFILE, value);
        else if (IS("fsize"))
            limit(RLIMIT_FSIZE, value);
        else if (IS("pidns"))
            enter(CLONE_NEWPID, step);
        else if (IS("userns"))
            enter(CLONE_NEWUSER, step);
        else if (IS("netns"))
            enter(CLONE_NEWNET, step);
        else if (IS("no-proc"))
            hide_proc();
        else if (IS("chroot"))
            must(chroot(value) || chdir("/"), NOT_HERE, step);
        else if (IS("no-memfd"))
            without(SYS_memfd_create, ENOSYS);
        else if (IS("no-socket"))
            without(SYS_socket, EACCES);
        else if (IS("close"))
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
        else if (IS("exec")) { /* exec:N: N images of this process, each with all steps from the
                                  first on */
            int left = atoi(value) - 1;
            char text[32];
            snprintf(text, sizeof(text), "exec:%d", left);
            if (left > 0) {
                argv[i] = text;
                execv("/proc/self/exe", argv);
                must(1, FAILED, step);
            }
        } else if (IS("kill"))
            raise(SIGKILL);
        else if (IS("exit"))
            exit(0);
        else if (IS("_exit"))
            _exit(0);
        else
            must(1, FAILED, step);
    }
    return 0;
}
