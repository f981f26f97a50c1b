/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim limit: changes the limit of a running process. rmmshim trim: has a process give back
 * memory that it does not use. */
#include "tool/steer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/process.h"
#include "config/config.h"
#include "report/plain.h"
#include "report/report.h"
#include "shared/memory_file.h"
#include "shared/published.h"
#include "tool/tool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* WAIT_NS is the default of --wait, how long the process may take to begin a command. TAKEN_WAIT_NS
 * is the least time that it then gets to finish the command, since a trim takes time. */
#define WAIT_NS       2000000000ull
#define TAKEN_WAIT_NS 3000000000ull

enum {
    /* The time in microseconds between two tries to lock the file that another writer has locked.
     */
    TURN_US = 20 * 1000,
    /* The time between two looks at whether the process still exists. */
    LOOK_NS = 200 * 1000 * 1000,
};

enum steer_answer {
    STEER_DONE,    /* the process has answered */
    STEER_LATE,    /* the process did not take the command in time; it is withdrawn */
    STEER_STUCK,   /* the process took the command and has not finished it; it may do so later */
    STEER_BUSY,    /* the process is busy with another writer's command */
    STEER_GONE,    /* the process ended meanwhile */
    STEER_REFUSED, /* the process has no file for commands, or this user may not write to it */
    STEER_LACKING, /* not known, since this process has no descriptor or memory left */
    STEER_INTERRUPTED, /* a signal is about to end this process; the command is withdrawn */
};

/* ---- the file ---- */

static bool is_commands_of(int fd, const void *process)
{
    int own = rs_process_own_number(process);
    struct rs_commands head;
    struct stat status;

    return fstat(fd, &status) == 0 && status.st_size == RS_COMMANDS_BYTES &&
           rs_file_cannot_shrink(fd) &&
           pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
           strncmp(head.layout, RS_COMMANDS_LAYOUT, sizeof(head.layout)) == 0 &&
           (!own || head.process == own);
}

static int open_commands(const struct process *process)
{
    char path[PROCESS_PATH_BYTES];

    process_path(process, "", path);
    return rs_memory_file_find(&(struct rs_memory_file_search){
        .process = path,
        .name = RS_COMMANDS_NAME,
        .to_change = true,
        .accepts = is_commands_of,
        .data = path,
    });
}

/* Locks the file, since there may be only one writer at a time.  Returns false when another writer
 * kept it locked until until_ns (errno EWOULDBLOCK), or when the kernel has no memory for a lock.
 */
static bool lock_in_time(int fd, uint64_t until_ns)
{
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || rs_clock_ns() >= until_ns)
            return false;
        usleep(TURN_US);
    }
    return true;
}

/* ---- interruption ---- */

