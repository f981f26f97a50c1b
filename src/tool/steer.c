/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/steer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "config/variables.h"
#include "report/leaks.h"
#include "report/plain.h"
#include "shared/futex.h"
#include "shared/published.h"
#include "tool/publication.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS       2000000000ull /* for the process to take a command */
#define TAKEN_WAIT_NS 3000000000ull /* for its answer then, at least: a trim takes time */

enum {
    TURN_NS = 20 * 1000 * 1000,  /* between two looks whether another's command is over */
    LOOK_NS = 200 * 1000 * 1000, /* between two looks whether the process is there */
};

enum steer_answer {
    STEER_DONE,        /* the process has answered */
    STEER_LATE,        /* the process made no call in time; the command is withdrawn */
    STEER_STUCK,       /* the process took the command and has not ended it: it may yet */
    STEER_BUSY,        /* somebody else's command is under way */
    STEER_GONE,        /* the process ended meanwhile */
    STEER_REFUSED,     /* it has no file for commands, or not one that this user may write */
    STEER_INTERRUPTED, /* a signal ends this process; the command is withdrawn */
};

/* ---- the file ---- */

static bool is_commands_of(int fd, void *data)
{
    const struct process *process = data;
    struct rs_commands head;
    struct stat status;
    int own = process_own_number(process);

    return fstat(fd, &status) == 0 && status.st_size == RS_COMMANDS_BYTES &&
           rs_file_cannot_shrink(fd) &&
           pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
           strncmp(head.layout, RS_COMMANDS_LAYOUT, sizeof(head.layout)) == 0 &&
           (!own || head.process == own);
}

/* One writer at a time. */
static bool lock_in_time(int fd, uint64_t until_ns)
{
    const struct timespec turn = {0, TURN_NS};

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || rs_clock_ns() >= until_ns)
            return false;
        nanosleep(&turn, NULL);
    }
    return true;
}

/* ---- interruption ---- */

