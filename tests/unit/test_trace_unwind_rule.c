/* SPDX-License-Identifier: Apache-2.0 */
/* Rules from tables that are made by hand: what compilers write seldom, and what nobody should. */
#include "unit.h"

#include "trace/unwind_rule.h"

#include <string.h>

#ifdef __x86_64__
enum { FP = 6, SP = 7, RETURN = 16 };
#else
enum { FP = 29, SP = 31, RETURN = 30 };
#endif
enum { OTHER = 3, BREG = 0x70, DEREF = 6, WORD = sizeof(uintptr_t) };

/* Instructions, by the names that DWARF gives them. */
#define ADVANCE(count)         (0x40 | (count))
#define OFFSET(column, words)  (0x80 | (column)), (words)
#define RESTORE(column)        (0xc0 | (column))
#define RESTORE_EXTENDED       0x06
#define UNDEFINED              0x07
#define SAME_VALUE             0x08
#define IN_REGISTER            0x09
#define REMEMBER               0x0a
#define RECALL                 0x0b
#define DEF_CFA                0x0c
#define DEF_CFA_REGISTER       0x0d
#define DEF_CFA_OFFSET         0x0e
#define DEF_CFA_EXPRESSION     0x0f
#define EXPRESSION             0x10
#define OFFSET_EXTENDED        0x05
#define OFFSET_EXTENDED_SIGNED 0x11
#define DEF_CFA_SIGNED         0x12
#define DEF_CFA_OFFSET_SIGNED  0x13
#define VALUE_EXPRESSION       0x16
#define FOUR(instruction)      instruction, instruction, instruction, instruction
/* In any function: CFA is one word above the stack pointer, and below it the return address. */
#define AS_CALLED DEF_CFA, SP, WORD, OFFSET(RETURN, 1)

struct bytes {
    const unsigned char *at;
    size_t count;
};
#define BYTES(...)                                                                                 \
    ((struct bytes){(const unsigned char[]){__VA_ARGS__},                                          \
                    sizeof((const unsigned char[]){__VA_ARGS__})})
#define NONE ((struct bytes){NULL, 0})

struct table {
    unsigned char version;
    const char *letters;
    struct bytes data; /* what the letters describe, in the common entry */
    unsigned address_bytes, return_column;
    struct bytes common, function;
};

#define TABLE(...)                                                                                 \
    (&(const struct table){1, "zR", BYTES(0x1b), 4, RETURN, BYTES(AS_CALLED), __VA_ARGS__})

/* ---- the table in memory ---- */

static unsigned char memory[512];
static size_t used, common_at, function_at;
static uintptr_t function_start;

static void put(const void *bytes, size_t count)
{
    assert_true(count <= sizeof(memory) - used);
    if (count > 0)
        memcpy(memory + used, bytes, count);
    used += count;
}

static void put_byte(unsigned byte)
{
    put(&(unsigned char){(unsigned char)byte}, 1);
}

static void put_word(uint32_t word)
{
    put(&word, sizeof(word));
}

static void set_length(size_t entry, uint32_t length)
{
    memcpy(memory + entry, &length, sizeof(length));
}

static void end_entry(size_t entry)
{
    set_length(entry, (uint32_t)(used - entry - sizeof(uint32_t)));
}

static void make(const struct table *table)
{
    memset(memory, 0, sizeof(memory));
    used = 0;
    common_at = used;
    put_word(0);
    put_word(0);
    put_byte(table->version);
    put(table->letters, strlen(table->letters) + 1);
    put_byte(1);    /* code alignment */
    put_byte(0x78); /* data alignment: -8 */
    put_byte(table->return_column);
    if (table->letters[0] == 'z') {
        put_byte((unsigned)table->data.count);
        put(table->data.at, table->data.count);
    }
    put(table->common.at, table->common.count);
    end_entry(common_at);
    function_at = used;
    put_word(0);
    put_word((uint32_t)(used - common_at));
    used += (size_t)2 * table->address_bytes;
    if (table->letters[0] == 'z')
        put_byte(0);
    put(table->function.at, table->function.count);
    end_entry(function_at);
}

