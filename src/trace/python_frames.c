/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/python_frames.h"

#include "driver/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Frames are read from the interpreter's own structures, as profilers do.  The interpreter's
 * functions would need Python's lock, which most bindings release around cudaMalloc, and they make
 * objects, which may run the program's finalizers.  A thread's frames do not change while it is
 * inside a function that Python called, and they keep their code objects, with names and tables of
 * lines, alive.
 *
 * The structures differ by version, and a program may have an interpreter of its own making.  So
 * the first chains are read by system calls, or after them, which fail where there is no memory,
 * and the type of each object is compared.  Only after AGREEMENTS whole chains is memory read
 * directly. */

/* ---- the interpreter ---- */

/* Where things lie in the structures of one version: bytes from the beginning of each.  The
 * versions' header files say it; a release never changes it. */
struct layout {
    unsigned minor;       /* of version 3.MINOR */
    unsigned state_frame; /* of a thread's state: its innermost frame */
    int holder_frame;     /* not negative: of what that points to instead, the frame */
    unsigned previous;    /* of a frame: the next outer one */
    unsigned code;        /* its code object; the lowest bits of the pointer may be marks */
    unsigned instruction; /* where it is in the code */
    int owner;            /* who made it, one byte; negative: there is none */
    unsigned filename, name, firstlineno, linetable; /* of a code object */
    unsigned first_instruction;     /* 0: the place in the code is a number, not an address */
    unsigned instruction_bytes;     /* of one unit of that number */
    unsigned ascii_text, wide_text; /* of a string: its characters */
};

static const struct layout layouts[] = {
    {8, 24, -1, 24, 32, 104, -1, 104, 112, 40, 120, 0, 1, 48, 72},
    {9, 24, -1, 24, 32, 104, -1, 104, 112, 40, 120, 0, 1, 48, 72},
    {10, 24, -1, 24, 32, 96, -1, 104, 112, 40, 120, 0, 2, 48, 72},
    {11, 56, 8, 48, 32, 56, 69, 112, 120, 72, 136, 184, 1, 48, 72},
    {12, 56, 0, 8, 0, 56, 70, 112, 120, 68, 136, 192, 1, 40, 56},
    {13, 72, -1, 8, 0, 56, 70, 112, 120, 68, 136, 200, 1, 40, 56},
    {14, 72, -1, 8, 0, 56, 74, 112, 120, 68, 136, 208, 1, 40, 56},
};

/* What all versions have in common. */
enum {
    OBJECT_TYPE = 8,
    TEXT_LENGTH = 16, /* of a string: how many characters */
    TEXT_STATE = 32,  /* its form, in bits */
    IS_ASCII = 1 << 6,
    IS_ONE_PIECE = 1 << 5,
    BYTES_LENGTH = 16,
    INSTRUCTIONS = 16,     /* of a code object with its instructions inside: how many */
    INSTRUCTION_BYTES = 2, /* of each */
    POINTER_MARKS = 3,
    OWNED_BY_INTERPRETER = 3, /* this and higher: an entry from C, no frame of a function */
    FRAMES_SEEN_MAX = 200,
};

/* All are in every version above.  None needs Python's lock or makes an object. */
#define PYTHON_FUNCTIONS(X)                                                                        \
    X(Py_GetVersion, const char *, (void))                                                         \
    X(Py_IsInitialized, int, (void))                                                               \
    X(PyGILState_GetThisThreadState, void *, (void))                                               \
    X(PyInterpreterState_Head, void *, (void)) /* the newest interpreter */                        \
    X(PyInterpreterState_Main, void *, (void))                                                     \
    X(PyCode_Addr2Line, int, (void *code, int offset_bytes))

static struct {
#define MEMBER(name, result, arguments) result(*name) arguments;
    PYTHON_FUNCTIONS(MEMBER)
#undef MEMBER
    void *(*current_state)(void);
    const void *PyCode_Type, *PyUnicode_Type, *PyBytes_Type;
    const struct layout *layout;
} python;

/* ISO C has no cast between object and function pointers; POSIX promises that the bits agree. */
static bool look_up_function(const char *name, void *function)
{
    void *symbol = rs_real_dlsym()(RTLD_DEFAULT, name);

    memcpy(function, &symbol, sizeof(symbol));
    return symbol;
}

