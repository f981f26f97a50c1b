/* SPDX-License-Identifier: Apache-2.0 */
#include "config/variables.h"

#include "base/check.h"
#include "config/settings.h"

const char *const rs_kind_names[RS_KINDS] = {"device", "pinned", "managed"};
const char *const rs_kind_texts[RS_KINDS] = {"", ", pinned memory", ", managed memory"};
const int rs_kind_whole[RS_KINDS] = {RS_VARIABLE_RESOURCE, RS_VARIABLE_PINNED_RESOURCE,
                                     RS_VARIABLE_MANAGED_RESOURCE};

/* A field that generic code fills has the C type that the values are stored as. */
#define FIELD(field)                                                                               \
    _Generic(((struct rs_config *)0)->field, bool                                                  \
             : RS_OPTION_BOOLEAN, unsigned                                                         \
             : RS_OPTION_WORD, uint64_t                                                            \
             : RS_OPTION_COUNT, const char *                                                       \
             : RS_OPTION_TEXT)
#define ANY_TYPE -1
#define READ_BY(function, field)                                                                   \
    (sizeof(char[offsetof(struct rs_config, field) + 1]) ? ANY_TYPE : 0)
#define EARLY      ANY_TYPE
#define PER_DEVICE ANY_TYPE
#define PART       ANY_TYPE
#define VARIABLE(name, value_type, where, ...)                                                     \
    _Static_assert((int)(where) == ANY_TYPE || (int)(where) == RS_OPTION_##value_type,             \
                   "the field of RMM_" #name " has another type than its values");
#include "config/variables.def"
#undef FIELD
#undef READ_BY
#undef EARLY
#undef PER_DEVICE
#undef PART

#define FIELD(field)             .fills_a_field = true, .option.offset = offsetof(struct rs_config, field)
#define READ_BY(function, field) .read = (function)
#define EARLY                    .fills_a_field = false
#define PER_DEVICE               .per_device = true
#define PART                     PER_DEVICE, .builds_a_part = true
#define IN(word)                 .group = RS_GROUP_##word
#define COMMON(word)             IN(word), .is_common = true
#define REPORT                   .is_report = true
#define WORDS(...)                                                                                 \
    .option.words = (const char *const[])                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define GUIDE_WORDS(...)                                                                           \
    .guide_words = {                                                                               \
        __VA_ARGS__,                                                                               \
    }
#define OF_MEMORY     .option.unit_below = 1 << 20, .option.maximum = RS_SIZE_ADDRESSABLE
#define OF_ANY_MEMORY OF_MEMORY, .option.beyond_whole = true
/* The help, and behind it the fields that the row gives itself. */
#define VARIABLE(index, value_type, where, ...)                                                    \
    {.option.name = "RMM_" #index,                                                                 \
     .option.type = RS_OPTION_##value_type,                                                        \
     where,                                                                                        \
     .option.help = __VA_ARGS__},

const struct rs_variable rs_variables[] = {
#include "config/variables.def"
    {.option = {.name = NULL}},
};

_Static_assert(RS_ARRAY_LENGTH(rs_variables) == RS_VARIABLE_COUNT + 1, "a row each, and the end");
