/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/doctor/driver.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SECONDS = 20 }; /* for loading: a driver that hangs is one that is broken */

static const char driver_name[] = "libcuda.so.1";

/* What a child found out. */
struct answer {
    bool is_good;
    int version; /* of the driver */
    char text[PATH_MAX + 256];
};

/* ---- in the child ---- */

static void try_library(const char *path, struct answer *answer)
{
    answer->is_good = dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL;
    if (!answer->is_good)
        snprintf(answer->text, sizeof(answer->text), "%s", dlerror());
}

static void try_driver(const char *name, struct answer *answer)
{
    void *driver = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    struct link_map *map = NULL;
    int (*get_version)(int *version);
    char path[PATH_MAX];

    if (!driver) {
        snprintf(answer->text, sizeof(answer->text), "%s", dlerror());
        return;
    }
    if (dlinfo(driver, RTLD_DI_LINKMAP, &map) == 0 && map && realpath(map->l_name, path))
        snprintf(answer->text, sizeof(answer->text), "%s", path);
    get_version = (int (*)(int *))(uintptr_t)dlsym(driver, "cuDriverGetVersion");
    answer->is_good = get_version && get_version(&answer->version) == 0;
}

/* ---- the child ---- */

static void be_child(int to, void (*task)(const char *, struct answer *), const char *argument)
{
    struct answer answer = {.is_good = false};
    sigset_t only;

    /* `run` blocks the signals that it passes on. */
    sigemptyset(&only);
    sigaddset(&only, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    alarm(CHILD_SECONDS);
    task(argument, &answer);
    _exit(write(to, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

/* False, with a text, where the child ended without an answer. */
static bool in_child(void (*task)(const char *, struct answer *), const char *argument,
                     struct answer *answer)
{
    int ends[2], status = 0;
    ssize_t got;
    pid_t child;

    *answer = (struct answer){.is_good = false};
    if (pipe(ends) != 0)
        return false;
    (void)fflush(stdout);
    child = fork();
    if (child == 0)
        be_child(ends[1], task, argument);
    close(ends[1]);
    got = child < 0 ? -1 : read(ends[0], answer, sizeof(*answer));
    close(ends[0]);
    if (child > 0)
        (void)waitpid(child, &status, 0);
    if (got == (ssize_t)sizeof(*answer))
        return true;
    *answer = (struct answer){.is_good = false};
    if (WIFSIGNALED(status))
        snprintf(answer->text, sizeof(answer->text), "%s ends the process that loads it: %s",
                 argument, strsignal(WTERMSIG(status)));
    else
        snprintf(answer->text, sizeof(answer->text), "%s ends the process that loads it", argument);
    return false;
}

/* ---- findings ---- */

void doctor_try_library(struct doctor *doctor, const char *path)
{
    struct answer answer;

    if (in_child(try_library, path, &answer) && answer.is_good)
        doctor_note(doctor, "library", NULL, "%s, loadable with this machine's glibc %s", path,
                    gnu_get_libc_version());
    else
        doctor_problem(doctor, "library",
                       "build the library on this machine, or use one for its glibc",
                       "%s (glibc is %s)", answer.text, gnu_get_libc_version());
}

bool driver_can_be_loaded(void)
{
    struct answer answer;

    return in_child(try_library, driver_name, &answer) && answer.is_good;
}

void doctor_try_driver(struct doctor *doctor)
{
    struct answer answer;

    if (in_child(try_driver, driver_name, &answer) && answer.is_good)
        doctor_note(doctor, "driver", NULL, "%s, for CUDA %d.%d", answer.text,
                    answer.version / 1000, answer.version % 1000 / 10);
    else
        doctor_problem(doctor, "driver",
                       "install NVIDIA's driver; in a container start it with the GPU (--gpus all)",
                       "libcuda.so.1 cannot be used: %s", *answer.text ? answer.text : "no answer");
}
