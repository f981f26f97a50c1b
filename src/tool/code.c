/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/code.h"

#include "base/check.h"
#include "report/plain.h"
#include "tool/objects.h"
#include "tool/tool.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES_MAX = 1 << 16, ADDRESS_BYTES = 20, ASKED_AT_ONCE = 1024 };

struct object {
    struct object *next;
    char path[PATH_MAX]; /* as this process can open it */
    const char *name;    /* its last part */
};

/* A part of an object that is mapped. */
struct range {
    struct range *next;
    uintptr_t begin, end;
    uint64_t offset; /* of its first byte in the file */
    struct object *object;
};

struct place {
    struct code_place told; /* the first member */
    struct place *next;
    uintptr_t return_address;
    const struct object *object; /* NULL: none holds the address */
};

struct code {
    struct object *objects;
    struct range *ranges;
    struct place *places;
    size_t place_count;
    int process;
    bool is_own_users;
    char *(*demangle)(const char *name, char *to, size_t *room, int *failed);
};

/* ---- objects ---- */

static struct object *object_of(struct code *code, const char *path)
{
    char own[PATH_MAX];
    struct object *object = code->objects;

    /* The process may have other mounts. */
    if ((size_t)snprintf(own, sizeof(own), "/proc/%d/root%s", code->process, path) >= sizeof(own))
        return NULL;
    while (object && strcmp(object->path, own) != 0)
        object = object->next;
    if (object)
        return object;
    object = malloc(sizeof(*object));
    if (!object)
        return NULL;
    memcpy(object->path, own, sizeof(own));
    object->name = strrchr(object->path, '/') + 1;
    object->next = code->objects;
    return code->objects = object;
}

static void add_range(struct code *code, char *line)
{
    unsigned long begin, end, offset;
    int at = 0;
    struct range *range;

    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &begin, &end, &offset, &at) < 3 || !at ||
        line[at] != '/')
        return;
    range = malloc(sizeof(*range));
    if (!range)
        return;
    *range = (struct range){code->ranges, begin, end, offset, object_of(code, line + at)};
    code->ranges = range;
}

static bool read_ranges(struct code *code)
{
    char path[64], *line = NULL;
    size_t room = 0;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%d/maps", code->process);
    maps = fopen(path, "re");
    if (!maps)
        return false;
    while (getline(&line, &room, maps) > 0)
        add_range(code, line);
    free(line);
    fclose(maps);
    return code->ranges;
}

struct code *code_open(int process)
{
    struct code *code = calloc(1, sizeof(*code));
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY), *demangle = NULL;
    char path[64];
    struct stat status;

    if (library)
        demangle = dlsym(library, "__cxa_demangle");
    snprintf(path, sizeof(path), "/proc/%d", process);
    if (!code)
        return NULL;
    code->process = process;
    memcpy(&code->demangle, &demangle, sizeof(demangle));
    code->is_own_users = stat(path, &status) == 0 && status.st_uid == geteuid();
    if (read_ranges(code))
        return code;
    code_close(code);
    return NULL;
}

#define FREE_LIST(type, first)                                                                     \
    for (type *one = (first), *next; one; one = next) {                                            \
        next = one->next;                                                                          \
        free(one);                                                                                 \
    }

void code_close(struct code *code)
{
    for (struct place *place = code->places; place; place = place->next)
        free(place->told.line);
    FREE_LIST(struct place, code->places)
    FREE_LIST(struct range, code->ranges)
    FREE_LIST(struct object, code->objects)
    free(code);
}

/* ---- an address ---- */

/* The address that the object file itself gives to a byte of it. */
static uintptr_t address_in(const char *path, uint64_t offset)
{
    struct elf_file elf;
    uintptr_t address;

    if (!elf_open(path, &elf))
        return offset;
    address = elf_address_of(&elf, offset);
    elf_close(&elf);
    return address;
}

