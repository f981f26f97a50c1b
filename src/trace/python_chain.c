/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/python_chain.h"

#include "base/arithmetic.h"
#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const struct rs_python_layout layouts[] = {
    {9, 24, -1, 24, 32, 104, -1, 104, 112, 40, 120, 0, 1, 48, 72},
    {10, 24, -1, 24, 32, 96, -1, 104, 112, 40, 120, 0, 2, 48, 72},
    {11, 56, 8, 48, 32, 56, 69, 112, 120, 72, 136, 184, 1, 48, 72},
    {12, 56, 0, 8, 0, 56, 70, 112, 120, 68, 136, 192, 1, 40, 56},
    {13, 72, -1, 8, 0, 56, 70, 112, 120, 68, 136, 200, 1, 40, 56},
};

/* What all versions have in common. */
enum {
    OBJECT_TYPE = 8,
    TEXT_LENGTH = 16, /* of a string: how many characters */
    TEXT_STATE = 32,  /* its form, in bits */
    IS_ASCII = 1 << 6,
    IS_ONE_PIECE = 1 << 5,
    BYTES_LENGTH = 16,
    OWNED_BY_C_STACK = 3, /* an entry that stands for a call from C: no frame of a function */
    FRAMES_SEEN_MAX = 200,
    DUMPED_MAX = 500, /* characters of a name in a dump */
};

const struct rs_python_layout *rs_python_layout_of(unsigned minor)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(layouts); i++)
        if (layouts[i].minor == minor)
            return &layouts[i];
    return NULL;
}

/* ---- reading ---- */

struct reader {
    const struct rs_python_chain *chain;
    bool is_careful, is_dumped;
    bool is_bad;    /* reading has ended */
    bool is_untold; /* by a line that cannot be told */
};

static RS_COLD void read_carefully(struct reader *reader, uintptr_t from, void *into, size_t bytes)
{
    struct iovec here = {into, bytes}, there = {(void *)from, bytes};

    reader->is_bad |= process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)bytes;
    if (reader->is_bad)
        memset(into, 0, bytes);
}

RS_HOT_INLINE void read_bytes(struct reader *reader, uintptr_t from, void *into, size_t bytes)
{
    if (RS_UNLIKELY(reader->is_careful))
        read_carefully(reader, from, into, bytes);
    else
        memcpy(into, (const void *)from, bytes);
}

RS_HOT_INLINE uintptr_t read_word(struct reader *reader, uintptr_t from)
{
    uintptr_t word = 0;

    read_bytes(reader, from, &word, sizeof(word));
    return word;
}

RS_HOT_INLINE unsigned read_number(struct reader *reader, uintptr_t from)
{
    unsigned number = 0;

    read_bytes(reader, from, &number, sizeof(number));
    return number;
}

RS_HOT_INLINE bool is_code(struct reader *reader, uintptr_t object)
{
    return object && read_word(reader, object + OBJECT_TYPE) == (uintptr_t)reader->chain->code_type;
}

/* ---- strings ---- */

struct text {
    uintptr_t characters;
    size_t length;        /* of them */
    unsigned width_bytes; /* of one */
};

static struct text text_of(struct reader *reader, uintptr_t object)
{
    const struct rs_python_layout *layout = reader->chain->layout;
    unsigned state = read_number(reader, object + TEXT_STATE);
    bool is_ascii = state & IS_ASCII;
    struct text text = {
        .characters = object + (is_ascii ? layout->ascii_text : layout->wide_text),
        .length = read_word(reader, object + TEXT_LENGTH),
        .width_bytes = state >> 2 & 7,
    };

    if (text.width_bytes != 1 && text.width_bytes != 2 && text.width_bytes != 4)
        reader->is_bad = true;
    if (!(state & IS_ONE_PIECE))
        reader->is_bad = true;
    return reader->is_bad ? (struct text){0, 0, 1} : text;
}

/* A part of a line in the making.  What does not fit makes it too long. */
struct page {
    char text[RS_LINE_BYTES_MAX + 1];
    size_t used_bytes;
};

static void put_byte(struct page *page, unsigned byte)
{
    if (page->used_bytes < sizeof(page->text))
        page->text[page->used_bytes++] = (char)byte;
}

/* As UTF-8; a file name may contain any character, and half of a pair stands for a byte. */
static void put_character(struct page *page, unsigned character)
{
    if (character < ' ') {
        put_byte(page, '?');
    } else if (character < 0x80) {
        put_byte(page, character);
    } else if (character < 0x800) {
        put_byte(page, 0xc0 | character >> 6);
        put_byte(page, 0x80 | (character & 0x3f));
    } else if (character < 0x10000) {
        put_byte(page, 0xe0 | character >> 12);
        put_byte(page, 0x80 | (character >> 6 & 0x3f));
        put_byte(page, 0x80 | (character & 0x3f));
    } else {
        put_byte(page, 0xf0 | (character >> 18 & 7));
        put_byte(page, 0x80 | (character >> 12 & 0x3f));
        put_byte(page, 0x80 | (character >> 6 & 0x3f));
        put_byte(page, 0x80 | (character & 0x3f));
    }
}

