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
 * functions would need the GIL, which most bindings release around cudaMalloc, and they make
 * objects, which may run the program's finalizers.  While a thread is inside a function that Python
 * called, its frames do not change, and they keep their code objects, with names and line tables,
 * alive.
 *
 * The structures differ between versions, and a program may have a modified interpreter. So the
 * first chains of frames are read by system calls, which fail where no memory is mapped, or after a
 * system call has checked the address. When AGREEMENTS chains were as expected, memory is read
 * directly. The type of each code object is always checked. */

/* ---- the interpreter ---- */

/* Offsets in the structures of one version, in bytes, from that version's header files. All bug-fix
 * releases of one version (3.N.x) have the same ones. */
struct layout {
    unsigned minor;       /* the version is 3.MINOR */
    unsigned state_frame; /* in a thread's state: its innermost frame */
    int holder_frame;     /* if not negative, state_frame leads not to the frame but to a structure,
                             which points to the frame at this offset */
    unsigned previous;    /* in a frame: the next outer frame */
    unsigned code; /* in a frame: its code object; the lowest bits of the pointer may be flags */
    unsigned instruction; /* in a frame: its position in the code */
    int owner; /* in a frame: one byte that says what kind of code made the frame; negative: this
                  version has no such field */
    /* In a code object: the name of the file, the name of the function, its first line, and its
     * line table. */
    unsigned filename, name, firstlineno, linetable;
    unsigned first_instruction; /* in a code object: its first instruction; 0: a frame's position in
                                   the code is a number of units, not an address */
    unsigned instruction_bytes; /* the bytes of one such unit */
    unsigned ascii_text, wide_text; /* in a string: its characters */
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

/* Offsets in bytes, flags and sizes that all versions have in common. */
enum {
    OBJECT_TYPE = 8,
    TEXT_LENGTH = 16, /* in a string: the number of characters */
    TEXT_STATE = 32,  /* in a string: how the characters are stored, in bits */
    IS_ASCII = 1 << 6,
    IS_ONE_PIECE = 1 << 5,
    BYTES_LENGTH = 16,
    INSTRUCTIONS = 16,     /* in a code object that has its instructions inside: their number */
    INSTRUCTION_BYTES = 2, /* bytes of each instruction */
    POINTER_MARKS = 3,
    /* A frame whose owner has this value or a higher one was entered from C, and is no frame of a
     * Python function. */
    OWNED_BY_INTERPRETER = 3,
    FRAMES_SEEN_MAX = 200,
};

/* The functions of the interpreter that this file uses. Every supported version has them, and none
 * needs the GIL or makes an object. */
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

/* Looks up a function or an object, and stores its address. It copies the bits, since ISO C has no
 * cast between object and function pointers; POSIX promises that their bits agree. */
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

/* True when a Python interpreter was found. A program that embeds one may load it at any time, so
 * the search is repeated until it succeeds, but only at every 256th call: each search goes through
 * all loaded objects. */
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

/* True when this thread may be inside a signal handler. Where the walk of the stack was cut off, a
 * handler is recognised by its signal, which is blocked while the handler runs, or by the alternate
 * signal stack. (A handler with SA_NODEFER that the walk did not reach is not noticed.) */
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

/* Returns the Python thread state that has the frames of the calling thread; NULL if there is none,
 * or it is uncertain which state that is.
 *
 * A thread without the GIL is in a function that Python called.  So is a thread with the GIL,
 * unless a signal has interrupted the interpreter itself, whose frames may then be half made. A
 * thread that has entered a second interpreter has two states, and PyGILState_GetThisThreadState
 * may return the wrong one. The current state is the right one. */
static const void *state_of_this_thread(enum rs_unwind_end end)
{
    const void *state = NULL;
    bool is_sure;

    if (python.Py_IsInitialized())
        state = python.PyGILState_GetThisThreadState();
    if (!state)
        return NULL;
    if (python.current_state() == state) /* this thread holds the GIL */
        is_sure = !may_be_in_signal_handler(end);
    else
        is_sure = python.PyInterpreterState_Head() == python.PyInterpreterState_Main();
    return is_sure ? state : NULL;
}

/* ---- reading ---- */

struct reader {
    bool is_careful;
    bool is_strange; /* a structure was not as expected, and reading has stopped */
};

/* Tests whether a word can be read, by a system call that changes nothing: sigprocmask with the
 * invalid operation -1. The kernel reads the word before it checks the operation, so it answers
 * EFAULT if there is no memory, and EINVAL if there is. */
static RS_COLD bool has_word(uintptr_t address)
{
    uintptr_t word = address / sizeof(uint64_t) * sizeof(uint64_t);

    return syscall(SYS_rt_sigprocmask, -1, word, NULL, sizeof(uint64_t)) != 0 && errno == EINVAL;
}

/* Reads by process_vm_readv. Containers may forbid that call, with any error; then the memory is
 * read directly after has_word has tested it. If there is no memory, reads zero, and the reader is
 * marked as strange. */
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
    size_t length;        /* the number of characters */
    unsigned width_bytes; /* the bytes of one character */
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

/* A line that is being composed. When used_bytes exceeds RS_LINE_BYTES_MAX, the line is too long.
 */
struct page {
    char text[RS_LINE_BYTES_MAX + 1];
    size_t used_bytes;
};

static void put_line_byte(struct page *page, unsigned byte)
{
    if (page->used_bytes < sizeof(page->text))
        page->text[page->used_bytes++] = (char)byte;
}

/* Appends a character as UTF-8. A file name may contain any character, and Python represents a byte
 * that it cannot decode by a surrogate, which is written as it is. */
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

/* ---- the cache of lines ---- */

enum { SETS = 512 };

static _Alignas(RS_CACHE_LINE) struct rs_pair kept[SETS][RS_PAIRS];

RS_HOT_INLINE struct rs_pair *lines_kept_by(uint64_t hash)
{
    return kept[(hash ^ hash >> 32) % SETS];
}

/* ---- frames ---- */

struct frame {
    uintptr_t code, instruction; /* instruction: an address in the code, or a number of units */
};

/* Mixes the last 16 bytes of a text into the hash: texts of the same length more often differ at
 * the end ("cell 12", "cell 13"). For a shorter text, bytes of the string object's header are mixed
 * in too, which does no harm. */
RS_HOT_INLINE uint64_t mix_text(struct reader *reader, uint64_t hash, uintptr_t object)
{
    uintptr_t bytes = read_word(reader, object + TEXT_LENGTH), end;
    unsigned state = read_number(reader, object + TEXT_STATE);

    if (RS_LIKELY(state & IS_ASCII)) {
        end = object + python.layout->ascii_text + bytes;
    } else {
        struct text text = text_of(reader, object);
        if (RS_UNLIKELY(reader->is_strange))
            return hash; /* text_of could not make sense of the string */
        end = text.characters + text.length * text.width_bytes;
    }
    return rs_line_mix(rs_line_mix(hash, bytes, state), read_word(reader, end - 8),
                       read_word(reader, end - 16));
}

/* Returns a hash that identifies a code object and a position in it. The address of the object is
 * not enough: another code object may later be made there, with its parts at the same addresses
 * too. So the parts' contents are mixed in as well: the last characters of the names, and the
 * length and the end of the line table. */
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
    /* This reads the last 8 bytes of the line table, a bytes object, in which the contents begin 16
     * bytes after the length. */
    return rs_line_mix(hash, table_bytes,
                       read_word(reader, linetable + BYTES_LENGTH + 16 - 8 + table_bytes));
}