static const struct layout *layout_of(const char *version)
{
    if (strncmp(version, "3.", 2) == 0)
        for (size_t i = 0; i < RS_ARRAY_LENGTH(layouts); i++)
            if (strtoul(version + 2, NULL, 10) == layouts[i].minor)
                return &layouts[i];
    return NULL;
}

static bool find_python(void)
{
    bool found = true;

#define FIND(name, ...) found = found && look_up_function(#name, &python.name);
    PYTHON_FUNCTIONS(FIND)
    FIND(PyCode_Type)
    FIND(PyUnicode_Type)
    FIND(PyBytes_Type)
#undef FIND
    found = found && (look_up_function("PyThreadState_GetUnchecked", &python.current_state) ||
                      look_up_function("_PyThreadState_UncheckedGet", &python.current_state));
    if (found)
        python.layout = layout_of(python.Py_GetVersion());
    return found;
}

/* An interpreter may be loaded late (a program that embeds one), so it is looked for again after
 * a miss: only every 256th time, since each miss walks all loaded objects. */
static bool is_present(void)
{
    enum { UNKNOWN, SEARCHING, PRESENT };
    static _Atomic int state;
    static _Atomic unsigned misses;
    int now = atomic_load_explicit(&state, memory_order_acquire);
    unsigned missed;

    if (RS_LIKELY(now == PRESENT))
        return true;
    missed = atomic_fetch_add_explicit(&misses, 1, memory_order_relaxed);
    if (missed % 256 != 0 || now == SEARCHING ||
        !atomic_compare_exchange_strong(&state, &now, SEARCHING))
        return false;
    now = find_python() ? PRESENT : UNKNOWN;
    atomic_store_explicit(&state, now, memory_order_release);
    return now == PRESENT;
}

/* Where the walk of the stack has not seen all of it, a handler is known by its own signal, which
 * is blocked, or by the stack that sigaltstack was given.  (One with SA_NODEFER that is neither
 * near nor there is not noticed.) */
static bool may_be_in_signal_handler(enum rs_unwind_end end)
{
    struct sigaction action;
    sigset_t blocked;
    stack_t other;

    if (end == RS_UNWIND_OUTERMOST || end == RS_UNWIND_HANDLER)
        return end == RS_UNWIND_HANDLER;
    if (end == RS_UNWIND_ELSEWHERE &&
        (sigaltstack(NULL, &other) != 0 || other.ss_flags & SS_ONSTACK))
        return true;
    if (pthread_sigmask(SIG_SETMASK, NULL, &blocked) != 0)
        return true;
    for (int number = 1; number < NSIG; number++)
        if (RS_UNLIKELY(sigismember(&blocked, number) == 1) &&
            sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN)
            return true;
    return false;
}

/* The state whose frames are those of the calling thread; NULL where that is not sure.
 *
 * A thread that has let go of Python's lock is in a function that Python called, and so is one that
 * holds it, unless a signal has interrupted the interpreter itself: that leaves frames half made.
 * A thread that has entered another interpreter has two states, and the one that is found here is
 * the wrong one, perhaps, unless it runs. */
static const void *state_of_this_thread(enum rs_unwind_end end)
{
    const void *state = NULL;
    bool is_sure;

    if (python.Py_IsInitialized())
        state = python.PyGILState_GetThisThreadState();
    if (!state)
        return NULL;
    if (python.current_state() == state) /* it holds the lock */
        is_sure = !may_be_in_signal_handler(end);
    else
        is_sure = python.PyInterpreterState_Head() == python.PyInterpreterState_Main();
    return is_sure ? state : NULL;
}

/* ---- reading ---- */

struct reader {
    bool is_careful;
    bool is_strange; /* the structures are not as expected, and reading has ended */
};

/* Makes a system call that changes nothing, as no signal mask is changed in the way -1.  The kernel
 * reads the word before it looks at that: EFAULT says that there is no memory, EINVAL that there
 * is.
 */
static RS_COLD bool has_word(uintptr_t address)
{
    uintptr_t word = address / sizeof(uint64_t) * sizeof(uint64_t);

    return syscall(SYS_rt_sigprocmask, -1, word, NULL, sizeof(uint64_t)) != 0 && errno == EINVAL;
}