static void put_string(struct page *page, const char *string)
{
    for (; *string; string++)
        put_byte(page, (unsigned char)*string);
}

/* As the interpreter's _Py_DumpASCII. */
static void put_dumped_character(struct page *page, unsigned character)
{
    char escape[16];

    if (character >= ' ' && character < 0x7f) {
        put_byte(page, character);
        return;
    }
    snprintf(escape, sizeof(escape),
             character <= 0xff     ? "\\x%02x"
             : character <= 0xffff ? "\\u%04x"
                                   : "\\U%08x",
             character);
    put_string(page, escape);
}

static void give_up_line(struct reader *reader)
{
    reader->is_untold = reader->is_untold || !reader->is_bad;
    reader->is_bad = true;
}

static void put_text(struct page *page, struct reader *reader, uintptr_t object)
{
    size_t shown;
    struct text text;

    if (!object || read_word(reader, object + OBJECT_TYPE) != (uintptr_t)reader->chain->text_type) {
        reader->is_bad = true;
        return;
    }
    text = text_of(reader, object);
    shown = reader->is_dumped ? rs_min(text.length, DUMPED_MAX) : text.length;
    if (shown > RS_LINE_BYTES_MAX)
        give_up_line(reader);
    for (size_t i = 0; i < shown && !reader->is_bad; i++) {
        unsigned character = 0;
        read_bytes(reader, text.characters + i * text.width_bytes, &character, text.width_bytes);
        (reader->is_dumped ? put_dumped_character : put_character)(page, character);
    }
    if (shown < text.length)
        put_string(page, "...");
}

/* ---- what is kept ---- */

/* The first word is the hash xor the line, so that a reader sees it when two threads have written
 * one word each. */
struct kept {
    _Atomic uint64_t hash_xor_line, line;
};

enum { SETS = 512, WAYS = 4 };

static _Alignas(RS_CACHE_LINE) struct kept kept[SETS][WAYS];

RS_HOT_INLINE struct kept *set_of(uint64_t hash)
{
    return kept[(hash ^ hash >> 32) % SETS];
}

RS_HOT_INLINE const struct rs_line *find(uint64_t hash)
{
    const struct kept *set = set_of(hash);

    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t mixed = atomic_load_explicit(&set[i].hash_xor_line, memory_order_relaxed);
        uint64_t line = atomic_load_explicit(&set[i].line, memory_order_acquire);
        if (line && (mixed ^ line) == hash)
            return (const struct rs_line *)(uintptr_t)line;
    }
    return NULL;
}

static void keep(uint64_t hash, const struct rs_line *line)
{
    struct kept *set = set_of(hash), *place = &set[(hash >> 16) % WAYS];

    RS_ASSERT(line); /* without one a place is empty */
    for (unsigned i = 0; i < WAYS; i++)
        if (atomic_load_explicit(&set[i].line, memory_order_relaxed) == 0)
            place = &set[i];
    atomic_store_explicit(&place->line, (uintptr_t)line, memory_order_release);
    atomic_store_explicit(&place->hash_xor_line, hash ^ (uintptr_t)line, memory_order_relaxed);
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
        end = object + reader->chain->layout->ascii_text + bytes;
    } else {
        struct text text = text_of(reader, object);
        if (RS_UNLIKELY(reader->is_bad))
            return hash; /* it has no end to read */
        end = text.characters + text.length * text.width_bytes;
    }
    return rs_line_mix(rs_line_mix(hash, bytes, state), read_word(reader, end - 8),
                       read_word(reader, end - 16));
}

/* Names a code object and a place in it.  A code object may be freed, and another one made at the
 * same address with parts at the same addresses, so that the contents count too: of names their
 * last characters, of the table of lines its length and its end. */