static const void *find(void *address, struct rs_unwind_bases *bases)
{
    assert_ptr_equal(address, (void *)(function_start + 15));
    bases->function = (void *)function_start;
    return memory + function_at;
}

/* For the frame of a call 16 bytes behind the beginning of the function. */
static struct rs_unwind_rule rule_in_memory(void)
{
    function_start = 0x10000;
    return rs_unwind_rule_of(function_start + 16, find, false);
}

static struct rs_unwind_rule rule_of(const struct table *table)
{
    make(table);
    return rule_in_memory();
}

#define assert_rule(rule, kind_, cfa_, fp_, fp_words_)                                             \
    do {                                                                                           \
        struct rs_unwind_rule is = (rule);                                                         \
        assert_int_equal(is.kind, kind_);                                                          \
        assert_int_equal(rs_unwind_cfa_bytes(is), cfa_);                                           \
        assert_int_equal(is.fp, fp_);                                                              \
        assert_int_equal(is.fp_words, fp_words_);                                                  \
    } while (0)
#define assert_plain(rule)   assert_rule(rule, RS_UNWIND_BY_SP, WORD, RS_UNWIND_FP_SAME, 0)
#define assert_unknown(rule) assert_int_equal((rule).kind, RS_UNWIND_UNKNOWN)

/* ---- entries ---- */

TEST(what_is_written_about_languages_is_read_over)
{
    assert_plain(rule_of(TABLE(NONE)));
    assert_plain(rule_of(&(struct table){1, "zPLR", BYTES(0x9b, 0, 0, 0, 0, 0x1b, 0x1b), 4, RETURN,
                                         BYTES(AS_CALLED), NONE}));
    assert_plain(rule_of(&(struct table){1, "zPR", BYTES(0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0x1b), 4,
                                         RETURN, BYTES(AS_CALLED), NONE}));
    assert_plain(
        rule_of(&(struct table){1, "zRBG", BYTES(0x1b), 4, RETURN, BYTES(AS_CALLED), NONE}));
    assert_plain(rule_of(&(struct table){1, "", NONE, WORD, RETURN, BYTES(AS_CALLED), NONE}));
    assert_plain(rule_of(&(struct table){3, "zR", BYTES(0x1b), 4, RETURN, BYTES(AS_CALLED), NONE}));
}

TEST(a_frame_of_a_signal_is_known_by_its_letter)
{
    assert_int_equal(
        rule_of(&(struct table){1, "zRS", BYTES(0x1b), 4, RETURN, BYTES(AS_CALLED), NONE}).kind,
        RS_UNWIND_SIGNAL);
}

TEST(an_entry_of_another_form_gives_no_rule)
{
    static const struct {
        unsigned char version;
        const char *letters;
        unsigned char data[2];
    } forms[] = {
        {2, "zR", {0x1b}}, {4, "zR", {0x1b}}, {1, "eh", {0}},           {1, "zRX", {0x1b}},
        {1, "zR", {0x01}}, {1, "zR", {0xff}}, {1, "zPR", {0xff, 0x1b}}, {1, "zPR", {0x01, 0x1b}},
    };

    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        assert_unknown(rule_of(&(struct table){forms[i].version,
                                               forms[i].letters,
                                               {forms[i].data, sizeof(forms[i].data)},
                                               4,
                                               RETURN,
                                               BYTES(AS_CALLED),
                                               NONE}));
    /* The address of a personality that is aligned: how far, only the entry's own address tells. */
    assert_unknown(rule_of(&(struct table){1, "zPR", BYTES(0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0x1b), 4,
                                           RETURN, BYTES(AS_CALLED), NONE}));
    /* A return address in a register that is no return address elsewhere. */
    assert_unknown(
        rule_of(&(struct table){1, "zR", BYTES(0x1b), 4, OTHER, BYTES(AS_CALLED), NONE}));
}

