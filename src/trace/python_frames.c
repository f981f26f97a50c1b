/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/python_frames.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/undisturbed.h"
#include "driver/loader.h"
#include "trace/python_chain.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* An object of the interpreter, opaque here. */
typedef void object;

/* Functions of the stable interface and of Python 3.9.  If one is missing, there are no Python
 * frames. */
#define PYTHON_FUNCTIONS(X)                                                                        \
    X(Py_IsInitialized, int, (void))                                                               \
    X(PyGILState_Check, int, (void))                                                               \
    X(PyGILState_GetThisThreadState, void *, (void))                                               \
    X(PyEval_GetFrame, object *, (void)) /* borrowed; the next two are references of our own */    \
    X(PyFrame_GetBack, object *, (object *))                                                       \
    X(PyFrame_GetCode, object *, (object *))                                                       \
    X(PyFrame_GetLineNumber, int, (object *))                                                      \
    X(PyObject_GetAttrString, object *, (object *, const char *))                                  \
    X(PyUnicode_AsUTF8AndSize, const char *, (object *, ssize_t *))                                \
    X(PyErr_Fetch, void, (object **, object **, object **))                                        \
    X(PyErr_Restore, void, (object *, object *, object *))                                         \
    X(PyErr_Clear, void, (void))                                                                   \
    X(Py_IncRef, void, (object *))                                                                 \
    X(Py_DecRef, void, (object *))

struct python {
#define MEMBER(name, result, arguments) result(*name) arguments;
    PYTHON_FUNCTIONS(MEMBER)
#undef MEMBER
    void *(*current_state)(void);      /* NULL: this version does not have it */
    void (*dump)(int fd, void *state); /* NULL: this version does not export it */
    int (*gc_disable)(void),
        (*gc_enable)(
            void); /* 3.10 and newer; older versions start no collection when a frame is made */
};

static struct python python;

/* ISO C has no cast between object and function pointers; POSIX promises that the bits agree. */
static bool look_up(const char *name, void *function)
{
    void *symbol = rs_real_dlsym()(RTLD_DEFAULT, name);

    memcpy(function, &symbol, sizeof(symbol));
    return symbol;
}

static bool find_functions(void)
{
    bool found = true;

#define FIND(name, result, arguments) found = found && look_up(#name, &python.name);
    PYTHON_FUNCTIONS(FIND)
#undef FIND
    if (!found)
        return false;
    if (!look_up("PyThreadState_GetUnchecked", &python.current_state))
        (void)look_up("_PyThreadState_UncheckedGet", &python.current_state);
    (void)look_up("_Py_DumpTraceback", &python.dump);
    if (!look_up("PyGC_Disable", &python.gc_disable) || !look_up("PyGC_Enable", &python.gc_enable))
        python.gc_disable = NULL;
    return true;
}

static void prepare_chain(void);

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
    now = find_functions() ? PRESENT : UNKNOWN;
    if (now == PRESENT)
        prepare_chain();
    atomic_store_explicit(&state, now, memory_order_release);
    return now == PRESENT;
}

/* PyGILState_Check alone returns 1 for every thread once there are subinterpreters. */
static bool holds_the_lock(const void *own_state)
{
    return python.PyGILState_Check() == 1 &&
           (!python.current_state || python.current_state() == own_state);
}

/* Appends a string attribute of a code object.  Reading it runs no Python code. */
static bool put_attribute(object *code, const char *attribute, char *text, size_t text_bytes,
                          size_t *used_bytes)
{
    object *value = python.PyObject_GetAttrString(code, attribute);
    ssize_t length = 0;
    const char *utf8 = value ? python.PyUnicode_AsUTF8AndSize(value, &length) : NULL;
    bool fits = utf8 && (size_t)length < text_bytes - *used_bytes;

    if (fits) {
        for (ssize_t i = 0; i < length; i++) /* a file name may contain any character */
            text[*used_bytes + (size_t)i] = (unsigned char)utf8[i] < ' ' ? '?' : utf8[i];
        *used_bytes += (size_t)length;
    }
    if (!utf8)
        python.PyErr_Clear();
    if (value)
        python.Py_DecRef(value);
    return fits;
}

