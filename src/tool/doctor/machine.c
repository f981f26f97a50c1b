/* SPDX-License-Identifier: Apache-2.0 */
/* `rmmshim doctor`: this machine, as a program that is started now would find it. */
#include "base/size.h"
#include "shared/published.h"
#include "tool/doctor/doctor.h"
#include "tool/process.h"
#include "tool/program.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

/* ---- libraries, loaded by a child process ---- */

enum { CHILD_SECONDS = 20 }; /* for loading: a library that hangs is one that is broken */

static const char driver_name[] = "libcuda.so.1";

/* What a child found out. */
struct answer {
    bool is_loaded;
    int version;               /* of the driver; 0: not known */
    char text[PATH_MAX + 256]; /* where the library is, or why it is not loaded */
};

static void try_to_load(const char *name, struct answer *answer)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    int (*get_version)(int *version);
    struct link_map *map = NULL;
    char path[PATH_MAX];

    answer->is_loaded = library != NULL;
    if (!library) {
        snprintf(answer->text, sizeof(answer->text), "%s", dlerror());
        return;
    }
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && realpath(map->l_name, path))
        snprintf(answer->text, sizeof(answer->text), "%s", path);
    if (name != driver_name)
        return; /* rmmshim's own function of that name would load the driver */
    get_version = (int (*)(int *))(uintptr_t)dlsym(library, "cuDriverGetVersion");
    if (get_version && get_version(&answer->version) != 0)
        answer->version = 0;
}

