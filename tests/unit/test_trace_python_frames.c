/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of an interpreter that is made by hand, whole and damaged.  Whether the offsets are those
 * of real interpreters, tests/integration/test_python_module.py and others show. */
#include "unit.h"

#include "driver/driver.h"
#include "trace/python_frames.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* As of Python 3.12, whose frames have the address of an instruction, and of 3.10, where it is a
 * number of units. */
static const struct layout {
    const char *version;
    bool has_owner, has_holder, has_address;
    unsigned state_frame, previous, code, instruction, owner;
    unsigned filename, name, firstlineno, linetable, instructions, ascii_text, wide_text;
} v3_12 = {"3.12.1 (main)", true, true, true, 56, 8, 0, 56, 70, 112, 120, 68, 136, 192, 40, 56},
  v3_10 = {"3.10.9 (main)", false, false, false, 24, 24, 32, 96, 0, 104, 112, 40, 120, 0, 48, 72};

enum { SHORT = 12, CODE_INSTRUCTIONS = 50, OWNED_BY_C = 3, ONE_PIECE = 1 << 5, ASCII = 1 << 6 };

static const struct layout *layout = &v3_12;

/* ---- the interpreter ---- */

static _Alignas(16) char memory[1 << 16];
static size_t used;
static char code_type, text_type, bytes_type, first_interpreter, second_interpreter;
static char thread_state[128], holder[8];
static char *innermost;
static bool is_initialised, has_state, has_lock, has_second;
static const char *missing; /* a symbol that the program does not have */

static const char *version(void)
{
    return layout->version;
}

static int initialised(void)
{
    return is_initialised;
}

static void *state_of_thread(void)
{
    return has_state ? thread_state : NULL;
}

static void *state_with_lock(void)
{
    return has_lock ? thread_state : NULL;
}

static void *newest_interpreter(void)
{
    return has_second ? &second_interpreter : &first_interpreter;
}

static void *main_interpreter(void)
{
    return &first_interpreter;
}

/* Two bytes are an instruction, and each is a line. */
static int line_at(void *code, int offset_bytes)
{
    int first;

    memcpy(&first, (char *)code + layout->firstlineno, sizeof(first));
    return first + offset_bytes / 2;
}

static void *find(void *handle, const char *symbol)
{
    static const struct {
        const char *name;
        void (*function)(void);
        void *object;
    } symbols[] = {
        {"Py_GetVersion", (void (*)(void))version, NULL},
        {"Py_IsInitialized", (void (*)(void))initialised, NULL},
        {"PyGILState_GetThisThreadState", (void (*)(void))state_of_thread, NULL},
        {"PyInterpreterState_Head", (void (*)(void))newest_interpreter, NULL},
        {"PyInterpreterState_Main", (void (*)(void))main_interpreter, NULL},
        {"PyCode_Addr2Line", (void (*)(void))line_at, NULL},
        {"_PyThreadState_UncheckedGet", (void (*)(void))state_with_lock, NULL},
        {"PyCode_Type", NULL, &code_type},
        {"PyUnicode_Type", NULL, &text_type},
        {"PyBytes_Type", NULL, &bytes_type},
    };
    void *found = NULL;

    (void)handle;
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
        if (!strcmp(symbols[i].name, symbol) && !(missing && !strcmp(missing, symbol))) {
            memcpy(&found, &symbols[i].function, sizeof(found));
            found = found ? found : symbols[i].object;
        }
    return found;
}

rs_dlsym_function *__wrap_rs_real_dlsym(void);

rs_dlsym_function *__wrap_rs_real_dlsym(void)
{
    return find;
}

/* ---- process_vm_readv, which a container may forbid ---- */

static bool is_forbidden;

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long here_count,
                                const struct iovec *there, unsigned long there_count,
                                unsigned long flags);
ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long here_count,
                                const struct iovec *there, unsigned long there_count,
                                unsigned long flags);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long here_count,
                                const struct iovec *there, unsigned long there_count,
                                unsigned long flags)
{
    if (!is_forbidden)
        return __real_process_vm_readv(pid, here, here_count, there, there_count, flags);
    errno = EPERM;
    return -1;
}

/* ---- objects ---- */

static void put_pointer(char *object, unsigned offset, const void *pointer)
{
    memcpy(object + offset, &pointer, sizeof(pointer));
}

static void put_number(char *object, unsigned offset, uint32_t number)
{
    memcpy(object + offset, &number, sizeof(number));
}

static void put_size(char *object, unsigned offset, size_t size)
{
    memcpy(object + offset, &size, sizeof(size));
}

