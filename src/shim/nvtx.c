/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that the program pushes and pops by NVTX (RMM_PHASES=nvtx) become phases.
 *
 * NVTX 3 is a header, so each library that includes it has its own table of functions. At its first
 * call such a library loads the library that NVTX_INJECTION64_PATH names and calls
 * InitializeInjectionNvtx2 there. The argument is a function that finds the caller's table. The
 * declarations here are the part of NVTX's interface for tools that this file needs. */
#include "base/check.h"
#include "base/lock.h"
#include "config/mode.h"
#include "context/scope.h"
#include "driver/driver.h"
#include "shim/control.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

/* ---- NVTX's own numbers and types ---- */

enum { TABLE_OF_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5 };

enum { CORE_PUSH_EX = 8, CORE_PUSH_A = 9, CORE_PUSH_W = 10, CORE_POP = 11 };

enum { CORE2_DOMAIN_PUSH_EX = 4, CORE2_DOMAIN_POP = 5, CORE2_REGISTER_A = 10, CORE2_CREATE_A = 12 };

enum { MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

/* What push and pop return instead of a level if the tool does not track levels. */
enum { NO_PUSH_POP_TRACKING = -2 };

typedef void nvtx_function(void);

struct callbacks {
    size_t struct_size;
    int (*module_table)(uint32_t module, nvtx_function ****table, unsigned *size);
};

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    /* The text, or the handle that keep_text() returned for a registered text. */
    const char *message;
};

/* ---- text ---- */

/* Copies of registered strings and of the names of domains. Their addresses are the handles that
 * the program gets. A domain whose name has wide characters gets no handle, so its ranges count as
 * outside all domains. */
enum { KEPT_MAX = 1024 };

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(shim_nvtx, lock);
static char *kept[KEPT_MAX];
static size_t kept_count;

/* The caller holds the lock. */
static const char *find_kept(const char *text)
{
    RS_ASSERT_HELD(&lock);
    for (size_t i = 0; i < kept_count; i++)
        if (strcmp(kept[i], text) == 0)
            return kept[i];
    return NULL;
}

/* Returns the kept copy of the text; RS_PHASE_OTHERS when there is no room for it. */
static const char *keep_text(const char *text)
{
    char *copy = strndup(text ? text : "", RS_PHASE_NAME_BYTES);
    const char *found;

    if (!copy)
        return RS_PHASE_OTHERS;
    RS_MUTEX_GUARD(&lock);
    found = find_kept(copy);
    if (!found && kept_count < KEPT_MAX) {
        found = kept[kept_count++] = copy;
        copy = NULL;
    }
    free(copy);
    return found ? found : RS_PHASE_OTHERS;
}

/* Returns the text of a range; NULL if the range has no text, or the text has wide characters,
 * which are not supported. */
static const char *message_of(const struct attributes *attributes)
{
    bool has_text = attributes && attributes->size >= sizeof(*attributes) &&
                    (attributes->message_type == MESSAGE_ASCII ||
                     attributes->message_type == MESSAGE_REGISTERED);

    return has_text ? attributes->message : NULL;
}

/* ---- push and pop ---- */

/* The owner of the phases for ranges outside all domains (rs_control_push_range). */
static const char no_domain[1];

static int push_range(const char *domain, const char *message)
{
    char text[2 * RS_PHASE_NAME_BYTES];

    message = message && *message ? message : "(no message)";
    if (domain) {
        snprintf(text, sizeof(text), "%s/%s", domain, message);
        message = text;
    }
    rs_control_push_range(message, domain ? domain : no_domain);
    return NO_PUSH_POP_TRACKING;
}

static int pop_range(const char *domain)
{
    rs_control_pop_range(domain ? domain : no_domain);
    return NO_PUSH_POP_TRACKING;
}

static int domain_push_ex(const char *domain, const struct attributes *attributes)
{
    return push_range(domain, message_of(attributes));
}

static int push_ex(const struct attributes *attributes)
{
    return push_range(NULL, message_of(attributes));
}

static int push_a(const char *message)
{
    return push_range(NULL, message);
}

/* Pushes a range without a name, so that the program's pop finds one. */
static int push_w(const wchar_t *message)
{
    (void)message;
    return push_range(NULL, NULL);
}

static int pop_any(void)
{
    return pop_range(NULL);
}

static const char *register_a(const char *domain, const char *text)
{
    (void)domain;
    return keep_text(text);
}

static const char *create_a(const char *name)
{
    return keep_text(name);
}

/* ---- attaching ---- */

/* True when the library was loaded with the program.  In a child that has lost LD_PRELOAD but kept
 * NVTX_INJECTION64_PATH, NVTX loads this library too late for its hooks to take effect. */
static bool is_preloaded(void)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    bool is_there = program && rs_real_dlsym()(program, "rmmshim_version");

    if (program)
        dlclose(program);
    return is_there;
}

struct entry {
    uint32_t module;
    unsigned number;
    nvtx_function *function;
};

#define ENTRY(module, number, function)                                                            \
    {                                                                                              \
        module, number, (nvtx_function *)(void *)function                                          \
    }

static const struct entry entries[] = {
    ENTRY(MODULE_CORE, CORE_PUSH_EX, push_ex),
    ENTRY(MODULE_CORE, CORE_PUSH_A, push_a),
    ENTRY(MODULE_CORE, CORE_PUSH_W, push_w),
    ENTRY(MODULE_CORE, CORE_POP, pop_any),
    ENTRY(MODULE_CORE2, CORE2_DOMAIN_PUSH_EX, domain_push_ex),
    ENTRY(MODULE_CORE2, CORE2_DOMAIN_POP, pop_range),
    ENTRY(MODULE_CORE2, CORE2_REGISTER_A, register_a),
    ENTRY(MODULE_CORE2, CORE2_CREATE_A, create_a),
};

static bool attach_entry(const struct callbacks *callbacks, const struct entry *entry)
{
    nvtx_function ***table = NULL;
    unsigned size = 0;

    if (!callbacks->module_table(entry->module, &table, &size) || entry->number >= size ||
        !table[entry->number])
        return false;
    *table[entry->number] = entry->function;
    return true;
}

/* The type of NVTX's function that returns its export table of the given number, or NULL. */
typedef const void *get_table_function(uint32_t table);

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(get_table_function *get_table);

/* NVTX looks this function up in the library and calls it. It enters our functions into the
 * caller's table and returns 1. Returns 0 if ranges are not asked for, stacks do not serve, or the
 * library was not preloaded; NVTX then calls no function of ours. */
int InitializeInjectionNvtx2(get_table_function *get_table)
{
    const struct callbacks *callbacks;

    if (!is_preloaded() || rs_mode_now() != RS_MODE_SERVE || !rs_config.nvtx_phases)
        return 0;
    callbacks = get_table ? get_table(TABLE_OF_CALLBACKS) : NULL;
    if (!callbacks || callbacks->struct_size < sizeof(*callbacks))
        return 0;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(entries); i++)
        if (!attach_entry(callbacks, &entries[i]))
            return 0; /* NVTX then clears the functions that were filled in */
    return 1;
}