static int offset_of(const struct frame *frame)
{
    const struct layout *layout = python.layout;

    if (layout->first_instruction)
        return (int)(frame->instruction - (frame->code + layout->first_instruction));
    return (int)(frame->instruction * layout->instruction_bytes); /* may be negative */
}

/* True when the position lies in the code object. For a wrong position PyCode_Addr2Line would still
 * return some line. */
static bool is_in_code(struct reader *reader, const struct frame *frame, int offset)
{
    if (!python.layout->first_instruction)
        return true;
    return offset >= 0 &&
           (uint64_t)offset / INSTRUCTION_BYTES < read_word(reader, frame->code + INSTRUCTIONS);
}

/* Makes the line of a frame. Returns NULL when a structure is not as expected, the line is too
 * long, or the memory for lines is used up. */
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

/* Makes the lines of a thread's frames, and returns their number; 0 if a structure is not as
 * expected.  A line that cannot be stored ends the list. */
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
        return 0; /* the interpreter seems to be a modified one */
    count = read_chain(&reader, state, lines);
    if (reader.is_strange)
        atomic_fetch_add_explicit(&disagreements, 1, memory_order_relaxed);
    else if (count > 0)
        atomic_fetch_add_explicit(&agreements, 1, memory_order_relaxed);
    return count;
}

/* Reads the lines of the thread's frames. read_chain is compiled into this function, where
 * is_careful is known to be false, so that no read tests it. */
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