/* Containers may forbid the first way, with whatever error. */
static RS_COLD void read_carefully(struct reader *reader, uintptr_t from, void *into, size_t bytes)
{
    struct iovec here = {into, bytes}, there = {(void *)from, bytes};

    RS_ASSERT(bytes > 0 && bytes <= sizeof(uint64_t));
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)bytes)
        return;
    reader->is_strange |= errno == EFAULT || !has_word(from) || !has_word(from + bytes - 1);
    if (reader->is_strange)
        memset(into, 0, bytes);
    else
        memcpy(into, (const void *)from, bytes);
}

RS_HOT_INLINE void read_memory(struct reader *reader, uintptr_t from, void *into, size_t bytes)
{
    if (RS_UNLIKELY(reader->is_careful))
        read_carefully(reader, from, into, bytes);
    else
        memcpy(into, (const void *)from, bytes);
}

RS_HOT_INLINE uintptr_t read_word(struct reader *reader, uintptr_t from)
{
    uintptr_t word = 0;

    read_memory(reader, from, &word, sizeof(word));
    return word;
}

RS_HOT_INLINE unsigned read_number(struct reader *reader, uintptr_t from)
{
    unsigned number = 0;

    read_memory(reader, from, &number, sizeof(number));
    return number;
}

RS_HOT_INLINE bool is_of_type(struct reader *reader, uintptr_t object, const void *type)
{
    return object && read_word(reader, object + OBJECT_TYPE) == (uintptr_t)type;
}

/* ---- strings ---- */

struct text {
    uintptr_t characters;
    size_t length;        /* of them */
    unsigned width_bytes; /* of one */
};

static struct text text_of(struct reader *reader, uintptr_t object)
{
    const struct layout *layout = python.layout;
    unsigned state = read_number(reader, object + TEXT_STATE);
    bool is_ascii = state & IS_ASCII;
    struct text text = {
        .characters = object + (is_ascii ? layout->ascii_text : layout->wide_text),
        .length = read_word(reader, object + TEXT_LENGTH),
        .width_bytes = state >> 2 & 7,
    };

    if (text.width_bytes != 1 && text.width_bytes != 2 && text.width_bytes != 4)
        reader->is_strange = true;
    if (!(state & IS_ONE_PIECE))
        reader->is_strange = true;
    return reader->is_strange ? (struct text){0, 0, 1} : text;
}

/* A part of a line in the making.  What does not fit makes it too long. */
struct page {
    char text[RS_LINE_BYTES_MAX + 1];
    size_t used_bytes;
};

static void put_line_byte(struct page *page, unsigned byte)
{
    if (page->used_bytes < sizeof(page->text))
        page->text[page->used_bytes++] = (char)byte;
}

/* As UTF-8; a file name may contain any character, and half of a pair stands for a byte. */
static void put_character(struct page *page, unsigned character)
{
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    unsigned more = character < 0x80 ? 0 : character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;

    if (character < ' ')
        character = '?';
    put_line_byte(page, first[more] | (character >> 6 * more & (more == 3 ? 7 : 0x7f)));
    while (more-- > 0)
        put_line_byte(page, 0x80 | (character >> 6 * more & 0x3f));
}

static void put_line_text(struct page *page, struct reader *reader, uintptr_t object)
{
    struct text text = text_of(reader, object);

    for (size_t i = 0; i < rs_min(text.length, sizeof(page->text)) && !reader->is_strange; i++) {
        unsigned character = 0;
        read_memory(reader, text.characters + i * text.width_bytes, &character, text.width_bytes);
        put_character(page, character);
    }
}

/* ---- what is kept ---- */

enum { SETS = 512 };

/* Lines by the hash of the frame. */
static _Alignas(RS_CACHE_LINE) struct rs_pair kept[SETS][RS_PAIRS];

RS_HOT_INLINE struct rs_pair *lines_kept_by(uint64_t hash)
{
    return kept[(hash ^ hash >> 32) % SETS];
}

/* ---- frames ---- */

struct frame {
    uintptr_t code, instruction; /* an address in the code, or a number */
};

/* The last 16 bytes of a text tell texts of one length apart more often than the first: "cell 12",
 * "cell 13".  Of a shorter one they begin in the object before its characters. */
