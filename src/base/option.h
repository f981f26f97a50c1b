/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows.  A row describes one setting; the parser, the defaults, --help and the manual's
 * tables come from it.  Memory resources have rows for the fields of their configuration struct,
 * and so have the environment variables. */
#pragma once

#include "base/log.h"
#include "base/size.h"

enum rs_option_type {
    RS_OPTION_SIZE,     /* size_t field; 4GiB, 80%, and "none" (SIZE_MAX) where .none is set */
    RS_OPTION_EXPONENT, /* alias type for a SIZE field: 18 means 2^18 bytes */
    RS_OPTION_SIZES,    /* struct rs_sizes field: 256KiB+300000+1MiB, or none */
    RS_OPTION_RANGE,    /* struct rs_size_range field (two size_t): 256KiB-4MiB */
    RS_OPTION_COUNT,    /* uint64_t field; decimal, or hexadecimal with 0x */
    RS_OPTION_BOOLEAN,  /* bool field; 1 0 true false yes no on off */
    RS_OPTION_WORD,     /* int field: index into .words */
    RS_OPTION_TEXT,     /* const char * field */
};

struct rs_size_range {
    size_t from_bytes, to_bytes;
};

enum { RS_SIZES_MAX = 32 };

/* A list of distinct sizes, in the order given. */
struct rs_sizes {
    size_t count, bytes[RS_SIZES_MAX];
};

/* A further name of an option, the one that RMM uses. */
struct rs_option_alias {
    const char *name;
    enum rs_option_type type;
};

enum { RS_OPTION_ALIASES_MAX = 2, RS_OPTION_ROWS_MAX = 16 };

struct rs_option {
    const char *name;
    enum rs_option_type type;
    size_t offset;             /* of the field, from the start of the configuration struct */
    const char *default_text;  /* parsed like a value that the user gives; NULL: no default */
    const char *help;          /* one clause that names the unit */
    uint64_t minimum, maximum; /* bounds of COUNT, and of sizes in bytes; maximum 0: no bound */
    uint64_t unit_below;       /* a size below this many bytes must have a unit; 0: no such rule */
    size_t multiple_of; /* sizes in bytes are rounded down to a multiple of this, and a size of 1 to
                           multiple_of - 1 bytes is refused; 0: no such rule */
    bool none;          /* SIZE: the word "none" is allowed */
    bool is_required;   /* SIZE: a size must be given: the default, none, is refused */
    bool all;           /* SIZE: the word "all" is allowed, and means 1 byte */
    bool beyond_whole;  /* SIZE: percentages above 100 % are allowed */
    bool of_device; /* SIZE: percentages are of the device's memory, even if the upstream resource
                       has host memory */
    const char *const *words; /* WORD: the allowed words, NULL-terminated */
    const char *only_no; /* BOOLEAN: the text that says why yes is refused and what to use instead;
                            NULL: yes is allowed */
    struct rs_option_alias aliases[RS_OPTION_ALIASES_MAX];
};

/* The words of a BOOLEAN, in which no and yes alternate.  Of the words of a WORD that begin with
 * them, help and tables show only 0, 1 and what comes after them. */
#define RS_OPTION_BOOLEAN_WORDS "0", "1", "no", "yes", "off", "on", "false", "true"

/* The last row of an array. */
#define RS_OPTION_END                                                                              \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* The offset of a field.  It does not compile unless the field has the row's C type.  Each *_ROW
 * macro below makes the row of one field. */
#define RS_OPTION_FIELD(structure, field, c_type)                                                  \
    (offsetof(structure, field) +                                                                  \
     0 * sizeof(char[_Generic(((structure *)0)->field, c_type : 1, default                         \
                              : -1)]))
#define RS_OPTION_ROW(option_type, c_type, structure, field, default_value, help_text, ...)        \
    {                                                                                              \
        .name = #field, .type = (option_type),                                                     \
        .offset = RS_OPTION_FIELD(structure, field, c_type), .default_text = (default_value),      \
        .help = (help_text), __VA_ARGS__                                                           \
    }