TEST(an_entry_without_a_length_gives_no_rule)
{
    static const uint32_t lengths[] = {0, 3, UINT32_MAX};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        make(TABLE(NONE));
        set_length(function_at, lengths[i]);
        assert_unknown(rule_in_memory());
        make(TABLE(NONE));
        set_length(common_at, lengths[i]);
        assert_unknown(rule_in_memory());
    }
}

/* The bytes behind the cut are those of the whole table: who reads them gets the whole rule. */
TEST(nothing_is_read_behind_an_entrys_end)
{
    const struct table *table = TABLE(BYTES(DEF_CFA_OFFSET, 16));
    uint32_t whole;

    make(table);
    memcpy(&whole, memory + common_at, sizeof(whole));
    for (uint32_t length = 4; length < whole; length++) {
        make(table);
        set_length(common_at, length);
        assert_unknown(rule_in_memory());
    }
    make(table);
    assert_rule(rule_in_memory(), RS_UNWIND_BY_SP, 16, RS_UNWIND_FP_SAME, 0);
    memcpy(&whole, memory + function_at, sizeof(whole));
    set_length(function_at, whole - 1); /* in the instruction */
    assert_unknown(rule_in_memory());
    set_length(function_at, whole - 2); /* before it */
    assert_plain(rule_in_memory());
    set_length(function_at, whole - 3); /* in the addresses */
    assert_unknown(rule_in_memory());
}

/* ---- instructions ---- */

TEST(a_register_is_where_the_table_says)
{
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA, FP, 16, OFFSET(FP, 2)))), RS_UNWIND_BY_FP, 16,
                RS_UNWIND_FP_AT_CFA, -2);
    assert_rule(rule_of(TABLE(BYTES(OFFSET_EXTENDED, FP, 3))), RS_UNWIND_BY_SP, WORD,
                RS_UNWIND_FP_AT_CFA, -3);
    assert_rule(rule_of(TABLE(BYTES(OFFSET_EXTENDED_SIGNED, FP, 0x7e))), RS_UNWIND_BY_SP, WORD,
                RS_UNWIND_FP_AT_CFA, 2);
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA_SIGNED, FP, 0x7c))), RS_UNWIND_BY_FP, 32,
                RS_UNWIND_FP_SAME, 0);
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA_OFFSET_SIGNED, 0x7d))), RS_UNWIND_BY_SP, 24,
                RS_UNWIND_FP_SAME, 0);
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA_REGISTER, FP))), RS_UNWIND_BY_FP, WORD,
                RS_UNWIND_FP_SAME, 0);
    assert_rule(rule_of(TABLE(BYTES(EXPRESSION, FP, 2, BREG + FP, 0x78))), RS_UNWIND_BY_SP, WORD,
                RS_UNWIND_FP_AT_FP, -1);
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA_EXPRESSION, 3, BREG + FP, 0x70, DEREF))),
                RS_UNWIND_BY_SAVED, -16, RS_UNWIND_FP_SAME, 0);
    assert_int_equal(rule_of(TABLE(BYTES(UNDEFINED, RETURN))).kind, RS_UNWIND_END);
}

TEST(what_concerns_other_registers_is_read_over)
{
    assert_plain(rule_of(
        TABLE(BYTES(OFFSET(OTHER, 2), IN_REGISTER, OTHER, 1, RESTORE(OTHER), RESTORE_EXTENDED,
                    OTHER, EXPRESSION, OTHER, 1, DEREF, VALUE_EXPRESSION, OTHER, 1, DEREF))));
}

TEST(a_restored_register_is_as_the_common_entry_says)
{
    assert_plain(rule_of(TABLE(BYTES(OFFSET(FP, 2), RESTORE(FP)))));
    assert_plain(rule_of(TABLE(BYTES(OFFSET(FP, 2), RESTORE_EXTENDED, FP))));
    assert_int_equal(rule_of(TABLE(BYTES(OFFSET(FP, 2), SAME_VALUE, FP))).fp, RS_UNWIND_FP_SAME);
    assert_rule(
        rule_of(&(struct table){1, "zR", BYTES(0x1b), 4, RETURN, BYTES(AS_CALLED, OFFSET(FP, 4)),
                                BYTES(OFFSET(FP, 2), RESTORE(FP))}),
        RS_UNWIND_BY_SP, WORD, RS_UNWIND_FP_AT_CFA, -4);
}

