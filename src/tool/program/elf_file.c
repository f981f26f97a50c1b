/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/program/elf_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool read_at(const struct elf_file *elf, void *to, size_t bytes, uint64_t offset)
{
    return offset <= INT64_MAX && pread(elf->fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* A text that may be the file's last. */
static bool read_text(const struct elf_file *elf, char *to, size_t bytes, uint64_t offset)
{
    ssize_t got = offset <= INT64_MAX ? pread(elf->fd, to, bytes - 1, (off_t)offset) : -1;

    to[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* ---- headers ---- */

static bool read_segment(const struct elf_file *elf, unsigned index, Elf64_Phdr *segment)
{
    return index < elf->program_header_count &&
           read_at(elf, segment, sizeof(*segment),
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
            (void)read_text(elf, elf->interpreter, bytes, segment.p_offset);
        }
    }
}

/* Program headers are read for 64-bit files only; the fields used of a 32-bit header lie at the
 * same offsets. */
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
           read_at(elf, entry, sizeof(*entry), elf->dynamic + offset) && entry->d_tag != DT_NULL;
}

/* The value of the first entry with that tag; 0: none. */
static uint64_t dynamic_value(const struct elf_file *elf, int64_t tag)
{
    Elf64_Dyn entry;

    for (size_t i = 0; read_entry(elf, i, &entry); i++)
        if (entry.d_tag == tag)
            return entry.d_un.d_val;
    return 0;
}

/* Where the file has what is loaded at the address. */
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

/* The dynamic linker itself, which can be started too, has no DF_1_PIE. */
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
            return read_text(elf, name, ELF_NAME_BYTES, texts + entry.d_un.d_val);
    return false;
}

/* ---- its symbols ---- */

enum { SECTION_BYTES_MAX = 1 << 28 };

static bool read_section(const struct elf_file *elf, uint64_t index, Elf64_Shdr *section)
{
    Elf64_Ehdr header;

    return read_at(elf, &header, sizeof(header), 0) && index < header.e_shnum &&
           header.e_shentsize == sizeof(*section) && header.e_shoff <= INT64_MAX &&
           read_at(elf, section, sizeof(*section), header.e_shoff + index * sizeof(*section));
}

/* The section's bytes and a zero.  NULL where they cannot be read; free() is due. */
static void *read_content(const struct elf_file *elf, const Elf64_Shdr *section)
{
    char *content = section->sh_size <= SECTION_BYTES_MAX ? malloc(section->sh_size + 1) : NULL;

    if (content && read_at(elf, content, section->sh_size, section->sh_offset)) {
        content[section->sh_size] = '\0';
        return content;
    }
    free(content);
    return NULL;
}

bool elf_refers_to(const struct elf_file *elf, const struct elf_symbols *symbols, size_t index)
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

bool elf_read_symbols(const struct elf_file *elf, struct elf_symbols *symbols)
{
    Elf64_Shdr table, names;
    uint64_t i = 0;

    *symbols = (struct elf_symbols){.count = 0};
    if (!elf->is_elf || elf->class != ELFCLASS64)
        return false;
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
    elf_free_symbols(symbols);
    return false;
}

void elf_free_symbols(struct elf_symbols *symbols)
{
    free(symbols->symbols);
    free(symbols->names);
    *symbols = (struct elf_symbols){.count = 0};
}

const char *elf_symbol_name(const struct elf_symbols *symbols, size_t index)
{
    size_t at = symbols->symbols[index].st_name;

    return at < symbols->name_bytes ? symbols->names + at : "";
}

/* ---- its bytes ---- */

enum { WINDOW_BYTES = 1 << 20, OVERLAP_BYTES = 64 };

bool elf_contains(const struct elf_file *elf, const char *text)
{
    char *window = malloc(WINDOW_BYTES);
    bool found = false;
    ssize_t got;

    for (off_t at = 0; window && !found; at += WINDOW_BYTES - OVERLAP_BYTES) {
        got = pread(elf->fd, window, WINDOW_BYTES, at);
        found = got > 0 && memmem(window, (size_t)got, text, strlen(text));
        if (got < WINDOW_BYTES)
            break;
    }
    free(window);
    return found;
}
