/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to a running process, which is this one.  The first byte says which side lies: if it is
 * even, a writer leaves any command, and the library answers; else `rmmshim leaks` asks, and the
 * process gives any answer and any list. */
#include "base/check.h"
#include "base/file.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/limit.h"
#include "fuzzer.h"
#include "report/publish.h"
#include "report/report.h"
#include "shared/commands.h"
#include "shared/memory_file.h"
#include "shared/published.h"
#include "shim/commands.h"
#include "tool/tool.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

extern const struct tool_command tool_leaks;

enum { LOOK_NS = 1000 * 1000 };

static struct rs_commands *commands;
static char *list; /* in the page */
static struct rs_commands answer;
static uint32_t answered; /* the step after it */

/* ---- the process that lies ---- */

/* Answers one command, if one comes until the tool is done. */
static void *lie(void *data)
{
    const _Atomic bool *is_done = data;
    uint32_t step;

    while ((step = atomic_load(&commands->step)) != RS_COMMAND_ASKED && !atomic_load(is_done))
        rs_futex_wait(&commands->step, step, LOOK_NS);
    if (step != RS_COMMAND_ASKED)
        return NULL;
    commands->result = answer.result;
    commands->before_bytes = answer.before_bytes;
    commands->after_bytes = answer.after_bytes;
    memcpy(commands->text, answer.text, sizeof(commands->text));
    atomic_store(&commands->step, answered);
    rs_futex_wake(&commands->step);
    return NULL;
}

static void begin(void)
{
    static unsigned char always = 1;

    must(freopen("/dev/null", "we", stdout), "no output");
    setenv("PATH", "/nowhere", 1); /* no addr2line is started */
    rs_publish_begin();
    rs_limit_begin();
    rs_block_counts_begin();
    rs_commands_begin(false);
    list = rs_published_allocate(RS_LIVE_LIST_BYTES, 8);
    must(rs_published_head() && rs_attention && list, "no page, or no file");
    commands = (void *)((uintptr_t)rs_attention - offsetof(struct rs_commands, attention));
    rs_mode_page = &always;
    atomic_store(&rs_mode_current, RS_MODE_SERVE);
}

/* ---- a writer that lies ---- */

static void leave_command(struct input *input)
{
    uint32_t kind = (uint32_t)next_number(input, 1), step = (uint32_t)next_number(input, 1) % 5;

    commands->kind = kind < 8 ? kind : (uint32_t)next_number(input, 4);
    commands->device = (int32_t)next_number(input, 4);
    commands->bytes = next_number(input, 8);
    atomic_store(&commands->step, step);
    atomic_store(&commands->attention, next_number(input, 8) & ~RS_ATTENTION_JOB);
}

static void try_library(struct input *input)
{
    struct rs_commands command;

    while (input->left > 0) {
        leave_command(input);
        rs_poll_commands_now();
        rs_poll_commands_in_request_now();
        (void)rs_commands_take(&command);
    }
}

static void try_tool(struct input *input)
{
    char number[16];
    char *arguments[] = {number, (char *)(uintptr_t) "--device", (char *)(uintptr_t) "0", NULL};
    _Atomic bool is_done = false;
    pthread_t liar;
    size_t bytes;

    answered = (uint32_t)next_number(input, 1);
    if (answered == RS_COMMAND_ASKED || answered == RS_COMMAND_TAKEN)
        answered = RS_COMMAND_ANSWERED;
    answer.result = (int32_t)(next_number(input, 1) ? 0 : next_number(input, 4));
    answer.before_bytes = rs_published_offset(list) ^ next_number(input, 8);
    bytes = rs_min(input->left, (size_t)RS_LIVE_LIST_BYTES);
    answer.after_bytes = bytes;
    memcpy(answer.text, input->at, rs_min(bytes, sizeof(answer.text)));
    memcpy(list, input->at, bytes);
    snprintf(number, sizeof(number), "%d", (int)getpid());
    atomic_store(&commands->step, RS_COMMAND_NONE);
    must(pthread_create(&liar, NULL, lie, &is_done) == 0, "no thread");
    (void)tool_leaks.run(arguments);
    atomic_store(&is_done, true);
    must(pthread_join(liar, NULL) == 0, "no thread");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};

    if (!commands)
        begin();
    if (next_number(&input, 1) % 2)
        try_tool(&input);
    else
        try_library(&input);
    return 0;
}