RS_HOT_INLINE uint64_t hash_of(struct reader *reader, const struct frame *frame)
{
    const struct rs_python_layout *layout = reader->chain->layout;
    uintptr_t filename = read_word(reader, frame->code + layout->filename);
    uintptr_t name = read_word(reader, frame->code + layout->name);
    uintptr_t linetable = read_word(reader, frame->code + layout->linetable), table_bytes;
    unsigned firstlineno = read_number(reader, frame->code + layout->firstlineno);
    uint64_t hash = rs_line_mix(1, frame->code, frame->instruction);

    if (RS_UNLIKELY(!filename || !name || !linetable)) {
        reader->is_bad = true;
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

static int offset_of(const struct rs_python_layout *layout, const struct frame *frame)
{
    if (layout->first_instruction)
        return (int)(frame->instruction - (frame->code + layout->first_instruction));
    return (int)frame->instruction * (int)layout->instruction_bytes;
}

static void put_number(struct page *page, const struct reader *reader, const struct frame *frame)
{
    char text[32];
    int number =
        reader->chain->line_number((void *)frame->code, offset_of(reader->chain->layout, frame));

    snprintf(text, sizeof(text), ":%d in ", number);
    put_string(page, reader->is_dumped && number < 0 ? ":??? in " : text);
}

static RS_COLD const struct rs_line *make_line(struct reader *reader, const struct frame *frame)
{
    const struct rs_python_layout *layout = reader->chain->layout;
    struct page page = {.used_bytes = 0};
    const struct rs_line *line;

    put_text(&page, reader, read_word(reader, frame->code + layout->filename));
    if (reader->is_bad)
        return NULL;
    put_number(&page, reader, frame);
    put_text(&page, reader, read_word(reader, frame->code + layout->name));
    if (page.used_bytes > RS_LINE_BYTES_MAX && !reader->is_dumped)
        give_up_line(reader);
    if (reader->is_bad)
        return NULL;
    RS_ASSERT(page.used_bytes > 0);
    line = rs_line_of(page.text, rs_min(page.used_bytes, RS_LINE_BYTES_MAX));
    if (!line)
        give_up_line(reader);
    return line;
}

RS_HOT_INLINE const struct rs_line *line_of(struct reader *reader, const struct frame *frame)
{
    uint64_t hash = hash_of(reader, frame);
    const struct rs_line *line = reader->is_bad || reader->is_dumped ? NULL : find(hash);

    if (RS_LIKELY(line) || reader->is_bad)
        return line;
    line = make_line(reader, frame);
    if (line && !reader->is_dumped)
        keep(hash, line);
    return line;
}

RS_HOT_INLINE uintptr_t innermost(struct reader *reader, const void *state)
{
    const struct rs_python_layout *layout = reader->chain->layout;
    uintptr_t found = read_word(reader, (uintptr_t)state + layout->state_frame);

    if (layout->holder_frame >= 0 && found)
        found = read_word(reader, found + (unsigned)layout->holder_frame);
    return found;
}

RS_HOT_INLINE bool is_of_c(struct reader *reader, uintptr_t frame)
{
    const struct rs_python_layout *layout = reader->chain->layout;
    unsigned char owner = 0;

    if (layout->owner >= 0)
        read_bytes(reader, frame + (unsigned)layout->owner, &owner, 1);
    return owner == OWNED_BY_C_STACK;
}

RS_HOT_INLINE struct frame frame_at(struct reader *reader, uintptr_t at)
{
    const struct rs_python_layout *layout = reader->chain->layout;
    struct frame frame = {.code = read_word(reader, at + layout->code)};

    if (layout->first_instruction)
        frame.instruction = read_word(reader, at + layout->instruction);
    else
        frame.instruction = read_number(reader, at + layout->instruction);
    reader->is_bad = reader->is_bad || !is_code(reader, frame.code);
    return frame;
}

static int failure(const struct reader *reader)
{
    return reader->is_untold ? RS_PYTHON_UNTOLD : RS_PYTHON_STRANGE;
}

RS_HOT_INLINE int read_chain(struct reader reader, const void *state, const struct rs_line **lines,
                             unsigned max)
{
    uintptr_t at = innermost(&reader, state);
    unsigned count = 0;

    for (unsigned seen = 0; at && count < max && !reader.is_bad; seen++) {
        if (!is_of_c(&reader, at)) {
            struct frame frame = frame_at(&reader, at);
            lines[count] = reader.is_bad ? NULL : line_of(&reader, &frame);
            if (!lines[count])
                return failure(&reader);
            count++;
        }
        at = read_word(&reader, at + reader.chain->layout->previous);
        reader.is_bad |= seen == FRAMES_SEEN_MAX;
    }
    RS_ASSERT(count <= max);
    return reader.is_bad ? failure(&reader) : (int)count;
}

int rs_python_chain_read(const struct rs_python_chain *chain, const void *state,
                         enum rs_python_reading reading, const struct rs_line **lines, unsigned max)
{
    struct reader reader = {chain, true, reading == RS_PYTHON_DUMPED, false, false};

    /* Two functions in one: the second asks nowhere how to read. */
    if (RS_UNLIKELY(reading != RS_PYTHON_TRUSTED))
        return read_chain(reader, state, lines, max);
    return read_chain((struct reader){chain, false, false, false, false}, state, lines, max);
}