RS_HOT_INLINE uint64_t mix_text(struct reader *reader, uint64_t hash, uintptr_t object)
{
    uintptr_t bytes = read_word(reader, object + TEXT_LENGTH), end;
    unsigned state = read_number(reader, object + TEXT_STATE);

    if (RS_LIKELY(state & IS_ASCII)) {
        end = object + python.layout->ascii_text + bytes;
    } else {
        struct text text = text_of(reader, object);
        if (RS_UNLIKELY(reader->is_strange))
            return hash; /* it has no end to read */
        end = text.characters + text.length * text.width_bytes;
    }
    return rs_line_mix(rs_line_mix(hash, bytes, state), read_word(reader, end - 8),
                       read_word(reader, end - 16));
}

/* Names a code object and a place in it.  A code object may be freed, and another one made at the
 * same address with parts at the same addresses, so that the contents count too: of names their
 * last characters, of the table of lines its length and its end. */
RS_HOT_INLINE uint64_t hash_frame(struct reader *reader, const struct frame *frame)
{
    const struct layout *layout = python.layout;
    uintptr_t filename = read_word(reader, frame->code + layout->filename);
    uintptr_t name = read_word(reader, frame->code + layout->name);
    uintptr_t linetable = read_word(reader, frame->code + layout->linetable), table_bytes;
    unsigned firstlineno = read_number(reader, frame->code + layout->firstlineno);
    uint64_t hash = rs_line_mix(1, frame->code, frame->instruction);

    if (RS_UNLIKELY(!filename || !name || !linetable)) {
        reader->is_strange = true;
        return 0;
    }
    hash = rs_line_mix(rs_line_mix(hash, filename, name), linetable, firstlineno);
    hash = mix_text(reader, mix_text(reader, hash, filename), name);
    table_bytes = read_word(reader, linetable + BYTES_LENGTH);
    /* Of an object of bytes the contents begin 16 bytes behind their length: their last 8 bytes end
     * where that and the length do. */
    return rs_line_mix(hash, table_bytes,
                       read_word(reader, linetable + BYTES_LENGTH + 16 - 8 + table_bytes));
}

static int offset_of(const struct frame *frame)
{
    const struct layout *layout = python.layout;

    if (layout->first_instruction)
        return (int)(frame->instruction - (frame->code + layout->first_instruction));
    return (int)frame->instruction * (int)layout->instruction_bytes;
}

/* An address that is not in the code would give a line all the same. */
static bool is_in_code(struct reader *reader, const struct frame *frame, int offset)
{
    if (!python.layout->first_instruction)
        return true;
    return offset >= 0 &&
           (uint64_t)offset / INSTRUCTION_BYTES < read_word(reader, frame->code + INSTRUCTIONS);
}

/* Returns NULL also where the line is too long, or memory for lines is used up. */
static RS_COLD const struct rs_line *make_line(struct reader *reader, const struct frame *frame)
{
    uintptr_t filename = read_word(reader, frame->code + python.layout->filename);
    uintptr_t name = read_word(reader, frame->code + python.layout->name);
    int offset = offset_of(frame), length;
    struct page page = {.used_bytes = 0};
    char number[32];

    if (!is_of_type(reader, filename, python.PyUnicode_Type) ||
        !is_of_type(reader, name, python.PyUnicode_Type) ||
        !is_of_type(reader, read_word(reader, frame->code + python.layout->linetable),
                    python.PyBytes_Type) ||
        !is_in_code(reader, frame, offset))
        reader->is_strange = true;
    if (reader->is_strange)
        return NULL;
    put_line_text(&page, reader, filename);
    length = snprintf(number, sizeof(number), ":%d in ",
                      python.PyCode_Addr2Line((void *)frame->code, offset));
    for (int i = 0; i < length; i++)
        put_line_byte(&page, (unsigned char)number[i]);
    put_line_text(&page, reader, name);
    if (reader->is_strange || page.used_bytes > RS_LINE_BYTES_MAX)
        return NULL;
    return rs_line_of(page.text, page.used_bytes);
}

