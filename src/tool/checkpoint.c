/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/checkpoint.h"

#include "tool/process.h"
#include "tool/tool.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

/* The tool must build with headers older than 12.8, which do not have these. */
enum {
    CHECKPOINT_VERSION = 12080,
    DRIVER_NOT_READY = 600,
    LOCK_MS = 10000,
    STATE_RUNNING = 0,
    STATE_LOCKED = 1,
    STATE_PAUSED = 2,
    STATE_FAILED = 3,
};

/* CUcheckpointLockArgs: 64 bytes, of which all but the first four must be 0. */
struct lock_arguments {
    unsigned timeout_ms;
    unsigned reserved[15];
};

struct driver {
    int (*get_state)(int number, int *state);
    int (*lock)(int number, void *arguments);
    int (*checkpoint)(int number, void *arguments);
    int (*restore)(int number, void *arguments);
    int (*unlock)(int number, void *arguments);
    int (*get_error_name)(int result, const char **name);
};

static const char *error_name(const struct driver *driver, int result)
{
    const char *name = NULL;

    return driver->get_error_name(result, &name) == 0 && name ? name : "an unknown error";
}

/* ---- the driver ---- */

/* The function's address, or 0 where the driver has none. */
static uintptr_t function(void *library, const char *name)
{
    int (*get)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))(uintptr_t)dlsym(
            library, "cuGetProcAddress_v2");
    void *found = NULL;
    int status;

    return get && get(name, &found, CHECKPOINT_VERSION, 0, &status) == 0 ? (uintptr_t)found : 0;
}

static bool open_driver(struct driver *driver)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned flags);
    int result;

    if (!library) {
        tool_say("%s", dlerror());
        return false;
    }
    init = (int (*)(unsigned))(uintptr_t)dlsym(library, "cuInit");
    driver->get_error_name =
        (int (*)(int, const char **))(uintptr_t)dlsym(library, "cuGetErrorName");
    driver->get_state = (int (*)(int, int *))function(library, "cuCheckpointProcessGetState");
    driver->lock = (int (*)(int, void *))function(library, "cuCheckpointProcessLock");
    driver->checkpoint = (int (*)(int, void *))function(library, "cuCheckpointProcessCheckpoint");
    driver->restore = (int (*)(int, void *))function(library, "cuCheckpointProcessRestore");
    driver->unlock = (int (*)(int, void *))function(library, "cuCheckpointProcessUnlock");
    if (!init || !driver->get_error_name || !driver->get_state || !driver->lock ||
        !driver->checkpoint || !driver->restore || !driver->unlock) {
        tool_say("this driver cannot pause a process; drivers for CUDA 12.8 and newer can");
        return false;
    }
    result = init(0);
    if (result != 0)
        tool_say("the driver does not start: %s", error_name(driver, result));
    return result == 0;
}

/* ---- the process ---- */

int checkpoint_parse(char **arguments)
{
    int number;

    if (!arguments[0]) {
        tool_say("no process; its number (PID) is what `rmmshim ls` shows");
        return 0;
    }
    if (arguments[1]) {
        tool_say("'%s' is one word too many", arguments[1]);
        return 0;
    }
    number = process_parse(arguments[0]);
    if (number == 0)
        tool_say("%s: not a process number", arguments[0]);
    return number;
}

/* The driver's own answer for a process that is gone or another user's is that there is no
 * checkpoint of it, as for one without CUDA. */
static bool may_steer(int number)
{
    if (kill(number, 0) == 0)
        return true;
    tool_say("process %d %s", number,
             process_answer_text(errno == ESRCH ? PROCESS_GONE : PROCESS_DENIED));
    return false;
}

/* False after saying why the state cannot be told, or that no call leads out of it. */
static bool find_state(struct driver *driver, int number, int *state)
{
    int result;

    if (!may_steer(number) || !open_driver(driver))
        return false;
    result = driver->get_state(number, state);
    if (result != 0)
        tool_say("process %d: the driver has no GPU memory of it to pause (%s)", number,
                 error_name(driver, result));
    else if (*state == STATE_FAILED)
        tool_say("process %d: an earlier pause failed, and the driver lets it neither pause nor "
                 "resume",
                 number);
    return result == 0 && *state != STATE_FAILED;
}

static int unlock(const struct driver *driver, int number)
{
    int result = driver->unlock(number, NULL);

    if (result != 0)
        tool_say("process %d: its calls of CUDA stay blocked: %s", number,
                 error_name(driver, result));
    return result == 0 ? TOOL_OK : TOOL_FINDING;
}

static int lock(const struct driver *driver, int number)
{
    struct lock_arguments arguments = {.timeout_ms = LOCK_MS};
    int result = driver->lock(number, &arguments);

    if (result == 0)
        return TOOL_OK;
    if (result == DRIVER_NOT_READY)
        tool_say("process %d: its work on the GPU did not end within %d s; nothing was changed",
                 number, LOCK_MS / 1000);
    else
        tool_say("process %d cannot be paused: %s", number, error_name(driver, result));
    return result == DRIVER_NOT_READY ? TOOL_LATE : TOOL_FINDING;
}

int checkpoint_pause(int number)
{
    struct driver driver;
    int state, result, code = TOOL_OK;

    if (!find_state(&driver, number, &state))
        return TOOL_FINDING;
    if (state == STATE_PAUSED) {
        printf("process %d is paused already\n", number);
        return TOOL_OK;
    }
    if (state == STATE_RUNNING)
        code = lock(&driver, number);
    if (code != TOOL_OK)
        return code;
    result = driver.checkpoint(number, NULL);
    if (result != 0) {
        tool_say("process %d cannot be paused: %s", number, error_name(&driver, result));
        (void)unlock(&driver, number);
        return TOOL_FINDING;
    }
    printf("process %d is paused: its GPU memory is in the host's; `rmmshim resume %d` brings it "
           "back\n",
           number, number);
    return TOOL_OK;
}

int checkpoint_resume(int number)
{
    struct driver driver;
    int state, result;

    if (!find_state(&driver, number, &state))
        return TOOL_FINDING;
    if (state == STATE_RUNNING) {
        printf("process %d is not paused\n", number);
        return TOOL_OK;
    }
    result = state == STATE_PAUSED ? driver.restore(number, NULL) : 0;
    if (result != 0) {
        tool_say("process %d stays paused, as its GPU memory cannot come back: %s", number,
                 error_name(&driver, result));
        return TOOL_FINDING;
    }
    if (unlock(&driver, number) != TOOL_OK)
        return TOOL_FINDING;
    printf("process %d runs on\n", number);
    return TOOL_OK;
}