static char *object_of(const void *type, size_t bytes)
{
    char *object = memory + used;

    used += (bytes + 15) / 16 * 16;
    if (used > sizeof(memory))
        abort();
    put_pointer(object, 8, type);
    return object;
}

/* A text of characters of 1, 2 or 4 bytes each. */
static char *wide_text(const void *characters, size_t count, unsigned width, bool is_ascii)
{
    unsigned at = is_ascii ? layout->ascii_text : layout->wide_text;
    char *object = object_of(&text_type, at + count * width + 16);

    put_size(object, 16, count);
    put_number(object, 32, ONE_PIECE | (is_ascii ? ASCII : 0) | width << 2);
    memcpy(object + at, characters, count * width);
    return object;
}

static char *text(const char *characters)
{
    return wide_text(characters, strlen(characters), 1, true);
}

static char *code_of(char *filename, char *name, unsigned first_line)
{
    char *code = object_of(&code_type, 512), *table = object_of(&bytes_type, 64);

    put_size(table, 16, SHORT);
    put_size(code, 16, CODE_INSTRUCTIONS);
    put_pointer(code, layout->filename, filename);
    put_pointer(code, layout->name, name);
    put_number(code, layout->firstlineno, first_line);
    put_pointer(code, layout->linetable, table);
    return code;
}

static void put_instruction(char *frame, char *code, int number)
{
    if (layout->has_address)
        put_pointer(frame, layout->instruction, code + layout->instructions + 2 * number);
    else
        put_number(frame, layout->instruction, (uint32_t)number);
}

/* A frame inside the others. */
static char *enter(char *code, int instruction)
{
    char *frame = object_of(NULL, 128);

    put_pointer(frame, layout->previous, innermost);
    put_pointer(frame, layout->code, code);
    put_instruction(frame, code, instruction);
    innermost = frame;
    put_pointer(holder, 0, innermost);
    put_pointer(thread_state, layout->state_frame, layout->has_holder ? holder : innermost);
    return frame;
}

static void enter_c(void)
{
    char *frame = enter(NULL, 0);

    frame[layout->owner] = OWNED_BY_C;
}

static char *file, *name, *code, *frame;

static void begin(const struct layout *of)
{
    layout = of;
    is_initialised = has_state = has_lock = true;
    file = text("train.py");
    name = text("step");
    code = code_of(file, name, 10);
    frame = enter(code, 5);
}

/* ---- scenes: a process each, as what was found is kept ---- */

