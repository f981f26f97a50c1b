/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/objects.h"

#include "tool/tool.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The table of symbols that a file exports, or needs from other files. */
struct symbols {
    Elf64_Sym *symbols;
    char *names;
    size_t count, name_bytes;
    uint64_t section; /* the index of the symbols' section */
};

static bool read_elf_at(const struct elf_file *elf, void *to, size_t bytes, uint64_t offset)
{
    return offset <= INT64_MAX && pread(elf->fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* Reads a text of up to bytes - 1 bytes, and ends it with a zero byte.  The file may end earlier.
 * Returns false if nothing was read. */
static bool read_elf_text(const struct elf_file *elf, char *to, size_t bytes, uint64_t offset)
{
    ssize_t got = offset <= INT64_MAX ? pread(elf->fd, to, bytes - 1, (off_t)offset) : -1;

    to[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* ---- headers ---- */

static bool read_segment(const struct elf_file *elf, unsigned index, Elf64_Phdr *segment)
{
    return index < elf->program_header_count &&
           read_elf_at(elf, segment, sizeof(*segment),
                       elf->program_headers + (uint64_t)index * sizeof(*segment));
}

static void read_segments(struct elf_file *elf)
{
    Elf64_Phdr segment;

    for (unsigned i = 0; read_segment(elf, i, &segment); i++) {
        size_t bytes = segment.p_filesz < PATH_MAX - 1 ? segment.p_filesz + 1 : PATH_MAX;
        if (segment.p_type == PT_DYNAMIC) {
            elf->dynamic = segment.p_offset;
            elf->dynamic_bytes = segment.p_filesz;
        } else if (segment.p_type == PT_INTERP && !elf->has_interpreter) {
            elf->has_interpreter = true;
            (void)read_elf_text(elf, elf->interpreter, bytes, segment.p_offset);
        }
    }
}

/* Reads the header of the file, and for 64-bit files the program headers.  Of a 32-bit header only
 * fields are used that lie at the same offsets. */
static void read_header(struct elf_file *elf)
{
    Elf64_Ehdr header = {.e_phnum = 0};
    ssize_t got = pread(elf->fd, &header, sizeof(header), 0);

    if (got < (ssize_t)sizeof(Elf32_Ehdr) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return;
    elf->is_elf = true;
    elf->class = header.e_ident[EI_CLASS];
    elf->machine = header.e_machine;
    elf->type = header.e_type;
    if (elf->class != ELFCLASS64)
        return;
    elf->program_headers = header.e_phoff;
    elf->program_header_count = header.e_phnum;
    elf->sections = header.e_shoff;
    elf->section_count = header.e_shentsize == sizeof(Elf64_Shdr) ? header.e_shnum : 0;
    elf->section_names = header.e_shstrndx;
    read_segments(elf);
}

bool elf_open(const char *path, struct elf_file *elf)
{
    *elf = (struct elf_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (elf->fd < 0)
        return false;
    read_header(elf);
    return true;
}

void elf_close(struct elf_file *elf)
{
    close(elf->fd);
}

/* ---- the dynamic section ---- */

static bool read_entry(const struct elf_file *elf, size_t index, Elf64_Dyn *entry)
{
    uint64_t offset = (uint64_t)index * sizeof(*entry);

    return offset < elf->dynamic_bytes &&
           read_elf_at(elf, entry, sizeof(*entry), elf->dynamic + offset) &&
           entry->d_tag != DT_NULL;
}

/* Returns the value of the first dynamic entry with that tag; 0: none. */
static uint64_t dynamic_value(const struct elf_file *elf, int64_t tag)
{
    Elf64_Dyn entry;

    for (size_t i = 0; read_entry(elf, i, &entry); i++)
        if (entry.d_tag == tag)
            return entry.d_un.d_val;
    return 0;
}

/* Finds the offset in the file of the byte that is loaded at the address.  Returns false when no
 * byte of the file is loaded there. */
static bool find_offset(const struct elf_file *elf, uint64_t address, uint64_t *offset)
{
    Elf64_Phdr segment;

    for (unsigned i = 0; read_segment(elf, i, &segment); i++) {
        if (segment.p_type != PT_LOAD || address < segment.p_vaddr ||
            address - segment.p_vaddr >= segment.p_filesz)
            continue;
        *offset = segment.p_offset + (address - segment.p_vaddr);
        return true;
    }
    return false;
}

uintptr_t elf_address_of(const char *path, uint64_t offset)
{
    uintptr_t address = offset;
    Elf64_Phdr segment;
    struct elf_file elf;

    if (!elf_open(path, &elf))
        return address;
    for (unsigned i = 0; read_segment(&elf, i, &segment); i++)
        if (segment.p_type == PT_LOAD && offset - segment.p_offset < segment.p_filesz)
            address = offset - segment.p_offset + segment.p_vaddr;
    elf_close(&elf);
    return address;
}

/* Neither a static-pie nor the dynamic linker, which can be started as a program, has an
 * interpreter; only a static-pie has DF_1_PIE. */
bool elf_is_static(const struct elf_file *elf)
{
    if (elf->has_interpreter)
        return false;
    return elf->type == ET_EXEC ||
           (elf->type == ET_DYN && (dynamic_value(elf, DT_FLAGS_1) & DF_1_PIE));
}

bool elf_next_needed(const struct elf_file *elf, size_t *at, char name[ELF_NAME_BYTES])
{
    uint64_t texts;
    Elf64_Dyn entry;

    if (!find_offset(elf, dynamic_value(elf, DT_STRTAB), &texts))
        return false;
    while (read_entry(elf, (*at)++, &entry))
        if (entry.d_tag == DT_NEEDED)
            return read_elf_text(elf, name, ELF_NAME_BYTES, texts + entry.d_un.d_val);
    return false;
}

/* ---- its symbols ---- */

enum { SECTION_BYTES_MAX = 1 << 28 };

static bool read_section(const struct elf_file *elf, uint64_t index, Elf64_Shdr *section)
{
    return index < elf->section_count && elf->sections <= INT64_MAX &&
           read_elf_at(elf, section, sizeof(*section), elf->sections + index * sizeof(*section));
}

/* Returns the section's bytes and a zero byte; NULL if they cannot be read.  The caller frees them.
 */
static void *read_content(const struct elf_file *elf, const Elf64_Shdr *section)
{
    char *content =
        section->sh_size <= SECTION_BYTES_MAX ? tool_grow(NULL, section->sh_size + 1) : NULL;

    if (content && read_elf_at(elf, content, section->sh_size, section->sh_offset)) {
        content[section->sh_size] = '\0';
        return content;
    }
    free(content);
    return NULL;
}

static bool refers_to(const struct elf_file *elf, const struct symbols *symbols, size_t index)
{
    Elf64_Shdr section;
    bool refers = false;

    for (uint64_t i = 0; !refers && read_section(elf, i, &section); i++) {
        Elf64_Rela *entries = NULL;
        if (section.sh_type == SHT_RELA && section.sh_link == symbols->section)
            entries = read_content(elf, &section);
        for (size_t j = 0; entries && !refers && j < section.sh_size / sizeof(*entries); j++)
            refers = ELF64_R_SYM(entries[j].r_info) == index;
        free(entries);
    }
    return refers;
}

static void free_symbols(struct symbols *symbols)
{
    free(symbols->symbols);
    free(symbols->names);
}

static bool read_symbols(const struct elf_file *elf, struct symbols *symbols)
{
    Elf64_Shdr table, names;
    uint64_t i = 0;

    *symbols = (struct symbols){.count = 0};
    while (read_section(elf, i, &table) && table.sh_type != SHT_DYNSYM)
        i++;
    if (!read_section(elf, i, &table) || !read_section(elf, table.sh_link, &names))
        return false;
    symbols->count = table.sh_size / sizeof(*symbols->symbols);
    symbols->name_bytes = names.sh_size;
    symbols->symbols = read_content(elf, &table);
    symbols->names = read_content(elf, &names);
    symbols->section = i;
    if (symbols->symbols && symbols->names)
        return true;
    free_symbols(symbols);
    return false;
}

static const char *symbol_name(const struct symbols *symbols, size_t index)
{
    size_t at = symbols->symbols[index].st_name;

    return at < symbols->name_bytes ? symbols->names + at : "";
}

bool elf_has_lines(const char *path)
{
    Elf64_Shdr section;
    struct elf_file elf;
    char *names = NULL;
    bool has;

    if (!elf_open(path, &elf))
        return false;
    if (read_section(&elf, elf.section_names, &section))
        names = read_content(&elf, &section);
    has = names && memmem(names, section.sh_size, "debug_line", strlen("debug_line"));
    free(names);
    elf_close(&elf);
    return has;
}

/* ---- its bytes ---- */

enum { WINDOW_BYTES = 1 << 20, OVERLAP_BYTES = 64 };

bool elf_contains(const struct elf_file *elf, const char *text)
{
    char *window = tool_grow(NULL, WINDOW_BYTES);
    bool found = false;
    ssize_t got;

    for (off_t at = 0; !found; at += WINDOW_BYTES - OVERLAP_BYTES) {
        got = pread(elf->fd, window, WINDOW_BYTES, at);
        found = got > 0 && memmem(window, (size_t)got, text, strlen(text));
        if (got < WINDOW_BYTES)
            break;
    }
    free(window);
    return found;
}

char *elf_demangle(const char *name)
{
    static char *(*function)(const char *name, char *to, size_t *room, int *failed);
    static bool is_looked_up;
    int failed = 0;

    if (strncmp(name, "_Z", 2) != 0)
        return NULL;
    if (!is_looked_up) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY);
        void *found = library ? dlsym(library, "__cxa_demangle") : NULL;
        memcpy(&function, &found, sizeof(function));
        is_looked_up = true;
    }
    return function ? function(name, NULL, NULL, &failed) : NULL;
}

/* ---- what the linker loads for a program ---- */

enum { OBJECTS_MAX = 4096 };

/* Only variables that decide what is loaded are passed to the linker.  Others (LD_AUDIT, LD_DEBUG)
 * might make it run code of the objects, or print something else. */
enum { VARIABLES = 2 };

static void choose_variables(char *const *environment, char *chosen[VARIABLES + 1])
{
    static const char *const names[VARIABLES] = {"LD_PRELOAD", "LD_LIBRARY_PATH"};
    size_t count = 0;

    for (size_t i = 0; i < VARIABLES; i++) {
        const char *value = tool_variable(environment, names[i]);
        if (value)
            chosen[count++] = (char *)(uintptr_t)(value - strlen(names[i]) - strlen("="));
    }
    chosen[count] = NULL;
}

void load_order_add(struct load_order *order, const char *path)
{
    if (order->count == OBJECTS_MAX)
        return;
    order->paths = tool_grow(order->paths, (order->count + 1) * sizeof(char *));
    order->paths[order->count++] = tool_format("%s", path);
}

/* Adds the object of a line "\tNAME => PATH (0x...)" or "\tPATH (0x...)"; a name without a path is
 * not a file. */
static void take_listed_object(struct load_order *order, char *line)
{
    char *path = strstr(line, "=> "), *end = strstr(line, " (0x");

    order->missing += strstr(line, "=> not found") != NULL;
    path = path ? path + strlen("=> ") : line + strspn(line, "\t ");
    if (!end || end < path || *path != '/')
        return;
    *end = '\0';
    load_order_add(order, path);
}

bool load_order_read(const char *program, char *const *environment, struct load_order *order)
{
    char *words[] = {NULL, (char *)(uintptr_t) "--list", (char *)(uintptr_t)program, NULL};
    char *chosen[VARIABLES + 1], *line = NULL;
    struct elf_file own;
    size_t room = 0;
    FILE *output;
    pid_t lister;

    *order = (struct load_order){.count = 0};
    if (!elf_open("/proc/self/exe", &own))
        return false;
    elf_close(&own);
    words[0] = own.interpreter;
    choose_variables(environment, chosen);
    output = *own.interpreter ? tool_start(words, chosen, 0, &lister) : NULL;
    if (!output)
        return false;
    while (getline(&line, &room, output) > 0)
        take_listed_object(order, line);
    free(line);
    tool_end(output, lister);
    return order->count > 0;
}

void load_order_free(struct load_order *order)
{
    for (size_t i = 0; i < order->count; i++)
        free(order->paths[i]);
    free(order->paths);
    *order = (struct load_order){.count = 0};
}

size_t load_order_find(const struct load_order *order, const char *begin)
{
    size_t i = 0;

    while (i < order->count && !tool_begins(basename(order->paths[i]), begin))
        i++;
    return i;
}

/* ---- variables with names of functions ---- */

static bool exports(const struct symbols *library, const char *name)
{
    for (size_t i = 0; i < library->count; i++)
        if (library->symbols[i].st_shndx != SHN_UNDEF && strcmp(symbol_name(library, i), name) == 0)
            return true;
    return false;
}

/* True for a variable with a name like the driver's functions (cu...), if the dynamic linker looks
 * that name up for the object's own references, and so finds the library's function first.
 * Protected symbols, and those of an object linked with -Bsymbolic, are bound without a look-up. */
static bool is_redirected(const struct elf_file *elf, const struct symbols *symbols, size_t index)
{
    const Elf64_Sym *symbol = &symbols->symbols[index];

    return ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && symbol->st_shndx != SHN_UNDEF &&
           ELF64_ST_BIND(symbol->st_info) != STB_LOCAL &&
           ELF64_ST_VISIBILITY(symbol->st_other) == STV_DEFAULT &&
           tool_begins(symbol_name(symbols, index), "cu") && refers_to(elf, symbols, index);
}

static void look_at_symbols(const struct symbols *library, const struct elf_file *elf,
                            struct namesake *found)
{
    struct symbols symbols;

    if (!read_symbols(elf, &symbols))
        return;
    for (size_t i = 0; i < symbols.count; i++) {
        const char *name = symbol_name(&symbols, i);
        if (is_redirected(elf, &symbols, i) && exports(library, name))
            rs_text_add(found->names, sizeof(found->names), "%s%s", found->count++ ? ", " : "",
                        name);
    }
    free_symbols(&symbols);
}

bool namesake_look(const char *library, const char *path, struct namesake *found)
{
    struct symbols exported;
    struct elf_file ours, theirs;

    *found = (struct namesake){.count = 0};
    if (!elf_open(library, &ours))
        return false;
    if (read_symbols(&ours, &exported)) {
        if (elf_open(path, &theirs)) {
            look_at_symbols(&exported, &theirs, found);
            elf_close(&theirs);
        }
        free_symbols(&exported);
    }
    elf_close(&ours);
    return found->count > 0;
}
