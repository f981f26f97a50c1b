/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/symbol.h"

#include "base/file.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* A mapped object file. */
struct file {
    const unsigned char *bytes;
    size_t length;
};

static bool map_file(const char *path, struct file *file)
{
    int fd = rs_file_open(path);
    struct stat status;
    void *mapped = MAP_FAILED;

    if (fd < 0)
        return false;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        (size_t)status.st_size > sizeof(ElfW(Ehdr)))
        mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    rs_file_close(fd);
    if (mapped == MAP_FAILED)
        return false;
    *file = (struct file){mapped, (size_t)status.st_size};
    return true;
}

/* Returns a part of the file, or NULL when it would reach beyond the end. */
static const void *part(const struct file *file, size_t offset, size_t bytes)
{
    return offset <= file->length && bytes <= file->length - offset ? file->bytes + offset : NULL;
}

/* Copies a part of the file out: tables in a file need not be aligned. */
static bool read_part(const struct file *file, size_t offset, void *into, size_t bytes)
{
    const void *from = part(file, offset, bytes);

    if (from)
        memcpy(into, from, bytes);
    return from;
}

static bool find_section(const struct file *file, const ElfW(Ehdr) * header, unsigned type,
                         ElfW(Shdr) * section)
{
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (!read_part(file, header->e_shoff + (size_t)i * sizeof(*section), section,
                       sizeof(*section)))
            return false;
        if (section->sh_type == type)
            return true;
    }
    return false;
}

static void copy_name(const struct file *file, const ElfW(Shdr) * names, size_t at,
                      struct rs_symbol *symbol)
{
    const char *table = part(file, names->sh_offset, names->sh_size);

    if (table && at < names->sh_size)
        snprintf(symbol->function, sizeof(symbol->function), "%.*s",
                 (int)strnlen(table + at, names->sh_size - at), table + at);
}

static void search_file(const struct file *file, uintptr_t offset, struct rs_symbol *symbol)
{
    ElfW(Ehdr) header;
    ElfW(Shdr) section, names;
    ElfW(Sym) entry;

    if (!read_part(file, 0, &header, sizeof(header)) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_shentsize != sizeof(section) ||
        !(find_section(file, &header, SHT_SYMTAB, &section) ||
          find_section(file, &header, SHT_DYNSYM, &section)) ||
        !read_part(file, header.e_shoff + (size_t)section.sh_link * sizeof(names), &names,
                   sizeof(names)))
        return;
    for (size_t i = 0; i < section.sh_size / sizeof(entry); i++) {
        if (!read_part(file, section.sh_offset + i * sizeof(entry), &entry, sizeof(entry)))
            return;
        if ((entry.st_info & 0xf) != STT_FUNC || offset - entry.st_value >= entry.st_size)
            continue;
        copy_name(file, &names, entry.st_name, symbol);
        symbol->function_offset = offset - entry.st_value;
        return;
    }
}

void rs_symbol_in_file(const char *path, uintptr_t address, struct rs_symbol *symbol)
{
    struct file file;

    if (!map_file(path, &file))
        return;
    search_file(&file, address, symbol);
    munmap((void *)(uintptr_t)file.bytes, file.length);
}

/* The address of the call: the return address may belong to another line or another function. */
static uintptr_t call_of(const void *return_address)
{
    return (uintptr_t)return_address - 1;
}

/* Returns where the object's file is; the program's own has no name. */
static const char *name_object(const char *path, struct rs_symbol *symbol)
{
    const char *slash = strrchr(path, '/');

    snprintf(symbol->object, sizeof(symbol->object), "%s",
             !*path  ? program_invocation_short_name
             : slash ? slash + 1
                     : path);
    return *path ? path : "/proc/self/exe";
}

/* Returns where the object's file is; NULL when there is no object. */
static const char *describe_object(uintptr_t address, struct rs_symbol *symbol, Dl_info *info)
{
    struct link_map *object = NULL;

    *symbol = (struct rs_symbol){.object = "?", .object_offset = address};
    if (!dladdr1((const void *)address, info, (void **)&object, RTLD_DL_LINKMAP) || !object)
        return NULL;
    symbol->object_offset = address - object->l_addr;
    return name_object(object->l_name ? object->l_name : "", symbol);
}

void rs_symbol_describe(const void *return_address, struct rs_symbol *symbol)
{
    uintptr_t address = call_of(return_address);
    Dl_info info;
    const char *path = describe_object(address, symbol, &info);

    if (!path)
        return;
    if (info.dli_sname && info.dli_saddr) {
        snprintf(symbol->function, sizeof(symbol->function), "%s", info.dli_sname);
        symbol->function_offset = address - (uintptr_t)info.dli_saddr;
        return;
    }
    rs_symbol_in_file(path, symbol->object_offset, symbol);
}

void rs_symbol_describe_by_file(const void *return_address, struct rs_symbol *symbol)
{
    uintptr_t address = call_of(return_address), base;
    const char *path;

    *symbol = (struct rs_symbol){.object = "?", .object_offset = address};
    if (!rs_object_origin((const void *)address, &path, &base))
        return;
    symbol->object_offset = address - base;
    rs_symbol_in_file(name_object(path, symbol), symbol->object_offset, symbol);
}