static void demangle(const struct code *code, struct rs_symbol *symbol)
{
    int failed = 0;
    char *name = NULL;

    if (code->demangle && strncmp(symbol->function, "_Z", 2) == 0)
        name = code->demangle(symbol->function, NULL, NULL, &failed);
    if (name)
        snprintf(symbol->function, sizeof(symbol->function), "%s", name);
    free(name);
    rs_plain_make(symbol->function);
}

static void describe(const struct code *code, struct place *place)
{
    struct rs_symbol *symbol = &place->told.symbol;
    uintptr_t call = place->return_address - 1;
    const struct range *range = code->ranges;

    *symbol = (struct rs_symbol){.object = "?", .object_offset = call};
    while (range && !(range->object && call >= range->begin && call < range->end))
        range = range->next;
    if (!range)
        return;
    place->object = range->object;
    symbol->object_offset = address_in(range->object->path, call - range->begin + range->offset);
    snprintf(symbol->object, sizeof(symbol->object), "%s", range->object->name);
    rs_plain_make(symbol->object);
    rs_symbol_in_file(range->object->path, symbol->object_offset, symbol);
    demangle(code, symbol);
}

const struct code_place *code_ask(struct code *code, uintptr_t return_address)
{
    struct place *place = code->places;

    while (place && place->return_address != return_address)
        place = place->next;
    if (place)
        return &place->told;
    place = code->place_count < PLACES_MAX ? calloc(1, sizeof(*place)) : NULL;
    if (!place)
        return NULL;
    place->return_address = return_address;
    place->next = code->places;
    code->places = place;
    code->place_count++;
    describe(code, place);
    return &place->told;
}

/* ---- file and line ---- */

static bool has_lines(const char *path)
{
    struct elf_file elf;
    bool has;

    if (!elf_open(path, &elf))
        return false;
    has = elf_has_lines(&elf);
    elf_close(&elf);
    return has;
}

/* "/home/me/train.cc:41 (discriminator 2)"; "??:0" where it is not known. */
static void take_line(struct place *place, char *line)
{
    size_t length = strcspn(line, "\n");
    char *more;

    line[length] = '\0';
    more = strstr(line, " (");
    if (more)
        *more = '\0';
    length = strlen(line);
    if (line[0] == '?' || length < 2 || strcmp(line + length - 2, ":?") == 0 ||
        strcmp(line + length - 2, ":0") == 0)
        return;
    rs_plain_make(line);
    place->told.line = strdup(line);
}

static void ask_some(const struct object *object, struct place *const *places, size_t count)
{
    static char addresses[ASKED_AT_ONCE][ADDRESS_BYTES];
    static char *words[ASKED_AT_ONCE + 4];
    char *line = NULL;
    size_t room = 0, at = 0;
    pid_t child;
    FILE *answers;

    words[0] = (char *)(uintptr_t) "addr2line";
    words[1] = (char *)(uintptr_t) "-e";
    words[2] = (char *)(uintptr_t)object->path;
    for (size_t i = 0; i < count; i++) {
        snprintf(addresses[i], ADDRESS_BYTES, "%#zx", (size_t)places[i]->told.symbol.object_offset);
        words[3 + i] = addresses[i];
    }
    words[3 + count] = NULL;
    answers = tool_start(words, environ, 0, &child);
    if (!answers)
        return;
    while (at < count && getline(&line, &room, answers) > 0)
        take_line(places[at++], line);
    free(line);
    tool_end(answers, child);
}

static void ask_of(const struct code *code, const struct object *object)
{
    static struct place *places[ASKED_AT_ONCE];
    size_t count = 0;

    for (struct place *place = code->places; place; place = place->next) {
        if (place->object == object && !place->told.line)
            places[count++] = place;
        if (count == ASKED_AT_ONCE || (count > 0 && !place->next)) {
            ask_some(object, places, count);
            count = 0;
        }
    }
}

/* A program that reads files of another user's choosing is not started for root. */
void code_find_lines(struct code *code)
{
    for (const struct object *object = code->objects; object; object = object->next) {
        const struct place *place = code->places;
        while (place && place->object != object)
            place = place->next;
        if (place && code->is_own_users && has_lines(object->path))
            ask_of(code, object);
    }
}
