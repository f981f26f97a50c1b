/* SPDX-License-Identifier: Apache-2.0 */
#include "config/mode.h"

#include "base/output.h"
#include "base/process.h"
#include "config/program_filter.h"
#include "shared/published.h"
#include "shim/wiring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EXIT_CONFIG = 78 }; /* EX_CONFIG of sysexits.h */

/* The value of rs_mode_current while a thread reads the settings. rs_mode_now never returns it. */
enum { READING = RS_MODE_DENY + 1 };

static const volatile unsigned char no_page[1];

RS_HOT_DATA _Atomic int rs_mode_current;
RS_HOT_DATA _Atomic(const volatile unsigned char *) rs_mode_page = no_page;
struct rs_config rs_config;

static _Atomic bool has_contexts;
/* The process that reads the settings, or that read them last. In a forked child this is the
 * parent, until the child reads them. */
static _Atomic pid_t reader;

static void log_diagnostic(void *data, const char *line)
{
    (void)data;
    rs_log("%s", line);
}

struct rs_diagnostics rs_mode_diagnostics = {.write = log_diagnostic};

enum rs_mode rs_mode_bad_settings(void)
{
    enum rs_mode mode =
        rs_config.on_error == RS_ON_ERROR_PASSTHROUGH ? RS_MODE_FORWARD : RS_MODE_DENY;

    if (rs_config.on_error == RS_ON_ERROR_ABORT)
        _exit(EXIT_CONFIG); /* each bad setting has already been reported */
    atomic_store_explicit(&rs_mode_current, mode, memory_order_release);
    return mode;
}

/* The MPS daemon serves all of its clients, so the settings of one user must not limit or pool
 * its memory. */
static bool is_mps_daemon(void)
{
    return strncmp(program_invocation_short_name, "nvidia-cuda-mps", 15) == 0;
}

/* Runs in a forked child, which has only this thread. */
static void after_fork_in_child(void)
{
    int mode = RS_MODE_FORWARD;

    if (!atomic_load(&has_contexts)) {
        /* CUDA may be started in the child, as it was not in the parent: the settings are read
         * again. */
        mode = RS_MODE_UNBORN;
        rs_config = (struct rs_config){.anything_set = false};
        rs_mode_page = no_page;
    }
    rs_published_forget();
    rs_wiring.forked();
    atomic_store(&rs_mode_current, mode);
}

/* Makes rs_mode_page. The kernel zeroes it in every child with a copy of our memory, even in one of
 * a raw clone(), which runs no fork handlers. */
static void make_page(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *page =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const unsigned char always[] = {1};

    if (page == MAP_FAILED) {
        rs_mode_page = always;
        return;
    }
    /* Fails before Linux 4.14, where only the fork handler notices a child. */
    (void)madvise(page, bytes, MADV_WIPEONFORK);
    page[0] = 1;
    rs_mode_page = page;
}

static _Atomic bool unknown;
static char unknown_name[64];

/* Returns true, after a diagnostic, if a limit is set but cannot hold, since a look-up returned an
 * unknown function that allocates. A limit that silently does not hold is worse than none. */
static bool is_limit_void(void)
{
    static const char *const then[] = {
        [RS_ON_ERROR_ABORT] = "the process ends",
        [RS_ON_ERROR_PASSTHROUGH] = "the process runs without rmmshim",
        [RS_ON_ERROR_DENY] = "CUDA allocations fail",
    };
    const struct rs_source *limit = rs_config.any_limit ? rs_config.any_limit : rs_config.limit_job;

    if (!limit || !atomic_load(&unknown))
        return false;
    rs_diagnose(&rs_mode_diagnostics, limit, NULL,
                "%s: the driver returned a version of this function that rmmshim does not know, so "
                "the limit would not hold, and %s: install a newer rmmshim, or remove the limit",
                unknown_name, then[rs_config.on_error]);
    return true;
}

void rs_mode_note_unknown(const char *name)
{
    static bool noted;

    if (!rs_log_once(&noted))
        return;
    snprintf(unknown_name, sizeof(unknown_name), "%s", name);
    atomic_store(&unknown, true);
    if (rs_mode_serving() && is_limit_void())
        (void)rs_mode_bad_settings();
}

static enum rs_mode read_settings(void)
{
    static bool handlers, resets;

    if (!resets)
        /* reset_locks runs in a forked child before after_fork_in_child. It is registered even if
         * nothing is served, since hooks that only observe take locks too. */
        pthread_atfork(NULL, NULL, rs_wiring.reset_locks);
    resets = true;
    if (getauxval(AT_SECURE) || is_mps_daemon())
        return RS_MODE_FORWARD;
    rs_environment_keep(); /* the call may come from a constructor of another library, before ours
                              has run */
    /* Checked first, since a bad setting must not end a process that RMM_ONLY leaves out. */
    if (!rs_program_filter_serves_this_process(
            rs_environment_get(rs_variables[RS_VARIABLE_ONLY].option.name)))
        return RS_MODE_FORWARD;
    rs_path_keep_directory();
    if (rs_config_parse(rs_environment(), &rs_mode_diagnostics, &rs_config) > 0 || is_limit_void())
        return rs_mode_bad_settings();
    if (rs_config.verbose)
        rs_config_say_ignored(rs_environment());
    if (!rs_config.anything_set)
        return RS_MODE_FORWARD;
    make_page();
    /* Registered before rs_wiring.serving maps memory that a forked child has no copy of: another
     * thread may fork at any time. */
    if (!handlers)
        pthread_atfork(NULL, NULL, after_fork_in_child);
    handlers = true;
    if (!rs_wiring.serving(&rs_mode_diagnostics))
        return rs_mode_bad_settings();
    rs_log_serving();
    if (rs_config.verbose)
        rs_config_say_compat(rs_config.values, rs_environment());
    rs_sanitizer_advise(&rs_config);
    return RS_MODE_SERVE;
}

enum rs_mode rs_mode_slow(void)
{
    for (unsigned turn = 0;;) {
        int mode = atomic_load_explicit(&rs_mode_current, memory_order_acquire);
        int unborn = RS_MODE_UNBORN;

        if (mode == RS_MODE_SERVE)
            return *rs_mode_page ? RS_MODE_SERVE : RS_MODE_FORWARD;
        if (mode == RS_MODE_FORWARD || mode == RS_MODE_DENY)
            return (enum rs_mode)mode;
        if (mode == READING && atomic_load(&reader) != getpid())
            after_fork_in_child(); /* this process was forked while its parent was reading the
                                      settings; if it was cloned, no fork handler has run */
        else if (mode == RS_MODE_UNBORN) {
            atomic_store(&reader, getpid());
            if (atomic_compare_exchange_strong(&rs_mode_current, &unborn, READING))
                atomic_store_explicit(&rs_mode_current, read_settings(), memory_order_release);
        } else {
            rs_pause(turn++); /* another thread is reading the settings */
        }
    }
}

void rs_mode_note_context(void)
{
    if (!atomic_exchange(&has_contexts, true))
        rs_wiring.first_context();
}
