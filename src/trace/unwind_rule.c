/* SPDX-License-Identifier: Apache-2.0 */
/* Reads call frame information (DWARF 5, section 6.4, with the changes of the Linux Standard Base
 * for .eh_frame), as far as needed to find the caller, its stack pointer and its frame pointer.
 * Anything unknown makes the rule RS_UNWIND_UNKNOWN. */
#include "trace/unwind_rule.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
enum { FP = 6, SP = 7, RETURN = 16 };
#elif defined(__aarch64__)
enum { FP = 29, SP = 31, RETURN = 30 };
#else
#error "the registers' numbers in DWARF"
#endif

enum { WORD = sizeof(uintptr_t), REMEMBERED_MAX = 8 };

/* ---- reading ---- */

/* A part of a table that is being read. Reading beyond its end returns zero and sets is_bad. */
struct reader {
    const unsigned char *at, *end;
    bool is_bad;
};

static void skip(struct reader *reader, uint64_t bytes)
{
    if (bytes > (uint64_t)(reader->end - reader->at)) {
        reader->is_bad = true;
        reader->at = reader->end;
    } else {
        reader->at += bytes;
    }
}

static uint64_t read_fixed(struct reader *reader, unsigned bytes)
{
    const unsigned char *from = reader->at;
    uint64_t value = 0;

    skip(reader, bytes);
    if (!reader->is_bad)
        memcpy(&value, from, bytes); /* both supported processors are little-endian */
    return value;
}