static bool put_line(object *frame, char *text, size_t text_bytes, size_t *used_bytes)
{
    object *code = python.PyFrame_GetCode(frame);
    size_t end = *used_bytes;
    bool whole = put_attribute(code, "co_filename", text, text_bytes, &end);

    if (whole) {
        int added =
            snprintf(text + end, text_bytes - end, ":%d in ", python.PyFrame_GetLineNumber(frame));
        whole = added > 0 && (size_t)added < text_bytes - end;
        end += whole ? (size_t)added : 0;
    }
    whole = whole && put_attribute(code, "co_name", text, text_bytes, &end);
    if (whole) { /* put_attribute left room for one byte */
        text[end++] = '\n';
        *used_bytes = end;
    }
    python.Py_DecRef(code);
    return whole;
}

/* *is_whole: no line was left out, but those of frames that are not asked for. */
static size_t put_frames(char *text, size_t text_bytes, bool *is_whole)
{
    object *frame = python.PyEval_GetFrame(), *outer;
    size_t used_bytes = 0;

    if (frame)
        python.Py_IncRef(frame);
    *is_whole = true;
    for (unsigned count = 0; frame && *is_whole && count < RS_PYTHON_FRAMES_MAX; count++) {
        *is_whole = put_line(frame, text, text_bytes, &used_bytes);
        outer = python.PyFrame_GetBack(frame);
        python.Py_DecRef(frame);
        frame = outer;
    }
    if (frame)
        python.Py_DecRef(frame);
    return used_bytes;
}

static size_t ask(char *text, size_t text_bytes, bool *is_whole)
{
    object *type, *value, *trace;
    size_t used_bytes;
    int collected = 0;

    /* From 3.11 on a frame becomes an object when it is asked for, and making objects may start
     * a garbage collection: its finalizers could run any code in the middle of the program's
     * allocation. */
    if (python.gc_disable)
        collected = python.gc_disable();
    python.PyErr_Fetch(&type, &value, &trace);
    used_bytes = put_frames(text, text_bytes, is_whole);
    python.PyErr_Restore(type, value, trace);
    if (collected)
        (void)python.gc_enable();
    return used_bytes;
}

/* Rewrites a line "  File "FILE", line LINE in FUNCTION" of a dump.  Returns the bytes written;
 * 0 when the line is different or does not fit. */
static size_t put_dumped_line(const char *line, size_t length, char *text, size_t text_bytes)
{
    static const char begin[] = "  File \"", middle[] = "\", line ";
    const char *file = line + sizeof(begin) - 1, *number = NULL;
    int written;

    if (length < sizeof(begin) || memcmp(line, begin, sizeof(begin) - 1) != 0)
        return 0;
    for (const char *at = file; at + sizeof(middle) - 1 <= line + length; at++)
        if (memcmp(at, middle, sizeof(middle) - 1) == 0)
            number = at; /* the last match: a file name may contain this text too */
    if (!number)
        return 0;
    written =
        snprintf(text, text_bytes, "%.*s:%.*s\n", (int)(number - file), file,
                 (int)(line + length - number - (sizeof(middle) - 1)), number + sizeof(middle) - 1);
    return written > 0 && (size_t)written < text_bytes ? (size_t)written : 0;
}

/* The first line of a dump is a heading. */
static size_t put_dumped(const char *dump, size_t dump_bytes, char *text, size_t text_bytes,
                         bool *is_whole)
{
    const char *end = dump + dump_bytes, *line = dump, *line_end;
    size_t used_bytes = 0, added;

    *is_whole = true;
    for (unsigned count = 0; count <= RS_PYTHON_FRAMES_MAX && line < end; count++) {
        line_end = memchr(line, '\n', (size_t)(end - line));
        added = line_end && count > 0 ? put_dumped_line(line, (size_t)(line_end - line),
                                                        text + used_bytes, text_bytes - used_bytes)
                                      : 0;
        *is_whole = added > 0 || (line_end && count == 0);
        if (!*is_whole)
            break;
        used_bytes += added;
        line = line_end + 1;
    }
    return used_bytes;
}