RS_HOT_INLINE const struct rs_line *line_of(struct reader *reader, const struct frame *frame)
{
    uint64_t hash = hash_frame(reader, frame);
    const struct rs_line *line = NULL;

    if (!reader->is_strange)
        line = (const struct rs_line *)(uintptr_t)rs_pair_find(lines_kept_by(hash), hash);
    if (RS_LIKELY(line) || reader->is_strange)
        return line;
    line = make_line(reader, frame);
    if (line)
        rs_pair_enter(lines_kept_by(hash), (unsigned)(hash >> 16), hash, (uintptr_t)line);
    return line;
}

RS_HOT_INLINE uintptr_t innermost(struct reader *reader, const void *state)
{
    uintptr_t found = read_word(reader, (uintptr_t)state + python.layout->state_frame);

    if (python.layout->holder_frame >= 0 && found)
        found = read_word(reader, found + (unsigned)python.layout->holder_frame);
    return found;
}

RS_HOT_INLINE bool is_of_c(struct reader *reader, uintptr_t frame)
{
    unsigned char owner = 0;

    if (python.layout->owner >= 0)
        read_memory(reader, frame + (unsigned)python.layout->owner, &owner, 1);
    return owner >= OWNED_BY_INTERPRETER;
}

RS_HOT_INLINE struct frame frame_at(struct reader *reader, uintptr_t at)
{
    const struct layout *layout = python.layout;
    struct frame frame = {.code = read_word(reader, at + layout->code) & ~(uintptr_t)POINTER_MARKS};

    if (layout->first_instruction)
        frame.instruction = read_word(reader, at + layout->instruction);
    else
        frame.instruction = read_number(reader, at + layout->instruction);
    if (!is_of_type(reader, frame.code, python.PyCode_Type))
        reader->is_strange = true;
    return frame;
}

/* Returns how many lines were read: none where a structure is strange.  A line that cannot be
 * stored ends them. */
RS_HOT_INLINE unsigned read_chain(struct reader *reader, const void *state,
                                  const struct rs_line **lines)
{
    uintptr_t at = innermost(reader, state);
    unsigned count = 0;

    for (unsigned seen = 0; at && count < RS_PYTHON_FRAMES_MAX && !reader->is_strange; seen++) {
        if (!is_of_c(reader, at)) {
            struct frame frame = frame_at(reader, at);
            lines[count] = reader->is_strange ? NULL : line_of(reader, &frame);
            if (!lines[count])
                break;
            count++;
        }
        at = read_word(reader, at + python.layout->previous);
        if (seen == FRAMES_SEEN_MAX)
            reader->is_strange = true;
    }
    RS_ASSERT(count <= RS_PYTHON_FRAMES_MAX);
    return reader->is_strange ? 0 : count;
}

/* ---- trust ---- */

enum { AGREEMENTS = 4, DISAGREEMENTS_MAX = 8 };

static _Atomic unsigned agreements, disagreements;

static RS_COLD unsigned lines_while_untrusted(const void *state, const struct rs_line **lines)
{
    struct reader reader = {.is_careful = true};
    unsigned count;

    if (atomic_load_explicit(&disagreements, memory_order_relaxed) >= DISAGREEMENTS_MAX)
        return 0; /* it is another kind of interpreter */
    count = read_chain(&reader, state, lines);
    if (reader.is_strange)
        atomic_fetch_add_explicit(&disagreements, 1, memory_order_relaxed);
    else if (count > 0)
        atomic_fetch_add_explicit(&agreements, 1, memory_order_relaxed);
    return count;
}

/* Here the compiler knows that read_chain reads directly, so that no read asks. */
static unsigned lines_of(const void *state, const struct rs_line **lines)
{
    struct reader reader = {.is_careful = false};

    if (RS_UNLIKELY(atomic_load_explicit(&agreements, memory_order_relaxed) < AGREEMENTS))
        return lines_while_untrusted(state, lines);
    return read_chain(&reader, state, lines);
}

unsigned rs_python_lines(enum rs_unwind_end end, const struct rs_line *lines[RS_PYTHON_FRAMES_MAX])
{
    int kept_errno = errno;
    const void *state = NULL;
    unsigned count;

    if (is_present() && python.layout)
        state = state_of_this_thread(end);
    count = state ? lines_of(state, lines) : 0;
    errno = kept_errno;
    return count;
}

const void *rs_python_address(void)
{
    return python.PyCode_Type;
}