#define RS_OPTION_SIZE_ROW(structure, field, ...)                                                  \
    RS_OPTION_ROW(RS_OPTION_SIZE, size_t, structure, field, __VA_ARGS__)
#define RS_OPTION_SIZES_ROW(structure, field, ...)                                                 \
    RS_OPTION_ROW(RS_OPTION_SIZES, struct rs_sizes, structure, field, __VA_ARGS__)
#define RS_OPTION_COUNT_ROW(structure, field, ...)                                                 \
    RS_OPTION_ROW(RS_OPTION_COUNT, uint64_t, structure, field, __VA_ARGS__)
#define RS_OPTION_BOOLEAN_ROW(structure, field, ...)                                               \
    RS_OPTION_ROW(RS_OPTION_BOOLEAN, bool, structure, field, __VA_ARGS__)
#define RS_OPTION_TEXT_ROW(structure, field, ...)                                                  \
    RS_OPTION_ROW(RS_OPTION_TEXT, const char *, structure, field, __VA_ARGS__)
#define RS_OPTION_WORD_ROW(structure, field, word_list, ...)                                       \
    RS_OPTION_ROW(RS_OPTION_WORD, int, structure, field, __VA_ARGS__, .words = (word_list))

/* A parsed value.  Percentages stay unresolved, since resolving them needs a device.  `text` is
 * owned: rs_option_value_clear frees it. */
struct rs_option_value {
    bool given;                   /* the user gave the value; false: it is the default */
    struct rs_size size, size_to; /* SIZE and EXPONENT: size.  RANGE: both */
    bool none;                    /* SIZE: the word "none" was given */
    uint64_t count;               /* COUNT: the number.  BOOLEAN: 0 or 1.  WORD: its index */
    char *text; /* TEXT: the text.  SIZES: the list, in its normal form.  NULL for other types */
};

/* Parses [begin, end), a part of source->text, as a value of `type` (the row's own type, or that of
 * one of its aliases), and checks the row's bounds.  Returns false after one diagnostic, with
 * *value unchanged.  Otherwise it stores the value and frees the text that *value had before. */
bool rs_option_parse(const struct rs_option *row, enum rs_option_type type,
                     const struct rs_source *source, const char *begin, const char *end,
                     struct rs_diagnostics *diagnostics, struct rs_option_value *value);

/* Parses the text of a SIZES value again; NULL is the empty list. */
struct rs_sizes rs_option_sizes(const char *text);

/* Sets each value to its row's default.  `values` has an element per row.  Returns 0 or -ENOMEM. */
int rs_option_defaults(const struct rs_option *rows, struct rs_option_value *values);

/* Frees the value's text. */
void rs_option_value_clear(struct rs_option_value *value);

/* Stores a value in its field of `config`.  Percentages are resolved against total_bytes and
 * free_bytes.  The field of a TEXT points to value->text, which is not copied. */
void rs_option_store(const struct rs_option *row, const struct rs_option_value *value, void *config,
                     size_t total_bytes, size_t free_bytes);

/* Returns the index of the word that is equal to [begin, end), ignoring case; -1 when none is. */
int rs_option_word(const char *const *words, const char *begin, const char *end);

/* Returns the row whose name or alias is [begin, end), ignoring case, or NULL. *type is the type
 * of the name that matched. */
const struct rs_option *rs_option_find(const struct rs_option *rows, const char *begin,
                                       const char *end, enum rs_option_type *type);

/* Returns the form of the row's value for help and tables: "SIZE", "SIZE|none", "COUNT", "0|1",
 * "TEXT", "wait|immediate", "0|1|auto".  `buffer` holds the result for WORD rows only. */
const char *rs_option_type_text(const struct rs_option *row, char *buffer, size_t buffer_bytes);

/* Writes a value in the form that rs_option_parse reads.  A text gets no quotes, an empty list of
 * sizes is "none", and percentages stay percentages.  Returns `buffer`. */
const char *rs_option_write(const struct rs_option *row, const struct rs_option_value *value,
                            char *buffer, size_t buffer_bytes);
