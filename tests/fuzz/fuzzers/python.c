/* SPDX-License-Identifier: Apache-2.0 */
/* Python frames in a memory that holds anything.  The first byte says the version, the next ones
 * change a sound chain of frames: an offset (2 bytes), the number of bytes (1) and the bytes.
 *
 * The first chains are read with each address checked; only memory that was as expected is read
 * directly.  So what is read directly afterwards must be the same, and nothing may crash. */
#include "fuzzer.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>

enum { MEMORY_BYTES = 16 << 10, FRAMES = 4, CODE_BYTES = 256, FRAME_BYTES = 128 };

/* With nothing that can be read on both sides. */
static char *memory;

/* Reads the memory, and nothing else: a changed address may by chance lie in the process's other
 * memory, which is no input, and part of which AddressSanitizer forbids to read. */
static ssize_t read_input(pid_t process, const struct iovec *into, unsigned long into_count,
                          const struct iovec *from, unsigned long from_count, unsigned long flags)
{
    uintptr_t at = (uintptr_t)from->iov_base - (uintptr_t)memory;

    (void)process, (void)into_count, (void)from_count, (void)flags;
    if (at > MEMORY_BYTES - from->iov_len) {
        errno = EFAULT;
        return -1;
    }
    memcpy(into->iov_base, from->iov_base, from->iov_len);
    return (ssize_t)from->iov_len;
}

#define process_vm_readv read_input
#include "trace/python_frames.c"
#undef process_vm_readv

static const char type_of_code, type_of_text, type_of_bytes;

/* ---- the interpreter ---- */

static int is_initialized(void)
{
    return 1;
}

static void *state(void)
{
    return memory;
}

static void *no_state(void)
{
    return NULL;
}

static int line_of_instruction(void *code, int offset_bytes)
{
    (void)offset_bytes; /* which the interpreter compares with the table's */
    must(code, "no code");
    return 7;
}

static void begin(void)
{
    char *room = mmap(NULL, 3 * MEMORY_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    must(room != MAP_FAILED &&
             mprotect(room + MEMORY_BYTES, MEMORY_BYTES, PROT_READ | PROT_WRITE) == 0,
         "no memory");
    memory = room + MEMORY_BYTES;
    python.Py_IsInitialized = is_initialized;
    python.PyGILState_GetThisThreadState = state;
    python.PyInterpreterState_Head = python.PyInterpreterState_Main = no_state;
    python.current_state = no_state; /* this thread has no lock */
    python.PyCode_Addr2Line = line_of_instruction;
    python.PyCode_Type = &type_of_code;
    python.PyUnicode_Type = &type_of_text;
    python.PyBytes_Type = &type_of_bytes;
}

/* ---- a sound chain ---- */

static void put(size_t at, uint64_t number, size_t bytes)
{
    memcpy(memory + at, &number, bytes);
}

static uint64_t address_of(size_t at)
{
    return (uintptr_t)memory + at;
}

static void put_text(size_t at, const char *text)
{
    put(at + OBJECT_TYPE, (uintptr_t)&type_of_text, 8);
    put(at + TEXT_LENGTH, strlen(text), 8);
    put(at + TEXT_STATE, IS_ASCII | IS_ONE_PIECE | 1 << 2, 4);
    memcpy(memory + at + python.layout->ascii_text, text, strlen(text));
}

static void put_code(size_t at, size_t texts)
{
    const struct layout *layout = python.layout;

    put(at + OBJECT_TYPE, (uintptr_t)&type_of_code, 8);
    put(at + INSTRUCTIONS, 40, 8);
    put_text(texts, "/home/me/train.py");
    put_text(texts + 128, "forward_all_layers");
    put(texts + 256 + OBJECT_TYPE, (uintptr_t)&type_of_bytes, 8);
    put(texts + 256 + BYTES_LENGTH, 24, 8);
    put(at + layout->filename, address_of(texts), 8);
    put(at + layout->name, address_of(texts + 128), 8);
    put(at + layout->linetable, address_of(texts + 256), 8);
    put(at + layout->firstlineno, 3, 4);
}

/* A thread's state, what leads to its frames, frames, their code, and texts. */
static void put_chain(void)
{
    const struct layout *layout = python.layout;
    size_t holder = 1024, frames = 2048, codes = 4096, texts = 8192;

    memset(memory, 0, MEMORY_BYTES);
    put(layout->state_frame, address_of(layout->holder_frame < 0 ? frames : holder), 8);
    if (layout->holder_frame >= 0)
        put(holder + (unsigned)layout->holder_frame, address_of(frames), 8);
    for (size_t i = 0; i < FRAMES; i++) {
        size_t frame = frames + i * FRAME_BYTES, code = codes + i * CODE_BYTES;
        put_code(code, texts + i * 512);
        put(frame + layout->previous, i + 1 < FRAMES ? address_of(frame + FRAME_BYTES) : 0, 8);
        put(frame + layout->code, address_of(code), 8);
        put(frame + layout->instruction,
            layout->first_instruction ? address_of(code + layout->first_instruction + 8) : 4, 8);
    }
}

/* A number of 8 bytes is an offset in the memory if its lowest bit is set. */
static void change(struct input *input)
{
    size_t at = next_number(input, 2) % MEMORY_BYTES, bytes = next_number(input, 1) % 16;
    uint64_t number = next_number(input, bytes < 8 ? bytes : 8);

    if (bytes >= 8)
        number = number % 2 ? address_of(number / 2 % MEMORY_BYTES) : number / 2;
    if (at + 8 <= MEMORY_BYTES)
        put(at, number, bytes < 8 ? bytes : 8);
}

/* ---- what is read ---- */

static unsigned read_lines(const struct rs_line **lines)
{
    unsigned count = lines_of(memory, lines);

    must(count <= RS_PYTHON_FRAMES_MAX, "too many lines");
    for (unsigned i = 0; i < count; i++)
        must(strlen(lines[i]->text) <= RS_LINE_BYTES_MAX, "a line that is too long");
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct input input = {bytes, length};
    const struct rs_line *checked[RS_PYTHON_FRAMES_MAX], *direct[RS_PYTHON_FRAMES_MAX];
    unsigned count, strange;

    if (!memory)
        begin();
    python.layout = &layouts[next_number(&input, 1) % RS_ARRAY_LENGTH(layouts)];
    put_chain();
    while (input.left > 0)
        change(&input);
    atomic_store(&agreements, 0);
    atomic_store(&disagreements, 0);
    memset(kept, 0, sizeof(kept));
    count = read_lines(checked);
    strange = atomic_load(&disagreements);
    if (strange)
        must(count == 0, "lines of a strange structure");
    if (count == 0)
        return 0;
    atomic_store(&agreements, AGREEMENTS);
    must(read_lines(direct) == count && memcmp(checked, direct, count * sizeof(*direct)) == 0,
         "other lines are read directly");
    return 0;
}