#define OUGHT(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_message("line %d, not so: %s\n", __LINE__, #condition);                          \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void play(void (*scene)(void))
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        scene();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#define SCENE(rule)                                                                                \
    static void scene_##rule(void);                                                                \
    TEST(rule)                                                                                     \
    {                                                                                              \
        play(scene_##rule);                                                                        \
    }                                                                                              \
    static void scene_##rule(void)

static const struct rs_line *lines[RS_PYTHON_FRAMES_MAX];

static unsigned ask(void)
{
    memset(lines, 0, sizeof(lines));
    return rs_python_lines(RS_UNWIND_OUTERMOST, lines);
}

static bool says(const char *line)
{
    return ask() == 1 && !strcmp(lines[0]->text, line);
}

/* From then on memory is read directly. */
static void be_trusted(void)
{
    for (int i = 0; i < 4; i++)
        OUGHT(says("train.py:15 in step"));
}

/* ---- whole ones ---- */

SCENE(frames_are_told_from_the_innermost_on)
{
    begin(&v3_12);
    enter_c();
    enter(code_of(file, text("loss"), 100), 0);
    for (int i = 0; i < 6; i++) { /* some of them read carefully, some directly */
        OUGHT(ask() == 2);
        OUGHT(!strcmp(lines[0]->text, "train.py:100 in loss"));
        OUGHT(!strcmp(lines[1]->text, "train.py:15 in step"));
    }
}

SCENE(no_more_frames_are_told_than_asked_for)
{
    begin(&v3_12);
    for (int i = 0; i < 20; i++)
        enter(code, 0);
    OUGHT(ask() == RS_PYTHON_FRAMES_MAX);
}

SCENE(an_older_version_has_other_structures)
{
    begin(&v3_10);
    be_trusted();
    OUGHT(says("train.py:15 in step"));
    put_instruction(frame, code, -1); /* before the first instruction */
    OUGHT(says("train.py:9 in step"));
}

SCENE(names_are_written_as_utf_8)
{
    static const uint16_t two[] = {0xe9, 0x20ac, 'x'};
    static const uint32_t four[] = {0x1f600, '\n', 0xdc80};

    begin(&v3_12);
    put_pointer(code, layout->filename, wide_text(two, 3, 2, false));
    put_pointer(code, layout->name, wide_text(four, 3, 4, false));
    for (int i = 0; i < 6; i++)
        OUGHT(says("\xc3\xa9\xe2\x82\xacx:15 in \xf0\x9f\x98\x80?\xed\xb2\x80"));
    put_pointer(code, layout->name, wide_text("\xfc", 1, 1, false));
    OUGHT(says("\xc3\xa9\xe2\x82\xacx:15 in \xc3\xbc"));
}

SCENE(a_name_that_is_too_long_ends_the_list)
{
    static char many[RS_LINE_BYTES_MAX + 1];

    begin(&v3_12);
    enter(code_of(wide_text(many, sizeof(many), 1, true), name, 1), 0);
    OUGHT(ask() == 0);
    enter(code_of(file, text("loss"), 100), 0);
    OUGHT(says("train.py:100 in loss"));
}

/* ---- an interpreter that is not there, or is another one ---- */

SCENE(an_interpreter_that_comes_late_is_found)
{
    begin(&v3_12);
    missing = "PyBytes_Type";
    OUGHT(ask() == 0);
    missing = NULL;
    for (int i = 1; i < 256; i++) /* it is not looked for each time */
        OUGHT(ask() == 0);
    OUGHT(rs_python_address() == &code_type);
    OUGHT(says("train.py:15 in step"));
}

static void without(void)
{
    begin(&v3_12);
    OUGHT(ask() == 0);
}

TEST(no_interpreter_lacks_a_function)
{
    static const char *const names[] = {"Py_GetVersion",
                                        "Py_IsInitialized",
                                        "PyGILState_GetThisThreadState",
                                        "PyInterpreterState_Head",
                                        "PyInterpreterState_Main",
                                        "PyCode_Addr2Line",
                                        "_PyThreadState_UncheckedGet",
                                        "PyCode_Type",
                                        "PyUnicode_Type",
                                        "PyBytes_Type"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        missing = names[i];
        play(without);
    }
    missing = NULL;
}

static void of_unknown_version(void)
{
    struct layout unknown = v3_12;

    unknown.version = missing;
    missing = NULL;
    begin(&unknown);
    OUGHT(ask() == 0);
}

TEST(the_frames_of_an_unknown_version_are_not_read)
{
    static const char *const versions[] = {"3.7.3", "3.15.0a1", "4.12.1", "2.7.18"};

    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        missing = versions[i];
        play(of_unknown_version);
    }
    missing = NULL;
}

/* ---- whose frames they are ---- */

SCENE(a_thread_without_a_state_has_no_frames)
{
    begin(&v3_12);
    has_state = has_lock = false;
    OUGHT(ask() == 0);
    has_state = true;
    OUGHT(says("train.py:15 in step"));
    is_initialised = false;
    OUGHT(ask() == 0);
}

SCENE(beside_a_second_interpreter_only_the_lock_tells_whose_frames_they_are)
{
    begin(&v3_12);
    has_second = true;
    OUGHT(says("train.py:15 in step"));
    has_lock = false;
    OUGHT(ask() == 0);
    has_second = false;
    OUGHT(says("train.py:15 in step"));
}

static void handle(int number)
{
    (void)number;
}

SCENE(in_a_signals_handler_no_frame_is_sure)
{
    sigset_t one, other;

    begin(&v3_12);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigemptyset(&other);
    sigaddset(&other, SIGUSR2);
    OUGHT(rs_python_lines(RS_UNWIND_HANDLER, lines) == 0);
    OUGHT(rs_python_lines(RS_UNWIND_CUT, lines) == 1);
    OUGHT(rs_python_lines(RS_UNWIND_ELSEWHERE, lines) == 1);
    signal(SIGUSR1, handle);
    signal(SIGUSR2, SIG_IGN);
    sigprocmask(SIG_SETMASK, &other, NULL); /* no handler is called for this one */
    OUGHT(rs_python_lines(RS_UNWIND_CUT, lines) == 1);
    sigprocmask(SIG_SETMASK, &one, NULL); /* as in the handler */
    OUGHT(rs_python_lines(RS_UNWIND_CUT, lines) == 0);
    OUGHT(rs_python_lines(RS_UNWIND_OUTERMOST, lines) == 1); /* the walk has seen the stack */
    signal(SIGUSR1, SIG_DFL);
    OUGHT(rs_python_lines(RS_UNWIND_CUT, lines) == 1);
}

