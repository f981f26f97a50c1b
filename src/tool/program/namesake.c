/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/program/namesake.h"

#include "tool/program/elf_file.h"

#include <stdio.h>
#include <string.h>

static bool is_of_cuda(const char *name)
{
    return name[0] == 'c' && name[1] == 'u';
}

static bool exports(const struct elf_symbols *library, const char *name)
{
    for (size_t i = 0; i < library->count; i++)
        if (library->symbols[i].st_shndx != SHN_UNDEF &&
            strcmp(elf_symbol_name(library, i), name) == 0)
            return true;
    return false;
}

/* Protected ones, and those of an object that was linked with -Bsymbolic, are not redirected. */
static bool is_redirected(const struct elf_file *elf, const struct elf_symbols *symbols,
                          size_t index)
{
    const Elf64_Sym *symbol = &symbols->symbols[index];

    return ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && symbol->st_shndx != SHN_UNDEF &&
           ELF64_ST_BIND(symbol->st_info) != STB_LOCAL &&
           ELF64_ST_VISIBILITY(symbol->st_other) == STV_DEFAULT &&
           is_of_cuda(elf_symbol_name(symbols, index)) && elf_refers_to(elf, symbols, index);
}

static void look(const struct elf_symbols *library, const struct elf_file *elf,
                 struct namesake *found)
{
    struct elf_symbols symbols;
    size_t length;

    if (!elf_read_symbols(elf, &symbols))
        return;
    for (size_t i = 0; i < symbols.count; i++) {
        const char *name = elf_symbol_name(&symbols, i);
        if (!is_redirected(elf, &symbols, i) || !exports(library, name))
            continue;
        length = strlen(found->names);
        snprintf(found->names + length, sizeof(found->names) - length, "%s%s",
                 found->count++ ? ", " : "", name);
    }
    elf_free_symbols(&symbols);
}

bool namesake_look(const char *library, const char *path, struct namesake *found)
{
    struct elf_symbols exported;
    struct elf_file ours, theirs;

    *found = (struct namesake){.count = 0};
    if (!elf_open(library, &ours))
        return false;
    if (elf_read_symbols(&ours, &exported)) {
        if (elf_open(path, &theirs)) {
            look(&exported, &theirs, found);
            elf_close(&theirs);
        }
        elf_free_symbols(&exported);
    }
    elf_close(&ours);
    return found->count > 0;
}

void namesake_find(const char *library, const struct load_order *order,
                   void (*each)(void *data, const char *path, const struct namesake *found),
                   void *data)
{
    struct namesake found;

    for (size_t i = load_order_find(order, "librmmshim"); i < order->count; i++)
        if (namesake_look(library, order->paths[i], &found))
            each(data, order->paths[i], &found);
}
