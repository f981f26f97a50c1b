/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows: the one description of a setting, from which parsing, defaults, --help and the
 * the manual's tables come.  Used by memory resources (fields of their configuration struct) and by
 * the environment variables. */
#pragma once

#include "base/diagnostic.h"
#include "base/size.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rs_option_type {
    RS_OPTION_SIZE,     /* size_t field; 4GiB, 80%, and "none" (SIZE_MAX) where .none is set */
    RS_OPTION_EXPONENT, /* alias type for a SIZE field: 18 means 2^18 bytes */
    RS_OPTION_SIZES,    /* struct rs_sizes field: 256KiB+300000+1MiB */
    RS_OPTION_RANGE,    /* two size_t fields (struct rs_size_range): 256KiB-4MiB */
    RS_OPTION_COUNT,    /* uint64_t field; decimal, or hexadecimal with 0x */
    RS_OPTION_BOOLEAN,  /* bool field; 1 0 true false yes no on off */
    RS_OPTION_WORD,     /* int field: index into .words */
    RS_OPTION_TEXT,     /* const char * field */
};

struct rs_size_range {
    size_t from_bytes, to_bytes;
};

enum { RS_SIZES_MAX = 32 };

/* A list of different sizes, as they were given. */
struct rs_sizes {
    size_t count, bytes[RS_SIZES_MAX];
};

/* RMM's name for the same thing. */
struct rs_option_alias {
    const char *name;
    enum rs_option_type type;
};

enum { RS_OPTION_ALIASES_MAX = 2, RS_OPTION_ROWS_MAX = 16 };

struct rs_option {
    const char *name;
    enum rs_option_type type;
    size_t offset;             /* of the field in the configuration struct */
    const char *default_text;  /* parsed like any value */
    const char *help;          /* one clause, units included */
    uint64_t minimum, maximum; /* of SIZE and SIZES (bytes) and COUNT; maximum 0: none */
    uint64_t unit_below;       /* SIZE: smaller numbers of bytes need a unit to be meant; 0: none */
    size_t multiple_of;        /* of SIZE given in bytes; 0: any */
    bool none;                 /* SIZE: the word "none" is allowed */
    bool beyond_whole;         /* SIZE: more than 100 % is for others to judge */
    bool of_device; /* SIZE: a percentage is of the device's memory, whatever is beneath */
    const char *const *words; /* WORD: NULL-terminated */
    struct rs_option_alias aliases[RS_OPTION_ALIASES_MAX];
};

/* Rows end with this. */
#define RS_OPTION_END                                                                              \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* A row for a field, whose C type is checked against the row's type. */
#define RS_OPTION_FIELD(structure, field, c_type)                                                  \
    (offsetof(structure, field) +                                                                  \
     0 * sizeof(char[_Generic(((structure *)0)->field, c_type : 1, default                         \
                              : -1)]))
#define RS_OPTION_SIZE_ROW(structure, field, default_value, help_text, ...)                        \
    {                                                                                              \
        .name = #field, .type = RS_OPTION_SIZE,                                                    \
        .offset = RS_OPTION_FIELD(structure, field, size_t), .default_text = (default_value),      \
        .help = (help_text), __VA_ARGS__                                                           \
    }
#define RS_OPTION_SIZES_ROW(structure, field, default_value, help_text, ...)                       \
    {                                                                                              \
        .name = #field, .type = RS_OPTION_SIZES,                                                   \
        .offset = RS_OPTION_FIELD(structure, field, struct rs_sizes),                              \
        .default_text = (default_value), .help = (help_text), __VA_ARGS__                          \
    }
#define RS_OPTION_COUNT_ROW(structure, field, default_value, help_text, ...)                       \
    {                                                                                              \
        .name = #field, .type = RS_OPTION_COUNT,                                                   \
        .offset = RS_OPTION_FIELD(structure, field, uint64_t), .default_text = (default_value),    \
        .help = (help_text), __VA_ARGS__                                                           \
    }
#define RS_OPTION_BOOLEAN_ROW(structure, field, default_value, help_text, ...)                     \
    {                                                                                              \
        .name = #field, .type = RS_OPTION_BOOLEAN,                                                 \
        .offset = RS_OPTION_FIELD(structure, field, bool), .default_text = (default_value),        \
        .help = (help_text), __VA_ARGS__                                                           \
    }
#define RS_OPTION_WORD_ROW(structure, field, word_list, default_value, help_text, ...)             \
    {                                                                                              \
        .name = #field, .type = RS_OPTION_WORD, .offset = RS_OPTION_FIELD(structure, field, int),  \
        .words = (word_list), .default_text = (default_value), .help = (help_text), __VA_ARGS__    \
    }
#define RS_OPTION_TEXT_ROW(structure, field, default_value, help_text, ...)                        \
    {                                                                                              \
        .name = #field, .type = RS_OPTION_TEXT,                                                    \
        .offset = RS_OPTION_FIELD(structure, field, const char *),                                 \
        .default_text = (default_value), .help = (help_text), __VA_ARGS__                          \
    }

/* A parsed value.  Sizes stay unresolved, since percentages need a device; text is owned. */
struct rs_option_value {
    bool given;                   /* not the default */
    struct rs_size size, size_to; /* SIZE, RANGE */
    bool none;                    /* SIZE */
    uint64_t count;               /* COUNT, BOOLEAN, WORD */
    char *text;                   /* TEXT; SIZES: as they would be written, NULL: none */
};

/* Parses [begin, end), a part of source->text, as a value of the row (or of its alias's type) and
 * checks its bounds.  Reports and returns false otherwise. */
bool rs_option_parse(const struct rs_option *row, enum rs_option_type type,
                     const struct rs_source *source, const char *begin, const char *end,
                     struct rs_diagnostics *diagnostics, struct rs_option_value *value);

/* The sizes of a SIZES value's text (NULL: none). */
struct rs_sizes rs_option_sizes(const char *text);

/* Sets every value to its row's default.  0 or -ENOMEM. */
int rs_option_defaults(const struct rs_option *rows, struct rs_option_value *values);

void rs_option_value_clear(struct rs_option_value *value);

/* Stores a value in its field of `config`, sizes resolved. */
void rs_option_store(const struct rs_option *row, const struct rs_option_value *value, void *config,
                     size_t total_bytes, size_t free_bytes);

/* The row called [begin, end), by its name or an alias; *type is what its value is written as. */
const struct rs_option *rs_option_find(const struct rs_option *rows, const char *begin,
                                       const char *end, enum rs_option_type *type);

/* "SIZE", "COUNT", "yes|no", "wait|immediate", "PATH": for help and tables. */
const char *rs_option_type_text(const struct rs_option *row, char *buffer, size_t buffer_bytes);