static const int endings[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

enum { ENDINGS = RS_ARRAY_LENGTH(endings) };

static volatile sig_atomic_t interrupted; /* the signal that will end this process; 0: none came */

static void note_signal(int number)
{
    interrupted = number;
}

/* Catches the signals that would end this process while a command is pending, so that it can first
 * withdraw the command: the served process would otherwise carry it out at a later call.  Ignored
 * signals stay ignored. */
static void catch_signals(struct sigaction before[ENDINGS])
{
    struct sigaction note = {.sa_handler = note_signal};

    for (size_t i = 0; i < ENDINGS; i++) {
        sigaction(endings[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(endings[i], &note, NULL);
    }
}

static void release_signals(const struct sigaction before[ENDINGS])
{
    for (size_t i = 0; i < ENDINGS; i++)
        sigaction(endings[i], &before[i], NULL);
}

void steer_end_if_interrupted(void)
{
    if (!interrupted)
        return;
    (void)fflush(stdout);
    raise(interrupted);
}

/* ---- a command ---- */

/* Waits while the command's step is `step`.  Returns false when the time is up, the process has
 * ended, or a signal is about to end this command. */
static bool step_ends(const struct process *process, struct rs_commands *file, uint32_t step,
                      uint64_t until_ns)
{
    while (atomic_load(&file->step) == step) {
        uint64_t now_ns = rs_clock_ns(), wait_ns = LOOK_NS;
        if (now_ns >= until_ns || interrupted || process_has_ended(process))
            return false;
        if (until_ns - now_ns < wait_ns)
            wait_ns = until_ns - now_ns;
        rs_futex_wait(&file->step, step, wait_ns);
    }
    return true;
}

/* Withdraws the command.  Returns true if the process had not taken it yet. */
static bool withdraw(struct rs_commands *file)
{
    uint32_t asked = RS_COMMAND_ASKED;

    return atomic_compare_exchange_strong(&file->step, &asked, RS_COMMAND_NONE);
}

static enum steer_answer why_not_taken(const struct process *process, enum steer_answer otherwise)
{
    return process_has_ended(process) ? STEER_GONE : interrupted ? STEER_INTERRUPTED : otherwise;
}

static void ask_process(struct rs_commands *file, const struct rs_commands *command)
{
    file->kind = command->kind;
    file->device = command->device;
    file->bytes = command->bytes;
    atomic_store(&file->step, RS_COMMAND_ASKED);
    atomic_fetch_or(&file->attention, RS_ATTENTION_ASKED);
    rs_futex_wake(&file->step);
}

static enum steer_answer wait_for(const struct process *process, struct rs_commands *file,
                                  uint64_t wait_ns, uint64_t until_ns)
{
    if (!step_ends(process, file, RS_COMMAND_ASKED, until_ns) && withdraw(file))
        return why_not_taken(process, STEER_LATE);
    if (step_ends(process, file, RS_COMMAND_TAKEN, rs_clock_ns() + rs_max(wait_ns, TAKEN_WAIT_NS)))
        return STEER_DONE;
    return process_has_ended(process) ? STEER_GONE : STEER_STUCK;
}

static void copy_answer(struct rs_commands *command, const struct rs_commands *file)
{
    command->result = file->result;
    command->before_bytes = file->before_bytes;
    command->after_bytes = file->after_bytes;
    command->held_bytes = file->held_bytes;
    memcpy(command->text, file->text, sizeof(command->text) - 1);
    command->text[sizeof(command->text) - 1] = '\0';
}

/* Writes the command and waits for the answer.  The caller has the file's lock, so an older command
 * in the file is left over from a writer that was killed.  If it has not been taken, it is
 * withdrawn first, since the process could take it while its fields are overwritten.  If it has
 * been taken, it is still being carried out. */
static enum steer_answer ask_and_wait(const struct process *process, struct rs_commands *file,
                                      struct rs_commands *command, uint64_t wait_ns,
                                      uint64_t until_ns)
{
    enum steer_answer answer;

    command->has_thread = file->has_thread;
    (void)withdraw(file);
    if (!step_ends(process, file, RS_COMMAND_TAKEN, until_ns))
        return why_not_taken(process, STEER_BUSY);
    ask_process(file, command);
    answer = wait_for(process, file, wait_ns, until_ns);
    if (answer == STEER_DONE)
        copy_answer(command, file);
    return answer;
}

/* Returns a copy of the list that the process has written into its page; NULL if its place is
 * invalid.  The caller has the lock of the file for commands, so no other writer asks for a list
 * meanwhile. */
static char *copy_list(const struct process *process, const struct rs_commands *command)
{
    uint64_t offset = command->before_bytes, length = command->after_bytes;
    char *list = NULL;

    if (command->result == 0 && length <= RS_LIVE_LIST_BYTES &&
        offset <= RS_PUBLISHED_BYTES - length)
        list = tool_grow(NULL, length + 1);
    if (list) {
        memcpy(list, (const char *)process->file + offset, length);
        list[length] = '\0';
    }
    return list;
}

static enum steer_answer hand_over(const struct process *process, struct rs_commands *command,
                                   uint64_t wait_ns, char **list)
{
    uint64_t until_ns = rs_clock_ns() + wait_ns;
    enum steer_answer answer = STEER_LACKING;
    struct sigaction before[ENDINGS];
    void *file = MAP_FAILED;
    int fd = open_commands(process);

    if (fd < 0 && process_answer_of(fd) == PROCESS_LACKING)
        return STEER_LACKING;
    if (fd < 0)
        return process_answer_of(fd) == PROCESS_GONE || process_is_ending(process) ? STEER_GONE
                                                                                   : STEER_REFUSED;
    if (!lock_in_time(fd, until_ns))
        answer = errno == EWOULDBLOCK ? STEER_BUSY : STEER_LACKING;
    else
        file = mmap(NULL, RS_COMMANDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file != MAP_FAILED) {
        catch_signals(before);
        answer = ask_and_wait(process, file, command, wait_ns, until_ns);
        release_signals(before);
        if (list && answer == STEER_DONE)
            *list = copy_list(process, command);
        munmap(file, RS_COMMANDS_BYTES);
    }
    close(fd);
    return answer;
}

/* Prints why the answer is not STEER_DONE.  Returns the exit code. */
static int say_answer(const struct process *process, enum steer_answer answer,
                      const struct rs_commands *command)
{
    static const char *const texts[] = {
        [STEER_STUCK] =
            "has begun to carry out the command, but has not finished in time; it may still finish",
        [STEER_BUSY] = "is busy with another command: try again",
        [STEER_GONE] = "has ended",
        [STEER_REFUSED] =
            ("accepts no commands: it belongs to another user (run this command as that user), "
             "or it has closed the file descriptor through which commands reach it (start it "
             "again)"),
    };
    int number = process->number, device = (int)command->device;

    if (answer == STEER_INTERRUPTED)
        tool_say("interrupted; nothing was changed on device %d of process %d", device, number);
    else if (answer == STEER_LATE)
        tool_say(
            command->kind == RS_COMMAND_LIST
                ? "process %d did not answer in time, so its memory on device %d is not listed%s"
                : "process %d did not answer in time, so nothing was changed on device %d%s",
            number, device,
            command->has_thread
                ? "; try a longer --wait"
                : ": it answers at calls such as cudaMalloc; try a longer --wait, or start it "
                  "with RMM_CONTROL=thread");
    else
        tool_say("process %d %s", number,
                 answer == STEER_LACKING ? process_answer_text(PROCESS_LACKING) : texts[answer]);
    return answer == STEER_GONE || answer == STEER_REFUSED || answer == STEER_LACKING ? TOOL_FINDING
                                                                                      : TOOL_LATE;
}

int steer(const struct steer_target *target, struct rs_commands *command, char **list)
{
    enum steer_answer answer = hand_over(&target->process, command, target->wait_ns, list);
    int code;

    if (answer != STEER_DONE) {
        code = say_answer(&target->process, answer, command);
        steer_end_if_interrupted();
        return code;
    }
    rs_plain_make(command->text);
    if (command->result == 0)
        return TOOL_OK;
    tool_say("process %d, device %d: %s", target->process.number, (int)command->device,
             command->text);
    return TOOL_FINDING;
}

/* ---- the process and its devices ---- */

static void add_target_device(struct steer_target *target, int device, uint64_t total_bytes)
{
    for (int i = 0; i < target->device_count; i++)
        if (target->devices[i] == device)
            return;
    /* A device's number is below RS_DEVICES_MAX. */
    RS_ASSERT(target->device_count < RS_DEVICES_MAX);
    target->devices[target->device_count] = device;
    target->total_bytes[target->device_count++] = total_bytes;
}

static void list_devices(struct steer_target *target)
{
    static struct publication page;
    int device = target->device;

    if (publication_read_all(&page, target->process.file))
        for (size_t i = 0; i < page.count; i++)
            if (device < 0 || page.stacks[i].device == device)
                add_target_device(target, page.stacks[i].device,
                                  publication_stack(&page, &page.stacks[i])->device_total_bytes);
    snprintf(target->program, sizeof(target->program), "%s", page.program);
    if (device >= 0)
        add_target_device(target, device, 0);
    publication_release(&page);
}

int steer_open(struct steer_target *target)
{
    int number = rs_process_parse(target->number);
    enum process_answer answer;

    if (!number) {
        tool_say("'%s' is not a process ID; `rmmshim ls` lists the processes", target->number);
        return TOOL_USAGE;
    }
    answer = process_open(number, &target->process);
    if (answer == PROCESS_SERVED)
        list_devices(target);
    if (target->device_count > 0)
        return TOOL_OK;
    if (answer == PROCESS_SERVED)
        tool_say("process %d has used no device yet: name one with --device", number);
    else
        tool_say("process %d %s", number, process_answer_text(answer));
    process_close(&target->process);
    return TOOL_FINDING;
}

/* ---- the command line ---- */

static bool parse_size_of(const char *name, const char *text, struct rs_size *size)
{
    const struct rs_option *option = &rs_variables[RS_VARIABLE_LIMIT].option;
    struct rs_diagnostics diagnostics = tool_diagnostics();
    struct rs_source source = {name, text};
    struct rs_option_value value = {.given = false};

    if (!rs_option_parse(option, option->type, &source, text, text + strlen(text), &diagnostics,
                         &value))
        return false;
    *size = value.size;
    if (size->kind != RS_SIZE_OF_FREE)
        return true;
    tool_say("%s=%s: a percentage of the free memory cannot be used here; give bytes, as in 6GiB",
             name, text);
    return false;
}

bool steer_parse(char **arguments, const char *value_option, bool *flag,
                 struct steer_target *target)
{
    const char *device = NULL, *wait = NULL;
    const struct tool_option options[] = {
        {.name = "--device", .value = &device},
        {.name = "--wait", .value = &wait},
        {.name = value_option, .flag = flag, .value = &target->value},
        {.name = NULL},
    };

    *target = (struct steer_target){.device = -1, .wait_ns = WAIT_NS};
    if (!tool_take_options(arguments, true, options) ||
        (device && !tool_parse_device(device, &target->device)) ||
        (wait && !tool_parse_seconds("--wait", wait, 0, &target->wait_ns)))
        return false;
    target->number = *arguments;
    if (!*arguments) {
        tool_say("no process ID given; `rmmshim ls` lists the processes");
        return false;
    }
    arguments++;
    if (!value_option && *arguments)
        target->value = *arguments++;
    return tool_has_no_more(arguments);
}

/* ---- rmmshim limit ---- */

/* Returns a limit as text: "none" or "6.00 GiB". */
static const char *limit_text(uint64_t bytes)
{
    return bytes ? tool_bytes(bytes) : "none";
}

static void print_limit(const struct steer_target *target, const struct rs_commands *command)
{
    printf("%s [%d] device %d: limit %s (was %s); holds %s", target->program,
           target->process.number, (int)command->device, limit_text(command->after_bytes),
           limit_text(command->before_bytes), tool_bytes(command->held_bytes));
    if (command->after_bytes && command->held_bytes > command->after_bytes)
        printf(", %s above the limit: memory in use stays, and the process gets no more from the "
               "driver until it holds less than the limit",
               tool_bytes(command->held_bytes - command->after_bytes));
    printf("%s%s\n", command->text[0] ? "; " : "", command->text);
}

static bool resolve_for_device(const struct steer_target *target, int index,
                               const struct rs_size *size, uint64_t *bytes)
{
    uint64_t total_bytes = target->total_bytes[index];

    if (size->kind != RS_SIZE_BYTES && !total_bytes) {
        tool_say("device %d: the size of its memory is not known yet, so a percentage cannot be "
                 "used: give bytes, as in 6GiB",
                 target->devices[index]);
        return false;
    }
    /* A command with 0 bytes would remove the limit, so a percentage that rounds down to 0 becomes
     * the smallest limit, as in RMM_LIMIT. */
    *bytes = rs_max(rs_size_resolve(*size, total_bytes, total_bytes), 1);
    return true;
}

/* Gives the command for each device of the process, prints the answers, and closes the process.
 * Stops at the first failure, and returns its exit code. */
static int
steer_each(struct steer_target *target, const struct rs_commands *asked, const struct rs_size *size,
           void (*print)(const struct steer_target *target, const struct rs_commands *command))
{
    int code = TOOL_OK;

    for (int i = 0; i < target->device_count && code == TOOL_OK; i++) {
        struct rs_commands command = *asked;
        command.device = target->devices[i];
        if (size && !resolve_for_device(target, i, size, &command.bytes)) {
            code = TOOL_FINDING;
            break;
        }
        code = steer(target, &command, NULL);
        if (code == TOOL_OK)
            print(target, &command);
        steer_end_if_interrupted();
    }
    process_close(&target->process);
    return code;
}

static int limit(char **arguments)
{
    const struct rs_commands command = {.kind = RS_COMMAND_LIMIT};
    struct steer_target target;
    struct rs_size size;
    bool has_limit;
    int code;

    if (!steer_parse(arguments, NULL, NULL, &target))
        return TOOL_USAGE;
    if (!target.value) {
        tool_say("no limit was given: expected a size such as 6GiB or 50%%, or the word none");
        return TOOL_USAGE;
    }
    has_limit = strcmp(target.value, "none") != 0;
    if (has_limit && !parse_size_of("limit", target.value, &size))
        return TOOL_USAGE;
    code = steer_open(&target);
    return code ? code : steer_each(&target, &command, has_limit ? &size : NULL, print_limit);
}

const struct tool_command tool_limit = {
    .name = "limit",
    .arguments = "PID SIZE|none [--device N] [--wait SECONDS]",
    .summary = "Changes the limit of a running process",
    .run = limit,
    .help =
        "Limits how much memory a process may take from the driver on a device. The new limit\n"
        "replaces RMM_LIMIT; `none` removes the limit. Unused memory above the limit goes back\n"
        "to the driver. Memory in use stays; while the process holds more than the limit, it gets\n"
        "no more from the driver.\n\n" STEER_HELP_OPTIONS STEER_HELP_WHEN
        "exit codes: 0 the limit is set; 1 it cannot be set; 2 wrong usage; 3 the process did not\n"
        "answer in time\n\n"
        "example: rmmshim limit 4711 6GiB",
};

/* ---- rmmshim trim ---- */

static void print_trim(const struct steer_target *target, const struct rs_commands *command)
{
    uint64_t before = command->before_bytes, after = command->after_bytes;

    printf("%s [%d] device %d: gave back %s, holds %s%s%s\n", target->program,
           target->process.number, (int)command->device,
           tool_bytes(before > after ? before - after : 0), tool_bytes(after),
           command->text[0] ? "; " : "", command->text);
}

static int trim_command(char **arguments)
{
    struct rs_commands command = {.kind = RS_COMMAND_TRIM};
    struct steer_target target;
    struct rs_size keep = {.number = 0};
    int code;

    if (!steer_parse(arguments, "--keep", NULL, &target) ||
        (target.value && !parse_size_of("--keep", target.value, &keep)))
        return TOOL_USAGE;
    if (keep.kind != RS_SIZE_BYTES) {
        tool_say("--keep %s: expected a size such as 1GiB, not a percentage", target.value);
        return TOOL_USAGE;
    }
    command.bytes = keep.number;
    code = steer_open(&target);
    return code ? code : steer_each(&target, &command, NULL, print_trim);
}

const struct tool_command tool_trim = {
    .name = "trim",
    .arguments = "PID [--keep SIZE] [--device N] [--wait SECONDS]",
    .summary = "Makes a running process give back to the driver the memory that it does not use",
    .run = trim_command,
    .help =
        "Makes the process return unused memory to the driver.\n\n"
        "  --keep SIZE     how much unused memory it may keep (default 0)\n" STEER_HELP_OPTIONS
            STEER_HELP_WHEN
        "exit codes: 0 the memory is given back; 1 it cannot be given back; 2 wrong usage; 3 the\n"
        "process did not answer in time\n\n"
        "example: rmmshim trim 4711 --keep 512MiB",
};
