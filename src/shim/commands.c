/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/commands.h"

#include "base/log.h"
#include "base/request.h"
#include "base/size.h"
#include "base/thread.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/context.h"
#include "context/limit.h"
#include "driver/fence.h"
#include "ipc/export.h"
#include "ledger/account.h"
#include "report/report.h"
#include "rmmshim/rmmshim.h"
#include "shim/control.h"

#include <errno.h>
#include <stdio.h>

/* ---- a command ---- */

/* For each device in left_devices: the bytes of unused memory that its last trim command was to
 * leave; 0 for a limit command. That command could not give back the rest: memory that only a
 * waiting driver call gives back stays while its context works. The command must not wait, since it
 * runs inside some call of the program, and the GPU may be waiting for what the program does next.
 * rs_shim_waited_for_all gives the memory back. */
static _Atomic size_t keep_of[RS_DEVICES_MAX];
static _Atomic uint64_t left_devices; /* bit i: a command has left such memory on device i */

_Static_assert(RS_DEVICES_MAX <= 64, "a device has a bit of left_devices");

static void note_left(struct rs_commands *command, size_t keep_bytes, bool is_left)
{
    if (!is_left)
        return;
    if (!rs_fence_supported()) {
        (void)rs_control_error(0, "some unused memory was not given back: only driver 555 or "
                                  "newer gives it back without waiting for the GPU");
        return;
    }
    atomic_store(&keep_of[command->device], keep_bytes);
    atomic_fetch_or(&left_devices, 1ull << command->device);
    (void)rs_control_error(0, "some unused memory cannot be given back while the GPU works; it "
                              "goes back when the program next waits for all work of the GPU");
}

void rs_shim_waited_for_all(void)
{
    uint64_t left;
    bool is_left;

    if (RS_LIKELY(atomic_load_explicit(&left_devices, memory_order_relaxed) == 0))
        return;
    left = atomic_exchange(&left_devices, 0);
    rs_request_begin();
    for (; left && rs_mode_serving(); left &= left - 1) {
        int device = __builtin_ctzll(left);
        (void)rs_trim(device, atomic_load(&keep_of[device]), &is_left);
    }
    rs_request_end();
}

static void set_limit(struct rs_commands *command)
{
    char text[RS_SIZE_TEXT_BYTES];
    bool is_left;

    command->before_bytes = rs_limit_get(command->device);
    command->result = rs_control_set_limit(command->device, command->bytes, &is_left);
    command->after_bytes = rs_limit_get(command->device);
    note_left(command, 0, is_left);
    if (command->result == 0)
        rs_log_asked("`rmmshim limit` has set the limit of device %d to %s", (int)command->device,
                     command->after_bytes ? rs_size_format_short(command->after_bytes, text)
                                          : "none");
}

static void trim_device(struct rs_commands *command, const struct rs_account *account)
{
    bool is_left;

    command->result = 0;
    command->before_bytes = rs_account_held_bytes(account);
    (void)rs_control_trim(command->device, command->bytes, &is_left);
    command->after_bytes = rs_account_held_bytes(account);
    note_left(command, command->bytes, is_left);
}

static void list_live(struct rs_commands *command)
{
    command->result = rs_live_list(command->device, &command->before_bytes, &command->after_bytes);
    if (command->result == -EBUSY)
        (void)rs_control_error(
            -EBUSY, "another thread of the process is listing its memory now: try again");
    else if (command->result != 0)
        (void)rs_control_error(
            command->result,
            "the file in which the process publishes its counters is full, so it cannot list its "
            "memory; start the program with `rmmshim run --tracking` to have leaks reported when "
            "it "
            "ends");
}

static void carry_out_command(struct rs_commands *command)
{
    const struct rs_account *account = rs_limit_account(command->device);

    (void)rs_control_error(-EINVAL, "");
    command->result = -EINVAL;
    if (!rs_mode_serving())
        command->result = rs_control_error(-ENOTSUP, "rmmshim no longer serves this process: see "
                                                     "the process's messages on stderr");
    else if (command->device < 0 || !account)
        (void)rs_control_error(-EINVAL, "there is no device with this number");
    else if (command->kind == RS_COMMAND_LIMIT)
        set_limit(command);
    else if (command->kind == RS_COMMAND_TRIM)
        trim_device(command, account);
    else if (command->kind == RS_COMMAND_LIST)
        list_live(command);
    else
        (void)rs_control_error(-EINVAL, "this process uses another version of rmmshim, which does "
                                        "not know this command");
    if (account)
        command->held_bytes = atomic_load_explicit(&account->charged_bytes, memory_order_relaxed);
    snprintf(command->text, sizeof(command->text), "%s", rmmshim_last_error());
}

/* Takes and executes one command, if there is any. A signal handler of the program may make a
 * hooked call on this thread meanwhile; `inside` keeps that call from taking another command.
 * Afterwards the thread's last error is again that of the program's latest call. */
static void take_command(void)
{
    static __thread bool inside;
    char own_error[RS_CONTROL_ERROR_BYTES];
    struct rs_commands command;

    if (inside || !rs_commands_take(&command))
        return;
    inside = true;
    snprintf(own_error, sizeof(own_error), "%s", rmmshim_last_error());
    rs_request_begin(); /* the program's call may be one that must not wait */
    carry_out_command(&command);
    rs_request_end();
    rs_commands_answer(&command);
    (void)rs_control_error(0, own_error);
    inside = false;
}

void rs_poll_commands_now(void)
{
    uint64_t attention = atomic_load(rs_attention);

    if (attention & (RS_ATTENTION_ASKED - 1))
        rs_export_collect(false);
    if (attention & RS_ATTENTION_JOB)
        rs_job_look();
    if (attention & RS_ATTENTION_ASKED)
        take_command();
}

void rs_poll_commands_in_request_now(void)
{
    rs_request_begin();
    rs_poll_commands_now();
    rs_request_end();
}

/* ---- the thread for commands ---- */

/* Takes each command, and does what RS_ATTENTION_JOB asks for. It does so even after a bad setting
 * has ended all serving, since rs_commands_wait returns at once while a command or RS_ATTENTION_JOB
 * is pending. */
static void *wait_for_commands(void *data)
{
    (void)data;
    for (;;) {
        rs_commands_wait();
        if (atomic_fetch_and(rs_attention, ~RS_ATTENTION_JOB) & RS_ATTENTION_JOB)
            rs_job_look();
        take_command();
    }
    return NULL;
}

/* Without a file for commands none can come, so no thread is started. */
void rs_shim_commands_thread(void)
{
    uint64_t inode;
    int fd;

    if (rs_commands_where(&fd, &inode) && !rs_thread_start(wait_for_commands))
        rs_log("RMM_CONTROL: the thread for commands such as `rmmshim limit` could not be started: "
               "a command waits until the program next allocates, frees or synchronises");
}