static void be_child(int to, const char *name)
{
    struct answer answer = {.is_loaded = false};
    sigset_t only;

    /* `run` blocks the signals that it passes on. */
    sigemptyset(&only);
    sigaddset(&only, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    alarm(CHILD_SECONDS);
    try_to_load(name, &answer);
    _exit(write(to, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

/* Has a child load the library: one that crashes or hangs is a finding. */
static void ask_child(const char *name, struct answer *answer)
{
    int ends[2], status = 0;
    ssize_t got;
    pid_t child;

    *answer = (struct answer){.is_loaded = false};
    if (pipe(ends) != 0)
        return;
    (void)fflush(stdout);
    child = fork();
    if (child == 0)
        be_child(ends[1], name);
    close(ends[1]);
    got = child < 0 ? -1 : read(ends[0], answer, sizeof(*answer));
    close(ends[0]);
    if (child > 0)
        (void)waitpid(child, &status, 0);
    if (got == (ssize_t)sizeof(*answer))
        return;
    *answer = (struct answer){.is_loaded = false};
    snprintf(answer->text, sizeof(answer->text), "%s ends the process that loads it%s%s", name,
             WIFSIGNALED(status) ? ": " : "",
             WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "");
}

bool driver_can_be_loaded(void)
{
    struct answer answer;

    ask_child(driver_name, &answer);
    return answer.is_loaded;
}

static void add_library(struct doctor *doctor)
{
    char path[PATH_MAX], why[LIBRARY_WHY_BYTES];
    struct answer answer;

    if (!library_look(path, why)) {
        doctor_problem(doctor, "library", "install the library, or set RMMSHIM_LIBRARY", "%s", why);
        return;
    }
    ask_child(path, &answer);
    if (answer.is_loaded)
        doctor_note(doctor, "library", NULL, "%s, loadable with this machine's glibc %s", path,
                    gnu_get_libc_version());
    else
        doctor_problem(doctor, "library",
                       "build the library on this machine, or use one for its glibc",
                       "%s (glibc is %s)", answer.text, gnu_get_libc_version());
}

static void add_driver(struct doctor *doctor)
{
    struct answer answer;

    ask_child(driver_name, &answer);
    if (answer.version)
        doctor_note(doctor, "driver", NULL, "%s, for CUDA %d.%d", answer.text,
                    answer.version / 1000, answer.version % 1000 / 10);
    else
        doctor_problem(doctor, "driver",
                       "install NVIDIA's driver; in a container start it with the GPU (--gpus all)",
                       "libcuda.so.1 cannot be used: %s", *answer.text ? answer.text : "no answer");
}

/* ---- files ---- */

static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *file = fopen(path, "re");
    bool is_read = file && fgets(line, (int)bytes, file);

    if (file)
        (void)fclose(file);
    if (is_read)
        line[strcspn(line, "\n")] = '\0';
    return is_read;
}

/* ---- the GPU ---- */

static void add_devices(struct doctor *doctor)
{
    glob_t found;
    char line[256];

    if (read_line("/proc/driver/nvidia/version", line, sizeof(line)))
        doctor_note(doctor, "driver", NULL, "kernel module: %s", line);
    if (glob("/dev/nvidia[0-9]*", 0, NULL, &found) != 0) {
        doctor_note(doctor, "device", "in a container: start it with the GPU (--gpus all)",
                    "no /dev/nvidia0: no GPU, or one that is reached in another way, as in WSL");
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (access(found.gl_pathv[i], R_OK | W_OK) == 0)
            doctor_note(doctor, "device", NULL, "%s", found.gl_pathv[i]);
        else
            doctor_problem(doctor, "device", "the user must be allowed to read and write it",
                           "%s: %s", found.gl_pathv[i], strerror(errno));
    }
    globfree(&found);
}

/* An instance has its capability there; without one the folder is empty. */
static void add_mig(struct doctor *doctor)
{
    glob_t found;

    if (glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*", 0, NULL, &found) != 0)
        return;
    doctor_note(doctor, "mig", NULL,
                "%zu MIG instances: each is a device of its own, and limits apply to its memory",
                found.gl_pathc);
    globfree(&found);
}

/* The number of the first process whose name begins so; 0: none. */
static int find_process(const char *name)
{
    size_t count;
    int *numbers = process_list(&count), found = 0;
    char path[64], comm[64];

    for (size_t i = 0; numbers && i < count && !found; i++) {
        snprintf(path, sizeof(path), "/proc/%d/comm", numbers[i]);
        if (read_line(path, comm, sizeof(comm)) && strncmp(comm, name, strlen(name)) == 0)
            found = numbers[i];
    }
    free(numbers);
    return found;
}

static void add_mps(struct doctor *doctor)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int daemon = find_process("nvidia-cuda-mps"); /* the kernel keeps 15 letters of a name */

    if (daemon)
        doctor_note(doctor, "mps", "MPS sets its limits by CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                    "MPS is running (process %d): its own limits apply in addition to RMM_LIMIT",
                    daemon);
    else if (directory && *directory)
        doctor_note(doctor, "mps", "start it by nvidia-cuda-mps-control -d, or unset the variable",
                    "CUDA_MPS_PIPE_DIRECTORY=%s, but no MPS daemon is seen here", directory);
}

/* ---- limits of the kernel ---- */

/* Lines are "REGION BYTES|max". */
static void add_dmem_of(struct doctor *doctor, const char *directory)
{
    char path[PATH_MAX + 64], region[256], limit[32], text[RS_SIZE_TEXT_BYTES];
    FILE *file;

    snprintf(path, sizeof(path), "%s/dmem.max", directory);
    file = fopen(path, "re");
    while (file && fscanf(file, "%255s %31s", region, limit) == 2)
        if (strcmp(limit, "max") != 0)
            doctor_note(doctor, "cgroup",
                        "set RMM_LIMIT below it, so that rmmshim gives back unused memory before "
                        "the kernel refuses",
                        "%s limits %s to %s", path, region,
                        rs_size_format_short(strtoull(limit, NULL, 10), text));
    if (file)
        (void)fclose(file);
}

/* The limits of the cgroup and of those that it is in. */
static void add_dmem(struct doctor *doctor)
{
    static const char root[] = "/sys/fs/cgroup";
    char line[PATH_MAX], directory[PATH_MAX + sizeof(root)], *slash;

    if (!read_line("/proc/self/cgroup", line, sizeof(line)) || strncmp(line, "0::/", 4) != 0)
        return;
    snprintf(directory, sizeof(directory), "%s%s", root, line + strlen("0::"));
    while (strlen(directory) >= strlen(root)) {
        add_dmem_of(doctor, directory);
        slash = strrchr(directory, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
}

static bool can_seal(void)
{
    int fd = memfd_create("rmmshim-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool can = fd >= 0 && ftruncate(fd, 1) == 0 &&
               fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE) == 0;

    if (fd >= 0)
        close(fd);
    return can;
}

enum { FILES_NEEDED = 64 };

static void add_page(struct doctor *doctor)
{
    struct rlimit files;

    if (!can_seal())
        doctor_note(doctor, "page", "use Linux 5.1 or later",
                    "memory files cannot be sealed against writing: another process of this user "
                    "can change what a process publishes");
    if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < RS_PUBLISHED_BYTES)
        doctor_problem(doctor, "page", "ulimit -f unlimited",
                       "the limit on file sizes is below the %d MiB that a process publishes: "
                       "commands cannot see or steer it",
                       RS_PUBLISHED_BYTES >> 20);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < FILES_NEEDED)
        doctor_problem(doctor, "page", "ulimit -n 1024",
                       "the limit on open files is %llu: driver and library keep files open",
                       (unsigned long long)files.rlim_cur);
}

/* ---- all of it ---- */

static void add_environment(struct doctor *doctor)
{
    const char *preload = getenv("LD_PRELOAD");
    const char *only = getenv(rs_variables[RS_VARIABLE_ONLY].option.name);
    bool asks = false;

    if (preload && *preload)
        doctor_note(doctor, "preload", NULL, "LD_PRELOAD=%s", preload);
    if (only && *only)
        doctor_note(doctor, "only", "`rmmshim doctor PROGRAM` says whether it names a program",
                    "RMM_ONLY=%s: the library is inert in programs with other names", only);
    if (doctor_settings(doctor, environ, &asks))
        doctor_note(doctor, "settings", asks ? NULL : "rmmshim run --pool-size 4GiB PROGRAM",
                    asks ? "the RMM_ variables of the environment are valid"
                         : "no RMM_ variable asks for a pool, a limit or a report");
}

void doctor_machine(struct doctor *doctor)
{
    doctor->good = "rmmshim can be used on this machine: start programs with `rmmshim run`";
    add_library(doctor);
    add_driver(doctor);
    add_devices(doctor);
    add_mig(doctor);
    add_mps(doctor);
    add_dmem(doctor);
    add_page(doctor);
    add_environment(doctor);
}