/* Reads the frames of a thread that does not hold Python's lock.  Most bindings release it
 * around calls like cudaMalloc; waiting for it here could wait for a thread that waits for this
 * one.  This thread's frames do not change meanwhile.  The function that faulthandler uses reads
 * them without the lock and touches no object.  It writes to a descriptor; a new one each time,
 * since a program may close descriptors that it does not know. */
static size_t read_without_lock(void *state, char *text, size_t text_bytes, bool *is_whole)
{
    struct rs_unsignalled unsignalled;
    char dump[4096];
    ssize_t dump_bytes;
    int fd = memfd_create("rmmshim", MFD_CLOEXEC);

    if (fd < 0)
        return 0;
    rs_unsignalled_begin(&unsignalled);
    python.dump(fd, state);
    dump_bytes = pread(fd, dump, sizeof(dump), 0);
    close(fd);
    rs_unsignalled_end(&unsignalled, EFBIG); /* RLIMIT_FSIZE applies to a memory file too */
    return dump_bytes > 0 ? put_dumped(dump, (size_t)dump_bytes, text, text_bytes, is_whole) : 0;
}

/* ---- the interpreter's own functions ---- */

enum { TEXT_BYTES = 2048 };

/* What the interpreter's functions say. */
struct answer {
    const struct rs_line *lines[RS_PYTHON_FRAMES_MAX];
    int count;      /* negative: it has no function that may be called */
    bool is_whole;  /* no line is missing behind these: a line may have been too long, or its text
                       none of UTF-8 */
    bool is_dumped; /* the lines are as faulthandler writes them (RS_PYTHON_DUMPED) */
};

static void split(const char *text, size_t text_bytes, struct answer *answer)
{
    const char *at = text, *end;

    for (answer->count = 0; answer->count < RS_PYTHON_FRAMES_MAX && at < text + text_bytes;
         answer->count++, at = end + 1) {
        const struct rs_line **line = &answer->lines[answer->count];
        end = memchr(at, '\n', text_bytes - (size_t)(at - text));
        RS_ASSERT(end); /* lines are written whole */
        *line = rs_line_of(at, rs_min((size_t)(end - at), RS_LINE_BYTES_MAX));
        answer->is_whole = answer->is_whole && *line;
        if (!*line)
            return;
    }
}

static void ask_interpreter(void *state, struct answer *answer)
{
    char text[TEXT_BYTES];
    size_t used_bytes;

    *answer = (struct answer){.count = -1};
    if (holds_the_lock(state)) {
        used_bytes = ask(text, sizeof(text), &answer->is_whole);
    } else if (python.dump) {
        answer->is_dumped = true;
        used_bytes = read_without_lock(state, text, sizeof(text), &answer->is_whole);
    } else {
        return;
    }
    split(text, used_bytes, answer);
}

/* ---- its structures ---- */

/* They differ by version, and a program may have an interpreter of its own making.  So they are
 * read with care until they have given the lines that the interpreter's functions give, and no
 * more when they have given others.  Where there is no such function, types of all objects have to
 * be right. */
enum { AGREEMENTS = 4, DISAGREEMENTS_MAX = 8 };

static struct rs_python_chain chain; /* no layout: an unknown version */
static _Atomic unsigned agreements, disagreements;