static uint64_t read_leb128(struct reader *reader, bool is_signed)
{
    uint64_t value = 0, byte;
    unsigned shift = 0;

    do {
        byte = read_fixed(reader, 1);
        if (shift < 64)
            value |= (byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    if (is_signed && shift < 64 && byte & 0x40)
        value |= ~(uint64_t)0 << shift;
    return value;
}

static uint64_t read_unsigned(struct reader *reader)
{
    return read_leb128(reader, false);
}

static int64_t read_signed(struct reader *reader)
{
    return (int64_t)read_leb128(reader, true);
}

/* Returns a reader for the next `bytes` bytes, which `reader` skips. */
static struct reader read_block(struct reader *reader, uint64_t bytes)
{
    struct reader part = {reader->at, reader->at, false};

    skip(reader, bytes);
    part.is_bad = reader->is_bad;
    part.end = reader->at;
    return part;
}

/* ---- entries ---- */

struct common {
    uint64_t code_alignment;
    int64_t data_alignment;
    uint64_t return_column;
    /* How addresses are encoded in the entries of functions that refer to this common entry. */
    unsigned char encoding;
    bool is_augmented, is_signal;
    struct reader instructions;
};

/* Returns a reader for the contents of an entry, which begins with its length.  A length in its
 * long form makes the reader bad; the system's unwinder does not know that form either. */
static struct reader entry_at(const unsigned char *entry)
{
    uint32_t length;

    memcpy(&length, entry, sizeof(length));
    return (struct reader){entry + sizeof(length), entry + sizeof(length) + length,
                           length == UINT32_MAX || length < sizeof(uint32_t)};
}

/* Returns how many bytes an address has in an encoding (DW_EH_PE_...); 0 if that is not known. */
static unsigned encoded_bytes(unsigned char encoding)
{
    static const unsigned char bytes[8] = {WORD, 0, 2, 4, 8, 0, 0, 0};

    return encoding == 0xff ? 0 : bytes[encoding & 7];
}

static void read_augmentation(const char *letters, struct reader *data, struct common *common)
{
    for (; *letters; letters++) {
        unsigned char encoding;
        switch (*letters) {
        case 'R':
            common->encoding = (unsigned char)read_fixed(data, 1);
            break;
        case 'L':
            (void)read_fixed(data, 1);
            break;
        case 'P':
            encoding = (unsigned char)read_fixed(data, 1);
            data->is_bad |= encoding == 0x50 || !encoded_bytes(encoding); /* 0x50: aligned */
            skip(data, encoded_bytes(encoding));
            break;
        case 'S':
            common->is_signal = true;
            break;
        case 'B': /* return addresses are signed with key B, which does not matter, since
                     signatures are removed (unwind.c) */
        case 'G':
            break;
        default:
            data->is_bad = true;
            return;
        }
    }
}

static bool read_common(const unsigned char *entry, struct common *common)
{
    struct reader reader = entry_at(entry), data;
    const char *letters;
    uint64_t version;

    if (reader.is_bad)
        return false;
    *common = (struct common){.encoding = 0};
    skip(&reader, sizeof(uint32_t)); /* the identification, 0 */
    version = read_fixed(&reader, 1);
    letters = (const char *)reader.at;
    skip(&reader, strnlen(letters, (size_t)(reader.end - reader.at)) + 1);
    if (reader.is_bad || (version != 1 && version != 3) || (letters[0] && letters[0] != 'z'))
        return false;
    common->code_alignment = read_unsigned(&reader);
    common->data_alignment = read_signed(&reader);
    common->return_column = version == 1 ? read_fixed(&reader, 1) : read_unsigned(&reader);
    common->is_augmented = letters[0] == 'z';
    if (common->is_augmented) {
        data = read_block(&reader, read_unsigned(&reader));
        read_augmentation(letters + 1, &data, common);
        reader.is_bad |= data.is_bad;
    }
    common->instructions = reader;
    return !reader.is_bad && encoded_bytes(common->encoding);
}

/* Reads a function's entry (FDE), and the common entry (CIE) to which it refers by a distance.
 * Returns false if either is bad. */
static bool read_function(const unsigned char *entry, struct common *common,
                          struct reader *instructions)
{
    struct reader reader = entry_at(entry);
    const unsigned char *distance_at = reader.at;
    uint32_t distance;

    if (reader.is_bad)
        return false;
    distance = (uint32_t)read_fixed(&reader, sizeof(distance));
    if (!read_common(distance_at - distance, common))
        return false;
    skip(&reader, (uint64_t)2 * encoded_bytes(common->encoding)); /* beginning and length */
    if (common->is_augmented)
        skip(&reader, read_unsigned(&reader));
    *instructions = reader;
    return !reader.is_bad;
}

/* ---- instructions ---- */

enum how { UNSAVED, UNDEFINED, AT_CFA, AT_FP, STRANGE };

struct place {
    enum how how;
    int64_t offset;
};

struct row {
    enum rs_unwind_kind kind;
    int64_t cfa_offset;
    struct place fp, returns;
};

struct machine {
    const struct common *common;
    /* first: the row after the common entry's instructions, which `restore` brings back. */
    struct row row, first, remembered[REMEMBERED_MAX];
    unsigned remembered_count;
    uintptr_t at; /* the address from which on the row holds */
    bool is_strange;
};

/* Returns the member of the row that says how this register was saved; NULL for a register that
 * rules do not need. */
static struct place *place_in(struct row *row, uint64_t column)
{
    return column == FP ? &row->fp : column == RETURN ? &row->returns : NULL;
}

static void set_place(struct machine *machine, uint64_t column, enum how how, int64_t offset)
{
    struct place *place = place_in(&machine->row, column);

    if (place)
        *place = (struct place){how, offset};
}

static void restore(struct machine *machine, uint64_t column)
{
    struct place *place = place_in(&machine->row, column);

    if (place)
        *place = *place_in(&machine->first, column);
}

static void set_cfa_register(struct machine *machine, uint64_t column)
{
    machine->row.kind = column == SP   ? RS_UNWIND_BY_SP
                        : column == FP ? RS_UNWIND_BY_FP
                                       : RS_UNWIND_UNKNOWN;
}

enum { OP_DEREF = 0x06, OP_BREG0 = 0x70 };

/* True if the expression is "frame pointer plus offset", and stores the offset; with is_loaded the
 * expression must end with a `deref`, which reads the word at that address. */
static bool is_fp_and_offset(struct reader expression, bool is_loaded, int64_t *offset)
{
    if (read_fixed(&expression, 1) != OP_BREG0 + FP)
        return false;
    *offset = read_signed(&expression);
    return (!is_loaded || read_fixed(&expression, 1) == OP_DEREF) && !expression.is_bad &&
           expression.at == expression.end;
}

static void remember(struct machine *machine)
{
    if (machine->remembered_count == REMEMBERED_MAX)
        machine->is_strange = true;
    else
        machine->remembered[machine->remembered_count++] = machine->row;
}

static void recall(struct machine *machine)
{
    if (machine->remembered_count == 0)
        machine->is_strange = true;
    else
        machine->row = machine->remembered[--machine->remembered_count];
}

enum action {
    UNKNOWN,
    NOTHING,
    ADVANCE,
    SET,
    SET_BY_EXPRESSION,
    RESTORE,
    REMEMBER,
    RECALL,
    SET_CFA,
    SET_CFA_BY_EXPRESSION
};
enum operand { NO_OPERAND, PLAIN, FACTORED, SIGNED_FACTORED, BLOCK, BYTES_1, BYTES_2, BYTES_4 };

/* What each instruction (DW_CFA_...) does, and its operands: the column of a register, and then
 * another operand.  FACTORED operands are multiples of the common entry's data alignment. */
static const struct instruction {
    enum action action;
    enum operand operand;
    bool has_column;
    enum how how; /* for SET: how the register was saved */
} by_code[] = {
    [0x00] = {NOTHING, NO_OPERAND, false, UNSAVED},          /* nop */
    [0x02] = {ADVANCE, BYTES_1, false, UNSAVED},             /* advance_loc1 */
    [0x03] = {ADVANCE, BYTES_2, false, UNSAVED},             /* advance_loc2 */
    [0x04] = {ADVANCE, BYTES_4, false, UNSAVED},             /* advance_loc4 */
    [0x05] = {SET, FACTORED, true, AT_CFA},                  /* offset_extended */
    [0x06] = {RESTORE, NO_OPERAND, true, UNSAVED},           /* restore_extended */
    [0x07] = {SET, NO_OPERAND, true, UNDEFINED},             /* undefined */
    [0x08] = {SET, NO_OPERAND, true, UNSAVED},               /* same_value */
    [0x09] = {SET, PLAIN, true, STRANGE},                    /* register */
    [0x0a] = {REMEMBER, NO_OPERAND, false, UNSAVED},         /* remember_state */
    [0x0b] = {RECALL, NO_OPERAND, false, UNSAVED},           /* restore_state */
    [0x0c] = {SET_CFA, PLAIN, true, UNSAVED},                /* def_cfa */
    [0x0d] = {SET_CFA, NO_OPERAND, true, UNSAVED},           /* def_cfa_register */
    [0x0e] = {SET_CFA, PLAIN, false, UNSAVED},               /* def_cfa_offset */
    [0x0f] = {SET_CFA_BY_EXPRESSION, BLOCK, false, UNSAVED}, /* def_cfa_expression */
    [0x10] = {SET_BY_EXPRESSION, BLOCK, true, UNSAVED},      /* expression */
    [0x11] = {SET, SIGNED_FACTORED, true, AT_CFA},           /* offset_extended_sf */
    [0x12] = {SET_CFA, SIGNED_FACTORED, true, UNSAVED},      /* def_cfa_sf */
    [0x13] = {SET_CFA, SIGNED_FACTORED, false, UNSAVED},     /* def_cfa_offset_sf */
    [0x14] = {SET, PLAIN, true, STRANGE},                    /* val_offset */
    [0x15] = {SET, PLAIN, true, STRANGE}, /* val_offset_sf: signed, but only its length matters */
    [0x16] = {SET, BLOCK, true, STRANGE}, /* val_expression */
    [0x2d] = {NOTHING, NO_OPERAND, false, UNSAVED}, /* AARCH64_negate_ra_state */
    [0x2e] = {NOTHING, PLAIN, false, UNSAVED},      /* GNU_args_size */
};

static int64_t read_operand(const struct instruction *instruction, int64_t data_alignment,
                            struct reader *reader, struct reader *block)
{
    switch (instruction->operand) {
    case NO_OPERAND:
        return 0;
    case PLAIN:
        return (int64_t)read_unsigned(reader);
    case FACTORED:
        return (int64_t)read_unsigned(reader) * data_alignment;
    case SIGNED_FACTORED:
        return read_signed(reader) * data_alignment;
    case BLOCK:
        *block = read_block(reader, read_unsigned(reader));
        return 0;
    case BYTES_1:
    case BYTES_2:
    case BYTES_4:
        return (int64_t)read_fixed(reader, 1u << (instruction->operand - BYTES_1));
    }
    return 0;
}

static void do_instruction(struct machine *machine, const struct instruction *instruction,
                           struct reader *reader)
{
    struct row *row = &machine->row;
    struct reader block = {reader->at, reader->at, false};
    uint64_t column = instruction->has_column ? read_unsigned(reader) : 0;
    int64_t value = read_operand(instruction, machine->common->data_alignment, reader, &block);

    switch (instruction->action) {
    case UNKNOWN:
        machine->is_strange = true;
        break;
    case NOTHING:
        break;
    case ADVANCE:
        machine->at += (uint64_t)value * machine->common->code_alignment;
        break;
    case SET:
        set_place(machine, column, instruction->how, value);
        break;
    case SET_BY_EXPRESSION:
        if (is_fp_and_offset(block, false, &value))
            set_place(machine, column, AT_FP, value);
        else
            set_place(machine, column, STRANGE, 0);
        break;
    case RESTORE:
        restore(machine, column);
        break;
    case REMEMBER:
        remember(machine);
        break;
    case RECALL:
        recall(machine);
        break;
    case SET_CFA:
        if (instruction->has_column)
            set_cfa_register(machine, column);
        if (instruction->operand != NO_OPERAND)
            row->cfa_offset = value;
        break;
    case SET_CFA_BY_EXPRESSION:
        row->kind = is_fp_and_offset(block, true, &row->cfa_offset) ? RS_UNWIND_BY_SAVED
                                                                    : RS_UNWIND_UNKNOWN;
        break;
    }
}

/* Executes the instructions that apply to code before the address `until`. */
static void execute(struct machine *machine, struct reader reader, uintptr_t until)
{
    while (!reader.is_bad && !machine->is_strange && reader.at < reader.end &&
           machine->at < until) {
        uint64_t code = read_fixed(&reader, 1), operand = code & 0x3f;

        switch (code >> 6) {
        case 1: /* DW_CFA_advance_loc */
            machine->at += operand * machine->common->code_alignment;
            break;
        case 2: /* DW_CFA_offset */
            set_place(machine, operand, AT_CFA,
                      (int64_t)read_unsigned(&reader) * machine->common->data_alignment);
            break;
        case 3: /* DW_CFA_restore */
            restore(machine, operand);
            break;
        default:
            do_instruction(machine, &by_code[code < RS_ARRAY_LENGTH(by_code) ? code : 1], &reader);
        }
    }
    RS_ASSERT(reader.at <= reader.end && machine->remembered_count <= REMEMBERED_MAX);
    machine->is_strange |= reader.is_bad;
}

/* ---- the rule ---- */

static const struct rs_unwind_rule unknown = {.kind = RS_UNWIND_UNKNOWN},
                                   of_signal = {.kind = RS_UNWIND_SIGNAL},
                                   end = {.kind = RS_UNWIND_END};

#ifdef __x86_64__
enum { SAVED_WORDS_MAX = INT16_MAX };
#else
enum { SAVED_WORDS_MAX = (1 << 17) - 1 };
#endif

static bool is_words(int64_t offset, int64_t words_max)
{
    return offset % WORD == 0 && llabs(offset) <= words_max * WORD;
}

/* True when the row's numbers fit into a rule. That limits a frame to 8 MiB, which is the usual
 * size of a whole stack. */
static bool fits_rule(const struct row *row)
{
    return is_words(row->cfa_offset, 1 << 20) && is_words(row->fp.offset, SAVED_WORDS_MAX) &&
           is_words(row->returns.offset, SAVED_WORDS_MAX);
}

static enum rs_unwind_fp fp_of_row(const struct row *row)
{
    if (row->fp.how == AT_CFA)
        return RS_UNWIND_FP_AT_CFA;
    return row->fp.how == AT_FP ? RS_UNWIND_FP_AT_FP : RS_UNWIND_FP_SAME;
}

static struct rs_unwind_rule rule_of_row(const struct row *row)
{
    struct rs_unwind_rule rule = {
#ifdef __x86_64__
        .cfa_bytes = (int32_t)row->cfa_offset,
        .fp_words = (int16_t)(row->fp.offset / WORD),
        .kind = (uint8_t)row->kind,
        .fp = (uint8_t)fp_of_row(row),
#else
        .cfa_words = row->cfa_offset / WORD,
        .fp_words = row->fp.offset / WORD,
        .return_words = row->returns.offset / WORD,
        .kind = row->kind,
        .fp = fp_of_row(row),
#endif
    };

    if (row->returns.how == UNDEFINED)
        return end;
    if (row->kind == RS_UNWIND_UNKNOWN || row->returns.how != AT_CFA || row->fp.how == STRANGE ||
        !fits_rule(row) || row->returns.offset != (int64_t)rs_unwind_return_words(rule) * WORD)
        return unknown;
    RS_ASSERT(rs_unwind_cfa_bytes(rule) == row->cfa_offset);
    RS_ASSERT(rule.fp_words == row->fp.offset / WORD);
    return rule;
}

/* True for code that returns from a signal handler. */
static bool is_signal_return(uintptr_t address)
{
#ifdef __x86_64__
    static const unsigned char code[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
#else
    static const unsigned char code[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4};
#endif
    _Static_assert(sizeof(code) <= RS_UNWIND_SIGNAL_BYTES, "so much may be read");
    return memcmp((const void *)address, code, sizeof(code)) == 0;
}

struct rs_unwind_rule rs_unwind_rule_of(uintptr_t return_address, rs_unwind_find *find,
                                        bool is_readable)
{
    struct rs_unwind_bases bases = {NULL, NULL, NULL};
    /* One byte before the return address lies in the call; the return address itself may belong to
     * the next function. */
    const unsigned char *entry = find((void *)(return_address - 1), &bases);
    struct machine machine = {.remembered_count = 0};
    struct reader instructions;
    struct common common;

    if (!entry)
        return is_readable && is_signal_return(return_address) ? of_signal : unknown;
    if (!read_function(entry, &common, &instructions))
        return unknown;
    if (common.is_signal)
        return of_signal;
    if (common.return_column != RETURN)
        return unknown;
    machine.common = &common;
    execute(&machine, common.instructions, UINTPTR_MAX);
    machine.first = machine.row;
    machine.at = (uintptr_t)bases.function;
    execute(&machine, instructions, return_address);
    return machine.is_strange ? unknown : rule_of_row(&machine.row);
}