static const int endings[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

enum { ENDINGS = RS_ARRAY_LENGTH(endings) };

static volatile sig_atomic_t interrupted; /* the signal that ends this process; 0: none */

static void note_signal(int number)
{
    interrupted = number;
}

/* A signal that would end this process while a command is asked ends it after the command is
 * withdrawn: the process would carry it out at a later call.  One that is ignored stays so. */
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

/* Waits while the step is `step`.  False when the time is over, or the process, or this one. */
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

/* True when there was a command that the process had not taken yet. */
static bool withdraw(struct rs_commands *file)
{
    uint32_t asked = RS_COMMAND_ASKED;

    return atomic_compare_exchange_strong(&file->step, &asked, RS_COMMAND_NONE);
}

static enum steer_answer why_not(const struct process *process, enum steer_answer otherwise)
{
    return process_has_ended(process) ? STEER_GONE : interrupted ? STEER_INTERRUPTED : otherwise;
}

static void ask(struct rs_commands *file, const struct rs_commands *command)
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
        return why_not(process, STEER_LATE);
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

/* The caller has the file's lock, so a command that is there has lost its writer, who was killed.
 * Where it is not taken it is withdrawn first: else the process could take it while its fields are
 * overwritten.  Where it is taken it is still under way. */
static enum steer_answer ask_and_wait(const struct process *process, struct rs_commands *file,
                                      struct rs_commands *command, uint64_t wait_ns,
                                      uint64_t until_ns)
{
    enum steer_answer answer;

    command->has_thread = file->has_thread;
    (void)withdraw(file);
    if (!step_ends(process, file, RS_COMMAND_TAKEN, until_ns))
        return why_not(process, STEER_BUSY);
    ask(file, command);
    answer = wait_for(process, file, wait_ns, until_ns);
    if (answer == STEER_DONE)
        copy_answer(command, file);
    return answer;
}

/* A copy of the list that the process has written into its page; NULL where it cannot be.  The
 * caller has the lock of the file for commands, so no other one asks for a list meanwhile. */
static char *copy_list(const struct process *process, const struct rs_commands *command)
{
    uint64_t offset = command->before_bytes, length = command->after_bytes;
    char *list = NULL;

    if (command->result == 0 && length <= RS_LIVE_LIST_BYTES &&
        offset <= RS_PUBLISHED_BYTES - length)
        list = malloc(length + 1);
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
    enum steer_answer answer = STEER_REFUSED;
    struct sigaction before[ENDINGS];
    enum process_answer found;
    void *file = MAP_FAILED;
    int fd = process_open_file(process, RS_COMMANDS_NAME, O_RDWR, is_commands_of,
                               (void *)(uintptr_t)process, &found);

    if (fd < 0)
        return found == PROCESS_GONE || process_directory_is_ending(process->directory)
                   ? STEER_GONE
                   : STEER_REFUSED;
    if (!lock_in_time(fd, until_ns))
        answer = STEER_BUSY;
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

/* Says why the answer is not STEER_DONE.  The exit code. */
static int say(const struct process *process, enum steer_answer answer,
               const struct rs_commands *command)
{
    int number = process->number, device = (int)command->device;

    switch (answer) {
    case STEER_DONE:
        return TOOL_OK;
    case STEER_LATE:
        tool_say("process %d made no CUDA call in time, and %s device %d%s", number,
                 command->kind == RS_COMMAND_LIST ? "has not listed what it holds of"
                                                  : "nothing was changed on",
                 device,
                 command->has_thread
                     ? ""
                     : "; with RMM_CONTROL=thread it takes commands between its calls");
        return TOOL_LATE;
    case STEER_STUCK:
        tool_say("process %d has taken the command, but is not done with it yet", number);
        return TOOL_LATE;
    case STEER_BUSY:
        tool_say("process %d is busy with another command: try again", number);
        return TOOL_LATE;
    case STEER_GONE:
        tool_say("process %d has ended", number);
        return TOOL_FINDING;
    case STEER_REFUSED:
        tool_say("process %d takes no commands: its file for them is closed, or another user's",
                 number);
        return TOOL_FINDING;
    case STEER_INTERRUPTED:
        tool_say("interrupted; nothing was changed on device %d of process %d", device, number);
        return TOOL_LATE;
    }
    return TOOL_FINDING;
}

int steer(const struct steer_target *target, struct rs_commands *command, uint64_t wait_ns)
{
    return steer_list(target, command, wait_ns, NULL);
}

int steer_list(const struct steer_target *target, struct rs_commands *command, uint64_t wait_ns,
               char **list)
{
    enum steer_answer answer = hand_over(&target->process, command, wait_ns, list);
    int code;

    if (answer != STEER_DONE) {
        code = say(&target->process, answer, command);
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

static void add_device(struct steer_target *target, int device, uint64_t total_bytes)
{
    for (int i = 0; i < target->device_count; i++)
        if (target->devices[i] == device)
            return;
    target->devices[target->device_count] = device;
    target->total_bytes[target->device_count++] = total_bytes;
}

static void list_devices(struct steer_target *target, int device)
{
    struct publication *page = calloc(1, sizeof(*page));

    if (page && publication_read(page, target->process.file))
        for (size_t i = 0; i < page->count; i++)
            if (device < 0 || page->stacks[i].device == device)
                add_device(target, page->stacks[i].device,
                           publication_stack(page, &page->stacks[i])->device_total_bytes);
    if (page)
        snprintf(target->program, sizeof(target->program), "%s", page->program);
    if (device >= 0)
        add_device(target, device, 0);
    if (page)
        publication_release(page);
    free(page);
}

bool steer_open(const char *number, int device, struct steer_target *target, int *code)
{
    int parsed = process_parse(number);
    enum process_answer answer;

    *target = (struct steer_target){.device_count = 0};
    *code = parsed ? TOOL_FINDING : TOOL_USAGE;
    if (!parsed) {
        tool_say("'%s' is not a process ID; 'rmmshim ls' lists them", number);
        return false;
    }
    answer = process_open(parsed, &target->process);
    if (answer != PROCESS_SERVED) {
        tool_say("process %d %s", parsed, process_answer_text(answer));
        return false;
    }
    list_devices(target, device);
    if (target->device_count > 0) {
        *code = TOOL_OK;
        return true;
    }
    tool_say("process %d has used no device yet: name one with --device", parsed);
    process_close(&target->process);
    return false;
}

/* ---- the command line ---- */

static bool parse_device(const char *text, int *device)
{
    char *end;
    long number = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;

    if (number < 0 || *end || number >= RS_DEVICES_MAX) {
        tool_say("--device %s: not the number of a device", text);
        return false;
    }
    *device = (int)number;
    return true;
}

static bool parse_wait(const char *text, uint64_t *wait_ns)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !(seconds >= 0 && seconds <= 3600)) {
        tool_say("--wait %s: not a number of seconds from 0 to 3600", text);
        return false;
    }
    *wait_ns = (uint64_t)(seconds * 1e9);
    return true;
}

static bool take_option(char ***arguments, const char *value_option, bool *is_json,
                        struct steer_words *words)
{
    const char *known[] = {"--device", "--wait", is_json ? "--json" : value_option, NULL}, *value;
    bool failed = false;

    if ((value = tool_option_value(arguments, "--device", &failed)))
        return parse_device(value, &words->device);
    if (!failed && (value = tool_option_value(arguments, "--wait", &failed)))
        return parse_wait(value, &words->wait_ns);
    if (!failed && value_option && (value = tool_option_value(arguments, value_option, &failed))) {
        words->value = value;
        return true;
    }
    if (!failed && is_json && strcmp(**arguments, "--json") == 0)
        return *is_json = true;
    if (!failed)
        tool_say_unknown("option", **arguments, known);
    return false;
}

bool steer_parse(char **arguments, const char *value_option, bool *is_json,
                 struct steer_words *words)
{
    *words = (struct steer_words){.device = -1, .wait_ns = WAIT_NS};
    for (; *arguments; arguments++) {
        if (**arguments == '-') {
            if (!take_option(&arguments, value_option, is_json, words))
                return false;
        } else if (!words->number) {
            words->number = *arguments;
        } else if (!value_option && !words->value) {
            words->value = *arguments;
        } else {
            tool_say("unexpected argument '%s'", *arguments);
            return false;
        }
    }
    if (!words->number)
        tool_say("no process ID; 'rmmshim ls' lists them");
    return words->number != NULL;
}

bool steer_parse_size(const char *name, const char *text, struct rs_size *size)
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
    tool_say("%s=%s: a percentage of the free memory cannot be used here", name, text);
    return false;
}
