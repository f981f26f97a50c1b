/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/commands.h"

#include "base/file.h"
#include "shared/memory_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The longest wait in rs_commands_wait. A writer may die before it wakes the thread. */
enum { WAIT_NS = 1000 * 1000 * 1000 };

static _Atomic uint64_t no_file;

RS_HOT_DATA _Atomic uint64_t *rs_attention = &no_file;

static struct rs_commands *commands; /* NULL: there is no file */
static struct rs_kept_descriptor file;

void rs_commands_begin(bool has_thread)
{
    void *memory;
    int fd = rs_memory_file_make(RS_COMMANDS_NAME, RS_COMMANDS_BYTES, &memory);

    RS_ASSERT(!commands);
    if (fd < 0)
        return;
    if (!rs_descriptor_keep(&file, fd)) {
        munmap(memory, RS_COMMANDS_BYTES);
        return;
    }
    (void)madvise(memory, RS_COMMANDS_BYTES, MADV_DONTFORK);
    commands = memory;
    commands->process = (int32_t)getpid();
    commands->has_thread = has_thread;
    snprintf(commands->layout, sizeof(commands->layout), "%s", RS_COMMANDS_LAYOUT);
    rs_attention = &commands->attention;
}

void rs_commands_forget(void)
{
    if (commands)
        rs_descriptor_close(&file);
    commands = NULL;
    rs_attention = &no_file;
}

bool rs_commands_take(struct rs_commands *command)
{
    uint32_t asked = RS_COMMAND_ASKED;

    if (!commands)
        return false;
    atomic_fetch_and(&commands->attention, ~RS_ATTENTION_ASKED);
    if (!atomic_compare_exchange_strong(&commands->step, &asked, RS_COMMAND_TAKEN))
        return false;
    *command = (struct rs_commands){
        .kind = commands->kind, .device = commands->device, .bytes = commands->bytes};
    return true;
}

void rs_commands_answer(const struct rs_commands *command)
{
    RS_ASSERT(commands);
    commands->result = command->result;
    commands->before_bytes = command->before_bytes;
    commands->after_bytes = command->after_bytes;
    commands->held_bytes = command->held_bytes;
    memcpy(commands->text, command->text, sizeof(commands->text));
    atomic_store(&commands->step, RS_COMMAND_ANSWERED);
    rs_futex_wake(&commands->step);
}

void rs_commands_wait(void)
{
    uint32_t step = atomic_load(&commands->step);

    if (step != RS_COMMAND_ASKED && !(atomic_load(&commands->attention) & RS_ATTENTION_JOB))
        rs_futex_wait(&commands->step, step, WAIT_NS);
}

/* ---- another process's file ---- */

bool rs_commands_where(int *fd, uint64_t *inode)
{
    *fd = file.fd;
    *inode = (uint64_t)file.inode;
    return commands != NULL;
}

void rs_commands_raise(int process, int fd, uint64_t inode)
{
    struct rs_commands *other = rs_memory_file_map(process, fd, inode, RS_COMMANDS_BYTES);

    if (!other)
        return;
    if (strncmp(other->layout, RS_COMMANDS_LAYOUT, sizeof(other->layout)) == 0 &&
        other->process == process) {
        atomic_fetch_or(&other->attention, RS_ATTENTION_JOB);
        rs_futex_wake(&other->step);
    }
    munmap(other, RS_COMMANDS_BYTES);
}