static void prepare_chain(void)
{
    const char *(*version)(void) = NULL;
    const struct rs_python_layout *layout;

    if (!look_up("Py_GetVersion", &version) || strncmp(version(), "3.", 2) != 0)
        return;
    layout = rs_python_layout_of((unsigned)strtoul(version() + 2, NULL, 10));
    if (layout && look_up("PyCode_Addr2Line", &chain.line_number) &&
        look_up("PyCode_Type", &chain.code_type) && look_up("PyUnicode_Type", &chain.text_type))
        chain.layout = layout;
}

enum verdict { SAYS_NOTHING, AGREES, DIFFERS };

/* Compares lines that were read, in the form of the answer, with it.  An answer that ends early
 * agrees with more lines. */
static enum verdict compare(const struct answer *answer, const struct rs_line **read, int count)
{
    int common = answer->count < count ? answer->count : count;

    if (count == RS_PYTHON_UNTOLD)
        return SAYS_NOTHING;
    if (answer->count < 0) /* the types of all objects were right */
        return count > 0 ? AGREES : count == 0 ? SAYS_NOTHING : DIFFERS;
    if (count < answer->count || (answer->is_whole && count > answer->count) ||
        memcmp(read, answer->lines, (size_t)common * sizeof(void *)) != 0)
        return DIFFERS;
    return answer->count > 0 ? AGREES : SAYS_NOTHING;
}

/* In the form of the answer, which for a dump's lines is not the one that a report has. */
static enum verdict judge(void *state, const struct answer *answer, const struct rs_line **read,
                          int count)
{
    const struct rs_line *dumped[RS_PYTHON_FRAMES_MAX] = {NULL};
    enum verdict verdict;

    if (count > 0 && answer->is_dumped)
        verdict = compare(
            answer, dumped,
            rs_python_chain_read(&chain, state, RS_PYTHON_DUMPED, dumped, RS_PYTHON_FRAMES_MAX));
    else
        verdict = compare(answer, read, count);
    if (verdict == AGREES)
        atomic_fetch_add_explicit(&agreements, 1, memory_order_relaxed);
    else if (verdict == DIFFERS)
        atomic_fetch_add_explicit(&disagreements, 1, memory_order_relaxed);
    return verdict;
}

/* Both ways, until the structures are trusted. */
static unsigned lines_of_both(void *state, const struct rs_line **lines)
{
    const struct rs_line *read[RS_PYTHON_FRAMES_MAX] = {NULL};
    struct answer answer;
    int count;

    ask_interpreter(state, &answer);
    RS_ASSERT(answer.count <= RS_PYTHON_FRAMES_MAX);
    memcpy(lines, answer.lines, sizeof(answer.lines));
    if (!chain.layout ||
        atomic_load_explicit(&disagreements, memory_order_relaxed) >= DISAGREEMENTS_MAX)
        return answer.count > 0 ? (unsigned)answer.count : 0;
    count = rs_python_chain_read(&chain, state, RS_PYTHON_CAREFUL, read, RS_PYTHON_FRAMES_MAX);
    if (judge(state, &answer, read, count) != AGREES)
        return answer.count > 0 ? (unsigned)answer.count : 0;
    RS_ASSERT(count > 0);
    memcpy(lines, read, sizeof(read));
    return (unsigned)count;
}

static unsigned lines_of(void *state, const struct rs_line **lines)
{
    int count = -1;

    if (RS_LIKELY(atomic_load_explicit(&agreements, memory_order_relaxed) >= AGREEMENTS))
        count = rs_python_chain_read(&chain, state, RS_PYTHON_TRUSTED, lines, RS_PYTHON_FRAMES_MAX);
    return RS_LIKELY(count >= 0) ? (unsigned)count : lines_of_both(state, lines);
}

unsigned rs_python_lines(const struct rs_line *lines[RS_PYTHON_FRAMES_MAX])
{
    int kept_errno;
    unsigned count;
    void *state;

    if (!is_present())
        return 0;
    kept_errno = errno;
    state = python.Py_IsInitialized() ? python.PyGILState_GetThisThreadState() : NULL;
    count = state ? lines_of(state, lines) : 0;
    errno = kept_errno;
    return count;
}