static volatile unsigned counted_on_other_stack;

static void count_on_other_stack(int number)
{
    (void)number;
    counted_on_other_stack = rs_python_lines(RS_UNWIND_ELSEWHERE, lines);
}

SCENE(on_the_stack_for_signals_no_frame_is_sure)
{
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_flags = SA_ONSTACK | SA_NODEFER};

    begin(&v3_12);
    counted_on_other_stack = 99;
    action.sa_handler = count_on_other_stack;
    OUGHT(sigaltstack(&other, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    OUGHT(raise(SIGUSR1) == 0 && counted_on_other_stack == 0);
    OUGHT(rs_python_lines(RS_UNWIND_ELSEWHERE, lines) == 1);
}

/* ---- damaged ones ---- */

static const void *unmapped(void)
{
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    munmap(page, 4096);
    return page;
}

static void is_refused_once(char *object, unsigned offset, const void *damage)
{
    void *whole;

    memcpy(&whole, object + offset, sizeof(whole));
    put_pointer(object, offset, damage);
    OUGHT(ask() == 0);
    put_pointer(object, offset, whole);
}

/* No frames are told while the structure is damaged, and again when it is whole. */
static void is_refused(char *object, unsigned offset, const void *damage)
{
    is_refused_once(object, offset, damage);
    OUGHT(says("train.py:15 in step"));
}

static void refuse_what_is_missing(void)
{
    is_refused(code, layout->filename, NULL);
    is_refused(code, layout->name, NULL);
    is_refused(code, layout->linetable, NULL);
    is_refused(frame, layout->code, NULL);
}

/* A line that was made once is kept, so only before that is every type looked at. */
SCENE(objects_of_other_types_are_not_read)
{
    begin(&v3_12);
    is_refused_once(file, 8, &bytes_type);
    is_refused_once(name, 8, &code_type);
    is_refused_once(code, layout->linetable, name);
    is_refused(code, 8, &bytes_type);
}

SCENE(objects_that_are_missing_are_not_read)
{
    begin(&v3_12);
    refuse_what_is_missing();
}

SCENE(an_instruction_outside_of_its_code_has_no_line)
{
    begin(&v3_12);
    put_instruction(frame, code, CODE_INSTRUCTIONS);
    OUGHT(ask() == 0);
    put_instruction(frame, code, -1);
    OUGHT(ask() == 0);
    put_instruction(frame, code, CODE_INSTRUCTIONS - 1);
    OUGHT(says("train.py:59 in step"));
}

SCENE(text_that_is_stored_otherwise_is_not_read)
{
    begin(&v3_12);
    put_number(name, 32, ONE_PIECE | ASCII | 3 << 2); /* characters of 3 bytes */
    OUGHT(ask() == 0);
    put_number(name, 32, ASCII | 1 << 2); /* in two pieces */
    OUGHT(ask() == 0);
    put_number(file, 32, ONE_PIECE | 0 << 2); /* of none */
    OUGHT(ask() == 0);
}

SCENE(frames_without_end_are_not_followed)
{
    begin(&v3_12);
    enter_c();
    put_pointer(innermost, layout->previous, innermost);
    OUGHT(ask() == 0);
}

SCENE(no_memory_is_read_that_is_not_mapped)
{
    begin(&v3_12);
    is_refused(holder, 0, unmapped());
    is_refused(frame, layout->previous, unmapped());
    is_forbidden = true; /* and where the system call for it is forbidden */
    is_refused(holder, 0, unmapped());
    is_refused(code, layout->filename, unmapped());
}

SCENE(an_interpreter_that_disagrees_often_is_given_up)
{
    begin(&v3_12);
    put_pointer(code, 8, &bytes_type);
    for (int i = 0; i < 8; i++)
        OUGHT(ask() == 0);
    put_pointer(code, 8, &code_type);
    OUGHT(ask() == 0);
}

SCENE(a_trusted_interpreter_is_looked_at_all_the_same)
{
    begin(&v3_12);
    be_trusted();
    is_refused(code, 8, &bytes_type);
    refuse_what_is_missing();
    put_pointer(holder, 0, NULL);
    OUGHT(ask() == 0);
}

SCENE(the_error_number_is_kept)
{
    begin(&v3_12);
    is_refused(holder, 0, unmapped());
    put_pointer(holder, 0, unmapped());
    errno = EXDEV;
    OUGHT(ask() == 0 && errno == EXDEV);
}