TEST(what_holds_later_in_the_function_is_not_followed)
{
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA_OFFSET, 16, ADVANCE(15), DEF_CFA_OFFSET, 24, ADVANCE(1),
                                    DEF_CFA_OFFSET, 32))),
                RS_UNWIND_BY_SP, 24, RS_UNWIND_FP_SAME, 0);
}

TEST(rows_are_remembered_one_over_the_other)
{
    assert_plain(rule_of(
        TABLE(BYTES(REMEMBER, DEF_CFA_OFFSET, 16, REMEMBER, DEF_CFA_OFFSET, 24, RECALL, RECALL))));
    assert_rule(
        rule_of(TABLE(BYTES(REMEMBER, DEF_CFA_OFFSET, 16, REMEMBER, DEF_CFA_OFFSET, 24, RECALL))),
        RS_UNWIND_BY_SP, 16, RS_UNWIND_FP_SAME, 0);
    assert_plain(rule_of(TABLE(BYTES(FOUR(REMEMBER), FOUR(REMEMBER), FOUR(RECALL), FOUR(RECALL)))));
    assert_unknown(rule_of(TABLE(BYTES(FOUR(REMEMBER), FOUR(REMEMBER), REMEMBER, RECALL))));
    assert_unknown(rule_of(TABLE(BYTES(RECALL))));
}

/* What no register can hold counts for nothing. */
TEST(a_number_may_be_longer_than_it_need_be)
{
    assert_rule(rule_of(TABLE(BYTES(DEF_CFA_OFFSET, 0x90, FOUR(0x80), FOUR(0x80), FOUR(0x80), 1))),
                RS_UNWIND_BY_SP, 16, RS_UNWIND_FP_SAME, 0);
}

TEST(what_no_rule_can_say_gives_none)
{
    static const struct {
        unsigned char at[8];
        size_t count;
    } functions[] = {
        {{0x01}, 1},                                      /* set_loc */
        {{0x2c}, 1},                                      /* of no meaning yet */
        {{0x3f}, 1},                                      /* of a vendor */
        {{DEF_CFA, OTHER, 16}, 3},                        /* by a register that is not followed */
        {{IN_REGISTER, FP, OTHER}, 3},                    /* in a register */
        {{VALUE_EXPRESSION, FP, 1, DEREF}, 4},            /* calculated */
        {{EXPRESSION, FP, 2, BREG + OTHER, 0}, 5},        /* beside another register */
        {{EXPRESSION, FP, 3, BREG + FP, 0, DEREF}, 6},    /* one word more in the expression */
        {{EXPRESSION, FP, 1, BREG + FP}, 4},              /* an expression without its number */
        {{DEF_CFA_EXPRESSION, 2, BREG + FP, 0}, 4},       /* an address that is calculated */
        {{DEF_CFA_EXPRESSION, 3, BREG + FP, 0, BREG}, 5}, /* the same, otherwise */
        {{DEF_CFA_OFFSET, 12}, 2},                        /* no whole number of words */
        {{DEF_CFA_OFFSET, 0x88, 0x80, 0x80, 0x08}, 5},    /* 16 MiB and a word */
        {{OFFSET_EXTENDED, FP, 0x80, 0x80, 0x10}, 5},     /* 2 MiB from CFA */
        {{SAME_VALUE, RETURN}, 2},                        /* the return address is not saved */
#ifdef __x86_64__
        {{OFFSET(RETURN, 2)}, 2}, /* the return address is not where a call puts it */
#endif
    };

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        struct rs_unwind_rule rule = rule_of(TABLE({functions[i].at, functions[i].count}));
        if (rule.kind != RS_UNWIND_UNKNOWN)
            fail_msg("function %zu has a rule, of kind %u", i, rule.kind);
    }
}
